/*
 * Who a process inside runs as, from the image's own /etc/passwd and /etc/group.
 *
 * The files are read directly: the guest program is static and has no name service. What they say is the image's
 * affair and only ever decides about ids inside the sandbox.
 */
#ifndef ERMITE_GUEST_USERS_H
#define ERMITE_GUEST_USERS_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

#define USER_TEXT_MAX   1024
#define USER_GROUPS_MAX 256

struct user {
	uid_t uid;
	gid_t gid;
	gid_t groups[USER_GROUPS_MAX]; /* gid first, as initgroups(3) does */
	size_t n_groups;
	char name[USER_TEXT_MAX];
	char home[USER_TEXT_MAX];
	char shell[USER_TEXT_MAX];
};

/* Finds a user in the passwd and group files of the directory etc. text: a name or a number, with ":group", a name or
 * a number, behind it if wanted: then that is the only group. Empty: "runner" if the image has it, else root. A number
 * that stands in no file is allowed and gets group 0, home "/" and /bin/sh, as Docker does. Returns 0; -ENOENT for a
 * name that is not there; -EINVAL for a text that is no user; or another negative errno. */
[[nodiscard]] int user_find(int etc, const char *text, struct user *ret, struct err *e);

/* Becomes that user for good: groups, group, user. Returns 0 or a negative errno. */
[[nodiscard]] int user_become(const struct user *u, struct err *e);

#endif
