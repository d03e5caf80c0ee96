#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "spec/id.h"

static void test_made_ids(void **)
{
	struct err e = ERR_INIT;
	char first[ID_SIZE];
	char second[ID_SIZE];
	assert_int_equal(id_make(first, &e), 0);
	assert_int_equal(id_make(second, &e), 0);
	assert_true(id_valid(first));
	assert_true(id_valid(second));
	assert_string_not_equal(first, second);
}

static void test_validity(void **)
{
	static const struct {
		const char *id;
		bool valid;
	} rows[] = {
		{"er01234567", true},   {"erabcdef89", true},
		{"er00000000", true},   {"", false},
		{"er", false},          {"er12345", false},
		{"er1234567", false},   {"er123456789", false},
		{"xx12345678", false},  {"er1234567g", false},
		{"er../../etc", false}, {"er../../et", false},
		{"ER12345678", false},  {"er1234567A", false},
		{"er12345678/", false}, {" er12345678", false},
		{"er1234567\n", false}, {"er12345678\n", false},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (id_valid(rows[i].id) != rows[i].valid)
			fail_msg("\"%s\" should be %s", rows[i].id, rows[i].valid ? "an id" : "no id");
}

static void test_lowest_slot_first(void **)
{
	struct slots s = SLOTS_INIT;
	for (int i = 0; i < 100; i++)
		assert_int_equal(slots_take(&s, 100), i);
	assert_int_equal(slots_take(&s, 100), -ENOSPC);
	slots_release(&s, 70);
	slots_release(&s, 3);
	assert_int_equal(slots_take(&s, 100), 3);
	assert_int_equal(slots_take(&s, 100), 70);
	assert_int_equal(slots_take(&s, 100), -ENOSPC);
	assert_int_equal(slots_take(&s, 101), 100);
}

static void test_release_of_what_is_not_taken(void **)
{
	struct slots s = SLOTS_INIT;
	assert_int_equal(slots_take(&s, 2), 0);
	slots_release(&s, 0);
	slots_release(&s, 0);
	slots_release(&s, 1);
	slots_release(&s, SLOTS_MAX);
	slots_release(&s, UINT32_MAX);
	assert_int_equal(slots_take(&s, 2), 0);
	assert_int_equal(slots_take(&s, 2), 1);
	assert_int_equal(slots_take(&s, 2), -ENOSPC);
}

static void test_marked_slots(void **)
{
	struct slots s = SLOTS_INIT;
	slots_mark(&s, 0);
	slots_mark(&s, 2);
	slots_mark(&s, 2);
	slots_mark(&s, SLOTS_MAX);
	slots_mark(&s, UINT32_MAX);
	assert_int_equal(slots_take(&s, 4), 1);
	assert_int_equal(slots_take(&s, 4), 3);
	assert_int_equal(slots_take(&s, 4), -ENOSPC);
	assert_int_equal(slots_take(&s, 0), -ENOSPC);
}

static void test_capacity_past_the_end(void **)
{
	struct slots s;
	memset(&s, 0xff, sizeof(s));
	assert_int_equal(slots_take(&s, UINT32_MAX), -ENOSPC);
	slots_release(&s, SLOTS_MAX - 1);
	assert_int_equal(slots_take(&s, SLOTS_MAX - 1), -ENOSPC);
	assert_int_equal(slots_take(&s, UINT32_MAX), SLOTS_MAX - 1);
}

static void test_uids(void **)
{
	assert_int_equal(slot_uid_first(900'000, 0), 965'536);
	assert_int_equal(slot_uid_first(900'000, 1), 1'031'072);
	assert_int_equal(slot_uid_vm(900'000, 7), 900'007);
	assert_int_equal(slot_uid_conduit(900'000, 7), 901'031);
	assert_int_equal(slot_uid_dns(900'000, 7), 902'055);
	assert_int_equal(slot_uid_relay(900'000, 7), 903'079);
	/* No two helpers of any slots share an id, and none lies in the ids of a sandbox. */
	assert_true(slot_uid_vm(1000, SLOTS_MAX - 1) < slot_uid_conduit(1000, 0));
	assert_true(slot_uid_conduit(1000, SLOTS_MAX - 1) < slot_uid_dns(1000, 0));
	assert_true(slot_uid_dns(1000, SLOTS_MAX - 1) < slot_uid_relay(1000, 0));
	assert_true(slot_uid_relay(1000, SLOTS_MAX - 1) < slot_uid_first(1000, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_made_ids),
		cmocka_unit_test(test_validity),
		cmocka_unit_test(test_lowest_slot_first),
		cmocka_unit_test(test_release_of_what_is_not_taken),
		cmocka_unit_test(test_marked_slots),
		cmocka_unit_test(test_capacity_past_the_end),
		cmocka_unit_test(test_uids),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
