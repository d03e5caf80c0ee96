#include "guest-host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "base/rd.h"
#include "base/scope.h"
#include "guest/files.h"
#include "wire/tree.h"

#define DAY 86400

/* A new directory that is the current one; gone with the test. */
static int set_up(void **state)
{
	char *path = strdup("/tmp/test-guest-files-XXXXXX");
	if (!path || !mkdtemp(path) || chdir(path) < 0 || chmod(".", 0755) < 0)
		return -1;
	*state = path;
	return 0;
}

static int tear_down(void **state)
{
	char *path = *state;
	scoped_fd int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = chdir("/");
	if (r == 0)
		r = file_remove_tree(tmp, strrchr(path, '/') + 1, NULL);
	free(path);
	return r;
}

static int open_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void make_file(const char *path, const void *p, size_t n, mode_t mode, time_t mtime)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct timespec times[2] = {{.tv_sec = mtime}, {.tv_sec = mtime}};
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, p, n, NULL), 0);
	assert_int_equal(fchmod(fd, mode), 0);
	assert_int_equal(futimens(fd, times), 0);
}

static void make_directory(const char *path, mode_t mode, time_t mtime)
{
	struct timespec times[2] = {{.tv_sec = mtime}, {.tv_sec = mtime}};
	assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
	assert_int_equal(chmod(path, mode), 0);
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Sends path, taken from the current directory, into a new file positioned at its beginning. */
static int get(const char *path)
{
	struct err e = ERR_INIT;
	scoped_fd int out = memfd_create("tree", MFD_CLOEXEC);
	scoped_fd int here = open_directory(".");
	int r = files_get(here, path, out, &e);
	if (r != 0)
		fail_msg("get %s: %d %s", path, r, e.msg);
	assert_int_equal(lseek(out, 0, SEEK_SET), 0);
	return fd_steal(&out);
}

static int put(int in, const char *directory, struct err *e)
{
	scoped_fd int to = open_directory(directory);
	return files_put(in, to, e);
}

static void check_put(int in, const char *directory)
{
	struct err e = ERR_INIT;
	if (put(in, directory, &e) < 0)
		fail_msg("put: %s", e.msg);
}

static void check_stat(const char *path, mode_t mode, off_t size, time_t mtime)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		fail_msg("%s is missing", path);
	assert_int_equal(st.st_mode, mode);
	if (S_ISREG(mode))
		assert_int_equal(st.st_size, size);
	assert_int_equal(st.st_mtim.tv_sec, mtime);
}

static void check_content(const char *path, const char *want)
{
	char text[256];
	ssize_t n = file_read_text(AT_FDCWD, path, text, sizeof(text), NULL);
	assert_true(n >= 0);
	assert_string_equal(text, want);
}

static void check_link(const char *path, const char *want)
{
	char text[256] = "";
	assert_true(readlink(path, text, sizeof(text) - 1) > 0);
	assert_string_equal(text, want);
}

static void goes_round(void **)
{
	make_directory("src", 0755, 0);
	make_directory("src/sub", 0700, 0);
	make_directory("src/sub/deep", 0700, 0);
	make_directory("src/empty", 0711, 0);
	make_file("src/a", "hello", 5, 0640, DAY);
	make_file("src/nothing", "", 0, 0444, 2 * DAY);
	make_file("src/sub/deep/run", "#!", 2, 04755, 3 * DAY);
	make_file("src/ name\nwith \xff", "odd", 3, 0600, -DAY);
	assert_int_equal(symlink("sub/deep/run", "src/link"), 0);
	assert_int_equal(symlink("../a", "src/sub/up"), 0);
	assert_int_equal(symlink("nowhere", "src/dangling"), 0);
	make_directory("src/sub/deep", 0555, 4 * DAY);
	make_directory("src/sub", 0500, 5 * DAY);
	make_directory("src/empty", 0711, 6 * DAY);
	make_directory("src", 0750, 7 * DAY);
	make_directory("dst", 0755, 0);

	scoped_fd int tree = get("src/");
	check_put(tree, "dst");
	check_stat("dst/src", S_IFDIR | 0750, 0, 7 * DAY);
	check_stat("dst/src/empty", S_IFDIR | 0711, 0, 6 * DAY);
	check_stat("dst/src/sub", S_IFDIR | 0500, 0, 5 * DAY);
	check_stat("dst/src/sub/deep", S_IFDIR | 0555, 0, 4 * DAY);
	check_stat("dst/src/a", S_IFREG | 0640, 5, DAY);
	check_stat("dst/src/nothing", S_IFREG | 0444, 0, 2 * DAY);
	check_stat("dst/src/sub/deep/run", S_IFREG | 0755, 2, 3 * DAY);
	check_stat("dst/src/ name\nwith \xff", S_IFREG | 0600, 3, -DAY);
	check_content("dst/src/a", "hello");
	check_link("dst/src/link", "sub/deep/run");
	check_link("dst/src/sub/up", "../a");
	check_link("dst/src/dangling", "nowhere");

	/* Once more on top of it: merged, replaced, what is beside stays. */
	make_file("dst/src/beside", "stays", 5, 0600, 0);
	make_file("dst/src/a", "changed meanwhile", 17, 0600, 0);
	assert_int_equal(unlink("dst/src/nothing"), 0);
	assert_int_equal(symlink("/etc/passwd", "dst/src/nothing"), 0);
	assert_int_equal(lseek(tree, 0, SEEK_SET), 0);
	check_put(tree, "dst");
	check_content("dst/src/beside", "stays");
	check_content("dst/src/a", "hello");
	check_stat("dst/src/nothing", S_IFREG | 0444, 0, 2 * DAY);
}

