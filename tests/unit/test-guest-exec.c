#include "guest-host.h"

#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/num.h"

static void says_how_it_ended(void **)
{
	static const struct {
		const char *arguments[4];
		const char *user, *workdir;
		uint32_t status, signal;
		const char *out, *err, *failed;
	} rows[] = {
		{{"true"}, "", "/", 0, 0, "", "", NULL},
		{{"sh", "-c", "exit 7"}, "", "/", 7, 0, "", "", NULL},
		{{"sh", "-c", "echo out; echo err >&2; exit 255"}, "", "/", 255, 0, "out\n", "err\n", NULL},
		{{"sh", "-c", "kill -9 $$"}, "", "/", 0, 9, "", "", NULL},
		{{"pwd"}, "root", "/usr/bin", 0, 0, "/usr/bin\n", "", NULL},
		{{"sh", "-c", "id -un; id -gn; id -Gn; umask"},
		 "nobody",
		 "/",
		 0,
		 0,
		 "nobody\nnogroup\nnogroup\n0022\n",
		 "",
		 NULL},
		{{"sh", "-c", "id -u; id -g"}, "12345:54321", "/", 0, 0, "12345\n54321\n", "", NULL},
		{{"nosuch"}, "", "/", 127, 0, "", "", "nosuch: command not found"},
		{{"./nosuch"}, "", "/", 127, 0, "", "", "./nosuch: No such file or directory"},
		{{"/etc/passwd"}, "", "/", 126, 0, "", "", "/etc/passwd: Permission denied"},
		{{"/etc"}, "", "/", 126, 0, "", "", "/etc: Permission denied"},
		{{"true"}, "nosuch", "/", 125, 0, "", "", "user nosuch: not in /etc/passwd"},
		{{"true"}, "root", "/nosuch", 125, 0, "", "", "workdir: /nosuch: No such file or directory"},
		{{"true"}, "root", "here", 125, 0, "", "", "workdir: here: not an absolute path"},
		{{"true"},
		 "root",
		 "/proc/self/fd/0",
		 125,
		 0,
		 "",
		 "",
		 "workdir: /proc/self/fd/0: Too many levels of symbolic links"},
		{{"true"}, "nobody", "/root", 125, 0, "", "", NULL},
		{{NULL}, "root", "/", 125, 0, "", "", "no command"},
	};
	struct host *h = host_start();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct call c = {.id = (uint32_t)i, .user = rows[i].user, .workdir = rows[i].workdir};
		struct outcome o;
		memcpy(c.arguments, rows[i].arguments, sizeof(rows[i].arguments));
		print_message("%zu %s\n", i, c.arguments[0] ? c.arguments[0] : "(none)");
		host_run(h, &c, &o);
		assert_int_equal(o.status, rows[i].status);
		assert_int_equal(o.signal, rows[i].signal);
		assert_string_equal(outcome_text(&o, 1), rows[i].out);
		assert_string_equal(outcome_text(&o, 2), rows[i].err);
		if (rows[i].failed)
			assert_string_equal(o.text, rows[i].failed);
		assert_int_equal(o.failed, rows[i].failed || o.status == 125);
		assert_true(o.failed || (o.eof[1] && o.eof[2]));
		outcome_free(&o);
	}
	assert_int_equal(host_end(h), 0);
}

