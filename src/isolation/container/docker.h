/*
 * The program ermite-docker: everything that is said to Docker's daemon.
 *
 * libcurl and jansson stay in it, so that no other process of ours loads them or reads foreign JSON; the rest of the
 * runner speaks to it in arguments, lines and fixed structs. It knows five commands:
 *
 *     ermite-docker probe SOCKET IMAGE       lines about daemon and image on standard output (struct docker_facts)
 *     ermite-docker pull SOCKET IMAGE        gets an image that is not there; progress on standard error
 *     ermite-docker import SOCKET NAME DIR   feeds DIR/base.ext4 to the daemon as image NAME; progress there, too
 *     ermite-docker remove SOCKET ID         removes every object of the sandbox ID, a line each; none is fine
 *     ermite-docker list SOCKET STORE        the ids of all sandboxes of a store that objects bear, one a line
 *     ermite-docker run                      one container, from its plan to its knock (DOCKER_CHANNEL_FD)
 *
 * Each ends with 0, or with 1 and one sentence on standard error. Every request has a time limit: a daemon that does
 * not answer is an error, never a wait. When descriptor DOCKER_MOUNTS_FD is a mount namespace (the keeper's private
 * one has no /run of the host), `remove` and `list` enter it first; elsewhere it is /dev/null.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_DOCKER_H
#define ERMITE_ISOLATION_CONTAINER_DOCKER_H

#include <stdbool.h>
#include <stdint.h>

#include "spec/config.h"
#include "spec/docker.h"
#include "spec/id.h"
#include "spec/job.h"

#define DOCKER_CHANNEL_FD 3 /* of run */
#define DOCKER_MOUNTS_FD  3 /* of remove and list */

/* What the container is made from. To `run` in a memfd as bytes: same build. */
struct docker_plan {
	struct docker_choice choice;
	char id[ID_SIZE];
	char job_id[JOB_ID_MAX];
	char store[CONFIG_PATH_MAX];     /* the state directory, for the label */
	char guest_dir[CONFIG_PATH_MAX]; /* bound read-only at /opt/ermite: the guest program */
	char door_dir[CONFIG_PATH_MAX];  /* bound read-only at /run/ermite: the socket of the door */
	uint64_t memory_bytes;
	uint32_t cpus;
	uint32_t pids;
	uint64_t capabilities; /* of this host's bounding set, a bit each */
	bool full;             /* that is every capability this kernel has */
};

/* Messages between the keeper and `run`, over io/chan. The plan comes first, and then that the keeper has taken the
 * knock: it holds the container's first process from there on, and `run` ends. What went wrong is told before the
 * end. */
enum docker_message {
	DOCKER_PLAN = 1, /* to it, with the memfd */
	DOCKER_KNOCKED,  /* to it */
	DOCKER_FAILED,   /* from it: the sentence */
};

/* What `probe` prints, a name and a value a line. An unanswered question has no line. */
struct docker_facts {
	char version[32];                    /* version: the daemon's */
	char image_id[DOCKER_IMAGE_ID_SIZE]; /* image: empty when it is not there */
	char image_source[65];               /* source: its label DOCKER_LABEL_IMAGE, or empty */
	bool sysbox;                         /* runtime sysbox-runc: the daemon lists it */
	char trouble
		[512]; /* trouble: why this daemon cannot be used (not reachable, rootless, another system's …) */
};

/* The program. Returns what it exits with. */
int docker_main(int n, char **arguments);

#endif
