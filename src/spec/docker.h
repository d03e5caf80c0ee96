/*
 * Docker on this host: where its daemon listens, and what the client settles for a sandbox of the container isolation.
 */
#ifndef ERMITE_SPEC_DOCKER_H
#define ERMITE_SPEC_DOCKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define DOCKER_SOCKET_DEFAULT "/var/run/docker.sock"
#define DOCKER_SOCKET_SIZE    108 /* as in struct sockaddr_un */
#define DOCKER_IMAGE_ID_SIZE  72  /* "sha256:", 64 hex digits, the end */

/* Labels on every object of ours. */
#define DOCKER_LABEL_JOB   "dev.bnema.ermite-runner.job"   /* the sandbox's id */
#define DOCKER_LABEL_STORE "dev.bnema.ermite-runner.store" /* the state directory whose sandbox it is */
#define DOCKER_LABEL_IMAGE                                                                                   \
	"dev.bnema.ermite-runner.image" /* SHA-256 of the base.ext4 that an image was fed from */

/* What the client found out; plain data in struct sandbox_spec. All zero in the other isolations. */
struct docker_choice {
	char socket[DOCKER_SOCKET_SIZE];
	char image[DOCKER_IMAGE_ID_SIZE]; /* the id: a name can be given to another one meanwhile */
	bool sysbox;                      /* runtime sysbox-runc, unprivileged; else privileged */
};

/* Where the daemon's socket is by the value of DOCKER_HOST (NULL or empty: the default). Returns 0, or -EINVAL with a
 * sentence for one that is not a socket of this host ("tcp://…" and the like) or too long. */
[[nodiscard]] int docker_socket(const char *docker_host, char ret[static DOCKER_SOCKET_SIZE], struct err *e);

#endif
