/*
 * Making an image directory: images/make in namespaces of its own, its progress shown, its result swapped in at once.
 *
 * Everything is written to a directory beside the image, DIR.new, under a lock, DIR.lock. The old image stays in place
 * until the new one is whole; a sandbox that has the old base.ext4 open goes on with it.
 */
#ifndef ERMITE_CMD_IMAGE_MAKE_H
#define ERMITE_CMD_IMAGE_MAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cmd/image_info.h"

#define IMAGE_RECIPE_ARGUMENTS 6 /* at most, of one kind of recipe */

struct image_request {
	const char *directory; /* absolute path of the image; borrowed, like all here */
	const char *kind;      /* "debian" or "tar" */
	const char *suite;     /* empty for an archive */
	/* What follows the directory on the recipe's command line, NULL-terminated. */
	const char *arguments[IMAGE_RECIPE_ARGUMENTS];
	bool no_network; /* the recipe needs none */
	bool verbose;    /* all that the recipe says instead of its progress */
};

/* Makes the image. Returns 0; the number of the signal that stopped it, then nothing has changed; -EBUSY when another
 * one is being made for this directory; another negative errno, the old image then still in place. *ret is written
 * after 0 only. Progress goes to standard error. Blocks SIGINT, SIGTERM and SIGHUP for the rest of the process. */
[[nodiscard]] int image_make(const struct image_request *request, struct image_info *ret, struct err *e);

#endif
