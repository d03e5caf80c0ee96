#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "guardian.h"
#include "resource/record.h"
#include "sys/process.h"

/* Of root alone, as a state directory is; gone with the test. */
static char state_dir[] = "/var/lib/ermite-test-record-XXXXXX";
static struct sandbox_spec spec;
static int store = -1;

static const char *const resources[] = {"processes", "cgroup", "scratch", NULL};

static void clean(void)
{
	scoped_fd int parent = open("/var/lib", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)!file_remove_tree(parent, strrchr(state_dir, '/') + 1, NULL);
}

static int setup(void **)
{
	struct err e = ERR_INIT;
	config_defaults(&spec.config);
	spec.config.capacity = 4;
	spec.config.isolation = ISOLATION_SYSTEM;
	memcpy(spec.config.state_dir, state_dir, sizeof(state_dir));
	(void)snprintf(spec.job_id, sizeof(spec.job_id), "a job");
	return record_open_store(state_dir, &store, &e);
}

static int teardown(void **)
{
	struct err e = ERR_INIT;
	fd_close(&store);
	scoped_fd int state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return file_remove_tree(state, "sandboxes", &e);
}

static struct record *create(void)
{
	struct err e = ERR_INIT;
	struct record *r = NULL;
	if (record_create(store, &spec, resources, &r, &e) < 0)
		fail_msg("%s", e.msg);
	return r;
}

static void put_away(struct record *r)
{
	struct err e = ERR_INIT;
	if (record_remove(&r, &e) < 0)
		fail_msg("%s", e.msg);
	assert_null(r);
}

/* Reads all records; fails unless there are n. */
static struct record_info *list(size_t expected)
{
	struct err e = ERR_INIT;
	struct record_info *infos = NULL;
	size_t n = SIZE_MAX;
	assert_int_equal(record_list(store, &infos, &n, &e), 0);
	assert_int_equal(n, expected);
	return infos;
}

static void assert_no_slot(void)
{
	struct err e = ERR_INIT;
	struct record *r = NULL;
	assert_int_equal(record_create(store, &spec, resources, &r, &e), -ENOSPC);
	assert_non_null(strstr(e.msg, "no free slot"));
	assert_null(r);
}

/* Makes a directory with a record of this text, as something else than a keeper leaves it. */
static void plant(const char *id, const void *text, size_t n)
{
	assert_int_equal(mkdirat(store, id, 0700), 0);
	scoped_fd int dir = openat(store, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int fd = openat(dir, "record", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, n), n);
}

static void unplant(const char *id)
{
	assert_int_equal(file_remove_tree(store, id, NULL), 0);
}

