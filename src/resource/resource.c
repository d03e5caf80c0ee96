#include "resource/resource.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/scope.h"

static const struct resource *const kinds[] = {&resource_network, &resource_processes, &resource_cgroup,
					       &resource_scratch};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const struct resource *find(const char *name)
{
	for (size_t i = 0; i < N_KINDS; i++)
		if (strcmp(kinds[i]->name, name) == 0)
			return kinds[i];
	return NULL;
}

int resources_make(struct sandbox *s, const struct resource *const *list, struct err *e)
{
	for (; *list; list++) {
		int r = (*list)->make(s, e);
		if (r < 0)
			return err_ctx(e, r, "%s", (*list)->name);
	}
	return 0;
}

int resources_unmake(struct sandbox *s, struct err *e)
{
	const struct record_info *info = record_info(s->record);
	int first = 0;
	for (unsigned i = info->n_resources; i-- > 0;) {
		struct err own = ERR_INIT;
		const struct resource *kind = find(info->resources[i]);
		int r = kind ? kind->unmake(s, &own)
			     : err_set(&own, -ENOTSUP, "this version does not know how to remove it");
		if (r < 0 && first == 0)
			first = err_set(e, r, "%s: %s", info->resources[i], own.msg);
	}
	return first;
}

struct reaping {
	int store_fd;
	const struct host *host;
	struct buf *left;
};

static int take_down(void *data, struct record *record, struct err *)
{
	const struct reaping *reaping = data;
	const struct record_info *info = record_info(record);
	struct err own = ERR_INIT;
	struct sandbox s = {.record = record,
			    .id = info->id,
			    .slot = info->slot,
			    .store_fd = reaping->store_fd,
			    .host = reaping->host,
			    .network.netns = -1};
	/* A record that was torn before it was synced names nothing, because nothing had been made; what can bear the
	 * id all the same is looked for by every kind. */
	int r = 0;
	if (info->readable)
		r = resources_unmake(&s, &own);
	for (size_t i = N_KINDS; !info->readable && i-- > 0;)
		if (kinds[i]->unmake(&s, &own) < 0)
			r = own.code;
	if (r < 0)
		buf_fmt(reaping->left, "sandbox %s keeps its slot: %s\n", info->id, own.msg);
	return r;
}

static int sweep(int store_fd, const struct host *host, struct err *e)
{
	for (size_t i = 0; i < N_KINDS; i++) {
		int r = kinds[i]->sweep ? kinds[i]->sweep(store_fd, host, e) : 0;
		if (r < 0)
			return err_ctx(e, r, "sweep %s", kinds[i]->name);
	}
	return 0;
}

int resources_reap(int store_fd, const struct host *host, struct buf *left, struct err *e)
{
	struct reaping reaping = {.store_fd = store_fd, .host = host, .left = left};
	int stayed = record_for_orphans(store_fd, take_down, &reaping, e);
	if (stayed < 0)
		return stayed;
	int r = sweep(store_fd, host, e);
	return r < 0 ? r : stayed;
}
