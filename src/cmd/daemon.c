#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/scope.h"
#include "cmd/commands.h"
#include "cmd/daemon_lock.h"
#include "cmd/reap.h"
#include "io/loop.h"
#include "resource/resource.h"

enum {
	DESCRIPTORS = 64,
	LINE_MAX_BYTES = 4096,
	CHECK_MS = 10000,  /* how often it looks for a sandbox without a keeper */
	RETRY_CHECKS = 30, /* what could not be removed is tried again after this many */
};

struct state {
	struct loop *loop;
	struct source *timer, *signals;
	struct host host;
	int lock;
	int store;
	unsigned n_checks;
};

static const char *const config[] = {"state-dir", "lock-file", "log", "log-level", NULL};

static void tell(void *, const struct leftover *l)
{
	scoped_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
	leftover_text(l, &line);
	log_line(l->reason ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, "%s", buf_text(&line));
}

/* What is wrong now may be well at the next time: no error ends the daemon. */
static void reap(struct state *s)
{
	struct err e = ERR_INIT;
	char docker[DOCKER_SOCKET_SIZE];
	struct reap reap = {.store_fd = s->store,
			    .host = &s->host,
			    .docker_socket = reap_find_docker(docker),
			    .tell = tell};
	if (resources_reap(&reap, &e) < 0)
		log_error("%s", e.msg);
}

/* Whether a sandbox has lost its keeper. One that stayed when it was last tried counts from time to time. */
static bool is_wanted(struct state *s)
{
	struct err e = ERR_INIT;
	scoped_free struct record_info *list = NULL;
	size_t n = 0;
	bool wanted = false;
	bool is_retry = ++s->n_checks % RETRY_CHECKS == 0;
	if (record_list(s->store, &list, &n, &e) < 0)
		log_error("%s", e.msg);
	for (size_t i = 0; i < n; i++)
		wanted = wanted || (!list[i].held && (is_retry || !list[i].left[0]));
	return wanted;
}

static int on_timer(void *data, struct err *e)
{
	struct state *s = data;
	if (is_wanted(s))
		reap(s);
	return loop_arm(s->timer, CHECK_MS, e);
}

static int on_signal(void *data, int number, struct err *)
{
	struct state *s = data;
	log_info("the daemon ends: SIG%s", sigabbrev_np(number));
	loop_stop(s->loop);
	return 0;
}

static int prepare_loop(struct state *s, struct err *e)
{
	sigset_t ending;
	sigemptyset(&ending);
	sigaddset(&ending, SIGTERM);
	sigaddset(&ending, SIGINT);
	/* Whoever read the log may be gone before the daemon. */
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return err_sys(e, "ignore SIGPIPE");
	s->loop = loop_new();
	if (!s->loop)
		return err_sys(e, "make an event loop");
	int r = loop_add_signals(s->loop, &ending, on_signal, s, &s->signals, e);
	if (r == 0)
		r = loop_add_timer(s->loop, on_timer, s, &s->timer, e);
	return r < 0 ? r : loop_arm(s->timer, CHECK_MS, e);
}

static int prepare(struct state *s, const struct config *c, struct err *e)
{
	int r = daemon_lock_take(c->lock_file, &s->lock, e);
	if (r == 0)
		r = file_need_descriptors(DESCRIPTORS, e);
	if (r == 0)
		r = prepare_loop(s, e);
	if (r == 0)
		r = host_open(&s->host, e);
	return r < 0 ? r : record_open_store(c->state_dir, &s->store, e);
}

static int run_daemon(const struct config *c, void *, char *const[], size_t, struct err *e)
{
	struct state s = {.host = HOST_INIT, .lock = -1, .store = -1};
	int r = prepare(&s, c, e);
	if (r == 0) {
		log_info("the daemon watches over the sandboxes of %s", c->state_dir);
		reap(&s);
		r = loop_run(s.loop, e);
	}
	loop_free(s.loop);
	host_close(&s.host);
	fd_close(&s.store);
	daemon_lock_drop(&s.lock);
	return r;
}

const struct command cmd_daemon = {
	.name = "daemon",
	.args = "",
	.help = "Watch over this host's sandboxes and remove what killed ones leave behind.",
	.config = config,
	.run = run_daemon,
};