static void test_store(void **)
{
	struct err e = ERR_INIT;
	struct stat st;
	char path[PATH_MAX];
	int fd = -1;
	assert_true(fcntl(store, F_GETFD) & FD_CLOEXEC);
	(void)snprintf(path, sizeof(path), "%s/sandboxes", state_dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	/* Twice is fine; a link or a file in its place is not. */
	assert_int_equal(record_open_store(state_dir, &fd, &e), 0);
	fd_close(&fd);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(symlink("/", path), 0);
	assert_true(record_open_store(state_dir, &fd, &e) < 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mknod(path, S_IFREG | 0600, 0), 0);
	assert_true(record_open_store(state_dir, &fd, &e) < 0);
	assert_int_equal(fd, -1);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
}

/* Nobody but root may be able to change the state directory or one above it. */
static void test_store_that_others_can_change(void **)
{
	static const struct {
		mode_t mode;
		uid_t uid;
		const char *words;
	} rows[] = {
		{0755, 0, NULL},
		{0700, 0, NULL},
		{0775, 0, "must not be writable by group or others"},
		{0757, 0, "must not be writable by group or others"},
		{01777, 0, "must not be writable by group or others"},
		{0755, 1234, "must belong to root, not to user 1234"},
	};
	char parent[64];
	char below[2][80];
	char wanted[128];
	(void)snprintf(parent, sizeof(parent), "%s/parent", state_dir);
	(void)snprintf(below[0], sizeof(below[0]), "%s", parent);
	(void)snprintf(below[1], sizeof(below[1]), "%s/a/b", parent);
	for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		int fd = -1;
		size_t k = i / 2;
		assert_int_equal(mkdir(parent, 0700), 0);
		assert_int_equal(chmod(parent, rows[k].mode), 0);
		assert_int_equal(chown(parent, rows[k].uid, 0), 0);
		int r = record_open_store(below[i % 2], &fd, &e);
		assert_int_equal(r, rows[k].words ? -EPERM : 0);
		if (rows[k].words) {
			(void)snprintf(wanted, sizeof(wanted), "%s %s", parent, rows[k].words);
			assert_non_null(strstr(e.msg, wanted));
			assert_int_equal(rmdir(parent), 0);
		} else {
			fd_close(&fd);
			scoped_fd int state = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			assert_int_equal(file_remove_tree(state, "parent", &e), 0);
		}
	}
	/* A link is not followed, wherever it leads. */
	struct err e = ERR_INIT;
	int fd = -1;
	assert_int_equal(symlink("/var/lib", parent), 0);
	assert_int_equal(record_open_store(below[1], &fd, &e), -ENOTDIR);
	(void)snprintf(wanted, sizeof(wanted), "%s is a link", parent);
	assert_non_null(strstr(e.msg, wanted));
	assert_int_equal(unlink(parent), 0);
}

