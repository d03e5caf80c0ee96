#include "io/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"

/* The child runs on this much until it executes the program. */
#define STACK_BYTES 65536

/* What the child could not do: sent through a pipe that execve() closes. */
struct fault {
	int error;
	const char *what; /* a constant of this program, so the address holds on both sides */
};

/* What the child needs to know, prepared by the parent. */
struct birth {
	const struct child_plan *plan;
	int report; /* write end of the pipe */
	int parent; /* pidfd of the parent, -1 when it does not matter */
};

/* The child shares the parent's memory until it executes the program, while the parent waits (vfork): nothing is
 * copied, which is what makes starting fast. So it writes to nothing but its own stack, and its frames are kept out of
 * the address sanitizer, whose marks would stay behind. */
#define in_child static __attribute__((no_sanitize("address")))

const char *const child_environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};

/* In a child signals are blocked here, and the parent's handlers must never run in it. The system call itself,
 * because sigaction() refuses the two signals that glibc keeps for itself, and whatever posix_spawn() started, make
 * for one, hands them down ignored. */
__attribute__((no_sanitize("address"))) void child_reset_signals(void)
{
	static const unsigned long standard[4]; /* the kernel's struct: SIG_DFL, no flags, an empty mask */
	for (int number = 1; number < _NSIG; number++)
		(void)syscall(SYS_rt_sigaction, number, standard, NULL, _NSIG / 8);
	sigset_t none;
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* True when the parent has ended: its number cannot tell, being 0 from within a new pid namespace. */
in_child bool is_orphan(int parent)
{
	struct pollfd p = {.fd = parent, .events = POLLIN};
	return poll(&p, 1, 0) != 0;
}

/* Puts the descriptors in their places. A source may lie where another must go, so all are first duplicated above
 * the places. The report moves to the place behind the last. */
in_child bool place_fds(const struct child_plan *plan, int *report)
{
	int high[CHILD_FDS_MAX];
	int n = (int)plan->n_fds;
	for (int i = 0; i < n; i++) {
		int from = plan->fds[i] < 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : plan->fds[i];
		high[i] = fcntl(from, F_DUPFD_CLOEXEC, n + 1);
		if (high[i] < 0)
			return false;
	}
	int report_high = fcntl(*report, F_DUPFD_CLOEXEC, n + 1);
	if (report_high < 0)
		return false;
	*report = report_high;
	if (dup3(report_high, n, O_CLOEXEC) < 0)
		return false;
	*report = n;
	for (int i = 0; i < n; i++) {
		if (dup2(high[i], i) < 0)
			return false;
	}
	return close_range((unsigned)n + 1, ~0U, 0) == 0;
}

in_child const char *be_born(struct birth *b)
{
	static char *const empty[] = {NULL};
	const struct child_plan *plan = b->plan;
	if (plan->new_session && setsid() < 0)
		return "start a session";
	if (plan->die_with_parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || is_orphan(b->parent)))
		return "follow the parent";
	if (!place_fds(plan, &b->report))
		return "place descriptors";
	child_reset_signals();
	/* execve() takes arrays of pointers to char that it does not write to. */
	char *const *arguments = (char *const *)(uintptr_t)plan->arguments;
	char *const *environment = (char *const *)(uintptr_t)plan->environment;
	execve(plan->path, arguments, environment ? environment : empty);
	return "execute";
}

in_child int child_main(void *data)
{
	struct birth b = *(struct birth *)data;
	struct fault fault = {.what = be_born(&b)};
	fault.error = errno;
	ssize_t n = write(b.report, &fault, sizeof(fault));
	_exit(n < 0 ? 126 : 127);
}

/* clone() rather than clone3(), because the C library offers only this one with a stack for the child, and it makes
 * pidfds just as well. */
static pid_t make_child(struct birth *b, void *stack, int *ret_pidfd)
{
	sigset_t all, before;
	sigfillset(&all);
	(void)sigprocmask(SIG_SETMASK, &all, &before);
	int flags = (int)b->plan->clone_flags | CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD;
	pid_t pid = clone(child_main, (char *)stack + STACK_BYTES, flags, b, ret_pidfd);
	int saved = errno;
	(void)sigprocmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return pid;
}

int child_refused(struct err *e)
{
	if (errno != EAGAIN)
		return err_sys(e, "clone");
	return err_set(e, -EAGAIN,
		       "no more processes are allowed: see ulimit -u, and pids.max of the control group");
}

