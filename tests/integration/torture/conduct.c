#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/rd.h"
#include "modes.h"

#define MIB (1u << 20)

/* --- not speaking, or slowly --------------------------------------------------------------------------------- */

static void keep_still(struct guest *)
{
	for (;;)
		(void)pause();
}

static void leave(struct guest *)
{
	_exit(0);
}

/* One byte a second of a frame that would be a good one. */
static void trickle(struct guest *g)
{
	static const uint8_t frame[64] = {sizeof(frame) - 4, 0, 0, 0, 0x0a, sizeof(frame) - 6};
	for (size_t i = 0; i < sizeof(frame); i++) {
		guest_send(g, frame + i, 1);
		(void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	}
}

static void begin_frame(struct guest *g)
{
	guest_send(g, "\x40\0\0\0", 4);
}

static void begin_frame_and_leave(struct guest *g)
{
	guest_send(g, "\x40\0\0\0\x1a", 5);
	_exit(0);
}

static void shut_writing(struct guest *g)
{
	(void)shutdown(g->fd, SHUT_WR);
}

static void shut_reading(struct guest *g)
{
	(void)shutdown(g->fd, SHUT_RD);
	keep_still(g);
}

static void stop_itself(struct guest *)
{
	(void)raise(SIGSTOP);
}

/* --- connections --------------------------------------------------------------------------------------------- */

/* The one good connection is made first; a flood follows before it says a word. */
static void connect_often(struct guest *g)
{
	guest_reach(g, STAGE_CONNECTED);
	for (int i = 0; i < 10; i++) {
		if (fork() > 0)
			continue;
		for (int n = 0; n < 500; n++)
			(void)guest_connect();
		keep_still(g);
	}
	guest_reach(g, STAGE_RUNNING);
	guest_say_exited(g, 0);
}

/* The listener must be gone. */
static void connect_again(struct guest *g)
{
	bool refused = guest_connect() < 0 && errno == ECONNREFUSED;
	guest_say_exited(g, refused ? 0 : 1);
}

/* Root inside may become anybody and still open the socket; the host sees whose user id it is. */
static void connect_as_another(struct guest *, int times)
{
	const unsigned long keep_capabilities = 1UL << 2; /* SECBIT_NO_SETUID_FIXUP */
	if (prctl(PR_SET_SECUREBITS, keep_capabilities, 0, 0, 0) < 0 || setresuid(5, 5, 0) < 0)
		guest_give_up();
	for (int i = 0; i < times; i++) {
		int fd = guest_connect();
		if (fd < 0 && errno != EAGAIN && errno != ECONNREFUSED)
			guest_give_up();
		/* Its end says that it was refused. */
		(void)fcntl(fd, F_SETFL, 0);
		(void)!read(fd, &(char){0}, 1);
		(void)close(fd);
	}
	if (setresuid(0, 0, 0) < 0)
		guest_give_up();
}

static void strangers(struct guest *g)
{
	connect_as_another(g, 100);
}

static void strangers_first(struct guest *g)
{
	connect_as_another(g, 10);
	guest_reach(g, STAGE_RUNNING);
	guest_say_exited(g, 0);
}

/* --- frames -------------------------------------------------------------------------------------------------- */

/* Sends a whole frame of the greatest length: the bytes of `pattern` again and again. */
static void send_full_frame(struct guest *g, const char *pattern, size_t n)
{
	static uint8_t frame[FRAME_HEAD + FRAME_MAX];
	wr_uint(frame, FRAME_MAX, FRAME_HEAD);
	for (size_t i = FRAME_HEAD; i < sizeof(frame); i++)
		frame[i] = (uint8_t)pattern[(i - FRAME_HEAD) % n];
	guest_send(g, frame, sizeof(frame));
}

static void send_garbage(struct guest *g)
{
	uint32_t seed = 1;
	char bytes[4093];
	for (size_t i = 0; i < sizeof(bytes); i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = (char)(seed >> 16);
	}
	send_full_frame(g, bytes, sizeof(bytes));
}

/* Half a million times the same member, which is one message; and once more. */
static void repeat_member(struct guest *g)
{
	send_full_frame(g, "\x42\0", 2);
	send_full_frame(g, "\x42\0", 2);
}

/* A field that nobody knows, begun as a group ten thousand deep. */
static void nest(struct guest *g)
{
	send_full_frame(g, "\x7b", 1);
}

/* Failed with a text that takes the rest of the frame. */
static void send_long_text(struct guest *g)
{
	static const uint8_t head[] = {0,    0,      0x10, 0, 0x3a, 0xfc, 0xff, 0x3f,
				       0x08, JOB_ID, 0x10, 1, 0x1a, 0xf4, 0xff, 0x3f};
	static uint8_t frame[FRAME_HEAD + FRAME_MAX];
	memset(frame, 'x', sizeof(frame));
	memcpy(frame, head, sizeof(head));
	guest_send(g, frame, sizeof(frame));
}

/* --- what is said --------------------------------------------------------------------------------------------- */

/* Everything that could steer a terminal, a log or a format string. */
static const char nasty[] =
	"\x1b]0;owned\x07\x1b[2J\x1b[31m%n%s%999999999d\r\n\xff\xfe\xc0\xaf\xe2\x80\xae\x9b"
	"31m \"\\{}</a>";

static void fail_nastily(struct guest *g)
{
	guest_say_failed(g, 126, nasty);
}

/* The same as the reason why an output could not be copied. */
static void fail_copy_nastily(struct guest *g)
{
	for (int i = 0; i < 100; i++)
		guest_send_data(g, 2, nasty, sizeof(nasty) - 1);
	guest_say_failed(g, 1, nasty);
}

static void print_long_line(struct guest *g)
{
	static char chunk[FRAME_DATA_MAX];
	memset(chunk, 'x', sizeof(chunk));
	uint64_t left = UINT64_C(1) << 30;
	while (left > 0) {
		size_t n = left < sizeof(chunk) ? (size_t)left : sizeof(chunk);
		guest_output(g, chunk, n);
		left -= n;
	}
	guest_say_exited(g, 0);
}

/* --- flow control -------------------------------------------------------------------------------------------- */

static void ignore_window(struct guest *g)
{
	static const char chunk[FRAME_DATA_MAX];
	for (unsigned i = 0; i < 64 * MIB / sizeof(chunk); i++)
		guest_send_data(g, 1, chunk, sizeof(chunk));
}

/* Waits for a little input and grants more than it was. */
static void grant_too_much(struct guest *g)
{
	while (guest_hear(g)->which_message != ermite_ToGuest_data_tag)
		;
	guest_say_credit(g, FRAME_WINDOW);
}

/* Takes all input and grants every byte of it alone. */
static void grant_by_bytes(struct guest *g)
{
	for (;;) {
		const ermite_ToGuest *m = guest_hear(g);
		if (m->which_message == ermite_ToGuest_eof_tag)
			break;
		unsigned n = m->which_message == ermite_ToGuest_data_tag ? m->message.data.bytes.size : 0;
		for (unsigned i = 0; i < n; i++)
			guest_say_credit(g, 1);
	}
	guest_say_exited(g, 0);
}

/* Hundreds of descriptors with every message; nobody on the host may get one of them. */
static void send_descriptors(struct guest *g)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(200 * sizeof(int))];
	} control = {0};
	uint8_t frame[FRAME_DATA_HEAD_MAX + 1];
	size_t n = frame_data_head(g->id, 1, 1, frame);
	frame[n++] = '.';
	struct iovec io = {.iov_base = frame, .iov_len = n};
	struct msghdr m = {.msg_iov = &io,
			   .msg_iovlen = 1,
			   .msg_control = control.bytes,
			   .msg_controllen = sizeof(control.bytes)};
	*CMSG_FIRSTHDR(&m) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(200 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	for (int i = 0; i < 200; i++)
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)) + (size_t)i * sizeof(int), &g->fd, sizeof(int));
	for (int i = 0; i < 1000; i++) {
		ssize_t sent;
		/* Only so many may be under way. */
		while ((sent = sendmsg(g->fd, &m, 0)) < 0 && errno == ETOOMANYREFS)
			(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		if (sent != (ssize_t)n)
			guest_give_up();
	}
	guest_say_exited(g, 0);
}

