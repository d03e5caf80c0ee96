#include "isolation/system/lxc.h"

#include <lxc/lxccontainer.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/chan.h"
#include "isolation/layout.h"

enum { CONFIG_MAX = 65536 };

/* Waits for the configuration and the user namespace. Returns the length of the text, or -1 when the keeper went
 * away. */
static ssize_t receive_config(char *text, int *ret_userns)
{
	struct chan_message m;
	struct err e = ERR_INIT;
	if (chan_receive(LXC_CHANNEL_FD, &m, &e) != 1)
		return -1;
	scoped_fd int fd = chan_take_fd(&m, 0);
	*ret_userns = chan_take_fd(&m, 1);
	chan_close_fds(&m);
	return fd < 0 || *ret_userns < 0 ? -1 : file_read_all(fd, text, CONFIG_MAX, &e);
}

/* This process is the first of a pid namespace, so that none of liblxc's outlives it; they find each other in /proc.
 * That can be mounted as long as we are root outside of the sandbox's user namespace, and is this process's own. */
static int show_processes(void)
{
	if (unshare(CLONE_NEWNS) < 0)
		return -1;
	return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/* Goes into the sandbox's outer user namespace. We are as good as root in there, and what the kernel counts for a user
 * is counted on the sandbox's. The change of credentials takes two settings back. */
static int enter_userns(int userns)
{
	if (setns(userns, CLONE_NEWUSER) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ||
	    prctl(PR_SET_DUMPABLE, 1) < 0)
		return -1;
	/* A keeper that ended meanwhile could not kill us. */
	struct pollfd keeper = {.fd = LXC_CHANNEL_FD, .events = POLLRDHUP};
	return poll(&keeper, 1, 0) == 0 ? 0 : -1;
}

/* liblxc finds no control groups: those are the keeper's. The mount is this process's own, made only now, when
 * everything that the keeper mounts is there. */
static int hide_cgroups(void)
{
	if (unshare(CLONE_NEWNS) < 0)
		return -1;
	return mount("ermite", "/sys/fs/cgroup", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		     "size=4k");
}

static bool configure(struct lxc_container *c, const char *text, size_t n)
{
	for (size_t at = 0; at < n;) {
		const char *key = text + at;
		at += strlen(key) + 1;
		const char *value = text + at;
		if (at >= n || !c->set_config_item(c, key, value)) {
			(void)fprintf(stderr, "ermite-lxc: %s = %s is refused\n", key, value);
			return false;
		}
		at += strlen(value) + 1;
	}
	return true;
}

static int start(struct lxc_container *c, const char *text, size_t n)
{
	/* Only a container that has a configuration takes the wish to stay in the foreground. */
	if (!configure(c, text, n) || !c->want_daemonize(c, false))
		return LXC_START_FAILED;
	/* The container inherits the standard streams, and root inside can open whatever is behind them. */
	if (dup2(STDIN_FILENO, STDERR_FILENO) < 0)
		return LXC_START_FAILED;
	/* A container that ran gives its status. Success is another matter: afterwards liblxc wants back into the
	 * host's network namespace, where this process has no rights. */
	c->error_num = -1;
	return c->start(c, 0, NULL) || c->error_num >= 0 ? LXC_ENDED : LXC_START_FAILED;
}

int lxc_run(const char *id)
{
	struct lxc_log log = {
		.name = id, .lxcpath = RUN_LXC, .file = RUN_LXC_LOG, .level = "ERROR", .quiet = true};
	scoped_free char *text = malloc(CONFIG_MAX + 1);
	struct lxc_container *c = text ? lxc_container_new(id, RUN_LXC) : NULL;
	if (!c || lxc_log_init(&log) < 0)
		return LXC_MISUSED;
	scoped_fd int userns = -1;
	ssize_t n = receive_config(text, &userns);
	if (n <= 0 || show_processes() < 0 || enter_userns(userns) < 0 || hide_cgroups() < 0)
		return LXC_MISUSED;
	fd_close(&userns);
	(void)close(LXC_CHANNEL_FD); /* nothing of ours may be inherited by the container */
	text[n] = '\0';
	int r = start(c, text, (size_t)n);
	(void)lxc_container_put(c);
	return r;
}
