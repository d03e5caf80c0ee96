#include "net/watch.h"

#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/scope.h"
#include "net/gateway.h"
#include "sys/netlink.h"

enum {
	DELAY_MS = 50,   /* a reload of a firewall is many changes: they are looked at together */
	RETRY_MS = 1000, /* after a mending that did not work */
	NOTES_MAX = 4096,
};

#define GROUP(n) (1u << ((n)-1))

struct watch {
	struct watch_plan plan;
	int routes, rules;
	struct source *routes_source, *rules_source, *timer;
	bool armed;
	bool failed; /* the last mending; said once */
	char said[NOTES_MAX];
};

static void say_lines(const struct watch *w, const struct buf *lines)
{
	const char *at = buf_text(lines);
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&at, &line, &n)) {
		char sentence[512];
		(void)snprintf(sentence, sizeof(sentence), "%.*s", (int)(n < 511 ? n : 511), line);
		w->plan.warn(w->plan.data, sentence);
	}
}

/* Foreign tables are spoken of when what is to be said has changed. */
static void say_foreign(struct watch *w)
{
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	gateway_foreign(&notes);
	if (strcmp(w->said, buf_text(&notes)) == 0)
		return;
	(void)snprintf(w->said, sizeof(w->said), "%s", buf_text(&notes));
	say_lines(w, &notes);
}

static int mend(struct watch *w, struct buf *mended, struct err *e)
{
	scoped_fd int lock = -1;
	int r = gateway_lock(w->plan.host, &lock, e);
	return r < 0 ? r : gateway_mend(w->plan.gateway, &w->plan.network, mended, e);
}

static int on_timer(void *data, struct err *e)
{
	struct watch *w = data;
	struct err own = ERR_INIT;
	scoped_buf struct buf mended = BUF_INIT(NOTES_MAX);
	w->armed = false;
	/* What comes from here on is news. */
	netlink_drain(w->routes);
	netlink_drain(w->rules);
	int r = mend(w, &mended, &own);
	if (mended.n > 0)
		w->plan.warn(w->plan.data,
			     "something changed the host's network under the sandboxes; mended:");
	say_lines(w, &mended);
	if (r < 0 && !w->failed)
		w->plan.warn(w->plan.data, own.msg);
	w->failed = r < 0;
	say_foreign(w);
	if (r == 0)
		return 0;
	w->armed = true;
	return loop_arm(w->timer, RETRY_MS, e);
}

static int on_event(void *data, int fd, uint32_t, struct err *e)
{
	struct watch *w = data;
	netlink_drain(fd);
	if (w->armed)
		return 0;
	w->armed = true;
	return loop_arm(w->timer, DELAY_MS, e);
}

static int start(struct watch *w, struct loop *loop, struct err *e)
{
	int r = netlink_listen(NETLINK_ROUTE,
			       GROUP(RTNLGRP_LINK) | GROUP(RTNLGRP_IPV4_IFADDR) | GROUP(RTNLGRP_IPV4_RULE) |
				       GROUP(RTNLGRP_IPV4_NETCONF),
			       &w->routes, e);
	if (r == 0)
		r = netlink_listen(NETLINK_NETFILTER, GROUP(NFNLGRP_NFTABLES), &w->rules, e);
	if (r == 0)
		r = loop_add_timer(loop, on_timer, w, &w->timer, e);
	if (r == 0)
		r = loop_add_fd(loop, w->routes, EPOLLIN, on_event, w, &w->routes_source, e);
	if (r == 0)
		r = loop_add_fd(loop, w->rules, EPOLLIN, on_event, w, &w->rules_source, e);
	/* What changed before anybody listened is looked at, too. */
	w->armed = true;
	return r < 0 ? r : loop_arm(w->timer, DELAY_MS, e);
}

int watch_start(const struct watch_plan *plan, struct loop *loop, struct watch **ret, struct err *e)
{
	struct watch *w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(e, -ENOMEM, "out of memory");
	*w = (struct watch){.plan = *plan, .routes = -1, .rules = -1};
	int r = start(w, loop, e);
	if (r < 0) {
		watch_end(w);
		return err_ctx(e, r, "watch the host's network");
	}
	*ret = w;
	return 0;
}

void watch_end(struct watch *w)
{
	if (!w)
		return;
	loop_remove(&w->timer);
	loop_remove(&w->routes_source);
	loop_remove(&w->rules_source);
	fd_close(&w->routes);
	fd_close(&w->rules);
	free(w);
}
