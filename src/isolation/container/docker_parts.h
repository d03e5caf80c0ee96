/*
 * The commands of ermite-docker, one file each, and what they share. docker.c is the table of them.
 *
 * Arguments are what follows the command's name; there are as many as the table says. Each returns 0 or a negative
 * errno with the sentence that the program ends with.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_DOCKER_PARTS_H
#define ERMITE_ISOLATION_CONTAINER_DOCKER_PARTS_H

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "isolation/container/engine.h"

/* For looking at something, in milliseconds. */
#define DOCKER_LOOK_MS 10'000

/* probe SOCKET IMAGE. What is wrong with the daemon is an answer, and no error. */
[[nodiscard]] int docker_probe(char **arguments, struct err *e);

/* pull SOCKET IMAGE. An image that cannot be pulled, as by its id, is -EINVAL. */
[[nodiscard]] int docker_pull(char **arguments, struct err *e);

/* import SOCKET NAME DIR. The mounts of this process are then its own. */
[[nodiscard]] int docker_import(char **arguments, struct err *e);

/* remove SOCKET ID. None is fine; -EINVAL for what is no id. */
[[nodiscard]] int docker_remove(char **arguments, struct err *e);

/* list SOCKET STORE. */
[[nodiscard]] int docker_list(char **arguments, struct err *e);

/* run. Returns when the keeper has taken the knock; the keeper's end is -EPIPE. */
[[nodiscard]] int docker_run(char **arguments, struct err *e);

/* True for exactly "sha256:" and 64 lower-case hex digits. */
bool docker_image_id_valid(const char *id);

/* True for what may be the name of an image, with or without registry, tag and digest, or an id: characters that mean
 * nothing to a URL, and no step upwards. */
bool docker_reference_valid(const char *reference);

/* Appends text to a path or query so that it stays one part of it; "/" and ":" stand for themselves. */
void docker_escape(struct buf *path, const char *text);

/* Appends a valid reference to a request's path: the name, "&tag=", and the tag or digest, "latest" without one.
 * Returns 0, or -EINVAL when one of them is empty. */
[[nodiscard]] int docker_reference_add(const char *reference, struct buf *path, struct err *e);

/* Looks at an image. *ret is the caller's. -ENOENT when it is not there. */
[[nodiscard]] int docker_image_inspect(struct engine *g, const char *reference, json_t **ret, struct err *e);

#endif
