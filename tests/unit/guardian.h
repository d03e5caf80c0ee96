/*
 * For tests that make things which outlive them: a process that cleans up when the test has ended, in whatever way.
 */
#ifndef ERMITE_TESTS_GUARDIAN_H
#define ERMITE_TESTS_GUARDIAN_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* Starts the guardian of this process: once that is gone, it calls clean() and ends. clean() must accept that nothing
 * is left. It is no child of the test, which may wait for all of those. Returns false when it could not be started. */
static inline bool guardian_start(void (*clean)(void))
{
	int status = -1;
	int test = pidfd_open(getpid(), 0);
	pid_t pid = test < 0 ? -1 : fork();
	if (pid != 0) {
		(void)close(test);
		return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
	}
	pid_t guardian = fork();
	if (guardian != 0)
		_exit(guardian < 0);
	/* Whoever kills the group of the test does not mean us. */
	(void)setsid();
	(void)signal(SIGTERM, SIG_IGN);
	struct pollfd gone = {.fd = test, .events = POLLIN};
	while (poll(&gone, 1, -1) != 1)
		;
	clean();
	_exit(0);
}

#endif
