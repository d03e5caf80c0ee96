#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/files.h"
#include "guest/paths.h"
#include "wire/tree.h"

#define DEPTH_MAX  128
#define OUTPUT_MAX 262144
#define ENTRY_MAX  (TREE_HEAD + 2 * (TREE_NAME_MAX + 1))

_Static_assert(OUTPUT_MAX >= ENTRY_MAX + TREE_SEGMENT + TREE_CHUNK_MAX);

struct get {
	int out;                      /* borrowed */
	size_t n;                     /* bytes waiting in output */
	size_t name_n;                /* 0 at the root of a tree that has no name */
	char name[TREE_NAME_MAX + 1]; /* of the entry at hand */
	char target[TREE_NAME_MAX + 1];
	uint8_t output[OUTPUT_MAX];
};

static int get_node(struct get *g, int dir, const char *last, unsigned depth, struct err *e);

static int get_flush(struct get *g, struct err *e)
{
	int r = file_write_all(g->out, g->output, g->n, e);
	g->n = 0;
	return r;
}

static int get_reserve(struct get *g, size_t n, struct err *e)
{
	return OUTPUT_MAX - g->n < n ? get_flush(g, e) : 0;
}

static int get_entry(struct get *g, enum tree_kind kind, const struct stat *st, const char *target,
		     struct err *e)
{
	int r = get_reserve(g, ENTRY_MAX, e);
	if (r < 0)
		return r;
	struct tree_entry entry = {
		.kind = kind,
		.mode = st->st_mode & 0777,
		.size = kind == TREE_FILE ? (uint64_t)st->st_size : 0,
		.mtime_s = st->st_mtim.tv_sec,
		.name = g->name_n > 0 ? g->name : ".",
		.target = target,
	};
	ptrdiff_t n = tree_write_entry(&entry, g->output + g->n);
	if (n < 0)
		return err_code(e, (int)n, "send %s", entry.name);
	g->n += (size_t)n;
	return 0;
}

static int get_skipped(struct get *g, const struct stat *st, struct err *e)
{
	return get_entry(g, TREE_SKIPPED, st, "", e);
}

static int get_segment(struct get *g, uint64_t offset, uint32_t length, struct err *e)
{
	int r = get_reserve(g, TREE_SEGMENT, e);
	if (r < 0)
		return r;
	tree_write_segment(offset, length, g->output + g->n);
	g->n += TREE_SEGMENT;
	return 0;
}

/* Sends the bytes from offset at to end, or to where the file ends by now. */
static int get_range(struct get *g, int fd, off_t at, off_t end, struct err *e)
{
	while (at < end) {
		int r = get_reserve(g, TREE_SEGMENT + TREE_CHUNK_MAX, e);
		if (r < 0)
			return r;
		size_t want = end - at < TREE_CHUNK_MAX ? (size_t)(end - at) : TREE_CHUNK_MAX;
		ssize_t n = pread(fd, g->output + g->n + TREE_SEGMENT, want, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, "read %s", g->name);
		if (n == 0)
			return 0;
		tree_write_segment((uint64_t)at, (uint32_t)n, g->output + g->n);
		g->n += TREE_SEGMENT + (size_t)n;
		at += n;
	}
	return 0;
}

