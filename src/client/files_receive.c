#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/named.h"
#include "base/scope.h"
#include "client/files.h"
#include "client/inodes.h"
#include "wire/tree.h"

enum { HOST_PATH_MAX = TREE_NAME_MAX + NAME_MAX + 2, REASON_MAX = TREE_NAME_MAX + 128, WARNINGS_MAX = 20 };

struct files_receiver {
	struct tree_reader reader;
	int root;   /* borrowed */
	int parent; /* owned: the directory that holds the current entry */
	int file;   /* owned: the file being written, or -1 */
	const char *base;
	const char *name;
	struct inodes made; /* what this stream has made or entered: nothing may come twice */
	unsigned n_warnings;
	files_warn_fn *warn;
	void *data;
	const char *leaf;         /* the current entry's name in its directory, inside path */
	char path[HOST_PATH_MAX]; /* of the current entry, relative to root */
};

static void warn_of(struct files_receiver *r, const char *why)
{
	char text[REASON_MAX];
	r->n_warnings++;
	if (r->n_warnings > WARNINGS_MAX)
		return;
	const char *name = r->reader.entry.name;
	(void)snprintf(text, sizeof(text), "output %.*s: not copied: %s", TREE_NAME_MAX, name, why);
	r->warn(r->data, text);
	if (r->n_warnings == WARNINGS_MAX)
		r->warn(r->data, "more files of this output may be left out without a warning");
}

/* What stands behind the output's own name in an entry's: "" for the output itself, "a/b" for what is in it; NULL when
 * the entry is not part of the output. */
static const char *below_base(const struct files_receiver *r, const char *name)
{
	size_t n = strlen(r->base);
	if (strncmp(name, r->base, n) != 0 || (name[n] != '\0' && name[n] != '/'))
		return NULL;
	return name[n] == '/' ? name + n + 1 : name + n;
}

/* Finds the host's path of the current entry and opens the directory that it goes into. */
static int open_parent(struct files_receiver *r, const char *below, struct err *e)
{
	(void)snprintf(r->path, sizeof(r->path), "%s%s%s", r->name, below[0] ? "/" : "", below);
	char *slash = strrchr(r->path, '/');
	fd_close(&r->parent);
	r->leaf = slash ? slash + 1 : r->path;
	const int flags = O_PATH | O_DIRECTORY;
	if (!slash) {
		r->parent = openat(r->root, ".", flags | O_CLOEXEC);
		return r->parent < 0 ? err_sys(e, "open the directory of %s", r->name) : 0;
	}
	*slash = '\0';
	int code = file_open_beneath(r->root, r->path, flags, 0, &r->parent, e);
	*slash = '/';
	return code;
}

/* Remembers what was made under the current name. A second entry of the same name is refused. */
static int remember(struct files_receiver *r, const struct stat *st, struct err *e)
{
	int code = inodes_add(&r->made, st->st_dev, st->st_ino);
	if (code == -EEXIST)
		return err_set(e, -EPROTO, "%s comes twice", r->reader.entry.name);
	return code < 0 ? err_code(e, code, "%s", r->path) : 0;
}

/* Makes room for a file or link: a file or link that was there before goes away, anything else stays and is an
 * error. */
