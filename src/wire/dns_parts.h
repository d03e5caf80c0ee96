/*
 * Parts of DNS messages, read and written: what wire/dns.c and wire/dns_answer.c share, and nobody else needs.
 *
 * Readers move a cursor over the message and mark it bad at the first thing that is wrong. Writers trust the caller to
 * have room, and return the place behind what they wrote.
 */
#ifndef ERMITE_WIRE_DNS_PARTS_H
#define ERMITE_WIRE_DNS_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rd.h"
#include "wire/dns.h"

#define DNS_HEAD         12
#define DNS_OPT_BYTES    11   /* of an OPT without options */
#define DNS_POINTER      0xc0 /* what a pointer's first byte has set */
#define DNS_POINTERS_MAX 16
#define DNS_CLASS_IN     1
#define DNS_OPT_DO       0x8000 /* in the TTL of an OPT */

enum dns_flag {
	DNS_FLAG_QR = 0x8000, /* an answer */
	DNS_FLAG_AA = 0x0400,
	DNS_FLAG_TC = 0x0200,
	DNS_FLAG_RD = 0x0100,
	DNS_FLAG_RA = 0x0080,
	DNS_FLAG_AD = 0x0020,
	DNS_FLAG_CD = 0x0010,
	DNS_OPCODE_SHIFT = 11,
	DNS_OPCODE_MASK = 0xf,
	DNS_RCODE_MASK = 0xf
};

struct dns_head {
	uint16_t id, flags;
	uint16_t questions, answers, authorities, additionals;
};

struct dns_record {
	uint16_t type, class;
	uint32_t ttl;
	bool at_root; /* the owner is the root, written as one byte */
	struct rd rdata;
};

/* The next integer of two or four bytes, most significant first. */
uint16_t dns_u16(struct rd *r);
uint32_t dns_u32(struct rd *r);

/* The message's head; zeros when it is not all there. */
struct dns_head dns_head_read(struct rd *r);

/* Skips a name, following at most pointers_max pointers to see where they lead. message is where the message starts. A
 * pointer must lead to a name that ends before the part of the name that holds the pointer, and not into the head. */
void dns_name_skip(struct rd *r, const uint8_t *message, unsigned pointers_max);

/* Reads a record; what its RDATA holds is not looked at. Returns false when it is malformed; *ret is then untouched. */
bool dns_record_read(struct rd *r, const uint8_t *message, struct dns_record *ret);

/* True when an OPT is owned by the root and its options fill it exactly. */
bool dns_opt_is_sound(const struct dns_record *record);

/* The flags that an answer takes over from the client's message: QR, opcode, RD and CD. */
uint16_t dns_reply_flags(const struct dns_query *q);

/* Writes n_bytes of an integer, most significant first. */
uint8_t *dns_put(uint8_t *at, uint64_t value, unsigned n_bytes);

/* Writes a head and the question, if there is one; head->questions is not looked at. */
uint8_t *dns_start_put(uint8_t *at, const struct dns_head *head, const struct dns_query *q);

/* Writes an OPT of ours with the upper bits of rcode and the query's DO flag. */
uint8_t *dns_opt_put(uint8_t *at, unsigned rcode, const struct dns_query *q);

#endif
