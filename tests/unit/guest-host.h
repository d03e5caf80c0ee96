/*
 * The host's side of the stream, for tests of the executor: speaks with exec_serve() running in a child.
 *
 * Everything asserts; a test that would hang fails after WAIT_MS.
 */
#ifndef ERMITE_TESTS_GUEST_HOST_H
#define ERMITE_TESTS_GUEST_HOST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* The above for cmocka.h. */
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "guest/exec.h"
#include "wire/frame.h"
#include "wire/identity.h"

#define WAIT_MS 20000

struct host {
	int fd;
	pid_t executor;
	size_t at, have;
	ermite_ToHost got;
	ermite_ToGuest sent;
	uint8_t frame[FRAME_HEAD + FRAME_MAX];
	uint8_t in[FRAME_HEAD + FRAME_MAX];
};

/* What to start. */
struct call {
	uint32_t id;
	ermite_Kind kind;
	const char *arguments[8];
	const char *environment[4];
	const char *user, *workdir;
	bool terminal, has_stdin;
	uint32_t rows, columns;
};

/* Everything that came for one process until its end. */
struct outcome {
	bool failed;
	uint32_t status, signal, pid;
	char text[256];     /* of Failed */
	uint8_t *output[3]; /* by channel, terminated, owned */
	size_t n[3];
	bool eof[3];
};

[[maybe_unused]] static void host_send(struct host *h)
{
	ptrdiff_t n = frame_to_guest_encode(&h->sent, h->frame, sizeof(h->frame));
	assert_true(n > 0);
	/* The executor may have ended over what it was told before. */
	int r = file_write_all(h->fd, h->frame, (size_t)n, NULL);
	assert_true(r == 0 || r == -EPIPE);
}

/* The next message, or NULL at the end of the stream or after ms. */
[[maybe_unused]] static const ermite_ToHost *host_next(struct host *h, int ms)
{
	for (;;) {
		const uint8_t *message;
		size_t message_n, frame_n;
		int r = frame_next(h->in + h->at, h->have - h->at, &message, &message_n, &frame_n, NULL);
		assert_true(r >= 0);
		if (r > 0) {
			assert_int_equal(frame_to_host_decode(message, message_n, &h->got, NULL), 0);
			h->at += frame_n;
			return &h->got;
		}
		memmove(h->in, h->in + h->at, h->have - h->at);
		h->have -= h->at;
		h->at = 0;
		struct pollfd p = {.fd = h->fd, .events = POLLIN};
		if (poll(&p, 1, ms) <= 0)
			return NULL;
		ssize_t n = read(h->fd, h->in + h->have, sizeof(h->in) - h->have);
		if (n <= 0)
			return NULL;
		h->have += (size_t)n;
	}
}

[[maybe_unused]] static void host_hello(struct host *h, const char *build)
{
	h->sent = (ermite_ToGuest){.which_message = ermite_ToGuest_hello_tag};
	memcpy(h->sent.message.hello.build, build, strlen(build));
	host_send(h);
}

/* Starts an executor and says nothing yet. */
[[maybe_unused]] static struct host *host_bare(void)
{
	struct host *h = calloc(1, sizeof(*h));
	int fds[2];
	assert_non_null(h);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	h->executor = fork();
	assert_true(h->executor >= 0);
	if (h->executor == 0) {
		(void)close(fds[0]);
		_exit(exec_serve(fds[1], -1, NULL) < 0);
	}
	(void)close(fds[1]);
	h->fd = fds[0];
	return h;
}

[[maybe_unused]] static struct host *host_start(void)
{
	struct host *h = host_bare();
	host_hello(h, build_identity());
	const ermite_ToHost *m = host_next(h, WAIT_MS);
	assert_non_null(m);
	assert_int_equal(m->which_message, ermite_ToHost_hello_tag);
	assert_string_equal(m->message.hello.build, build_identity());
	m = host_next(h, WAIT_MS);
	assert_non_null(m);
	assert_int_equal(m->which_message, ermite_ToHost_system_ready_tag);
	return h;
}

