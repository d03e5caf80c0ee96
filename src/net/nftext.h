/*
 * nft(8), for whole rulesets.
 */
#ifndef ERMITE_NET_NFTEXT_H
#define ERMITE_NET_NFTEXT_H

#include "base/buf.h"
#include "base/err.h"
#include "io/child.h"

/* The path of nft(8), or NULL when it is missing. */
const char *nftext_program(void);

/* A run of nft under way. */
struct nftext {
	struct child child;
	int output;
};

/* Starts to load rules, as one transaction, into the network namespace netns (-1: the caller's). Returns 0 or a
 * negative errno; nftext_end() is to be called either way. */
[[nodiscard]] int nftext_begin(int netns, const struct buf *rules, struct nftext *ret, struct err *e);

/* Waits for the end of a run. Returns 0, or -EIO with what nft said. */
[[nodiscard]] int nftext_end(struct nftext *run, struct err *e);

/* Both of them. */
[[nodiscard]] int nftext_load(int netns, const struct buf *rules, struct err *e);

/* Lists a table of the caller's namespace: what nft prints is appended to out, as much as fits. Returns 0 or a
 * negative errno. */
[[nodiscard]] int nftext_list(const char *family, const char *table, struct buf *out, struct err *e);

#endif
