#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "client/pump.h"
#include "fds.h"

enum { TOTAL = 3 << 20, CHUNK = 50000, GUARD_MS = 20000 };

/* One pump between a source that this test fills and a sink that it empties, in one loop. */
struct rig {
	struct loop *loop;
	struct pump *pump;
	int fill;  /* where the test writes what the pump reads, or -1 */
	int empty; /* where the test reads what the pump wrote, or -1 */
	struct source *filler, *emptier, *guard;
	size_t filled, emptied;
	bool wrong; /* a byte came that was not sent there */
	bool ended;
	int error;
};

static uint8_t byte_at(size_t at)
{
	return (uint8_t)(at * 7 + at / 251);
}

static void check(struct rig *r, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		r->wrong = r->wrong || p[i] != byte_at(r->emptied + i);
	r->emptied += n;
}

static int on_fill(void *data, int fd, uint32_t, struct err *)
{
	struct rig *r = data;
	uint8_t bytes[CHUNK / 8];
	size_t n = TOTAL - r->filled < sizeof(bytes) ? TOTAL - r->filled : sizeof(bytes);
	for (size_t i = 0; i < n; i++)
		bytes[i] = byte_at(r->filled + i);
	ssize_t done = write(fd, bytes, n);
	r->filled += done > 0 ? (size_t)done : 0;
	if (r->filled == TOTAL || (done < 0 && errno == EPIPE)) {
		loop_remove(&r->filler);
		fd_close(&r->fill);
	}
	return 0;
}

static int on_empty(void *data, int fd, uint32_t, struct err *)
{
	struct rig *r = data;
	uint8_t bytes[CHUNK / 8];
	ssize_t n = read(fd, bytes, sizeof(bytes));
	if (n > 0)
		check(r, bytes, (size_t)n);
	if (r->emptied == TOTAL)
		loop_stop(r->loop);
	return 0;
}

static int on_end(void *data, struct pump *p, int error, struct err *)
{
	struct rig *r = data;
	assert_ptr_equal(p, r->pump);
	r->ended = true;
	r->error = error;
	if (error < 0 || r->empty < 0 || r->emptied == TOTAL)
		loop_stop(r->loop);
	return 0;
}

static int on_guard(void *, struct err *e)
{
	return err_set(e, -ETIMEDOUT, "nothing moves");
}

static void rig_up(struct rig *r, int from, int to)
{
	r->loop = loop_new();
	assert_non_null(r->loop);
	assert_int_equal(loop_add_timer(r->loop, on_guard, r, &r->guard, NULL), 0);
	assert_int_equal(loop_arm(r->guard, GUARD_MS, NULL), 0);
	assert_int_equal(pump_new(r->loop, from, to, on_end, r, &r->pump, NULL), 0);
	assert_false(pump_ended(r->pump));
	if (r->fill >= 0) {
		(void)fcntl(r->fill, F_SETFL, O_NONBLOCK);
		assert_int_equal(loop_add_fd(r->loop, r->fill, EPOLLOUT, on_fill, r, &r->filler, NULL), 0);
	}
	if (r->empty >= 0)
		assert_int_equal(loop_add_fd(r->loop, r->empty, EPOLLIN, on_empty, r, &r->emptier, NULL), 0);
}

static void rig_down(struct rig *r)
{
	pump_free(r->pump);
	fd_close(&r->fill);
	fd_close(&r->empty);
	loop_free(r->loop);
}

static void make_pipe(int *ret_read, int *ret_write)
{
	int ends[2] = {-1, -1};
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	*ret_read = ends[0];
	*ret_write = ends[1];
}

static void make_pipe_of_ours(int *ret_ours, int *ret_other, bool we_read)
{
	make_pipe(we_read ? ret_ours : ret_other, we_read ? ret_other : ret_ours);
	assert_int_equal(fcntl(*ret_ours, F_SETFL, O_NONBLOCK), 0);
}

static void assert_all_came(struct rig *r)
{
	struct err e = ERR_INIT;
	assert_int_equal(loop_run(r->loop, &e), 0);
	assert_false(r->wrong);
	assert_int_equal(r->emptied, TOTAL);
	assert_true(r->ended);
	assert_int_equal(r->error, 0);
	assert_true(pump_ended(r->pump));
}