/* Closes the stream. Returns how the executor ended. */
[[maybe_unused]] static int host_end(struct host *h)
{
	int status = -1;
	(void)close(h->fd);
	assert_int_equal(waitpid(h->executor, &status, 0), h->executor);
	free(h);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

[[maybe_unused]] static uint32_t add_strings(ermite_Strings *s, const char *const *list, size_t most)
{
	uint32_t n = 0;
	for (; n < most && list[n]; n++) {
		size_t length = strlen(list[n]) + 1;
		memcpy(s->bytes.bytes + s->bytes.size, list[n], length);
		s->bytes.size = (pb_size_t)(s->bytes.size + length);
	}
	return n;
}

[[maybe_unused]] static void host_call(struct host *h, const struct call *c)
{
	h->sent = (ermite_ToGuest){.which_message = ermite_ToGuest_strings_tag};
	ermite_Strings *s = &h->sent.message.strings;
	s->id = c->id;
	ermite_Start start = {
		.id = c->id,
		.kind = c->kind,
		.argument_count = add_strings(s, c->arguments, 8),
		.environment_count = add_strings(s, c->environment, 4),
		.terminal = c->terminal,
		.has_stdin = c->has_stdin,
		.rows = c->rows,
		.columns = c->columns,
	};
	if (s->bytes.size > 0)
		host_send(h);
	const char *user = c->user ? c->user : "root", *workdir = c->workdir ? c->workdir : "/";
	memcpy(start.user, user, strlen(user));
	memcpy(start.workdir, workdir, strlen(workdir));
	h->sent = (ermite_ToGuest){.which_message = ermite_ToGuest_start_tag, .message.start = start};
	host_send(h);
}

[[maybe_unused]] static void host_signal(struct host *h, uint32_t id, uint32_t number)
{
	h->sent.which_message = ermite_ToGuest_signal_tag;
	h->sent.message.signal = (ermite_Signal){.id = id, .number = number};
	host_send(h);
}

[[maybe_unused]] static void host_eof(struct host *h, uint32_t id)
{
	h->sent.which_message = ermite_ToGuest_eof_tag;
	h->sent.message.eof = (ermite_Eof){.id = id};
	host_send(h);
}

[[maybe_unused]] static void host_credit(struct host *h, uint32_t id, uint32_t channel, uint32_t bytes)
{
	h->sent.which_message = ermite_ToGuest_credit_tag;
	h->sent.message.credit = (ermite_Credit){.id = id, .channel = channel, .bytes = bytes};
	host_send(h);
}

/* Sends n bytes of input, FRAME_WINDOW at most. */
[[maybe_unused]] static void host_data(struct host *h, uint32_t id, const uint8_t *p, size_t n)
{
	while (n > 0) {
		size_t part = n < FRAME_DATA_MAX ? n : FRAME_DATA_MAX;
		h->sent.which_message = ermite_ToGuest_data_tag;
		h->sent.message.data.id = id;
		h->sent.message.data.channel = 0;
		h->sent.message.data.bytes.size = (pb_size_t)part;
		memcpy(h->sent.message.data.bytes.bytes, p, part);
		host_send(h);
		p += part;
		n -= part;
	}
}

[[maybe_unused]] static void outcome_free(struct outcome *o)
{
	for (size_t i = 0; i < 3; i++)
		free(o->output[i]);
	*o = (struct outcome){0};
}

[[maybe_unused]] static void outcome_add(struct outcome *o, const ermite_Data *d)
{
	uint8_t **p = &o->output[d->channel];
	*p = realloc(*p, o->n[d->channel] + d->bytes.size + 1);
	assert_non_null(*p);
	memcpy(*p + o->n[d->channel], d->bytes.bytes, d->bytes.size);
	o->n[d->channel] += d->bytes.size;
	(*p)[o->n[d->channel]] = '\0';
}

[[maybe_unused]] static const char *outcome_text(const struct outcome *o, uint32_t channel)
{
	return o->output[channel] ? (const char *)o->output[channel] : "";
}

/* Takes a message of process id into its outcome; output is given credit again. Returns whether it was the last. */
[[maybe_unused]] static bool host_take(struct host *h, uint32_t id, struct outcome *o)
{
	const ermite_ToHost *m = &h->got;
	switch (m->which_message) {
	case ermite_ToHost_started_tag:
		assert_int_equal(m->message.started.id, id);
		o->pid = m->message.started.pid;
		return false;
	case ermite_ToHost_data_tag:
		assert_int_equal(m->message.data.id, id);
		assert_true(o->pid > 0 && !o->eof[m->message.data.channel]);
		outcome_add(o, &m->message.data);
		host_credit(h, id, m->message.data.channel, m->message.data.bytes.size);
		return false;
	case ermite_ToHost_eof_tag:
		o->eof[m->message.eof.channel] = true;
		return false;
	case ermite_ToHost_credit_tag:
		return false;
	case ermite_ToHost_exited_tag:
		assert_int_equal(m->message.exited.id, id);
		o->status = m->message.exited.status;
		o->signal = m->message.exited.signal;
		return true;
	case ermite_ToHost_failed_tag:
		assert_int_equal(m->message.failed.id, id);
		o->failed = true;
		o->status = m->message.failed.status;
		memcpy(o->text, m->message.failed.text, sizeof(o->text));
		return true;
	default:
		fail();
	}
	return true;
}

/* Waits for the end of process id. */
[[maybe_unused]] static void host_collect(struct host *h, uint32_t id, struct outcome *o)
{
	do
		assert_non_null(host_next(h, WAIT_MS));
	while (!host_take(h, id, o));
}

/* Starts and waits for the end. */
[[maybe_unused]] static void host_run(struct host *h, const struct call *c, struct outcome *o)
{
	*o = (struct outcome){0};
	host_call(h, c);
	host_collect(h, c->id, o);
}

#endif
