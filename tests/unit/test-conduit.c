#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "conduit-lab.h"
#include "fds.h"
#include "wire/identity.h"
#include "wire/tree.h"

#define HELLO   ermite_ToHost_hello_tag
#define READY   ermite_ToHost_system_ready_tag
#define STARTED ermite_ToHost_started_tag
#define DATA    ermite_ToHost_data_tag
#define END     ermite_ToHost_eof_tag
#define CREDIT  ermite_ToHost_credit_tag
#define EXITED  ermite_ToHost_exited_tag
#define FAILED  ermite_ToHost_failed_tag

static void close_pipes(struct pipes p)
{
	if (p.input >= 0)
		close(p.input);
	close(p.output);
	close(p.error);
}

static void test_good_path(void **)
{
	int before = fds_open();
	struct lab l;
	lab_open_greeted(&l, 0);
	lab_say(&l, (struct said){.tag = READY});
	lab_told(&l, MESSAGE_SYSTEM_READY, 0, 0, 0);
	struct pipes p = lab_start(&l, 7, ermite_Kind_RUN, true, 0);

	/* Input goes on its way before the process is said to have started. */
	assert_int_equal(write(p.input, "in", 2), 2);
	const ermite_ToGuest *m = lab_hear(&l, ermite_ToGuest_data_tag);
	assert_int_equal(m->message.data.id, 7);
	assert_int_equal(m->message.data.channel, 0);
	assert_int_equal(m->message.data.bytes.size, 2);
	assert_memory_equal(m->message.data.bytes.bytes, "in", 2);
	close(p.input);
	assert_int_equal(lab_hear(&l, ermite_ToGuest_eof_tag)->message.eof.id, 7);
	lab_say(&l, (struct said){.tag = STARTED, .id = 7, .n = 42});
	lab_told(&l, MESSAGE_STARTED, 7, 42, 0);
	lab_say(&l, (struct said){.tag = CREDIT, .id = 7, .n = 2});

	lab_tell(&l, MESSAGE_SIGNAL, 7, SIGINT, 0, NULL, 0);
	assert_int_equal(lab_hear(&l, ermite_ToGuest_signal_tag)->message.signal.number, SIGINT);
	lab_tell(&l, MESSAGE_RESIZE, 7, 24, 80, NULL, 0);
	assert_int_equal(lab_hear(&l, ermite_ToGuest_resize_tag)->message.resize.columns, 80);

	/* Two processes at once. */
	struct pipes q = lab_start_running(&l, 8, ermite_Kind_RUN, false, 0);
	lab_say(&l, (struct said){.tag = DATA, .id = 7, .channel = 1, .text = "out"});
	lab_say(&l, (struct said){.tag = DATA, .id = 8, .channel = 1, .text = "other"});
	lab_say(&l, (struct said){.tag = DATA, .id = 7, .channel = 2, .text = "error"});
	lab_say(&l, (struct said){.tag = END, .id = 7, .channel = 1});
	lab_expect_pipe(p.output, "out");
	lab_say(&l, (struct said){.tag = EXITED, .id = 7, .n = 3});
	lab_expect_pipe(p.error, "error");
	lab_told(&l, MESSAGE_COUNT, 7, 8, 0);
	lab_told(&l, MESSAGE_EXITED, 7, 3, 0);
	lab_say(&l, (struct said){.tag = EXITED, .id = 8, .signal = SIGKILL});
	lab_told(&l, MESSAGE_COUNT, 8, 5, 0);
	lab_told(&l, MESSAGE_EXITED, 8, 0, SIGKILL);
	lab_expect_pipe(q.output, "other");
	lab_expect_pipe(q.error, "");

	/* Too late for it, and no offence. */
	lab_tell(&l, MESSAGE_SIGNAL, 7, SIGINT, 0, NULL, 0);
	lab_tell(&l, MESSAGE_RESIZE, 7, 1, 1, NULL, 0);
	/* The number may be used again. */
	p = lab_start(&l, 7, ermite_Kind_RUN, false, 0);
	lab_say(&l, (struct said){.tag = FAILED, .id = 7, .n = 127, .text = "no such program"});
	lab_told(&l, MESSAGE_COUNT, 7, 0, 0);
	lab_told(&l, MESSAGE_FAILED, 7, 127, 0);
	assert_string_equal(l.text, "no such program");
	close_pipes(p);
	lab_close(&l, 0);
	assert_int_equal(fds_open(), before);
}

