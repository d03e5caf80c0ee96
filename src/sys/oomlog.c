#include "sys/oomlog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/scope.h"

/* Records looked at before giving up: the log is a ring, and a sandbox must not be able to keep us here. */
enum { RECORDS_MAX = 20000, RECORD_SIZE = 8192 };

int oomlog_open(void)
{
	scoped_fd int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || lseek(fd, 0, SEEK_END) < 0)
		return -1;
	return fd_steal(&fd);
}

static bool usual(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       strchr("_-.:+/", c);
}

/* "6,123,4567,-;oom-kill:constraint=…,cpuset=<name>,mems_allowed=0,oom_memcg=/ermite-runner/<id>,task_memcg=…,
 * task=<name>,pid=…". A sandbox chooses the name of its cpuset group, which holds no slash, and what comes behind the
 * comma that ends oom_memcg; so the first ",oom_memcg=/" is the kernel's, and the last task= is the process's. A
 * sandbox can also make the kernel quote whole lines of its choice, but not at the beginning of a record. */
bool oomlog_parse(const char *line, const char *id, char name[static OOMLOG_NAME_MAX])
{
	static const char begin[] = ";oom-kill:constraint=";
	char group[64];
	(void)snprintf(group, sizeof(group), ",oom_memcg=/ermite-runner/%s,", id);
	const char *at = strchr(line, ';');
	if (!at || strncmp(at, begin, strlen(begin)) != 0)
		return false;
	const char *first = strstr(at, ",oom_memcg=/");
	if (!first || strncmp(first, group, strlen(group)) != 0)
		return false;
	const char *task = NULL;
	for (const char *t = strstr(first, ",task="); t; t = strstr(t + 1, ",task="))
		task = t + strlen(",task=");
	size_t n = 0;
	for (; task && n < OOMLOG_NAME_MAX - 1 && task[n] && strncmp(task + n, ",pid=", 5) != 0; n++)
		name[n] = usual(task[n]) ? task[n] : '?';
	name[n] = '\0';
	return true;
}

void oomlog_victim(int fd, const char *id, char name[static OOMLOG_NAME_MAX])
{
	char record[RECORD_SIZE];
	name[0] = '\0';
	for (int i = 0; fd >= 0 && i < RECORDS_MAX; i++) {
		ssize_t n = read(fd, record, sizeof(record) - 1);
		if (n < 0 && errno == EPIPE)
			continue; /* overtaken by the ring: the next read starts at what is there */
		if (n <= 0)
			return;
		record[n] = '\0';
		char victim[OOMLOG_NAME_MAX];
		if (oomlog_parse(record, id, victim))
			memcpy(name, victim, sizeof(victim));
	}
}
