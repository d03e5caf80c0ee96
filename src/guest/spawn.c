#include "guest/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/scope.h"
#include "guest/self.h"

#define REPORT    3 /* the report pipe in the new process, behind its standard streams */
#define PIPE_SIZE 1048576

/* Both ends of the standard streams and of the report pipe while they are made. */
struct ends {
	int ours[3], theirs[3];
	int report_ours, report_theirs;
};

#define ENDS_INIT                                                                                            \
	((struct ends){.ours = {-1, -1, -1}, .theirs = {-1, -1, -1}, .report_ours = -1, .report_theirs = -1})
#define scoped_ends __attribute__((cleanup(ends_close)))

static void ends_close(struct ends *d)
{
	for (size_t i = 0; i < 3; i++) {
		fd_close(&d->ours[i]);
		fd_close(&d->theirs[i]);
	}
	fd_close(&d->report_ours);
	fd_close(&d->report_theirs);
}

static int set_nonblocking(int fd, struct err *e)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return err_sys(e, "make a pipe");
	return 0;
}

/* Makes a pipe whose one end is ours and does not block. */
static int make_pipe(bool we_read, int *ret_ours, int *ret_theirs, struct err *e)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC) < 0)
		return err_sys(e, "make a pipe");
	*ret_ours = fds[we_read ? 0 : 1];
	*ret_theirs = fds[we_read ? 1 : 0];
	return set_nonblocking(*ret_ours, e);
}

static int make_pipes(const ermite_Start *start, struct ends *d, struct err *e)
{
	int r = 0;
	if (start->has_stdin)
		r = make_pipe(false, &d->ours[0], &d->theirs[0], e);
	else if ((d->theirs[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
		r = err_sys(e, "open /dev/null");
	for (size_t i = 1; r == 0 && i < 3; i++)
		r = make_pipe(true, &d->ours[i], &d->theirs[i], e);
	/* A long pipe saves wake-ups when much is said; beyond the user's share the kernel refuses, which is fine. */
	if (r == 0)
		(void)fcntl(d->ours[1], F_SETPIPE_SZ, PIPE_SIZE);
	return r;
}

/* Makes a pseudo terminal; its peer is asked from the master, so that no path is trusted. */
static int make_terminal(const ermite_Start *start, struct ends *d, struct err *e)
{
	struct winsize size = {.ws_row = (unsigned short)start->rows,
			       .ws_col = (unsigned short)start->columns};
	int unlocked = 0;
	d->ours[1] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (d->ours[1] < 0 && errno == ENOSPC)
		return err_set(e, -ENOSPC,
			       "no terminal is free: the sandbox has used up its own, or the host those of "
			       "its sysctl kernel.pty.max");
	if (d->ours[1] < 0)
		return err_sys(e, "open /dev/ptmx");
	if (ioctl(d->ours[1], TIOCSPTLCK, &unlocked) < 0 || ioctl(d->ours[1], TIOCSWINSZ, &size) < 0)
		return err_sys(e, "set up a terminal");
	d->theirs[0] = ioctl(d->ours[1], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (d->theirs[0] < 0)
		return err_sys(e, "open the terminal");
	d->ours[0] = fcntl(d->ours[1], F_DUPFD_CLOEXEC, 3);
	if (d->ours[0] < 0)
		return err_sys(e, "open the terminal");
	return 0;
}

static int make_ends(const ermite_Start *start, struct ends *d, struct err *e)
{
	int r = start->terminal ? make_terminal(start, d, e) : make_pipes(start, d, e);
	return r < 0 ? r : make_pipe(true, &d->report_ours, &d->report_theirs, e);
}

/* In the new process: leaves it with its standard streams, the report pipe and nothing else. */
static int take_places(const struct ends *d)
{
	for (int i = 0; i < 3; i++) {
		int from = d->theirs[i] < 0 ? d->theirs[0] : d->theirs[i];
		if (dup2(from, i) < 0)
			return -1;
	}
	if (d->report_theirs != REPORT && dup3(d->report_theirs, REPORT, O_CLOEXEC) < 0)
		return -1;
	return close_range(REPORT + 1, ~0u, 0);
}

static _Noreturn void become_child(const struct job *job, const struct ends *d)
{
	if (setsid() < 0 || (job->start->terminal && ioctl(d->theirs[0], TIOCSCTTY, 0) < 0) ||
	    take_places(d) < 0)
		job_fail(d->report_theirs, 125, err_text(errno));
	self_reset();
	job_run(job, REPORT);
}

int spawn_start(const struct job *job, struct spawned *ret, struct err *e)
{
	scoped_ends struct ends d = ENDS_INIT;
	int r = make_ends(job->start, &d, e);
	if (r < 0)
		return r;
	pid_t pid = fork();
	if (pid < 0)
		return err_sys(e, "fork");
	if (pid == 0)
		become_child(job, &d);
	int pidfd = pidfd_open(pid, 0);
	if (pidfd < 0) {
		r = err_sys(e, "watch process %d", (int)pid);
		(void)kill(pid, SIGKILL);
		(void)waitpid(pid, NULL, 0);
		return r;
	}
	*ret = (struct spawned){
		.pid = pid,
		.pidfd = pidfd,
		.report = fd_steal(&d.report_ours),
		.in = fd_steal(&d.ours[0]),
		.out = fd_steal(&d.ours[1]),
		.err = fd_steal(&d.ours[2]),
	};
	return 0;
}