static void test_create_and_list(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	uint64_t start = 0;
	char boot_id[37];
	assert_int_equal(process_start_time(getpid(), &start, &e), 0);
	assert_int_equal(process_boot_id(boot_id, &e), 0);
	(void)snprintf(spec.job_id, sizeof(spec.job_id), "forge\n42\x1b[31m \xc3\xa9");
	struct record *r = create();
	const struct record_info *own = record_info(r);
	assert_true(id_valid(own->id));
	assert_int_equal(own->slot, 0);
	assert_int_equal(record_add_process(r, "conduit", getpid(), &e), 0);
	record_set_state(r, "booting");
	record_set_state(r, "running");
	struct stat st;
	assert_int_equal(fstat(record_dir(r), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(fstatat(record_dir(r), "record", &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0600);

	scoped_free struct record_info *i = list(1);
	assert_string_equal(i->id, own->id);
	assert_string_equal(i->boot_id, boot_id);
	/* One line, whatever the caller's text holds; what a terminal makes of it is the printer's business. */
	assert_string_equal(i->job_id, "forge?42?[31m \xc3\xa9");
	assert_string_equal(i->state, "running");
	assert_int_equal(i->isolation, ISOLATION_SYSTEM);
	assert_int_equal(i->slot, 0);
	assert_true(i->created_s <= clock_wall_s() && i->created_s + 60 > clock_wall_s());
	assert_int_equal(i->keeper.pid, getpid());
	assert_int_equal(i->keeper.start_time, start);
	assert_int_equal(i->n_processes, 1);
	assert_string_equal(i->processes[0].name, "conduit");
	assert_int_equal(i->processes[0].pid, getpid());
	assert_int_equal(i->n_resources, 3);
	for (int k = 0; k < 3; k++)
		assert_string_equal(i->resources[k], resources[k]);
	assert_true(i->held);
	assert_true(i->readable);
	put_away(r);
	free(list(0));
	assert_int_equal(fds_open(), before);
	record_free(NULL);
}

/* The daemon that has the container stands in the record from the first, and the container needs no more. */
static void test_docker(void **)
{
	(void)snprintf(spec.docker.socket, sizeof(spec.docker.socket), "/run/a daemon's.sock");
	struct record *r = create();
	assert_string_equal(record_info(r)->docker, "/run/a daemon's.sock");
	scoped_free struct record_info *i = list(1);
	assert_true(i->readable);
	assert_string_equal(i->docker, "/run/a daemon's.sock");
	put_away(r);
	spec.docker.socket[0] = '\0';
	r = create();
	scoped_free struct record_info *other = list(1);
	assert_string_equal(other->docker, "");
	put_away(r);
}

/* A name that is too long, or a process that is not there, is refused and leaves the record as it was. */
static void test_add_process_refused(void **)
{
	struct err e = ERR_INIT;
	struct record *r = create();
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(record_add_process(r, "gone", pid, &e) < 0);
	char name[2 * RECORD_NAME_MAX];
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(record_add_process(r, name, getpid(), &e), -EINVAL);
	assert_int_equal(record_add_process(r, "two words", getpid(), &e), -EINVAL);
	assert_int_equal(record_add_process(r, "", getpid(), &e), -EINVAL);
	assert_int_equal(record_add_process(r, "init", 1, &e), -EINVAL);
	scoped_free struct record_info *i = list(1);
	assert_true(i->readable);
	assert_int_equal(i->n_processes, 0);
	for (int k = 0; k < RECORD_PROCESSES_MAX; k++) {
		(void)snprintf(name, sizeof(name), "self%d", k);
		assert_int_equal(record_add_process(r, name, getpid(), &e), 0);
	}
	assert_int_equal(record_add_process(r, "self", getpid(), &e), -EINVAL);
	/* A helper that is started anew takes its own place. */
	assert_int_equal(record_add_process(r, "self3", getppid(), &e), 0);
	scoped_free struct record_info *full = list(1);
	assert_true(full->readable);
	assert_int_equal(full->n_processes, RECORD_PROCESSES_MAX);
	assert_int_equal(full->processes[3].pid, getppid());
	assert_string_equal(full->processes[3].name, "self3");
	assert_int_equal(record_info(r)->n_processes, RECORD_PROCESSES_MAX);
	put_away(r);
}

static void test_slots(void **)
{
	struct record *r[4];
	for (uint32_t k = 0; k < 4; k++) {
		r[k] = create();
		assert_int_equal(record_info(r[k])->slot, k);
	}
	assert_no_slot();
	/* The lowest free one, whichever was freed first. */
	put_away(r[2]);
	put_away(r[1]);
	r[1] = create();
	assert_int_equal(record_info(r[1])->slot, 1);
	r[2] = create();
	assert_int_equal(record_info(r[2])->slot, 2);
	scoped_free struct record_info *infos = list(4);
	for (uint32_t k = 0; k < 4; k++)
		assert_int_equal(infos[k].slot, k);
	/* A capacity that was lowered meanwhile. */
	put_away(r[0]);
	spec.config.capacity = 3;
	assert_no_slot();
	spec.config.capacity = 1;
	assert_no_slot();
	for (uint32_t k = 1; k < 4; k++)
		put_away(r[k]);
	r[0] = create();
	assert_int_equal(record_info(r[0])->slot, 0);
	put_away(r[0]);
}

/* A process of its own opens the store itself: a lock belongs to an open file, which children share. */
static void open_own_store(void)
{
	(void)close(store);
	if (record_open_store(state_dir, &store, NULL) < 0)
		_exit(98);
}

/* Says which slot it got, then lives until the pipe is closed. */
static int hold_one(int said, int until)
{
	struct record *r = NULL;
	char byte;
	open_own_store();
	if (record_create(store, &spec, resources, &r, NULL) < 0 ||
	    write(said, &record_info(r)->slot, sizeof(uint32_t)) != sizeof(uint32_t))
		return 1;
	(void)!read(until, &byte, 1);
	return record_remove(&r, NULL) < 0 ? 2 : 0;
}

static void test_many_at_once(void **)
{
	enum { CHILDREN = 16 };
	pid_t pids[CHILDREN];
	bool seen[CHILDREN] = {false};
	int said[2];
	int until[2];
	spec.config.capacity = CHILDREN;
	assert_int_equal(pipe2(said, O_CLOEXEC), 0);
	assert_int_equal(pipe2(until, O_CLOEXEC), 0);
	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			(void)close(until[1]);
			_exit(hold_one(said[1], until[0]));
		}
	}
	for (int i = 0; i < CHILDREN; i++) {
		uint32_t slot = UINT32_MAX;
		assert_int_equal(read(said[0], &slot, sizeof(slot)), sizeof(slot));
		assert_true(slot < CHILDREN && !seen[slot]);
		seen[slot] = true;
	}
	assert_no_slot();
	scoped_free struct record_info *infos = list(CHILDREN);
	for (int i = 0; i < CHILDREN; i++)
		assert_true(infos[i].held && infos[i].readable);
	for (int i = 0; i < 2; i++) {
		(void)close(until[1 - i]);
		(void)close(said[i]);
	}
	for (int i = 0; i < CHILDREN; i++) {
		int status = -1;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	free(list(0));
}

/* Whether a record made now, beside what is there, gets this slot. */
static bool would_get(uint32_t slot)
{
	struct record *r = create();
	bool got = record_info(r)->slot == slot;
	put_away(r);
	return got;
}

/* Cut at every byte, as a crash may leave it: it is never an error, it keeps its place, and as soon as its slot can be
 * read nobody else gets that. */
static void test_torn(void **)
{
	struct err e = ERR_INIT;
	char text[4096];
	struct record *first = create();
	struct record *r = create();
	char id[ID_SIZE];
	memcpy(id, record_info(r)->id, ID_SIZE);
	assert_int_equal(record_add_process(r, "conduit", getpid(), &e), 0);
	record_set_state(r, "running");
	ssize_t n = file_read_text(record_dir(r), "record", text, sizeof(text), &e);
	assert_true(n > 100);
	put_away(first);
	put_away(r);
	text[n++] = '\n';
	text[n] = '\0';
	size_t slot_end = (size_t)(strstr(text, "slot 1\n") - text) + strlen("slot 1\n");
	for (size_t cut = 0; cut <= (size_t)n; cut++) {
		plant(id, text, cut);
		scoped_free struct record_info *i = list(1);
		assert_string_equal(i->id, id);
		assert_false(i->held);
		assert_int_equal(i->readable, cut >= slot_end);
		if (i->readable)
			assert_int_equal(i->slot, 1);
		spec.config.capacity = 1;
		assert_no_slot();
		spec.config.capacity = 2;
		assert_true(would_get(0));
		unplant(id);
	}
}

static const char head[] = "ermite-record 1\nboot 01234567-89ab-cdef-0123-456789abcdef\n";

static void test_nonsense(void **)
{
	static const struct {
		const char *text;
		bool readable;
	} rows[] = {
		{"isolation system\nslot 0\ncreated 1\nkeeper keeper 42 1\nresource a\n", true},
		/* A later version's facts. */
		{"slot 0\ncolour red\n", true},
		{"slot 0\n\n\n", true},
		{"created 1\n", false},
		{"slot 1024\n", false},
		{"slot -1\n", false},
		{"slot 0x1\n", false},
		{"slot \n", false},
		{"slot 0 \n", false},
		{"slot 0\nboot x\n", false},
		{"slot 0\nisolation docker\n", false},
		{"slot 0\nisolation auto\n", false},
		{"slot 0\ncreated now\n", false},
		{"slot 0\nstate 0123456789012345678901234567890\n", false},
		{"slot 0\nstate \n", false},
		{"slot 0\nprocess a\n", false},
		{"slot 0\nprocess a 1 1\n", false},
		{"slot 0\nprocess a 0 1\n", false},
		{"slot 0\nprocess a -5 1\n", false},
		{"slot 0\nprocess a 99999999999 1\n", false},
		{"slot 0\nprocess a 42\n", false},
		{"slot 0\nprocess a 42 x\n", false},
		{"slot 0\nprocess lxc 4state running\n", false},
		{"slot 0\nresource \n", false},
		{"slot 0\ndocker /run/docker.sock\n", true},
		{"slot 0\ndocker run/docker.sock\n", false},
		{"slot 0\ndocker \n", false},
		{"slot 0\nresource 012345678901234567890123\n", false},
	};
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		char text[256];
		int n = snprintf(text, sizeof(text), "%s%s", head, rows[k].text);
		plant("er00000001", text, (size_t)n);
		scoped_free struct record_info *i = list(1);
		if (i->readable != rows[k].readable)
			fail_msg("\"%s\" is taken as it is not", rows[k].text);
		spec.config.capacity = 1;
		assert_no_slot();
		unplant("er00000001");
	}
	plant("er00000001", "ermite-record 2\nboot 01234567-89ab-cdef-0123-456789abcdef\nslot 0\n", 63);
	scoped_free struct record_info *i = list(1);
	assert_false(i->readable);
	unplant("er00000001");
}

/* More of anything than there is room for, and bytes that are no text. */
static void test_too_much(void **)
{
	static const char *const lines[] = {"process a 42 1\n", "resource a\n", "state x\n"};
	for (size_t k = 0; k < 4; k++) {
		static char text[40000];
		size_t n = (size_t)snprintf(text, sizeof(text), "%sslot 0\n", head);
		while (k < 3 && n + 16 < sizeof(text))
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", lines[k]);
		for (uint32_t seed = 1; k == 3 && n < sizeof(text); n++) {
			seed = seed * 1664525 + 1013904223;
			text[n] = (char)(seed >> 24);
		}
		plant("er00000001", text, n);
		scoped_free struct record_info *i = list(1);
		assert_true(i->n_processes <= RECORD_PROCESSES_MAX);
		assert_true(i->n_resources <= RECORD_RESOURCES_MAX);
		spec.config.capacity = 1;
		assert_no_slot();
		unplant("er00000001");
	}
}

/* A sandbox that lives and whose record was spoilt behind the slot (a full disk cuts what is appended) keeps the slot:
 * another one with the same ids must not come. */
static void test_spoilt_keeps_its_slot(void **)
{
	struct record *r = create();
	scoped_fd int fd = openat(record_dir(r), "record", O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(write(fd, "process lxc 4", 13), 13);
	record_set_state(r, "running");
	scoped_free struct record_info *i = list(1);
	assert_false(i->readable);
	assert_true(i->held);
	assert_true(would_get(1));
	put_away(r);
}

/* What is no directory of a sandbox is passed over. */
static void test_strangers(void **)
{
	static const char *const names[] = {"lost+found", "er1", "er123456789", "ER12345678", ".er12345678"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		assert_int_equal(mkdirat(store, names[i], 0700), 0);
	assert_int_equal(symlinkat("/", store, "er00000002"), 0);
	assert_int_equal(mknodat(store, "er00000003", S_IFREG | 0600, 0), 0);
	spec.config.capacity = 1;
	free(list(0));
	assert_true(would_get(0));
	/* A link as record is not followed. */
	assert_int_equal(mkdirat(store, "er00000004", 0700), 0);
	plant("er00000005", head, strlen(head));
	assert_int_equal(symlinkat("../er00000005/record", store, "er00000004/record"), 0);
	scoped_free struct record_info *i = list(2);
	assert_false(i[0].readable || i[1].readable);
}

/* What cannot be deleted says why. */
static void test_stays(void **)
{
	struct err e = ERR_INIT;
	struct record *r = create();
	char path[PATH_MAX];
	(void)snprintf(path, sizeof(path), "%s/sandboxes/%s/record", state_dir, record_info(r)->id);
	int mounted = mount(path, path, NULL, MS_BIND, NULL);
	int code = record_remove(&r, &e);
	int unmounted = umount2(path, MNT_DETACH);
	assert_int_equal(mounted, 0);
	assert_int_equal(unmounted, 0);
	assert_int_equal(code, -EBUSY);
	assert_non_null(r);
	assert_string_equal(record_info(r)->left, e.msg);
	scoped_free struct record_info *i = list(1);
	assert_string_equal(i[0].left, e.msg);
	put_away(r);
}

struct taking {
	char ids[8][ID_SIZE];
	unsigned n;
	bool keep;
};

static void take(void *data, struct record *r)
{
	struct taking *t = data;
	const struct record_info *i = record_info(r);
	assert_true(t->n < 8);
	memcpy(t->ids[t->n++], i->id, ID_SIZE);
	/* While it is taken down, nobody else takes it over, and it is a living one to all others. */
	scoped_fd int again = openat(store, i->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(flock(again, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(faccessat(record_dir(r), "record", F_OK, 0), 0);
	if (t->keep)
		record_set_left(r, "a reason\nof two lines");
	else
		assert_int_equal(record_remove(&r, NULL), 0);
	record_free(r);
}

static void test_orphans(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct taking t = {.keep = true};
	struct record *held = create();
	struct record *left[2] = {create(), create()};
	/* With the keeper's descriptors goes its lock; the directory stays. */
	record_free(left[0]);
	record_free(left[1]);
	/* Cannot be taken down: it stays and keeps its slot. */
	assert_int_equal(record_for_orphans(store, take, &t, &e), 0);
	assert_int_equal(t.n, 2);
	scoped_free struct record_info *all = list(3);
	for (int i = 0; i < 3; i++)
		assert_string_equal(all[i].left, all[i].held ? "" : "a reason?of two lines");
	assert_true(would_get(3));
	/* Can be: it goes, and the living one stays. */
	t = (struct taking){0};
	assert_int_equal(record_for_orphans(store, take, &t, &e), 0);
	assert_int_equal(t.n, 2);
	for (unsigned i = 0; i < t.n; i++)
		assert_string_not_equal(t.ids[i], record_info(held)->id);
	scoped_free struct record_info *infos = list(1);
	assert_string_equal(infos->id, record_info(held)->id);
	assert_true(infos->held);
	t = (struct taking){0};
	assert_int_equal(record_for_orphans(store, take, &t, &e), 0);
	assert_int_equal(t.n, 0);
	put_away(held);
	assert_int_equal(fds_open(), before);
}

/* Two that reap at once: each orphan is taken down by one of them. */
static void test_two_reapers(void **)
{
	enum { ORPHANS = 4 };
	struct err e = ERR_INIT;
	int said[2];
	pid_t pids[4];
	assert_int_equal(pipe2(said, O_CLOEXEC | O_NONBLOCK), 0);
	struct record *orphans[ORPHANS];
	for (int i = 0; i < ORPHANS; i++)
		orphans[i] = create();
	for (int i = 0; i < ORPHANS; i++)
		record_free(orphans[i]);
	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			struct taking t = {0};
			open_own_store();
			bool good = record_for_orphans(store, take, &t, &e) == 0;
			good = good && write(said[1], t.ids, t.n * (size_t)ID_SIZE) ==
					       (ssize_t)(t.n * (size_t)ID_SIZE);
			_exit(!good);
		}
	}
	for (int i = 0; i < 4; i++) {
		int status = -1;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	char ids[ORPHANS + 1][ID_SIZE];
	assert_int_equal(read(said[0], ids, sizeof(ids)), ORPHANS * ID_SIZE);
	for (int i = 0; i < ORPHANS; i++)
		for (int k = 0; k < i; k++)
			assert_string_not_equal(ids[i], ids[k]);
	free(list(0));
	(void)close(said[0]);
	(void)close(said[1]);
}

/* With so many descriptors to spare: nothing that cannot be looked at counts as not there. */
static void look_with(unsigned spare, const bool taken[static 4])
{
	struct err e = ERR_INIT;
	struct rlimit before;
	struct record_info *infos = NULL;
	struct record *r = NULL;
	size_t n = 0;
	struct taking t = {.keep = true};
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	const struct rlimit few = {(rlim_t)(fds_open() + (int)spare), before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	int listed = record_list(store, &infos, &n, &e);
	assert_true(listed == 0 ? n == 3 : listed == -EMFILE);
	free(infos);
	int created = record_create(store, &spec, resources, &r, &e);
	assert_true(created == 0 ? !taken[record_info(r)->slot] : created == -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	if (created == 0)
		assert_int_equal(record_remove(&r, &e), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	int reaped = record_for_orphans(store, take, &t, &e);
	assert_true(reaped == 0 ? t.n == 2 : reaped == -EMFILE);
	/* It can be done with enough of them, and not with none. */
	assert_true(spare > 0 || (listed < 0 && created < 0 && reaped < 0));
	assert_true(spare < 8 || (listed == 0 && created == 0 && reaped == 0));
}

static void test_few_descriptors(void **)
{
	static const bool taken[4] = {true, true, true, false};
	struct record *r[3] = {create(), create(), create()};
	/* The limit is one of numbers: there must be none free below those in use. */
	record_free(r[2]);
	record_free(r[1]);
	for (unsigned spare = 0; spare <= 8; spare++) {
		int status = -1;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			look_with(spare, taken);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status != 0)
			fail_msg("with %u to spare", spare);
	}
	put_away(r[0]);
}

/* A record goes on in whole lines on a disk that is full: its blocks were there from the start. */
static int fill_and_go_on(void)
{
	static char block[4096];
	struct record *r = NULL;
	struct record_info *i = NULL;
	size_t n = 0;
	char path[64];
	(void)snprintf(path, sizeof(path), "%s/full", state_dir);
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mkdir(path, 0700) < 0 || mount("none", path, "tmpfs", 0, "mode=700,size=256k") < 0 ||
	    record_open_store(path, &store, NULL) < 0 || record_create(store, &spec, resources, &r, NULL) < 0)
		return 1;
	scoped_fd int filler = openat(store, "filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	while (write(filler, block, sizeof(block)) > 0)
		;
	for (int k = 0; k < 300; k++)
		if (record_add_process(r, "lxcfs", getpid(), NULL) < 0)
			return 2;
	record_set_state(r, "running");
	record_set_left(r, "a reason");
	if (record_list(store, &i, &n, NULL) < 0 || n != 1 || !i->readable ||
	    strcmp(i->state, "running") != 0 || strcmp(i->left, "a reason") != 0)
		return 3;
	free(i);
	/* What no longer fits is left out, and the record stays as it is. */
	for (int k = 0; k < 1000; k++)
		(void)!record_add_process(r, "lxcfs", getpid(), NULL);
	if (record_list(store, &i, &n, NULL) < 0 || n != 1 || !i->readable || i->n_processes != 1)
		return 4;
	free(i);
	return record_remove(&r, NULL) < 0 ? 5 : 0;
}

static void test_full_disk(void **)
{
	int status = -1;
	char path[64];
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(fill_and_go_on());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	(void)snprintf(path, sizeof(path), "%s/full", state_dir);
	assert_int_equal(rmdir(path), 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	if (!mkdtemp(state_dir) || !guardian_start(clean))
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_store, setup, teardown),
		cmocka_unit_test_setup_teardown(test_store_that_others_can_change, setup, teardown),
		cmocka_unit_test_setup_teardown(test_create_and_list, setup, teardown),
		cmocka_unit_test_setup_teardown(test_docker, setup, teardown),
		cmocka_unit_test_setup_teardown(test_add_process_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slots, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_torn, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nonsense, setup, teardown),
		cmocka_unit_test_setup_teardown(test_too_much, setup, teardown),
		cmocka_unit_test_setup_teardown(test_spoilt_keeps_its_slot, setup, teardown),
		cmocka_unit_test_setup_teardown(test_strangers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_orphans, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_reapers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_few_descriptors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
