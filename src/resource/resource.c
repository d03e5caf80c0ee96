#include "resource/resource.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/scope.h"

/* In the order of making: processes go first, the network that they could use goes last. */
static const struct resource *const kinds[] = {&resource_network, &resource_scratch, &resource_docker,
					       &resource_processes, &resource_cgroup};

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

static int unmake_one(struct sandbox *s, const char *name, struct err *e)
{
	const struct resource *kind = find(name);
	int r = kind ? kind->unmake(s, e)
		     : err_set(e, -ENOTSUP, "this version does not know how to remove it");
	return r < 0 ? err_ctx(e, r, "%s", name) : 0;
}

int resources_unmake(struct sandbox *s, struct err *e)
{
	const struct record_info *info = record_info(s->record);
	struct err first = ERR_INIT;
	/* A record that was torn before it was synced names nothing, because nothing had been made; what can bear the
	 * id all the same is looked for by every kind. */
	for (unsigned i = info->readable ? info->n_resources : N_KINDS; i-- > 0;) {
		struct err own = ERR_INIT;
		if (unmake_one(s, info->readable ? info->resources[i] : kinds[i]->name, &own) < 0 &&
		    !first.code)
			first = own;
	}
	if (first.code == 0)
		return 0;
	record_set_left(s->record, first.msg);
	return err_set(e, first.code, "%s", first.msg);
}

void reap_tell(struct reap *r, const char *kind, const char *name, const char *reason)
{
	const struct leftover l = {.kind = kind, .name = name, .reason = reason};
	if (reason || r->dry_run)
		r->n_left++;
	r->tell(r->data, &l);
}

void leftover_text(const struct leftover *l, struct buf *text)
{
	if (l->reason)
		buf_fmt(text, "%s %s stays: %s", l->kind, l->name, l->reason);
	else
		buf_fmt(text, "removed %s %s", l->kind, l->name);
}

static void take_down(void *data, struct record *record)
{
	struct reap *reap = data;
	const struct record_info *info = record_info(record);
	struct err e = ERR_INIT;
	struct sandbox s = {.record = record,
			    .id = info->id,
			    .slot = info->slot,
			    .store_fd = reap->store_fd,
			    .host = reap->host,
			    .network.netns = -1};
	char id[ID_SIZE];
	memcpy(id, info->id, sizeof(id));
	int r = resources_unmake(&s, &e);
	if (r == 0)
		r = record_remove(&record, &e);
	reap_tell(reap, "sandbox", id, r < 0 ? e.msg : NULL);
	record_free(record);
}

static int list_orphans(struct reap *reap, struct err *e)
{
	scoped_free struct record_info *infos = NULL;
	size_t n = 0;
	int r = record_list(reap->store_fd, &infos, &n, e);
	for (size_t i = 0; i < n; i++)
		if (!infos[i].held)
			reap_tell(reap, "sandbox", infos[i].id, NULL);
	return r;
}

int resources_reap(struct reap *reap, struct err *e)
{
	int first = reap->dry_run ? list_orphans(reap, e)
				  : record_for_orphans(reap->store_fd, take_down, reap, e);
	for (size_t i = N_KINDS; i-- > 0;) {
		struct err own = ERR_INIT;
		if (kinds[i]->sweep && kinds[i]->sweep(reap, &own) < 0 && first == 0)
			first = err_set(e, own.code, "sweep %s: %s", kinds[i]->name, own.msg);
	}
	return first;
}
