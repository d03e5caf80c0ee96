#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "client/files.h"
#include "io/child.h"
#include "wire/tree.h"

enum {
	ENTRY_MAX = TREE_HEAD + 2 * (TREE_NAME_MAX + 1),
	OUT_BYTES = 4 * 65536, /* written at once */
	REASON_MAX = TREE_NAME_MAX + 128
};

struct sender {
	int to;
	files_warn_fn *warn;
	void *data;
	size_t n;        /* bytes waiting in out */
	size_t prefix_n; /* length of the directory's name in path */
	char path[TREE_NAME_MAX + 1];
	uint8_t out[OUT_BYTES];
};

static int flush(struct sender *s, struct err *e)
{
	int r = file_write_all(s->to, s->out, s->n, e);
	s->n = 0;
	return r;
}

/* Makes sure that n bytes fit into out. */
static int make_room(struct sender *s, size_t n, struct err *e)
{
	return OUT_BYTES - s->n < n ? flush(s, e) : 0;
}

static int send_entry(struct sender *s, const struct tree_entry *entry, struct err *e)
{
	int r = make_room(s, ENTRY_MAX, e);
	if (r < 0)
		return r;
	ptrdiff_t n = tree_write_entry(entry, s->out + s->n);
	if (n < 0)
		return err_code(e, (int)n, "%s", entry->name);
	s->n += (size_t)n;
	return 0;
}

static int send_segment(struct sender *s, uint64_t offset, uint32_t length, struct err *e)
{
	int r = make_room(s, TREE_SEGMENT, e);
	if (r < 0)
		return r;
	tree_write_segment(offset, length, s->out + s->n);
	s->n += TREE_SEGMENT;
	return 0;
}

static int send_skipped(struct sender *s, const char *why, struct err *e)
{
	struct tree_entry entry = {.kind = TREE_SKIPPED, .name = s->path, .target = ""};
	char text[REASON_MAX];
	(void)snprintf(text, sizeof(text), "%s: not copied: %s", s->path, why);
	s->warn(s->data, text);
	return send_entry(s, &entry, e);
}

static struct tree_entry entry_of(const struct sender *s, enum tree_kind kind, const struct stat *st)
{
	return (struct tree_entry){
		.kind = kind,
		.mode = st->st_mode & 0777,
		.mtime_s = st->st_mtime,
		.name = s->path,
		.target = "",
	};
}

/* Sends what lies at offset, at most up to end. Returns the bytes sent; 0 at the end of a file that has shrunk. */
static ssize_t send_piece(struct sender *s, int fd, uint64_t offset, uint64_t end, struct err *e)
{
	int r = make_room(s, TREE_SEGMENT + TREE_CHUNK_MAX, e);
	if (r < 0)
		return r;
	size_t wanted = end - offset < TREE_CHUNK_MAX ? (size_t)(end - offset) : TREE_CHUNK_MAX;
	uint8_t *at = s->out + s->n;
	ssize_t n = -1;
	do
		n = pread(fd, at + TREE_SEGMENT, wanted, (off_t)offset);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, "read %s", s->path);
	if (n == 0)
		return 0;
	tree_write_segment(offset, (uint32_t)n, at);
	s->n += TREE_SEGMENT + (size_t)n;
	return n;
}

/* The next stretch of data at or after *start: *ret_end is its end. False when only a hole is left. A file system that
 * knows no holes has one stretch. */
static bool next_data(int fd, uint64_t *start, uint64_t size, uint64_t *ret_end)
{
	off_t data = lseek(fd, (off_t)*start, SEEK_DATA);
	if (data < 0 && errno == ENXIO)
		return false;
	if (data < 0) {
		*ret_end = size;
		return *start < size;
	}
	off_t hole = lseek(fd, data, SEEK_HOLE);
	*start = (uint64_t)data;
	*ret_end = hole < 0 || (uint64_t)hole > size ? size : (uint64_t)hole;
	return *start < size;
}

