#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "keeper/watchdog.h"

/* Runs fn in a child with its standard error in text; returns the child's wait status. */
static int in_child(void (*fn)(void), char *text, size_t size)
{
	int ends[2];
	int status = 0;
	assert_int_equal(pipe(ends), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)dup2(ends[1], STDERR_FILENO);
		if (watchdog_start(NULL) < 0)
			_exit(1);
		fn();
		_exit(0);
	}
	(void)close(ends[1]);
	ssize_t n = read(ends[0], text, size - 1);
	text[n > 0 ? n : 0] = '\0';
	(void)close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void hang(void)
{
	watchdog_step("a test", 100);
	for (;;)
		(void)pause();
}

/* A step that hangs ends the process, with its name, but not before there was time to go on. */
static void test_hangs(void **)
{
	char text[256];
	uint64_t begun = clock_boot_ms();
	int status = in_child(hang, text, sizeof(text));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), WATCHDOG_STATUS);
	assert_string_equal(text, "ermite-keeper: a test hangs; the sandbox is taken down by its record\n");
	assert_true(clock_boot_ms() - begun >= 5000);
}

/* A process that was stopped past the deadline goes on. */
static void be_stopped(void)
{
	watchdog_step("a test", 100);
	if (raise(SIGALRM) != 0)
		_exit(1);
	watchdog_step("another", 100);
	(void)pause(); /* ends with the first alarm, which only warns */
}

static void test_goes_on(void **)
{
	char text[256];
	assert_int_equal(in_child(be_stopped, text, sizeof(text)), 0);
	assert_string_equal(text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hangs),
		cmocka_unit_test(test_goes_on),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
