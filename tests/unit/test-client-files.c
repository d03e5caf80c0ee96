#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/scope.h"
#include "client/files.h"
#include "fds.h"
#include "wire/tree.h"

enum { STREAM_MAX = 1 << 20, LIMIT = 1 << 20 };

/* A directory of its own for each test, and what was warned of. */
struct place {
	char path[64];
	int dir;
	int fds_before;
	char warnings[4096];
};

static int place_setup(void **state)
{
	static struct place p;
	memset(&p, 0, sizeof(p));
	p.fds_before = fds_open();
	(void)snprintf(p.path, sizeof(p.path), "/tmp/test-client-files-XXXXXX");
	if (!mkdtemp(p.path))
		return -1;
	p.dir = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = &p;
	return p.dir < 0 ? -1 : 0;
}

static int place_teardown(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = file_remove_tree(tmp, strrchr(p->path, '/') + 1, &e);
	(void)close(tmp);
	fd_close(&p->dir);
	return r < 0 || fds_open() != p->fds_before ? -1 : 0;
}

static void note_warning(void *data, const char *text)
{
	struct place *p = data;
	size_t n = strlen(p->warnings);
	(void)snprintf(p->warnings + n, sizeof(p->warnings) - n, "%s\n", text);
}

static void write_file(int dir, const char *name, const char *text, mode_t mode)
{
	scoped_fd int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, text, strlen(text), NULL), 0);
	assert_int_equal(fchmod(fd, mode), 0);
}

static void assert_file(int dir, const char *name, const char *text)
{
	char found[256];
	struct err e = ERR_INIT;
	assert_true(file_read_text(dir, name, found, sizeof(found), &e) >= 0);
	assert_string_equal(found, text);
}

static struct stat stat_of(int dir, const char *name)
{
	struct stat st = {0};
	assert_int_equal(fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	return st;
}

/* One entry of a hand-made stream; content of files is a text. */
struct item {
	enum tree_kind kind;
	const char *name;
	const char *text; /* content of a file, target of a link */
	uint32_t mode;
};

static void add_item(struct buf *stream, const struct item *item)
{
	uint8_t bytes[TREE_HEAD + 2 * (TREE_NAME_MAX + 1)];
	const char *text = item->text ? item->text : "";
	bool is_file = item->kind == TREE_FILE;
	struct tree_entry entry = {.kind = item->kind,
				   .mode = item->mode,
				   .size = is_file ? strlen(text) : 0,
				   .mtime_s = 1000000000,
				   .name = item->name ? item->name : "",
				   .target = item->kind == TREE_LINK ? text : ""};
	ptrdiff_t n = tree_write_entry(&entry, bytes);
	assert_true(n > 0);
	buf_add(stream, bytes, (size_t)n);
	if (!is_file)
		return;
	if (text[0]) {
		tree_write_segment(0, (uint32_t)strlen(text), bytes);
		buf_add(stream, bytes, TREE_SEGMENT);
		buf_str(stream, text);
	}
	tree_write_segment(strlen(text), 0, bytes);
	buf_add(stream, bytes, TREE_SEGMENT);
}

/* Feeds a stream in pieces; returns what the last call did. */
static int feed(struct files_receiver *r, const char *p, size_t n, size_t piece, struct err *e)
{
	int done = 0;
	for (size_t at = 0; at < n && done == 0; at += piece)
		done = files_receive(r, (const uint8_t *)p + at, n - at < piece ? n - at : piece, e);
	return done;
}

static int receive_items(struct place *p, const struct item *items, size_t n, size_t piece, struct err *e)
{
	scoped_buf struct buf stream = BUF_INIT(STREAM_MAX);
	for (size_t i = 0; i < n; i++)
		add_item(&stream, &items[i]);
	add_item(&stream, &(struct item){.kind = TREE_END});
	struct files_target target = {.dir = p->dir, .name = "host"};
	struct files_receiver *r = files_receiver_new(&target, "out", LIMIT, note_warning, p);
	assert_non_null(r);
	int done = feed(r, stream.p, stream.n, piece, e);
	files_receiver_free(r);
	return done;
}

static void makes_a_tree(void **state)
{
	static const struct item items[] = {
		{TREE_DIRECTORY, "out", NULL, 0755},   {TREE_FILE, "out/a", "first", 0640},
		{TREE_DIRECTORY, "out/d", NULL, 0500}, {TREE_FILE, "out/d/b", "second", 0755},
		{TREE_LINK, "out/d/l", "../a", 0777},  {TREE_FILE, "out/empty", "", 0644},
		{TREE_SKIPPED, "out/socket", NULL, 0},
	};
	struct place *p = *state;
	static const size_t pieces[] = {1, 7, STREAM_MAX};
	for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		struct err e = ERR_INIT;
		p->warnings[0] = '\0';
		/* The second and third time everything is there already and is replaced. */
		assert_int_equal(receive_items(p, items, sizeof(items) / sizeof(items[0]), pieces[i], &e), 1);
		assert_file(p->dir, "host/a", "first");
		assert_file(p->dir, "host/d/b", "second");
		assert_file(p->dir, "host/empty", "");
		assert_int_equal(stat_of(p->dir, "host/a").st_mode, S_IFREG | 0640);
		assert_int_equal(stat_of(p->dir, "host/a").st_mtime, 1000000000);
		assert_int_equal(stat_of(p->dir, "host/d").st_mode, S_IFDIR | 0700);
		assert_int_equal(stat_of(p->dir, "host/d/b").st_mode, S_IFREG | 0755);
		assert_true(S_ISLNK(stat_of(p->dir, "host/d/l").st_mode));
		assert_non_null(strstr(p->warnings, "output out/socket: not copied: it is a device"));
	}
}

