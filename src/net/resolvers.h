/*
 * The host's name servers as its resolv.conf has them, followed as it changes.
 *
 * The file is looked up in the host's root directory through a descriptor, links in it followed as the host would:
 * often it is one into /run, and the keeper has a /run of its own.
 */
#ifndef ERMITE_NET_RESOLVERS_H
#define ERMITE_NET_RESOLVERS_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "net/dial.h"
#include "spec/network.h"

/* Embedded; set root_fd and own, leave the rest zero. */
struct resolvers {
	int root_fd;     /* borrowed */
	struct cidr own; /* the sandboxes' network, which no name server may be in */

	struct dial_targets targets;
	uint32_t generation; /* counts how often targets has changed; 0: not read yet */

	/* of the file that was read last; zero when there was none */
	dev_t device;
	ino_t inode;
	off_t bytes;
	struct timespec modified;
};

/* Looks whether the file is another or has changed, and reads it then; one that is missing or cannot be read has no
 * servers. What is left out has a line each in notes. Returns 1 when the targets are others than before, else 0. */
[[nodiscard]] int resolvers_check(struct resolvers *r, struct buf *notes);

#endif
