/*
 * The client's half of the container isolation: what is missing on this host, and getting the image.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_PROVIDE_H
#define ERMITE_ISOLATION_CONTAINER_PROVIDE_H

#include "isolation/isolation.h"

/* As isolation_ops.missing, of the two forms. */
unsigned provide_missing_sysbox(const struct config *c, struct isolation_host *host, struct buf *reasons);
unsigned provide_missing_privileged(const struct config *c, struct isolation_host *host, struct buf *reasons);

/* As isolation_ops.provide, of the two forms. */
[[nodiscard]] int provide_sysbox(struct isolation_host *host, struct sandbox_spec *spec, struct buf *warnings,
				 struct err *e);
[[nodiscard]] int provide_privileged(struct isolation_host *host, struct sandbox_spec *spec,
				     struct buf *warnings, struct err *e);

/* When <state>/image was made anew, and its base.ext4 has this SHA-256: feeds it to Docker in place of what was fed
 * from an older one, and also when Docker has none and the configuration names the isolation container. Without a
 * daemon there is nothing to do, unless containers are what is asked for. Returns 1 when it was fed, 0, or a negative
 * errno. */
[[nodiscard]] int provide_feed(const struct config *c, const char *sha256, struct err *e);

#endif
