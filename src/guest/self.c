#include "guest/self.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scope.h"

void self_reset(void)
{
	struct sigaction standard = {.sa_handler = SIG_DFL};
	for (int i = 1; i < NSIG; i++)
		(void)sigaction(i, &standard, NULL);
	sigset_t none;
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
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
