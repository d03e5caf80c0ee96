/*
 * Changes to the nftables of a network namespace, element by element: what is done at every start and end of a
 * sandbox must cost the same however many there are, which nft(8) cannot do (it reads all chains first). Whole
 * rulesets are text and given to nft(8).
 *
 * A batch is one transaction: all of it happens or nothing.
 */
#ifndef ERMITE_SYS_NFT_H
#define ERMITE_SYS_NFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A table. family: NFPROTO_INET or NFPROTO_NETDEV. */
struct nft_table {
	uint8_t family;
	const char *name;
};

#define NFT_ELEMENT_KEY_MAX 64

/* A key: fields one after the other, as a set's type lists them. */
struct nft_key {
	uint8_t bytes[NFT_ELEMENT_KEY_MAX];
	size_t n;
};

/* Appends a field: a link's name; bytes as they are; an address and a port, given in host order; a number that the
 * rules know in host order. */
void nft_key_link(struct nft_key *k, const char *name);
void nft_key_bytes(struct nft_key *k, const void *p, size_t n);
void nft_key_address(struct nft_key *k, uint32_t address);
void nft_key_port(struct nft_key *k, uint16_t port);
void nft_key_number(struct nft_key *k, uint32_t number);

/* An element of a set, with at most one of the last three. */
struct nft_element {
	struct nft_key key;
	struct nft_key last;  /* of an interval, first and last included; n is 0 for a single value */
	uint32_t flows_over;  /* matches when there are more flows than this */
	uint64_t bytes_per_s; /* matches what exceeds this rate */
	const char *jump;     /* of a map: the chain */
};

struct nft_batch;

/* Opens a batch for the network namespace netns (-1: the caller's). Returns 0 and the batch (caller's). */
[[nodiscard]] int nft_open(int netns, struct nft_batch **ret, struct err *e);

/* Frees it; what was not committed is forgotten. NULL is fine. */
void nft_close(struct nft_batch *b);

/* Adds an element; one that is there stays. */
void nft_add(struct nft_batch *b, const struct nft_table *t, const char *set, const struct nft_element *x);

/* Removes an element, whether it is there or not. */
void nft_remove(struct nft_batch *b, const struct nft_table *t, const char *set, const struct nft_element *x);

/* Removes all elements of a set whose keys begin with prefix. It reads the whole set. Returns how many there
 * are, or a negative errno. */
[[nodiscard]] int nft_remove_prefixed(struct nft_batch *b, const struct nft_table *t, const char *set,
				      const struct nft_key *prefix, struct err *e);

/* Adds the base chain name at the ingress of a link, which drops by default and goes on in the chain to. */
void nft_add_ingress(struct nft_batch *b, const struct nft_table *t, const char *name, const char *link,
		     int32_t priority, const char *to);

/* Adds the chain name, which reports packets to a group of the netlink log. */
void nft_add_log(struct nft_batch *b, const struct nft_table *t, const char *name, uint16_t group);

/* Removes a chain with its rules. The commit fails with -ENOENT where there is none. */
void nft_remove_chain(struct nft_batch *b, const struct nft_table *t, const char *name);

/* Removes every element of a set. */
void nft_flush_set(struct nft_batch *b, const struct nft_table *t, const char *set);

/* Does it, and empties the batch. Returns 0 or a negative errno, after which nothing was changed. */
[[nodiscard]] int nft_commit(struct nft_batch *b, struct err *e);

/* Reads the counter of one element: packets. Returns 0, or -ENOENT without such an element or table. */
[[nodiscard]] int nft_counter(struct nft_batch *b, const struct nft_table *t, const char *set,
			      const struct nft_key *key, uint64_t *ret, struct err *e);

/* Calls fn with the key of every element of a set. */
typedef int nft_key_fn(void *data, const uint8_t *key, size_t n);
[[nodiscard]] int nft_each(struct nft_batch *b, const struct nft_table *t, const char *set, nft_key_fn *fn,
			   void *data, struct err *e);

/* Counts the rules of a table. Returns their number, 0 when there is no such table, or a negative errno. */
[[nodiscard]] int nft_count_rules(struct nft_batch *b, const struct nft_table *t, struct err *e);

/* Calls fn with every base chain of a hook (NF_INET_FORWARD …) of the families ip and inet. */
typedef int nft_chain_fn(void *data, const char *table, const char *chain, bool drops);
[[nodiscard]] int nft_each_base_chain(struct nft_batch *b, uint32_t hook, nft_chain_fn *fn, void *data,
				      struct err *e);

#endif