static void makes_a_single_file(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	static const struct item items[] = {{TREE_FILE, "out", "alone", 0644}};
	write_file(p->dir, "host", "something older and longer", 0600);
	assert_int_equal(receive_items(p, items, 1, STREAM_MAX, &e), 1);
	assert_file(p->dir, "host", "alone");
}

static void fills_up_a_directory(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	static const struct item items[] = {{TREE_DIRECTORY, "out", NULL, 0700},
					    {TREE_FILE, "out/new", "new", 0644},
					    {TREE_FILE, "out/link", "file now", 0644}};
	assert_int_equal(mkdirat(p->dir, "host", 0755), 0);
	scoped_fd int host = openat(p->dir, "host", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	write_file(host, "old", "old", 0644);
	write_file(p->dir, "outside", "untouched", 0644);
	assert_int_equal(symlinkat("../outside", host, "link"), 0);
	assert_int_equal(receive_items(p, items, 3, STREAM_MAX, &e), 1);
	assert_file(host, "old", "old");
	assert_file(host, "new", "new");
	assert_file(host, "link", "file now");
	assert_file(p->dir, "outside", "untouched");
	assert_int_equal(stat_of(p->dir, "host").st_mode, S_IFDIR | 0755);
}

/* Streams that a hostile sandbox sends and the reader of the stream itself cannot know to be wrong. */
static void refuses(void **state)
{
	static const struct {
		struct item items[4];
		size_t n;
		const char *message;
	} rows[] = {
		{{{TREE_FILE, "other", "x", 0644}}, 1, "other does not belong to the output out"},
		{{{TREE_FILE, "outer", "x", 0644}}, 1, "outer does not belong to the output out"},
		{{{TREE_DIRECTORY, "out", NULL, 0755}, {TREE_DIRECTORY, "out", NULL, 0755}},
		 2,
		 "out comes twice"},
		{{{TREE_FILE, "out", "a", 0644}, {TREE_FILE, "out", "b", 0644}}, 2, "out comes twice"},
		{{{TREE_FILE, "out", "a", 0644}, {TREE_DIRECTORY, "out", NULL, 0755}},
		 2,
		 "host is in the way"},
		{{{TREE_DIRECTORY, "out", NULL, 0755}, {TREE_FILE, "out", "a", 0644}}, 2, "out comes twice"},
		{{{TREE_DIRECTORY, "out", NULL, 0755},
		  {TREE_LINK, "out/l", "d", 0777},
		  {TREE_FILE, "out/l", "x", 0644}},
		 3,
		 "out/l comes twice"},
		{{{TREE_DIRECTORY, "out", NULL, 0755},
		  {TREE_DIRECTORY, "out/d", NULL, 0755},
		  {TREE_LINK, "out/l", "d", 0777},
		  {TREE_FILE, "out/l/x", "x", 0644}},
		 4,
		 "open host/l: "},
		{{{TREE_DIRECTORY, "out", NULL, 0755},
		  {TREE_DIRECTORY, "out/d", NULL, 0755},
		  {TREE_LINK, "out/l", "d", 0777},
		  {TREE_DIRECTORY, "out/l", NULL, 0755}},
		 4,
		 "host/l is in the way: it is not a directory"},
		{{{TREE_FILE, "out/d/x", "x", 0644}}, 1, "open host/d: No such file or directory"},
	};
	struct place *p = *state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		assert_true(receive_items(p, rows[i].items, rows[i].n, STREAM_MAX, &e) < 0);
		assert_non_null(strstr(e.msg, rows[i].message));
		assert_int_equal(file_remove_tree(p->dir, "host", &e), 0);
	}
}

