/*
 * The door: a socket that the first program inside, our own, connects to before anything else runs there. It waits
 * until the keeper has put it under the limits and answers.
 */
#ifndef ERMITE_ISOLATION_DOOR_H
#define ERMITE_ISOLATION_DOOR_H

#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "resource/resource.h"

/* What knocked. */
struct door_visitor {
	int fd;    /* connected to it; owned */
	int pidfd; /* of it; owned */
	pid_t pid;
};

#define DOOR_VISITOR_INIT ((struct door_visitor){-1, -1, -1})

/* Listens at path, which only host id uid can connect to. Returns 0 and a descriptor that does not block. */
[[nodiscard]] int door_listen(const char *path, uid_t uid, int backlog, int *ret_fd, struct err *e);

/* Takes a knock: the peer must be host id uid. Returns 0 or a negative errno. */
[[nodiscard]] int door_take(int listen_fd, uid_t uid, struct door_visitor *ret, struct err *e);

/* Names the visitor in the record as "init", puts it under the sandbox's limits and opens its network namespace
 * (caller's). */
[[nodiscard]] int door_bind(const struct sandbox *s, const struct door_visitor *v, int *ret_netns,
			    struct err *e);

/* Answers it, with descriptors if there are any: it goes on. */
[[nodiscard]] int door_admit(const struct door_visitor *v, const int *fds, size_t n, struct err *e);

/* Appends why the visitor gave up on its way to the executor, if it did: a sentence of our own program, which is not
 * trusted to be one. */
void door_last_words(const struct door_visitor *v, struct buf *reason);

/* Kills the visitor and with it everything inside, and waits for that; one that never came is fine. Closes both
 * descriptors. */
void door_end(struct door_visitor *v);

#endif