enum moment { BEFORE_HELLO, OPEN, STARTING, RUNNING, INPUT, AFTER };

/* What a guest must not say when, and what the keeper is told. Process 1 is the one that is there. */
static const struct {
	enum moment moment;
	struct said said;
	const char *words;
} violations[] = {
	{BEFORE_HELLO,
	 {.tag = HELLO, .text = "0-other"},
	 "Hello: the guest program is another build than the host's"},
	{BEFORE_HELLO, {.tag = READY}, "SystemReady before Hello"},
	{BEFORE_HELLO, {.tag = STARTED, .id = 1}, "Started before Hello"},
	{BEFORE_HELLO, {.tag = DATA, .id = 1, .channel = 1, .n = 1}, "Data before Hello"},
	{OPEN, {.tag = HELLO, .text = "x"}, "Hello twice"},
	{OPEN, {.tag = STARTED, .id = 1}, "Started of process 1, which is not there"},
	{OPEN, {.tag = DATA, .id = 1, .channel = 1, .n = 1}, "Data of process 1, which is not there"},
	{OPEN, {.tag = END, .id = 1, .channel = 1}, "Eof of process 1, which is not there"},
	{OPEN, {.tag = CREDIT, .id = 1, .channel = 0, .n = 1}, "Credit of process 1, which is not there"},
	{OPEN, {.tag = EXITED, .id = 1}, "Exited of process 1, which is not there"},
	{OPEN, {.tag = FAILED, .id = 0, .channel = 0, .n = 1}, "Failed of process 0, which is not there"},
	{OPEN, {.tag = EXITED, .id = UINT32_MAX}, "Exited of process 4294967295, which is not there"},
	{STARTING, {.tag = DATA, .id = 1, .channel = 1, .n = 1}, "Data of process 1, which has not started"},
	{STARTING, {.tag = END, .id = 1, .channel = 1}, "Eof of process 1, which has not started"},
	{STARTING, {.tag = EXITED, .id = 1}, "Exited of process 1, which has not started"},
	{STARTING, {.tag = EXITED, .id = 2}, "Exited of process 2, which is not there"},
	{STARTING, {.tag = CREDIT, .id = 1, .channel = 0, .n = 1}, "Credit of process 1: there is no input"},
	{STARTING,
	 {.tag = FAILED, .id = 1, .channel = 0, .n = 0, .signal = 0, .text = "x"},
	 "Failed of process 1 with status 0"},
	{RUNNING, {.tag = STARTED, .id = 1}, "Started of process 1, which runs already"},
	{RUNNING, {.tag = DATA, .id = 1, .channel = 0, .n = 1}, "Data of process 1: 1 bytes on channel 0"},
	{RUNNING, {.tag = DATA, .id = 1, .channel = 1, .n = 0}, "Data of process 1: 0 bytes on channel 1"},
	{RUNNING, {.tag = END, .id = 1, .channel = 0}, "Eof of process 1 on channel 0: it is the host's"},
	{RUNNING, {.tag = CREDIT, .id = 1, .channel = 0, .n = 1}, "Credit of process 1: there is no input"},
	{INPUT,
	 {.tag = CREDIT, .id = 1, .channel = 0, .n = 1},
	 "Credit of process 1: credit of 1 where only 0 were under way"},
	{INPUT,
	 {.tag = CREDIT, .id = 1, .channel = 1, .n = 1},
	 "Credit of process 1: the guest grants none on channel 1"},
	{AFTER, {.tag = EXITED, .id = 1}, "Exited of process 1, which is not there"},
	{AFTER, {.tag = DATA, .id = 1, .channel = 1, .n = 1}, "Data of process 1, which is not there"},
	{AFTER, {.tag = FAILED, .id = 1, .channel = 0, .n = 1}, "Failed of process 1, which is not there"},
};