static void names_what_was_asked_for(void **)
{
	make_directory("w", 0755, 0);
	make_directory("w/d", 0755, 0);
	make_file("w/d/f", "f", 1, 0644, 0);
	assert_int_equal(symlink("d", "w/l"), 0);
	static const struct {
		const char *path, *to, *expect;
	} rows[] = {
		{"w/d/f", "one", "one/f"},   {"w/d", "two", "two/d/f"},        {"w/d/.", "three", "three/f"},
		{"w/l", "four", "four/l/f"}, {"./w//d//", "five", "five/d/f"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		make_directory(rows[i].to, 0755, 0);
		scoped_fd int tree = get(rows[i].path);
		check_put(tree, rows[i].to);
		check_content(rows[i].expect, "f");
	}
	struct err e = ERR_INIT;
	scoped_fd int here = open_directory(".");
	assert_int_equal(files_get(here, "w/none", 1, &e), FILES_MISSING);
	assert_string_equal(e.msg, "w/none: No such file or directory");
	assert_int_equal(files_get(here, "w/d/f/x", 1, &e), FILES_MISSING);
	assert_int_equal(files_get(here, "/dev/null", 1, &e), -EINVAL);
	assert_int_equal(files_get(here, "/proc/self/fd/0", 1, &e), -ELOOP);
}

static void keeps_holes(void **)
{
	enum { SIZE = 64 << 20, AT = 32 << 20 };
	make_directory("dst", 0755, 0);
	scoped_fd int fd = open("sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(pwrite(fd, "begin", 5, 0), 5);
	assert_int_equal(pwrite(fd, "middle", 6, AT), 6);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	scoped_fd int tree = get("sparse");
	struct stat st;
	assert_int_equal(fstat(tree, &st), 0);
	assert_true(st.st_size < 1 << 20);
	check_put(tree, "dst");
	assert_int_equal(stat("dst/sparse", &st), 0);
	assert_int_equal(st.st_size, SIZE);
	assert_true(st.st_blocks * 512 < 1 << 20);
	scoped_fd int copy = open("dst/sparse", O_RDONLY | O_CLOEXEC);
	char text[8] = "";
	assert_int_equal(pread(copy, text, 6, AT), 6);
	assert_string_equal(text, "middle");
}

/* What the reader says of a tree, as lines "kind name". */
static void listing(int tree, char *text, size_t size)
{
	static struct tree_reader reader;
	static uint8_t bytes[1 << 20];
	ssize_t got = file_read_all(tree, bytes, sizeof(bytes), NULL);
	assert_true(got > 0);
	const uint8_t *p = bytes, *data;
	size_t n = (size_t)got, data_n, at = 0;
	uint64_t offset;
	tree_reader_init(&reader, UINT64_MAX, UINT64_MAX);
	int event = TREE_MORE;
	text[0] = '\0';
	while (event != TREE_DONE) {
		event = tree_read(&reader, &p, &n, &data, &data_n, &offset, NULL);
		assert_true(event > TREE_MORE);
		if (event == TREE_ENTRY)
			at += (size_t)snprintf(text + at, size - at, "%d %s\n", (int)reader.entry.kind,
					       reader.entry.name);
	}
	assert_int_equal(n, 0);
}

static void check_line(const char *text, const char *line)
{
	if (!strstr(text, line))
		fail_msg("\"%s\" is missing in:\n%s", line, text);
}

static void names_what_it_skips(void **)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "d/socket"};
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	make_directory("d", 0755, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(mkfifo("d/fifo", 0600), 0);
	assert_int_equal(mknod("d/null", S_IFCHR | 0666, makedev(1, 3)), 0);
	assert_int_equal(symlink("/etc", "d/absolute"), 0);
	assert_int_equal(symlink("../../etc", "d/out"), 0);
	assert_int_equal(symlink("fifo", "d/good"), 0);
	scoped_fd int tree = get("d");
	char text[4096];
	listing(tree, text, sizeof(text));
	static const char *const lines[] = {"1 d\n",          "4 d/socket\n", "4 d/fifo\n", "4 d/null\n",
					    "4 d/absolute\n", "4 d/out\n",    "3 d/good\n"};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		check_line(text, lines[i]);
}

/* Makes and enters directories; returns to where it began. */
static void make_deep(size_t n, const char *name)
{
	scoped_fd int here = open_directory(".");
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(mkdir(name, 0755), 0);
		assert_int_equal(chdir(name), 0);
	}
	assert_int_equal(fchdir(here), 0);
}

