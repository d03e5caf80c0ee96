#include "keeper/watchdog.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_S = 5 };

/* A signal handler has nothing but globals. */
static timer_t timer;
static char sentence[160];           /* changed while no deadline runs */
static volatile sig_atomic_t warned; /* the deadline has passed once */

static void arm(time_t seconds, long ns)
{
	const struct itimerspec when = {.it_value = {.tv_sec = seconds, .tv_nsec = ns}};
	(void)timer_settime(timer, 0, &when, NULL);
}

static void on_alarm(int)
{
	int saved = errno;
	if (!warned) {
		warned = 1;
		arm(GRACE_S, 0);
		errno = saved;
		return;
	}
	(void)!write(STDERR_FILENO, sentence, strlen(sentence));
	_exit(WATCHDOG_STATUS);
}

int watchdog_start(struct err *e)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
	(void)sigemptyset(&action.sa_mask);
	if (sigaction(SIGALRM, &action, NULL) < 0 || timer_create(CLOCK_MONOTONIC, &event, &timer) < 0)
		return err_sys(e, "set up the watchdog");
	return 0;
}

void watchdog_step(const char *step, uint64_t ms)
{
	arm(0, 0);
	(void)snprintf(sentence, sizeof(sentence),
		       "ermite-keeper: %s hangs; the sandbox is taken down by its record\n", step);
	warned = 0;
	arm((time_t)(ms / 1000), (long)(ms % 1000) * 1000000);
}
