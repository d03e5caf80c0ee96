/* wire/frame.h: framing, round trips, what the decoders refuse, and Data without copies. */
#include "wire/frame.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/scope.h"

/* Messages are large: one of each kind on the heap. */
struct fixture {
	ermite_ToHost to_host;
	ermite_ToGuest to_guest;
	uint8_t bytes[FRAME_HEAD + sizeof(ermite_ToHost) + 64];
};

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct fixture));
	return *state ? 0 : -1;
}

static int teardown(void **state)
{
	free(*state);
	return 0;
}

static void test_next(void **)
{
	static const struct {
		uint8_t bytes[8];
		size_t n;
		int result;
		size_t message_n;
	} table[] = {
		{{0}, 0, 0, 0},
		{{1, 0, 0}, 3, 0, 0},
		{{1, 0, 0, 0}, 4, 0, 0},
		{{1, 0, 0, 0, 9}, 5, 1, 1},
		{{2, 0, 0, 0, 9}, 5, 0, 0},
		{{2, 0, 0, 0, 9, 8, 7}, 7, 1, 2},
		{{0, 0, 0, 0}, 4, -EPROTO, 0},
		{{0, 0, 16, 0}, 4, 0, 0},
		{{1, 0, 16, 0}, 4, -EPROTO, 0},
		{{255, 255, 255, 255}, 4, -EPROTO, 0},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		const uint8_t *message = NULL;
		size_t message_n = 0, frame_n = 0;
		struct err e = ERR_INIT;
		assert_int_equal(frame_next(table[i].bytes, table[i].n, &message, &message_n, &frame_n, &e),
				 table[i].result);
		assert_int_equal(message_n, table[i].message_n);
		if (table[i].result == 1) {
			assert_ptr_equal(message, table[i].bytes + FRAME_HEAD);
			assert_int_equal(frame_n, FRAME_HEAD + message_n);
		}
		assert_int_equal(e.code, table[i].result < 0 ? table[i].result : 0);
	}
}

/* Turns hex digits into bytes. Returns their number. */
static size_t unhex(const char *hex, uint8_t *bytes)
{
	size_t n = strlen(hex) / 2;
	for (size_t i = 0; i < n; i++) {
		const char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
		bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	return n;
}

struct decode_row {
	const char *hex;
	int result;
};

static void test_to_host_checks(void **state)
{
	static const struct decode_row table[] = {
		{"", -EPROTO},               /* no member */
		{"7801", -EPROTO},           /* only an unknown field */
		{"4200", 0},                 /* system ready */
		{"42007801", 0},             /* an unknown field beside a member is skipped */
		{"4001", -EPROTO},           /* a member of the wrong type */
		{"0a050a03616263", 0},       /* hello */
		{"0a050a03610063", -EPROTO}, /* hello with a zero byte inside */
		{"0a050a036162", -EPROTO},   /* hello cut short */
		{"0a0f0a0861626364656667680a03616263",
		 -EPROTO}, /* hello said twice, with a rest of the first */
		{"0a410a3f78787878787878787878787878787878787878787878787878787878787878787878787878787878787"
		 "8787878787878787878787878787878787878787878",
		 0}, /* the longest hello */
		{"0a420a4078787878787878787878787878787878787878787878787878787878787878787878787878787878787"
		 "878787878787878787878787878787878787878787878",
		 -EPROTO},                               /* one byte more */
		{"120808011080d0acf30e", 0},             /* started */
		{"120b1080808080808080808002", -EPROTO}, /* a varint of more than 64 bits */
		{"1a07080110021a0161", 0},               /* data on channel 2 */
		{"1a07080110031a0161", -EPROTO},         /* channel 3 */
		{"1a0408011001", 0},                     /* data without bytes */
		{"220408011002", 0},                     /* the end of channel 2 */
		{"220408011003", -EPROTO},               /* channel 3 */
		{"2a080801100118808020", 0},             /* credit of the whole window */
		{"2a080801100118818020", -EPROTO},       /* one more */
		{"2a0408011001", -EPROTO},               /* credit of nothing */
		{"2a06080110031801", -EPROTO},           /* channel 3 */
		{"3205080110ff01", 0},                   /* status 255 */
		{"32050801108002", -EPROTO},             /* status 256 */
		{"320408011840", 0},                     /* signal 64 */
		{"320408011841", -EPROTO},               /* signal 65 */
		{"3206080110011809", -EPROTO},           /* a status and a signal */
		{"3a080801107f1a026e6f", 0},             /* failed */
		{"3a0908011080021a026e6f", -EPROTO},     /* status 256 */
		{"3a080801107f1a02006f", -EPROTO},       /* a zero byte inside */
		{"4a020801", -EPROTO},                   /* no such member */
	};
	struct fixture *f = *state;
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		uint8_t bytes[512];
		size_t n = unhex(table[i].hex, bytes);
		struct err e = ERR_INIT;
		assert_int_equal(frame_to_host_decode(bytes, n, &f->to_host, &e), table[i].result);
		assert_int_equal(e.code, table[i].result);
	}
}

