#include "isolation/private_run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/named.h"
#include "base/scope.h"
#include "isolation/layout.h"
#include "spec/libexec.h"
#include "sys/mounts.h"

enum { RUN_KIB = 8192 };

static const char *const run_dirs[] = {RUN_SCRATCH, RUN_JOB, RUN_GUEST, RUN_LXCFS};

int private_run_guest(char path[static CONFIG_PATH_MAX], struct err *e)
{
	int r = libexec_path("guest/seccomp.bpf", path, e);
	if (r == 0 && access(path, R_OK) < 0)
		r = err_sys(e, "the system call filter %s", path);
	if (r == 0)
		r = libexec_path("guest/ermite-runner", path, e);
	if (r == 0)
		r = libexec_check_static(path, e);
	if (r == 0)
		*strrchr(path, '/') = '\0';
	return r;
}

int private_run_dir(const char *path, mode_t mode, struct err *e)
{
	if (mkdir(path, mode) < 0 || chmod(path, mode) < 0)
		return err_sys(e, "make %s", path);
	return 0;
}

static int copy_file(int from_dir, int to_dir, const char *name, mode_t mode, struct err *e)
{
	scoped_fd int from = -1;
	scoped_fd int to = -1;
	int r = file_open_beneath(from_dir, name, O_RDONLY, 0, &from, e);
	if (r == 0)
		r = file_open_beneath(to_dir, name, O_WRONLY | O_CREAT | O_EXCL, mode, &to, e);
	if (r < 0)
		return r;
	if (fchmod(to, mode) < 0)
		return err_sys(e, "make %s", name);
	for (;;) {
		ssize_t n = sendfile(to, from, NULL, 1 << 30);
		if (n == 0)
			return 0;
		if (n < 0)
			return err_sys(e, "copy %s", name);
	}
}

/* Copied and not bound: a bind would show every sandbox a piece of the file system that the host lives on, its free
 * space and its paths included. */
static int copy_guest(const char *guest_dir, struct err *e)
{
	scoped_fd int from = open(guest_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int to = open(RUN_GUEST, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (from < 0 || to < 0)
		return err_sys(e, "open %s", from < 0 ? guest_dir : RUN_GUEST);
	int r = copy_file(from, to, "ermite-runner", 0755, e);
	if (r == 0)
		r = copy_file(from, to, "seccomp.bpf", 0644, e);
	return r < 0 ? r : mount_program(RUN_GUEST, e);
}

int private_run_make(const char *guest_dir, struct err *e)
{
	int r = mount_own_namespace(e);
	if (r == 0)
		r = mount_tmpfs("/run", RUN_KIB, true, e);
	for (size_t i = 0; r == 0 && i < sizeof(run_dirs) / sizeof(run_dirs[0]); i++)
		r = private_run_dir(run_dirs[i], 0755, e);
	return r < 0 ? r : copy_guest(guest_dir, e);
}

int private_run_externals(const char *externals, struct err *e)
{
	if (!externals[0])
		return 0;
	if (mkdir(RUN_EXTERNALS, 0755) < 0)
		return err_sys(e, "make " RUN_EXTERNALS);
	char path[32];
	scoped_fd int fd = -1;
	int r = named_open(externals, O_PATH | O_DIRECTORY, &fd, e);
	if (r < 0)
		return err_ctx(e, r, "%s", externals);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return mount_bind(path, RUN_EXTERNALS, true, e);
}
