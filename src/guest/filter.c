#include "guest/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"

int filter_load(const char *path, struct err *e)
{
	struct sock_filter program[1024];
	scoped_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "open %s", path);
	ssize_t n = file_read_all(fd, program, sizeof(program), e);
	if (n < 0)
		return (int)n;
	if (n == 0 || (size_t)n == sizeof(program) || (size_t)n % sizeof(program[0]) != 0)
		return err_set(e, -EINVAL, "%s is no filter: %zd bytes", path, n);
	const struct sock_fprog filter = {.len = (unsigned short)((size_t)n / sizeof(program[0])),
					  .filter = program};
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0)
		return err_sys(e, "load %s", path);
	return 0;
}
