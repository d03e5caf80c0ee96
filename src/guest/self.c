#include "guest/self.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scope.h"
#include "io/child.h"

void self_reset(void)
{
	child_reset_signals();
	(void)umask(022);
	scoped_fd int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (score >= 0 && write(score, "0", 1) < 0)
		return;
}

int self_open_streams(struct err *e)
{
	scoped_fd int fd = -1;
	while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= 2)
		if (fcntl(fd, F_SETFD, 0) < 0)
			break;
	return fd < 0 ? err_sys(e, "open /dev/null") : 0;
}
