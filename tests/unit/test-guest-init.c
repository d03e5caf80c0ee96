#include "guest-first.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "base/scope.h"
#include "guest/filter.h"
#include "guest/init.h"
#include "guest/ready.h"

static void finds_the_init(void **)
{
	static const struct {
		const char *directories[4], *file, *link, *target;
		const char *path;
		bool is_systemd;
	} rows[] = {
		{{"sbin"}, NULL, NULL, NULL, NULL, false},
		{{"sbin"}, "sbin/init", NULL, NULL, "/sbin/init", false},
		{{"sbin", "lib", "lib/systemd"},
		 "lib/systemd/systemd",
		 NULL,
		 NULL,
		 "/lib/systemd/systemd",
		 true},
		/* Links are the image's own and stay inside it. */
		{{"sbin", "lib", "lib/systemd"},
		 "lib/systemd/systemd",
		 "sbin/init",
		 "/lib/systemd/systemd",
		 "/sbin/init",
		 true},
		{{"sbin", "lib", "lib/systemd"},
		 "lib/systemd/systemd",
		 "sbin/init",
		 "../../../lib/systemd/systemd",
		 "/sbin/init",
		 true},
		{{"sbin"}, NULL, "sbin/init", "/bin/sh", NULL, false},
		{{"sbin", "sbin/init"}, NULL, NULL, NULL, NULL, false},
		{{"usr", "usr/lib", "usr/lib/systemd"},
		 "usr/lib/systemd/systemd",
		 NULL,
		 NULL,
		 "/usr/lib/systemd/systemd",
		 true},
	};
	scoped_fd int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char path[] = "/tmp/test-guest-init-XXXXXX";
		assert_non_null(mkdtemp(path));
		scoped_fd int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		for (size_t d = 0; d < 4 && rows[i].directories[d]; d++)
			assert_int_equal(mkdirat(root, rows[i].directories[d], 0755), 0);
		if (rows[i].file) {
			scoped_fd int fd = openat(root, rows[i].file, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
			assert_true(fd >= 0);
		}
		if (rows[i].link)
			assert_int_equal(symlinkat(rows[i].target, root, rows[i].link), 0);
		struct init_found found = init_find(root);
		print_message("%zu\n", i);
		if (rows[i].path)
			assert_string_equal(found.path, rows[i].path);
		else
			assert_null(found.path);
		assert_int_equal(found.is_systemd, rows[i].is_systemd);
		assert_int_equal(file_remove_tree(tmp, path + strlen("/tmp/"), NULL), 0);
	}
}

#define ORPHANS 2000

/* Makes orphans and waits until PID 1 has reaped every one. */
static void storm(void)
{
	static pid_t pids[ORPHANS];
	for (int i = 0; i < ORPHANS; i++) {
		int fds[2];
		CHECK(pipe2(fds, O_CLOEXEC) == 0);
		pid_t middle = fork();
		CHECK(middle >= 0);
		if (middle == 0) {
			pid_t orphan = fork();
			if (orphan == 0)
				_exit(i % 256);
			CHECK(write(fds[1], &orphan, sizeof(orphan)) == sizeof(orphan));
			_exit(0);
		}
		CHECK(read(fds[0], &pids[i], sizeof(pids[i])) == sizeof(pids[i]) && pids[i] > 0);
		CHECK(waitpid(middle, NULL, 0) == middle);
		(void)close(fds[0]);
		(void)close(fds[1]);
	}
	uint64_t deadline_ms = clock_boot_ms() + 10000;
	for (int i = 0; i < ORPHANS; i++)
		while (kill(pids[i], 0) == 0)
			CHECK(clock_boot_ms() < deadline_ms);
}

static void reap_the_storm(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		storm();
		/* Somebody is left behind that does not end by itself. */
		if (fork() == 0)
			(void)sleep(100);
		CHECK(file_put(AT_FDCWD, "/run/done", "yes", NULL) < 0);
		scoped_fd int fd = open("/run/done", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		_exit(fd < 0);
	}
	CHECK(init_reap_until(pid, NULL) == 0);
	CHECK(access("/run/done", F_OK) == 0);
	CHECK(waitpid(-1, NULL, WNOHANG) == 0);
}

static void reaps_orphans(void **)
{
	as_first_process(reap_the_storm);
}

/* The host's end: a socket where the executor looks for it. */
static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path));
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(listen(fd, 4) == 0);
	return fd;
}

/* Takes the executor's connection and greets it. */
static struct host *host_accept(int listener)
{
	struct host *h = calloc(1, sizeof(*h));
	CHECK(h);
	h->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(h->fd >= 0);
	host_hello(h, build_identity());
	CHECK(host_next(h, WAIT_MS) && h->got.which_message == ermite_ToHost_hello_tag);
	return h;
}

