/*
 * The program ermite-relay: passes TCP connections of one sandbox on to one configured target (guest forge access).
 *
 * Unprivileged (guard/isolate.h). It accepts on a socket that the keeper opened on the gateway's address in the gateway
 * namespace, and gets a socket to the target for each connection from the keeper (net/dial.h): it cannot reach anything
 * else, whatever the bytes say. It does not look at them. What one side ends is ended for the other, each way by
 * itself; when one side breaks, so does the other, or half of something would be taken for all of it.
 */
#ifndef ERMITE_NET_RELAY_RELAY_H
#define ERMITE_NET_RELAY_RELAY_H

#include <stdint.h>

enum relay_fd {
	RELAY_FD_CONFIG = 3, /* memfd with a struct relay_config */
	RELAY_FD_CHANNEL,    /* to the keeper: DIAL out, SOCKETS in */
	RELAY_FD_LISTENER,   /* on the gateway's address and the forge's port */
	RELAY_FDS,
};

#define RELAY_CONFIG_MAGIC 0x31796c72u

struct relay_config {
	uint32_t magic;
	uint32_t uid;
	uint32_t guest; /* the only address that may connect, host order */
	uint32_t connections_max;
	uint64_t idle_ms;    /* a connection without a byte for so long is closed */
	uint64_t connect_ms; /* to reach the target */
};

/* Fills what is the same for every sandbox; uid and guest stay 0. */
void relay_config_init(struct relay_config *c);

/* Runs the program. Returns what it exits with. */
int relay_run(void);

#endif
