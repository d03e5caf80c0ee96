/*
 * Our AppArmor profile, on hosts that have AppArmor; elsewhere all of this says no.
 */
#ifndef ERMITE_ISOLATION_SYSTEM_APPARMOR_H
#define ERMITE_ISOLATION_SYSTEM_APPARMOR_H

#include <stdbool.h>

#include "base/err.h"

#define APPARMOR_PROFILE "ermite-system"

/* True when this kernel confines by AppArmor. */
bool apparmor_enabled(void);

/* The path of apparmor_parser, or NULL when it is missing. */
const char *apparmor_parser(void);

/* Loads the profile unless it is there; it stays, for all sandboxes. Does nothing without AppArmor. Returns 0 or a
 * negative errno. */
[[nodiscard]] int apparmor_load(struct err *e);

#endif
