#include "guest/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define SMALL_MAX 1024 /* a frame of any message without bytes in it */

struct stream {
	int fd;
	size_t at, have; /* what is received and not yet taken: in[at .. have) */
	ermite_ToGuest received;
	ermite_ToHost sent;
	uint8_t small[SMALL_MAX];
	uint8_t out[FRAME_DATA_HEAD_MAX + FRAME_DATA_MAX];
	uint8_t in[FRAME_HEAD + FRAME_MAX];
};

struct stream *stream_new(int fd)
{
	struct stream *s = calloc(1, sizeof(*s));
	if (s)
		s->fd = fd;
	return s;
}

void stream_free(struct stream *s)
{
	free(s);
}

int stream_receive(struct stream *s, struct err *e)
{
	memmove(s->in, s->in + s->at, s->have - s->at);
	s->have -= s->at;
	s->at = 0;
	ssize_t n;
	do
		n = read(s->fd, s->in + s->have, sizeof(s->in) - s->have);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, "read the stream");
	s->have += (size_t)n;
	return n > 0;
}

int stream_next(struct stream *s, const ermite_ToGuest **ret, struct err *e)
{
	const uint8_t *message;
	size_t message_n, frame_n;
	int r = frame_next(s->in + s->at, s->have - s->at, &message, &message_n, &frame_n, e);
	if (r <= 0)
		return r;
	r = frame_to_guest_decode(message, message_n, &s->received, e);
	if (r < 0)
		return r;
	s->at += frame_n;
	*ret = &s->received;
	return 1;
}

static int stream_send(struct stream *s, struct err *e)
{
	ptrdiff_t n = frame_to_host_encode(&s->sent, s->small, sizeof(s->small));
	if (n < 0)
		return err_code(e, (int)n, "encode a message");
	return file_write_all(s->fd, s->small, (size_t)n, e);
}

int stream_send_hello(struct stream *s, const char *build, struct err *e)
{
	ermite_Hello *m = &s->sent.message.hello;
	s->sent.which_message = ermite_ToHost_hello_tag;
	(void)snprintf(m->build, sizeof(m->build), "%s", build);
	return stream_send(s, e);
}

int stream_send_ready(struct stream *s, struct err *e)
{
	s->sent.which_message = ermite_ToHost_system_ready_tag;
	s->sent.message.system_ready = (ermite_SystemReady){0};
	return stream_send(s, e);
}

int stream_send_started(struct stream *s, uint32_t id, uint32_t pid, struct err *e)
{
	s->sent.which_message = ermite_ToHost_started_tag;
	s->sent.message.started = (ermite_Started){.id = id, .pid = pid};
	return stream_send(s, e);
}

int stream_send_eof(struct stream *s, uint32_t id, uint32_t channel, struct err *e)
{
	s->sent.which_message = ermite_ToHost_eof_tag;
	s->sent.message.eof = (ermite_Eof){.id = id, .channel = channel};
	return stream_send(s, e);
}

int stream_send_credit(struct stream *s, uint32_t id, uint32_t bytes, struct err *e)
{
	s->sent.which_message = ermite_ToHost_credit_tag;
	s->sent.message.credit = (ermite_Credit){.id = id, .channel = 0, .bytes = bytes};
	return stream_send(s, e);
}

int stream_send_exited(struct stream *s, uint32_t id, uint32_t status, uint32_t signal, struct err *e)
{
	s->sent.which_message = ermite_ToHost_exited_tag;
	s->sent.message.exited = (ermite_Exited){.id = id, .status = status, .signal = signal};
	return stream_send(s, e);
}

int stream_send_failed(struct stream *s, uint32_t id, uint32_t status, const char *text, struct err *e)
{
	ermite_Failed *m = &s->sent.message.failed;
	s->sent.which_message = ermite_ToHost_failed_tag;
	m->id = id;
	m->status = status;
	(void)snprintf(m->text, sizeof(m->text), "%s", text);
	return stream_send(s, e);
}

uint8_t *stream_data_room(struct stream *s)
{
	return s->out + FRAME_DATA_HEAD_MAX;
}

int stream_send_data(struct stream *s, uint32_t id, uint32_t channel, size_t n, struct err *e)
{
	uint8_t head[FRAME_DATA_HEAD_MAX];
	size_t head_n = frame_data_head(id, channel, n, head);
	/* The head goes right in front of the bytes, so that one write sends both. */
	uint8_t *start = s->out + FRAME_DATA_HEAD_MAX - head_n;
	memcpy(start, head, head_n);
	return file_write_all(s->fd, start, head_n + n, e);
}
