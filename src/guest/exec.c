#include "guest/exec.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "guest/process.h"
#include "guest/ready.h"
#include "guest/stream.h"
#include "io/loop.h"
#include "wire/identity.h"

#define SOCKET_PATH      "/run/ermite/exec.sock"
#define CONNECT_MS       10000
#define CONNECT_AGAIN_MS 5
#define SEND_BUFFER      1048576

struct executor {
	struct loop *loop;
	struct stream *stream;
	struct processes *processes;
	int notify;   /* borrowed */
	bool greeted; /* the host has said who it is */
	struct ready ready;
	uint32_t strings_id;
	size_t strings_n;
	char strings[FRAME_STRINGS_MAX]; /* for the next start */
};

static int on_ready(void *data, struct err *e)
{
	struct executor *x = data;
	return stream_send_ready(x->stream, e);
}

static int take_hello(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	if (x->greeted)
		return err_set(e, -EPROTO, "the host said hello twice");
	if (strcmp(m->message.hello.build, build_identity()) != 0)
		return err_set(e, -EPROTO, "the host is build %s, this is %s", m->message.hello.build,
			       build_identity());
	x->greeted = true;
	if (x->notify < 0)
		return stream_send_ready(x->stream, e);
	return ready_watch(&x->ready, x->loop, x->notify, on_ready, x, e);
}

static int take_strings(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	const ermite_Strings *s = &m->message.strings;
	if (x->strings_n > 0 && x->strings_id != s->id)
		return err_set(e, -EPROTO, "strings for process %u among those for %u", s->id, x->strings_id);
	if (s->bytes.size > sizeof(x->strings) - x->strings_n)
		return err_set(e, -EPROTO, "more than %u bytes of strings", FRAME_STRINGS_MAX);
	x->strings_id = s->id;
	memcpy(x->strings + x->strings_n, s->bytes.bytes, s->bytes.size);
	x->strings_n += s->bytes.size;
	return 0;
}

/* Whether there are exactly n strings and nothing behind them. */
static bool strings_count(const struct executor *x, size_t n)
{
	size_t at = 0;
	while (n > 0 && frame_string_next(x->strings, x->strings_n, &at))
		n--;
	return n == 0 && at == x->strings_n;
}

static int take_start(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	const ermite_Start *start = &m->message.start;
	if ((x->strings_n > 0 && x->strings_id != start->id) ||
	    !strings_count(x, (size_t)start->argument_count + start->environment_count))
		return err_set(e, -EPROTO, "process %u has not the strings that it says", start->id);
	struct job job = {.start = start, .strings = x->strings, .strings_n = x->strings_n};
	int r = processes_start(x->processes, &job, e);
	/* They may be secrets, and later children are copies of this process. */
	explicit_bzero(x->strings, x->strings_n);
	x->strings_n = 0;
	return r;
}

static int take_data(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	return processes_data(x->processes, &m->message.data, e);
}

static int take_eof(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	return processes_eof(x->processes, &m->message.eof, e);
}

static int take_credit(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	return processes_credit(x->processes, &m->message.credit, e);
}

static int take_signal(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	return processes_signal(x->processes, &m->message.signal, e);
}

static int take_resize(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	return processes_resize(x->processes, &m->message.resize, e);
}

static int take(struct executor *x, const ermite_ToGuest *m, struct err *e)
{
	static int (*const takers[])(struct executor *, const ermite_ToGuest *, struct err *) = {
		[ermite_ToGuest_hello_tag] = take_hello,   [ermite_ToGuest_start_tag] = take_start,
		[ermite_ToGuest_data_tag] = take_data,     [ermite_ToGuest_eof_tag] = take_eof,
		[ermite_ToGuest_credit_tag] = take_credit, [ermite_ToGuest_signal_tag] = take_signal,
		[ermite_ToGuest_resize_tag] = take_resize, [ermite_ToGuest_strings_tag] = take_strings,
	};
	if (!x->greeted && m->which_message != ermite_ToGuest_hello_tag)
		return err_set(e, -EPROTO, "the host did not say hello first");
	return takers[m->which_message](x, m, e);
}

static int on_stream(void *data, int, uint32_t, struct err *e)
{
	struct executor *x = data;
	int r = stream_receive(x->stream, e);
	if (r <= 0) {
		loop_stop(x->loop);
		return r;
	}
	const ermite_ToGuest *m;
	while ((r = stream_next(x->stream, &m, e)) > 0) {
		r = take(x, m, e);
		if (r < 0)
			return r;
	}
	return r;
}

static int executor_run(struct executor *x, int stream, struct err *e)
{
	struct source *source;
	x->loop = loop_new();
	x->stream = stream_new(stream);
	x->processes = x->loop && x->stream ? processes_new(x->loop, x->stream) : NULL;
	if (!x->processes)
		return err_set(e, -ENOMEM, "out of memory");
	int r = loop_add_fd(x->loop, stream, EPOLLIN, on_stream, x, &source, e);
	if (r == 0)
		r = stream_send_hello(x->stream, build_identity(), e);
	return r < 0 ? r : loop_run(x->loop, e);
}

int exec_serve(int stream, int notify, struct err *e)
{
	scoped_free struct executor *x = calloc(1, sizeof(*x));
	if (!x)
		return err_set(e, -ENOMEM, "out of memory");
	x->notify = notify;
	(void)signal(SIGPIPE, SIG_IGN);
	/* As much as the kernel grants: fewer wake-ups for much output. */
	const int size = SEND_BUFFER;
	(void)setsockopt(stream, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	int r = executor_run(x, stream, e);
	processes_free(x->processes);
	stream_free(x->stream);
	loop_free(x->loop);
	return r;
}

/* Whether an error of connect() can pass: the socket is being made. */
static bool may_pass(int code)
{
	return code == ENOENT || code == ECONNREFUSED || code == EAGAIN || code == EINTR;
}

int exec_connect(int *ret_fd, struct err *e)
{
	static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
	static const struct timespec pause = {.tv_nsec = CONNECT_AGAIN_MS * 1000000};
	uint64_t deadline_ms = clock_boot_ms() + CONNECT_MS;
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(e, "make a socket");
	while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		if (!may_pass(errno) || clock_boot_ms() > deadline_ms)
			return err_sys(e, "connect to %s", SOCKET_PATH);
		(void)nanosleep(&pause, NULL);
	}
	*ret_fd = fd_steal(&fd);
	return 0;
}

int exec_run(struct err *e)
{
	scoped_fd int stream = -1;
	int r = exec_connect(&stream, e);
	return r < 0 ? r : exec_serve(stream, -1, e);
}
