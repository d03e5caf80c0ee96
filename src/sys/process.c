#include "sys/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "base/scope.h"

int process_start_time(pid_t pid, uint64_t *ret, struct err *e)
{
	char path[48];
	char text[1024];
	(void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	ssize_t n = file_read_text(AT_FDCWD, path, text, sizeof(text), e);
	if (n < 0)
		return (int)n;
	/* The second field is the name in brackets and may hold anything; the last bracket ends it. */
	char *at = strrchr(text, ')');
	char *save = NULL;
	char *word = at ? strtok_r(at + 1, " ", &save) : NULL;
	for (int field = 3; word && field < 22; field++)
		word = strtok_r(NULL, " ", &save);
	if (!word || num_parse(word, 0, UINT64_MAX, ret) < 0)
		return err_set(e, -EPROTO, "%s has no start time", path);
	return 0;
}

int process_kill(pid_t pid, uint64_t start_time, uint64_t ms, struct err *e)
{
	/* The descriptor first: from then on the number cannot come to mean another process. */
	scoped_fd int fd = pidfd_open(pid, 0);
	uint64_t now = 0;
	if (fd < 0)
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM
			       ? err_sys(e, "hold process %d", pid)
			       : 0;
	int r = process_start_time(pid, &now, e);
	if (r == -ENOENT || r == -ESRCH || (r == 0 && now != start_time))
		return 0;
	if (r < 0)
		return r;
	if (pidfd_send_signal(fd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
		return err_sys(e, "kill process %d", pid);
	struct pollfd ended = {.fd = fd, .events = POLLIN};
	if (poll(&ended, 1, (int)ms) != 1)
		return err_set(e, -ETIMEDOUT, "process %d does not end", pid);
	return 0;
}

void process_lost(const char *kind)
{
	(void)fprintf(stderr, "%s: cannot come back from a %s namespace: %s\n", program_invocation_short_name,
		      kind, strerrordesc_np(errno));
	_exit(PROCESS_LOST_STATUS);
}

int process_boot_id(char id[static 37], struct err *e)
{
	char text[64];
	ssize_t n = file_read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", text, sizeof(text), e);
	if (n < 0)
		return (int)n;
	if (n != 36)
		return err_set(e, -EPROTO, "the boot id has %zd characters", n);
	memcpy(id, text, 37);
	return 0;
}
