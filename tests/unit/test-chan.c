#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "io/chan.h"

/* The head in front of the data, as both ends of this build lay it out. */
#define HEAD_BYTES 32

static void test_round_trip(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	int pair[2];
	int ends[2];
	assert_int_equal(chan_pair(pair, &e), 0);
	assert_true(fcntl(pair[0], F_GETFD) & FD_CLOEXEC);
	assert_int_equal(pipe(ends), 0);
	const uint32_t lengths[] = {0, 1, CHAN_DATA_MAX};
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct chan_message m = {.type = 7, .id = 8, .a = UINT64_MAX, .b = 9, .n = lengths[i]};
		memset(m.data, 'x', m.n);
		m.n_fds = 2;
		m.fds[0] = ends[0];
		m.fds[1] = ends[1];
		assert_int_equal(chan_send(pair[0], &m, &e), 0);
		struct chan_message got;
		memset(&got, 0xa5, sizeof(got));
		assert_int_equal(chan_receive(pair[1], &got, &e), 1);
		assert_int_equal(got.type, 7);
		assert_int_equal(got.id, 8);
		assert_true(got.a == UINT64_MAX && got.b == 9);
		assert_int_equal(got.n, lengths[i]);
		assert_int_equal(strlen(got.data), lengths[i]);
		assert_int_equal(got.n_fds, 2);
		struct stat sent, received;
		assert_int_equal(fstat(ends[1], &sent), 0);
		assert_int_equal(fstat(got.fds[1], &received), 0);
		assert_int_equal(sent.st_ino, received.st_ino);
		assert_true(fcntl(got.fds[1], F_GETFD) & FD_CLOEXEC);
		int taken = chan_take_fd(&got, 1);
		assert_true(taken > 2);
		assert_int_equal(chan_take_fd(&got, 1), -1);
		assert_int_equal(chan_take_fd(&got, 2), -1);
		chan_close_fds(&got);
		chan_close_fds(&got);
		assert_true(fcntl(taken, F_GETFD) >= 0);
		close(taken);
	}
	close(pair[0]);
	close(pair[1]);
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(fds_open(), before);
}

static void test_ends(void **)
{
	struct err e = ERR_INIT;
	struct chan_message m = {.type = 1};
	struct chan_message got;
	int pair[2];
	assert_int_equal(chan_pair(pair, &e), 0);
	assert_int_equal(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(chan_receive(pair[1], &got, &e), -EAGAIN);
	/* What was sent before the end arrives, also when the other side left something unread. */
	assert_int_equal(chan_send(pair[1], &m, &e), 0);
	assert_int_equal(chan_send(pair[0], &m, &e), 0);
	close(pair[0]);
	assert_int_equal(chan_receive(pair[1], &got, &e), 1);
	assert_int_equal(chan_receive(pair[1], &got, &e), 0);
	assert_int_equal(chan_send(pair[1], &m, &e), -EPIPE);
	close(pair[1]);
	assert_int_equal(chan_receive(pair[1], &got, &e), -EBADF);
}

static void test_refuses_to_send(void **)
{
	struct err e = ERR_INIT;
	struct chan_message m = {.n = CHAN_DATA_MAX + 1};
	assert_int_equal(chan_send(-1, &m, &e), -EMSGSIZE);
	m = (struct chan_message){.n_fds = CHAN_FDS_MAX + 1};
	assert_int_equal(chan_send(-1, &m, &e), -EMSGSIZE);
}

enum { SENT_FDS_MAX = 2 * CHAN_FDS_MAX };

/* Sends raw bytes with n_fds duplicates of a descriptor. */
static void send_raw(int fd, const void *p, size_t n, size_t n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SENT_FDS_MAX)];
	} control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (n_fds) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.align = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
						 .cmsg_type = SCM_RIGHTS,
						 .cmsg_len = CMSG_LEN(sizeof(int) * n_fds)};
		for (size_t i = 0; i < n_fds; i++)
			memcpy(control.bytes + CMSG_LEN(i * sizeof(int)), &fd, sizeof(int));
	}
	assert_int_equal(sendmsg(fd, &message, 0), (ssize_t)n);
}

static void test_malformed(void **)
{
	struct {
		const char *what;
		size_t n;
		uint32_t claimed; /* the length in the head */
		size_t n_fds;
		int result;
	} rows[] = {
		{"a head alone", HEAD_BYTES, 0, 0, 1},
		{"as many descriptors as can be", HEAD_BYTES, 0, CHAN_FDS_MAX, 1},
		{"one more", HEAD_BYTES, 0, CHAN_FDS_MAX + 1, -EPROTO},
		{"twice as many", HEAD_BYTES, 0, SENT_FDS_MAX, -EPROTO},
		{"half a head", HEAD_BYTES / 2, 0, 2, -EPROTO},
		{"less than claimed", HEAD_BYTES + 3, 4, 2, -EPROTO},
		{"more than claimed", HEAD_BYTES + 5, 4, 0, -EPROTO},
		{"too long", HEAD_BYTES + CHAN_DATA_MAX + 1, CHAN_DATA_MAX + 1, 1, -EPROTO},
		{"far too long", HEAD_BYTES + CHAN_DATA_MAX + 1, CHAN_DATA_MAX, 1, -EPROTO},
		{"a claim of 4 GiB", HEAD_BYTES + 4, UINT32_MAX, 0, -EPROTO},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		static char raw[HEAD_BYTES + CHAN_DATA_MAX + 16];
		int pair[2];
		assert_int_equal(chan_pair(pair, &e), 0);
		memcpy(raw + 24, &rows[i].claimed, sizeof(rows[i].claimed));
		send_raw(pair[0], raw, rows[i].n, rows[i].n_fds);
		struct chan_message got = {0};
		int r = chan_receive(pair[1], &got, &e);
		if (r != rows[i].result)
			fail_msg("%s: %d", rows[i].what, r);
		if (r == 1)
			assert_int_equal(got.n_fds, rows[i].n_fds);
		else
			assert_int_equal(got.n_fds, 0);
		chan_close_fds(&got);
		close(pair[0]);
		close(pair[1]);
		assert_int_equal(fds_open(), before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_refuses_to_send),
		cmocka_unit_test(test_malformed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