static void bounds_depth_and_names(void **)
{
	static char text[1 << 20];
	char wide[256];
	memset(wide, 'w', 255);
	wide[255] = '\0';
	make_deep(200, "d");
	scoped_fd int deep = get("d");
	listing(deep, text, sizeof(text));
	size_t lines = 0;
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, 129);
	check_line(text, "4 d/d/d/");
	make_deep(20, wide);
	scoped_fd int long_names = get(wide);
	listing(long_names, text, sizeof(text));
	check_line(text, "4 w");
}

/* A file that changes while it is read does not break the stream. */
static void survives_changes(void **)
{
	static char big[4 << 20];
	make_directory("d", 0755, 0);
	make_directory("dst", 0755, 0);
	for (int round = 0; round < 20; round++) {
		make_file("d/f", big, sizeof(big), 0600, 0);
		pid_t pid = fork();
		if (pid == 0) {
			scoped_fd int fd = open("d/f", O_WRONLY | O_CLOEXEC);
			for (int i = 0; i < 200; i++)
				if (ftruncate(fd, i % 2 ? (off_t)sizeof(big) * 2 : i * 100) < 0)
					_exit(1);
			_exit(0);
		}
		scoped_fd int tree = get("d");
		check_put(tree, "dst");
		assert_int_equal(waitpid(pid, NULL, 0), pid);
	}
}

/* Entries as they are on the wire, also such as no writer makes. */
static size_t raw_entry(uint8_t *p, uint32_t kind, uint64_t size, const char *name, const char *target)
{
	size_t name_n = strlen(name), target_n = strlen(target);
	memset(p, 0, TREE_HEAD);
	wr_uint(p, kind, 4);
	wr_uint(p + 4, kind == TREE_END ? 0 : 0755, 4);
	wr_uint(p + 8, size, 8);
	wr_uint(p + 24, name_n, 4);
	wr_uint(p + 28, target_n, 4);
	memcpy(p + TREE_HEAD, name, name_n);
	memcpy(p + TREE_HEAD + name_n, target, target_n);
	return TREE_HEAD + name_n + target_n;
}

struct raw {
	uint32_t kind;
	const char *name, *target;
};

static int put_raw(const struct raw *entries, size_t n, const char *directory, struct err *e)
{
	uint8_t bytes[8192];
	size_t at = 0;
	for (size_t i = 0; i < n && entries[i].kind; i++) {
		at += raw_entry(bytes + at, entries[i].kind, 0, entries[i].name, entries[i].target);
		if (entries[i].kind == TREE_FILE) {
			tree_write_segment(0, 0, bytes + at);
			at += TREE_SEGMENT;
		}
	}
	at += raw_entry(bytes + at, TREE_END, 0, "", "");
	scoped_fd int in = -1;
	assert_int_equal(file_memfd("raw", bytes, at, &in, NULL), 0);
	return put(in, directory, e);
}

static void refuses_to_leave(void **)
{
	static const struct raw rows[][3] = {
		{{TREE_FILE, "../x", ""}},
		{{TREE_FILE, "/tmp/test-guest-files-x", ""}},
		{{TREE_FILE, "a/../../x", ""}},
		{{TREE_FILE, ".", ""}},
		{{TREE_FILE, "", ""}},
		{{TREE_FILE, "no/parent", ""}},
		{{TREE_LINK, "l", "/etc"}},
		{{TREE_LINK, "l", "../out"}},
		{{TREE_DIRECTORY, "..", ""}},
		{{9, "x", ""}},
		/* Through a link, of the tree's own or one that was there. */
		{{TREE_DIRECTORY, "sub", ""}, {TREE_LINK, "l", "sub"}, {TREE_FILE, "l/x", ""}},
		{{TREE_FILE, "there/x", ""}},
		{{TREE_FILE, "file", ""}, {TREE_FILE, "file/x", ""}},
	};
	make_directory("out", 0755, 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		char name[16];
		(void)snprintf(name, sizeof(name), "to%zu", i);
		make_directory(name, 0755, 0);
		scoped_fd int to = open_directory(name);
		assert_int_equal(symlinkat("../out", to, "there"), 0);
		print_message("%s\n", rows[i][0].name);
		assert_true(put_raw(rows[i], 3, name, &e) < 0);
		assert_true(e.msg[0]);
	}
	struct stat st;
	assert_int_equal(lstat("x", &st), -1);
	assert_int_equal(lstat("/tmp/test-guest-files-x", &st), -1);
	assert_int_equal(lstat("out/x", &st), -1);
	assert_int_equal(lstat("to10/sub/x", &st), -1);

	/* A directory in place of a link replaces the link. */
	static const struct raw replaces[] = {{TREE_DIRECTORY, "there", ""}, {TREE_FILE, "there/x", ""}};
	assert_int_equal(put_raw(replaces, 2, "to0", NULL), 0);
	assert_int_equal(lstat("to0/there/x", &st), 0);
	assert_int_equal(lstat("out/x", &st), -1);
}

