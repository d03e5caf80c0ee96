#include "isolation/lxcfs.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "isolation/layout.h"

enum { MOUNT_MS = 10000, PAUSE_US = 500 };

const char *lxcfs_program(void)
{
	static const char *const candidates[] = {"/usr/bin/lxcfs", "/usr/local/bin/lxcfs"};
	for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++)
		if (access(candidates[i], X_OK) == 0)
			return candidates[i];
	return NULL;
}

int lxcfs_start(struct child *ret, struct err *e)
{
	/* Its pid file, too, lies in the private /run. */
	const char *const arguments[] = {"lxcfs", "-f", "-l", "-u", "-p", "/run/lxcfs.pid", RUN_LXCFS, NULL};
	const char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
	const int fds[] = {-1, -1, -1};
	const struct child_plan plan = {.path = lxcfs_program(),
					.arguments = arguments,
					.environment = environment,
					.fds = fds,
					.n_fds = 3,
					.die_with_parent = true,
					.new_session = true};
	if (!plan.path)
		return err_set(e, -ENOENT, "lxcfs is not installed");
	return child_start(&plan, ret, e);
}

int lxcfs_wait(struct child *c, struct err *e)
{
	uint64_t deadline = clock_boot_ms() + MOUNT_MS;
	struct statfs fs;
	for (;;) {
		if (statfs(RUN_LXCFS, &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC)
			return 0;
		struct child_end end;
		if (child_wait(c, 0, &end, NULL) == 0)
			return err_set(e, -EIO, "lxcfs ended with status %d, signal %d", end.status,
				       end.signal);
		if (clock_boot_ms() >= deadline)
			return err_set(e, -ETIMEDOUT, "lxcfs did not mount within %d s", MOUNT_MS / 1000);
		(void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_US * 1000L}, NULL);
	}
}
