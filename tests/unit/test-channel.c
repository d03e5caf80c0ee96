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

#include "base/scope.h"
#include "conduit/channel.h"
#include "fds.h"
#include "wire/frame.h"

#define PIPE_BYTES 4096

struct world {
	struct loop *loop;
	struct sink sink;
	int reader;
	int moved;
	struct mask *mask;
};

static int moved(void *data, struct err *)
{
	struct world *w = data;
	w->moved++;
	loop_stop(w->loop);
	return 0;
}

/* A sink with a pipe of one page, and a mask when secrets are given. */
static void setup(struct world *w, const char *secret)
{
	struct err e = ERR_INIT;
	int ends[2];
	size_t ignored = 0;
	*w = (struct world){.loop = loop_new()};
	assert_non_null(w->loop);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
	w->reader = ends[0];
	if (secret)
		assert_int_equal(mask_new(secret, strlen(secret) + 1, &w->mask, &ignored, &e), 0);
	struct mask_stream *stream = secret ? mask_stream_new(w->mask) : NULL;
	assert_int_equal(sink_open(&w->sink, ends[1], stream, &(struct sink_owner){w->loop, moved, w}, &e),
			 0);
	assert_true(fcntl(ends[1], F_GETFL) & O_NONBLOCK);
}

static void teardown(struct world *w)
{
	sink_done(&w->sink);
	loop_free(w->loop);
	mask_free(w->mask);
	fd_close(&w->reader);
}

static void send_bytes(struct world *w, const void *p, size_t n)
{
	struct err e = ERR_INIT;
	assert_int_equal(sink_charge(&w->sink, n, &e), 0);
	assert_int_equal(sink_give(&w->sink, p, n, &e), 0);
}

static void expect(struct world *w, const char *text)
{
	char got[256];
	ssize_t n = read(w->reader, got, sizeof(got) - 1);
	assert_true(n >= 0);
	got[n] = '\0';
	assert_string_equal(got, text);
}

static void test_plain(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct world w;
	setup(&w, NULL);
	send_bytes(&w, "hello", 5);
	expect(&w, "hello");
	assert_null(w.sink.source);
	assert_null(w.sink.kept.p);
	assert_false(sink_is_done(&w.sink));
	assert_int_equal(sink_end(&w.sink, &e), 0);
	assert_int_equal(sink_end(&w.sink, &e), 0);
	assert_true(sink_is_done(&w.sink));
	expect(&w, "");
	assert_int_equal(w.sink.relayed, 5);
	assert_int_equal(sink_charge(&w.sink, 1, &e), -EPROTO);
	assert_string_equal(e.msg, "after the end of the channel");
	teardown(&w);
	assert_int_equal(fds_open(), before);
}

/* What the pipe does not take is kept, in order, up to the window; credit follows what has gone. */
static void test_slow_reader(void **)
{
	static uint8_t all[FRAME_WINDOW + 1];
	static uint8_t got[PIPE_BYTES];
	struct err e = ERR_INIT;
	struct world w;
	setup(&w, NULL);
	for (size_t i = 0; i < sizeof(all); i++)
		all[i] = (uint8_t)(i % 253);
	assert_int_equal(sink_charge(&w.sink, FRAME_WINDOW + 1, &e), -EPROTO);
	assert_string_equal(e.msg, "524289 bytes with credit for 524288");
	send_bytes(&w, all, FRAME_WINDOW);
	assert_int_equal(sink_charge(&w.sink, 1, &e), -EPROTO);
	assert_int_equal(w.sink.kept.n, FRAME_WINDOW - PIPE_BYTES);
	assert_int_equal(sink_grant(&w.sink), 0);
	assert_int_equal(sink_end(&w.sink, &e), 0);
	assert_false(sink_is_done(&w.sink));
	w.sink.ended = false; /* to see credit */
	uint64_t granted = 0;
	size_t received = 0;
	while (received < FRAME_WINDOW) {
		ssize_t n = read(w.reader, got, sizeof(got));
		assert_true(n > 0);
		assert_memory_equal(got, all + received, (size_t)n);
		received += (size_t)n;
		granted += sink_grant(&w.sink);
		assert_true(granted <= received + PIPE_BYTES);
		if (received < FRAME_WINDOW)
			assert_int_equal(loop_run(w.loop, &e), 0);
	}
	granted += sink_grant(&w.sink);
	assert_int_equal(granted, FRAME_WINDOW);
	assert_int_equal(w.sink.window, FRAME_WINDOW);
	assert_null(w.sink.kept.p);
	assert_true(w.moved > 100);
	assert_int_equal(w.sink.relayed, FRAME_WINDOW);
	teardown(&w);
}

