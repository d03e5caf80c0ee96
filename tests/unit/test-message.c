#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "spec/message.h"

enum { C = SENDER_CLIENT, G = SENDER_CONDUIT, K = SENDER_KEEPER, H = SENDER_HELPER };

static const struct {
	const char *name;
	uint32_t type;
	unsigned senders;
	uint32_t fds_min, fds_max;
} rows[] = {
	{"unknown", 0, 0, 0, 0},
	{"START", MESSAGE_START, C | K, 2, 4},
	{"SIGNAL", MESSAGE_SIGNAL, C | K, 0, 0},
	{"RESIZE", MESSAGE_RESIZE, C | K, 0, 0},
	{"SECRETS", MESSAGE_SECRETS, C | K, 1, 1},
	{"CANCEL", MESSAGE_CANCEL, C, 0, 0},
	{"DELETE", MESSAGE_DELETE, C, 0, 0},
	{"CONNECTED", MESSAGE_CONNECTED, G, 0, 0},
	{"SYSTEM_READY", MESSAGE_SYSTEM_READY, G, 0, 0},
	{"STARTED", MESSAGE_STARTED, G | K, 0, 0},
	{"EXITED", MESSAGE_EXITED, G | K, 0, 0},
	{"FAILED", MESSAGE_FAILED, G | K, 0, 0},
	{"PROTOCOL", MESSAGE_PROTOCOL, G, 0, 0},
	{"CLOSED", MESSAGE_CLOSED, G, 0, 0},
	{"COUNT", MESSAGE_COUNT, G, 0, 0},
	{"DIAL", MESSAGE_DIAL, H, 0, 0},
	{"SOCKETS", MESSAGE_SOCKETS, K, 0, 16},
	{"RESOLVERS", MESSAGE_RESOLVERS, K, 0, 0},
	{"CREATED", MESSAGE_CREATED, K, 0, 0},
	{"WARNING", MESSAGE_WARNING, K, 0, 0},
	{"RESULT", MESSAGE_RESULT, K, 1, 1},
	{"ERROR", MESSAGE_ERROR, K, 0, 0},
	{"unknown", MESSAGE_TYPES, 0, 0, 0},
	{"unknown", UINT32_MAX, 0, 0, 0},
};

/* Every type with every sender: only the pairs of the table pass. */
static void test_table(void **)
{
	static const enum message_sender senders[] = {SENDER_CLIENT, SENDER_CONDUIT, SENDER_KEEPER,
						      SENDER_HELPER};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint32_t min = 99;
		uint32_t max = 99;
		message_fds(rows[i].type, &min, &max);
		assert_int_equal(min, rows[i].fds_min);
		assert_int_equal(max, rows[i].fds_max);
		assert_string_equal(message_name(rows[i].type), rows[i].name);
		for (size_t j = 0; j < 4; j++)
			if (message_permitted(rows[i].type, senders[j]) !=
			    ((rows[i].senders & senders[j]) != 0))
				fail_msg("%s from sender %d", rows[i].name, (int)senders[j]);
	}
}

/* The table above has a row for every type there is. */
static void test_complete(void **)
{
	for (uint32_t type = 1; type < MESSAGE_TYPES; type++) {
		bool found = false;
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			found |= rows[i].type == type;
		assert_true(found);
		assert_string_not_equal(message_name(type), "unknown");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_complete),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
