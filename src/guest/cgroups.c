#include "guest/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/lines.h"

#define TOP     "/sys/fs/cgroup"
#define UNIFIED TOP "/unified"
#define OWN     TOP "/init"
#define LIST    "/proc/self/cgroup"
#define NAMED   "name="

enum { HIERARCHIES_MAX = 32, FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC };

int cgroups_parse(char *line, struct cgroups_hierarchy *ret, struct err *e)
{
	struct cgroups_hierarchy h = {0};
	const char *number = strsep(&line, ":");
	const char *controllers = strsep(&line, ":");
	if (!controllers || !line)
		return err_set(e, -EINVAL, "a line of " LIST " is not as it should be");
	bool named = strncmp(controllers, NAMED, strlen(NAMED)) == 0;
	const char *name = named ? controllers + strlen(NAMED) : controllers;
	bool second = strcmp(number, "0") == 0;
	if (second != (*controllers == '\0') || (named && !*name) || strlen(name) >= sizeof(h.name) ||
	    strchr(name, '/') || name[0] == '.')
		return err_set(e, -EINVAL, "the hierarchy \"%.100s\" of " LIST " has no usable name",
			       controllers);
	(void)snprintf(h.name, sizeof(h.name), "%s", name);
	(void)snprintf(h.options, sizeof(h.options), named ? "none," NAMED "%s" : "%s", h.name);
	*ret = h;
	return 0;
}

static int read_list(struct cgroups_hierarchy list[static HIERARCHIES_MAX], size_t *ret_n, struct err *e)
{
	scoped_fd int fd = open(LIST, O_RDONLY | O_CLOEXEC);
	struct lines lines;
	char *line;
	size_t n = 0;
	if (fd < 0)
		return err_sys(e, "open " LIST);
	lines_init(&lines, fd);
	for (int r; (r = lines_next(&lines, &line, e)) != 0;) {
		if (r > 0 && n == HIERARCHIES_MAX)
			r = err_set(e, -E2BIG, "more than %d hierarchies of control groups", HIERARCHIES_MAX);
		if (r > 0)
			r = cgroups_parse(line, &list[n++], e);
		if (r < 0)
			return r;
	}
	*ret_n = n;
	return 0;
}

static int mount_second(const char *path, struct err *e)
{
	if (mount("cgroup2", path, "cgroup2", FLAGS, NULL) < 0)
		return err_sys(e, "mount control groups at %s", path);
	return 0;
}

/* Users look for a controller by its own name also where it shares a hierarchy. */
static int link_controllers(const struct cgroups_hierarchy *h, struct err *e)
{
	struct cgroups_hierarchy names = *h;
	char path[sizeof(TOP) + 1 + CGROUPS_NAME_MAX];
	char *rest = names.name;
	for (const char *one = strsep(&rest, ","); one && strchr(h->name, ','); one = strsep(&rest, ",")) {
		(void)snprintf(path, sizeof(path), TOP "/%.63s", one);
		if (symlink(h->name, path) < 0)
			return err_sys(e, "link %s", path);
	}
	return 0;
}

static int mount_first(const struct cgroups_hierarchy *h, struct err *e)
{
	char path[sizeof(TOP) + 1 + CGROUPS_NAME_MAX];
	(void)snprintf(path, sizeof(path), TOP "/%.63s", h->name);
	if (mkdir(path, 0755) < 0)
		return err_sys(e, "make %s", path);
	if (mount("cgroup", path, "cgroup", FLAGS, h->options) < 0)
		return err_sys(e, "mount control groups at %s", path);
	return link_controllers(h, e);
}

/* Both versions: a directory for each hierarchy. */
static int mount_mixed(const struct cgroups_hierarchy *list, size_t n, struct err *e)
{
	if (mount("tmpfs", TOP, "tmpfs", FLAGS, "mode=755,size=4m") < 0)
		return err_sys(e, "mount a tmpfs at " TOP);
	for (size_t i = 0; i < n; i++) {
		int r = 0;
		if (list[i].name[0])
			r = mount_first(&list[i], e);
		else if (mkdir(UNIFIED, 0755) < 0)
			r = err_sys(e, "make " UNIFIED);
		else
			r = mount_second(UNIFIED, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A group of version 2 that has processes of its own cannot hand controllers on to groups below it. */
static int hand_controllers_on(struct err *e)
{
	char text[512];
	if (mkdir(OWN, 0755) < 0)
		return err_sys(e, "make " OWN);
	int r = file_put(AT_FDCWD, OWN "/cgroup.procs", "0", e);
	ssize_t n = r < 0 ? r : file_read_text(AT_FDCWD, TOP "/cgroup.controllers", text, sizeof(text), e);
	char *rest = text;
	for (const char *one = n > 0 ? strsep(&rest, " ") : NULL; one; one = strsep(&rest, " ")) {
		char enable[80];
		(void)snprintf(enable, sizeof(enable), "+%s", one);
		r = file_put(AT_FDCWD, TOP "/cgroup.subtree_control", enable, e);
		if (r < 0)
			return r;
	}
	return n < 0 ? (int)n : 0;
}

int cgroups_mount(bool *ret_unified, struct err *e)
{
	struct cgroups_hierarchy list[HIERARCHIES_MAX] = {0};
	size_t n = 0;
	int r = read_list(list, &n, e);
	if (r < 0)
		return r;
	*ret_unified = n == 1 && !list[0].name[0];
	if (!*ret_unified)
		return mount_mixed(list, n, e);
	r = mount_second(TOP, e);
	return r < 0 ? r : hand_controllers_on(e);
}
