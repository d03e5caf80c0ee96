/* Needs root. Sandboxes without a guest: a record, a control group, a scratch file and a process or two. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fds.h"
#include "guardian.h"
#include "store.h"
#include "sys/cgroup.h"
#include "sys/process.h"

static int store = -1;
static struct cgroup_host host;

static const struct resource *const kinds[] = {&resource_scratch, &resource_processes, &resource_cgroup,
					       NULL};
static const char *const names[] = {"scratch", "processes", "cgroup", NULL};

static int setup(void **)
{
	store = store_open();
	return store < 0;
}

/* A reap, which must be able to look at everything. Returns how many things stay, and a line for each thing. */
static unsigned reap_in(int store_fd, bool dry_run, struct buf *said)
{
	struct err e = ERR_INIT;
	struct reap r = {.store_fd = store_fd, .dry_run = dry_run, .tell = store_tell, .data = said};
	buf_clear(said);
	if (resources_reap(&r, &e) < 0)
		fail_msg("%s", e.msg);
	return r.n_left;
}

static unsigned reap(struct buf *said)
{
	return reap_in(store, false, said);
}

static int teardown(void **)
{
	scoped_buf struct buf said = BUF_INIT(4096);
	unsigned n = reap(&said);
	if (n > 0)
		print_error("%s", buf_text(&said));
	fd_close(&store);
	return (int)n;
}

/* A process that does nothing and dies with this one. It has none of our descriptors: a lock goes with the last. */
static pid_t start_sleeper(void)
{
	int ends[2];
	char byte;
	pid_t parent = getpid();
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)close_range(3, ~0U, 0);
		while (getppid() == parent)
			(void)pause();
		_exit(0);
	}
	/* The end of the pipe comes when it has closed everything. */
	(void)close(ends[1]);
	(void)!read(ends[0], &byte, 1);
	(void)close(ends[0]);
	return pid;
}

static int begin(struct sandbox *s, int store_fd, struct err *e)
{
	*s = (struct sandbox){.spec = &spec, .store_fd = store_fd};
	int r = record_create(store_fd, &spec, names, &s->record, e);
	if (r < 0)
		return r;
	s->id = record_info(s->record)->id;
	s->slot = record_info(s->record)->slot;
	return 0;
}

static bool group_is_there(const char *id)
{
	for (unsigned i = 0; i < host.n; i++) {
		char path[PATH_MAX];
		(void)snprintf(path, sizeof(path), "%s/ermite-runner/%s", host.hierarchies[i].path, id);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}

static bool scratch_is_there(const char *id)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "%s/scratch.ext4", id);
	return faccessat(store, path, F_OK, 0) == 0;
}

/* Fails unless the store is empty. */
static void assert_empty(void)
{
	struct err e = ERR_INIT;
	scoped_free struct record_info *infos = NULL;
	size_t n = 0;
	assert_int_equal(record_list(store, &infos, &n, &e), 0);
	if (n > 0)
		fail_msg("%zu records are left, the first is %s", n, infos[0].id);
}

static void test_make_and_unmake(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct sandbox s;
	assert_int_equal(begin(&s, store, &e), 0);
	if (resources_make(&s, kinds, &e) < 0)
		fail_msg("%s", e.msg);
	assert_true(group_is_there(s.id));
	assert_true(scratch_is_there(s.id));
	pid_t sleeper = start_sleeper();
	assert_int_equal(cgroup_enter(&host, s.id, sleeper, &e), 0);
	for (int i = 0; i < 2; i++) {
		if (resources_unmake(&s, &e) < 0)
			fail_msg("%s", e.msg);
		assert_false(group_is_there(s.id));
		assert_false(scratch_is_there(s.id));
	}
	int status = 0;
	assert_int_equal(waitpid(sleeper, &status, 0), sleeper);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(record_remove(&s.record, &e), 0);
	assert_empty();
	assert_int_equal(fds_open(), before);
}

