/*
 * Runs a command under ptrace and lists the system calls of our programs that have an effect, or ends the process that
 * makes one of them on its way into it, or has one fail:
 *
 *     crash-points OPTIONS REPORT PROGRAM CALL NUMBER ACTION COMMAND...
 *
 * ACTION is `kill` or the number of an error, and NUMBER counts the calls of this name by all processes of PROGRAM; 0
 * is never reached, so that the command is only listed. PROGRAM is the name of an executable, with a `+` for a process
 * that was forked from it and has not executed another one. OPTIONS is `-` or of the letters `o`, count opening for
 * reading too and what matters only when it fails, and `s`, count only after SIGTERM, which is passed on to the
 * command.
 *
 * The report has the lines `point PROGRAM CALL COUNT`, `sandbox ID` for each id that was seen, and `hit` if the point
 * was reached. The exit status is that of the command. strace can do much of this, but counts for each process anew,
 * so that one number is reached in several of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/num.h"

#define N_TRACEES 512
#define N_IDS     64
#define ID_LENGTH 10

/* Which arguments make a call one with an effect. */
enum filter { ALWAYS, OPEN_FLAGS, OPEN_HOW, IOCTL, LOCK, FOR_ERRORS };

struct call {
	const char *name;
	long number;
	enum filter filter;
};

#define CALL(name, filter)                                                                                   \
	{                                                                                                    \
#name, SYS_##name, filter                                                                    \
	}

static const struct call calls[] = {
	CALL(openat, OPEN_FLAGS),
	CALL(openat2, OPEN_HOW),
	CALL(creat, ALWAYS),
	CALL(mkdir, ALWAYS),
	CALL(mkdirat, ALWAYS),
	CALL(rename, ALWAYS),
	CALL(renameat, ALWAYS),
	CALL(renameat2, ALWAYS),
	CALL(unlink, ALWAYS),
	CALL(unlinkat, ALWAYS),
	CALL(rmdir, ALWAYS),
	CALL(symlink, ALWAYS),
	CALL(symlinkat, ALWAYS),
	CALL(linkat, ALWAYS),
	CALL(mknod, ALWAYS),
	CALL(mknodat, ALWAYS),
	CALL(chmod, ALWAYS),
	CALL(fchmod, ALWAYS),
	CALL(fchmodat, ALWAYS),
	CALL(chown, ALWAYS),
	CALL(fchown, ALWAYS),
	CALL(fchownat, ALWAYS),
	CALL(write, ALWAYS),
	CALL(pwrite64, ALWAYS),
	CALL(writev, ALWAYS),
	CALL(fsync, ALWAYS),
	CALL(fdatasync, ALWAYS),
	CALL(ftruncate, ALWAYS),
	CALL(fallocate, ALWAYS),
	CALL(copy_file_range, ALWAYS),
	CALL(sendfile, ALWAYS),
	CALL(splice, ALWAYS),
	CALL(fsetxattr, ALWAYS),
	CALL(utimensat, ALWAYS),
	CALL(flock, ALWAYS),
	CALL(fcntl, LOCK),
	CALL(ioctl, IOCTL),
	CALL(mount, ALWAYS),
	CALL(umount2, ALWAYS),
	CALL(fsopen, ALWAYS),
	CALL(fsconfig, ALWAYS),
	CALL(fsmount, ALWAYS),
	CALL(move_mount, ALWAYS),
	CALL(open_tree, ALWAYS),
	CALL(mount_setattr, ALWAYS),
	CALL(pivot_root, ALWAYS),
	CALL(chroot, ALWAYS),
	CALL(clone, ALWAYS),
	CALL(clone3, ALWAYS),
	CALL(fork, ALWAYS),
	CALL(vfork, ALWAYS),
	CALL(execve, ALWAYS),
	CALL(execveat, ALWAYS),
	CALL(setns, ALWAYS),
	CALL(unshare, ALWAYS),
	CALL(socket, ALWAYS),
	CALL(socketpair, ALWAYS),
	CALL(bind, ALWAYS),
	CALL(listen, ALWAYS),
	CALL(connect, ALWAYS),
	CALL(accept4, ALWAYS),
	CALL(setsockopt, ALWAYS),
	CALL(sendto, ALWAYS),
	CALL(sendmsg, ALWAYS),
	CALL(recvmsg, ALWAYS),
	CALL(pipe2, ALWAYS),
	CALL(memfd_create, ALWAYS),
	CALL(kill, ALWAYS),
	CALL(pidfd_open, ALWAYS),
	CALL(pidfd_send_signal, ALWAYS),
	CALL(prctl, ALWAYS),
	CALL(capset, ALWAYS),
	CALL(setresuid, ALWAYS),
	CALL(setresgid, ALWAYS),
	CALL(setgroups, ALWAYS),
	CALL(setsid, ALWAYS),
	CALL(seccomp, ALWAYS),
	CALL(bpf, ALWAYS),
	CALL(mmap, FOR_ERRORS),
	CALL(dup2, FOR_ERRORS),
	CALL(dup3, FOR_ERRORS),
	CALL(epoll_create1, FOR_ERRORS),
	CALL(epoll_ctl, FOR_ERRORS),
	CALL(timerfd_create, FOR_ERRORS),
	CALL(timerfd_settime, FOR_ERRORS),
	CALL(signalfd4, FOR_ERRORS),
	CALL(timer_create, FOR_ERRORS),
};

