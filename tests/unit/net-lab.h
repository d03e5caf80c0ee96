/*
 * A laboratory for the network: namespaces of the test's own, in which it is "the host", with a way out at whose other
 * end the test listens, too. Nothing of it is the machine's, and all of it goes with the process.
 *
 * Every function fails the running test when something is not as expected.
 */
#ifndef ERMITE_TESTS_NET_LAB_H
#define ERMITE_TESTS_NET_LAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/network.h"

#define LAB_HOST    0x05050501u /* 5.5.5.1, the host's end of the way out */
#define LAB_BEYOND  0x05050502u /* and its other end */
#define LAB_PRIVATE 0x0a010203u /* 10.1.2.3, beyond too */
#define LAB_NETWORK ((struct cidr){0x0ac80000u, 16})

/* Moves the process into fresh network and mount namespaces with an empty /run, loopback up and forwarding off. */
void lab_enter(void);

/* Makes the way out: a pair with a default route over it. Returns the namespace beyond (caller's). */
int lab_way_out(void);

/* A fresh network namespace with loopback up. Returns its descriptor (caller's). */
int lab_namespace(void);

/* Runs a shell command in a network namespace (-1: the caller's); it must succeed. */
[[gnu::format(printf, 2, 3)]] void lab_run(int netns, const char *format, ...);

/* Runs a shell command there and appends what it prints. Returns its exit status. */
[[gnu::format(printf, 3, 4)]] int lab_read(int netns, struct buf *out, const char *format, ...);

/* True when the command prints this text. */
bool lab_shows(int netns, const char *command, const char *text);

/* A socket of a namespace, bound to an address (0: any) and a port (0: any); type SOCK_DGRAM or SOCK_RAW, which is one
 * of IPPROTO_RAW. */
int lab_socket(int netns, int type, uint32_t address, uint16_t port);

/* Sends one datagram from a socket. Returns 0 or the negative errno of the network's answer. */
int lab_send(int fd, uint32_t address, uint16_t port, const char *text);

/* Waits for a datagram. Returns the address it comes from, in host byte order, or 0 when none comes within ms. */
uint32_t lab_heard(int fd, int ms);

/* Fails with the error's message when r is not what is wanted. */
void lab_expect(int r, int wanted, const struct err *e);

#endif
