#include "sys/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/num.h"
#include "base/scope.h"

#define PARENT "ermite-runner"
#define GUEST  "guest"

enum { PATH_SIZE = 512, REMOVE_DEADLINE_MS = 5000, WALK_MAX = 4096, MEMORY_SLACK = 65536 };

/* One row a controller: its names in v1 and v2. In v2 cpuacct is part of cpu, devices and freezer are always there. */
static const struct {
	unsigned bit;
	const char *v1, *v2;
} controllers[] = {
	{CGROUP_MEMORY, "memory", "memory"}, {CGROUP_CPU, "cpu", "cpu"},
	{CGROUP_CPUACCT, "cpuacct", NULL},   {CGROUP_CPUSET, "cpuset", "cpuset"},
	{CGROUP_PIDS, "pids", "pids"},       {CGROUP_IO, "blkio", "io"},
	{CGROUP_DEVICES, "devices", NULL},   {CGROUP_FREEZER, "freezer", NULL},
};

enum { N_CONTROLLERS = sizeof(controllers) / sizeof(controllers[0]) };

/* True when word stands in text, a list separated by blanks, commas or newlines. */
static bool in_list(const char *text, const char *word)
{
	size_t n = strlen(word);
	for (const char *at = text; (at = strstr(at, word)); at += n)
		if ((at == text || strchr(" ,\n", at[-1])) && strchr(" ,\n", at[n]))
			return true;
	return false;
}

static void read_v2_controllers(struct cgroup_hierarchy *h)
{
	char path[PATH_SIZE];
	char text[512];
	(void)snprintf(path, sizeof(path), "%s/cgroup.controllers", h->path);
	if (file_read_text(AT_FDCWD, path, text, sizeof(text), NULL) < 0)
		return;
	for (size_t i = 0; i < N_CONTROLLERS; i++)
		if (controllers[i].v2 && in_list(text, controllers[i].v2))
			h->controllers |= controllers[i].bit;
	if (h->controllers & CGROUP_CPU)
		h->controllers |= CGROUP_CPUACCT;
}

/* A line of mountinfo: the mount point is its fifth word; behind " - " stand type, source and super options. */
static void read_line(struct cgroup_host *host, char *line)
{
	char *tail = strstr(line, " - ");
	if (!tail || host->n == CGROUP_HIERARCHIES_MAX)
		return;
	bool v2 = strncmp(tail + 3, "cgroup2 ", 8) == 0;
	if (!v2 && strncmp(tail + 3, "cgroup ", 7) != 0)
		return;
	char *save = NULL;
	char *word = strtok_r(line, " ", &save);
	for (int i = 0; word && i < 4; i++)
		word = strtok_r(NULL, " ", &save);
	struct cgroup_hierarchy *h = &host->hierarchies[host->n];
	if (!word || strlen(word) >= sizeof(h->path))
		return;
	*h = (struct cgroup_hierarchy){.v2 = v2};
	memcpy(h->path, word, strlen(word) + 1);
	const char *options = strrchr(tail + 3, ' ');
	for (size_t i = 0; !v2 && options && i < N_CONTROLLERS; i++)
		if (in_list(options, controllers[i].v1))
			h->controllers |= controllers[i].bit;
	if (v2)
		read_v2_controllers(h);
	host->n++;
}

int cgroup_host_read(struct cgroup_host *ret, struct err *e)
{
	scoped_file FILE *f = fopen("/proc/self/mountinfo", "re");
	if (!f)
		return err_sys(e, "open /proc/self/mountinfo");
	*ret = (struct cgroup_host){0};
	scoped_free char *line = NULL;
	size_t size = 0;
	for (ssize_t n = getline(&line, &size, f); n > 0; n = getline(&line, &size, f)) {
		line[n - 1] = '\0';
		read_line(ret, line);
	}
	if (ret->n == 0)
		return err_set(e, -ENOENT, "no control groups are mounted");
	return 0;
}

unsigned cgroup_controllers(const struct cgroup_host *host)
{
	unsigned all = 0;
	for (unsigned i = 0; i < host->n; i++)
		all |= host->hierarchies[i].controllers;
	return all;
}

static const struct cgroup_hierarchy *hierarchy_of(const struct cgroup_host *host, unsigned controller)
{
	for (unsigned i = 0; i < host->n; i++)
		if (host->hierarchies[i].controllers & controller)
			return &host->hierarchies[i];
	return NULL;
}