static void test_closes_when_drained(void **)
{
	static uint8_t all[3 * PIPE_BYTES];
	static uint8_t got[PIPE_BYTES];
	struct err e = ERR_INIT;
	struct world w;
	setup(&w, NULL);
	send_bytes(&w, all, sizeof(all));
	assert_int_equal(sink_end(&w.sink, &e), 0);
	while (!sink_is_done(&w.sink)) {
		assert_int_equal(read(w.reader, got, sizeof(got)), PIPE_BYTES);
		assert_int_equal(loop_run(w.loop, &e), 0);
	}
	assert_int_equal(read(w.reader, got, sizeof(got)), PIPE_BYTES);
	assert_int_equal(read(w.reader, got, sizeof(got)), 0);
	teardown(&w);
}

/* The reader goes: at once when nothing is kept, or while bytes are. Then all is thrown away, with credit. */
static void test_reader_gone(void **)
{
	static uint8_t all[FRAME_WINDOW / 2];
	for (int kept = 0; kept < 2; kept++) {
		struct err e = ERR_INIT;
		struct world w;
		setup(&w, NULL);
		if (kept)
			send_bytes(&w, all, 2 * PIPE_BYTES);
		fd_close(&w.reader);
		if (kept)
			assert_int_equal(loop_run(w.loop, &e), 0);
		send_bytes(&w, all, sizeof(all));
		assert_true(sink_is_done(&w.sink));
		assert_int_equal(sink_grant(&w.sink), sizeof(all) + (kept ? 2 * PIPE_BYTES : 0));
		assert_int_equal(w.sink.relayed, kept ? PIPE_BYTES : 0);
		assert_int_equal(sink_end(&w.sink, &e), 0);
		teardown(&w);
	}
}

static void test_no_pipe(void **)
{
	struct err e = ERR_INIT;
	struct world w = {.reader = -1, .loop = loop_new()};
	assert_int_equal(sink_open(&w.sink, -1, NULL, &(struct sink_owner){w.loop, moved, &w}, &e), 0);
	assert_true(sink_is_done(&w.sink));
	send_bytes(&w, "gone", 4);
	assert_int_equal(w.sink.relayed, 0);
	teardown(&w);
}

static void test_masked(void **)
{
	struct err e = ERR_INIT;
	struct world w;
	setup(&w, "s3cret-word");
	const char *text = "a s3cret-word b s3cret-w";
	for (size_t i = 0; text[i]; i++)
		send_bytes(&w, text + i, 1);
	expect(&w, "a *** b ");
	assert_int_equal(sink_end(&w.sink, &e), 0);
	expect(&w, "s3cret-w");
	expect(&w, "");
	teardown(&w);
}

static int read_input(void *data, int fd, uint32_t, struct err *)
{
	struct world *w = data;
	char byte;
	w->moved++;
	assert_int_equal(read(fd, &byte, 1), 1);
	loop_stop(w->loop);
	return 0;
}

static void test_feed(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct world w = {.loop = loop_new()};
	struct feed f = FEED_INIT;
	int ends[2];
	assert_int_equal(feed_credit(&f, 1, &e), -EPROTO);
	assert_string_equal(e.msg, "there is no input");
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(feed_open(&f, w.loop, ends[0], read_input, &w, &e), 0);
	assert_int_equal(feed_credit(&f, 1, &e), -EPROTO);
	assert_string_equal(e.msg, "credit of 1 where only 0 were under way");
	assert_int_equal(feed_watch(&f, true, &e), 0);
	assert_non_null(f.source);
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.moved, 1);
	assert_int_equal(feed_watch(&f, false, &e), 0);
	assert_null(f.source);
	f.window = 0;
	assert_int_equal(feed_watch(&f, true, &e), 0);
	assert_null(f.source);
	assert_int_equal(feed_credit(&f, FRAME_WINDOW, &e), 0);
	assert_int_equal(feed_credit(&f, 1, &e), -EPROTO);
	f.window = FRAME_WINDOW - 5;
	assert_int_equal(feed_watch(&f, true, &e), 0);
	feed_close(&f);
	feed_close(&f);
	assert_int_equal(feed_watch(&f, true, &e), 0);
	assert_null(f.source);
	assert_int_equal(feed_credit(&f, 5, &e), 0);
	close(ends[1]);
	loop_free(w.loop);
	assert_int_equal(fds_open(), before);
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_closes_when_drained),
		cmocka_unit_test(test_reader_gone),
		cmocka_unit_test(test_no_pipe),
		cmocka_unit_test(test_masked),
		cmocka_unit_test(test_feed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
