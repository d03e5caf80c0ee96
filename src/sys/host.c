#include "sys/host.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "sys/process.h"

int host_open(struct host *h, struct err *e)
{
	if (mkdir(HOST_RUN_DIR, 0755) < 0 && errno != EEXIST)
		return err_sys(e, "make " HOST_RUN_DIR);
	int r = file_open_owned(HOST_RUN_DIR, &h->run, e);
	if (r < 0)
		return r;
	h->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	h->mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (h->root >= 0 && h->mounts >= 0)
		return 0;
	r = err_sys(e, "open the host's root and mount namespace");
	host_close(h);
	return r;
}

void host_close(struct host *h)
{
	fd_close(&h->root);
	fd_close(&h->run);
	fd_close(&h->mounts);
}

int host_with_mounts(const struct host *h, host_fn *fn, void *data, struct err *e)
{
	scoped_fd int own = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (own < 0 || setns(h->mounts, CLONE_NEWNS) < 0)
		return err_sys(e, "enter the host's mount namespace");
	int r = fn(data, e);
	if (setns(own, CLONE_NEWNS) < 0)
		process_lost("mount");
	return r;
}
