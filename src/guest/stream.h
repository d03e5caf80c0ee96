/*
 * The executor's end of the stream: whole messages in, whole frames out.
 *
 * Sending blocks: the host always reads, and a slow consumer is held back by credit, not by this socket. All memory is
 * one block of fixed size made at the start.
 */
#ifndef ERMITE_GUEST_STREAM_H
#define ERMITE_GUEST_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/frame.h"

struct stream;

/* A stream over a connected stream socket, which stays the caller's. NULL when memory is out. */
struct stream *stream_new(int fd);
void stream_free(struct stream *s);

/* Reads once what is there. Returns 1, 0 when the host has closed it, or a negative errno. */
[[nodiscard]] int stream_receive(struct stream *s, struct err *e);

/* Takes the next message out of what was read. Returns 1 and the message, valid until the next call; 0 when there is
 * no whole one; -EPROTO for bytes that are none. */
[[nodiscard]] int stream_next(struct stream *s, const ermite_ToGuest **ret, struct err *e);

/* Each sends one message. Returns 0 or a negative errno. */
[[nodiscard]] int stream_send_hello(struct stream *s, const char *build, struct err *e);
[[nodiscard]] int stream_send_ready(struct stream *s, struct err *e);
[[nodiscard]] int stream_send_started(struct stream *s, uint32_t id, uint32_t pid, struct err *e);
[[nodiscard]] int stream_send_eof(struct stream *s, uint32_t id, uint32_t channel, struct err *e);
[[nodiscard]] int stream_send_credit(struct stream *s, uint32_t id, uint32_t bytes, struct err *e);

/* How the main process ended: its status, or a signal when that is not 0. */
[[nodiscard]] int stream_send_exited(struct stream *s, uint32_t id, uint32_t status, uint32_t signal,
				     struct err *e);

/* text: one sentence, cut at what the message holds. */
[[nodiscard]] int stream_send_failed(struct stream *s, uint32_t id, uint32_t status, const char *text,
				     struct err *e);

/* Room for the bytes of the next stream_send_data(), FRAME_DATA_MAX of them; owned by the stream. */
uint8_t *stream_data_room(struct stream *s);

/* Sends the first n bytes of that room as Data, 1 to FRAME_DATA_MAX of them. */
[[nodiscard]] int stream_send_data(struct stream *s, uint32_t id, uint32_t channel, size_t n, struct err *e);

#endif