/* Joins the path of a file or directory of a sandbox's group; part may be NULL. */
static void group_path(char path[static PATH_SIZE], const struct cgroup_hierarchy *h, const char *id,
		       const char *part)
{
	(void)snprintf(path, PATH_SIZE, "%s/" PARENT "/%s%s%s", h->path, id, part ? "/" : "",
		       part ? part : "");
}

static int put(const struct cgroup_hierarchy *h, const char *id, const char *file, const char *text,
	       struct err *e)
{
	char path[PATH_SIZE];
	group_path(path, h, id, file);
	return file_put(AT_FDCWD, path, text, e);
}

/* Copies a cpuset v1 file from the group above, which must have a value before a process can enter. */
static int inherit_cpuset(const char *path, const char *file, struct err *e)
{
	char from[PATH_SIZE];
	char to[PATH_SIZE];
	char value[512];
	int n = snprintf(from, sizeof(from), "%s/../%s", path, file);
	int m = snprintf(to, sizeof(to), "%s/%s", path, file);
	if (n < 0 || (size_t)n >= sizeof(from) || m < 0 || (size_t)m >= sizeof(to))
		return err_set(e, -ENAMETOOLONG, "cgroup path %s", path);
	ssize_t r = file_read_text(AT_FDCWD, from, value, sizeof(value), e);
	return r < 0 ? (int)r : file_put(AT_FDCWD, to, value, e);
}

/* In v2 a controller must be handed down by every group above the one that uses it. */
static void hand_down(const struct cgroup_hierarchy *h, const char *path)
{
	char file[PATH_SIZE];
	if (snprintf(file, sizeof(file), "%s/cgroup.subtree_control", path) >= (int)sizeof(file))
		return;
	for (size_t i = 0; i < N_CONTROLLERS; i++) {
		char text[16];
		if (!controllers[i].v2 || !(h->controllers & controllers[i].bit))
			continue;
		(void)snprintf(text, sizeof(text), "+%s", controllers[i].v2);
		/* What could not be handed down is found missing when its limit is set. */
		(void)file_put(AT_FDCWD, file, text, NULL);
	}
}

static int make_dir(const struct cgroup_hierarchy *h, const char *path, bool may_exist, struct err *e)
{
	bool is_there = mkdir(path, 0755) < 0;
	if (is_there && (errno != EEXIST || !may_exist))
		return err_sys(e, "make the cgroup %s", path);
	if (!(h->controllers & CGROUP_CPUSET) || h->v2)
		return 0;
	/* Also of a group that was there: whoever made it a moment ago may not have come to this. */
	int r = inherit_cpuset(path, "cpuset.cpus", e);
	return r < 0 ? r : inherit_cpuset(path, "cpuset.mems", e);
}

static int make_in(const struct cgroup_hierarchy *h, const char *id, struct err *e)
{
	char path[PATH_SIZE];
	if (h->v2)
		hand_down(h, h->path);
	(void)snprintf(path, sizeof(path), "%s/" PARENT, h->path);
	/* The group above all sandboxes goes with the last of them, perhaps just now: make it again. */
	for (int tries = 0; tries < 1000; tries++) {
		int r = make_dir(h, path, true, e);
		if (r == -ENOENT)
			continue;
		if (r < 0)
			return r;
		if (h->v2)
			hand_down(h, path);
		char own[PATH_SIZE];
		group_path(own, h, id, NULL);
		r = make_dir(h, own, false, e);
		if (r == -ENOENT)
			continue;
		if (r < 0)
			return r;
		if (h->v2)
			hand_down(h, own);
		return 0;
	}
	return err_set(e, -EBUSY, "the cgroup %s keeps vanishing", path);
}

