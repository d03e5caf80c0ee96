#include "cmd/image_recipe.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "cmd/image_progress.h"
#include "io/child.h"
#include "io/loop.h"

enum { LINE_SIZE = 512, TAIL_LINES = 20, ENVIRONMENT_MAX = 16 };

struct recipe {
	struct loop *loop;
	struct child child;
	struct source *timer;
	struct image_progress progress;
	uint64_t started_ms;
	int signal; /* that stopped it, or 0 */
	bool verbose, terminal;
	char shown[LINE_SIZE]; /* on the terminal */
	char line[LINE_SIZE];  /* being read; what does not fit is dropped */
	size_t line_n;
	char tail[TAIL_LINES][LINE_SIZE]; /* the last lines, a ring */
	size_t tail_n;
};

/* On a terminal one line is written over when it changes; elsewhere a line stands for each phase. */
static void show(struct recipe *r, bool new_phase)
{
	scoped_buf struct buf text = BUF_INIT(LINE_SIZE - 1);
	if (r->verbose || (!r->terminal && !new_phase))
		return;
	image_progress_text(&r->progress, (clock_boot_ms() - r->started_ms) / 1000, &text);
	if (!r->terminal) {
		(void)fprintf(stderr, "%s\n", buf_text(&text));
	} else if (strcmp(r->shown, buf_text(&text)) != 0) {
		(void)snprintf(r->shown, sizeof(r->shown), "%s", buf_text(&text));
		(void)fprintf(stderr, "\r%s\033[K", r->shown);
	}
}

static void take_line(struct recipe *r)
{
	r->line[r->line_n] = 0;
	r->line_n = 0;
	if (!r->line[0])
		return;
	/* Packages and archives can put anything into a line; a terminal must not obey it. */
	for (char *at = r->line; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = ' ';
	memcpy(r->tail[r->tail_n++ % TAIL_LINES], r->line, LINE_SIZE);
	if (r->verbose)
		(void)fprintf(stderr, "%s\n", r->line);
	show(r, image_progress_line(&r->progress, r->line));
}

static int on_output(void *data, int fd, uint32_t events, struct err *e)
{
	struct recipe *r = data;
	char bytes[4096];
	(void)events;

	ssize_t n = read(fd, bytes, sizeof(bytes));
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? 0 : err_sys(e, "read what the recipe says");
	for (ssize_t i = 0; i < n; i++) {
		if (bytes[i] == '\n' || bytes[i] == '\r')
			take_line(r);
		else if (r->line_n + 1 < LINE_SIZE)
			r->line[r->line_n++] = bytes[i];
	}
	if (n == 0) {
		take_line(r);
		loop_stop(r->loop);
	}
	return 0;
}

static int on_signal(void *data, int number, struct err *e)
{
	struct recipe *r = data;
	(void)e;
	r->signal = number;
	loop_stop(r->loop);
	return 0;
}

static int on_second(void *data, struct err *e)
{
	struct recipe *r = data;
	show(r, false);
	return loop_arm(r->timer, 1000, e);
}

/* What of our environment the recipe's programs need; nothing else gets in. */
static void recipe_environment(const char *ret[static ENVIRONMENT_MAX], struct buf *memory)
{
	static const char *const passed[] = {"http_proxy", "https_proxy", "no_proxy", "SOURCE_DATE_EPOCH"};
	size_t offsets[sizeof(passed) / sizeof(*passed)];
	size_t n = 0, n_passed = 0;

	ret[n++] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	ret[n++] = "LC_ALL=C.UTF-8";
	ret[n++] = "HOME=/root";
	ret[n++] = "DEBIAN_FRONTEND=noninteractive";
	for (size_t i = 0; i < sizeof(passed) / sizeof(*passed); i++) {
		const char *value = getenv(passed[i]);
		if (!value)
			continue;
		offsets[n_passed++] = memory->n;
		buf_fmt(memory, "%s=%s", passed[i], value);
		buf_add(memory, "", 1);
	}
	for (size_t i = 0; i < n_passed && !memory->bad; i++)
		ret[n++] = memory->p + offsets[i];
	ret[n] = NULL;
}

/* Starts the recipe as PID 1 of its own namespace: nothing that it starts can outlive it, nor it us. A session of its
 * own keeps the terminal's Ctrl-C from it: we decide when it ends. Returns the read end of its output. */
static int start(struct recipe *r, const char *path, const char *const *arguments, bool no_network,
		 int *ret_fd, struct err *e)
{
	scoped_buf struct buf memory = BUF_INIT(65536);
	const char *environment[ENVIRONMENT_MAX];
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(e, "pipe");
	scoped_fd int from = ends[0];
	scoped_fd int to = ends[1];
	recipe_environment(environment, &memory);
	const int fds[] = {-1, to, to};
	const struct child_plan plan = {
		.path = path,
		.arguments = arguments,
		.environment = environment,
		.fds = fds,
		.n_fds = sizeof(fds) / sizeof(*fds),
		.clone_flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (no_network ? CLONE_NEWNET : 0),
		.die_with_parent = true,
		.new_session = true,
	};
	int result = child_start(&plan, &r->child, e);
	if (result < 0)
		return result;
	*ret_fd = fd_steal(&from);
	return 0;
}

/* Runs the loop until the output ends or a signal comes. */
static int watch(struct recipe *r, int output, struct err *e)
{
	struct source *source = NULL;
	sigset_t set;

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGHUP);
	int result = loop_add_signals(r->loop, &set, on_signal, r, &source, e);
	if (result == 0)
		result = loop_add_fd(r->loop, output, EPOLLIN, on_output, r, &source, e);
	if (result == 0 && r->terminal && !r->verbose)
		result = loop_add_timer(r->loop, on_second, r, &r->timer, e);
	if (result == 0 && r->timer)
		result = loop_arm(r->timer, 1000, e);
	return result < 0 ? result : loop_run(r->loop, e);
}

