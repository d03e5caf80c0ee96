/* Needs root. A script stands for ermite-docker: in a mount namespace of the test's own, where libexec_path() looks. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fds.h"
#include "guardian.h"
#include "resource/docker.h"
#include "store.h"
#include "sys/mounts.h"

#define SOCKET  "/run/a daemon's.sock"
#define MISSING "er0000000a"

static int store = -1;
static char place[CONFIG_PATH_MAX]; /* of the script and what it reads and writes */

static const char *const names[] = {"docker", NULL};

static const char *in_place(const char *name)
{
	static char path[CONFIG_PATH_MAX + 32];
	(void)snprintf(path, sizeof(path), "%s/%s", place, name);
	return path;
}

static void write_file(const char *name, const char *text, mode_t mode)
{
	scoped_fd int fd = open(in_place(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, text, strlen(text), NULL), 0);
}

/* What the script was called with, a call a line, since it was asked last. */
static const char *calls(void)
{
	static char text[4096];
	if (file_read_text(AT_FDCWD, in_place("calls"), text, sizeof(text), NULL) < 0)
		text[0] = '\0';
	(void)unlink(in_place("calls"));
	return text;
}

/* What it does beside that. */
static void script(const char *body)
{
	char text[1024];
	(void)snprintf(text, sizeof(text), "#!/bin/sh\ncd '%s'\necho \"$*\" >>calls\n%s\n", place, body);
	(void)unlink(in_place("ermite-docker"));
	write_file("ermite-docker", text, 0755);
}

static int setup(void **)
{
	store = store_open();
	script("");
	return store < 0;
}

static int teardown(void **)
{
	(void)calls();
	fd_close(&store);
	return 0;
}

static struct record *create(const char *socket)
{
	struct err e = ERR_INIT;
	struct record *r = NULL;
	(void)snprintf(spec.docker.socket, sizeof(spec.docker.socket), "%s", socket);
	if (record_create(store, &spec, names, &r, &e) < 0)
		fail_msg("%s", e.msg);
	return r;
}

static int unmake(struct record *r, struct err *e)
{
	struct sandbox s = {.record = r, .id = record_info(r)->id, .store_fd = store};
	return resources_unmake(&s, e);
}

static void test_call(void **)
{
	static const struct {
		const char *body;
		int code;
		const char *said; /* the output, or what the error begins with */
	} rows[] = {
		{"echo one; echo two", 0, "one\ntwo\n"},
		{"echo one; echo much ado >&2", 0, "one\n"},
		{"echo one; echo 'ermite-docker: it is off' >&2; echo more >&2; exit 1", -EIO, "it is off"},
		{"echo it is off >&2; exit 1", -EIO, "it is off"},
		{"exit 3", -EIO, "ermite-docker list failed with status 3"},
		{"kill -SEGV $$", -EIO, "ermite-docker list was killed by signal 11"},
		{"exec sleep 1000", -ETIMEDOUT, "Docker's daemon did not answer within 1 s"},
		{"head -c 5000 /dev/zero", -ENOBUFS, "read what ermite-docker said"},
	};
	static const char *const arguments[] = {"ermite-docker", "list", SOCKET, NULL};
	int before = fds_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		scoped_buf struct buf out = BUF_INIT(4096);
		bool is_slow = rows[i].code == -ETIMEDOUT;
		const struct docker_call call = {
			.arguments = arguments, .mounts = -1, .ms = is_slow ? 1000 : 60000, .output = &out};
		script(rows[i].body);
		assert_int_equal(docker_call(&call, &e), rows[i].code);
		const char *said = rows[i].code ? e.msg : buf_text(&out);
		if (strncmp(said, rows[i].said, strlen(rows[i].said)) != 0)
			fail_msg("\"%s\" says \"%s\"", rows[i].body, said);
		assert_string_equal(calls(), "list " SOCKET);
	}
	assert_int_equal(fds_open(), before);
}

/* The path without what the store adds, however it was reached. */
static void test_store_name(void **)
{
	char path[CONFIG_PATH_MAX];
	struct err e = ERR_INIT;
	scoped_fd int other = open(state_dir, O_PATH | O_CLOEXEC);
	assert_int_equal(docker_store(store, path, &e), 0);
	assert_string_equal(path, state_dir);
	assert_int_equal(docker_store(other, path, &e), -EINVAL);
}

