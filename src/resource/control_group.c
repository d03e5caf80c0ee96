#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/scope.h"
#include "resource/resource.h"
#include "sys/cgroup.h"

/* Says which store a group belongs to: the sandboxes of another state directory are none of ours. */
#define MARK_NAME "trusted.ermite-runner"

enum { MARK_MAX = 48 };

static int make_mark(int store_fd, char mark[static MARK_MAX], struct err *e)
{
	struct stat st;
	if (fstat(store_fd, &st) < 0)
		return err_sys(e, "look at the store of sandboxes");
	(void)snprintf(mark, MARK_MAX, "%llx:%llx", (unsigned long long)st.st_dev,
		       (unsigned long long)st.st_ino);
	return 0;
}

static int put_mark(const struct cgroup_host *host, const struct sandbox *s, struct err *e)
{
	char mark[MARK_MAX];
	int r = make_mark(s->store_fd, mark, e);
	for (unsigned i = 0; r == 0 && i < host->n; i++) {
		char path[CGROUP_PATH_MAX + 16 + ID_SIZE];
		(void)snprintf(path, sizeof(path), "%s/ermite-runner/%s", host->hierarchies[i].path, s->id);
		if (setxattr(path, MARK_NAME, mark, strlen(mark), 0) < 0)
			r = err_sys(e, "mark the cgroup %s", path);
	}
	return r;
}

static int make(struct sandbox *s, struct err *e)
{
	const struct config *c = &s->spec->config;
	const struct cgroup_limits limits = {
		.memory_bytes = c->job_memory_mib << 20,
		.cpus = c->job_cpus,
		.pids = c->job_pids,
		.slot = s->slot,
		.all_devices = s->all_devices,
	};
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	if (r == 0)
		r = cgroup_make(&host, s->id, e);
	if (r == 0)
		r = put_mark(&host, s, e);
	if (r == 0)
		r = cgroup_limit(&host, s->id, &limits, e);
	if (r == 0)
		r = cgroup_delegate(&host, s->id, s->root_uid, e);
	return r;
}

static int unmake(struct sandbox *s, struct err *e)
{
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	return r < 0 ? r : cgroup_remove(&host, s->id, e); /* positive: it was there */
}

/* A group of this store without a record. Records are made before groups and removed after them, and the group was
 * found before its record is looked for here: one that is just starting has its record by now. */
static bool is_left(const char *path, const char *id, int store_fd, const char *mark)
{
	char got[MARK_MAX] = "";
	ssize_t n = getxattr(path, MARK_NAME, got, sizeof(got) - 1);
	return n >= 0 && strcmp(got, mark) == 0 && faccessat(store_fd, id, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
	       errno == ENOENT;
}

struct strays {
	char ids[SLOTS_MAX][ID_SIZE];
	size_t n;
};

/* A sandbox has a group in each hierarchy. */
static void add_stray(struct strays *strays, const char *id)
{
	size_t i = 0;
	while (i < strays->n && strcmp(strays->ids[i], id) != 0)
		i++;
	if (i == strays->n && i < SLOTS_MAX)
		memcpy(strays->ids[strays->n++], id, ID_SIZE);
}

static int look_in(const char *mount, int store_fd, const char *mark, struct strays *strays, struct err *e)
{
	char path[CGROUP_PATH_MAX + 16];
	(void)snprintf(path, sizeof(path), "%s/ermite-runner", mount);
	scoped_dir DIR *d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0 : err_sys(e, "read %s", path);
	for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
		char group[CGROUP_PATH_MAX + 16 + ID_SIZE];
		if (!id_valid(entry->d_name))
			continue;
		(void)snprintf(group, sizeof(group), "%s/%.*s", path, ID_SIZE - 1, entry->d_name);
		if (is_left(group, entry->d_name, store_fd, mark))
			add_stray(strays, entry->d_name);
	}
	return 0;
}

static int sweep(struct reap *reap, struct err *e)
{
	struct cgroup_host host;
	char mark[MARK_MAX];
	scoped_free struct strays *strays = calloc(1, sizeof(*strays));
	if (!strays)
		return err_set(e, -ENOMEM, "out of memory");
	int r = make_mark(reap->store_fd, mark, e);
	if (r == 0)
		r = cgroup_host_read(&host, e);
	for (unsigned i = 0; r == 0 && i < host.n; i++)
		r = look_in(host.hierarchies[i].path, reap->store_fd, mark, strays, e);
	for (size_t i = 0; i < strays->n; i++) {
		struct err own = ERR_INIT;
		/* 0: another process has removed it since, and tells of it. */
		int removed = reap->dry_run ? 1 : cgroup_remove(&host, strays->ids[i], &own);
		if (removed != 0)
			reap_tell(reap, "cgroup", strays->ids[i], removed < 0 ? own.msg : NULL);
	}
	return r;
}

const struct resource resource_cgroup = {.name = "cgroup", .make = make, .unmake = unmake, .sweep = sweep};
