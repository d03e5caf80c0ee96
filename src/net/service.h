/*
 * One unprivileged helper of a sandbox's network as the keeper sees it: started, served with sockets, and started anew
 * when it dies. What it is for is services.c's concern.
 *
 * A helper reads what a sandbox sends, so it may be in a sandbox's hands. The only message taken from it is DIAL;
 * anything else ends it. It has sockets at SERVICE_SOCKETS_PER_S at most, which is more than it can use for questions
 * and keeps the keeper busy for about half of the time; what it asks beyond that waits in its channel. One that does
 * not read its answers is ended.
 */
#ifndef ERMITE_NET_SERVICE_H
#define ERMITE_NET_SERVICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "io/chan.h"
#include "io/child.h"
#include "io/loop.h"

#define SERVICE_FD_CONFIG     3 /* where every helper has its configuration */
#define SERVICE_FD_CHANNEL    4 /* and its channel */
#define SERVICE_SOCKETS_PER_S 100000
#define SERVICE_STARTS_MAX    5 /* anew, within SERVICE_WINDOW_MS; the next one waits */
#define SERVICE_WINDOW_MS     10000

struct service;

/* Borrowed for the life of the service. */
struct service_plan {
	const char *name; /* "ermite-dns", for argv[0] and sentences */
	const char *id;   /* of the sandbox, for argv[1] */
	const char *path; /* of the program */
	const int *
		fds; /* as of struct child_plan; those of configuration and channel are put in by the service */
	size_t n_fds;

	/* Makes the memfd with the configuration of a new life; the service owns it. */
	int (*configure)(void *data, int *ret_fd, struct err *e);
	/* Answers a DIAL. -EPROTO, or a channel that does not take the answer, ends the helper. */
	int (*dial)(void *data, int channel, const struct chan_message *m, struct err *e);
	/* The next two as in struct services_plan. */
	int (*started)(void *data, const char *name, pid_t pid, struct err *e);
	void (*warn)(void *data, const char *sentence);
	void *data;
};

/* Starts the helper. Returns 0 and the service (caller's), or a negative errno. */
[[nodiscard]] int service_start(const struct service_plan *plan, struct loop *loop, struct service **ret,
				struct err *e);

/* Sends the helper a message without descriptors; one that waits to be started is told nothing, since it will have
 * a new configuration. A helper that does not take it is ended. */
void service_tell(struct service *s, const struct chan_message *m);

/* Ends the helper and frees the service; NULL is fine. Call it before loop_free(). */
void service_end(struct service *s);

#endif