/* Makes the child and hears what became of it. */
static int start(struct birth *b, int reader, struct child *ret, struct err *e)
{
	const char *path = b->plan->path;
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
			   -1, 0);
	if (stack == MAP_FAILED)
		return err_sys(e, "start %s: stack", path);
	struct child child = CHILD_INIT;
	child.pid = make_child(b, stack, &child.pidfd);
	int r = 0;
	if (child.pid < 0) {
		r = child_refused(e);
		r = err_ctx(e, r, "start %s", path);
	}
	(void)munmap(stack, STACK_BYTES);
	fd_close(&b->report);
	if (r < 0)
		return r;

	struct fault fault = {0};
	ssize_t n;
	do
		n = read(reader, &fault, sizeof(fault));
	while (n < 0 && errno == EINTR);
	if (n == 0) {
		*ret = child;
		return 0;
	}
	child_kill(&child);
	if (n != sizeof(fault))
		return err_set(e, -EIO, "start %s: it ended before it ran", path);
	return err_code(e, -fault.error, "start %s: %s", path, fault.what);
}

int child_start(const struct child_plan *plan, struct child *ret, struct err *e)
{
	if (plan->n_fds > CHILD_FDS_MAX)
		return err_set(e, -EINVAL, "start %s: %zu descriptors are too many", plan->path, plan->n_fds);
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(e, "start %s: pipe", plan->path);
	scoped_fd int reader = ends[0];
	struct birth b = {.plan = plan, .report = ends[1], .parent = -1};
	scoped_fd int parent = plan->die_with_parent ? pidfd_open(getpid(), 0) : -1;
	if (plan->die_with_parent && parent < 0) {
		fd_close(&b.report);
		return err_sys(e, "start %s: pidfd_open", plan->path);
	}
	b.parent = parent;
	return start(&b, reader, ret, e);
}

/* Waits until the pidfd tells the end. */
static int wait_end(int pidfd, uint64_t ms, struct err *e)
{
	uint64_t begin = clock_boot_ms();
	for (;;) {
		uint64_t gone = clock_boot_ms() - begin;
		uint64_t left = gone < ms ? ms - gone : 0;
		struct pollfd p = {.fd = pidfd, .events = POLLIN};
		int n = poll(&p, 1, ms == UINT64_MAX ? -1 : left > INT_MAX ? INT_MAX : (int)left);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return err_sys(e, "wait for a process");
		if (n == 0 && left <= INT_MAX)
			return err_set(e, -ETIMEDOUT, "wait for a process: not over after %llu ms",
				       (unsigned long long)ms);
	}
}

int child_wait(struct child *c, uint64_t ms, struct child_end *ret, struct err *e)
{
	struct child_end end = {0};
	if (c->pidfd >= 0) {
		int r = wait_end(c->pidfd, ms, e);
		if (r < 0)
			return r;
		siginfo_t info = {0};
		if (waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED) < 0)
			return err_sys(e, "wait for a process");
		if (info.si_code == CLD_EXITED)
			end.status = info.si_status;
		else
			end = (struct child_end){.status = -1, .signal = info.si_status};
		fd_close(&c->pidfd);
		*c = CHILD_INIT;
	}
	*ret = end;
	return 0;
}

int child_signal(const struct child *c, int number, struct err *e)
{
	if (c->pidfd < 0 || pidfd_send_signal(c->pidfd, number, NULL, 0) == 0 || errno == ESRCH)
		return 0;
	return err_sys(e, "send signal %d", number);
}

void child_kill(struct child *c)
{
	if (c->pidfd < 0)
		return;
	struct child_end end;
	(void)child_signal(c, SIGKILL, NULL);
	(void)child_wait(c, UINT64_MAX, &end, NULL);
	/* Only a child that somebody else has reaped is still here. */
	fd_close(&c->pidfd);
	*c = CHILD_INIT;
}

int child_adopt_orphans(struct err *e)
{
	return prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 ? err_sys(e, "become a subreaper") : 0;
}

void child_reap_orphans(uint64_t ms)
{
	uint64_t begin = clock_boot_ms();
	siginfo_t info;
	do {
		info = (siginfo_t){0};
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) < 0)
			return; /* there are no children */
		if (info.si_pid == 0)
			(void)poll(NULL, 0, 1);
	} while (clock_boot_ms() - begin < ms);
}

int child_run(const char *path, const char *const *arguments, int log, struct err *e)
{
	struct child_plan plan = {
		.path = path,
		.arguments = arguments,
		.environment = child_environment,
		.fds = (const int[]){-1, log, log},
		.n_fds = 3,
		.die_with_parent = true,
	};
	struct child child = CHILD_INIT;
	int r = child_start(&plan, &child, e);
	if (r < 0)
		return r;
	struct child_end end;
	r = child_wait(&child, UINT64_MAX, &end, e);
	if (r < 0) {
		child_kill(&child);
		return err_ctx(e, r, "run %s", path);
	}
	return end.signal ? 128 + end.signal : end.status;
}