static void test_violations(void **)
{
	for (size_t i = 0; i < sizeof(violations) / sizeof(violations[0]); i++) {
		struct lab l;
		struct pipes p = {-1, -1, -1};
		enum moment moment = violations[i].moment;
		if (moment == BEFORE_HELLO) {
			lab_open(&l, geteuid(), 0, 0);
			l.guest = lab_connect(&l);
		} else {
			lab_open_greeted(&l, 0);
		}
		if (moment == STARTING)
			p = lab_start(&l, 1, ermite_Kind_RUN, false, 0);
		if (moment >= RUNNING)
			p = lab_start_running(&l, 1, ermite_Kind_RUN, moment == INPUT, 0);
		if (moment == AFTER) {
			lab_say(&l, (struct said){.tag = EXITED, .id = 1});
			lab_told(&l, MESSAGE_COUNT, 1, 0, 0);
			lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
		}
		lab_say(&l, violations[i].said);
		lab_told_protocol(&l, violations[i].words);
		if (moment >= STARTING)
			close_pipes(p);
		lab_close(&l, 0);
	}
}

/* Offences that take more than one message. */
static void test_repeated(void **)
{
	struct lab l;
	lab_open_greeted(&l, 0);
	lab_say(&l, (struct said){.tag = READY});
	lab_say(&l, (struct said){.tag = READY});
	lab_told(&l, MESSAGE_SYSTEM_READY, 0, 0, 0);
	lab_told_protocol(&l, "SystemReady twice");
	lab_close(&l, 0);

	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	lab_say(&l, (struct said){.tag = END, .id = 1, .channel = 2});
	lab_say(&l, (struct said){.tag = END, .id = 1, .channel = 2});
	lab_told_protocol(&l, "Eof of process 1 on channel 2: it has ended already");
	close_pipes(p);
	lab_close(&l, 0);

	lab_open_greeted(&l, 0);
	p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	lab_say(&l, (struct said){.tag = END, .id = 1, .channel = 1});
	lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 1});
	lab_told_protocol(&l, "Data of process 1, channel 1: after the end of the channel");
	close_pipes(p);
	lab_close(&l, 0);
}

static void test_malformed(void **)
{
	static uint8_t junk[FRAME_MAX + 8];
	memset(junk, 0xff, sizeof(junk));
	struct {
		uint32_t length;
		size_t n; /* bytes after the length */
		const char *words;
	} rows[] = {
		{0, 0, "a frame of 0 bytes, accepted are 1 to 1048576"},
		{FRAME_MAX + 1, 0, "a frame of 1048577 bytes, accepted are 1 to 1048576"},
		{UINT32_MAX, 0, "a frame of 4294967295 bytes, accepted are 1 to 1048576"},
		{16, 16, "message from the guest: varint overflow"},
		{FRAME_MAX, FRAME_MAX, "message from the guest: varint overflow"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct lab l;
		lab_open_greeted(&l, 0);
		lab_say_raw(&l, &rows[i].length, sizeof(rows[i].length));
		lab_say_raw(&l, junk, rows[i].n);
		lab_told_protocol(&l, rows[i].words);
		lab_close(&l, 0);
	}
}

static void test_deadlines(void **)
{
	struct lab l;
	lab_open(&l, geteuid(), 200, 0);
	l.guest = lab_connect(&l);
	lab_told_protocol(&l, "no Hello within 200 ms of the connection");
	lab_close(&l, 0);

	/* Bytes that come one by one do not buy time. */
	lab_open_greeted(&l, 300);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	const uint32_t length = 100;
	lab_say_raw(&l, &length, sizeof(length));
	for (int i = 0; i < 40; i++) {
		(void)send(l.guest, "\n", 1, MSG_NOSIGNAL);
		usleep(10000);
	}
	lab_told_protocol(&l, "a frame was begun and not complete after 300 ms");
	close_pipes(p);
	lab_close(&l, 0);

	/* Whole frames, however many, are in time. */
	lab_open_greeted(&l, 100);
	p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	for (int i = 0; i < 30; i++) {
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 1});
		usleep(10000);
	}
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 30, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	close_pipes(p);
	lab_close(&l, 0);
}

static void test_strangers(void **)
{
	struct lab l;
	lab_open(&l, geteuid() + 1, 0, 0);
	for (int i = 0; i < 64; i++) {
		char byte;
		int fd = lab_connect(&l);
		assert_true(fd >= 0);
		assert_true(read(fd, &byte, 1) <= 0);
		close(fd);
	}
	lab_told_protocol(&l, "64 connections, none of them by the executor");
	lab_close(&l, 0);

	/* After the right one nobody can connect. */
	lab_open_greeted(&l, 0);
	assert_int_equal(lab_connect(&l), -1);
	lab_close(&l, 0);
}