static void needs_the_end(void **)
{
	struct err e = ERR_INIT;
	make_file("f", "abc", 3, 0600, 0);
	make_directory("dst", 0755, 0);
	scoped_fd int tree = get("f");
	assert_int_equal(ftruncate(tree, TREE_HEAD + 5), 0);
	assert_int_equal(put(tree, "dst", &e), -EPROTO);
	assert_string_equal(e.msg, "the tree ends in the middle");
}

/* Sends a whole file as input. */
static void send_file(struct host *h, uint32_t id, int fd)
{
	static uint8_t bytes[FRAME_WINDOW];
	ssize_t n = file_read_all(fd, bytes, sizeof(bytes), NULL);
	assert_true(n >= 0);
	host_data(h, id, bytes, (size_t)n);
	host_eof(h, id);
}

/* Through the executor: as the user, into a directory that is made for it, and out again. */
static void works_over_the_stream(void **state)
{
	const char *here = *state;
	char workdir[64];
	(void)snprintf(workdir, sizeof(workdir), "%s/new/work", here);
	make_directory("d", 0755, 0);
	make_file("d/f", "text", 4, 0640, DAY);
	scoped_fd int tree = get("d/.");
	struct host *h = host_start();
	struct outcome o = {0};
	struct call c = {
		.id = 1, .kind = ermite_Kind_PUT, .user = "nobody", .workdir = workdir, .has_stdin = true};
	host_call(h, &c);
	send_file(h, 1, tree);
	host_collect(h, 1, &o);
	assert_string_equal(outcome_text(&o, 2), "");
	assert_int_equal(o.status, 0);
	struct stat st;
	assert_int_equal(stat("new/work/f", &st), 0);
	assert_int_equal(st.st_uid, 65534);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	assert_int_equal(stat("new", &st), 0);
	assert_int_equal(st.st_uid, 65534);

	c = (struct call){.id = 2, .kind = ermite_Kind_GET, .workdir = workdir, .arguments = {"f"}};
	host_run(h, &c, &o);
	assert_int_equal(o.status, 0);
	scoped_fd int back = -1;
	assert_int_equal(file_memfd("back", o.output[1], o.n[1], &back, NULL), 0);
	outcome_free(&o);
	make_directory("dst", 0755, 0);
	check_put(back, "dst");
	check_content("dst/f", "text");

	c.arguments[0] = "none";
	host_run(h, &c, &o);
	assert_int_equal(o.status, 2);
	assert_string_equal(outcome_text(&o, 2), "none: No such file or directory\n");
	outcome_free(&o);

	/* The user may not write there. */
	c = (struct call){
		.id = 3, .kind = ermite_Kind_PUT, .user = "nobody", .workdir = here, .has_stdin = true};
	assert_int_equal(lseek(tree, 0, SEEK_SET), 0);
	host_call(h, &c);
	send_file(h, 3, tree);
	host_collect(h, 3, &o);
	assert_int_equal(o.status, 1);
	assert_string_equal(outcome_text(&o, 2), "make f: Permission denied\n");
	outcome_free(&o);
	assert_int_equal(host_end(h), 0);
}

#define FILES_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	/* Device nodes and other users take root, as inside a sandbox. */
	if (geteuid() != 0)
		return 77;
	(void)signal(SIGPIPE, SIG_IGN);
	(void)umask(022);
	const struct CMUnitTest tests[] = {
		FILES_TEST(goes_round),
		FILES_TEST(names_what_was_asked_for),
		FILES_TEST(keeps_holes),
		FILES_TEST(names_what_it_skips),
		FILES_TEST(bounds_depth_and_names),
		FILES_TEST(survives_changes),
		FILES_TEST(refuses_to_leave),
		FILES_TEST(needs_the_end),
		FILES_TEST(works_over_the_stream),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
