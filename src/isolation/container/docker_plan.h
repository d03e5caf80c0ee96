/*
 * From a plan to what Docker's daemon is asked to create: pure, no daemon and no descriptors.
 *
 * The image's root is mounted read-only and nothing is written through the daemon's storage: the guest program builds
 * the sandbox's own root on the scratch file.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_DOCKER_PLAN_H
#define ERMITE_ISOLATION_CONTAINER_DOCKER_PLAN_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "isolation/container/docker.h"

/* The label with the caller's own name of the job, for people: what is no text in it is shown as \xNN. */
#define DOCKER_LABEL_CALLER "dev.bnema.ermite-runner.caller"

/* Checks a plan that came in as n bytes: its size, its texts, its ids. Returns 0 and the plan, or -EINVAL. */
[[nodiscard]] int docker_plan_read(const void *p, size_t n, struct docker_plan *ret, struct err *e);

/* The body of the request that creates the container. version: of the interface, the number after "1.". image: what the
 * daemon tells of the image, whose volumes are covered so that none is made. Returns 0 and a value that the caller
 * owns; -EPROTO for an image that is none; -EINVAL for a text that is not UTF-8; -ENOMEM. */
[[nodiscard]] int docker_plan_request(const struct docker_plan *plan, unsigned version, const json_t *image,
				      json_t **ret, struct err *e);

#endif