/* A client that does not read stops only its own process, inside; nothing more than the window is held for it. */
static void test_slow_sink(void **)
{
	struct lab l;
	static char got[65536];
	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	struct pipes q = lab_start_running(&l, 2, ermite_Kind_RUN, false, 0);
	struct pipes r = lab_start_running(&l, 3, ermite_Kind_RUN, false, 0);
	assert_true(fcntl(p.output, F_SETPIPE_SZ, 4096) >= 4096);
	for (size_t sent = 0; sent < FRAME_WINDOW; sent += 32768)
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 32768});
	lab_say(&l, (struct said){.tag = DATA, .id = 2, .channel = 1, .text = "quick"});
	lab_say(&l, (struct said){.tag = EXITED, .id = 2});
	lab_told(&l, MESSAGE_COUNT, 2, 5, 0);
	lab_told(&l, MESSAGE_EXITED, 2, 0, 0);
	lab_expect_pipe(q.output, "quick");
	close(q.error);

	/* Credit follows what was read. */
	size_t received = 0;
	while (received < FRAME_WINDOW / 2) {
		ssize_t n = read(p.output, got, sizeof(got));
		assert_true(n > 0);
		received += (size_t)n;
	}
	const ermite_Credit credit = lab_hear(&l, ermite_ToGuest_credit_tag)->message.credit;
	assert_int_equal(credit.id, 1);
	assert_int_equal(credit.channel, 1);
	assert_in_range(credit.bytes, FRAME_WINDOW / 4, received + 4096);

	/* The end waits for the reader. */
	lab_say(&l, (struct said){.tag = EXITED, .id = 1, .n = 9});
	lab_say(&l, (struct said){.tag = EXITED, .id = 3, .n = 1});
	lab_told(&l, MESSAGE_COUNT, 3, 0, 0);
	lab_told(&l, MESSAGE_EXITED, 3, 1, 0);
	while (received < FRAME_WINDOW) {
		ssize_t n = read(p.output, got, sizeof(got));
		assert_true(n > 0);
		received += (size_t)n;
	}
	lab_expect_pipe(p.output, "");
	lab_told(&l, MESSAGE_COUNT, 1, FRAME_WINDOW, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 9, 0);
	close(p.error);
	close_pipes(r);
	lab_close(&l, 0);

	/* Beyond the window it is an offence. */
	lab_open_greeted(&l, 0);
	p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	assert_true(fcntl(p.output, F_SETPIPE_SZ, 4096) >= 4096);
	for (size_t sent = 0; sent < FRAME_WINDOW; sent += 32768)
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 32768});
	lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 1});
	lab_told_protocol(&l, "Data of process 1, channel 1: 1 bytes with credit for 0");
	close_pipes(p);
	lab_close(&l, 0);
}

static void test_reader_gone(void **)
{
	struct lab l;
	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	close(p.output);
	for (int i = 0; i < 64; i++) {
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 32768});
		if (i % 4 == 3)
			assert_int_equal(lab_hear(&l, ermite_ToGuest_credit_tag)->message.credit.bytes,
					 131072);
	}
	lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 2, .text = "still here"});
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 10, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	lab_expect_pipe(p.error, "still here");
	lab_close(&l, 0);
}

/* The client writes as fast as it can; not more than a window is under way until the guest grants more. */
static void test_slow_input(void **)
{
	static char block[65536];
	struct lab l;
	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, true, 0);
	assert_int_equal(fcntl(p.input, F_SETFL, O_NONBLOCK), 0);
	size_t written = 0;
	size_t heard = 0;
	while (heard < FRAME_WINDOW) {
		ssize_t wrote = write(p.input, block, sizeof(block));
		written += wrote > 0 ? (size_t)wrote : 0;
		heard += lab_hear(&l, ermite_ToGuest_data_tag)->message.data.bytes.size;
	}
	assert_int_equal(heard, FRAME_WINDOW);
	/* Fill the pipe, so that there is something to be sent, and see that it is not. */
	ssize_t n;
	while ((n = write(p.input, block, sizeof(block))) > 0)
		written += (size_t)n;
	lab_tell(&l, MESSAGE_SIGNAL, 1, SIGHUP, 0, NULL, 0);
	(void)lab_hear(&l, ermite_ToGuest_signal_tag);
	lab_say(&l, (struct said){.tag = CREDIT, .id = 1, .n = 1000});
	assert_int_equal(lab_hear(&l, ermite_ToGuest_data_tag)->message.data.bytes.size, 1000);
	heard += 1000;
	lab_say(&l, (struct said){.tag = CREDIT, .id = 1, .n = FRAME_WINDOW});
	close(p.input);
	while (heard < written)
		heard += lab_hear(&l, ermite_ToGuest_data_tag)->message.data.bytes.size;
	(void)lab_hear(&l, ermite_ToGuest_eof_tag);
	/* Credit for what was sent before the end may still come. */
	lab_say(&l, (struct said){.tag = CREDIT, .id = 1, .n = 1});
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 0, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	close(p.output);
	close(p.error);
	lab_close(&l, 0);
}

