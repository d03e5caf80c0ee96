/*
 * The network of a live sandbox, in its keeper: the helpers that serve it, the link, the watch over the host, and
 * what was used. Its place in the gateway is a resource (resource/network.c), made before and removed after.
 */
#ifndef ERMITE_KEEPER_NETWORK_H
#define ERMITE_KEEPER_NETWORK_H

#include "base/err.h"
#include "io/loop.h"
#include "resource/resource.h"
#include "spec/job.h"

struct network;

/* Starts the helpers and the watch; the sandbox, client (-1: none) and log_fd are borrowed. Without a network there
 * is nothing to start and *ret is NULL, which every function here takes. Returns 0 or a negative errno. */
[[nodiscard]] int network_start(struct sandbox *s, struct loop *loop, const int *client, int log_fd,
				struct network **ret, struct err *e);

/* Links the sandbox's namespace, with nothing running in it yet, to the gateway. Returns 0 or a negative errno. */
[[nodiscard]] int network_plug(struct network *n, int sandbox_netns, struct err *e);

/* Reads what was used so far into ret; what cannot be read any more stays as it was. */
void network_use(const struct network *n, struct job_network *ret);

/* Ends helpers and watch, before the loop is freed. Counts are to be read before. */
void network_end(struct network *n);

#endif