/* Sends a regular file's entry and content, its holes left out. */
static int get_file(struct get *g, int fd, const struct stat *st, struct err *e)
{
	int r = get_entry(g, TREE_FILE, st, "", e);
	off_t at = 0;
	while (r == 0 && at < st->st_size) {
		off_t data = lseek(fd, at, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;
		/* A file system that knows nothing of holes has none. */
		if (data < at)
			data = at;
		off_t hole = lseek(fd, data, SEEK_HOLE);
		if (hole <= data || hole > st->st_size)
			hole = st->st_size;
		r = get_range(g, fd, data, hole, e);
		at = hole;
	}
	return r < 0 ? r : get_segment(g, (uint64_t)st->st_size, 0, e);
}

/* Appends a component to the name; a directory is only entered where any name fits. */
static void name_push(struct get *g, const char *last)
{
	size_t n = strlen(last);
	if (g->name_n > 0)
		g->name[g->name_n++] = '/';
	memcpy(g->name + g->name_n, last, n + 1);
	g->name_n += n;
}

/* Sends what is in a directory. */
static int get_children(struct get *g, DIR *dir, unsigned depth, struct err *e)
{
	size_t name_n = g->name_n;
	for (;;) {
		errno = 0;
		const struct dirent *d = readdir(dir);
		if (!d)
			return errno ? err_sys(e, "read %s", g->name) : 0;
		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		name_push(g, d->d_name);
		int r = get_node(g, dirfd(dir), d->d_name, depth, e);
		g->name_n = name_n;
		g->name[name_n] = '\0';
		if (r < 0)
			return r;
	}
}

/* Sends a directory's entry and what is in it. */
static int get_directory(struct get *g, int fd, const struct stat *st, unsigned depth, struct err *e)
{
	if (depth >= DEPTH_MAX || g->name_n + 1 + NAME_MAX > TREE_NAME_MAX)
		return get_skipped(g, st, e);
	int r = get_entry(g, TREE_DIRECTORY, st, "", e);
	if (r < 0)
		return r;
	scoped_fd int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	DIR *dir = own < 0 ? NULL : fdopendir(own);
	if (!dir)
		return err_sys(e, "read %s", g->name);
	(void)fd_steal(&own);
	r = get_children(g, dir, depth + 1, e);
	(void)closedir(dir);
	return r;
}

static int get_link(struct get *g, int dir, const char *last, const struct stat *st, struct err *e)
{
	ssize_t n = readlinkat(dir, last, g->target, sizeof(g->target));
	if (n < 0 && errno == ENOENT)
		return 0;
	if (n <= 0 || (size_t)n == sizeof(g->target))
		return get_skipped(g, st, e);
	g->target[n] = '\0';
	if (!tree_link_inside(g->name, g->target))
		return get_skipped(g, st, e);
	return get_entry(g, TREE_LINK, st, g->target, e);
}

/* Sends a file or directory by its open descriptor. */
static int get_opened(struct get *g, int fd, unsigned depth, struct err *e)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_sys(e, "look at %s", g->name);
	if (S_ISDIR(st.st_mode))
		return get_directory(g, fd, &st, depth, e);
	return S_ISREG(st.st_mode) ? get_file(g, fd, &st, e) : get_skipped(g, &st, e);
}

/* Sends whatever has the name last in dir; nothing if it has gone. */
static int get_node(struct get *g, int dir, const char *last, unsigned depth, struct err *e)
{
	struct stat st;
	if (fstatat(dir, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : err_sys(e, "look at %s", g->name);
	if (S_ISLNK(st.st_mode))
		return get_link(g, dir, last, &st, e);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return get_skipped(g, &st, e);
	/* Another kind of thing may have taken the name by now: neither a link nor a FIFO may hold us up. */
	scoped_fd int fd = openat(dir, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : get_skipped(g, &st, e);
	return get_opened(g, fd, depth, e);
}

/* The last component of a path, as the tree's name; none for "/", "." and the like. */
static int name_start(struct get *g, const char *path, struct err *e)
{
	size_t end = strlen(path);
	while (end > 0 && path[end - 1] == '/')
		end--;
	size_t start = end;
	while (start > 0 && path[start - 1] != '/')
		start--;
	size_t n = end - start;
	const char *last = path + start;
	if (n > NAME_MAX)
		return err_set(e, -ENAMETOOLONG, "%s: name too long", path);
	if (n == 0 || (n == 1 && last[0] == '.') || (n == 2 && last[0] == '.' && last[1] == '.'))
		return 0;
	memcpy(g->name, last, n);
	g->name_n = n;
	return 0;
}

static int end_write(struct get *g, struct err *e)
{
	static const struct stat none;
	int r = get_entry(g, TREE_END, &none, "", e);
	return r < 0 ? r : get_flush(g, e);
}

int files_get(int directory, const char *path, int out, struct err *e)
{
	scoped_free struct get *g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(e, -ENOMEM, "out of memory");
	g->out = out;
	int r = name_start(g, path, e);
	if (r < 0)
		return r;
	struct stat st;
	scoped_fd int seen = -1;
	r = paths_open(directory, path, O_PATH, &seen, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return FILES_MISSING;
	if (r < 0)
		return r;
	if (fstat(seen, &st) < 0)
		return err_sys(e, "%s", path);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return err_set(e, -EINVAL, "%s: neither a file nor a directory", path);
	scoped_fd int fd = -1;
	r = paths_open(directory, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, &fd, e);
	if (r == 0)
		r = get_opened(g, fd, 0, e);
	return r < 0 ? r : end_write(g, e);
}
