#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "resource/resource.h"
#include "sys/cgroup.h"

static int make(struct sandbox *s, struct err *e)
{
	const struct config *c = &s->spec->config;
	const struct cgroup_limits limits = {
		.memory_bytes = c->job_memory_mib << 20,
		.cpus = c->job_cpus,
		.pids = c->job_pids,
		.slot = s->slot,
	};
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	if (r == 0)
		r = cgroup_make(&host, s->id, e);
	if (r == 0)
		r = cgroup_limit(&host, s->id, &limits, e);
	if (r == 0)
		r = cgroup_delegate(&host, s->id, slot_uid_first(c->uid_base, s->slot), e);
	return r;
}

static int unmake(struct sandbox *s, struct err *e)
{
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	return r < 0 ? r : cgroup_remove(&host, s->id, e);
}

static bool stands_in(const char (*ids)[ID_SIZE], size_t n, const char *id)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(ids[i], id) == 0)
			return true;
	return false;
}

static void close_dir(DIR **d)
{
	if (*d)
		(void)closedir(*d);
}

static int sweep_in(const struct cgroup_host *host, const char *mount, const char (*ids)[ID_SIZE], size_t n,
		    struct err *e)
{
	char path[CGROUP_PATH_MAX + 16];
	(void)snprintf(path, sizeof(path), "%s/ermite-runner", mount);
	__attribute__((cleanup(close_dir))) DIR *d = opendir(path);
	for (struct dirent *entry = d ? readdir(d) : NULL; entry; entry = readdir(d)) {
		if (!id_valid(entry->d_name) || stands_in(ids, n, entry->d_name))
			continue;
		int r = cgroup_remove(host, entry->d_name, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int sweep(const char (*ids)[ID_SIZE], size_t n, struct err *e)
{
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	for (unsigned i = 0; r == 0 && i < host.n; i++)
		r = sweep_in(&host, host.hierarchies[i].path, ids, n, e);
	return r;
}

const struct resource resource_cgroup = {.name = "cgroup", .make = make, .unmake = unmake, .sweep = sweep};
