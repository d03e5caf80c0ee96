/*
 * The control groups inside a container, mounted anew: what Docker mounts is read-only and stays so, and it shows the
 * group that Docker made, not the one that the host has put us in.
 *
 * Which hierarchies there are stands in /proc/self/cgroup. Version 1 hierarchies are directories of /sys/fs/cgroup with
 * version 2, if it is there as well, at "unified"; version 2 alone is /sys/fs/cgroup itself.
 */
#ifndef ERMITE_GUEST_CGROUPS_H
#define ERMITE_GUEST_CGROUPS_H

#include <stdbool.h>

#include "base/err.h"

#define CGROUPS_NAME_MAX 64

/* One hierarchy of version 1, or version 2 (both texts empty). */
struct cgroups_hierarchy {
	char name[CGROUPS_NAME_MAX];         /* of its directory: "memory", "cpu,cpuacct", "systemd" */
	char options[CGROUPS_NAME_MAX + 16]; /* of the mount: "memory", "none,name=systemd" */
};

/* Reads a line of /proc/self/cgroup, which is written to. Returns 0; -EINVAL for one that is no such line or has a name
 * that cannot be a directory's. */
[[nodiscard]] int cgroups_parse(char *line, struct cgroups_hierarchy *ret, struct err *e);

/* Mounts everything at /sys/fs/cgroup. Where there is version 2 alone this process goes into a group "init" of its own,
 * so that the top may hand controllers on; ret_unified says so. To be called in the cgroup namespace that everything
 * inside will have, before there are other processes. Returns 0 or a negative errno. */
[[nodiscard]] int cgroups_mount(bool *ret_unified, struct err *e);

#endif
