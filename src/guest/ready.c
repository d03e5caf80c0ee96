#include "guest/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "guest/lines.h"

#define DOCKER_WAIT_MS  5000
#define DOCKER_AGAIN_MS 20
#define DOCKER_UNIT     "/etc/systemd/system/sockets.target.wants/docker.socket"
#define MESSAGE_MAX     4096

/* The seventh column of /proc/net/unix is the path; the fourth holds this flag while the socket listens. */
#define UNIX_COLUMNS   8
#define UNIX_FLAGS     3
#define UNIX_PATH      7
#define UNIX_LISTENING "00010000"

/* What PID 1 says: systemd, and ours. */
#define SYSTEMD_READY "READY=1"
#define ALL_READY     "ERMITE_READY=1"

#define ADDRESS_SIZE (offsetof(struct sockaddr_un, sun_path) + sizeof(READY_ADDRESS) - 1)

/* An abstract name begins with a zero byte where the variable has "@", and has no end mark. */
static struct sockaddr_un notify_address(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = READY_ADDRESS};
	address.sun_path[0] = '\0';
	return address;
}

int ready_bind(int *ret_fd, struct err *e)
{
	const struct sockaddr_un address = notify_address();
	const int on = 1;
	scoped_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(e, "make the notify socket");
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
	    bind(fd, (const struct sockaddr *)&address, ADDRESS_SIZE) < 0)
		return err_sys(e, "bind the notify socket");
	*ret_fd = fd_steal(&fd);
	return 0;
}

int ready_say(struct err *e)
{
	static const char text[] = ALL_READY;
	const struct sockaddr_un address = notify_address();
	scoped_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    sendto(fd, text, strlen(text), MSG_DONTWAIT, (const struct sockaddr *)&address, ADDRESS_SIZE) < 0)
		return err_sys(e, "say that the system is up");
	return 0;
}

/* Whether one of the lines of a message is this one. */
static bool says(const char *text, const char *line)
{
	size_t n = strlen(line);
	for (const char *end; *text; text = *end ? end + 1 : end) {
		end = text + strcspn(text, "\n");
		if ((size_t)(end - text) == n && memcmp(text, line, n) == 0)
			return true;
	}
	return false;
}

/* Receives one datagram into text. Returns 1 when PID 1 sent it, 0 when somebody else did, -EAGAIN. */
static int receive(int fd, char text[static MESSAGE_MAX])
{
	/* Room for the credentials only: the kernel drops descriptors that somebody attaches. */
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec part = {.iov_base = text, .iov_len = MESSAGE_MAX - 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	text[n] = '\0';
	const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	struct ucred sender;
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS ||
	    c->cmsg_len != CMSG_LEN(sizeof(sender)))
		return 0;
	memcpy(&sender, CMSG_DATA(c), sizeof(sender));
	return sender.pid == 1;
}

/* Whether a line of /proc/net/unix is Docker's socket, listening. */
static bool is_docker(char *line)
{
	char *columns[UNIX_COLUMNS] = {0};
	size_t n = 0;
	while (n < UNIX_COLUMNS && (columns[n] = strsep(&line, " ")))
		if (columns[n][0])
			n++;
	return n == UNIX_COLUMNS && strcmp(columns[UNIX_FLAGS], UNIX_LISTENING) == 0 &&
	       (strcmp(columns[UNIX_PATH], "/run/docker.sock") == 0 ||
		strcmp(columns[UNIX_PATH], "/var/run/docker.sock") == 0);
}

bool ready_docker_listens(void)
{
	scoped_fd int fd = open("/proc/net/unix", O_RDONLY | O_CLOEXEC);
	struct lines lines;
	char *line;
	lines_init(&lines, fd);
	while (fd >= 0 && lines_next(&lines, &line, NULL) > 0)
		if (is_docker(line))
			return true;
	return false;
}

/* Tells it now, or looks again a little later. */
static int ready_check(void *data, struct err *e)
{
	struct ready *r = data;
	bool wanted = faccessat(AT_FDCWD, DOCKER_UNIT, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
	if (wanted && !ready_docker_listens() && clock_boot_ms() < r->deadline_ms)
		return loop_arm(r->timer, DOCKER_AGAIN_MS, e);
	loop_remove(&r->timer);
	return r->fn(r->data, e);
}

static int on_notify(void *data, int fd, uint32_t, struct err *e)
{
	struct ready *r = data;
	char text[MESSAGE_MAX];
	int from_init = receive(fd, text);
	if (from_init <= 0 || r->told)
		return 0;
	bool all = says(text, ALL_READY);
	if (!all && !says(text, SYSTEMD_READY))
		return 0;
	r->told = true;
	r->deadline_ms = all ? 0 : clock_boot_ms() + DOCKER_WAIT_MS;
	return ready_check(r, e);
}

int ready_watch(struct ready *r, struct loop *loop, int fd, ready_fn *fn, void *data, struct err *e)
{
	*r = (struct ready){.fn = fn, .data = data};
	int code = loop_add_timer(loop, ready_check, r, &r->timer, e);
	return code < 0 ? code : loop_add_fd(loop, fd, EPOLLIN, on_notify, r, &r->notify, e);
}
