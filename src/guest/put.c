#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/files.h"
#include "wire/tree.h"

#define DEPTH_MAX (TREE_NAME_MAX / 2 + 1) /* directories in one name */
#define INPUT_MAX 131072

/* A directory that was made here and gets its mode and time when everything in it is there. */
struct pending {
	size_t name_n; /* its name is this much of put.path */
	uint32_t mode;
	int64_t mtime_s;
};

struct put {
	struct tree_reader reader;
	int root;   /* borrowed */
	int parent; /* the directory named by the first parent_n bytes of path; owned, -1: none */
	size_t parent_n;
	int file; /* being filled; owned */
	size_t n_pending;
	char path[TREE_NAME_MAX + 1]; /* of the last directory entered, the pending ones are its beginnings */
	struct pending pending[DEPTH_MAX];
	uint8_t input[INPUT_MAX];
};

#define scoped_put __attribute__((cleanup(put_done)))

static void put_done(struct put **p)
{
	if (!*p)
		return;
	fd_close(&(*p)->parent);
	fd_close(&(*p)->file);
	free(*p);
}

static struct timespec at_second(int64_t second)
{
	return (struct timespec){.tv_sec = second};
}

static int set_time(int fd, int64_t mtime_s, const char *name, struct err *e)
{
	struct timespec times[2] = {at_second(mtime_s), at_second(mtime_s)};
	if (futimens(fd, times) < 0)
		return err_sys(e, "set the time of %s", name);
	return 0;
}

/* Gives the innermost pending directory its mode and time. */
static int pending_finish(struct put *p, struct err *e)
{
	const struct pending *d = &p->pending[--p->n_pending];
	scoped_fd int fd = -1;
	p->path[d->name_n] = '\0';
	fd_close(&p->parent);
	p->parent_n = 0;
	int r = file_open_beneath(p->root, p->path, O_RDONLY | O_DIRECTORY, 0, &fd, e);
	if (r < 0)
		return r;
	r = set_time(fd, d->mtime_s, p->path, e);
	if (r == 0 && fchmod(fd, d->mode) < 0)
		r = err_sys(e, "set the mode of %s", p->path);
	return r;
}

/* Whether name lies below the innermost pending directory. */
static bool pending_holds(const struct put *p, const char *name)
{
	size_t n = p->pending[p->n_pending - 1].name_n;
	return strncmp(name, p->path, n) == 0 && name[n] == '/';
}

/* Leaves the directories that name does not lie in. */
static int pending_leave(struct put *p, const char *name, struct err *e)
{
	int r = 0;
	while (r == 0 && p->n_pending > 0 && !(name && pending_holds(p, name)))
		r = pending_finish(p, e);
	return r;
}

/* Opens the directory that holds name, or takes the one that is open. Returns 0, the directory and the last component,
 * both borrowed. */
static int parent_open(struct put *p, const char *name, int *ret_fd, const char **ret_last, struct err *e)
{
	const char *slash = strrchr(name, '/');
	*ret_last = slash ? slash + 1 : name;
	*ret_fd = p->root;
	if (!slash)
		return 0;
	size_t n = (size_t)(slash - name);
	if (p->parent < 0 || n != p->parent_n || strncmp(name, p->path, n) != 0) {
		fd_close(&p->parent);
		memcpy(p->path, name, n);
		p->path[n] = '\0';
		p->parent_n = n;
		int r = file_open_beneath(p->root, p->path, O_RDONLY | O_DIRECTORY, 0, &p->parent, e);
		if (r < 0)
			return r;
	}
	*ret_fd = p->parent;
	return 0;
}

/* Removes what has the name, unless it is a directory. */
static int clear_way(int dir, const char *last, const char *name, struct err *e)
{
	if (unlinkat(dir, last, 0) < 0 && errno != ENOENT)
		return err_sys(e, "replace %s", name);
	return 0;
}