static int send_content(struct sender *s, int fd, uint64_t size, struct err *e)
{
	uint64_t at = 0;
	uint64_t end = 0;
	while (next_data(fd, &at, size, &end)) {
		while (at < end) {
			ssize_t n = send_piece(s, fd, at, end, e);
			if (n < 0)
				return (int)n;
			if (n == 0)
				return send_segment(s, size, 0, e);
			at += (uint64_t)n;
		}
	}
	return send_segment(s, size, 0, e);
}

static int send_file(struct sender *s, int dir, const char *name, unsigned, struct err *e)
{
	scoped_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st = {0};
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(e, "open %s", s->path);
	if (!S_ISREG(st.st_mode))
		return err_set(e, -EBUSY, "%s is being changed", s->path);
	struct tree_entry entry = entry_of(s, TREE_FILE, &st);
	entry.size = (uint64_t)st.st_size;
	int r = send_entry(s, &entry, e);
	return r < 0 ? r : send_content(s, fd, entry.size, e);
}

static int send_link(struct sender *s, int dir, const char *name, unsigned, struct err *e)
{
	char target[TREE_NAME_MAX + 1];
	ssize_t n = readlinkat(dir, name, target, sizeof(target));
	if (n < 0)
		return err_sys(e, "read the link %s", s->path);
	if ((size_t)n >= sizeof(target))
		return send_skipped(s, "the link's target is too long", e);
	target[n] = '\0';
	if (!tree_link_inside(s->path, target))
		return send_skipped(s, "the link leads out of the workspace", e);
	struct stat st = {0};
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, "%s", s->path);
	struct tree_entry entry = entry_of(s, TREE_LINK, &st);
	entry.target = target;
	return send_entry(s, &entry, e);
}

static int send_names(struct sender *s, DIR *dir, unsigned depth, struct err *e);

static int send_directory(struct sender *s, int dir, const char *name, unsigned depth, struct err *e)
{
	if (depth == FILES_DEPTH_MAX)
		return err_set(e, -ENAMETOOLONG, "%s lies deeper than %d directories", s->path,
			       FILES_DEPTH_MAX);
	scoped_fd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st = {0};
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(e, "open %s", s->path);
	struct tree_entry entry = entry_of(s, TREE_DIRECTORY, &st);
	int r = send_entry(s, &entry, e);
	if (r < 0)
		return r;
	DIR *list = fdopendir(fd);
	if (!list)
		return err_sys(e, "list %s", s->path);
	(void)fd_steal(&fd);
	r = send_names(s, list, depth + 1, e);
	(void)closedir(list);
	return r;
}

/* What is done with each type of file; what is not listed is skipped. */
static const struct {
	mode_t type;
	int (*send)(struct sender *s, int dir, const char *name, unsigned depth, struct err *e);
} types[] = {{S_IFDIR, send_directory}, {S_IFREG, send_file}, {S_IFLNK, send_link}};

static int send_name(struct sender *s, int dir, const char *name, unsigned depth, struct err *e)
{
	struct stat st = {0};
	/* A file that has gone since it was listed is as good as one that went before. */
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : err_sys(e, "%s", s->path);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (types[i].type == (st.st_mode & S_IFMT))
			return types[i].send(s, dir, name, depth, e);
	return send_skipped(s, "it is a device, a socket or a FIFO", e);
}

/* Puts name behind the directory's name in path. */
static int enter(struct sender *s, const char *name, struct err *e)
{
	size_t at = s->prefix_n;
	size_t n = strlen(name);
	if (at + n + 1 > TREE_NAME_MAX)
		return err_set(e, -ENAMETOOLONG, "a name is longer than %d bytes: %.200s...", TREE_NAME_MAX,
			       s->path);
	if (at > 0)
		s->path[at++] = '/';
	memcpy(s->path + at, name, n + 1);
	s->prefix_n = at + n;
	return 0;
}

