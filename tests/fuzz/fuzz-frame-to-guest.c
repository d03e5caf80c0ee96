/* Frames towards the guest: what decodes encodes, and decodes again to the same bytes. */
#include "check-data.h"

struct work {
	ermite_ToGuest first, second;
	uint8_t bytes[2][FRAME_HEAD + sizeof(ermite_ToGuest) + 64];
};

static void check_message(struct work *w, const uint8_t *message, size_t message_n)
{
	struct err e = ERR_INIT;
	int r = frame_to_guest_decode(message, message_n, &w->first, &e);
	REQUIRE(r == e.code && (r == 0) == (e.msg[0] == '\0'));
	if (r < 0) {
		check_data(message, message_n, NULL, NULL, 0);
		return;
	}
	ptrdiff_t n = frame_to_guest_encode(&w->first, w->bytes[0], sizeof(w->bytes[0]));
	REQUIRE(n > FRAME_HEAD);
	REQUIRE(frame_to_guest_decode(w->bytes[0] + FRAME_HEAD, (size_t)n - FRAME_HEAD, &w->second, &e) == 0);
	REQUIRE(frame_to_guest_encode(&w->second, w->bytes[1], sizeof(w->bytes[1])) == n);
	REQUIRE(memcmp(w->bytes[0], w->bytes[1], (size_t)n) == 0);
	bool is_data = w->first.which_message == ermite_ToGuest_data_tag;
	check_data(message, message_n, is_data ? &w->first.message.data : NULL, w->bytes[0], (size_t)n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct work *w = calloc(1, sizeof(*w));
	REQUIRE(w);
	const uint8_t *message = NULL;
	size_t message_n = 0, frame_n = 0;
	struct err e = ERR_INIT;
	while (frame_next(data, size, &message, &message_n, &frame_n, &e) == 1) {
		REQUIRE(message == data + FRAME_HEAD && frame_n == FRAME_HEAD + message_n && frame_n <= size);
		check_message(w, message, message_n);
		REQUIRE(frame_next(data, frame_n - 1, &message, &message_n, &frame_n, &e) == 0);
		data += frame_n;
		size -= frame_n;
	}
	free(w);
	return 0;
}