#define N_CALLS (sizeof(calls) / sizeof(calls[0]))

/* The programs whose calls count, each followed by its forked processes. Whatever else is executed is let go. */
static const char *const programs[] = {
	"ermite-runner",   "ermite-runner+", "ermite-keeper", "ermite-keeper+", "ermite-conduit",
	"ermite-conduit+", "ermite-dns",     "ermite-dns+",   "ermite-relay",   "ermite-relay+",
	"ermite-lxc",      "ermite-lxc+",    "nft",           "nft+",           "lxcfs",
	"lxcfs+",
};

#define N_PROGRAMS    (sizeof(programs) / sizeof(programs[0]))
#define FIRST_PROGRAM 0

struct tracee {
	pid_t pid;
	size_t program;
	int known;   /* Its parent has told of it. */
	int waiting; /* It has stopped and was not known. */
	int fails;   /* The call that it is in is to fail. */
};

struct tracer {
	struct tracee tracees[N_TRACEES];
	size_t n_tracees;
	uint64_t counts[N_PROGRAMS][N_CALLS];
	char ids[N_IDS][ID_LENGTH + 1];
	size_t n_ids;
	int count_more;
	int counting;
	size_t program;
	size_t call;
	uint64_t number;
	int error; /* 0 for an end. */
	int hit;
	pid_t first;
	int status;
};

static volatile sig_atomic_t told_to_end;

static void pass_on(int)
{
	told_to_end = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "crash-points: %s: %s\n", what, strerrorname_np(errno));
	_exit(99);
}

static struct tracee *find(struct tracer *t, pid_t pid)
{
	for (size_t i = 0; i < t->n_tracees; i++)
		if (t->tracees[i].pid == pid)
			return &t->tracees[i];
	if (t->n_tracees == N_TRACEES) {
		errno = ENOSPC;
		die("too many processes");
	}
	struct tracee *new = &t->tracees[t->n_tracees++];
	*new = (struct tracee){.pid = pid};
	return new;
}

static void forget(struct tracer *t, pid_t pid)
{
	struct tracee *gone = find(t, pid);
	*gone = t->tracees[--t->n_tracees];
}

/* A process that has been killed meanwhile is no error; its end comes next. */
static void resume(pid_t pid, int signal)
{
	if (ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)signal) < 0 && errno != ESRCH)
		die("resume");
}

static int passes(const struct tracer *t, pid_t pid, const struct call *call, const uint64_t *args)
{
	const uint64_t changes = O_ACCMODE | O_CREAT | O_TRUNC;
	switch (call->filter) {
	case OPEN_FLAGS:
		return t->count_more || (args[2] & changes) != 0;
	case OPEN_HOW:
		return t->count_more ||
		       ((uint64_t)ptrace(PTRACE_PEEKDATA, pid, (void *)args[2], NULL) & changes) != 0;
	case IOCTL:
		return (args[1] >> 8 & 255) != 'T'; /* Not those of terminals. */
	case FOR_ERRORS:
		return t->count_more;
	case LOCK:
		return args[1] == F_SETLK || args[1] == F_SETLKW || args[1] == F_OFD_SETLK ||
		       args[1] == F_OFD_SETLKW;
	case ALWAYS:
	default:
		return 1;
	}
}

