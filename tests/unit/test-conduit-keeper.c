/* What the keeper says to the conduit; what the guest says is in test-conduit.c. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "conduit-lab.h"

static void close_pipes(struct pipes p)
{
	if (p.input >= 0)
		close(p.input);
	close(p.output);
	close(p.error);
}

/* Every message that the keeper could send by mistake ends the conduit; the four that it may send do not. */
static void test_orders(void **)
{
	for (uint32_t type = 0; type <= MESSAGE_TYPES; type++) {
		struct lab l;
		uint32_t least = 0;
		uint32_t most = 0;
		int fds[4];
		message_fds(type, &least, &most);
		for (uint32_t i = 0; i < least; i++)
			fds[i] = open("/dev/null", O_RDWR);
		lab_open_greeted(&l, 0);
		lab_tell(&l, type, 1, 1, 1, fds, least);
		bool taken = type == MESSAGE_START || type == MESSAGE_SIGNAL || type == MESSAGE_RESIZE ||
			     type == MESSAGE_SECRETS;
		if (taken)
			assert_true(message_permitted(type, SENDER_KEEPER));
		if (type == MESSAGE_START)
			lab_told(&l, MESSAGE_FAILED, 1, 125, 0);
		lab_close(&l, taken ? 0 : 1);
		if (!taken)
			continue;
		/* A descriptor more than there can be. */
		fds[0] = fds[1] = fds[2] = fds[3] = -1;
		for (uint32_t i = 0; i < 4; i++)
			fds[i] = open("/dev/null", O_RDWR);
		lab_open_greeted(&l, 0);
		lab_tell(&l, type, 1, 2, 1, fds, 4);
		if (type == MESSAGE_START)
			lab_told(&l, MESSAGE_FAILED, 1, 125, 0);
		lab_close(&l, type == MESSAGE_START ? 0 : 1);
	}
}

static void test_orders_out_of_range(void **)
{
	struct {
		uint32_t type;
		uint64_t a, b;
	} rows[] = {{MESSAGE_SIGNAL, 0, 0},
		    {MESSAGE_SIGNAL, 65, 0},
		    {MESSAGE_RESIZE, 65536, 1},
		    {MESSAGE_RESIZE, 1, 65536}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct lab l;
		lab_open_greeted(&l, 0);
		lab_tell(&l, rows[i].type, 1, rows[i].a, rows[i].b, NULL, 0);
		lab_close(&l, 1);
	}
}

/* What cannot be started is told as FAILED, and the rest goes on. */
static void test_refused_starts(void **)
{
	static uint8_t frames[1300000];
	size_t good = lab_encode_start(1, ermite_Kind_RUN, false, frames, sizeof(frames));
	struct {
		uint32_t id;
		bool has_input;
		size_t n;
		uint32_t pipes;
		const char *words;
	} rows[] = {
		{1, false, good - 1, 1, "its frames: they are cut short"},
		{1, false, 0, 1, "its frames: they are cut short"},
		{1, false, good + 1, 1, "its frames go on after the start"},
		{2, false, good, 1, "its frames: strings that are too many or another's"},
		{1, true, good, 2, "its frames: they are not those of this start"},
		{1, true, good, 1, "2 descriptors are not what it says"},
		{1, false, good, 3, "4 descriptors are not what it says"},
		{1, false, sizeof(frames), 1, "its frames have more than 1258291 bytes"},
	};
	struct lab l;
	lab_open_greeted(&l, 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int fds[4] = {lab_memfd(frames, rows[i].n)};
		int ends[2];
		assert_int_equal(pipe(ends), 0);
		for (uint32_t k = 0; k < rows[i].pipes; k++)
			fds[k + 1] = dup(ends[1]);
		lab_tell(&l, MESSAGE_START, rows[i].id, rows[i].has_input, 0, fds, rows[i].pipes + 1);
		lab_told(&l, MESSAGE_FAILED, rows[i].id, 125, 0);
		if (strncmp(l.text, rows[i].words, strlen(rows[i].words)) != 0)
			fail_msg("\"%s\" instead of \"%s\"", l.text, rows[i].words);
		close(ends[1]);
		lab_expect_pipe(ends[0], "");
	}
	for (uint32_t id = 100; id < 164; id++)
		close_pipes(lab_start(&l, id, ermite_Kind_RUN, false, 0));
	good = lab_encode_start(1, ermite_Kind_RUN, false, frames, sizeof(frames));
	lab_tell(&l, MESSAGE_START, 1, 0, 0, (int[]){lab_memfd(frames, good), open("/dev/null", O_WRONLY)},
		 2);
	lab_told(&l, MESSAGE_FAILED, 1, 125, 0);
	assert_string_equal(l.text, "64 processes run already");
	lab_close(&l, 0);

	/* Before Hello, and a number that is in use. */
	lab_open(&l, geteuid(), 0, 0);
	lab_tell(&l, MESSAGE_START, 1, 0, 0, (int[]){lab_memfd(frames, good), open("/dev/null", O_WRONLY)},
		 2);
	lab_told(&l, MESSAGE_FAILED, 1, 125, 0);
	assert_string_equal(l.text, "the executor is not connected");
	lab_close(&l, 0);
	lab_open_greeted(&l, 0);
	close_pipes(lab_start(&l, 1, ermite_Kind_RUN, false, 0));
	lab_tell(&l, MESSAGE_START, 1, 0, 0, (int[]){lab_memfd(frames, good), open("/dev/null", O_WRONLY)},
		 2);
	lab_close(&l, 1);
}

static void test_configuration(void **)
{
	struct err e = ERR_INIT;
	struct conduit_config c;
	struct conduit_config got;
	conduit_config_init(&c, 900512, 965536);
	int fd = lab_memfd(&c, sizeof(c));
	assert_int_equal(conduit_config_read(fd, &got, &e), 0);
	assert_memory_equal(&c, &got, sizeof(c));
	assert_int_equal(got.hello_ms, 10000);
	assert_int_equal(got.frame_ms, 30000);
	assert_int_equal(got.copy_ms, 60000);
	close(fd);
	fd = lab_memfd(&c, sizeof(c) - 1);
	assert_int_equal(conduit_config_read(fd, &got, &e), -EINVAL);
	close(fd);
	c.magic++;
	fd = lab_memfd(&c, sizeof(c));
	assert_int_equal(conduit_config_read(fd, &got, &e), -EINVAL);
	assert_string_equal(e.msg, "configuration: it is not one of this build");
	close(fd);
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_configuration),
		cmocka_unit_test(test_orders),
		cmocka_unit_test(test_orders_out_of_range),
		cmocka_unit_test(test_refused_starts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