static void test_unmake(void **)
{
	struct err e = ERR_INIT;
	char expected[64];
	struct record *r = create(SOCKET);
	(void)snprintf(expected, sizeof(expected), "remove " SOCKET " %s", record_info(r)->id);
	assert_int_equal(unmake(r, &e), 0);
	assert_string_equal(calls(), expected);
	assert_int_equal(unmake(r, &e), 0);
	assert_string_equal(calls(), expected);
	/* A daemon that is not there keeps the record, which says so. */
	script("echo it is off >&2; exit 1");
	assert_int_equal(unmake(r, &e), -EIO);
	assert_string_equal(e.msg, "docker: it is off");
	assert_string_equal(record_info(r)->left, "docker: it is off");
	assert_int_equal(record_remove(&r, &e), 0);
	/* Nothing was ever said to a daemon. */
	(void)calls();
	r = create("");
	assert_int_equal(unmake(r, &e), 0);
	assert_string_equal(calls(), "");
	assert_int_equal(record_remove(&r, &e), 0);
}

static int reap(const char *socket, bool dry_run, struct buf *said, unsigned *ret_left)
{
	struct err e = ERR_INIT;
	struct reap r = {.store_fd = store,
			 .docker_socket = socket,
			 .dry_run = dry_run,
			 .tell = store_tell,
			 .data = said};
	buf_clear(said);
	int code = resources_reap(&r, &e);
	if (code < 0)
		buf_fmt(said, "error: %s\n", e.msg);
	*ret_left = r.n_left;
	return code;
}

/* What has a record stays, and so does what is no id. */
static void test_sweep(void **)
{
	struct err e = ERR_INIT;
	unsigned left = 0;
	char ids[128];
	char listed[128];
	scoped_buf struct buf said = BUF_INIT(4096);
	struct record *r = create(SOCKET);
	(void)snprintf(ids, sizeof(ids), "%s\n" MISSING "\n../er00001\ner0000000ab\n\n", record_info(r)->id);
	write_file("ids", ids, 0600);
	script("[ $1 = list ] && cat ids || echo container c1");
	(void)snprintf(listed, sizeof(listed), "list " SOCKET " %s", state_dir);

	assert_int_equal(reap(NULL, false, &said, &left), 0);
	assert_string_equal(calls(), "");
	assert_int_equal(reap(SOCKET, true, &said, &left), 0);
	assert_string_equal(buf_text(&said), "removed container " MISSING "\n");
	assert_int_equal(left, 1);
	assert_string_equal(calls(), listed);
	assert_int_equal(reap(SOCKET, false, &said, &left), 0);
	assert_string_equal(buf_text(&said), "removed container " MISSING "\n");
	assert_int_equal(left, 0);
	assert_non_null(strstr(calls(), "\nremove " SOCKET " " MISSING));

	/* Another process has removed it since, and tells of it. */
	script("[ $1 != list ] || cat ids");
	assert_int_equal(reap(SOCKET, false, &said, &left), 0);
	assert_string_equal(buf_text(&said), "");
	assert_int_equal(left, 0);

	script("[ $1 = list ] && cat ids || { echo no >&2; exit 1; }");
	assert_int_equal(reap(SOCKET, false, &said, &left), 0);
	assert_string_equal(buf_text(&said), "container " MISSING " stays: no\n");
	assert_int_equal(left, 1);
	script("echo no >&2; exit 1");
	assert_int_equal(reap(SOCKET, false, &said, &left), -EIO);
	assert_string_equal(buf_text(&said), "error: sweep docker: no\n");
	assert_int_equal(record_remove(&r, &e), 0);
}

int main(void)
{
	struct err e = ERR_INIT;
	if (geteuid() != 0)
		return 77;
	if (store_make() < 0 || !guardian_start(store_clean) || mount_own_namespace(&e) < 0)
		return 1;
	ssize_t n = readlink("/proc/self/exe", place, sizeof(place) - 1);
	if (n <= 0)
		return 1;
	*strrchr(place, '/') = '\0';
	if (mount("x", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m") < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_call, setup, teardown),
		cmocka_unit_test_setup_teardown(test_store_name, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unmake, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
