/*
 * Frames of the stream: a 4-byte little-endian length and one protobuf message of at most FRAME_MAX bytes.
 *
 * frame_next() finds whole frames in received bytes; frame_*_decode() and frame_*_encode() turn them into the structs
 * that nanopb generates from proto/stream.proto and back. Pure bytes: no descriptors, no clock, no heap.
 */
#ifndef ERMITE_WIRE_FRAME_H
#define ERMITE_WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "stream.pb.h"

#define FRAME_HEAD          4
#define FRAME_MAX           1048576u /* the protocol's limit; a frame that decodes is smaller */
#define FRAME_DATA_MAX      61440u   /* bytes of one Data or Strings message, as in stream.options */
#define FRAME_DATA_HEAD_MAX 20       /* most bytes in front of those of a Data frame */
#define FRAME_STRINGS_MAX   1048576u /* bytes of all Strings before one Start */
#define FRAME_WINDOW        524288u /* bytes a sender may have under way on one channel before it gets credit */

/* Looks at n received bytes. Returns 1 and the message's place (borrowed, inside p) and the bytes the whole frame
 * takes; 0 when more bytes are needed; -EPROTO when the length is 0 or above FRAME_MAX. */
[[nodiscard]] int frame_next(const uint8_t *p, size_t n, const uint8_t **ret_message, size_t *ret_message_n,
			     size_t *ret_frame_n, struct err *e);

/* Decodes a message from a guest, and checks what every reader relies on: one member set, channel 0..2, no zero byte
 * inside texts (nanopb ends them), status at most 255, signal at most 64 and not beside a status, credit
 * 1..FRAME_WINDOW. Returns 0 or -EPROTO. *ret is clobbered on failure (it is large and reused). */
[[nodiscard]] int frame_to_host_decode(const uint8_t *p, size_t n, ermite_ToHost *ret, struct err *e);

/* Decodes a message from the host, checked likewise: also a known kind, signal 1..64, rows and columns of 16 bits, and
 * no more strings than FRAME_STRINGS_MAX bytes can hold. */
[[nodiscard]] int frame_to_guest_decode(const uint8_t *p, size_t n, ermite_ToGuest *ret, struct err *e);

/* Looks whether a message of either direction is Data as frame_data_head() writes it. Returns 1 with the id, the
 * channel (0..2) and the place of the bytes (borrowed, inside p; 1..FRAME_DATA_MAX of them): nothing was copied, and
 * the decoders would return the same. Returns 0 for everything else, which is the decoders' to judge. */
[[nodiscard]] int frame_data_peek(const uint8_t *p, size_t n, uint32_t *ret_id, uint32_t *ret_channel,
				  const uint8_t **ret_bytes, size_t *ret_bytes_n);

/* Encodes with the length in front into p of size bytes. Returns the bytes used or -EMSGSIZE. */
[[nodiscard]] ptrdiff_t frame_to_host_encode(const ermite_ToHost *m, uint8_t *p, size_t size);
[[nodiscard]] ptrdiff_t frame_to_guest_encode(const ermite_ToGuest *m, uint8_t *p, size_t size);

/* Writes what stands in front of the n bytes (1..FRAME_DATA_MAX) of a Data frame in either direction, the frame's
 * length included, so that the bytes need no copy. Returns the bytes used. The whole equals what the encoders write. */
size_t frame_data_head(uint32_t id, uint32_t channel, size_t n, uint8_t p[static FRAME_DATA_HEAD_MAX]);

/* Walks n bytes of zero-ended strings: returns the one at *at (borrowed) and moves *at past its end; NULL at the end
 * or when the last one has no zero. */
const char *frame_string_next(const char *strings, size_t n, size_t *at);

#endif