/* A guest that reads nothing: the host goes on, and says so in the end. */
static void test_deaf_guest(void **)
{
	static char block[65536];
	struct lab l;
	lab_open_greeted(&l, 500);
	struct pipes p[4];
	for (uint32_t i = 0; i < 4; i++) {
		p[i] = lab_start_running(&l, i + 1, ermite_Kind_RUN, true, 0);
		assert_int_equal(fcntl(p[i].input, F_SETFL, O_NONBLOCK), 0);
	}
	for (int round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < 4; i++)
			(void)!write(p[i].input, block, sizeof(block));
		usleep(1000);
	}
	lab_told(&l, MESSAGE_PROTOCOL, 0, 0, 0);
	assert_memory_equal(l.text, "the guest has read nothing for 500 ms while ", 44);
	for (uint32_t i = 0; i < 4; i++)
		close_pipes(p[i]);
	lab_close(&l, 0);

	/* One that has closed its reading side, and lives on. */
	lab_open_greeted(&l, 200);
	assert_int_equal(shutdown(l.guest, SHUT_RD), 0);
	uint8_t frames[512];
	size_t n = lab_encode_start(1, ermite_Kind_RUN, false, frames, sizeof(frames));
	lab_tell(&l, MESSAGE_START, 1, 0, 0, (int[]){lab_memfd(frames, n), open("/dev/null", O_WRONLY)}, 2);
	lab_told(&l, MESSAGE_PROTOCOL, 0, 0, 0);
	assert_memory_equal(l.text, "the guest has read nothing for 200 ms while ", 44);
	lab_close(&l, 0);
}

/* A copy of files that the guest leaves alone is its offence; one that the client leaves alone is not. */
static void test_copies_go_on(void **)
{
	static const ermite_Kind kinds[] = {ermite_Kind_GET, ermite_Kind_PUT};
	struct lab l;
	for (size_t i = 0; i < 2; i++) {
		bool has_input = kinds[i] == ermite_Kind_PUT;
		lab_open_greeted(&l, 200);
		struct pipes p = lab_start_running(&l, 1, kinds[i], has_input, 1000);
		if (has_input)
			assert_int_equal(write(p.input, "tree", 4), 4);
		lab_told_protocol(&l, "the guest has left a copy of files alone for 200 ms");
		close_pipes(p);
		lab_close(&l, 0);
	}

	lab_open_greeted(&l, 100);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_PUT, true, 0);
	usleep(250000);
	assert_int_equal(write(p.input, "tree", 4), 4);
	(void)lab_hear(&l, ermite_ToGuest_data_tag);
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 0, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	close_pipes(p);
	lab_close(&l, 0);
}

/* The stream ends: what was said before still arrives, then CLOSED. */
static void test_guest_closes(void **)
{
	static char got[65536];
	struct lab l;
	for (int half = 0; half < 2; half++) {
		lab_open_greeted(&l, 0);
		struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, true, 0);
		struct pipes q = lab_start(&l, 2, ermite_Kind_RUN, false, 0);
		assert_true(fcntl(p.output, F_SETPIPE_SZ, 4096) >= 4096);
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 50000});
		/* Killed in the middle of a frame. */
		lab_say_raw(&l, "\x10\0\0\0ab", half ? 6 : 2);
		assert_int_equal(half ? shutdown(l.guest, SHUT_WR) : close(l.guest), 0);
		l.guest = half ? l.guest : -1;
		lab_told(&l, MESSAGE_COUNT, 2, 0, 0);
		lab_expect_pipe(q.output, "");
		size_t received = 0;
		ssize_t n;
		while ((n = read(p.output, got, sizeof(got))) > 0)
			received += (size_t)n;
		assert_int_equal(received, 50000);
		lab_told(&l, MESSAGE_COUNT, 1, 50000, 0);
		lab_told(&l, MESSAGE_CLOSED, 0, 0, 0);
		close_pipes(p);
		close(q.error);
		lab_close(&l, 0);
	}
	/* Before a word was said. */
	lab_open(&l, geteuid(), 0, 0);
	close(lab_connect(&l));
	lab_told(&l, MESSAGE_CLOSED, 0, 0, 0);
	lab_close(&l, 0);
}

