#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/scope.h"
#include "fds.h"
#include "io/loop.h"

/* What the callbacks of one test share. */
struct world {
	struct loop *loop;
	struct source *sources[3];
	int calls[3];
	int signal;
	uint64_t fired_ms;
};

static void setup(struct world *w)
{
	*w = (struct world){.loop = loop_new()};
	assert_non_null(w->loop);
}

static int read_and_stop(void *data, int fd, uint32_t events, struct err *)
{
	struct world *w = data;
	char byte;
	assert_true(events & EPOLLIN);
	assert_int_equal(read(fd, &byte, 1), 1);
	w->calls[0]++;
	loop_stop(w->loop);
	return 0;
}

static void test_fd(void **)
{
	int before = fds_open();
	struct world w;
	struct err e = ERR_INIT;
	int ends[2];
	setup(&w);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(loop_add_fd(w.loop, ends[0], EPOLLIN, read_and_stop, &w, &w.sources[0], &e), 0);
	assert_int_equal(write(ends[1], "ab", 2), 2);
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 1);
	/* The loop runs again after a stop. */
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 2);
	loop_free(w.loop);
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(fds_open(), before);
}

static int note_timer(void *data, struct err *)
{
	struct world *w = data;
	w->calls[0]++;
	w->fired_ms = clock_boot_ms();
	loop_stop(w->loop);
	return 0;
}

static void test_timer(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	setup(&w);
	struct source *never = NULL;
	assert_int_equal(loop_add_timer(w.loop, note_timer, &w, &w.sources[0], &e), 0);
	assert_int_equal(loop_add_timer(w.loop, note_timer, &w, &never, &e), 0);
	uint64_t begin = clock_boot_ms();
	assert_int_equal(loop_arm(w.sources[0], 30, &e), 0);
	assert_int_equal(loop_arm(never, 5, &e), 0);
	assert_int_equal(loop_arm(never, 0, &e), 0);
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 1);
	assert_true(w.fired_ms - begin >= 29);
	loop_free(w.loop);
}

static int note_signal(void *data, int signal, struct err *)
{
	struct world *w = data;
	w->signal = signal;
	w->calls[0]++;
	if (w->calls[0] == 2)
		loop_stop(w->loop);
	return 0;
}

static void test_signals(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	sigset_t set;
	setup(&w);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	assert_int_equal(loop_add_signals(w.loop, &set, note_signal, &w, &w.sources[0], &e), 0);
	assert_int_equal(kill(getpid(), SIGUSR1), 0);
	assert_int_equal(kill(getpid(), SIGUSR2), 0);
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 2);
	assert_int_equal(w.signal, SIGUSR2);
	loop_free(w.loop);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* Whichever of the two comes first removes both. */
static int remove_all(void *data, int, uint32_t, struct err *)
{
	struct world *w = data;
	w->calls[0]++;
	loop_remove(&w->sources[0]);
	loop_remove(&w->sources[1]);
	loop_remove(&w->sources[1]);
	loop_stop(w->loop);
	return 0;
}

static void test_remove_within_callback(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	int ends[2][2];
	setup(&w);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pipe(ends[i]), 0);
		assert_int_equal(write(ends[i][1], "x", 1), 1);
		assert_int_equal(loop_add_fd(w.loop, ends[i][0], EPOLLIN, remove_all, &w, &w.sources[i], &e),
				 0);
	}
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 1);
	assert_null(w.sources[0]);
	assert_null(w.sources[1]);
	for (int i = 0; i < 2; i++) {
		close(ends[i][0]);
		close(ends[i][1]);
	}
	loop_free(w.loop);
}

/* Both are in one batch; the first removes the other and watches the same descriptor anew. */
static int replace_other(void *data, int fd, uint32_t, struct err *e)
{
	struct world *w = data;
	w->calls[0]++;
	for (int i = 0; i < 2; i++)
		loop_remove(&w->sources[i]);
	return loop_add_fd(w->loop, fd, EPOLLIN, read_and_stop, w, &w->sources[2], e);
}

static void test_replace_within_callback(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	int ends[2][2];
	setup(&w);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pipe(ends[i]), 0);
		assert_int_equal(write(ends[i][1], "x", 1), 1);
		assert_int_equal(
			loop_add_fd(w.loop, ends[i][0], EPOLLIN, replace_other, &w, &w.sources[i], &e), 0);
	}
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 2);
	loop_free(w.loop);
	for (int i = 0; i < 2; i++) {
		close(ends[i][0]);
		close(ends[i][1]);
	}
}

static int note_hang_up(void *data, int, uint32_t events, struct err *)
{
	struct world *w = data;
	assert_true(events & EPOLLHUP);
	assert_false(events & EPOLLIN);
	w->calls[0]++;
	loop_stop(w->loop);
	return 0;
}

static void test_events_change(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	int ends[2];
	setup(&w);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(loop_add_fd(w.loop, ends[0], EPOLLIN, note_hang_up, &w, &w.sources[0], &e), 0);
	assert_int_equal(loop_set_events(w.sources[0], 0, &e), 0);
	assert_int_equal(loop_set_events(w.sources[0], 0, &e), 0);
	close(ends[1]);
	assert_int_equal(loop_run(w.loop, &e), 0);
	assert_int_equal(w.calls[0], 1);
	loop_free(w.loop);
	close(ends[0]);
}

static int end_with_error(void *, struct err *e)
{
	return err_set(e, -ENODATA, "enough");
}

static void test_errors(void **)
{
	struct world w;
	struct err e = ERR_INIT;
	setup(&w);
	assert_int_equal(loop_add_fd(w.loop, 1000, EPOLLIN, read_and_stop, &w, &w.sources[0], &e), -EBADF);
	assert_string_equal(e.msg, "watch descriptor 1000: Bad file descriptor");
	assert_null(w.sources[0]);
	assert_int_equal(loop_add_timer(w.loop, end_with_error, &w, &w.sources[0], &e), 0);
	assert_int_equal(loop_arm(w.sources[0], 1, &e), 0);
	assert_int_equal(loop_run(w.loop, &e), -ENODATA);
	assert_string_equal(e.msg, "enough");
	loop_free(w.loop);
	loop_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fd),
		cmocka_unit_test(test_timer),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_remove_within_callback),
		cmocka_unit_test(test_replace_within_callback),
		cmocka_unit_test(test_events_change),
		cmocka_unit_test(test_errors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
