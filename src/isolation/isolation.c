#include "isolation/isolation.h"

#include <errno.h>

#include "isolation/container/container.h"
#include "isolation/system/system.h"

/* From the strongest to the weakest, the order of "auto". */
static const struct isolation_ops *const all[] = {&isolation_container_sysbox, &isolation_system,
						  &isolation_container_privileged};

enum { N_ALL = sizeof(all) / sizeof(all[0]), REASONS_MAX = 4096 };

const struct isolation_ops *isolation_find(enum isolation kind, bool sysbox)
{
	for (size_t i = 0; i < N_ALL; i++)
		if (all[i]->kind == kind && all[i]->sysbox == sysbox)
			return all[i];
	return NULL;
}

/* A kind that was named is taken in its strongest form. What the weakest misses is then all that is missing. */
static int select_named(const struct config *c, struct isolation_host *host, const struct isolation_ops **ret,
			struct buf *notes, struct err *e)
{
	int r = err_set(e, -ENOTSUP, "isolation %s is not part of this version: use system",
			isolation_name(c->isolation));
	for (size_t i = 0; i < N_ALL; i++) {
		scoped_buf struct buf reasons = BUF_INIT(REASONS_MAX);
		const char *name = isolation_reported(all[i]->kind, all[i]->sysbox);
		if (all[i]->kind != c->isolation)
			continue;
		if (all[i]->missing(c, host, &reasons) == 0) {
			if (c->isolation == ISOLATION_CONTAINER)
				buf_fmt(notes, "isolation %s chosen\n", name);
			*ret = all[i];
			return 0;
		}
		buf_fmt(notes, "%s passed over: %s\n", name, buf_text(&reasons));
		r = err_set(e, -ENOTSUP, "isolation %s cannot run on this host: %s",
			    isolation_name(c->isolation), buf_text(&reasons));
	}
	return r;
}

int isolation_select(const struct config *c, struct isolation_host *host, const struct isolation_ops **ret,
		     struct buf *notes, struct err *e)
{
	if (c->isolation != ISOLATION_AUTO)
		return select_named(c, host, ret, notes, e);
	scoped_buf struct buf all_reasons = BUF_INIT(N_ALL * REASONS_MAX);
	buf_str(notes, "vm passed over: not part of this version\n");
	for (size_t i = 0; i < N_ALL; i++) {
		scoped_buf struct buf reasons = BUF_INIT(REASONS_MAX);
		const char *name = isolation_reported(all[i]->kind, all[i]->sysbox);
		if (all[i]->missing(c, host, &reasons) == 0) {
			*ret = all[i];
			buf_fmt(notes, "isolation %s chosen\n", name);
			return 0;
		}
		buf_fmt(notes, "%s passed over: %s\n", name, buf_text(&reasons));
		buf_fmt(&all_reasons, "%s%s: %s", all_reasons.n ? "; " : "", name, buf_text(&reasons));
	}
	return err_set(e, -ENOTSUP, "no isolation can run on this host: %s", buf_text(&all_reasons));
}
