/*
 * Guest forge access: the one server of the host's configuration that sandboxes may reach on their gateway, and where
 * the runner relays such connections to. Read from the configuration; nothing is resolved or opened here.
 */
#ifndef ERMITE_SPEC_FORGE_H
#define ERMITE_SPEC_FORGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/config.h"

#define FORGE_HOST_SIZE   254 /* bytes of a host name with its end */
#define FORGE_ORIGIN_SIZE 272 /* "https://", a name, ":65535" and its end */

/* Plain data. Without access everything is zero. */
struct forge {
	bool on;
	bool https;
	char host[FORGE_HOST_SIZE]; /* a name in lower case without a last dot, never an address */
	uint16_t port;
	char target_host
		[FORGE_HOST_SIZE]; /* a name or an IPv4 address; "": nothing is relayed, a service listens */
	uint16_t target_port;
	char origin[FORGE_ORIGIN_SIZE]; /* "https://forge.example:3000", without the scheme's own port */
};

/* Reads what the configuration says. Access is off, and nothing is looked at, with ERMITE_RUNNER_GUEST_FORGE=0 and
 * without a network. Returns 0, or -EINVAL with a sentence that names the item that is not accepted. */
[[nodiscard]] int forge_read(const struct config *c, struct forge *ret, struct err *e);

#endif
