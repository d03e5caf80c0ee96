#include "guest/users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "base/scope.h"
#include "guest/lines.h"

#define ID_MAX        4294967294u
#define PASSWD_FIELDS 7
#define GROUP_FIELDS  4

/* A name or a number from the caller. */
struct wanted {
	char text[64];
	bool is_number;
	uint64_t number;
};

static int wanted_set(struct wanted *w, const char *text, size_t n, struct err *e)
{
	if (n == 0 || n >= sizeof(w->text))
		return err_set(e, -EINVAL, "not a user or group: \"%s\"", text);
	memcpy(w->text, text, n);
	w->text[n] = '\0';
	w->is_number = num_parse(w->text, 0, ID_MAX, &w->number) == 0;
	return 0;
}

static bool wanted_is(const struct wanted *w, const char *name, uint64_t id)
{
	return strcmp(w->text, name) == 0 || (w->is_number && w->number == id);
}

/* Cuts a line at its colons in place. Returns whether it has that many fields. */
static bool fields_cut(char *line, char **fields, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fields[i] = strsep(&line, ":");
	return fields[n - 1] != NULL;
}

static bool text_copy(char *to, const char *from)
{
	size_t n = strlen(from);
	if (n >= USER_TEXT_MAX)
		return false;
	memcpy(to, from, n + 1);
	return true;
}

/* Opens a file of the image for reading. Returns 0 and the descriptor, -1 when the image has none. */
static int table_open(int etc, const char *name, int *ret_fd, struct err *e)
{
	/* O_NONBLOCK: a FIFO in its place must not hang the start. */
	int fd = openat(etc, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno != ENOENT)
		return err_sys(e, "open /etc/%s", name);
	*ret_fd = fd;
	return 0;
}

/* Fills u from a line of passwd if it is the one. Returns 1 if it is. */
static int passwd_take(char *line, const struct wanted *who, struct user *u)
{
	char *f[PASSWD_FIELDS];
	uint64_t uid, gid;
	if (!fields_cut(line, f, PASSWD_FIELDS) || num_parse(f[2], 0, ID_MAX, &uid) < 0 ||
	    num_parse(f[3], 0, ID_MAX, &gid) < 0 || !wanted_is(who, f[0], uid))
		return 0;
	u->uid = (uid_t)uid;
	u->gid = (gid_t)gid;
	return text_copy(u->name, f[0]) && text_copy(u->home, f[5][0] == '/' ? f[5] : "/") &&
	       text_copy(u->shell, f[6][0] == '/' ? f[6] : "/bin/sh");
}

static int passwd_find(int etc, const struct wanted *who, struct user *u, struct err *e)
{
	scoped_fd int fd = -1;
	int r = table_open(etc, "passwd", &fd, e);
	if (r < 0 || fd < 0)
		return r;
	struct lines lines;
	lines_init(&lines, fd);
	char *line;
	while ((r = lines_next(&lines, &line, e)) > 0)
		if (passwd_take(line, who, u))
			return 1;
	return r;
}

/* Whether name stands in a comma-separated list, which is cut in place. */
static bool member_of(char *list, const char *name)
{
	char *member;
	while ((member = strsep(&list, ",")))
		if (strcmp(member, name) == 0)
			return true;
	return false;
}

/* Adds the groups that list the user to the group of its own. */
static int groups_collect(int etc, struct user *u, struct err *e)
{
	scoped_fd int fd = -1;
	int r = table_open(etc, "group", &fd, e);
	if (r < 0 || fd < 0)
		return r;
	struct lines lines;
	lines_init(&lines, fd);
	char *line, *f[GROUP_FIELDS];
	while ((r = lines_next(&lines, &line, e)) > 0) {
		uint64_t gid;
		if (!fields_cut(line, f, GROUP_FIELDS) || num_parse(f[2], 0, ID_MAX, &gid) < 0 ||
		    gid == u->gid || !member_of(f[3], u->name))
			continue;
		if (u->n_groups == USER_GROUPS_MAX)
			return err_set(e, -E2BIG, "user %s is in more than %d groups", u->name,
				       USER_GROUPS_MAX);
		u->groups[u->n_groups++] = (gid_t)gid;
	}
	return r;
}

/* Sets the group that the caller named. */
static int group_find(int etc, const struct wanted *group, struct user *u, struct err *e)
{
	scoped_fd int fd = -1;
	int r = table_open(etc, "group", &fd, e);
	if (r < 0)
		return r;
	struct lines lines;
	lines_init(&lines, fd);
	char *line, *f[GROUP_FIELDS];
	while (fd >= 0 && (r = lines_next(&lines, &line, e)) > 0) {
		uint64_t gid;
		if (!fields_cut(line, f, GROUP_FIELDS) || num_parse(f[2], 0, ID_MAX, &gid) < 0 ||
		    !wanted_is(group, f[0], gid))
			continue;
		u->gid = (gid_t)gid;
		return 0;
	}
	if (r < 0)
		return r;
	if (!group->is_number)
		return err_set(e, -ENOENT, "group %s: not in /etc/group", group->text);
	u->gid = (gid_t)group->number;
	return 0;
}

/* Somebody who stands in no file but has a number. */
static void user_unnamed(struct user *u, uint64_t uid)
{
	u->uid = (uid_t)uid;
	u->gid = 0;
	(void)snprintf(u->name, sizeof(u->name), "%u", u->uid);
	(void)text_copy(u->home, "/");
	(void)text_copy(u->shell, "/bin/sh");
}

static int user_named(int etc, const struct wanted *who, const struct wanted *group, struct user *u,
		      struct err *e)
{
	int r = passwd_find(etc, who, u, e);
	if (r < 0)
		return r;
	bool known = r > 0;
	if (!known && !who->is_number)
		return err_set(e, -ENOENT, "user %s: not in /etc/passwd", who->text);
	if (!known)
		user_unnamed(u, who->number);
	r = group ? group_find(etc, group, u, e) : 0;
	if (r < 0)
		return r;
	u->groups[0] = u->gid;
	u->n_groups = 1;
	return known && !group ? groups_collect(etc, u, e) : 0;
}

static int user_default(int etc, struct user *u, struct err *e)
{
	static const char *const names[] = {"runner", "root", "0"};
	int r = -ENOENT;
	for (size_t i = 0; r == -ENOENT && i < sizeof(names) / sizeof(names[0]); i++) {
		struct wanted who = {0};
		r = wanted_set(&who, names[i], strlen(names[i]), e);
		if (r == 0)
			r = user_named(etc, &who, NULL, u, e);
	}
	return r;
}

int user_find(int etc, const char *text, struct user *ret, struct err *e)
{
	struct user u = {0};
	int r;
	if (text[0] == '\0') {
		r = user_default(etc, &u, e);
	} else {
		struct wanted who = {0}, group = {0};
		const char *colon = strchrnul(text, ':');
		r = wanted_set(&who, text, (size_t)(colon - text), e);
		if (r == 0 && *colon)
			r = wanted_set(&group, colon + 1, strlen(colon + 1), e);
		if (r == 0)
			r = user_named(etc, &who, *colon ? &group : NULL, &u, e);
	}
	if (r == 0)
		*ret = u;
	return r;
}

int user_become(const struct user *u, struct err *e)
{
	if (setgroups(u->n_groups, u->groups) < 0)
		return err_sys(e, "set groups of %s", u->name);
	if (setresgid(u->gid, u->gid, u->gid) < 0)
		return err_sys(e, "become group %u", u->gid);
	if (setresuid(u->uid, u->uid, u->uid) < 0)
		return err_sys(e, "become user %u", u->uid);
	return 0;
}
