#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/scope.h"
#include "keeper/tell.h"
#include "spec/message.h"

static void test_tell(void **)
{
	int ends[2];
	struct chan_message m;
	assert_int_equal(chan_pair(ends, NULL), 0);
	scoped_fd int keeper = ends[0];
	scoped_fd int client = ends[1];
	tell_text(keeper, MESSAGE_WARNING, "a warning");
	assert_int_equal(chan_receive(client, &m, NULL), 1);
	assert_int_equal(m.type, MESSAGE_WARNING);
	assert_string_equal(m.data, "a warning");
	tell_text(-1, MESSAGE_WARNING, "to nobody");
}

/* The client waits for no message that cannot come: it gets what came before, and the end. */
static void test_cannot_be_sent(void **)
{
	int ends[2];
	struct chan_message m = {.type = MESSAGE_RESULT, .n_fds = 1, .fds = {-1}};
	assert_int_equal(chan_pair(ends, NULL), 0);
	scoped_fd int keeper = ends[0];
	scoped_fd int client = ends[1];
	tell_text(keeper, MESSAGE_WARNING, "before");
	tell(keeper, &m);
	tell_text(keeper, MESSAGE_WARNING, "after");
	assert_int_equal(chan_receive(client, &m, NULL), 1);
	assert_string_equal(m.data, "before");
	assert_int_equal(chan_receive(client, &m, NULL), 0);
	assert_int_equal(chan_receive(keeper, &m, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tell),
		cmocka_unit_test(test_cannot_be_sent),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