static void test_masks(void **)
{
	static const char secrets[] = "hunter2-secret\0other-secret";
	struct lab l;
	lab_open_greeted(&l, 0);
	lab_tell(&l, MESSAGE_SECRETS, 0, 0, 0, (int[]){lab_memfd(secrets, sizeof(secrets))}, 1);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	const char *text = "a hunter2-secret b hunter2-se";
	for (size_t i = 0; text[i]; i++) {
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 1, .text = text + i});
		lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 2, .n = 1, .text = text + i});
	}
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 36, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	lab_expect_pipe(p.output, "a *** b hunter2-se");
	lab_expect_pipe(p.error, "a *** b hunter2-se");
	p = lab_start(&l, 1, ermite_Kind_RUN, false, 0);
	lab_say(&l, (struct said){.tag = FAILED,
				  .id = 1,
				  .channel = 0,
				  .n = 127,
				  .signal = 0,
				  .text = "/bin/other-secret\033[2J: no such program"});
	lab_told(&l, MESSAGE_COUNT, 1, 0, 0);
	lab_told(&l, MESSAGE_FAILED, 1, 127, 0);
	assert_string_equal(l.text, "/bin/***\\x1b[2J: no such program");
	close_pipes(p);
	/* It is too late for more of them. */
	lab_tell(&l, MESSAGE_SECRETS, 0, 0, 0, (int[]){lab_memfd(secrets, sizeof(secrets))}, 1);
	lab_close(&l, 1);
}

/* Encodes a tree of one file of the given size with content "data", without the end. */
static size_t encode_tree(const char *name, uint64_t size, uint8_t *p)
{
	struct tree_entry entry = {.kind = TREE_FILE, .mode = 0644, .size = size, .name = name, .target = ""};
	ptrdiff_t n = tree_write_entry(&entry, p);
	assert_true(n > 0);
	tree_write_segment(0, 4, p + n);
	memcpy(p + n + TREE_SEGMENT, "data", 4);
	n += TREE_SEGMENT + 4;
	tree_write_segment(size, 0, p + n);
	return (size_t)n + TREE_SEGMENT;
}

static size_t encode_tree_end(uint8_t *p)
{
	struct tree_entry end = {.kind = TREE_END, .name = "", .target = ""};
	ptrdiff_t n = tree_write_entry(&end, p);
	assert_true(n > 0);
	return (size_t)n;
}

static void say_bytes(struct lab *l, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		lab_say(l, (struct said){
				   .tag = DATA, .id = 1, .channel = 1, .n = 1, .text = (const char *)p + i});
}

static void test_files(void **)
{
	static uint8_t tree[2 * (TREE_HEAD + 2 * (TREE_NAME_MAX + 1)) + 100];
	static uint8_t got[sizeof(tree)];
	struct lab l;
	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_GET, false, 1000);
	size_t n = encode_tree("file", 4, tree);
	n += encode_tree_end(tree + n);
	say_bytes(&l, tree, n);
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, n, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	assert_int_equal(read(p.output, got, sizeof(got)), n);
	assert_memory_equal(got, tree, n);
	close_pipes(p);

	/* Cut short: fine for a process that failed, an offence for one that says all is well. */
	p = lab_start_running(&l, 1, ermite_Kind_GET, false, 1000);
	say_bytes(&l, tree, 10);
	lab_say(&l, (struct said){.tag = EXITED, .id = 1, .n = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 10, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 1, 0);
	close_pipes(p);
	p = lab_start_running(&l, 1, ermite_Kind_GET, false, 1000);
	say_bytes(&l, tree, 10);
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told_protocol(&l, "Exited of process 1 with status 0 before its files were complete");
	close_pipes(p);
	lab_close(&l, 0);

	/* Bytes that are no tree do not reach the client. */
	lab_open_greeted(&l, 0);
	p = lab_start_running(&l, 1, ermite_Kind_GET, false, 1000);
	n = encode_tree("name", 4, tree);
	memcpy(tree + TREE_HEAD, "/etc", 4);
	lab_say(&l,
		(struct said){
			.tag = DATA, .id = 1, .channel = 1, .n = (uint32_t)n, .text = (const char *)tree});
	lab_told(&l, MESSAGE_PROTOCOL, 0, 0, 0);
	assert_memory_equal(l.text, "files from process 1: ", 22);
	lab_expect_pipe(p.output, "");
	close(p.error);
	lab_close(&l, 0);
}

