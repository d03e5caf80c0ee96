/*
 * A laboratory for the forwarder: the real one, isolated, in a child. The test plays the keeper, the sandbox and up to
 * three resolvers, on loopback addresses of a network namespace of its own.
 *
 * Every function fails the running test when something is not as expected.
 */
#ifndef ERMITE_TESTS_DNS_LAB_H
#define ERMITE_TESTS_DNS_LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "net/dns/dns.h"

#define LAB_GATEWAY   0x7f000101u /* 127.0.1.1 */
#define LAB_GUEST     0x7f000102u
#define LAB_STRANGER  0x7f000103u
#define LAB_PUBLIC    ((const uint8_t[]){8, 8, 4, 4})
#define LAB_RESOLVERS 3
#define LAB_BYTES     (64 << 10)

/* Shorter than any deadline of the lab: what has not happened by then is not going to. */
#define QUIET_MS 60

struct lab {
	pid_t pid;
	int channel; /* the keeper's end */
	int log;     /* to read */
	int refused; /* to tell of packets */
	struct dns_counts *counts;
	struct dns_config config;
	uint32_t generation, n_resolvers;
	uint32_t first;         /* resolver that is number 0 */
	bool no_udp, no_tcp;    /* the keeper has no such sockets */
	int udp[LAB_RESOLVERS]; /* of the resolvers */
	int tcp[LAB_RESOLVERS];
};

/* A message as it came, and from where. */
struct lab_message {
	size_t n;
	uint16_t from_port;
	uint8_t p[LAB_BYTES];
};

/* A network namespace for this process, with loopback up. */
void lab_enter(void);

/* Fills the configuration with short deadlines; the test may change it before lab_open(). */
void lab_init(struct lab *l);
void lab_open(struct lab *l);

/* Closes the channel; the forwarder must end with this status. */
void lab_close(struct lab *l, int status);

/* True when the descriptor is readable within ms; serves the forwarder meanwhile. */
bool lab_readable(struct lab *l, int fd, int ms);

/* As the keeper: other resolvers, the first of them number first. */
void lab_change(struct lab *l, uint32_t generation, uint32_t first, uint32_t n);

/* A socket of the sandbox's, or of another address's, connected to the forwarder. */
int lab_client(uint32_t address, int type);

/* Builds a question for an A or other record; edns: the size it tells, 0 for none. Returns its length. */
size_t lab_question(uint8_t *p, uint16_t id, const char *name, uint16_t type, uint16_t edns);

/* Builds and sends it over UDP or TCP. */
void lab_ask(int fd, int type, uint16_t id, const char *name);

/* Receives a message on a UDP or TCP (with its length in front) socket; it must come. */
void lab_hear(struct lab *l, int fd, int type, struct lab_message *ret);

/* As resolver i: the next question over UDP. */
void lab_asked(struct lab *l, uint32_t i, struct lab_message *ret);

/* As resolver i: the next connection, with its question. Returns the connection. */
int lab_asked_tcp(struct lab *l, uint32_t i, struct lab_message *ret);

/* Turns a question into an answer in place: count records of this type and content. */
void lab_make_answer(struct lab_message *m, uint16_t type, const void *content, size_t n, unsigned count);

/* The same with one record of a public address. */
void lab_make_public(struct lab_message *m);

/* "n7.test". */
void lab_name(unsigned i, char name[static 32]);

/* As resolver i: sends a message back, over UDP; over a connection. */
void lab_answer(struct lab *l, uint32_t i, const struct lab_message *m);
void lab_answer_tcp(int connection, const struct lab_message *m);

/* As the sandbox: the answer on a socket must have this id and rcode, and this many records. */
void lab_expect(struct lab *l, int fd, int type, uint16_t id, unsigned rcode, unsigned records);

/* The next line of the log must hold all of these words, up to NULL. */
void lab_expect_log(struct lab *l, const char *const *words);

#endif