/* What stands on the host in the way of an output is never followed, nor removed unless it is a file or link. */
static void host_is_not_followed(void **state)
{
	struct place *p = *state;
	static const struct item directory[] = {{TREE_DIRECTORY, "out", NULL, 0755},
						{TREE_FILE, "out/x", "x", 0644}};
	static const struct item file[] = {{TREE_FILE, "out", "x", 0644}};
	struct err e = ERR_INIT;
	assert_int_equal(mkdirat(p->dir, "elsewhere", 0755), 0);
	assert_int_equal(symlinkat("elsewhere", p->dir, "host"), 0);
	assert_int_equal(receive_items(p, directory, 2, STREAM_MAX, &e), -EEXIST);
	assert_string_equal(e.msg, "host is in the way: it is not a directory");
	assert_int_equal(receive_items(p, file, 1, STREAM_MAX, &e), 1);
	assert_true(S_ISREG(stat_of(p->dir, "host").st_mode));
	assert_int_equal(unlinkat(p->dir, "elsewhere", AT_REMOVEDIR), 0);
	assert_int_equal(unlinkat(p->dir, "host", 0), 0);

	assert_int_equal(mkfifoat(p->dir, "host", 0600), 0);
	assert_int_equal(receive_items(p, file, 1, STREAM_MAX, &e), -EEXIST);
	assert_string_equal(e.msg, "host is in the way: it is neither a file nor a link");
	assert_int_equal(unlinkat(p->dir, "host", 0), 0);
	assert_int_equal(mkdirat(p->dir, "host", 0700), 0);
	assert_int_equal(receive_items(p, file, 1, STREAM_MAX, &e), -EEXIST);
}

/* A link may stay below the directory that the output goes into and still leave the output: it is left out. */
static void links_stay_inside(void **state)
{
	static const struct item items[] = {
		{TREE_DIRECTORY, "out", NULL, 0755},
		{TREE_LINK, "out/up", "../secret", 0777},
		{TREE_LINK, "out/ok", "up", 0777},
	};
	static const struct item alone[] = {{TREE_LINK, "out", "secret", 0777}};
	struct place *p = *state;
	struct err e = ERR_INIT;
	struct stat st = {0};
	assert_int_equal(receive_items(p, items, 3, STREAM_MAX, &e), 1);
	assert_true(fstatat(p->dir, "host/up", &st, AT_SYMLINK_NOFOLLOW) < 0);
	assert_int_equal(fstatat(p->dir, "host/ok", &st, AT_SYMLINK_NOFOLLOW), 0);
	assert_non_null(strstr(p->warnings, "output out/up: not copied: the link leads out of the output"));
	assert_int_equal(file_remove_tree(p->dir, "host", &e), 0);
	assert_int_equal(receive_items(p, alone, 1, STREAM_MAX, &e), 1);
	assert_true(fstatat(p->dir, "host", &st, AT_SYMLINK_NOFOLLOW) < 0);
}

static void warnings_are_bounded(void **state)
{
	struct place *p = *state;
	struct item items[100];
	char names[100][16];
	struct err e = ERR_INIT;
	for (int i = 0; i < 100; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "out/%d", i);
		items[i] = (struct item){.kind = TREE_SKIPPED, .name = names[i]};
	}
	assert_int_equal(receive_items(p, items, 100, STREAM_MAX, &e), 1);
	size_t n = 0;
	for (const char *at = p->warnings; (at = strchr(at, '\n')); at++)
		n++;
	assert_int_equal(n, 21);
}