static void test_files_too_big(void **)
{
	static uint8_t tree[TREE_HEAD + 2 * (TREE_NAME_MAX + 1) + 100];
	struct lab l;
	lab_open_greeted(&l, 0);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_GET, false, 1000);
	size_t n = encode_tree("file", 1001, tree);
	lab_say(&l,
		(struct said){
			.tag = DATA, .id = 1, .channel = 1, .n = (uint32_t)n, .text = (const char *)tree});
	const ermite_ToGuest *m = lab_hear(&l, ermite_ToGuest_signal_tag);
	assert_int_equal(m->message.signal.id, 1);
	assert_int_equal(m->message.signal.number, SIGKILL);
	/* What is under way already is thrown away. */
	lab_say(&l, (struct said){.tag = DATA, .id = 1, .channel = 1, .n = 50000});
	lab_say(&l, (struct said){.tag = EXITED, .id = 1, .signal = SIGKILL});
	lab_told(&l, MESSAGE_COUNT, 1, 0, 0);
	lab_told(&l, MESSAGE_FAILED, 1, 125, 0);
	assert_memory_equal(l.text, "files from process 1: ", 22);
	lab_expect_pipe(p.output, "");
	close(p.error);
	lab_close(&l, 0);
}

/* How many pipes a process has open. */
static int pipes_of(pid_t pid)
{
	int pipes = 0;
	for (int fd = 0; fd < 256; fd++) {
		char path[64];
		char target[64];
		assert_true(snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd) < (int)sizeof(path));
		ssize_t n = readlink(path, target, sizeof(target));
		pipes += n > 5 && memcmp(target, "pipe:", 5) == 0;
	}
	return pipes;
}

/* Descriptors that a guest sends never arrive. */
static void test_smuggled_descriptors(void **)
{
	struct lab l;
	lab_open_greeted(&l, 0);
	int before = pipes_of(l.pid);
	struct pipes p = lab_start_running(&l, 1, ermite_Kind_RUN, false, 0);
	assert_int_equal(pipes_of(l.pid), before + 2);
	uint8_t frame[64];
	size_t head = frame_data_head(1, 1, 1, frame);
	frame[head] = '!';
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {.align = {.cmsg_level = SOL_SOCKET,
			       .cmsg_type = SCM_RIGHTS,
			       .cmsg_len = CMSG_LEN(2 * sizeof(int))}};
	memcpy(control.bytes + CMSG_LEN(0), (int[]){p.output, p.error}, 2 * sizeof(int));
	struct iovec part = {.iov_base = frame, .iov_len = head + 1};
	struct msghdr m = {.msg_iov = &part,
			   .msg_iovlen = 1,
			   .msg_control = control.bytes,
			   .msg_controllen = sizeof(control.bytes)};
	assert_int_equal(sendmsg(l.guest, &m, 0), (ssize_t)head + 1);
	lab_say(&l, (struct said){.tag = EXITED, .id = 1});
	lab_told(&l, MESSAGE_COUNT, 1, 1, 0);
	lab_told(&l, MESSAGE_EXITED, 1, 0, 0);
	assert_int_equal(pipes_of(l.pid), before);
	lab_expect_pipe(p.output, "!");
	lab_expect_pipe(p.error, "");
	lab_close(&l, 0);
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_path),     cmocka_unit_test(test_violations),
		cmocka_unit_test(test_repeated),      cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_deadlines),     cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_slow_sink),     cmocka_unit_test(test_reader_gone),
		cmocka_unit_test(test_slow_input),    cmocka_unit_test(test_deaf_guest),
		cmocka_unit_test(test_copies_go_on),  cmocka_unit_test(test_guest_closes),
		cmocka_unit_test(test_masks),         cmocka_unit_test(test_files),
		cmocka_unit_test(test_files_too_big), cmocka_unit_test(test_smuggled_descriptors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