static void to_a_pipe(void **)
{
	struct rig r = {.fill = -1, .empty = -1};
	scoped_fd int from = -1;
	scoped_fd int to = -1;
	make_pipe_of_ours(&from, &r.fill, true);
	make_pipe(&r.empty, &to);
	rig_up(&r, from, to);
	assert_all_came(&r);
	assert_false(fcntl(to, F_GETFL) & O_NONBLOCK);
	rig_down(&r);
}

static void to_a_socket(void **)
{
	struct rig r = {.fill = -1};
	scoped_fd int from = -1;
	int pair[2] = {-1, -1};
	make_pipe_of_ours(&from, &r.fill, true);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	r.empty = pair[0];
	scoped_fd int to = pair[1];
	rig_up(&r, from, to);
	assert_all_came(&r);
	assert_false(fcntl(to, F_GETFL) & O_NONBLOCK);
	rig_down(&r);
}

/* A terminal takes a few kilobytes and then nothing until its other side reads: the pump must wait in the loop. */
static void to_a_terminal(void **)
{
	struct rig r = {.fill = -1};
	scoped_fd int from = -1;
	make_pipe_of_ours(&from, &r.fill, true);
	r.empty = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(r.empty >= 0);
	assert_int_equal(grantpt(r.empty), 0);
	assert_int_equal(unlockpt(r.empty), 0);
	scoped_fd int to = open(ptsname(r.empty), O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios t = {0};
	assert_int_equal(tcgetattr(to, &t), 0);
	cfmakeraw(&t);
	assert_int_equal(tcsetattr(to, TCSANOW, &t), 0);
	rig_up(&r, from, to);
	assert_all_came(&r);
	assert_false(fcntl(to, F_GETFL) & O_NONBLOCK);
	rig_down(&r);
}

static void to_a_file(void **)
{
	static const int flags[] = {0, O_APPEND};
	for (size_t i = 0; i < 2; i++) {
		struct rig r = {.fill = -1, .empty = -1};
		scoped_fd int from = -1;
		make_pipe_of_ours(&from, &r.fill, true);
		scoped_fd int to = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC | flags[i], 0600);
		rig_up(&r, from, to);
		struct err e = ERR_INIT;
		assert_int_equal(loop_run(r.loop, &e), 0);
		assert_int_equal(r.error, 0);
		uint8_t *bytes = mmap(NULL, TOTAL, PROT_READ, MAP_PRIVATE, to, 0);
		assert_true(bytes != MAP_FAILED);
		check(&r, bytes, TOTAL);
		assert_false(r.wrong);
		assert_int_equal(munmap(bytes, TOTAL), 0);
		rig_down(&r);
	}
}

static void to_nothing(void **)
{
	struct rig r = {.fill = -1, .empty = -1};
	scoped_fd int from = -1;
	make_pipe_of_ours(&from, &r.fill, true);
	scoped_fd int to = open("/dev/null", O_WRONLY | O_CLOEXEC);
	rig_up(&r, from, to);
	struct err e = ERR_INIT;
	assert_int_equal(loop_run(r.loop, &e), 0);
	assert_int_equal(r.filled, TOTAL);
	assert_int_equal(r.error, 0);
	rig_down(&r);
}

static void from_a_pipe_and_a_socket(void **)
{
	for (int i = 0; i < 2; i++) {
		struct rig r = {.fill = -1};
		scoped_fd int from = -1;
		scoped_fd int to = -1;
		int pair[2] = {-1, -1};
		if (i == 0) {
			make_pipe(&from, &r.fill);
		} else {
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
			from = pair[0];
			r.fill = pair[1];
		}
		make_pipe_of_ours(&to, &r.empty, false);
		rig_up(&r, from, to);
		assert_all_came(&r);
		assert_false(fcntl(from, F_GETFL) & O_NONBLOCK);
		rig_down(&r);
	}
}

/* A file is always ready and cannot be watched. */
static void from_a_file(void **)
{
	struct rig r = {.fill = -1};
	scoped_fd int from = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	scoped_fd int to = -1;
	for (size_t at = 0; at < TOTAL; at += CHUNK) {
		uint8_t bytes[CHUNK / 5];
		for (size_t done = 0; done < CHUNK; done += sizeof(bytes)) {
			for (size_t i = 0; i < sizeof(bytes); i++)
				bytes[i] = byte_at(at + done + i);
			assert_int_equal(write(from, bytes, sizeof(bytes)), sizeof(bytes));
		}
	}
	assert_int_equal(ftruncate(from, TOTAL), 0);
	assert_int_equal(lseek(from, 0, SEEK_SET), 0);
	make_pipe_of_ours(&to, &r.empty, false);
	rig_up(&r, from, to);
	assert_all_came(&r);
	rig_down(&r);
}