/* Shows the last lines, without our own about the phases, and makes the recipe's last word the error if it is one. */
static int failed(const struct recipe *r, const struct child_end *end, struct err *e)
{
	size_t first = r->tail_n > TAIL_LINES ? r->tail_n - TAIL_LINES : 0;
	const char *last = r->tail_n ? r->tail[(r->tail_n - 1) % TAIL_LINES] : "";
	bool is_error = strncmp(last, "E: ", 3) == 0;

	for (size_t i = first; !r->verbose && i + is_error < r->tail_n; i++)
		if (strncmp(r->tail[i % TAIL_LINES], "P: ", 3) != 0)
			(void)fprintf(stderr, "  %s\n", r->tail[i % TAIL_LINES]);
	if (is_error)
		return err_set(e, -EIO, "%s", last + 3);
	if (end->signal)
		return err_set(e, -EIO, "%s: killed by signal %d", r->progress.phase, end->signal);
	return err_set(e, -EIO, "%s: ended with status %d", r->progress.phase, end->status);
}

static int run(struct recipe *r, const char *path, const char *const *arguments, bool no_network,
	       struct err *e)
{
	scoped_fd int output = -1;
	struct child_end end = {0};

	int result = start(r, path, arguments, no_network, &output, e);
	if (result < 0)
		return result;
	result = watch(r, output, e);
	if (result < 0 || r->signal)
		child_kill(&r->child);
	else
		result = child_wait(&r->child, UINT64_MAX, &end, e);
	if (r->terminal && !r->verbose)
		(void)fputs("\r\033[K", stderr);
	if (result < 0)
		return result;
	if (r->signal)
		return r->signal;
	return end.status == 0 && end.signal == 0 ? 0 : failed(r, &end, e);
}

int image_recipe_run(const char *path, const char *const *arguments, bool no_network, bool verbose,
		     struct err *e)
{
	scoped_loop struct loop *loop = loop_new();
	scoped_free struct recipe *r = calloc(1, sizeof(*r));
	if (!loop || !r)
		return err_sys(e, "prepare the recipe");
	r->loop = loop;
	r->child = CHILD_INIT;
	r->progress = IMAGE_PROGRESS_INIT;
	r->started_ms = clock_boot_ms();
	r->verbose = verbose;
	r->terminal = isatty(STDERR_FILENO);
	return run(r, path, arguments, no_network, e);
}