static void sparse_and_too_large(void **state)
{
	static const struct {
		uint64_t size;
		int expected;
	} rows[] = {{LIMIT, 1}, {LIMIT + 1, -EFBIG}};
	struct place *p = *state;
	struct files_target target = {.dir = p->dir, .name = "host"};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		scoped_buf struct buf stream = BUF_INIT(STREAM_MAX);
		uint8_t bytes[TREE_HEAD + 2 * (TREE_NAME_MAX + 1)];
		struct tree_entry entry = {
			.kind = TREE_FILE, .mode = 0600, .size = rows[i].size, .name = "out", .target = ""};
		buf_add(&stream, bytes, (size_t)tree_write_entry(&entry, bytes));
		tree_write_segment(rows[i].size / 2, 1, bytes);
		buf_add(&stream, bytes, TREE_SEGMENT);
		buf_str(&stream, "x");
		tree_write_segment(rows[i].size, 0, bytes);
		buf_add(&stream, bytes, TREE_SEGMENT);
		add_item(&stream, &(struct item){.kind = TREE_END});
		struct files_receiver *r = files_receiver_new(&target, "out", LIMIT, note_warning, p);
		struct err e = ERR_INIT;
		assert_int_equal(feed(r, stream.p, stream.n, 5, &e), rows[i].expected);
		files_receiver_free(r);
	}
	struct stat st = stat_of(p->dir, "host");
	assert_int_equal(st.st_size, LIMIT);
	assert_true(st.st_blocks * 512 < LIMIT / 2);
}