/* Remembers the last component of a path if it is the id of a sandbox. */
static void look_for_id(struct tracer *t, pid_t pid, uint64_t address)
{
	char path[256] = "";
	for (size_t i = 0; i + sizeof(long) < sizeof(path) && strlen(path) == i; i += sizeof(long)) {
		long word = ptrace(PTRACE_PEEKDATA, pid, (void *)(address + i), NULL);
		memcpy(path + i, &word, sizeof(word));
	}
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	if (strlen(name) != ID_LENGTH || strncmp(name, "er", 2) != 0 ||
	    strspn(name + 2, "0123456789abcdef") != ID_LENGTH - 2)
		return;
	for (size_t i = 0; i < t->n_ids; i++)
		if (strcmp(t->ids[i], name) == 0)
			return;
	if (t->n_ids < N_IDS)
		memcpy(t->ids[t->n_ids++], name, ID_LENGTH + 1);
}

static void enter(struct tracer *t, struct tracee *tracee, const struct __ptrace_syscall_info *info)
{
	size_t i = 0;
	while (i < N_CALLS && calls[i].number != (long)info->entry.nr)
		i++;
	if (i == N_CALLS || !passes(t, tracee->pid, &calls[i], info->entry.args))
		return;
	if (info->entry.nr == SYS_mkdirat)
		look_for_id(t, tracee->pid, info->entry.args[1]);
	if (!t->counting)
		return;
	t->counts[tracee->program][i]++;
	if (t->hit || tracee->program != t->program || i != t->call ||
	    t->counts[tracee->program][i] != t->number)
		return;
	t->hit = 1;
	if (t->error == 0) {
		kill(tracee->pid, SIGKILL);
		return;
	}
	/* No call has this number; the result is set on the way out. */
	if (ptrace(PTRACE_POKEUSER, tracee->pid, (void *)offsetof(struct user_regs_struct, orig_rax),
		   (void *)-1L) < 0)
		die("skip the call");
	tracee->fails = 1;
}

static void at_call(struct tracer *t, struct tracee *tracee)
{
	struct __ptrace_syscall_info info = {0};
	if (ptrace(PTRACE_GET_SYSCALL_INFO, tracee->pid, (void *)sizeof(info), &info) < 0)
		return; /* It has been killed. */
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		enter(t, tracee, &info);
	} else if (tracee->fails) {
		tracee->fails = 0;
		if (ptrace(PTRACE_POKEUSER, tracee->pid, (void *)offsetof(struct user_regs_struct, rax),
			   (void *)(intptr_t)-t->error) < 0)
			die("set the result");
	}
}

/* After execve. Returns 0 if the program is none of ours and the process was let go. */
static int at_exec(struct tracer *t, struct tracee *tracee)
{
	char link[64];
	char path[4096];
	snprintf(link, sizeof(link), "/proc/%d/exe", tracee->pid);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	const char *slash = strrchr(path, '/');
	for (size_t i = 0; slash && i < N_PROGRAMS; i++) {
		/* The guest's program has the same name as the command. */
		if (strcmp(programs[i], slash + 1) == 0 && (i != FIRST_PROGRAM || tracee->pid == t->first)) {
			tracee->program = i;
			return 1;
		}
	}
	ptrace(PTRACE_DETACH, tracee->pid, NULL, NULL);
	forget(t, tracee->pid);
	return 0;
}

static void at_fork(struct tracer *t, const struct tracee *parent)
{
	unsigned long message = 0;
	if (ptrace(PTRACE_GETEVENTMSG, parent->pid, NULL, &message) < 0)
		return;
	struct tracee *child = find(t, (pid_t)message);
	child->program = parent->program | 1;
	child->known = 1;
	if (child->waiting)
		resume(child->pid, 0);
	child->waiting = 0;
}

static void at_event(struct tracer *t, pid_t pid, int event, int signal)
{
	struct tracee *tracee = find(t, pid);
	int stops = signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
	if (event == PTRACE_EVENT_STOP && !tracee->known) {
		tracee->waiting = 1;
		return;
	}
	if (event == PTRACE_EVENT_STOP && stops) {
		ptrace(PTRACE_LISTEN, pid, NULL, NULL);
		return;
	}
	if (event == PTRACE_EVENT_EXEC && !at_exec(t, tracee))
		return;
	if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE)
		at_fork(t, tracee);
	resume(pid, 0);
}