static void test_to_guest_checks(void **state)
{
	static const struct decode_row table[] = {
		{"", -EPROTO},                               /* no member */
		{"0a050a03616263", 0},                       /* hello */
		{"0a050a03610063", -EPROTO},                 /* hello with a zero byte inside */
		{"120408011002", 0},                         /* start of kind 2 */
		{"120408011003", -EPROTO},                   /* kind 3 */
		{"120d080110ffffffffffffffffff01", -EPROTO}, /* a negative kind */
		{"120a08011880804020808040", 0},             /* as many strings as bytes may come */
		{"1206080118818040", -EPROTO},               /* one argument more */
		{"1206080120818040", -EPROTO},               /* one variable more */
		{"120840ffff0348ffff03", 0},                 /* the largest terminal */
		{"120440808004", -EPROTO},                   /* one row more */
		{"120448808004", -EPROTO},                   /* one column more */
		{"12092a03612f6232022f78", 0},               /* a user and a directory */
		{"12052a03610062", -EPROTO},                 /* a zero byte inside the user */
		{"120532032f0062", -EPROTO},                 /* a zero byte inside the directory */
		{"1a0508011a0161", 0},                       /* data on channel 0 */
		{"1a0510031a0161", -EPROTO},                 /* channel 3 */
		{"22020801", 0},                             /* the end of channel 0 */
		{"220610ffffffff0f", -EPROTO},               /* a channel of 32 bits */
		{"2a0410011801", 0},                         /* credit */
		{"2a06100118818020", -EPROTO},               /* credit of more than the window */
		{"320408011001", 0},                         /* signal 1 */
		{"320408011040", 0},                         /* signal 64 */
		{"32020801", -EPROTO},                       /* signal 0 */
		{"320408011041", -EPROTO},                   /* signal 65 */
		{"3a0a080110ffff0318ffff03", 0},             /* resize */
		{"3a06080110808004", -EPROTO},               /* one row more */
		{"42080801120461006200", 0},                 /* strings */
		{"4a00", -EPROTO},                           /* no such member */
	};
	struct fixture *f = *state;
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		uint8_t bytes[512];
		size_t n = unhex(table[i].hex, bytes);
		struct err e = ERR_INIT;
		assert_int_equal(frame_to_guest_decode(bytes, n, &f->to_guest, &e), table[i].result);
		assert_int_equal(e.code, table[i].result);
	}
}

static void test_data_peek(void **)
{
	static const struct {
		const char *hex;
		int result;
		uint32_t id, channel;
		size_t n;
	} table[] = {
		{"1a08080710011a026162", 1, 7, 1, 2},                  /* the usual */
		{"1a041a026162", 1, 0, 0, 2},                          /* zeros are left out */
		{"1a0c08ffffffff0f10021a026162", 1, UINT32_MAX, 2, 2}, /* the largest id and channel */
		{"1a0408071001", 0, 0, 0, 0},                          /* no bytes */
		{"1a06080710011a00", 0, 0, 0, 0},                      /* empty bytes */
		{"1a0608001a026162", 0, 0, 0, 0},                      /* a zero that is said */
		{"1a08100108071a026162", 0, 0, 0, 0},                  /* another order */
		{"1a08080710031a026162", 0, 0, 0, 0},                  /* channel 3 */
		{"1a0a0880808080101a026162", 0, 0, 0, 0},              /* an id of 33 bits */
		{"1a070887001a026162", 0, 0, 0, 0},                    /* a longer form of the id */
		{"1a061a0261621001", 0, 0, 0, 0},                      /* something behind the bytes */
		{"1a041a0261627801", 0, 0, 0, 0},                      /* something behind the message */
		{"1a041a0261", 0, 0, 0, 0},                            /* cut short */
		{"1a041a036162", 0, 0, 0, 0},                          /* bytes past the end */
		{"220408071001", 0, 0, 0, 0},                          /* another member */
		{"1a", 0, 0, 0, 0},                                    /* a key alone */
		{"", 0, 0, 0, 0},                                      /* nothing */
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		uint8_t bytes[512];
		size_t n = unhex(table[i].hex, bytes), data_n = 0;
		uint32_t id = 0, channel = 0;
		const uint8_t *data = NULL;
		assert_int_equal(frame_data_peek(bytes, n, &id, &channel, &data, &data_n), table[i].result);
		assert_int_equal(id, table[i].id);
		assert_int_equal(channel, table[i].channel);
		assert_int_equal(data_n, table[i].n);
		assert_ptr_equal(data, table[i].result ? bytes + n - data_n : NULL);
	}
}

