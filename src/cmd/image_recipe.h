/*
 * Running images/make: the child in its namespaces, what it says, and the signals that stop it.
 */
#ifndef ERMITE_CMD_IMAGE_RECIPE_H
#define ERMITE_CMD_IMAGE_RECIPE_H

#include <stdbool.h>

#include "base/err.h"

/* Runs the recipe with these arguments (NULL-terminated, argv[0] included) to its end, showing its progress on standard
 * error. Returns 0 when it succeeded; the number of the signal that stopped it, all its processes then gone; or a
 * negative errno, its last lines then shown. */
[[nodiscard]] int image_recipe_run(const char *path, const char *const *arguments, bool no_network,
				   bool verbose, struct err *e);

#endif
