#include "isolation/isolation.h"

#include <errno.h>

#include "isolation/system/system.h"

/* From the strongest to the weakest, the order of "auto". */
static const struct isolation_ops *const all[] = {&isolation_system};

enum { N_ALL = sizeof(all) / sizeof(all[0]), REASONS_MAX = 4096 };

const struct isolation_ops *isolation_find(enum isolation kind)
{
	for (size_t i = 0; i < N_ALL; i++)
		if (all[i]->kind == kind)
			return all[i];
	return NULL;
}

static int select_named(const struct config *c, enum isolation *ret, struct err *e)
{
	const struct isolation_ops *ops = isolation_find(c->isolation);
	if (!ops)
		return err_set(e, -ENOTSUP, "isolation %s is not part of this version: use system",
			       isolation_name(c->isolation));
	scoped_buf struct buf reasons = BUF_INIT(REASONS_MAX);
	if (ops->missing(c, &reasons) > 0)
		return err_set(e, -ENOTSUP, "isolation %s cannot run on this host: %s",
			       isolation_name(c->isolation), buf_text(&reasons));
	*ret = c->isolation;
	return 0;
}

int isolation_select(const struct config *c, enum isolation *ret, struct buf *notes, struct err *e)
{
	if (c->isolation != ISOLATION_AUTO)
		return select_named(c, ret, e);
	scoped_buf struct buf all_reasons = BUF_INIT(N_ALL * REASONS_MAX);
	buf_str(notes, "vm passed over: not part of this version\n");
	buf_str(notes, "container passed over: not part of this version\n");
	for (size_t i = 0; i < N_ALL; i++) {
		scoped_buf struct buf reasons = BUF_INIT(REASONS_MAX);
		const char *name = isolation_name(all[i]->kind);
		if (all[i]->missing(c, &reasons) == 0) {
			*ret = all[i]->kind;
			buf_fmt(notes, "isolation %s chosen\n", name);
			return 0;
		}
		buf_fmt(notes, "%s passed over: %s\n", name, buf_text(&reasons));
		buf_fmt(&all_reasons, "%s%s: %s", all_reasons.n ? "; " : "", name, buf_text(&reasons));
	}
	return err_set(e, -ENOTSUP, "no isolation can run on this host: %s", buf_text(&all_reasons));
}
