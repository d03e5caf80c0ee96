#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "client/terminal.h"

/* Opens a new terminal; both ends are the caller's. */
static void open_terminal(int *ret_master, int *ret_fd)
{
	*ret_master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(*ret_master >= 0);
	assert_int_equal(grantpt(*ret_master), 0);
	assert_int_equal(unlockpt(*ret_master), 0);
	*ret_fd = open(ptsname(*ret_master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(*ret_fd >= 0);
}

static tcflag_t local_flags(int fd)
{
	struct termios t = {0};
	assert_int_equal(tcgetattr(fd, &t), 0);
	return t.c_lflag;
}

static void raw_and_back(void **)
{
	scoped_fd int master = -1;
	scoped_fd int fd = -1;
	open_terminal(&master, &fd);
	tcflag_t before = local_flags(fd);
	assert_true(before & ICANON);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(terminal_raw(fd, NULL), 0);
		assert_false(local_flags(fd) & (ICANON | ECHO | ISIG));
		terminal_restore();
		assert_int_equal(local_flags(fd), before);
	}
	/* Once more does nothing, also when somebody else has changed the terminal since. */
	struct termios t = {0};
	assert_int_equal(tcgetattr(fd, &t), 0);
	t.c_lflag &= ~(tcflag_t)ECHO;
	assert_int_equal(tcsetattr(fd, TCSANOW, &t), 0);
	terminal_restore();
	assert_int_equal(local_flags(fd), before & ~(tcflag_t)ECHO);
}

static void no_terminal(void **)
{
	scoped_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct err e = ERR_INIT;
	assert_int_equal(terminal_raw(null, &e), -ENOTTY);
	terminal_restore();
	uint32_t rows = 0;
	uint32_t columns = 0;
	terminal_size(null, &rows, &columns);
	assert_int_equal(rows, 24);
	assert_int_equal(columns, 80);
}

static void size(void **)
{
	scoped_fd int master = -1;
	scoped_fd int fd = -1;
	open_terminal(&master, &fd);
	struct winsize w = {.ws_row = 50, .ws_col = 132};
	assert_int_equal(ioctl(master, TIOCSWINSZ, &w), 0);
	uint32_t rows = 0;
	uint32_t columns = 0;
	terminal_size(fd, &rows, &columns);
	assert_int_equal(rows, 50);
	assert_int_equal(columns, 132);
}

/* A process that crashes leaves the terminal as it found it, and is still ended by the signal. */
static void comes_back_after_a_crash(void **)
{
	static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
	scoped_fd int master = -1;
	scoped_fd int fd = -1;
	open_terminal(&master, &fd);
	tcflag_t before = local_flags(fd);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		pid_t pid = fork();
		if (pid == 0) {
			const struct rlimit no_core = {0, 0};
			(void)setrlimit(RLIMIT_CORE, &no_core);
			if (terminal_raw(fd, NULL) < 0 || local_flags(fd) & ICANON)
				_exit(1);
			(void)raise(signals[i]);
			_exit(2);
		}
		int status = 0;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), signals[i]);
		assert_int_equal(local_flags(fd), before);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(raw_and_back),
		cmocka_unit_test(no_terminal),
		cmocka_unit_test(size),
		cmocka_unit_test(comes_back_after_a_crash),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