/* --- copies in ----------------------------------------------------------------------------------------------- */

/* Says that the workspace is copied before it is, then runs the job. */
static void ignore_workspace(struct guest *g)
{
	guest_say_exited(g, 0);
	guest_await_start(g);
	guest_say_started(g);
	guest_say_exited(g, 0);
}

static void refuse_workspace(struct guest *g)
{
	guest_say_failed(g, 1, nasty);
}

/* Reads what comes, grants it, and never ends. */
static void swallow(struct guest *g)
{
	for (;;) {
		const ermite_ToGuest *m = guest_hear(g);
		if (m->which_message == ermite_ToGuest_data_tag)
			guest_say_credit(g, m->message.data.bytes.size);
	}
}

const struct act acts[] = {
	{"init-leaves", STAGE_INIT, leave},
	{"init-keeps-still", STAGE_INIT, keep_still},
	{"never-connect", STAGE_ALONE, keep_still},
	{"leave-unconnected", STAGE_ALONE, leave},
	{"connect-and-leave", STAGE_CONNECTED, leave},
	{"connect-silent", STAGE_CONNECTED, keep_still},
	{"trickle-hello", STAGE_CONNECTED, trickle},
	{"connect-often", STAGE_ALONE, connect_often},
	{"connect-again", STAGE_RUNNING, connect_again},
	{"strangers", STAGE_ALONE, strangers},
	{"strangers-first", STAGE_ALONE, strangers_first},

	{"trickle-frame", STAGE_GREETED, trickle},
	{"frame-begun", STAGE_RUNNING, begin_frame},
	{"frame-begun-and-leave", STAGE_RUNNING, begin_frame_and_leave},
	{"garbage", STAGE_GREETED, send_garbage},
	{"member-repeated", STAGE_GREETED, repeat_member},
	{"groups-nested", STAGE_GREETED, nest},
	{"text-long", STAGE_RUNNING, send_long_text},

	{"shut-writing", STAGE_RUNNING, shut_writing},
	{"shut-reading", STAGE_RUNNING, shut_reading},
	{"never-read", STAGE_RUNNING, keep_still},
	{"never-exit", STAGE_RUNNING, swallow},
	{"never-start", STAGE_ASKED, swallow},
	{"stop-itself", STAGE_RUNNING, stop_itself},
	{"leave", STAGE_RUNNING, leave},

	{"texts", STAGE_ASKED, fail_nastily},
	{"long-line", STAGE_RUNNING, print_long_line},
	{"window-ignored", STAGE_RUNNING, ignore_window},
	{"credit-too-much", STAGE_RUNNING, grant_too_much},
	{"credit-by-bytes", STAGE_RUNNING, grant_by_bytes},
	{"descriptors", STAGE_RUNNING, send_descriptors},

	{"copy-in-ignored", STAGE_RUNNING, ignore_workspace},
	{"copy-in-refused", STAGE_ASKED, refuse_workspace},
	{"copy-in-endless", STAGE_RUNNING, swallow},
	{"copy-in-stuck", STAGE_RUNNING, keep_still},
	{"copy-out-texts", STAGE_COPY_OUT, fail_copy_nastily},
	{"copy-out-silent", STAGE_COPY_OUT, swallow},
	{0},
};
