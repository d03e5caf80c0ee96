/*
 * The control group of a sandbox, in every hierarchy that this host has: v1, v2 or both.
 *
 * A sandbox owns ermite-runner/<id> in each hierarchy. There stand the limits; its processes live one level below, in
 * "guest", which alone is handed to the sandbox's own ids: root inside cannot reach the limits. Which controller is
 * where is read from /proc/self/mountinfo, never guessed from a path.
 */
#ifndef ERMITE_SYS_CGROUP_H
#define ERMITE_SYS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define CGROUP_HIERARCHIES_MAX 16
#define CGROUP_PATH_MAX        128

enum cgroup_controller {
	CGROUP_MEMORY = 1,
	CGROUP_CPU = 2,
	CGROUP_CPUACCT = 4,
	CGROUP_CPUSET = 8,
	CGROUP_PIDS = 16,
	CGROUP_IO = 32, /* blkio in v1 */
	CGROUP_DEVICES = 64,
	CGROUP_FREEZER = 128,
};

struct cgroup_hierarchy {
	char path[CGROUP_PATH_MAX]; /* where it is mounted */
	bool v2;
	unsigned controllers;
};

/* The hierarchies of this host; plain data. */
struct cgroup_host {
	struct cgroup_hierarchy hierarchies[CGROUP_HIERARCHIES_MAX];
	unsigned n;
};

struct cgroup_limits {
	uint64_t memory_bytes;
	uint32_t cpus;
	uint32_t pids;
	uint32_t slot; /* spreads small sandboxes over the processors */
	bool all_devices;
};

struct cgroup_usage {
	uint64_t memory_peak_bytes;
	uint64_t cpu_ns;
	uint64_t oom_kills;    /* processes that the kernel killed for memory, below too */
	uint64_t memory_fails; /* times the sandbox's own memory limit was met; 1 where it is not counted */
	uint64_t pids_refused; /* forks refused by the sandbox's own limit */
};

/* Reads which hierarchies there are. */
[[nodiscard]] int cgroup_host_read(struct cgroup_host *ret, struct err *e);

/* The union of the controllers of all hierarchies. */
unsigned cgroup_controllers(const struct cgroup_host *host);

/* Makes the group of a sandbox in every hierarchy. One that is there is an error. */
[[nodiscard]] int cgroup_make(const struct cgroup_host *host, const char *id, struct err *e);

/* Sets the limits and reads them back; a limit that this host cannot enforce is an error that names it. Also sets
 * which devices may be used: the list in cgroup_devices.c and nothing else, or all that the host's root may use. */
[[nodiscard]] int cgroup_limit(const struct cgroup_host *host, const char *id,
			       const struct cgroup_limits *limits, struct err *e);

/* Limits bytes and operations per second (0: no limit) on the block device disk, reads and writes each. Needs the io
 * controller of v2: v1 does not see buffered writes, so there it is an error that says so. */
[[nodiscard]] int cgroup_limit_disk(const struct cgroup_host *host, const char *id, dev_t disk,
				    uint64_t bandwidth, uint64_t iops, struct err *e);

/* Makes the guest group below and hands it, and nothing above it, to the host id uid. After cgroup_limit(): v1 takes a
 * new device list only while there is no group below. */
[[nodiscard]] int cgroup_delegate(const struct cgroup_host *host, const char *id, uid_t uid, struct err *e);

/* Moves a process into the guest group. */
[[nodiscard]] int cgroup_enter(const struct cgroup_host *host, const char *id, pid_t pid, struct err *e);

/* Reads what the sandbox used; what a host does not count stays 0. */
void cgroup_usage(const struct cgroup_host *host, const char *id, struct cgroup_usage *ret);

/* Kills every process of the group and removes it everywhere. Returns 1 when it did, 0 when there was none, as when
 * another process removed it meanwhile, or -EBUSY when something in it could not be ended within 5 s. */
[[nodiscard]] int cgroup_remove(const struct cgroup_host *host, const char *id, struct err *e);

/* Allows the device list for the group at path in a v2 hierarchy (a BPF program) or a v1 hierarchy (devices.allow). */
[[nodiscard]] int cgroup_allow_devices(const char *path, bool v2, struct err *e);

#endif
