/* Needs root. What a host misses is hidden from this process, in a mount namespace of its own. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "guardian.h"
#include "isolation/isolation.h"
#include "isolation/system/system.h"
#include "sys/cgroup.h"
#include "sys/mounts.h"

static char image_dir[] = "/tmp/ermite-test-image-XXXXXX";
static struct config config;

static void clean(void)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "%s/base.ext4", image_dir);
	(void)unlink(path);
	(void)rmdir(image_dir);
}

static int setup(void **)
{
	config_defaults(&config);
	memcpy(config.image_dir, image_dir, sizeof(image_dir));
	return 0;
}

static void test_find(void **)
{
	assert_ptr_equal(isolation_find(ISOLATION_SYSTEM), &isolation_system);
	assert_null(isolation_find(ISOLATION_VM));
	assert_null(isolation_find(ISOLATION_CONTAINER));
	assert_null(isolation_find(ISOLATION_AUTO));
	/* What it is made of stands in the record in this order. */
	const struct resource *const *r = isolation_system.resources;
	assert_ptr_equal(r[0], &resource_network);
	assert_ptr_equal(r[1], &resource_scratch);
	assert_ptr_equal(r[2], &resource_processes);
	assert_ptr_equal(r[3], &resource_cgroup);
	assert_null(r[4]);
}

static void test_not_in_this_version(void **)
{
	static const struct {
		enum isolation isolation;
		const char *message;
	} rows[] = {
		{ISOLATION_VM, "isolation vm is not part of this version: use system"},
		{ISOLATION_CONTAINER, "isolation container is not part of this version: use system"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		scoped_buf struct buf notes = BUF_INIT(4096);
		enum isolation chosen = ISOLATION_AUTO;
		config.isolation = rows[i].isolation;
		assert_int_equal(isolation_select(&config, &chosen, &notes, &e), -ENOTSUP);
		assert_string_equal(e.msg, rows[i].message);
		assert_int_equal(chosen, ISOLATION_AUTO);
		assert_int_equal(notes.n, 0);
	}
}

static void test_able(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	enum isolation chosen = ISOLATION_AUTO;
	scoped_buf struct buf notes = BUF_INIT(4096);
	config.isolation = ISOLATION_SYSTEM;
	if (isolation_select(&config, &chosen, &notes, &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(chosen, ISOLATION_SYSTEM);
	assert_int_equal(notes.n, 0);
	chosen = ISOLATION_AUTO;
	config.isolation = ISOLATION_AUTO;
	assert_int_equal(isolation_select(&config, &chosen, &notes, &e), 0);
	assert_int_equal(chosen, ISOLATION_SYSTEM);
	assert_string_equal(buf_text(&notes), "vm passed over: not part of this version\n"
					      "container passed over: not part of this version\n"
					      "isolation system chosen\n");
	assert_int_equal(fds_open(), before);
}

/* Never a weaker one in the place of the one that was named, nor any without its image. */
static void test_no_image(void **)
{
	struct err e = ERR_INIT;
	enum isolation chosen = ISOLATION_AUTO;
	scoped_buf struct buf notes = BUF_INIT(4096);
	(void)snprintf(config.image_dir, sizeof(config.image_dir), "/nonexistent/image");
	config.isolation = ISOLATION_SYSTEM;
	assert_int_equal(isolation_select(&config, &chosen, &notes, &e), -ENOTSUP);
	assert_string_equal(e.msg, "isolation system cannot run on this host: there is no image at "
				   "/nonexistent/image (ermite-runner image build)");
	config.isolation = ISOLATION_AUTO;
	assert_int_equal(isolation_select(&config, &chosen, &notes, &e), -ENOTSUP);
	assert_string_equal(e.msg, "no isolation can run on this host: system: there is no image at "
				   "/nonexistent/image (ermite-runner image build)");
	assert_int_equal(chosen, ISOLATION_AUTO);
	/* The default is below the state directory. */
	config.image_dir[0] = '\0';
	(void)snprintf(config.state_dir, sizeof(config.state_dir), "/nonexistent/state");
	assert_int_equal(isolation_select(&config, &chosen, &notes, &e), -ENOTSUP);
	assert_non_null(strstr(e.msg, "there is no image at /nonexistent/state/image ("));
}

/* Covers a file with one that says nothing and that nobody can run. */
static bool hide(const char *path)
{
	return access(path, F_OK) < 0 || mount("/dev/null", path, NULL, MS_BIND, NULL) == 0;
}

static bool hide_controllers(unsigned controllers)
{
	struct cgroup_host host;
	if (cgroup_host_read(&host, NULL) < 0)
		return false;
	for (unsigned i = 0; i < host.n; i++)
		if ((host.hierarchies[i].controllers & controllers) &&
		    umount2(host.hierarchies[i].path, MNT_DETACH) < 0)
			return false;
	return true;
}

static const char *try_poor_host(void)
{
	static struct err e;
	enum isolation chosen = ISOLATION_AUTO;
	scoped_buf struct buf notes = BUF_INIT(4096);
	if (mount_own_namespace(&e) < 0 || !hide_controllers(CGROUP_MEMORY | CGROUP_PIDS) ||
	    !hide("/usr/sbin/nft") || !hide("/usr/bin/lxcfs") || !hide("/usr/local/bin/lxcfs") ||
	    !hide("/proc/filesystems") || mount("x", "/dev", "tmpfs", 0, "size=4k") < 0)
		return "could not hide";
	(void)snprintf(config.image_dir, sizeof(config.image_dir), "/nonexistent/image");
	config.isolation = ISOLATION_SYSTEM;
	if (setresuid(65534, 65534, 65534) < 0 || isolation_select(&config, &chosen, &notes, &e) != -ENOTSUP)
		return "was chosen";
	return e.msg;
}

/* All that is missing is said at once. */
static void test_everything_missing(void **)
{
	static const char *const expected[] = {
		"isolation system cannot run on this host: ",
		"root is needed; ",
		"the kernel has no overlayfs (modprobe overlay); ",
		"there are no loop devices (modprobe loop); ",
		"there is no /dev/fuse (modprobe fuse); ",
		"lxcfs is not installed (apt install lxcfs); ",
		"nft is not installed (apt install nftables); ",
		"no memory cgroup controller; ",
		"no pids cgroup controller; ",
		"there is no image at /nonexistent/image (ermite-runner image build)",
	};
	char text[sizeof(((struct err *)NULL)->msg)] = "";
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		const char *said = try_poor_host();
		_exit(write(ends[1], said, strlen(said)) < 0);
	}
	(void)close(ends[1]);
	assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
	(void)close(ends[0]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		if (!strstr(text, expected[i]))
			fail_msg("\"%s\" does not say \"%s\"", text, expected[i]);
}

int main(void)
{
	char path[64];
	if (geteuid() != 0)
		return 77;
	if (!mkdtemp(image_dir) || !guardian_start(clean))
		return 1;
	(void)snprintf(path, sizeof(path), "%s/base.ext4", image_dir);
	if (mknod(path, S_IFREG | 0600, 0) < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_find, setup),
		cmocka_unit_test_setup(test_not_in_this_version, setup),
		cmocka_unit_test_setup(test_able, setup),
		cmocka_unit_test_setup(test_no_image, setup),
		cmocka_unit_test_setup(test_everything_missing, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