/* A failure says which kind failed, and what was made stays for the unmaking. */
static void test_make_fails(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	assert_int_equal(begin(&s, store, &e), 0);
	scoped_fd int fd = openat(record_dir(s.record), "scratch.ext4", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(resources_make(&s, kinds, &e), -EEXIST);
	assert_memory_equal(e.msg, "scratch: ", 9);
	assert_false(group_is_there(s.id));
	/* What was made before the failure stays. */
	const struct resource *const backwards[] = {&resource_cgroup, &resource_scratch, NULL};
	assert_int_equal(resources_make(&s, backwards, &e), -EEXIST);
	assert_true(group_is_there(s.id));
	assert_int_equal(resources_unmake(&s, &e), 0);
	assert_false(group_is_there(s.id));
	assert_int_equal(record_remove(&s.record, &e), 0);
}

/* The record alone is enough, as for whoever comes after a crash; so is half of what it names. */
static void test_unmake_from_the_record(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	char id[ID_SIZE];
	assert_int_equal(begin(&s, store, &e), 0);
	assert_int_equal(resources_make(&s, kinds, &e), 0);
	memcpy(id, s.id, sizeof(id));
	pid_t sleeper = start_sleeper();
	assert_int_equal(record_add_process(s.record, "conduit", sleeper, &e), 0);
	record_free(s.record);
	scoped_buf struct buf said = BUF_INIT(4096);
	assert_int_equal(reap(&said), 0);
	assert_false(group_is_there(id));
	int status = 0;
	assert_int_equal(waitpid(sleeper, &status, 0), sleeper);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_empty();
	char wanted[64];
	(void)snprintf(wanted, sizeof(wanted), "removed sandbox %s\n", id);
	assert_string_equal(buf_text(&said), wanted);
	assert_int_equal(reap(&said), 0);
	assert_int_equal(said.n, 0);
}

static void write_record(const char *id, const char *text)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "%s/record", id);
	scoped_fd int fd = openat(store, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

/* Processes are named by number and start time: of another boot, or of another start, they are not ours. */
static void test_processes_of_others(void **)
{
	struct err e = ERR_INIT;
	static const char id[] = "er00000001";
	char text[512];
	char boot_id[37];
	uint64_t start = 0;
	scoped_buf struct buf said = BUF_INIT(4096);
	pid_t sleeper = start_sleeper();
	assert_int_equal(process_start_time(sleeper, &start, &e), 0);
	assert_int_equal(process_boot_id(boot_id, &e), 0);
	const struct {
		const char *boot;
		uint64_t start;
	} rows[] = {{"01234567-89ab-cdef-0123-456789abcdef", start}, {boot_id, start + 1}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(mkdirat(store, id, 0700), 0);
		(void)snprintf(text, sizeof(text),
			       "ermite-record 1\nboot %s\nslot 0\nresource processes\nprocess lxc %d %llu\n",
			       rows[i].boot, sleeper, (unsigned long long)rows[i].start);
		write_record(id, text);
		assert_int_equal(reap(&said), 0);
		assert_empty();
		assert_int_equal(waitpid(sleeper, NULL, WNOHANG), 0);
	}
	(void)kill(sleeper, SIGKILL);
	assert_int_equal(waitpid(sleeper, NULL, 0), sleeper);
}

/* A record that cannot be read names nothing, so everything is looked for; what a later version made is not known. */
static void test_records_of_others(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	char id[ID_SIZE];
	scoped_buf struct buf said = BUF_INIT(4096);
	assert_int_equal(begin(&s, store, &e), 0);
	assert_int_equal(resources_make(&s, kinds, &e), 0);
	memcpy(id, s.id, sizeof(id));
	write_record(id, "ermite-rec");
	record_free(s.record);
	assert_int_equal(reap(&said), 0);
	assert_false(group_is_there(id));
	assert_empty();

	assert_int_equal(mkdirat(store, "er00000001", 0700), 0);
	write_record("er00000001", "ermite-record 1\nboot 01234567-89ab-cdef-0123-456789abcdef\nslot 3\n"
				   "resource processes\nresource firewall\n");
	assert_int_equal(reap(&said), 1);
	assert_string_equal(buf_text(&said),
			    "sandbox er00000001 stays: firewall: this version does not know how to "
			    "remove it\n");
	assert_int_equal(file_remove_tree(store, "er00000001", NULL), 0);
}

/* The one record has no keeper, and says why it is still there. */
static void assert_reason(const char *reason)
{
	struct err e = ERR_INIT;
	scoped_free struct record_info *infos = NULL;
	size_t n = 0;
	assert_int_equal(record_list(store, &infos, &n, &e), 0);
	assert_int_equal(n, 1);
	assert_false(infos[0].held);
	assert_string_equal(infos[0].left, reason);
}

static off_t record_size(const char *id)
{
	char path[64];
	struct stat st;
	(void)snprintf(path, sizeof(path), "%s/record", id);
	assert_int_equal(fstatat(store, path, &st, 0), 0);
	return st.st_size;
}

static off_t record_size_after_a_reap(const char *id)
{
	scoped_buf struct buf said = BUF_INIT(4096);
	assert_int_equal(reap(&said), 1);
	return record_size(id);
}

/* What cannot be ended keeps its record and its slot until it can. */
static void test_what_stays(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	char id[ID_SIZE];
	scoped_buf struct buf said = BUF_INIT(4096);
	assert_int_equal(begin(&s, store, &e), 0);
	memcpy(id, s.id, sizeof(id));
	/* A directory in the file's place cannot be unlinked as a file. */
	assert_int_equal(mkdirat(record_dir(s.record), "scratch.ext4", 0700), 0);
	record_free(s.record);
	assert_int_equal(reap(&said), 1);
	static const char reason[] = "scratch: remove the scratch file: Is a directory";
	assert_non_null(strstr(buf_text(&said), reason));
	assert_reason(reason);
	/* However often it is tried, the record says it once, and a dry run tells it, too. */
	assert_int_equal(record_size(id), record_size_after_a_reap(id));
	assert_int_equal(reap_in(store, true, &said), 1);
	struct sandbox next;
	assert_int_equal(begin(&next, store, &e), 0);
	assert_int_equal(next.slot, 1);
	assert_int_equal(record_remove(&next.record, &e), 0);
	char path[64];
	(void)snprintf(path, sizeof(path), "%s/scratch.ext4", id);
	assert_int_equal(unlinkat(store, path, AT_REMOVEDIR), 0);
	assert_int_equal(reap(&said), 0);
	assert_empty();
}

/* Living sandboxes are left alone, and so is what belongs to the store of another state directory. */
static void test_reap_spares_the_living(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	scoped_buf struct buf said = BUF_INIT(4096);
	char other_dir[64];
	int other = -1;
	assert_int_equal(begin(&s, store, &e), 0);
	assert_int_equal(resources_make(&s, kinds, &e), 0);
	pid_t sleeper = start_sleeper();
	assert_int_equal(cgroup_enter(&host, s.id, sleeper, &e), 0);
	assert_int_equal(record_add_process(s.record, "lxc", sleeper, &e), 0);
	(void)snprintf(other_dir, sizeof(other_dir), "%s/other", state_dir);
	assert_int_equal(record_open_store(other_dir, &other, &e), 0);
	assert_int_equal(reap(&said), 0);
	assert_int_equal(said.n, 0);
	assert_int_equal(reap_in(other, false, &said), 0);
	assert_int_equal(said.n, 0);
	fd_close(&other);
	assert_true(group_is_there(s.id));
	assert_true(scratch_is_there(s.id));
	assert_int_equal(waitpid(sleeper, NULL, WNOHANG), 0);
	assert_int_equal(resources_unmake(&s, &e), 0);
	assert_int_equal(waitpid(sleeper, NULL, 0), sleeper);
	assert_int_equal(record_remove(&s.record, &e), 0);
}

/* A control group whose record is lost is found by its mark, with what runs in it. */
static void test_sweep(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	char id[ID_SIZE];
	scoped_buf struct buf said = BUF_INIT(4096);
	assert_int_equal(begin(&s, store, &e), 0);
	assert_int_equal(resources_make(&s, kinds, &e), 0);
	memcpy(id, s.id, sizeof(id));
	pid_t sleeper = start_sleeper();
	assert_int_equal(cgroup_enter(&host, id, sleeper, &e), 0);
	assert_int_equal(record_remove(&s.record, &e), 0);
	assert_int_equal(reap_in(store, true, &said), 1);
	assert_true(group_is_there(id));
	char wanted[64];
	(void)snprintf(wanted, sizeof(wanted), "removed cgroup %s\n", id);
	assert_string_equal(buf_text(&said), wanted);
	assert_int_equal(reap(&said), 0);
	assert_string_equal(buf_text(&said), wanted);
	assert_false(group_is_there(id));
	int status = 0;
	assert_int_equal(waitpid(sleeper, &status, 0), sleeper);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What a keeper does until the sandbox boots, with a helper. */
static int keeper(void)
{
	struct sandbox s;
	int own = store_open();
	if (own < 0 || begin(&s, own, NULL) < 0)
		return 1;
	pid_t helper = start_sleeper();
	if (helper < 0 || record_add_process(s.record, "conduit", helper, NULL) < 0 ||
	    resources_make(&s, kinds, NULL) < 0 || cgroup_enter(&host, s.id, helper, NULL) < 0)
		return 2;
	record_set_state(s.record, "booting");
	return 0;
}

/* Lets a keeper run until it has made so many system calls, then kills it. Returns false when it came to its end. */
static bool kill_keeper_after(unsigned calls)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		(void)raise(SIGSTOP);
		_exit(keeper());
	}
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* A system call stops twice: before and after it. */
	for (unsigned i = 0; i < 2 * calls; i++) {
		assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status)) {
			assert_int_equal(WEXITSTATUS(status), 0);
			return false;
		}
		assert_true(WIFSTOPPED(status));
	}
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return true;
}

/* Killed at any point, a keeper leaves nothing that the next reap does not remove. */
static void test_killed_anywhere(void **)
{
	enum { STRIDE = 7 };
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	unsigned n = 1;
	for (bool goes_on = true; goes_on; n += STRIDE) {
		scoped_buf struct buf said = BUF_INIT(4096);
		goes_on = kill_keeper_after(n);
		/* The helper lost its parent, became ours and dies of that. */
		while (waitpid(-1, NULL, 0) > 0)
			;
		assert_int_equal(errno, ECHILD);
		if (reap(&said) != 0)
			fail_msg("after %u calls: %s", n, buf_text(&said));
		assert_empty();
	}
	assert_true(n > 10 * STRIDE);
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	struct err e = ERR_INIT;
	if (cgroup_host_read(&host, &e) < 0 || store_make() < 0 || !guardian_start(store_clean)) {
		print_error("%s\n", e.msg);
		return 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_make_and_unmake, setup, teardown),
		cmocka_unit_test_setup_teardown(test_make_fails, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unmake_from_the_record, setup, teardown),
		cmocka_unit_test_setup_teardown(test_processes_of_others, setup, teardown),
		cmocka_unit_test_setup_teardown(test_records_of_others, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reap_spares_the_living, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_anywhere, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
