/*
 * What this host's Docker is: asked of ermite-docker, read from its lines.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_FACTS_H
#define ERMITE_ISOLATION_CONTAINER_FACTS_H

#include "base/err.h"
#include "isolation/container/docker.h"

/* Reads what `ermite-docker probe` printed; a name that is not known is passed over. Returns 0, or -EPROTO for a
 * value that does not fit. */
[[nodiscard]] int facts_read(const char *text, struct docker_facts *ret, struct err *e);

/* Asks the daemon at socket about itself and an image. What went wrong is in ret->trouble. */
void facts_ask(const char *socket, const char *image, struct docker_facts *ret);

#endif
