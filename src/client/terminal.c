#include "client/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <termios.h>

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGSYS};

/* A global because a signal handler gets no data: the terminal must come back also when this process crashes. */
static struct {
	volatile sig_atomic_t is_raw;
	int fd;
	struct termios before;
} state;

void terminal_restore(void)
{
	if (!state.is_raw)
		return;
	int saved = errno;
	(void)tcsetattr(state.fd, TCSANOW, &state.before);
	state.is_raw = 0;
	errno = saved;
}

/* Runs with SA_RESETHAND: raising the signal again ends the process as it would have ended. */
static void on_crash(int number)
{
	terminal_restore();
	(void)raise(number);
}

int terminal_raw(int fd, struct err *e)
{
	if (tcgetattr(fd, &state.before) < 0)
		return err_sys(e, "terminal");
	state.fd = fd;
	struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
	(void)sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof(crash_signals) / sizeof(crash_signals[0]); i++)
		if (sigaction(crash_signals[i], &action, NULL) < 0)
			return err_sys(e, "terminal");
	struct termios raw = state.before;
	cfmakeraw(&raw);
	state.is_raw = 1;
	if (tcsetattr(fd, TCSANOW, &raw) < 0) {
		state.is_raw = 0;
		return err_sys(e, "make the terminal raw");
	}
	return 0;
}

void terminal_size(int fd, uint32_t *ret_rows, uint32_t *ret_columns)
{
	struct winsize size = {0};
	int r = ioctl(fd, TIOCGWINSZ, &size);
	*ret_rows = r == 0 && size.ws_row > 0 ? size.ws_row : 24;
	*ret_columns = r == 0 && size.ws_col > 0 ? size.ws_col : 80;
}
