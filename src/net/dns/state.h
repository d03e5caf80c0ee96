/*
 * The forwarder's state, for the files of this folder only: who asked (clients.c), what is being asked (questions.c),
 * with which sockets (upstream.c), and what is written down (log.c).
 *
 * All of it stands in one struct, which is allocated once: its tables are the limits. Functions that nothing can fail
 * return nothing; what a client, a resolver or a lack of memory breaks is that client's or that try's trouble. Every
 * callback of the loop ends with dns_settle().
 */
#ifndef ERMITE_NET_DNS_STATE_H
#define ERMITE_NET_DNS_STATE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/buf.h"
#include "io/loop.h"
#include "net/dial.h"
#include "net/dns/dns.h"
#include "wire/dns.h"
#include "wire/flow.h"

#define QUESTIONS_MAX   32 /* asked upstream at a time */
#define WAITERS_MAX     128
#define CONNECTIONS_MAX 16

/* The largest answer over UDP, whatever the client says that it takes: no fragments, and little to amplify. */
#define UDP_ANSWER_MAX DNS_UPSTREAM_UDP

#define BATCH_MAX      16   /* datagrams read at a time */
#define DATAGRAM_MAX   4096 /* of a client; no question is as long */
#define FRAME_MAX      (2 + DNS_MESSAGE_MAX)
#define CONNECTION_OUT (2 * FRAME_MAX) /* what may wait for a client that does not read */
#define POOL_MAX       64
#define POOL_IDLE      8 /* kept while nothing is asked: a thousand sandboxes share the host's ports */
#define IDS_MAX        128
#define FLOWS_SEEN     256
#define LOG_LINE_MAX   4000 /* less than PIPE_BUF: a line goes whole or not at all */
#define NO_DEADLINE    UINT64_MAX

struct dns;

/* A TCP connection of the sandbox. */
struct connection {
	struct dns *dns;
	int fd; /* owned; -1: the row is free */
	struct source *source;
	uint64_t begun_ns;   /* tells the oldest */
	uint64_t end_ms;     /* it is closed then */
	uint64_t message_ms; /* the message that has begun must be complete then */
	uint32_t waiting;    /* questions that are being asked */
	bool stalled;        /* a whole message waits for room in the tables, or for answers to be taken */
	bool ended;          /* the client sends no more */
	uint32_t n;          /* bytes in in */
	uint8_t *in;         /* FRAME_MAX bytes of the table */
	uint8_t *out;        /* owned, CONNECTION_OUT bytes; NULL while nothing waits */
	uint32_t out_at, out_n;
};

/* Who waits for an answer. */
struct waiter {
	struct waiter *next;           /* of the same question, or of the free ones */
	struct connection *connection; /* NULL: over UDP */
	struct sockaddr_in from;       /* then */
	bool gone;                     /* its connection has closed */
	struct dns_query query;
};

enum question_state {
	QUESTION_FREE,
	QUESTION_WANTS_UDP, /* waits for a socket of the keeper's */
	QUESTION_UDP,
	QUESTION_WANTS_TCP,
	QUESTION_CONNECTS,
	QUESTION_TCP,
};

/* What is being asked upstream. */
struct question {
	struct dns *dns;
	enum question_state state;
	struct waiter *waiters;
	struct dns_query query; /* the first waiter's */
	uint64_t begun_ms;
	uint64_t end_ms; /* it has failed then */

	/* the try under way */
	uint32_t resolver;
	uint16_t id;
	uint64_t try_ms; /* its end */
	int fd;          /* owned */
	struct source *source;
	uint32_t answer_n; /* bytes of the answer over TCP so far, with its two of length */
	uint8_t length[2];
	uint8_t *answer; /* owned; as long as its length says */
};

/* UDP sockets to one resolver, each good for one question. */
struct pool {
	int fds[POOL_MAX]; /* owned; fds[0 .. n) */
	uint32_t n;
	uint32_t wanted;
	uint32_t dialled; /* messages full of them that the keeper was asked for */
	uint64_t idle_ms; /* what is more than POOL_IDLE goes then */
};

/* A refused flow that was logged lately. */
struct flow_seen {
	struct flow flow;
	uint64_t until_ms;
};

struct log {
	struct buf line;
	struct flow_seen seen[FLOWS_SEEN];
};

struct dns {
	const struct dns_config *config;
	struct dns_counts *counts; /* shared with the keeper */
	struct loop *loop;
	struct source *udp_source, *tcp_source, *channel_source, *refused_source, *timer;
	uint64_t now_ms;   /* when the callback began */
	uint64_t due_ms;   /* nothing is late before */
	uint64_t armed_ms; /* when the timer fires */

	uint32_t n_resolvers, generation;
	struct pool pools[DIAL_TARGETS_MAX];
	uint32_t tcp_dialled; /* TCP sockets that the keeper was asked for */

