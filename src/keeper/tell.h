/*
 * What the keeper tells its client, over the control channel. A client that is gone, -1, is told nothing; that it went
 * is noticed by its hang-up, so nothing here fails. When a message cannot be sent, the channel is shut down: the client
 * might wait for that one for ever, and both sides notice the hang-up.
 */
#ifndef ERMITE_KEEPER_TELL_H
#define ERMITE_KEEPER_TELL_H

#include <stdint.h>

#include "base/buf.h"
#include "io/chan.h"
#include "resource/resource.h"

/* Sends a message. */
void tell(int client, const struct chan_message *m);

/* Sends a message of this type with text, cut to what fits. */
void tell_text(int client, uint32_t type, const char *text);

/* Sends each line as a message of its own. */
void tell_lines(int client, uint32_t type, const struct buf *lines);

/* Sends a leftover as a warning; data is a const int *, the client. For struct reap. */
void tell_leftover(void *data, const struct leftover *l);

#endif
