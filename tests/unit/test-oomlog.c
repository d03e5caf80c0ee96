#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "sys/oomlog.h"

#define ID    "er01234567"
#define HEAD  "6,123,4567890,-;"
#define START "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=guest,mems_allowed=0"
#define OWN   ",oom_memcg=/ermite-runner/" ID
#define TASK  ",task_memcg=/ermite-runner/" ID "/guest/init.scope"

static const struct {
	const char *line;
	bool own;
	const char *name;
} rows[] = {
	{HEAD START OWN TASK ",task=cc1plus,pid=4711,uid=965536\n", true, "cc1plus"},
	{HEAD START OWN TASK ",task=x,pid=1,uid=0", true, "x"},
	/* With the caller in the head, as some kernels are built. */
	{"4,1,2,-,caller=T4711;" START OWN TASK ",task=cc1,pid=1,uid=0", true, "cc1"},
	/* Names are the sandbox's choice: unusual bytes, and as much as a name can hold. */
	{HEAD START OWN TASK ",task=a b\x1b[31m\"',pid=1,uid=0", true, "a?b??31m??"},
	{HEAD START OWN TASK ",task=0123456789abcdefghi,pid=1,uid=0", true, "0123456789abcde"},
	{HEAD START OWN TASK ",task=,pid=1,uid=0", true, ""},
	{HEAD START OWN TASK, true, ""},
	/* A name that looks like the fields around it changes nothing but itself. */
	{HEAD START ",oom_memcg=/ermite-runner/er76543210,task_memcg=/x,task=" OWN ",pid=1,uid=0", false, ""},
	{HEAD START OWN TASK ",task=,oom_memcg=/x,pid=1,uid=0", true, "?oom_memcg?/x"},
	{HEAD START OWN TASK ",task=a,task=b,pid=1,uid=0", true, "b"},
	{HEAD START OWN TASK ",task=a,pid=7,pid=1,uid=0", true, "a"},
	/* So does the name of a group that the sandbox made. */
	{HEAD START ",oom_memcg=/ermite-runner/er76543210/guest/,oom_memcg=/ermite-runner/" ID
		    ",/x,task_memcg=/x,task=a,pid=1,uid=0",
	 false, ""},
	{HEAD
	 "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=,oom_memcg=x,mems_allowed=0" OWN TASK
	 ",task=a,pid=1,uid=0",
	 true, "a"},
	/* The limit of another sandbox, of a group inside ours, of one whose id begins like ours, of the host. */
	{HEAD START ",oom_memcg=/ermite-runner/er76543210,task_memcg=/ermite-runner/" ID
		    ",task=a,pid=1,uid=0",
	 false, ""},
	{HEAD START OWN "/guest/docker/0815,task_memcg=/x,task=a,pid=1,uid=0", false, ""},
	{HEAD START OWN "8,task_memcg=/x,task=a,pid=1,uid=0", false, ""},
	{HEAD START ",global_oom,task_memcg=/ermite-runner/" ID ",task=a,pid=1,uid=0", false, ""},
	{HEAD START ",oom_memcg=/x/ermite-runner/" ID ",task_memcg=/x,task=a,pid=1,uid=0", false, ""},
	/* Other lines, also those in which a sandbox makes the kernel quote it. */
	{HEAD "Memory cgroup out of memory: Killed process 4711 (cc1plus) total-vm:1kB", false, ""},
	{HEAD "overlayfs: failed to resolve '/" START OWN TASK ",task=a,pid=1,uid=0': -2", false, ""},
	{START OWN TASK ",task=a,pid=1,uid=0", false, ""},
	{HEAD, false, ""},
	{";", false, ""},
	{"", false, ""},
};

static void test_parse(void **)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char name[OOMLOG_NAME_MAX] = "";
		if (oomlog_parse(rows[i].line, ID, name) != rows[i].own)
			fail_msg("\"%s\" is taken for %s", rows[i].line, rows[i].own ? "another's" : "ours");
		assert_string_equal(name, rows[i].name);
	}
}

/* Every beginning of a line is read without going past its end. */
static void test_cut_lines(void **)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (size_t n = strlen(rows[i].line); n-- > 0;) {
			char name[OOMLOG_NAME_MAX] = "";
			scoped_free char *cut = strndup(rows[i].line, n);
			assert_non_null(cut);
			(void)oomlog_parse(cut, ID, name);
			assert_true(strlen(name) < sizeof(name));
		}
	}
}

static void test_victim(void **)
{
	char name[OOMLOG_NAME_MAX] = "old";
	oomlog_victim(-1, ID, name);
	assert_string_equal(name, "");
	/* A descriptor that is not the log, one record a read: the last victim counts. */
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC | O_DIRECT | O_NONBLOCK), 0);
	static const char *const records[] = {HEAD START OWN TASK ",task=first,pid=1,uid=0",
					      HEAD START OWN TASK ",task=last,pid=1,uid=0",
					      HEAD "something else"};
	for (size_t i = 0; i < sizeof(records) / sizeof(records[0]); i++)
		assert_int_equal(write(ends[1], records[i], strlen(records[i])), strlen(records[i]));
	oomlog_victim(ends[0], ID, name);
	assert_string_equal(name, "last");
	oomlog_victim(ends[0], ID, name);
	assert_string_equal(name, "");
	(void)close(ends[0]);
	(void)close(ends[1]);
	/* The kernel's own. A host may forbid it; then there is none. */
	scoped_fd int log = oomlog_open();
	if (log >= 0) {
		assert_true(fcntl(log, F_GETFD) & FD_CLOEXEC);
		oomlog_victim(log, ID, name);
		assert_string_equal(name, "");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_cut_lines),
		cmocka_unit_test(test_victim),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