/* The head written by hand and the bytes are what nanopb writes, and peeking finds them again. */
static void test_data_head(void **state)
{
	static const uint32_t ids[] = {0, 1, 127, 128, 16384, UINT32_MAX};
	static const uint32_t sizes[] = {1, 100, 127, 128, 16383, 16384, FRAME_DATA_MAX - 1, FRAME_DATA_MAX};
	struct fixture *f = *state;
	for (size_t i = 0; i < 6 * 8 * 3; i++) {
		uint32_t id = ids[i % 6], size = sizes[i / 6 % 8], channel = (uint32_t)(i / 48);
		f->to_host.which_message = ermite_ToHost_data_tag;
		f->to_host.message.data.id = id;
		f->to_host.message.data.channel = channel;
		f->to_host.message.data.bytes.size = (pb_size_t)size;
		memset(f->to_host.message.data.bytes.bytes, (int)(i + 1), size);
		ptrdiff_t n = frame_to_host_encode(&f->to_host, f->bytes, sizeof(f->bytes));

		uint8_t head[FRAME_DATA_HEAD_MAX];
		size_t head_n = frame_data_head(id, channel, size, head);
		assert_int_equal(n, head_n + size);
		assert_memory_equal(head, f->bytes, head_n);

		uint32_t peeked_id = 0, peeked_channel = 0;
		const uint8_t *data = NULL;
		size_t data_n = 0;
		assert_int_equal(frame_data_peek(f->bytes + FRAME_HEAD, (size_t)n - FRAME_HEAD, &peeked_id,
						 &peeked_channel, &data, &data_n),
				 1);
		assert_int_equal(peeked_id, id);
		assert_int_equal(peeked_channel, channel);
		assert_ptr_equal(data, f->bytes + head_n);
		assert_int_equal(data_n, size);
	}
}

static void round_trip_to_guest(struct fixture *f, const ermite_ToGuest *sent)
{
	const uint8_t *message = NULL;
	size_t message_n = 0, frame_n = 0;
	struct err e = ERR_INIT;
	ptrdiff_t n = frame_to_guest_encode(sent, f->bytes, sizeof(f->bytes));
	assert_true(n > FRAME_HEAD);
	assert_int_equal(frame_to_guest_encode(sent, f->bytes, (size_t)n), n);
	assert_int_equal(frame_to_guest_encode(sent, f->bytes, (size_t)n - 1), -EMSGSIZE);
	assert_int_equal(frame_to_guest_encode(sent, f->bytes, 3), -EMSGSIZE);
	assert_int_equal(frame_to_guest_encode(sent, f->bytes, (size_t)n), n);
	assert_int_equal(frame_next(f->bytes, (size_t)n, &message, &message_n, &frame_n, &e), 1);
	assert_int_equal(frame_n, n);
	assert_int_equal(frame_to_guest_decode(message, message_n, &f->to_guest, &e), 0);
	assert_int_equal(f->to_guest.which_message, sent->which_message);
}

static void test_round_trip(void **state)
{
	struct fixture *f = *state;
	scoped_free ermite_ToGuest *sent = calloc(1, sizeof(*sent));
	assert_non_null(sent);
	sent->which_message = ermite_ToGuest_start_tag;
	ermite_Start *start = &sent->message.start;
	*start = (ermite_Start){
		.id = 7, .kind = ermite_Kind_GET, .argument_count = 2, .rows = 24, .has_stdin = true};
	memset(start->user, 'u', sizeof(start->user) - 1);
	memset(start->workdir, 'w', sizeof(start->workdir) - 1);
	round_trip_to_guest(f, sent);
	assert_memory_equal(&f->to_guest.message.start, start, sizeof(*start));

	memset(sent, 0, sizeof(*sent));
	sent->which_message = ermite_ToGuest_strings_tag;
	sent->message.strings.id = 9;
	sent->message.strings.bytes.size = FRAME_DATA_MAX;
	memset(sent->message.strings.bytes.bytes, 's', FRAME_DATA_MAX);
	round_trip_to_guest(f, sent);
	assert_memory_equal(&f->to_guest.message.strings, &sent->message.strings,
			    sizeof(sent->message.strings));

	/* What nanopb cannot encode is an error, not something shorter. */
	sent->message.strings.bytes.size = FRAME_DATA_MAX + 1;
	assert_int_equal(frame_to_guest_encode(sent, f->bytes, sizeof(f->bytes)), -EMSGSIZE);
	f->to_host.which_message = ermite_ToHost_system_ready_tag;
	f->to_host.message.system_ready = (ermite_SystemReady){0};
	assert_int_equal(frame_to_host_encode(&f->to_host, f->bytes, sizeof(f->bytes)), FRAME_HEAD + 2);
}

static void test_string_next(void **)
{
	static const char strings[] = "one\0\0three\0cut";
	size_t at = 0, n = sizeof(strings) - 1;
	assert_string_equal(frame_string_next(strings, n, &at), "one");
	assert_string_equal(frame_string_next(strings, n, &at), "");
	assert_string_equal(frame_string_next(strings, n, &at), "three");
	assert_null(frame_string_next(strings, n, &at));
	assert_int_equal(at, 11);
	at = n;
	assert_null(frame_string_next(strings, n, &at));
	at = 0;
	assert_null(frame_string_next("", 0, &at));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_next),
		cmocka_unit_test(test_to_host_checks),
		cmocka_unit_test(test_to_guest_checks),
		cmocka_unit_test(test_data_peek),
		cmocka_unit_test(test_data_head),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_string_next),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
