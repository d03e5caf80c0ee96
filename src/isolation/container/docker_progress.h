/*
 * How far a long transfer is, for a person: one line that is written over on a terminal, elsewhere a line every ten per
 * cent. Goes to standard error.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_DOCKER_PROGRESS_H
#define ERMITE_ISOLATION_CONTAINER_DOCKER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct docker_progress {
	const char *what; /* "feeding the image x to Docker"; borrowed */
	bool terminal;
	uint64_t shown_ms; /* when the line was last written */
	int shown_tenth;   /* the last ten per cent that were told, -1 before the first */
};

/* Begins, and says so. what is borrowed until the end. */
void docker_progress_begin(struct docker_progress *p, const char *what);

/* done of total bytes; a total of 0 is not known yet. */
void docker_progress_tell(struct docker_progress *p, uint64_t done, uint64_t total);

/* Ends the line that is written over. */
void docker_progress_end(const struct docker_progress *p);

#endif
