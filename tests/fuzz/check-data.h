/*
 * Data is the one message that is also read and written without nanopb: both ways have to agree, always.
 */
#ifndef ERMITE_TESTS_CHECK_DATA_H
#define ERMITE_TESTS_CHECK_DATA_H

#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "wire/frame.h"

/* A message as received. decoded: what nanopb made of it, NULL when that is not Data; encoded: that as nanopb writes
 * it, with the frame's length. */
static inline void check_data(const uint8_t *message, size_t message_n, const ermite_Data *decoded,
			      const uint8_t *encoded, size_t encoded_n)
{
	uint32_t id = 0, channel = 0;
	const uint8_t *bytes = NULL;
	size_t bytes_n = 0;
	int peeked = frame_data_peek(message, message_n, &id, &channel, &bytes, &bytes_n);
	if (!decoded || decoded->bytes.size == 0) {
		REQUIRE(peeked == 0);
		return;
	}
	bool same =
		encoded_n == FRAME_HEAD + message_n && memcmp(encoded + FRAME_HEAD, message, message_n) == 0;
	REQUIRE(peeked == same);
	if (peeked) {
		REQUIRE(id == decoded->id && channel == decoded->channel && bytes_n == decoded->bytes.size);
		REQUIRE(bytes >= message && bytes + bytes_n == message + message_n);
		REQUIRE(memcmp(bytes, decoded->bytes.bytes, bytes_n) == 0);
	}
	uint8_t head[FRAME_DATA_HEAD_MAX];
	size_t head_n = frame_data_head(decoded->id, decoded->channel, decoded->bytes.size, head);
	REQUIRE(head_n + decoded->bytes.size == encoded_n && memcmp(head, encoded, head_n) == 0);
}

#endif