/* The start's own variables win; TERM is for terminals only. */
static void gives_an_environment(void **)
{
	struct host *h = host_start();
	struct call c = {.arguments = {"env"}, .environment = {"LANG=de", "X=1 2"}, .user = "daemon"};
	struct outcome o;
	host_run(h, &c, &o);
	assert_string_equal(outcome_text(&o, 1),
			    "LANG=de\nX=1 2\n"
			    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
			    "HOME=/usr/sbin\nUSER=daemon\nLOGNAME=daemon\nSHELL=/usr/sbin/nologin\n");
	outcome_free(&o);
	/* The command is looked for in the PATH that it gets. */
	c = (struct call){.arguments = {"true"}, .environment = {"PATH=/nowhere"}};
	host_run(h, &c, &o);
	assert_int_equal(o.status, 127);
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

/* Only its standard streams are open, nothing is blocked or ignored, and it leads a session. */
static void starts_clean(void **)
{
	static const char script[] =
		"for i in 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 255; do [ -e /proc/$$/fd/$i ] && "
		"echo fd $i; "
		"done; while read -r k v; do case $k in SigBlk:|SigIgn:) echo $k $v;; esac; done "
		"</proc/$$/status; cut -d' ' -f5,6 /proc/$$/stat | sed \"s/$$/SELF/g\"; echo x >/dev/stdout";
	struct host *h = host_start();
	struct call c = {.arguments = {"sh", "-c", script}, .user = "nobody"};
	struct outcome o;
	host_run(h, &c, &o);
	assert_string_equal(outcome_text(&o, 1), "SigBlk: 0000000000000000\nSigIgn: 0000000000000000\n"
						 "SELF SELF\nx\n");
	assert_string_equal(outcome_text(&o, 2), "");
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

static void keeps_the_order_of_output(void **)
{
	struct host *h = host_start();
	struct call c = {.arguments = {"seq", "1", "400000"}};
	struct outcome o;
	host_run(h, &c, &o);
	size_t at = 0;
	for (int i = 1; i <= 400000; i++) {
		char want[16];
		int n = snprintf(want, sizeof(want), "%d\n", i);
		assert_true(at + (size_t)n <= o.n[1]);
		assert_memory_equal(o.output[1] + at, want, (size_t)n);
		at += (size_t)n;
	}
	assert_int_equal(at, o.n[1]);
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

/* Signals reach the whole group, also of a terminal. */
static void signals_the_group(void **)
{
	static const char script[] =
		"trap 'wait; echo both; exit 3' TERM; "
		"sh -c 'trap \"echo child; exit\" TERM; echo up; while :; do sleep 0.01; done' & "
		"while :; do sleep 0.01; done";
	struct host *h = host_start();
	for (uint32_t terminal = 0; terminal < 2; terminal++) {
		struct call c = {.id = terminal, .arguments = {"sh", "-c", script}, .terminal = terminal};
		struct outcome o = {0};
		host_call(h, &c);
		while (!strstr(outcome_text(&o, 1), "up")) {
			assert_non_null(host_next(h, WAIT_MS));
			assert_false(host_take(h, c.id, &o));
		}
		host_signal(h, c.id, SIGTERM);
		host_collect(h, c.id, &o);
		assert_int_equal(o.status, 3);
		assert_non_null(strstr(outcome_text(&o, 1), "child"));
		assert_non_null(strstr(outcome_text(&o, 1), "both"));
		outcome_free(&o);
	}
	/* At once after the start, when there may be no group yet. */
	for (uint32_t i = 10; i < 40; i++) {
		struct call c = {.id = i, .arguments = {"sleep", "100"}};
		struct outcome o = {0};
		host_call(h, &c);
		host_signal(h, i, SIGKILL);
		host_collect(h, i, &o);
		assert_int_equal(o.signal, SIGKILL);
		outcome_free(&o);
	}
	assert_int_equal(host_end(h), 0);
}

static void has_a_terminal(void **)
{
	static const char script[] =
		"stty -echo; tty >/dev/null || exit 9; echo $TERM; stty size; : >/dev/tty; "
		"trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.01; done";
	struct host *h = host_start();
	struct call c = {.arguments = {"sh", "-c", script},
			 .user = "nobody",
			 .terminal = true,
			 .rows = 33,
			 .columns = 99};
	struct outcome o = {0};
	host_call(h, &c);
	while (!strstr(outcome_text(&o, 1), "ready")) {
		assert_non_null(host_next(h, WAIT_MS));
		assert_false(host_take(h, 0, &o));
	}
	h->sent.which_message = ermite_ToGuest_resize_tag;
	h->sent.message.resize = (ermite_Resize){.rows = 50, .columns = 200};
	host_send(h);
	host_collect(h, 0, &o);
	assert_int_equal(o.status, 4);
	assert_string_equal(outcome_text(&o, 1), "xterm-256color\r\n33 99\r\nready\r\n50 200\r\n");
	assert_true(o.eof[1]);
	outcome_free(&o);
	/* All that was said before the end comes through. */
	for (uint32_t i = 10; i < 30; i++) {
		c = (struct call){.id = i, .arguments = {"seq", "10000", "29999"}, .terminal = true};
		host_run(h, &c, &o);
		assert_int_equal(o.n[1], 20000 * strlen("10000\r\n"));
		assert_string_equal((const char *)o.output[1] + o.n[1] - strlen("29999\r\n"), "29999\r\n");
		outcome_free(&o);
	}
	/* Typed input, and its end. */
	c = (struct call){.id = 1,
			  .arguments = {"cat"},
			  .environment = {"TERM=vt100"},
			  .terminal = true,
			  .has_stdin = true};
	host_call(h, &c);
	host_data(h, 1, (const uint8_t *)"abc\n", 4);
	host_eof(h, 1);
	host_collect(h, 1, &o);
	assert_int_equal(o.status, 0);
	assert_non_null(strstr(outcome_text(&o, 1), "abc\r\nabc\r\n"));
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

/* Sends n bytes of a pattern as credit allows, while taking what comes back. */
static void feed(struct host *h, uint32_t id, size_t n, struct outcome *o)
{
	static uint8_t pattern[FRAME_DATA_MAX];
	size_t sent = 0, credit = FRAME_WINDOW;
	bool eof = false;
	for (;;) {
		while (sent < n && credit > 0) {
			size_t part = n - sent < credit ? n - sent : credit;
			part = part < sizeof(pattern) ? part : sizeof(pattern);
			for (size_t i = 0; i < part; i++)
				pattern[i] = (uint8_t)((sent + i) % 251);
			host_data(h, id, pattern, part);
			sent += part;
			credit -= part;
		}
		if (sent == n && !eof)
			host_eof(h, id);
		eof = sent == n;
		assert_non_null(host_next(h, WAIT_MS));
		if (h->got.which_message == ermite_ToHost_credit_tag) {
			assert_int_equal(h->got.message.credit.id, id);
			credit += h->got.message.credit.bytes;
			assert_true(credit <= FRAME_WINDOW);
		}
		if (host_take(h, id, o))
			return;
	}
}

static void passes_input_on(void **)
{
	struct host *h = host_start();
	struct call c = {.arguments = {"sh", "-c", "sleep 0.2; cat"}, .has_stdin = true};
	struct outcome o = {0};
	host_call(h, &c);
	feed(h, 0, 8u << 20, &o);
	assert_int_equal(o.status, 0);
	assert_int_equal(o.n[1], 8u << 20);
	for (size_t i = 0; i < o.n[1]; i++)
		if (o.output[1][i] != i % 251)
			fail_msg("byte %zu is wrong", i);
	outcome_free(&o);
	/* Nobody reads: it is thrown away and nothing stalls. */
	c = (struct call){.id = 1, .arguments = {"sh", "-c", "exec <&-; sleep 1; exit 5"}, .has_stdin = true};
	host_call(h, &c);
	feed(h, 1, 4u << 20, &o);
	assert_int_equal(o.status, 5);
	outcome_free(&o);
	/* No standard input at all. */
	c = (struct call){.id = 2, .arguments = {"cat"}};
	host_run(h, &c, &o);
	assert_int_equal(o.status, 0);
	assert_int_equal(host_end(h), 0);
}

static pid_t number_of(const char *text)
{
	char digits[16] = "";
	uint64_t pid = 0;
	memcpy(digits, text, strcspn(text, "\n") % sizeof(digits));
	assert_int_equal(num_parse(digits, 2, INT32_MAX, &pid), 0);
	return (pid_t)pid;
}

/* Whether an orphan, which comes to this process, has been killed. */
static bool is_killed(pid_t pid)
{
	int status = 0;
	for (int i = 0; i < 200; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		(void)usleep(10000);
	}
	return false;
}

/* A straggler that holds the output has five seconds more; one that does not is killed at once; output that the host
 * has no room for is kept for it all the same. */
static void drains_after_the_end(void **)
{
	struct host *h = host_start();
	struct call holds = {.id = 1, .arguments = {"sh", "-c", "sleep 60 & echo $!; sleep 0.1; exit 3"}};
	struct call lets_go = {.id = 2, .arguments = {"sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"}};
	struct call says_late = {.id = 3, .arguments = {"sh", "-c", "(sleep 1; echo late) & echo now"}};
	struct call waits = {.id = 4, .arguments = {"head", "-c", "700000", "/dev/zero"}};
	struct outcome o = {0};

	uint64_t start_ms = clock_boot_ms();
	host_run(h, &lets_go, &o);
	assert_true(clock_boot_ms() - start_ms < 2000);
	assert_true(is_killed(number_of(outcome_text(&o, 1))));
	outcome_free(&o);

	host_run(h, &says_late, &o);
	assert_string_equal(outcome_text(&o, 1), "now\nlate\n");
	outcome_free(&o);

	/* Output for which there is no credit, beside the straggler's time. */
	host_call(h, &waits);
	size_t got = 0;
	while (got < FRAME_WINDOW) {
		assert_non_null(host_next(h, WAIT_MS));
		if (h->got.which_message == ermite_ToHost_data_tag)
			got += h->got.message.data.bytes.size;
	}
	assert_int_equal(got, FRAME_WINDOW);

	start_ms = clock_boot_ms();
	host_call(h, &holds);
	for (bool ended = false; !ended;) {
		assert_non_null(host_next(h, WAIT_MS));
		bool other =
			h->got.which_message == ermite_ToHost_eof_tag && h->got.message.eof.id == waits.id;
		ended = !other && host_take(h, holds.id, &o);
	}
	uint64_t took_ms = clock_boot_ms() - start_ms;
	assert_in_range(took_ms, 4900, 6500);
	assert_int_equal(o.status, 3);
	assert_true(is_killed(number_of(outcome_text(&o, 1))));
	outcome_free(&o);

	o.pid = 1;
	host_credit(h, waits.id, 1, FRAME_WINDOW);
	host_collect(h, waits.id, &o);
	assert_int_equal(o.n[1], 700000 - FRAME_WINDOW);
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

/* How many descriptors the executor has open, as one of its processes sees it. */
static pid_t count_descriptors(struct host *h)
{
	/* It waits until the executor has said that it runs: before that the executor holds one more. */
	struct call c = {.id = 2000,
			 .arguments = {"sh", "-c", "cat; echo 1$(ls /proc/$PPID/fd | wc -l)"},
			 .has_stdin = true};
	struct outcome o = {0};
	host_call(h, &c);
	while (o.pid == 0) {
		assert_non_null(host_next(h, WAIT_MS));
		assert_false(host_take(h, c.id, &o));
	}
	host_eof(h, c.id);
	host_collect(h, c.id, &o);
	pid_t n = number_of(outcome_text(&o, 1));
	outcome_free(&o);
	return n;
}

static void runs_sixty_four(void **)
{
	struct host *h = host_start();
	struct outcome o = {0};
	pid_t descriptors = count_descriptors(h);
	struct call c = {.arguments = {"cat"}, .has_stdin = true};
	for (c.id = 0; c.id < 64; c.id++)
		host_call(h, &c);
	for (size_t i = 0; i < 64; i++) {
		assert_non_null(host_next(h, WAIT_MS));
		assert_int_equal(h->got.which_message, ermite_ToHost_started_tag);
	}
	c.id = 1000;
	host_run(h, &c, &o);
	assert_true(o.failed);
	assert_int_equal(o.status, 125);
	assert_string_equal(o.text, "64 processes run already");
	for (uint32_t id = 0; id < 64; id++)
		host_eof(h, id);
	for (size_t ended = 0; ended < 64;) {
		assert_non_null(host_next(h, WAIT_MS));
		ended += h->got.which_message == ermite_ToHost_exited_tag;
	}
	/* And there is room again. */
	c = (struct call){.id = 7, .arguments = {"true"}};
	host_run(h, &c, &o);
	assert_false(o.failed);
	assert_int_equal(count_descriptors(h), descriptors);
	assert_int_equal(host_end(h), 0);
}

/* With the stream everything that was started ends. */
static void ends_with_the_stream(void **)
{
	struct host *h = host_start();
	struct call c = {.arguments = {"sh", "-c", "sleep 100 & echo $!; wait"}};
	struct outcome o = {0};
	host_call(h, &c);
	while (!outcome_text(&o, 1)[0]) {
		assert_non_null(host_next(h, WAIT_MS));
		assert_false(host_take(h, 0, &o));
	}
	assert_int_equal(host_end(h), 0);
	assert_true(is_killed((pid_t)o.pid));
	assert_true(is_killed(number_of(outcome_text(&o, 1))));
	outcome_free(&o);
}

/* What is out of turn ends the executor with an error, and what is merely late does nothing. */
static void refuses_what_is_out_of_turn(void **)
{
	struct host *h = host_bare();
	host_hello(h, "another build");
	assert_int_equal(host_end(h), 1);

	h = host_bare();
	host_eof(h, 1);
	assert_int_equal(host_end(h), 1);

	h = host_bare();
	assert_int_equal(write(h->fd, "\xff\xff\xff\xff", 4), 4);
	assert_int_equal(host_end(h), 1);

	h = host_start();
	host_hello(h, build_identity());
	assert_int_equal(host_end(h), 1);

	/* Twice the same id. */
	struct call c = {.id = 5, .arguments = {"sleep", "10"}};
	h = host_start();
	host_call(h, &c);
	host_call(h, &c);
	assert_int_equal(host_end(h), 1);

	/* More input than there is credit for. */
	static uint8_t much[FRAME_WINDOW + 200000];
	c.has_stdin = true;
	h = host_start();
	host_call(h, &c);
	host_data(h, 5, much, sizeof(much));
	assert_int_equal(host_end(h), 1);

	/* Strings of two starts, and a start that counts wrong. */
	h = host_start();
	h->sent = (ermite_ToGuest){.which_message = ermite_ToGuest_start_tag};
	h->sent.message.start.argument_count = 1;
	host_send(h);
	assert_int_equal(host_end(h), 1);

	/* Late, for ids that are not there. */
	struct outcome o;
	h = host_start();
	host_signal(h, 99, 9);
	host_eof(h, 99);
	host_credit(h, 99, 1, 100);
	host_data(h, 99, much, 100);
	c = (struct call){.arguments = {"true"}};
	host_run(h, &c, &o);
	assert_int_equal(o.status, 0);
	assert_int_equal(host_end(h), 0);
}

/* Ignored as whatever posix_spawn() started hands it down; sigaction() does not reach it. */
static void ignore_inner_signal(void)
{
	static const unsigned long ignored[4] = {1}; /* the kernel's struct: SIG_IGN */
	assert_int_equal(syscall(SYS_rt_sigaction, 32, ignored, NULL, _NSIG / 8), 0);
}

int main(void)
{
	/* Becoming another user and making terminals takes root, as inside a sandbox. */
	if (geteuid() != 0)
		return 77;
	(void)signal(SIGPIPE, SIG_IGN);
	ignore_inner_signal();
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(says_how_it_ended),
		cmocka_unit_test(gives_an_environment),
		cmocka_unit_test(starts_clean),
		cmocka_unit_test(keeps_the_order_of_output),
		cmocka_unit_test(signals_the_group),
		cmocka_unit_test(has_a_terminal),
		cmocka_unit_test(passes_input_on),
		cmocka_unit_test(drains_after_the_end),
		cmocka_unit_test(runs_sixty_four),
		cmocka_unit_test(ends_with_the_stream),
		cmocka_unit_test(refuses_what_is_out_of_turn),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
