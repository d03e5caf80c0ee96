/*
 * HTTP with Docker's daemon over its Unix socket, one request after the other on one connection.
 *
 * Nothing is followed, nothing is proxied, and everything has a limit: time, silence, bytes. What the daemon complains
 * of comes back in its own words: 404 as -ENOENT, 409 as -EEXIST, another status as -EREMOTEIO; what is no answer of
 * a daemon as -EPROTO, silence as -ETIMEDOUT.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_ENGINE_H
#define ERMITE_ISOLATION_CONTAINER_ENGINE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define ENGINE_PATH_MAX 4096

/* What it is made with. */
struct engine_limits {
	uint32_t connect_ms;
	uint32_t ping_ms;    /* for the first answer */
	uint32_t stall_s;    /* a transfer that brings nothing for so long is over */
	size_t answer_bytes; /* of one answer, or of one line of a transfer's */
};

#define ENGINE_LIMITS ((struct engine_limits){5000, 10'000, 300, 4u << 20})

struct engine;

/* Connects to the daemon at the socket and agrees on the version of its interface. Returns 0 and an engine, to be
 * freed with engine_free(); -ENOENT, -ECONNREFUSED, -EACCES, -ETIMEDOUT with a sentence that names the socket;
 * -ENOTSUP for a daemon that is too old, -EPROTO for what is none. */
[[nodiscard]] int engine_new(const char *socket, struct engine_limits limits, struct engine **ret,
			     struct err *e);

/* Closes the connection and frees what libcurl holds in this process. NULL is fine. */
void engine_free(struct engine *g);

static inline void engine_freep(struct engine **g)
{
	engine_free(*g);
	*g = NULL;
}

#define scoped_engine __attribute__((cleanup(engine_freep)))

/* The version in use is 1.<this>. */
unsigned engine_version(const struct engine *g);

/* The connection's descriptor, the engine's, or -1. */
int engine_socket(const struct engine *g);

struct engine_request {
	const char *method;
	const char *path; /* from "/", without the version, its parts escaped */
	const char *body; /* JSON; NULL: none */
	uint32_t ms;      /* for all of it */
};

/* Asks and waits for the whole answer. *ret (may be NULL) is its JSON, the caller's, or NULL when it has no body. */
[[nodiscard]] int engine_call(struct engine *g, const struct engine_request *q, json_t **ret, struct err *e);

/* A POST that moves much: bytes there, a JSON value a line back, each as it comes. It may take any time, but not
 * stall. */
struct engine_transfer {
	const char *path;
	/* Fills p with at most n bytes. Returns how many, 0 at the end, or a negative errno, which ends the transfer
	 * so that the daemon does not take it for the whole. NULL: there is nothing to send. */
	ssize_t (*feed)(void *data, char *p, size_t n, struct err *e);
	/* Takes a value, which is not its own. A negative errno ends the transfer. */
	int (*line)(void *data, const json_t *value, struct err *e);
	void *data;
};

/* Runs a transfer to its end. A complaint of the daemon in a line is an error. */
[[nodiscard]] int engine_transfer(struct engine *g, const struct engine_transfer *t, struct err *e);

#endif
