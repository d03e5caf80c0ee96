#include "guest/init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/cgroups.h"
#include "guest/door.h"
#include "guest/exec.h"
#include "guest/filter.h"
#include "guest/paths.h"
#include "guest/ready.h"
#include "guest/root.h"
#include "guest/self.h"
#include "guest/supervise.h"

/* What the steps hand on to each other. */
struct init {
	struct door_mounts mounts;
	int host;          /* owned; hears why there is no executor; -1 where nobody let us in */
	bool in_container; /* mounts came: Docker made this sandbox, and its root is ours to build */
	bool unified;      /* known there: version 2 of control groups alone */
	struct init_found found;
	int notify; /* owned; -1: nobody will say that the system is up */
	pid_t executor;
};

/* The name of an open file's last component, after links. */
static void file_name(int fd, char name[static INIT_PATH_MAX])
{
	if (file_path(fd, name, INIT_PATH_MAX, NULL) < 0)
		name[0] = '\0';
	const char *slash = strrchr(name, '/');
	if (slash)
		memmove(name, slash + 1, strlen(slash));
}

static bool is_program(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111);
}

struct init_found init_find(int root)
{
	static const char *const paths[] = {"/sbin/init", "/lib/systemd/systemd", "/usr/lib/systemd/systemd"};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		char name[INIT_PATH_MAX];
		scoped_fd int fd = -1;
		if (paths_open_root(root, paths[i], O_PATH, &fd, NULL) < 0 || !is_program(fd))
			continue;
		file_name(fd, name);
		return (struct init_found){.path = paths[i], .is_systemd = strcmp(name, "systemd") == 0};
	}
	return (struct init_found){0};
}

static int knock(struct init *i, struct err *e)
{
	int r = door_knock(&i->mounts, &i->host, e);
	i->in_container = i->mounts.n > 0;
	return r;
}

static int build(struct init *i, struct err *e)
{
	if (!i->in_container)
		return 0;
	int r = root_build(&i->mounts, e);
	if (r == 0)
		r = cgroups_mount(&i->unified, e);
	if (r < 0)
		return r;
	/* Docker's standard streams lead to its daemon. */
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		(void)close(fd);
	return self_open_streams(e);
}

/* Version 2 of control groups has BPF programs say which devices a group may use, and nested runtimes insist on theirs
 * where root is the host's: under the filter, which refuses them, there would be no nested container. */
static int load_filter(struct init *i, struct err *e)
{
	return i->host >= 0 && !(i->unified && root_is_hosts()) ? filter_load(FILTER_PATH, e) : 0;
}

static int find(struct init *i, struct err *e)
{
	if (i->in_container)
		return 0;
	scoped_fd int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(e, "open /");
	i->found = init_find(root);
	return 0;
}

/* The socket exists before systemd or Docker starts, whatever the executor does meanwhile. */
static int bind_notify(struct init *i, struct err *e)
{
	return i->found.is_systemd || i->in_container ? ready_bind(&i->notify, e) : 0;
}

static _Noreturn void become_executor(struct init *i)
{
	struct err e = ERR_INIT;
	fd_close(&i->host);
	scoped_fd int stream = -1;
	(void)setsid();
	int r = exec_connect(&stream, &e);
	if (r == 0)
		r = exec_serve(stream, i->notify, &e);
	if (r < 0)
		(void)dprintf(2, "ermite-runner: exec: %s\n", e.msg);
	_exit(r < 0);
}

static int start_executor(struct init *i, struct err *e)
{
	i->executor = fork();
	if (i->executor < 0)
		return err_sys(e, "fork");
	if (i->executor == 0)
		become_executor(i);
	fd_close(&i->notify);
	return 0;
}

static int become_init(struct init *i, struct err *e)
{
	static char name[] = "/sbin/init";
	static char notify[] = "NOTIFY_SOCKET=" READY_ADDRESS;
	char container[64];
	char command_line[256];
	char *arguments[] = {name, NULL};
	char *environment[4] = {container};
	size_t n = 1;
	if (!i->found.path)
		return 0;
	/* systemd asks this variable what kind of machine it is on. */
	const char *kind = getenv("container");
	(void)snprintf(container, sizeof(container), "container=%.40s", kind ? kind : "lxc");
	if (i->found.is_systemd)
		environment[n++] = notify;
	/* What stands for the kernel's command line there; the host says with it what its kernel's cannot. */
	const char *line = getenv("SYSTEMD_PROC_CMDLINE");
	if (line) {
		(void)snprintf(command_line, sizeof(command_line), "SYSTEMD_PROC_CMDLINE=%.200s", line);
		environment[n++] = command_line;
	}
	self_reset();
	(void)execve(i->found.path, arguments, environment);
	return err_sys(e, "execute %s", i->found.path);
}

int init_reap_until(int pid, struct err *e)
{
	for (;;) {
		siginfo_t info = {0};
		if (waitid(P_ALL, 0, &info, WEXITED) == 0) {
			if (info.si_pid == pid)
				return 0;
		} else if (errno != EINTR) {
			return err_sys(e, "wait for processes");
		}
	}
}

static int stay(struct init *i, struct err *e)
{
	fd_close(&i->host);
	return i->in_container ? supervise(i->executor, e) : init_reap_until(i->executor, e);
}

/* Nobody reads our standard error in a sandbox. */
static int give_up(const struct init *i, int r, const struct err *e)
{
	if (i->host >= 0)
		(void)send(i->host, e->msg, strlen(e->msg), MSG_NOSIGNAL | MSG_DONTWAIT);
	return r;
}

int init_run(struct err *e)
{
	static const struct {
		const char *name;
		int (*run)(struct init *i, struct err *e);
	} steps[] = {
		{"wait at the door", knock},
		{"build the root", build},
		{"load the filter", load_filter},
		{"look for an init", find},
		{"listen for the system", bind_notify},
		{"start the executor", start_executor},
		{"become the init", become_init},
		{"stay", stay},
	};
	struct init i = {.mounts = DOOR_MOUNTS_INIT, .host = -1, .notify = -1};
	if (close_range(3, ~0u, 0) < 0 || chdir("/") < 0)
		return err_sys(e, "let go of descriptors and directory");
	for (size_t n = 0; n < sizeof(steps) / sizeof(steps[0]); n++) {
		int r = steps[n].run(&i, e);
		if (r < 0)
			return give_up(&i, err_ctx(e, r, "%s", steps[n].name), e);
	}
	return 0;
}
