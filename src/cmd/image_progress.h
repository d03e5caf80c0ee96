/*
 * What making an image says, line by line, as a phase and how far it is. Pure: no clock, no descriptors.
 *
 * The lines are those of images/make ("P: ..."), of mmdebstrap ("I: ...") and, within its phases, of apt and dpkg.
 */
#ifndef ERMITE_CMD_IMAGE_PROGRESS_H
#define ERMITE_CMD_IMAGE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct image_progress {
	char phase[64];  /* what goes on, for a person; empty before the first phase */
	uint64_t total;  /* packages of this phase, 0 when not known */
	uint64_t events; /* lines seen that count */
	unsigned kinds;  /* such lines per package in this phase, 0 when the phase is not counted */
};

#define IMAGE_PROGRESS_INIT ((struct image_progress){0})

/* Takes one line without its end. Returns true when a new phase began. */
bool image_progress_line(struct image_progress *p, const char *line);

/* How much of the phase is done, 0 to 100, or -1 when that is not known. */
int image_progress_percent(const struct image_progress *p);

/* Appends one line for a person, "[ 42 s] installing packages, 63 %", without its end. */
void image_progress_text(const struct image_progress *p, uint64_t elapsed_s, struct buf *out);

#endif
