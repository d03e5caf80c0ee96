/* Needs root. Works in a network namespace of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "fds.h"
#include "net-lab.h"
#include "sys/conntrack.h"
#include "sys/netlink.h"

enum { MANY = 600, FEW = 3 };

#define HERE  0x7f000001u
#define THERE 0x7f000002u

/* Begins n connections from an address. */
static void begin(int netns, uint32_t address, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int fd = lab_socket(netns, SOCK_DGRAM, address, (uint16_t)(20000 + i));
		(void)lab_send(fd, 0x7f000009u, 9, "x");
		(void)close(fd);
	}
}

static void test_forget(void **)
{
	struct err e = ERR_INIT;
	int here = -1;
	lab_enter();
	lab_expect(netns_open(&here, &e), 0, &e);
	lab_run(-1,
		"nft 'table ip t { chain c { type filter hook output priority 0; ct state new accept; }; }'");
	begin(here, HERE, FEW);
	begin(here, THERE, MANY);
	int before = fds_open();
	/* Every one of these, and none of the others. */
	lab_expect(conntrack_forget(-1, THERE, &e), MANY, &e);
	lab_expect(conntrack_forget(-1, THERE, &e), 0, &e);
	lab_expect(conntrack_forget(-1, HERE, &e), FEW, &e);
	assert_int_equal(fds_open(), before);
	(void)close(here);
}

static void test_no_namespace(void **)
{
	struct err e = ERR_INIT;
	assert_true(conntrack_forget(1000, HERE, &e) < 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forget),
		cmocka_unit_test(test_no_namespace),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