/* Sends p's directory "in" and receives it as "host": what files_send() writes, files_receive() takes. */
static void round_trip(void **state)
{
	struct place *p = *state;
	assert_int_equal(mkdirat(p->dir, "in", 0755), 0);
	scoped_fd int in = openat(p->dir, "in", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(mkdirat(in, "out", 0755), 0);
	assert_int_equal(mkdirat(in, "out/.git", 0700), 0);
	write_file(in, "out/.git/config", "[core]", 0600);
	write_file(in, "out/run", "#!/bin/sh", 0755);
	write_file(in, "out/n\nl", "odd name", 0644);
	assert_int_equal(symlinkat(".git/config", in, "out/inside"), 0);
	assert_int_equal(symlinkat("/etc/passwd", in, "out/absolute"), 0);
	assert_int_equal(symlinkat("../../elsewhere", in, "out/outside"), 0);
	assert_int_equal(mkfifoat(in, "out/fifo", 0600), 0);
	scoped_fd int big = openat(in, "out/sparse", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(pwrite(big, "end", 3, 600000), 3);

	int ends[2] = {-1, -1};
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	scoped_fd int reader = ends[0];
	scoped_fd int writer = ends[1];
	struct files_sender sender = FILES_SENDER_INIT;
	struct err e = ERR_INIT;
	/* The warnings are called for in the child: they are looked at in skips_with_a_warning(). */
	assert_int_equal(files_sender_start(&sender, in, writer, note_warning, p, &e), 0);
	fd_close(&writer);
	struct files_target target = {.dir = p->dir, .name = "host"};
	struct files_receiver *r = files_receiver_new(&target, "out", LIMIT, note_warning, p);
	uint8_t bytes[4096];
	int done = 0;
	for (ssize_t n = 1; n > 0 && done == 0;) {
		n = read(reader, bytes, sizeof(bytes));
		done = n > 0 ? files_receive(r, bytes, (size_t)n, &e) : -EPIPE;
	}
	files_receiver_free(r);
	assert_int_equal(done, 1);
	assert_int_equal(files_sender_wait(&sender, &e), 0);
	assert_file(p->dir, "host/.git/config", "[core]");
	assert_file(p->dir, "host/run", "#!/bin/sh");
	assert_file(p->dir, "host/n\nl", "odd name");
	assert_int_equal(stat_of(p->dir, "host/run").st_mode, S_IFREG | 0755);
	assert_true(S_ISLNK(stat_of(p->dir, "host/inside").st_mode));
	struct stat st = stat_of(p->dir, "host/sparse");
	assert_int_equal(st.st_size, 600003);
	assert_true(st.st_blocks * 512 < 300000);
	assert_true(fstatat(p->dir, "host/absolute", &st, AT_SYMLINK_NOFOLLOW) < 0);
	assert_true(fstatat(p->dir, "host/outside", &st, AT_SYMLINK_NOFOLLOW) < 0);
	assert_true(fstatat(p->dir, "host/fifo", &st, AT_SYMLINK_NOFOLLOW) < 0);
}

static void skips_with_a_warning(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	scoped_fd int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	assert_int_equal(mkfifoat(p->dir, "fifo", 0600), 0);
	assert_int_equal(symlinkat("/etc", p->dir, "etc"), 0);
	assert_int_equal(files_send(p->dir, null, note_warning, p, &e), 0);
	assert_non_null(strstr(p->warnings, "fifo: not copied: it is a device, a socket or a FIFO\n"));
	assert_non_null(strstr(p->warnings, "etc: not copied: the link leads out of the workspace\n"));
}

static void sender_tells_its_errors(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	scoped_fd int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	scoped_fd int at = fcntl(p->dir, F_DUPFD_CLOEXEC, 3);
	for (int i = 0; i <= FILES_DEPTH_MAX; i++) {
		assert_int_equal(mkdirat(at, "d", 0700), 0);
		int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		fd_close(&at);
		at = next;
	}
	struct files_sender sender = FILES_SENDER_INIT;
	assert_int_equal(files_sender_start(&sender, p->dir, null, note_warning, p, &e), 0);
	assert_int_equal(files_sender_wait(&sender, &e), -ENAMETOOLONG);
	assert_non_null(strstr(e.msg, "lies deeper than 128 directories"));
}

static void sender_meets_a_closed_pipe(void **state)
{
	struct place *p = *state;
	struct err e = ERR_INIT;
	int ends[2] = {-1, -1};
	write_file(p->dir, "a", "x", 0600);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	(void)close(ends[0]);
	scoped_fd int writer = ends[1];
	struct files_sender sender = FILES_SENDER_INIT;
	assert_int_equal(files_sender_start(&sender, p->dir, writer, note_warning, p, &e), 0);
	assert_int_equal(files_sender_wait(&sender, &e), -EPIPE);
	/* Killing what is over, or was never there, does nothing. */
	files_sender_kill(&sender);
	files_sender_kill(&sender);
}

static void targets(void **state)
{
	static const struct {
		const char *path;
		int expected;
		const char *name; /* or part of the message */
	} rows[] = {
		{"a", 0, "a"},
		{"a/", 0, "a"},
		{"./a", 0, "a"},
		{"sub/a", 0, "a"},
		{"sub/.", 0, "sub"},
		{"sub", 0, "sub"},
		{"link/a", 0, "a"},
		{"link", 0, "link"},
		{"", -EINVAL, "a path of 1 to"},
		{"/", -EINVAL, "ends in a name"},
		{"missing/a", -ENOENT, "directory missing/: No such file"},
		{"missing/.", -ENOENT, "No such file"},
		{"file/a", -ENOTDIR, "Not a directory"},
	};
	struct place *p = *state;
	assert_int_equal(mkdirat(p->dir, "sub", 0755), 0);
	assert_int_equal(symlinkat("sub", p->dir, "link"), 0);
	write_file(p->dir, "file", "", 0600);
	scoped_fd int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(fchdir(p->dir), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct files_target t = FILES_TARGET_INIT;
		struct err e = ERR_INIT;
		assert_int_equal(files_target_open(rows[i].path, &t, &e), rows[i].expected);
		assert_non_null(strstr(rows[i].expected == 0 ? t.name : e.msg, rows[i].name));
		files_target_done(&t);
	}
	assert_int_equal(fchdir(before), 0);
}

int main(void)
{
	(void)signal(SIGPIPE, SIG_IGN);
#define row(f) cmocka_unit_test_setup_teardown(f, place_setup, place_teardown)
	const struct CMUnitTest tests[] = {
		row(makes_a_tree),
		row(makes_a_single_file),
		row(fills_up_a_directory),
		row(refuses),
		row(host_is_not_followed),
		row(links_stay_inside),
		row(warnings_are_bounded),
		row(sparse_and_too_large),
		row(round_trip),
		row(skips_with_a_warning),
		row(sender_tells_its_errors),
		row(sender_meets_a_closed_pipe),
		row(targets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
