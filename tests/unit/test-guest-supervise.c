#include "guest-first.h"

#include <fcntl.h>
#include <sys/un.h>

#include "base/scope.h"
#include "guest/ready.h"
#include "guest/supervise.h"

#define SOCKET "/run/docker.sock"

/* Daemons of an image. The test listens in place of the patient one. */
static const char patient[] =
	"#!/bin/sh\n"
	"trap 'echo ended; exit 0' TERM\n"
	"echo started $0 $# $PATH; echo trouble >&2\n"
	/* The shell itself reads its masks: while it starts another program it blocks everything for a moment. */
	"while read -r l; do case $l in SigBlk*|SigIgn*) echo \"$l\";; esac; done </proc/$$/status\n"
	"echo >/run/started\n"
	"exec 2>/dev/null; read x </run/never\n";
static const char hasty[] = "#!/bin/sh\nread x </run/begin\necho cannot start\nexit 1\n";
static const char stubborn[] = "#!/bin/sh\ntrap '' TERM\necho >/run/started\nread x </run/never\n";

static void write_docker(const char *script)
{
	scoped_fd int fd = open("/usr/sbin/dockerd", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	CHECK(file_write_all(fd, script, strlen(script), NULL) == 0);
}

static bool is_ready(struct host *h, int ms)
{
	const ermite_ToHost *m = host_next(h, ms);
	return m && m->which_message == ermite_ToHost_system_ready_tag;
}

/* Waits for what the daemon writes into a FIFO. */
static void wait_for(const char *path)
{
	char byte;
	scoped_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, &byte, 1) == 1);
}

static int listen_for_docker(void)
{
	const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
	      listen(fd, 4) == 0);
	return fd;
}

/* Supervises an executor; beside it, judge plays the host and ends by leaving /run/good. */
static void supervised(void (*judge)(struct host *h))
{
	struct err e = ERR_INIT;
	struct host *h = calloc(1, sizeof(*h));
	int fds[2];
	int notify = -1;
	CHECK(h && mount("log", "/var/log", "tmpfs", 0, NULL) == 0);
	/* The image enables Docker's socket unit as well, which is of no matter here. */
	CHECK(mkdir("/etc/systemd/system", 0755) == 0);
	CHECK(mkdir("/etc/systemd/system/sockets.target.wants", 0755) == 0);
	CHECK(symlink("/nowhere", "/etc/systemd/system/sockets.target.wants/docker.socket") == 0);
	static const char *const fifos[] = {"/run/started", "/run/begin", "/run/never"};
	for (size_t i = 0; i < sizeof(fifos) / sizeof(fifos[0]); i++)
		CHECK(mkfifo(fifos[i], 0600) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	CHECK(ready_bind(&notify, NULL) == 0);
	pid_t executor = fork();
	if (executor == 0) {
		(void)close(fds[0]);
		_exit(exec_serve(fds[1], notify, NULL) < 0);
	}
	(void)close(notify);
	(void)close(fds[1]);
	if (fork() == 0) {
		h->fd = fds[0];
		host_hello(h, build_identity());
		CHECK(host_next(h, WAIT_MS) && h->got.which_message == ermite_ToHost_hello_tag);
		judge(h);
		CHECK(mkdir("/run/good", 0755) == 0);
		(void)close(h->fd);
		_exit(0);
	}
	(void)close(fds[0]);
	CHECK(supervise(executor, &e) == 0);
	CHECK(access("/run/good", F_OK) == 0);
}

static void expect_log(const char *expected)
{
	char text[512];
	CHECK(file_read_text(AT_FDCWD, "/var/log/docker.log", text, sizeof(text), NULL) >= 0);
	if (strcmp(text, expected) != 0)
		(void)dprintf(2, "%s\n", text);
	CHECK(strcmp(text, expected) == 0);
}

static void judge_ready_at_once(struct host *h)
{
	CHECK(is_ready(h, 2000));
	CHECK(!is_ready(h, 100));
}

static void without_docker(void)
{
	supervised(judge_ready_at_once);
	CHECK(access("/var/log/docker.log", F_OK) < 0);
}

static void is_up_at_once_without_docker(void **)
{
	as_first_process(without_docker);
}

static void judge_ready_when_it_listens(struct host *h)
{
	wait_for("/run/started");
	CHECK(!is_ready(h, 300));
	scoped_fd int fd = listen_for_docker();
	CHECK(is_ready(h, 2000));
	/* Nobody has connected. */
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && accept4(fd, NULL, NULL, SOCK_CLOEXEC) < 0);
	struct call c = {.id = 1, .arguments = {"sh", "-c", "exit 7"}};
	struct outcome o;
	host_run(h, &c, &o);
	CHECK(o.status == 7);
}

#define PATIENT_LOG                                                                                          \
	"started /usr/sbin/dockerd 0 /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"         \
	"trouble\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nended"

static void with_docker(void)
{
	write_docker(patient);
	supervised(judge_ready_when_it_listens);
	expect_log(PATIENT_LOG);
}

static void is_up_when_docker_listens(void **)
{
	as_first_process(with_docker);
}

static void judge_ready_when_it_ended(struct host *h)
{
	CHECK(!is_ready(h, 200));
	CHECK(file_put(AT_FDCWD, "/run/begin", "\n", NULL) == 0);
	CHECK(is_ready(h, 2000));
}

static void with_hasty_docker(void)
{
	write_docker(hasty);
	supervised(judge_ready_when_it_ended);
	expect_log("cannot start");
}

static void is_up_when_docker_cannot_start(void **)
{
	as_first_process(with_hasty_docker);
}

static void judge_terminate(struct host *)
{
	wait_for("/run/started");
	CHECK(mkdir("/run/good", 0755) == 0);
	CHECK(kill(1, SIGTERM) == 0);
	/* The stream stays open: it is the signal that counts. */
	(void)pause();
}

static void terminated(void)
{
	write_docker(patient);
	supervised(judge_terminate);
	expect_log(PATIENT_LOG);
}

static void ends_in_order_on_sigterm(void **)
{
	as_first_process(terminated);
}

static void judge_started(struct host *)
{
	wait_for("/run/started");
}

static void with_stubborn_docker(void)
{
	write_docker(stubborn);
	uint64_t start_ms = clock_boot_ms();
	supervised(judge_started);
	uint64_t took_ms = clock_boot_ms() - start_ms;
	CHECK(took_ms >= 4900);
}

static void ends_without_a_stubborn_docker(void **)
{
	as_first_process(with_stubborn_docker);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_up_at_once_without_docker),   cmocka_unit_test(is_up_when_docker_listens),
		cmocka_unit_test(is_up_when_docker_cannot_start), cmocka_unit_test(ends_in_order_on_sigterm),
		cmocka_unit_test(ends_without_a_stubborn_docker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
