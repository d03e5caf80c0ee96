/*
 * What guest forge access means for a job before it starts: the names must be known to this host, and the job's
 * variables name the server as the sandbox reaches it.
 */
#ifndef ERMITE_CLIENT_FORGE_ACCESS_H
#define ERMITE_CLIENT_FORGE_ACCESS_H

#include "base/err.h"
#include "client/env.h"
#include "spec/forge.h"

/* Asks this host's resolver for the forge's name and the target's; may take as long as that does. Returns 0, also when
 * access is off, or -EINVAL with a sentence that names the item. */
[[nodiscard]] int forge_access_resolves(const struct forge *f, struct err *e);

/* Replaces scheme, host and port in those variables of the list that hold the URL of the server or of one of its APIs
 * (GITHUB_SERVER_URL, CI_API_V4_URL, …), and keeps the path. What is no URL stays. Returns 0, also when access is off,
 * or -ENOMEM. */
[[nodiscard]] int forge_access_rewrite(const struct forge *f, struct env *list, struct err *e);

#endif