static void from_nothing(void **)
{
	struct rig r = {.fill = -1, .empty = -1};
	scoped_fd int from = open("/dev/null", O_RDONLY | O_CLOEXEC);
	scoped_fd int to = -1;
	scoped_fd int other = -1;
	make_pipe_of_ours(&to, &other, false);
	rig_up(&r, from, to);
	struct err e = ERR_INIT;
	assert_int_equal(loop_run(r.loop, &e), 0);
	assert_true(r.ended);
	assert_int_equal(r.error, 0);
	rig_down(&r);
}

/* Nobody reads any more: the end is told as -EPIPE, and after pump_discard() the source is emptied all the same. */
static void reader_goes_away(void **)
{
	for (int i = 0; i < 2; i++) {
		struct rig r = {.fill = -1, .empty = -1};
		scoped_fd int from = -1;
		int pair[2] = {-1, -1};
		make_pipe_of_ours(&from, &r.fill, true);
		if (i == 0)
			make_pipe(&pair[0], &pair[1]);
		else
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		(void)close(pair[0]);
		scoped_fd int to = pair[1];
		rig_up(&r, from, to);
		struct err e = ERR_INIT;
		assert_int_equal(loop_run(r.loop, &e), 0);
		assert_int_equal(r.error, -EPIPE);
		assert_int_equal(pump_discard(r.pump, &e), 0);
		assert_false(pump_ended(r.pump));
		assert_int_equal(loop_run(r.loop, &e), 0);
		assert_int_equal(r.error, 0);
		assert_int_equal(r.filled, TOTAL);
		rig_down(&r);
	}
}

static void full_device(void **)
{
	struct rig r = {.fill = -1, .empty = -1};
	scoped_fd int from = -1;
	make_pipe_of_ours(&from, &r.fill, true);
	scoped_fd int to = open("/dev/full", O_WRONLY | O_CLOEXEC);
	rig_up(&r, from, to);
	struct err e = ERR_INIT;
	assert_int_equal(loop_run(r.loop, &e), 0);
	assert_int_equal(r.error, -ENOSPC);
	rig_down(&r);
}

/* What the loop had no turn for is moved to the last byte, with the writer still there and gone. */
static void flushed(void **)
{
	for (int is_gone = 0; is_gone < 2; is_gone++) {
		struct rig r = {.fill = -1, .empty = -1};
		scoped_fd int from = -1;
		scoped_fd int writer = -1;
		char bytes[16] = "";
		make_pipe_of_ours(&from, &writer, true);
		scoped_fd int to = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		rig_up(&r, from, to);
		assert_int_equal(write(writer, "last words", 10), 10);
		if (is_gone)
			fd_close(&writer);
		assert_int_equal(pump_flush(r.pump), 0);
		assert_int_equal(pread(to, bytes, sizeof(bytes), 0), 10);
		assert_string_equal(bytes, "last words");
		assert_false(r.ended);
		rig_down(&r);
	}
}

static void flushed_to_a_full_device(void **)
{
	struct rig r = {.fill = -1, .empty = -1};
	scoped_fd int from = -1;
	scoped_fd int writer = -1;
	make_pipe_of_ours(&from, &writer, true);
	scoped_fd int to = open("/dev/full", O_WRONLY | O_CLOEXEC);
	rig_up(&r, from, to);
	assert_int_equal(write(writer, "x", 1), 1);
	assert_int_equal(pump_flush(r.pump), -ENOSPC);
	rig_down(&r);
}

static void nothing_is_ended(void **)
{
	assert_int_equal(pump_flush(NULL), 0);
	assert_true(pump_ended(NULL));
	pump_free(NULL);
}

static int count_before(void **state)
{
	static int before;
	before = fds_open();
	*state = &before;
	return 0;
}

static int count_after(void **state)
{
	return fds_open() == *(int *)*state ? 0 : -1;
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
#define row(f) cmocka_unit_test_setup_teardown(f, count_before, count_after)
	const struct CMUnitTest tests[] = {
		row(to_a_pipe),
		row(to_a_socket),
		row(to_a_terminal),
		row(to_a_file),
		row(to_nothing),
		row(from_a_pipe_and_a_socket),
		row(from_a_file),
		row(from_nothing),
		row(reader_goes_away),
		row(full_device),
		row(nothing_is_ended),
		row(flushed),
		row(flushed_to_a_full_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