	struct question questions[QUESTIONS_MAX];
	struct waiter waiters[WAITERS_MAX];
	struct waiter *free_waiters;
	struct connection connections[CONNECTIONS_MAX];

	uint16_t ids[IDS_MAX]; /* random; ids[0 .. n_ids) are unused */
	uint32_t n_ids;

	struct log log;

	struct mmsghdr batch[BATCH_MAX];
	struct iovec batch_parts[BATCH_MAX];
	struct sockaddr_in batch_from[BATCH_MAX];
	uint8_t batch_bytes[BATCH_MAX][DATAGRAM_MAX];
	uint8_t frames[CONNECTIONS_MAX][FRAME_MAX];
	uint8_t received[DNS_MESSAGE_MAX]; /* from upstream over UDP, or from the log of packets */
	uint8_t sent[FRAME_MAX];           /* on its way to a client: two bytes of length, then the message */
};

/* dns.c */

/* Isolates this process for good, with the system calls that the forwarder needs once it runs. Returns 0 or a negative
 * errno, after which the process must end. */
[[nodiscard]] int dns_isolate(uid_t uid, struct err *e);

/* What follows from any event: stalled connections go on, connections are accepted or not, the timer is armed for what
 * comes first. Returns 0 or a negative errno. */
[[nodiscard]] int dns_settle(struct dns *d, struct err *e);

/* Something is late at this time, so that the timer fires then, or earlier. */
void dns_due(struct dns *d, uint64_t ms);

/* clients.c */

/* Makes the table ready. */
void clients_init(struct dns *d);

/* Watches the listeners. */
[[nodiscard]] int clients_open(struct dns *d, struct err *e);

/* Goes on with connections that have waited for room, and lets a new one in when one of the old can go. */
[[nodiscard]] int clients_settle(struct dns *d, struct err *e);

/* When the first of them is late; NO_DEADLINE. */
uint64_t clients_deadline(const struct dns *d);

/* Closes the late ones. */
void clients_expire(struct dns *d);

/* Sends n bytes of d->sent + 2, which the first two make room for. A client that does not take it has lost it. */
void client_send(struct dns *d, struct waiter *w, size_t n);

/* Frees everything. */
void clients_close(struct dns *d);

/* questions.c */

/* Makes the tables ready. */
void questions_init(struct dns *d);

/* Takes a client's message: answers it, has it asked, or drops it. from is for UDP, connection for TCP, the other is
 * NULL. Returns true when it was taken, whatever came of it; false when a client over TCP must wait for room. */
bool question_take(struct dns *d, const struct sockaddr_in *from, struct connection *connection,
		   const uint8_t *p, size_t n);

/* An answer has come in, over UDP or TCP: it is the one, ends the try, or ends all. */
void question_answered(struct question *q, const uint8_t *p, size_t n);

/* The try is over without an answer: TCP after UDP, then the next resolver, then SERVFAIL. */
void question_next_try(struct question *q);

/* Begins anew with the first resolver what is being asked. */
void questions_restart(struct dns *d);

/* Nobody is there any more to hear of this connection. */
void questions_forget(struct dns *d, const struct connection *c);

/* When the first question or try is late; NO_DEADLINE. */
uint64_t questions_deadline(const struct dns *d);

/* Ends the late ones. */
void questions_expire(struct dns *d);

/* Frees everything. */
void questions_close(struct dns *d);

/* upstream.c */

/* Fills the pool of the first resolver. */
void upstream_open(struct dns *d);

/* Begins a try over UDP, or over TCP: with a socket that is there, or once the keeper has sent one. */
void upstream_ask_udp(struct question *q);
void upstream_ask_tcp(struct question *q);

/* Ends the try: nothing of it is left. */
void upstream_end_try(struct question *q);

/* Sockets have come from the keeper, or none; takes those of m that are of use. */
void upstream_sockets(struct dns *d, struct chan_message *m);

/* There are other resolvers now. */
void upstream_resolvers(struct dns *d, uint32_t generation, uint32_t n);

/* When a pool has been idle; NO_DEADLINE. */
uint64_t upstream_deadline(const struct dns *d);

/* Closes what idle pools have too much. */
void upstream_expire(struct dns *d);

/* Closes everything. */
void upstream_close(struct dns *d);

/* log.c */

/* Gets ready to log, before the isolation: telling the time may need a file. */
void log_open(struct dns *d);

/* One question's line. verdict and rule are names for it. */
void log_question(struct dns *d, const struct dns_query *q, const char *verdict, const char *rule,
		  unsigned rcode, uint64_t ms);

/* Reads refused packets from the netlink socket and logs each flow once in a while. */
int log_refused(void *data, int fd, uint32_t events, struct err *e);

/* Frees everything. */
void log_close(struct dns *d);

#endif
