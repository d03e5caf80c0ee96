/*
 * The command "image": making and listing what sandboxes start from.
 */
#ifndef ERMITE_CMD_IMAGE_H
#define ERMITE_CMD_IMAGE_H

#include "cmd/command.h"

/* The row for the table of commands. */
extern const struct command cmd_image;

#endif