static bool is_ready(struct host *h, int ms)
{
	const ermite_ToHost *m = host_next(h, ms);
	return m && m->which_message == ermite_ToHost_system_ready_tag;
}

static void notify(const char *text)
{
	static const char name[] = READY_ADDRESS;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, name, strlen(name));
	address.sun_path[0] = '\0';
	scoped_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	CHECK(sendto(fd, text, strlen(text), 0, (const struct sockaddr *)&address, size) > 0);
}

static struct host *serve_with_notify(void)
{
	struct host *h = calloc(1, sizeof(*h));
	int fds[2];
	int socket_fd = -1;
	CHECK(h && ready_bind(&socket_fd, NULL) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	h->executor = fork();
	if (h->executor == 0) {
		(void)close(fds[0]);
		_exit(exec_serve(fds[1], socket_fd, NULL) < 0);
	}
	(void)close(fds[1]);
	(void)close(socket_fd);
	h->fd = fds[0];
	host_hello(h, build_identity());
	CHECK(host_next(h, WAIT_MS) && h->got.which_message == ermite_ToHost_hello_tag);
	return h;
}

static void wait_for_init(void)
{
	struct host *h = serve_with_notify();
	notify("STATUS=booting");
	notify("NOTREADY=1\nREADY=10\n");
	CHECK(!is_ready(h, 100));
	/* Somebody else says so, with a descriptor attached in vain. */
	pid_t other = fork();
	if (other == 0) {
		notify("READY=1");
		_exit(0);
	}
	CHECK(waitpid(other, NULL, 0) == other);
	CHECK(!is_ready(h, 100));
	notify("STATUS=Startup finished\nREADY=1\nX=y");
	CHECK(is_ready(h, 1000));
	/* Only once, and more of it does not block the sender. */
	for (int i = 0; i < 100; i++)
		notify("READY=1");
	CHECK(!is_ready(h, 100));
	(void)close(h->fd);
	int status;
	CHECK(waitpid(h->executor, &status, 0) == h->executor && status == 0);
}

static void is_ready_when_init_says_so(void **)
{
	as_first_process(wait_for_init);
}

static void wait_for_docker(void)
{
	CHECK(mkdir("/etc/systemd/system", 0755) == 0);
	CHECK(mkdir("/etc/systemd/system/sockets.target.wants", 0755) == 0);
	CHECK(symlink("/nowhere", "/etc/systemd/system/sockets.target.wants/docker.socket") == 0);
	struct host *h = serve_with_notify();
	notify("READY=1");
	/* Bound is not enough, nor is another's socket. */
	scoped_fd int other = listen_at("/run/docker.sock2");
	CHECK(other >= 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/docker.sock"};
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(!is_ready(h, 300));
	CHECK(listen(fd, 4) == 0);
	CHECK(is_ready(h, 1000));
	/* Nobody has connected. */
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && accept4(fd, NULL, NULL, SOCK_CLOEXEC) < 0);

	/* It never listens: five seconds are enough. */
	(void)close(h->fd);
	CHECK(waitpid(h->executor, NULL, 0) == h->executor);
	CHECK(rename("/run/docker.sock", "/run/gone") == 0);
	(void)close(fd_steal(&fd));
	h = serve_with_notify();
	uint64_t start_ms = clock_boot_ms();
	notify("READY=1");
	CHECK(is_ready(h, 8000));
	uint64_t took_ms = clock_boot_ms() - start_ms;
	CHECK(took_ms >= 4900 && took_ms < 7000);
}

static void is_ready_when_docker_listens(void **)
{
	as_first_process(wait_for_docker);
}

/* Opens the door after a while, until which nobody connects. */
static void open_door(int door, int listener)
{
	scoped_fd int guest = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	struct pollfd p = {.fd = listener, .events = POLLIN};
	CHECK(guest >= 0);
	CHECK(poll(&p, 1, 200) == 0);
	CHECK(write(guest, "", 1) == 1);
}

/* A filter that refuses acct() and nothing else, where the host attaches the real one. */
static void attach_filter(void)
{
	const struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_acct, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	CHECK(mount("opt", "/opt", "tmpfs", 0, NULL) == 0);
	CHECK(mkdir("/opt/ermite", 0755) == 0);
	scoped_fd int fd = open(FILTER_PATH, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	CHECK(write(fd, program, sizeof(program)) == sizeof(program));
}

static void refuses_without_a_filter(void)
{
	struct err e = ERR_INIT;
	int door = listen_at("/run/ermite/init.sock");
	pid_t host = fork();
	if (host == 0) {
		scoped_fd int guest = accept4(door, NULL, NULL, SOCK_CLOEXEC);
		_exit(write(guest, "", 1) != 1);
	}
	CHECK(mount("opt", "/opt", "tmpfs", 0, NULL) == 0);
	CHECK(init_run(&e) == -ENOENT);
	CHECK(strcmp(e.msg, "load the filter: open " FILTER_PATH ": No such file or directory") == 0);
}

static void does_not_go_on_without_a_filter(void **)
{
	as_first_process(refuses_without_a_filter);
}

/* Without an init of the image the program stays, says ready at once, and ends with the executor. */
static void stay(void)
{
	int door = listen_at("/run/ermite/init.sock");
	int listener = listen_at("/run/ermite/exec.sock");
	attach_filter();
	pid_t host = fork();
	if (host == 0) {
		open_door(door, listener);
		struct host *h = host_accept(listener);
		CHECK(is_ready(h, 1000));
		struct call c = {.id = 1, .arguments = {"grep", "^Seccomp:.2", "/proc/self/status"}};
		struct outcome o;
		host_run(h, &c, &o);
		CHECK(o.status == 0 && o.n[1] > 0);
		(void)close(h->fd);
		(void)sleep(100);
	}
	CHECK(init_run(NULL) == 0);
}

static void stays_without_an_init(void **)
{
	as_first_process(stay);
}

/* The shell itself reads its masks: while it starts another program it blocks everything for a moment. */
static const char script[] =
	"#!/bin/sh\n"
	"{ echo $0 $# $$; env; for i in 3 4 5 6 7 8 9; do [ -e /proc/1/fd/$i ] && echo fd $i; done\n"
	"while read -r l; do case $l in SigBlk*|SigIgn*) echo \"$l\";; esac; done </proc/1/status; cat "
	"/proc/1/oom_score_adj; } >/run/seen\n"
	"mv /run/seen /run/told; read x </run/end; [ \"$x\" = good ]\n";

static const char seen[] = "/sbin/init 0 1\ncontainer=lxc\nPWD=/\n"
			   "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0\n"
			   /* Of a process that was started, and of the executor. */
			   "0\n500\n";

/* Beside the init: asks the executor for what the script wrote, and tells the script how to end. */
static void judge_init(int listener)
{
	struct host *h = host_accept(listener);
	CHECK(is_ready(h, 1000));
	struct call c = {.id = 1,
			 .arguments = {"sh", "-c",
				       "while ! [ -e /run/told ]; do sleep 0.01; done; cat /run/told; "
				       "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj"}};
	struct outcome o;
	host_run(h, &c, &o);
	bool good = strcmp(outcome_text(&o, 1), seen) == 0;
	if (!good)
		(void)dprintf(2, "%s", outcome_text(&o, 1));
	CHECK(file_put(AT_FDCWD, "/run/end", good ? "good\n" : "bad\n", NULL) == 0);
}

/* The image's init gets a clean process, and the executor serves beside it. */
static void become(void)
{
	scoped_fd int fd = open("/usr/sbin/init", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	CHECK(file_write_all(fd, script, strlen(script), NULL) == 0);
	fd_close(&fd);
	CHECK(mkfifo("/run/end", 0600) == 0);
	CHECK(file_put(AT_FDCWD, "/proc/self/oom_score_adj", "500", NULL) == 0);
	int listener = listen_at("/run/ermite/exec.sock");
	pid_t judge = fork();
	if (judge == 0) {
		judge_init(listener);
		_exit(0);
	}
	sigset_t all;
	(void)sigfillset(&all);
	(void)sigprocmask(SIG_BLOCK, &all, NULL);
	/* One descriptor that somebody forgot. */
	CHECK(fcntl(1, F_DUPFD, 7) >= 0);
	CHECK(setenv("container", "lxc", 1) == 0 && setenv("SECRET", "x", 1) == 0);
	CHECK(init_run(NULL) == 0);
}

static void becomes_the_init(void **)
{
	as_first_process(become);
}

/* Ignored as whatever posix_spawn() started hands it down; sigaction() does not reach it. */
static void ignore_inner_signal(void)
{
	static const unsigned long ignored[4] = {1}; /* the kernel's struct: SIG_IGN */
	assert_int_equal(syscall(SYS_rt_sigaction, 32, ignored, NULL, _NSIG / 8), 0);
}

int main(void)
{
	/* New namespaces and mounts take root, as a sandbox's first process has it. */
	if (geteuid() != 0)
		return 77;
	(void)signal(SIGPIPE, SIG_IGN);
	ignore_inner_signal();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_the_init),
		cmocka_unit_test(reaps_orphans),
		cmocka_unit_test(is_ready_when_init_says_so),
		cmocka_unit_test(is_ready_when_docker_listens),
		cmocka_unit_test(does_not_go_on_without_a_filter),
		cmocka_unit_test(stays_without_an_init),
		cmocka_unit_test(becomes_the_init),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
