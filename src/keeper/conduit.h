/*
 * Starting the conduit of a sandbox.
 */
#ifndef ERMITE_KEEPER_CONDUIT_H
#define ERMITE_KEEPER_CONDUIT_H

#include "base/err.h"
#include "io/child.h"
#include "isolation/isolation.h"
#include "resource/resource.h"

/* Starts it on the view's listener, which it takes, and names it in the record. Returns 0 with the child and the
 * channel to it (caller's), or a negative errno; the channel may be there then all the same. */
[[nodiscard]] int keeper_start_conduit(const struct sandbox *s, struct isolated_view *view, struct child *ret,
				       int *ret_channel, struct err *e);

#endif