static int clear_way(struct files_receiver *r, struct err *e)
{
	struct stat st = {0};
	if (fstatat(r->parent, r->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : err_sys(e, "%s", r->path);
	if (inodes_has(&r->made, st.st_dev, st.st_ino))
		return err_set(e, -EPROTO, "%s comes twice", r->reader.entry.name);
	if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
		return err_set(e, -EEXIST, "%s is in the way: it is neither a file nor a link", r->path);
	if (unlinkat(r->parent, r->leaf, 0) < 0)
		return err_sys(e, "replace %s", r->path);
	return 0;
}

static int make_directory(struct files_receiver *r, const char *, struct err *e)
{
	bool is_new = mkdirat(r->parent, r->leaf, 0700) == 0;
	if (!is_new && errno != EEXIST)
		return err_sys(e, "make %s", r->path);
	scoped_fd int fd =
		openat(r->parent, r->leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st = {0};
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return err_set(e, -EEXIST, "%s is in the way: it is not a directory", r->path);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(e, "open %s", r->path);
	/* Its owner must be able to fill it, whatever the mode was inside. */
	if (is_new && fchmod(fd, r->reader.entry.mode | 0700) < 0)
		return err_sys(e, "chmod %s", r->path);
	return remember(r, &st, e);
}

static int make_file(struct files_receiver *r, const char *, struct err *e)
{
	int code = clear_way(r, e);
	if (code < 0)
		return code;
	r->file = openat(r->parent, r->leaf, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct stat st = {0};
	if (r->file < 0 || fstat(r->file, &st) < 0)
		return err_sys(e, "make %s", r->path);
	return remember(r, &st, e);
}

static int make_link(struct files_receiver *r, const char *below, struct err *e)
{
	/* The reader knows only that a link stays below the directory of the output, which is the user's own: it has to
	 * stay inside the output. */
	if (!below[0] || !tree_link_inside(below, r->reader.entry.target)) {
		warn_of(r, "the link leads out of the output");
		return 0;
	}
	int code = clear_way(r, e);
	if (code < 0)
		return code;
	struct stat st = {0};
	if (symlinkat(r->reader.entry.target, r->parent, r->leaf) < 0 ||
	    fstatat(r->parent, r->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, "make %s", r->path);
	return remember(r, &st, e);
}

static int skip(struct files_receiver *r, const char *, struct err *)
{
	warn_of(r, "it is a device, a socket, a FIFO, a link that leads out, or too deep");
	return 0;
}

static int on_entry(struct files_receiver *r, struct err *e)
{
	static int (*const makers[])(struct files_receiver *, const char *, struct err *) = {
		[TREE_DIRECTORY] = make_directory,
		[TREE_FILE] = make_file,
		[TREE_LINK] = make_link,
		[TREE_SKIPPED] = skip,
	};
	const struct tree_entry *entry = &r->reader.entry;
	const char *below = below_base(r, entry->name);
	if (!below)
		return err_set(e, -EPROTO, "%s does not belong to the output %s", entry->name, r->base);
	if (entry->kind == TREE_SKIPPED)
		return skip(r, below, e);
	int code = open_parent(r, below, e);
	return code < 0 ? code : makers[entry->kind](r, below, e);
}

static int on_data(struct files_receiver *r, const uint8_t *p, size_t n, uint64_t offset, struct err *e)
{
	while (n > 0) {
		ssize_t done = pwrite(r->file, p, n, (off_t)offset);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_sys(e, "write %s", r->path);
		p += done;
		n -= (size_t)done;
		offset += (uint64_t)done;
	}
	return 0;
}

static int on_file_done(struct files_receiver *r, struct err *e)
{
	const struct tree_entry *entry = &r->reader.entry;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = entry->mtime_s}};
	/* What follows the last segment is a hole. A time that the file system cannot hold is not worth failing for. */
	int code = ftruncate(r->file, (off_t)entry->size) < 0 || fchmod(r->file, entry->mode & 0777) < 0
			   ? err_sys(e, "write %s", r->path)
			   : 0;
	(void)futimens(r->file, times);
	fd_close(&r->file);
	return code;
}

int files_receive(struct files_receiver *r, const uint8_t *p, size_t n, struct err *e)
{
	for (;;) {
		const uint8_t *bytes = NULL;
		size_t bytes_n = 0;
		uint64_t offset = 0;
		int event = tree_read(&r->reader, &p, &n, &bytes, &bytes_n, &offset, e);
		int code = event < 0 ? event : 0;
		if (event == TREE_ENTRY)
			code = on_entry(r, e);
		else if (event == TREE_DATA)
			code = on_data(r, bytes, bytes_n, offset, e);
		else if (event == TREE_FILE_DONE)
			code = on_file_done(r, e);
		if (code < 0)
			return code;
		if (event == TREE_MORE || event == TREE_DONE)
			return event == TREE_DONE;
	}
}

struct files_receiver *files_receiver_new(const struct files_target *target, const char *base,
					  uint64_t bytes_max, files_warn_fn *warn, void *data)
{
	struct files_receiver *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	tree_reader_init(&r->reader, bytes_max, FILES_ENTRIES_MAX);
	r->root = target->dir;
	r->parent = -1;
	r->file = -1;
	r->base = base;
	r->name = target->name;
	r->made = INODES_INIT;
	r->warn = warn;
	r->data = data;
	return r;
}

void files_receiver_free(struct files_receiver *r)
{
	if (!r)
		return;
	fd_close(&r->parent);
	fd_close(&r->file);
	inodes_done(&r->made);
	free(r);
}

/* The path of a directory as the kernel knows it. */
static int full_path(const char *path, char full[static PATH_MAX], struct err *e)
{
	scoped_fd int fd = -1;
	int r = named_open(path, O_PATH | O_DIRECTORY, &fd, e);
	if (r == 0)
		r = file_path(fd, full, PATH_MAX, e);
	return r < 0 ? err_ctx(e, r, "%s", path) : 0;
}

/* Cuts path into the directory and the last component, which are put into the two. A path that ends in no name ("." and
 * "..") is made a full one first. */
static int split(const char *path, char dir[static PATH_MAX], char name[static NAME_MAX + 1], struct err *e)
{
	char full[PATH_MAX];
	size_t n = strnlen(path, sizeof(full));
	while (n > 1 && n < sizeof(full) && path[n - 1] == '/')
		n--;
	if (n == 0 || n == sizeof(full))
		return err_set(e, -EINVAL, "a path of 1 to %d bytes is accepted", PATH_MAX - 1);
	memcpy(full, path, n);
	full[n] = '\0';
	const char *slash = strrchr(full, '/');
	const char *last = slash ? slash + 1 : full;
	if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0) {
		int r = full_path(path, full, e);
		if (r < 0)
			return r;
		slash = strrchr(full, '/');
		last = slash ? slash + 1 : full;
	}
	size_t last_n = strlen(last);
	if (last_n == 0 || last_n > NAME_MAX)
		return err_set(e, -EINVAL, "%s: a path that ends in a name of 1 to %d bytes is accepted",
			       path, NAME_MAX);
	memcpy(name, last, last_n + 1);
	size_t dir_n = (size_t)(last - full);
	memcpy(dir, dir_n ? full : "./", dir_n ? dir_n : 2);
	dir[dir_n ? dir_n : 2] = '\0';
	return 0;
}

int files_target_open(const char *path, struct files_target *ret, struct err *e)
{
	char dir[PATH_MAX];
	struct files_target t = FILES_TARGET_INIT;
	int r = split(path, dir, t.name, e);
	if (r < 0)
		return r;
	scoped_fd int fd = -1;
	r = named_open(dir, O_RDONLY | O_DIRECTORY, &fd, e);
	if (r < 0)
		return err_ctx(e, r, "%s: directory %s", path, dir);
	if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return err_sys(e, "%s: write to the directory %s", path, dir);
	t.dir = fd_steal(&fd);
	*ret = t;
	return 0;
}

void files_target_done(struct files_target *t)
{
	fd_close(&t->dir);
}
