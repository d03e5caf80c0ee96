/*
 * Messages between our own processes: client and keeper on the control socket, keeper and conduit, and keeper and the
 * helpers of the network on theirs, and the table that says who may send which when. Carried by io/chan.h.
 */
#ifndef ERMITE_SPEC_MESSAGE_H
#define ERMITE_SPEC_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#define MESSAGE_FDS_MAX 16 /* descriptors in one message */

enum message_type {
	/* client to keeper; START, SIGNAL and RESIZE go on to the conduit as they are */
	MESSAGE_START =
		1, /* id; fds: encoded Start frame (memfd), standard input (or none, see a), output, error.
			    * a: bit 0 input given, bit 1 this is the job (its end is the sandbox's end reason);
			    * b: for GET the most bytes that may come */
	MESSAGE_SIGNAL,  /* id; a: signal number */
	MESSAGE_RESIZE,  /* id; a: rows; b: columns */
	MESSAGE_SECRETS, /* fds: memfd with zero-ended secrets; before the first START */
	MESSAGE_CANCEL,  /* end the job: TERM, 10 s later KILL */
	MESSAGE_DELETE,  /* take the sandbox down; answered by RESULT */

	/* conduit to keeper; STARTED, EXITED and FAILED go on to the client as they are */
	MESSAGE_CONNECTED,    /* the executor is there and of the same build */
	MESSAGE_SYSTEM_READY, /* the system inside is up */
	MESSAGE_STARTED,      /* id; a: process id inside */
	MESSAGE_EXITED,       /* id; a: exit status; b: signal */
	MESSAGE_FAILED,       /* id; a: status a shell would give; data: text */
	MESSAGE_PROTOCOL,     /* data: what the guest did wrong; the conduit ends */
	MESSAGE_CLOSED,       /* the guest closed the stream */
	MESSAGE_COUNT,        /* id; a: bytes of output relayed; precedes EXITED */

	/* between the keeper and the helpers of the network (net/dial.h) */
	MESSAGE_DIAL, /* helper to keeper: id: number of the target; a: how many sockets; b: 0 UDP, 1 TCP */
	MESSAGE_SOCKETS, /* keeper to helper: id, b: as asked; a: generation of the targets; fds: sockets, or none */
	MESSAGE_RESOLVERS, /* keeper to helper: a: generation; b: how many targets there are now */

	/* keeper to client */
	MESSAGE_CREATED, /* the sandbox is ready to run; data: its id */
	MESSAGE_WARNING, /* data: one sentence */
	MESSAGE_RESULT,  /* fds: memfd with a struct job_result; the keeper ends */
	MESSAGE_ERROR,   /* data: one sentence; followed by RESULT */
	MESSAGE_TYPES,
};

enum message_sender { SENDER_CLIENT = 1, SENDER_CONDUIT = 2, SENDER_KEEPER = 4, SENDER_HELPER = 8 };

/* "START", …; never NULL. */
const char *message_name(uint32_t type);

/* True when this sender may send this type at all; the states in which it may are the receivers' own tables. */
bool message_permitted(uint32_t type, enum message_sender sender);

/* How many descriptors a message of this type carries at least and at most. */
void message_fds(uint32_t type, uint32_t *ret_min, uint32_t *ret_max);

#endif