static int put_directory(struct put *p, int dir, const char *last, struct err *e)
{
	const struct tree_entry *t = &p->reader.entry;
	struct stat st;
	if (fstatat(dir, last, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return 0;
	int r = clear_way(dir, last, t->name, e);
	if (r < 0)
		return r;
	if (mkdirat(dir, last, 0700) < 0)
		return err_sys(e, "make %s", t->name);
	size_t n = strlen(t->name);
	memcpy(p->path, t->name, n + 1);
	fd_close(&p->parent);
	p->pending[p->n_pending++] = (struct pending){.name_n = n, .mode = t->mode, .mtime_s = t->mtime_s};
	return 0;
}

static int put_file(struct put *p, int dir, const char *last, struct err *e)
{
	const struct tree_entry *t = &p->reader.entry;
	int r = clear_way(dir, last, t->name, e);
	if (r < 0)
		return r;
	p->file = openat(dir, last, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (p->file < 0)
		return err_sys(e, "make %s", t->name);
	return 0;
}

static int put_link(struct put *p, int dir, const char *last, struct err *e)
{
	const struct tree_entry *t = &p->reader.entry;
	struct timespec times[2] = {at_second(t->mtime_s), at_second(t->mtime_s)};
	int r = clear_way(dir, last, t->name, e);
	if (r < 0)
		return r;
	if (symlinkat(t->target, dir, last) < 0)
		return err_sys(e, "make %s", t->name);
	if (utimensat(dir, last, times, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, "set the time of %s", t->name);
	return 0;
}

static int put_entry(struct put *p, struct err *e)
{
	static int (*const makers[])(struct put *, int, const char *, struct err *) = {
		[TREE_DIRECTORY] = put_directory,
		[TREE_FILE] = put_file,
		[TREE_LINK] = put_link,
		[TREE_SKIPPED] = NULL,
		[TREE_END] = NULL,
	};
	const struct tree_entry *t = &p->reader.entry;
	bool is_root = strcmp(t->name, ".") == 0;
	if (!makers[t->kind] || (is_root && t->kind == TREE_DIRECTORY))
		return 0;
	if (is_root)
		return err_set(e, -EISDIR, "the tree has a file in place of its directory");
	int dir = -1;
	const char *last = NULL;
	int r = pending_leave(p, t->name, e);
	if (r == 0)
		r = parent_open(p, t->name, &dir, &last, e);
	return r < 0 ? r : makers[t->kind](p, dir, last, e);
}

static int put_data(struct put *p, const uint8_t *data, size_t n, uint64_t offset, struct err *e)
{
	const char *name = p->reader.entry.name;
	if (offset > INT64_MAX - n)
		return err_set(e, -EFBIG, "write %s: too large", name);
	while (n > 0) {
		ssize_t done = pwrite(p->file, data, n, (off_t)offset);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_sys(e, "write %s", name);
		data += done;
		n -= (size_t)done;
		offset += (uint64_t)done;
	}
	return 0;
}

static int put_file_done(struct put *p, struct err *e)
{
	const struct tree_entry *t = &p->reader.entry;
	struct stat st;
	if (t->size > INT64_MAX)
		return err_set(e, -EFBIG, "write %s: too large", t->name);
	/* What follows the last segment is a hole. */
	if (fstat(p->file, &st) < 0 ||
	    ((uint64_t)st.st_size != t->size && ftruncate(p->file, (off_t)t->size) < 0))
		return err_sys(e, "write %s", t->name);
	if (fchmod(p->file, t->mode) < 0)
		return err_sys(e, "set the mode of %s", t->name);
	int r = set_time(p->file, t->mtime_s, t->name, e);
	fd_close(&p->file);
	return r;
}

/* Makes what n bytes of the stream say. Returns an event of the reader: TREE_MORE or TREE_DONE. */
static int put_bytes(struct put *p, const uint8_t *at, size_t n, struct err *e)
{
	for (;;) {
		const uint8_t *data = NULL;
		size_t data_n = 0;
		uint64_t offset = 0;
		int event = tree_read(&p->reader, &at, &n, &data, &data_n, &offset, e);
		int r = event;
		if (event == TREE_ENTRY)
			r = put_entry(p, e);
		else if (event == TREE_DATA)
			r = put_data(p, data, data_n, offset, e);
		else if (event == TREE_FILE_DONE)
			r = put_file_done(p, e);
		if (r < 0 || event == TREE_MORE || event == TREE_DONE)
			return r;
	}
}

int files_put(int in, int directory, struct err *e)
{
	scoped_put struct put *p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(e, -ENOMEM, "out of memory");
	p->root = directory;
	p->parent = -1;
	p->file = -1;
	/* The host sends what its user asked for; the disk's quota is the limit. */
	tree_reader_init(&p->reader, UINT64_MAX, UINT64_MAX);
	int r = TREE_MORE;
	while (r == TREE_MORE) {
		ssize_t n = read(in, p->input, sizeof(p->input));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, "read the tree");
		if (n == 0)
			return err_set(e, -EPROTO, "the tree ends in the middle");
		r = put_bytes(p, p->input, (size_t)n, e);
	}
	return r < 0 ? r : pending_leave(p, NULL, e);
}