static int send_names(struct sender *s, DIR *dir, unsigned depth, struct err *e)
{
	size_t prefix_n = s->prefix_n;
	for (;;) {
		errno = 0;
		const struct dirent *d = readdir(dir);
		if (!d)
			return errno ? err_sys(e, "list %.*s", (int)prefix_n, s->path) : 0;
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		int r = enter(s, d->d_name, e);
		if (r == 0)
			r = send_name(s, dirfd(dir), d->d_name, depth, e);
		if (r < 0)
			return r;
		s->prefix_n = prefix_n;
		s->path[prefix_n] = '\0';
	}
}

int files_send(int dir, int to, files_warn_fn *warn, void *data, struct err *e)
{
	scoped_free struct sender *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, -ENOMEM, "out of memory");
	s->to = to;
	s->warn = warn;
	s->data = data;
	scoped_fd int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = own < 0 ? NULL : fdopendir(own);
	if (!list)
		return err_sys(e, "list");
	(void)fd_steal(&own);
	int r = send_names(s, list, 0, e);
	(void)closedir(list);
	if (r < 0)
		return r;
	struct tree_entry end = {.kind = TREE_END, .name = "", .target = ""};
	r = send_entry(s, &end, e);
	return r < 0 ? r : flush(s, e);
}

/* Closes everything but standard error and the three given. */
static void keep_only(int a, int b, int c)
{
	int keep[] = {STDERR_FILENO, a, b, c};
	enum { N = sizeof(keep) / sizeof(keep[0]) };
	for (int i = 1; i < N; i++) {
		for (int j = i; j > 0 && keep[j] < keep[j - 1]; j--) {
			int other = keep[j];
			keep[j] = keep[j - 1];
			keep[j - 1] = other;
		}
	}
	unsigned from = 0;
	for (int i = 0; i < N; i++) {
		if ((unsigned)keep[i] > from)
			(void)close_range(from, (unsigned)keep[i] - 1, 0);
		from = (unsigned)keep[i] + 1;
	}
	(void)close_range(from, ~0U, 0);
}

/* The child: a copy of this process, because all it does is read files for it. */
static _Noreturn void child_main(int dir, int to, int report, files_warn_fn *warn, void *data)
{
	struct err e = ERR_INIT;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	keep_only(dir, to, report);
	int r = files_send(dir, to, warn, data, &e);
	if (r < 0)
		(void)file_write_all(report, &e, sizeof(e), NULL);
	_exit(r < 0 ? 1 : 0);
}

int files_sender_start(struct files_sender *s, int dir, int to, files_warn_fn *warn, void *data,
		       struct err *e)
{
	int ends[2] = {-1, -1};
	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(e, "pipe");
	scoped_fd int reader = ends[0];
	scoped_fd int writer = ends[1];
	pid_t pid = fork();
	if (pid < 0)
		return child_refused(e);
	if (pid == 0)
		child_main(dir, to, writer, warn, data);
	/* The number is safe to use: an own child keeps it until it is waited for. */
	int pidfd = pidfd_open(pid, 0);
	if (pidfd < 0) {
		int r = err_sys(e, "pidfd_open");
		(void)kill(pid, SIGKILL);
		return r;
	}
	s->child = (struct child){.pid = pid, .pidfd = pidfd};
	s->report = fd_steal(&reader);
	return 0;
}

int files_sender_wait(struct files_sender *s, struct err *e)
{
	struct child_end end = {0};
	struct err told = ERR_INIT;
	ssize_t n = s->report < 0 ? 0 : file_read_all(s->report, &told, sizeof(told), NULL);
	fd_close(&s->report);
	int r = child_wait(&s->child, UINT64_MAX, &end, e);
	if (r < 0)
		return r;
	if (n == (ssize_t)sizeof(told))
		return err_set(e, told.code, "%s", told.msg);
	if (end.status != 0 || end.signal != 0)
		return err_set(e, -EIO, "the process that reads the workspace ended with signal %d",
			       end.signal);
	return 0;
}

void files_sender_kill(struct files_sender *s)
{
	child_kill(&s->child);
	fd_close(&s->report);
}