static void at_stop(struct tracer *t, pid_t pid, int status)
{
	int event = status >> 16;
	int signal = WSTOPSIG(status);
	if (WIFEXITED(status) || WIFSIGNALED(status)) {
		if (pid == t->first)
			t->status = status;
		forget(t, pid);
	} else if (event != 0) {
		at_event(t, pid, event, signal);
	} else if (signal == (SIGTRAP | 0x80)) {
		at_call(t, find(t, pid));
		resume(pid, 0);
	} else {
		resume(pid, signal);
	}
}

/* Until no process of ours is left: one that outlives the command is waited for, too. */
static void trace(struct tracer *t)
{
	for (;;) {
		int status = 0;
		pid_t pid = waitpid(-1, &status, __WALL);
		if (told_to_end) {
			told_to_end = 0;
			t->counting = 1;
			kill(t->first, SIGTERM);
		}
		if (pid > 0)
			at_stop(t, pid, status);
		else if (errno == ECHILD)
			return;
		else if (errno != EINTR)
			die("wait");
	}
}

/* A child that becomes the command once it is traced. */
static void start(struct tracer *t, char **command)
{
	int ready[2];
	char byte = 0;
	if (pipe2(ready, O_CLOEXEC) < 0)
		die("pipe");
	t->first = fork();
	if (t->first < 0)
		die("fork");
	if (t->first == 0) {
		if (read(ready[0], &byte, 1) != 1)
			_exit(99);
		execv(command[0], command);
		die(command[0]);
	}
	long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC |
		       PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
	if (ptrace(PTRACE_SEIZE, t->first, NULL, (void *)options) < 0)
		die("seize");
	find(t, t->first)->known = 1;
	ptrace(PTRACE_INTERRUPT, t->first, NULL, NULL);
	if (write(ready[1], &byte, 1) != 1)
		die("let go");
	close(ready[0]);
	close(ready[1]);
}

static void report(const struct tracer *t, const char *path)
{
	FILE *file = fopen(path, "we");
	if (!file)
		die(path);
	for (size_t p = 0; p < N_PROGRAMS; p++)
		for (size_t c = 0; c < N_CALLS; c++)
			if (t->counts[p][c])
				fprintf(file, "point %s %s %ju\n", programs[p], calls[c].name,
					(uintmax_t)t->counts[p][c]);
	for (size_t i = 0; i < t->n_ids; i++)
		fprintf(file, "sandbox %s\n", t->ids[i]);
	if (t->hit)
		fputs("hit\n", file);
	if (fclose(file) != 0)
		die(path);
}

static void read_point(struct tracer *t, char **argv)
{
	while (t->program < N_PROGRAMS && strcmp(programs[t->program], argv[0]) != 0)
		t->program++;
	while (t->call < N_CALLS && strcmp(calls[t->call].name, argv[1]) != 0)
		t->call++;
	uint64_t error = 0;
	int is_kill = strcmp(argv[3], "kill") == 0;
	if (num_parse(argv[2], 0, UINT32_MAX, &t->number) < 0 ||
	    (!is_kill && num_parse(argv[3], 1, 4095, &error) < 0)) {
		errno = EINVAL;
		die("the point");
	}
	t->error = (int)error;
}

int main(int argc, char **argv)
{
	static struct tracer tracer;
	if (argc < 8) {
		fputs("usage: crash-points OPTIONS REPORT PROGRAM CALL NUMBER ACTION COMMAND...\n", stderr);
		return 99;
	}
	tracer.count_more = strchr(argv[1], 'o') != NULL;
	tracer.counting = strchr(argv[1], 's') == NULL;
	read_point(&tracer, argv + 3);
	struct sigaction action = {.sa_handler = pass_on};
	if (sigaction(SIGTERM, &action, NULL) < 0)
		die("handle SIGTERM");
	start(&tracer, argv + 7);
	trace(&tracer);
	report(&tracer, argv[2]);
	return WIFSIGNALED(tracer.status) ? 128 + WTERMSIG(tracer.status) : WEXITSTATUS(tracer.status);
}
