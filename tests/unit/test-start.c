#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/scope.h"
#include "client/start.h"
#include "wire/frame.h"

/* Decodes the frames as the executor would: collects the strings, checks the order, returns the Start. */
static ermite_Start decode(const struct buf *frames, struct buf *strings, uint32_t id)
{
	ermite_ToGuest *m = calloc(1, sizeof(*m));
	assert_non_null(m);
	const uint8_t *p = (const uint8_t *)frames->p;
	ermite_Start start = {0};
	for (size_t at = 0; at < frames->n;) {
		const uint8_t *message = NULL;
		size_t message_n = 0;
		size_t frame_n = 0;
		assert_int_equal(frame_next(p + at, frames->n - at, &message, &message_n, &frame_n, NULL), 1);
		assert_int_equal(frame_to_guest_decode(message, message_n, m, NULL), 0);
		at += frame_n;
		if (at < frames->n) {
			assert_int_equal(m->which_message, ermite_ToGuest_strings_tag);
			assert_int_equal(m->message.strings.id, id);
			buf_add(strings, m->message.strings.bytes.bytes, m->message.strings.bytes.size);
		} else {
			assert_int_equal(m->which_message, ermite_ToGuest_start_tag);
			start = m->message.start;
		}
	}
	free(m);
	return start;
}

static void everything_arrives(void **)
{
	char *const arguments[] = {(char[]){"sh"}, (char[]){"-c"}, (char[]){""}, NULL};
	char *const environment[] = {(char[]){"A=1"}, (char[]){"B="}, NULL};
	const struct start_request s = {.id = 7,
					.kind = ermite_Kind_GET,
					.arguments = arguments,
					.environment = environment,
					.user = "runner",
					.workdir = "/home/runner/work",
					.has_stdin = true,
					.terminal = true,
					.rows = 24,
					.columns = 80};
	scoped_buf struct buf frames = BUF_INIT(START_FRAMES_MAX);
	scoped_buf struct buf strings = BUF_INIT(FRAME_STRINGS_MAX);
	struct err e = ERR_INIT;
	assert_int_equal(start_encode(&s, &frames, &e), 0);
	ermite_Start start = decode(&frames, &strings, 7);
	static const char expected[] = "sh\0-c\0\0A=1\0B=";
	assert_int_equal(strings.n, sizeof(expected));
	assert_memory_equal(strings.p, expected, sizeof(expected));
	assert_int_equal(start.id, 7);
	assert_int_equal(start.kind, ermite_Kind_GET);
	assert_int_equal(start.argument_count, 3);
	assert_int_equal(start.environment_count, 2);
	assert_string_equal(start.user, "runner");
	assert_string_equal(start.workdir, "/home/runner/work");
	assert_true(start.has_stdin);
	assert_true(start.terminal);
	assert_int_equal(start.rows, 24);
	assert_int_equal(start.columns, 80);
}

static void nothing_is_enough(void **)
{
	char *const none[] = {NULL};
	const struct start_request s = {.id = 1, .arguments = none, .user = "", .workdir = ""};
	scoped_buf struct buf frames = BUF_INIT(START_FRAMES_MAX);
	scoped_buf struct buf strings = BUF_INIT(FRAME_STRINGS_MAX);
	assert_int_equal(start_encode(&s, &frames, NULL), 0);
	ermite_Start start = decode(&frames, &strings, 1);
	assert_int_equal(strings.n, 0);
	assert_int_equal(start.argument_count, 0);
	assert_false(start.has_stdin);
}

/* One below, at and above the most that all strings together may have. */
static void long_strings(void **)
{
	static const struct {
		size_t n; /* bytes of the strings with their ends */
		int expected;
	} rows[] = {
		{FRAME_DATA_MAX, 0},    {FRAME_DATA_MAX + 1, 0},         {FRAME_STRINGS_MAX - 1, 0},
		{FRAME_STRINGS_MAX, 0}, {FRAME_STRINGS_MAX + 1, -E2BIG},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *text = calloc(1, rows[i].n);
		assert_non_null(text);
		memset(text, 'x', rows[i].n - 1);
		char *const arguments[] = {text, NULL};
		const struct start_request s = {.id = 1, .arguments = arguments, .user = "", .workdir = ""};
		scoped_buf struct buf frames = BUF_INIT(START_FRAMES_MAX);
		scoped_buf struct buf strings = BUF_INIT(FRAME_STRINGS_MAX);
		struct err e = ERR_INIT;
		assert_int_equal(start_encode(&s, &frames, &e), rows[i].expected);
		if (rows[i].expected == 0) {
			assert_int_equal(decode(&frames, &strings, 1).argument_count, 1);
			assert_int_equal(strings.n, rows[i].n);
			assert_memory_equal(strings.p, text, rows[i].n);
		} else {
			assert_string_equal(e.msg, "the command with its environment is 1048577 bytes long: "
						   "at most 1048576 are accepted");
		}
		free(text);
	}
}

static void long_names(void **)
{
	char user[65];
	char workdir[4097];
	char *const none[] = {NULL};
	struct start_request s = {.id = 1, .arguments = none, .user = user, .workdir = workdir};
	memset(user, 'u', sizeof(user));
	memset(workdir, 'w', sizeof(workdir));
	user[63] = '\0';
	workdir[4095] = '\0';
	assert_int_equal(start_check(&s, NULL), 0);
	user[63] = 'u';
	user[64] = '\0';
	assert_int_equal(start_check(&s, NULL), -E2BIG);
	s.user = "";
	workdir[4095] = 'w';
	workdir[4096] = '\0';
	assert_int_equal(start_check(&s, NULL), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_arrives),
		cmocka_unit_test(nothing_is_enough),
		cmocka_unit_test(long_strings),
		cmocka_unit_test(long_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
