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

#endif
