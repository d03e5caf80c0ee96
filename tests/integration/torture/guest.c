#include "guest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "guest/exec.h"
#include "wire/identity.h"

#define SOCKET_PATH "/run/ermite/exec.sock"

_Noreturn void guest_give_up(void)
{
	_exit(99);
}

int guest_connect(void)
{
	const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		guest_give_up();
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

void guest_send(const struct guest *g, const void *p, size_t n)
{
	const uint8_t *at = p;
	while (n > 0) {
		ssize_t sent = write(g->fd, at, n);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			_exit(0);
		at += sent;
		n -= (size_t)sent;
	}
}

/* Sends g->said. */
static void say(const struct guest *g)
{
	uint8_t bytes[1024];
	ptrdiff_t n = frame_to_host_encode(&g->said, bytes, sizeof(bytes));
	if (n < 0)
		guest_give_up();
	guest_send(g, bytes, (size_t)n);
}

void guest_say_started(struct guest *g)
{
	g->said.which_message = ermite_ToHost_started_tag;
	g->said.message.started = (ermite_Started){.id = g->id, .pid = UINT32_MAX};
	say(g);
}

void guest_say_exited(struct guest *g, uint32_t status)
{
	g->said.which_message = ermite_ToHost_exited_tag;
	g->said.message.exited = (ermite_Exited){.id = g->id, .status = status};
	say(g);
}

void guest_say_failed(struct guest *g, uint32_t status, const char *text)
{
	ermite_Failed *failed = &g->said.message.failed;
	g->said.which_message = ermite_ToHost_failed_tag;
	*failed = (ermite_Failed){.id = g->id, .status = status};
	(void)snprintf(failed->text, sizeof(failed->text), "%s", text);
	say(g);
}

void guest_say_credit(struct guest *g, uint32_t bytes)
{
	g->said.which_message = ermite_ToHost_credit_tag;
	g->said.message.credit = (ermite_Credit){.id = g->id, .bytes = bytes};
	say(g);
}

void guest_send_data(const struct guest *g, uint32_t channel, const void *p, size_t n)
{
	uint8_t head[FRAME_DATA_HEAD_MAX];
	size_t head_n = frame_data_head(g->id, channel, n, head);
	guest_send(g, head, head_n);
	guest_send(g, p, n);
}

void guest_output(struct guest *g, const void *p, size_t n)
{
	const uint8_t *at = p;
	while (n > 0) {
		while (g->credit == 0)
			(void)guest_hear(g);
		size_t part = n < g->credit ? n : g->credit;
		if (part > FRAME_DATA_MAX)
			part = FRAME_DATA_MAX;
		guest_send_data(g, 1, at, part);
		g->credit -= (uint32_t)part;
		at += part;
		n -= part;
	}
}

/* Takes a whole frame out of what was received. Returns false when there is none. */
static bool next_frame(struct guest *g)
{
	struct err e = ERR_INIT;
	const uint8_t *message = NULL;
	size_t message_n = 0;
	size_t frame_n = 0;
	int r = frame_next(g->received + g->used, g->have - g->used, &message, &message_n, &frame_n, &e);
	if (r < 0 || (r == 1 && frame_to_guest_decode(message, message_n, &g->message, &e) < 0))
		guest_give_up();
	g->used += frame_n;
	return r == 1;
}

const ermite_ToGuest *guest_hear(struct guest *g)
{
	while (!next_frame(g)) {
		memmove(g->received, g->received + g->used, g->have - g->used);
		g->have -= g->used;
		g->used = 0;
		ssize_t n = read(g->fd, g->received + g->have, sizeof(g->received) - g->have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(0);
		g->have += (size_t)n;
	}
	const ermite_ToGuest *m = &g->message;
	if (m->which_message == ermite_ToGuest_credit_tag && m->message.credit.id == g->id &&
	    m->message.credit.channel == 1)
		g->credit += m->message.credit.bytes;
	return m;
}

void guest_await_start(struct guest *g)
{
	while (guest_hear(g)->which_message != ermite_ToGuest_start_tag)
		;
	g->id = g->message.message.start.id;
	g->credit = FRAME_WINDOW;
}

static void join(struct guest *g)
{
	struct err e = ERR_INIT;
	if (exec_connect(&g->fd, &e) < 0)
		guest_give_up();
}

static void greet(struct guest *g)
{
	ermite_Hello *hello = &g->said.message.hello;
	g->said.which_message = ermite_ToHost_hello_tag;
	(void)snprintf(hello->build, sizeof(hello->build), "%s", build_identity());
	say(g);
}

static void finish_and_copy_out(struct guest *g)
{
	guest_say_exited(g, 0);
	guest_await_start(g);
	guest_say_started(g);
}

void guest_reach(struct guest *g, enum stage stage)
{
	static void (*const steps[])(struct guest * g) = {
		[STAGE_CONNECTED] = join,
		[STAGE_GREETED] = greet,
		[STAGE_ASKED] = guest_await_start,
		[STAGE_RUNNING] = guest_say_started,
		[STAGE_COPY_OUT] = finish_and_copy_out,
	};
	while (g->stage < stage) {
		g->stage++;
		if (steps[g->stage])
			steps[g->stage](g);
	}
}
