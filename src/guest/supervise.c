#include "guest/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "guest/ready.h"
#include "guest/self.h"

#define LOG "/var/log/docker.log"

enum {
	AGAIN_MS = 20,      /* until the next look whether the daemon listens */
	START_MS = 20000,   /* for a daemon that does not end and does not listen either */
	END_MS = 5000,      /* for a daemon that was told to end */
	QUIET_MS = 3600000, /* when there is nothing to wait for but a signal */
};

struct supervisor {
	pid_t executor, docker; /* 0: not there, or ended */
	bool told;              /* that the system is up */
	bool ending;
	uint64_t deadline_ms; /* of the daemon's start, or of its end */
};

/* Where Debian has the daemon, and Docker's own packages. NULL: the image has none. */
static const char *find_docker(void)
{
	static const char *const paths[] = {"/usr/sbin/dockerd", "/usr/bin/dockerd",
					    "/usr/local/bin/dockerd"};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		if (access(paths[i], X_OK) == 0)
			return paths[i];
	return NULL;
}

static _Noreturn void become_docker(const char *program)
{
	static char name[] = "dockerd";
	static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	static char home[] = "HOME=/root";
	char *const arguments[] = {name, NULL};
	char *const environment[] = {path, home, NULL};
	scoped_fd int log = open(LOG, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	(void)setsid();
	if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
		_exit(1);
	self_reset();
	(void)execve(program, arguments, environment);
	(void)dprintf(2, "execute %s: %s\n", program, err_text(errno));
	_exit(1);
}

static int start_docker(struct supervisor *s, struct err *e)
{
	const char *program = find_docker();
	if (!program)
		return 0;
	s->docker = fork();
	if (s->docker < 0)
		return err_sys(e, "start Docker");
	if (s->docker == 0)
		become_docker(program);
	s->deadline_ms = clock_boot_ms() + START_MS;
	return 0;
}

/* Reaps all that has ended by now. */
static int reap(struct supervisor *s, struct err *e)
{
	for (;;) {
		siginfo_t info = {0};
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0)
			return errno == ECHILD ? 0 : err_sys(e, "wait for processes");
		if (info.si_pid == 0)
			return 0;
		if (info.si_pid == s->executor)
			s->executor = 0;
		if (info.si_pid == s->docker)
			s->docker = 0;
	}
}

static int tell_ready(struct supervisor *s, struct err *e)
{
	if (s->told || (s->docker && !ready_docker_listens() && clock_boot_ms() < s->deadline_ms))
		return 0;
	s->told = true;
	return ready_say(e);
}

static void begin_end(struct supervisor *s)
{
	if (s->ending)
		return;
	s->ending = true;
	s->told = true;
	s->deadline_ms = clock_boot_ms() + END_MS;
	if (s->docker)
		(void)kill(s->docker, SIGTERM);
}

static bool has_ended(const struct supervisor *s)
{
	return s->ending && (!s->docker || clock_boot_ms() >= s->deadline_ms);
}

/* Waits for a child's end, for SIGTERM, or until it is time to look again. */
static int wait_signal(const struct supervisor *s, const sigset_t *signals)
{
	uint64_t now_ms = clock_boot_ms();
	uint64_t ms = QUIET_MS;
	if (s->ending)
		ms = s->deadline_ms > now_ms ? s->deadline_ms - now_ms : 0;
	else if (!s->told)
		ms = AGAIN_MS;
	const struct timespec timeout = {.tv_sec = (time_t)(ms / 1000),
					 .tv_nsec = (long)(ms % 1000) * 1000000};
	return sigtimedwait(signals, NULL, &timeout);
}

int supervise(pid_t executor, struct err *e)
{
	struct supervisor s = {.executor = executor};
	sigset_t signals;
	/* Blocked, they wait for us, whatever the kernel thinks of signals to a first process. */
	(void)sigemptyset(&signals);
	(void)sigaddset(&signals, SIGCHLD);
	(void)sigaddset(&signals, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
		return err_sys(e, "block signals");
	int r = start_docker(&s, e);
	while (r == 0) {
		r = reap(&s, e);
		if (!s.executor)
			begin_end(&s);
		if (r == 0)
			r = tell_ready(&s, e);
		if (has_ended(&s))
			break;
		if (r == 0 && wait_signal(&s, &signals) == SIGTERM)
			begin_end(&s);
	}
	return r;
}