int cgroup_make(const struct cgroup_host *host, const char *id, struct err *e)
{
	for (unsigned i = 0; i < host->n; i++) {
		int r = make_in(&host->hierarchies[i], id, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int missing(const char *limit, const char *controller, struct err *e)
{
	return err_set(e, -ENOTSUP, "the %s limit cannot be enforced on this host: no %s cgroup controller",
		       limit, controller);
}

/* Writes a number and reads it back: the kernel may round it down to a page, nothing else. */
static int put_number(const struct cgroup_hierarchy *h, const char *id, const char *file, uint64_t value,
		      struct err *e)
{
	char path[PATH_SIZE];
	char text[24];
	uint64_t got = 0;
	(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	group_path(path, h, id, file);
	int r = file_put(AT_FDCWD, path, text, e);
	if (r == 0)
		r = file_read_u64(AT_FDCWD, path, &got, e);
	if (r < 0)
		return r;
	if (got > value || value - got >= 65536)
		return err_set(e, -EIO, "%s holds %llu after %llu was written", path, (unsigned long long)got,
			       (unsigned long long)value);
	return 0;
}

static bool has_file(const struct cgroup_hierarchy *h, const char *id, const char *file)
{
	char path[PATH_SIZE];
	group_path(path, h, id, file);
	return access(path, F_OK) == 0;
}

static int limit_memory(const struct cgroup_hierarchy *h, const char *id, uint64_t bytes, struct err *e)
{
	if (!h)
		return missing("memory", "memory", e);
	int r = put_number(h, id, h->v2 ? "memory.max" : "memory.limit_in_bytes", bytes, e);
	if (r < 0)
		return r;
	/* No swap on top. A kernel without swap accounting has none of these files but perhaps swappiness. */
	if (h->v2)
		return has_file(h, id, "memory.swap.max") ? put(h, id, "memory.swap.max", "0", e) : 0;
	if (has_file(h, id, "memory.memsw.limit_in_bytes"))
		return put_number(h, id, "memory.memsw.limit_in_bytes", bytes, e);
	return put(h, id, "memory.swappiness", "0", e);
}

/* Which processors the parent may use, as a list of numbers in *ret (at most max). Returns how many. */
static size_t parent_cpus(const struct cgroup_hierarchy *h, unsigned *ret, size_t max)
{
	char path[PATH_SIZE];
	char text[1024];
	(void)snprintf(path, sizeof(path), "%s/%s", h->path, h->v2 ? "cpuset.cpus.effective" : "cpuset.cpus");
	if (file_read_text(AT_FDCWD, path, text, sizeof(text), NULL) < 0)
		return 0;
	size_t n = 0;
	char *save = NULL;
	for (char *range = strtok_r(text, ",", &save); range; range = strtok_r(NULL, ",", &save)) {
		char *dash = strchr(range, '-');
		uint64_t first = 0;
		uint64_t last = 0;
		if (dash)
			*dash = '\0';
		if (num_parse(range, 0, 65535, &first) < 0 ||
		    num_parse(dash ? dash + 1 : range, first, 65535, &last) < 0)
			return 0;
		for (uint64_t cpu = first; cpu <= last && n < max; cpu++)
			ret[n++] = (unsigned)cpu;
	}
	return n;
}

/* A sandbox with fewer processors than the host gets that many of them, so that nproc and every library inside see
 * the limit; slots take turns. */
static int limit_cpuset(const struct cgroup_hierarchy *h, const char *id, const struct cgroup_limits *l,
			struct err *e)
{
	unsigned cpus[1024];
	char text[1024] = "";
	size_t n = parent_cpus(h, cpus, sizeof(cpus) / sizeof(cpus[0]));
	if (n == 0 || l->cpus >= n)
		return 0;
	size_t at = 0;
	for (uint32_t i = 0; i < l->cpus && at < sizeof(text) - 8; i++) {
		unsigned cpu = cpus[((uint64_t)l->slot * l->cpus + i) % n];
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%u", i ? "," : "", cpu);
	}
	return put(h, id, "cpuset.cpus", text, e);
}

static int limit_cpus(const struct cgroup_host *host, const char *id, const struct cgroup_limits *l,
		      struct err *e)
{
	const struct cgroup_hierarchy *cpu = hierarchy_of(host, CGROUP_CPU);
	const struct cgroup_hierarchy *cpuset = hierarchy_of(host, CGROUP_CPUSET);
	if (!cpu)
		return missing("CPU", "cpu", e);
	char text[48];
	(void)snprintf(text, sizeof(text), cpu->v2 ? "%u 100000" : "%u", l->cpus * 100000u);
	int r = put(cpu, id, cpu->v2 ? "cpu.max" : "cpu.cfs_quota_us", text, e);
	return r < 0 || !cpuset ? r : limit_cpuset(cpuset, id, l, e);
}

int cgroup_limit_disk(const struct cgroup_host *host, const char *id, dev_t disk, uint64_t bandwidth,
		      uint64_t iops, struct err *e)
{
	const struct cgroup_hierarchy *h = hierarchy_of(host, CGROUP_IO);
	if (bandwidth == 0 && iops == 0)
		return 0;
	if (!h || !h->v2)
		return err_set(
			e, -ENOTSUP,
			"the disk rate limit cannot be enforced on this host: it needs the io controller of "
			"cgroup v2, v1 does not see buffered writes");
	char text[160];
	char bytes[24] = "max";
	char operations[24] = "max";
	if (bandwidth)
		(void)snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)bandwidth);
	if (iops)
		(void)snprintf(operations, sizeof(operations), "%llu", (unsigned long long)iops);
	(void)snprintf(text, sizeof(text), "%u:%u rbps=%s wbps=%s riops=%s wiops=%s", major(disk),
		       minor(disk), bytes, bytes, operations, operations);
	return put(h, id, "io.max", text, e);
}

static int limit_devices(const struct cgroup_host *host, const char *id, struct err *e)
{
	const struct cgroup_hierarchy *h = hierarchy_of(host, CGROUP_DEVICES);
	for (unsigned i = 0; !h && i < host->n; i++)
		if (host->hierarchies[i].v2)
			h = &host->hierarchies[i];
	if (!h)
		return missing("device", "devices", e);
	char path[PATH_SIZE];
	group_path(path, h, id, NULL);
	return cgroup_allow_devices(path, h->v2, e);
}

int cgroup_limit(const struct cgroup_host *host, const char *id, const struct cgroup_limits *limits,
		 struct err *e)
{
	const struct cgroup_hierarchy *pids = hierarchy_of(host, CGROUP_PIDS);
	if (!pids)
		return missing("process", "pids", e);
	int r = limit_memory(hierarchy_of(host, CGROUP_MEMORY), id, limits->memory_bytes, e);
	if (r == 0)
		r = put_number(pids, id, "pids.max", limits->pids, e);
	if (r == 0)
		r = limit_cpus(host, id, limits, e);
	return r < 0 || limits->all_devices ? r : limit_devices(host, id, e);
}

int cgroup_delegate(const struct cgroup_host *host, const char *id, uid_t uid, struct err *e)
{
	/* What the kernel's documentation names for delegation; "tasks" is v1's. */
	static const char *const files[] = {GUEST, GUEST "/cgroup.procs", GUEST "/cgroup.threads",
					    GUEST "/cgroup.subtree_control", GUEST "/tasks"};
	for (unsigned i = 0; i < host->n; i++) {
		char guest[PATH_SIZE];
		group_path(guest, &host->hierarchies[i], id, GUEST);
		int r = make_dir(&host->hierarchies[i], guest, false, e);
		if (r < 0)
			return r;
		for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
			char path[PATH_SIZE];
			group_path(path, &host->hierarchies[i], id, files[f]);
			if (lchown(path, uid, uid) < 0 && errno != ENOENT)
				return err_sys(e, "hand %s to the sandbox", path);
		}
	}
	return 0;
}

int cgroup_enter(const struct cgroup_host *host, const char *id, pid_t pid, struct err *e)
{
	char text[16];
	(void)snprintf(text, sizeof(text), "%d", pid);
	for (unsigned i = 0; i < host->n; i++) {
		int r = put(&host->hierarchies[i], id, GUEST "/cgroup.procs", text, e);
		if (r < 0)
			return err_ctx(e, r, "enter the cgroup");
	}
	return 0;
}

/* The number behind a key in a file of "key number" lines; 0 when it is not there. */
static uint64_t keyed(const char *path, const char *key)
{
	char text[2048];
	uint64_t value = 0;
	if (file_read_text(AT_FDCWD, path, text, sizeof(text), NULL) < 0)
		return 0;
	char *save = NULL;
	size_t n = strlen(key);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		if (strncmp(line, key, n) == 0 && line[n] == ' ' &&
		    num_parse(line + n + 1, 0, UINT64_MAX, &value) == 0)
			return value;
	return 0;
}

static uint64_t number_in(const struct cgroup_hierarchy *h, const char *id, const char *file)
{
	char path[PATH_SIZE];
	uint64_t value = 0;
	group_path(path, h, id, file);
	return file_read_u64(AT_FDCWD, path, &value, NULL) < 0 ? 0 : value;
}

static bool is_group(const struct dirent *entry)
{
	return entry->d_type == DT_DIR && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Adds up the numbers behind a key in this file of the group at path and of those below it, of at most *budget groups:
 * the sandbox makes as many as it likes. */
static uint64_t keyed_sum(const char *path, unsigned *budget, const char *file, const char *key)
{
	char below[PATH_SIZE];
	uint64_t sum = 0;
	if (snprintf(below, sizeof(below), "%s/%s", path, file) < (int)sizeof(below))
		sum = keyed(below, key);
	scoped_dir DIR *d = opendir(path);
	for (struct dirent *entry = d ? readdir(d) : NULL; entry && *budget > 0; entry = readdir(d)) {
		if (!is_group(entry) ||
		    snprintf(below, sizeof(below), "%s/%s", path, entry->d_name) >= (int)sizeof(below))
			continue;
		--*budget;
		sum += keyed_sum(below, budget, file, key);
	}
	return sum;
}

/* How often v1 met the sandbox's limit. Some kernels (6.18 is one) do not count it for the limit that includes swap,
 * which is the same here and is met first; there a peak at the limit tells that it happened. */
static uint64_t memory_fails_v1(const struct cgroup_hierarchy *h, const char *id, uint64_t peak)
{
	uint64_t counted = number_in(h, id, "memory.failcnt") + number_in(h, id, "memory.memsw.failcnt");
	if (counted > 0 || peak == 0)
		return counted;
	return peak + MEMORY_SLACK >= number_in(h, id, "memory.limit_in_bytes");
}

static void memory_usage(const struct cgroup_hierarchy *h, const char *id, struct cgroup_usage *ret)
{
	char path[PATH_SIZE];
	if (h->v2) {
		ret->memory_peak_bytes = number_in(h, id, "memory.peak");
		group_path(path, h, id, "memory.events");
		ret->oom_kills = keyed(path, "oom_kill");
		/* The file beside it counts the limits of nested containers too. */
		group_path(path, h, id, "memory.events.local");
		ret->memory_fails = keyed(path, "oom");
		return;
	}
	/* v1 counts a kill in the victim's own group only. */
	unsigned budget = WALK_MAX;
	group_path(path, h, id, NULL);
	ret->oom_kills = keyed_sum(path, &budget, "memory.oom_control", "oom_kill");
	ret->memory_peak_bytes = number_in(h, id, "memory.max_usage_in_bytes");
	ret->memory_fails = memory_fails_v1(h, id, ret->memory_peak_bytes);
}

/* Since Linux 6.11 v2 counts forks in the group whose limit refused them. Before, and in v1, they are counted where the
 * forking process stands, whatever limit it was: they are the sandbox's if it ever had as many as it may. */
static uint64_t pids_refused(const struct cgroup_hierarchy *h, const char *id)
{
	char path[PATH_SIZE];
	unsigned budget = WALK_MAX;
	group_path(path, h, id, "pids.events.local");
	if (h->v2 && access(path, F_OK) == 0)
		return keyed(path, "max");
	if (has_file(h, id, "pids.peak") && number_in(h, id, "pids.peak") < number_in(h, id, "pids.max"))
		return 0;
	group_path(path, h, id, NULL);
	return keyed_sum(path, &budget, "pids.events", "max");
}

void cgroup_usage(const struct cgroup_host *host, const char *id, struct cgroup_usage *ret)
{
	const struct cgroup_hierarchy *memory = hierarchy_of(host, CGROUP_MEMORY);
	const struct cgroup_hierarchy *cpu = hierarchy_of(host, CGROUP_CPUACCT);
	const struct cgroup_hierarchy *pids = hierarchy_of(host, CGROUP_PIDS);
	*ret = (struct cgroup_usage){0};
	if (memory)
		memory_usage(memory, id, ret);
	if (cpu && cpu->v2) {
		char path[PATH_SIZE];
		group_path(path, cpu, id, "cpu.stat");
		ret->cpu_ns = keyed(path, "usage_usec") * 1000;
	} else if (cpu) {
		ret->cpu_ns = number_in(cpu, id, "cpuacct.usage");
	}
	if (pids)
		ret->pids_refused = pids_refused(pids, id);
}

/* Kills what stands in a group itself. Returns true when there was something. Its members cannot leave the sandbox's
 * subtree, so a pid that is used again between the read and the kill could only be hit if it had entered this very
 * group. */
static bool kill_members(int group)
{
	scoped_fd int fd = openat(group, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	scoped_file FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	scoped_free char *line = NULL;
	size_t size = 0;
	bool found = false;
	if (f)
		(void)fd_steal(&fd);
	for (ssize_t n = f ? getline(&line, &size, f) : -1; n > 0; n = getline(&line, &size, f)) {
		uint64_t pid = 0;
		line[n - 1] = '\0';
		if (num_parse(line, 2, INT32_MAX, &pid) < 0)
			continue;
		found = true;
		(void)kill((pid_t)pid, SIGKILL);
	}
	return found;
}

/* Finds any group below one; name stays as it is when there is none. */
static bool find_below(int group, char name[static NAME_MAX + 1])
{
	scoped_fd int again = openat(group, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	scoped_dir DIR *d = again < 0 ? NULL : fdopendir(again);
	if (!d)
		return false;
	(void)fd_steal(&again);
	for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
		if (!is_group(entry))
			continue;
		memcpy(name, entry->d_name, strlen(entry->d_name) + 1);
		return true;
	}
	return false;
}

static void step(int *at, const char *name)
{
	int next = openat(*at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	fd_close(at);
	*at = next;
}

/* Goes down to a group that has none below, kills what is in it, removes it, and so on until the top is alone and
 * empty: then returns true. By descriptors, one at a time: a sandbox makes paths as long and chains as deep as it
 * likes. */
static bool prune(int top, uint64_t deadline_ms)
{
	char name[NAME_MAX + 1];
	bool came_down = false;
	unsigned depth = 0;
	scoped_fd int at = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (at >= 0 && clock_boot_ms() < deadline_ms) {
		if (find_below(at, name)) {
			if (unlinkat(at, name, AT_REMOVEDIR) == 0)
				continue;
			step(&at, name);
			came_down = true;
			depth++;
			continue;
		}
		if (kill_members(at))
			return false;
		if (depth == 0)
			return true;
		step(&at, "..");
		/* Empty and still not to be removed: something in it is about to end. */
		if (came_down && unlinkat(at, name, AT_REMOVEDIR) < 0)
			return false;
		came_down = false;
		depth--;
	}
	return false;
}

/* Whether the group is gone from the hierarchy; *removed is set when this call was what removed it. */
static bool try_remove(const struct cgroup_hierarchy *h, const char *id, uint64_t deadline_ms, bool *removed)
{
	char path[PATH_SIZE];
	group_path(path, h, id, NULL);
	scoped_fd int top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (top < 0)
		return errno == ENOENT;
	/* v2 has one call for all that is in it and below. */
	(void)file_put(top, "cgroup.kill", "1", NULL);
	if (!prune(top, deadline_ms) || rmdir(path) < 0)
		return false;
	*removed = true;
	return true;
}

int cgroup_remove(const struct cgroup_host *host, const char *id, struct err *e)
{
	uint64_t deadline = clock_boot_ms() + REMOVE_DEADLINE_MS;
	bool removed = false;
	for (unsigned pause_us = 200;; pause_us = pause_us < 10000 ? pause_us * 2 : pause_us) {
		const char *left = NULL;
		for (unsigned i = 0; i < host->n; i++)
			if (!try_remove(&host->hierarchies[i], id, deadline, &removed))
				left = host->hierarchies[i].path;
		if (!left)
			break;
		if (clock_boot_ms() >= deadline)
			return err_set(e, -EBUSY, "the cgroup %s/" PARENT "/%s is still in use", left, id);
		(void)nanosleep(&(struct timespec){.tv_nsec = (long)pause_us * 1000}, NULL);
	}
	for (unsigned i = 0; i < host->n; i++) {
		char path[PATH_SIZE];
		(void)snprintf(path, sizeof(path), "%s/" PARENT, host->hierarchies[i].path);
		(void)rmdir(path); /* goes with the last sandbox; stays, busy, with any other */
	}
	return removed;
}
