#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "conduit/queue.h"

static void test_limits(void **)
{
	struct err e = ERR_INIT;
	struct queue q = QUEUE_INIT(8);
	uint8_t *room = NULL;
	assert_int_equal(queue_add(&q, "12345678", 8, &e), 0);
	assert_int_equal(queue_add(&q, "9", 1, &e), -ENOBUFS);
	assert_string_equal(e.msg, "more than 8 bytes wait");
	assert_int_equal(queue_room(&q, 0, &room, &e), 0);
	queue_done(&q);
	assert_null(q.p);
	assert_int_equal(queue_room(&q, 8, &room, &e), 0);
	assert_int_equal(queue_room(&q, SIZE_MAX, &room, &e), -ENOBUFS);
	queue_done(&q);
	queue_done(&q);
}

static void test_order(void **)
{
	struct err e = ERR_INIT;
	struct queue q = QUEUE_INIT(100);
	int ends[2];
	char text[64] = "";
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	assert_int_equal(queue_write(&q, ends[1]), 0);
	for (int round = 0; round < 50; round++) {
		uint8_t *room = NULL;
		assert_int_equal(queue_add(&q, "one ", 4, &e), 0);
		assert_int_equal(queue_room(&q, 90, &room, &e), 0);
		memcpy(room, "two", 3);
		queue_added(&q, 3);
		assert_int_equal(queue_write(&q, ends[1]), 7);
		assert_int_equal(read(ends[0], text, sizeof(text)), 7);
		assert_memory_equal(text, "one two", 7);
	}
	close(ends[0]);
	assert_int_equal(queue_add(&q, "x", 1, &e), 0);
	assert_int_equal(queue_write(&q, ends[1]), -EPIPE);
	close(ends[1]);
	queue_done(&q);
}

/* A pipe takes a part at a time; nothing is lost or doubled, and the room in front is used again. */
static void test_blocked(void **)
{
	struct err e = ERR_INIT;
	static uint8_t chunk[3000];
	static uint8_t got[100000];
	struct queue q = QUEUE_INIT(20000);
	int ends[2];
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
	uint64_t sent = 0;
	uint64_t received = 0;
	while (sent < 300000) {
		for (size_t i = 0; i < sizeof(chunk); i++)
			chunk[i] = (uint8_t)((sent + i) % 251);
		int r = queue_add(&q, chunk, sizeof(chunk), &e);
		assert_true(r == 0 || r == -ENOBUFS);
		sent += r == 0 ? sizeof(chunk) : 0;
		assert_true(queue_write(&q, ends[1]) >= 0);
		ssize_t n = read(ends[0], got, 2000);
		for (ssize_t i = 0; i < n; i++)
			assert_int_equal(got[i], (received + (uint64_t)i) % 251);
		received += n > 0 ? (uint64_t)n : 0;
	}
	assert_true(q.n > 0 && received > 200000);
	close(ends[0]);
	close(ends[1]);
	queue_done(&q);
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_blocked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
