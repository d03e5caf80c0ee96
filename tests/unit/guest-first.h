/*
 * Tests that are the first process of namespaces of their own, as the guest program is in a sandbox.
 */
#ifndef ERMITE_TESTS_GUEST_FIRST_H
#define ERMITE_TESTS_GUEST_FIRST_H

#include "guest-host.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>

[[maybe_unused]] static void check(bool good, int line, const char *what)
{
	if (good)
		return;
	(void)dprintf(2, "line %d: %s\n", line, what);
	_exit(1);
}

/* In the first process of a namespace: ends the test there, naming the place. */
#define CHECK(x) check(x, __LINE__, #x)

/* Runs fn as the first process of new PID, mount and network namespaces, with empty /run, /usr/sbin and systemd
 * directories. */
[[maybe_unused]] static void as_first_process(void (*fn)(void))
{
	pid_t outer = fork();
	if (outer == 0) {
		CHECK(unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET) == 0);
		pid_t first = fork();
		if (first == 0) {
			CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
			CHECK(mount("proc", "/proc", "proc", 0, NULL) == 0);
			CHECK(mount("run", "/run", "tmpfs", 0, NULL) == 0);
			CHECK(mount("sbin", "/usr/sbin", "tmpfs", 0, NULL) == 0);
			CHECK(mount("etc", "/etc/systemd", "tmpfs", 0, NULL) == 0);
			(void)mount("lib", "/usr/lib/systemd", "tmpfs", 0, NULL);
			CHECK(mkdir("/run/ermite", 0755) == 0);
			fn();
			_exit(0);
		}
		int status;
		CHECK(waitpid(first, &status, 0) == first);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
	}
	int status = -1;
	assert_int_equal(waitpid(outer, &status, 0), outer);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

#endif
