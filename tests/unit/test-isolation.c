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
#include "isolation/container/container.h"
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
	(void)snprintf(config.state_dir, sizeof(config.state_dir), "/nonexistent/state");
	memcpy(config.image_dir, image_dir, sizeof(image_dir));
	return 0;
}

static void test_find(void **)
{
	assert_ptr_equal(isolation_find(ISOLATION_SYSTEM, false), &isolation_system);
	assert_ptr_equal(isolation_find(ISOLATION_CONTAINER, true), &isolation_container_sysbox);
	assert_ptr_equal(isolation_find(ISOLATION_CONTAINER, false), &isolation_container_privileged);
	assert_null(isolation_find(ISOLATION_VM, false));
	assert_null(isolation_find(ISOLATION_AUTO, false));
	/* What it is made of stands in the record in this order. */
	const struct resource *const *r = isolation_system.resources;
	assert_ptr_equal(r[0], &resource_network);
	assert_ptr_equal(r[1], &resource_scratch);
	assert_ptr_equal(r[2], &resource_processes);
	assert_ptr_equal(r[3], &resource_cgroup);
	assert_null(r[4]);
	r = isolation_container_sysbox.resources;
	assert_ptr_equal(r, isolation_container_privileged.resources);
	assert_ptr_equal(r[0], &resource_network);
	assert_ptr_equal(r[1], &resource_scratch);
	assert_ptr_equal(r[2], &resource_docker);
	assert_ptr_equal(r[3], &resource_processes);
	assert_ptr_equal(r[4], &resource_cgroup);
	assert_null(r[5]);
}

static void test_not_in_this_version(void **)
{
	struct err e = ERR_INIT;
	struct isolation_host host = {0};
	scoped_buf struct buf notes = BUF_INIT(4096);
	const struct isolation_ops *chosen = NULL;
	config.isolation = ISOLATION_VM;
	assert_int_equal(isolation_select(&config, &host, &chosen, &notes, &e), -ENOTSUP);
	assert_string_equal(e.msg, "isolation vm is not part of this version: use system");
	assert_null(chosen);
	assert_int_equal(notes.n, 0);
}

#define SYSBOX_MISSING  "Docker's daemon has no runtime sysbox-runc (install Sysbox)"
#define DENIED          "privileged containers are refused (ERMITE_RUNNER_DENY_PRIVILEGED=1), and " SYSBOX_MISSING
#define NO_SYSTEM_IMAGE "there is no image at /nonexistent/image (ermite-runner image build)"
#define VM              "vm passed over: not part of this version\n"
#define ID              "sha256:0123"

/* What is known of Docker decides with what else is there. */
static void test_order(void **)
{
	static const struct {
		const char *name;
		enum isolation isolation;
		struct docker_facts docker;
		bool no_image, denied;
		const struct isolation_ops *chosen;
		const char *notes; /* or the error */
	} rows[] = {
		{"auto, sysbox",
		 ISOLATION_AUTO,
		 {.image_id = ID, .sysbox = true},
		 false,
		 false,
		 &isolation_container_sysbox,
		 VM "isolation container_sysbox chosen\n"},
		{"auto, sysbox, denied",
		 ISOLATION_AUTO,
		 {.image_id = ID, .sysbox = true},
		 false,
		 true,
		 &isolation_container_sysbox,
		 VM "isolation container_sysbox chosen\n"},
		{"auto, no sysbox",
		 ISOLATION_AUTO,
		 {.image_id = ID},
		 false,
		 false,
		 &isolation_system,
		 VM "container_sysbox passed over: " SYSBOX_MISSING "\nisolation system chosen\n"},
		{"auto, no daemon",
		 ISOLATION_AUTO,
		 {.trouble = "it is off"},
		 false,
		 false,
		 &isolation_system,
		 VM "container_sysbox passed over: it is off\nisolation system chosen\n"},
		{"auto, privileged only",
		 ISOLATION_AUTO,
		 {.image_id = ID},
		 true,
		 false,
		 &isolation_container_privileged,
		 VM "container_sysbox passed over: " SYSBOX_MISSING "\nsystem passed over: " NO_SYSTEM_IMAGE
		    "\nisolation container_privileged chosen\n"},
		{"auto, privileged only, denied",
		 ISOLATION_AUTO,
		 {.image_id = ID},
		 true,
		 true,
		 NULL,
		 "no isolation can run on this host: container_sysbox: " SYSBOX_MISSING
		 "; system: " NO_SYSTEM_IMAGE "; container_privileged: " DENIED},
		{"container, sysbox",
		 ISOLATION_CONTAINER,
		 {.image_id = ID, .sysbox = true},
		 false,
		 false,
		 &isolation_container_sysbox,
		 "isolation container_sysbox chosen\n"},
		{"container, privileged",
		 ISOLATION_CONTAINER,
		 {.image_id = ID},
		 false,
		 false,
		 &isolation_container_privileged,
		 "container_sysbox passed over: " SYSBOX_MISSING "\nisolation container_privileged chosen\n"},
		{"container, denied",
		 ISOLATION_CONTAINER,
		 {.image_id = ID},
		 false,
		 true,
		 NULL,
		 "isolation container cannot run on this host: " DENIED},
		{"container, no daemon, denied",
		 ISOLATION_CONTAINER,
		 {.trouble = "it is off"},
		 false,
		 true,
		 NULL,
		 "isolation container cannot run on this host: it is off; " DENIED},
		{"container, no image",
		 ISOLATION_CONTAINER,
		 {.version = "1"},
		 false,
		 false,
		 NULL,
		 "isolation container cannot run on this host: Docker has no image "
		 "ermite-runner-debian-13:latest, and there is none at /nonexistent/state/image to make it "
		 "from "
		 "(ermite-runner image build)"},
		{"system",
		 ISOLATION_SYSTEM,
		 {.image_id = ID, .sysbox = true},
		 false,
		 false,
		 &isolation_system,
		 ""},
		{"system, no image",
		 ISOLATION_SYSTEM,
		 {.image_id = ID},
		 true,
		 false,
		 NULL,
		 "isolation system cannot run on this host: " NO_SYSTEM_IMAGE},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		struct isolation_host host = {.docker_asked = true, .docker = rows[i].docker};
		scoped_buf struct buf notes = BUF_INIT(4096);
		const struct isolation_ops *chosen = NULL;
		config.isolation = rows[i].isolation;
		config.deny_privileged = rows[i].denied;
		(void)snprintf(config.image_dir, sizeof(config.image_dir), "%s",
			       rows[i].no_image ? "/nonexistent/image" : image_dir);
		int r = isolation_select(&config, &host, &chosen, &notes, &e);
		const char *said = rows[i].chosen ? buf_text(&notes) : e.msg;
		if (r != (rows[i].chosen ? 0 : -ENOTSUP) || chosen != rows[i].chosen ||
		    strcmp(said, rows[i].notes) != 0)
			fail_msg("%s: %d, \"%s\"", rows[i].name, r, said);
	}
}

/* The default image is made from the state directory's, any other is pulled. */
static void test_image_to_get(void **)
{
	struct isolation_host host = {.docker_asked = true};
	scoped_buf struct buf reasons = BUF_INIT(4096);
	assert_int_equal(isolation_container_privileged.missing(&config, &host, &reasons), 1);
	(void)snprintf(config.image_oci, sizeof(config.image_oci), "registry.example/other:1");
	assert_int_equal(isolation_container_privileged.missing(&config, &host, &reasons), 0);
}

/* No daemon at the place that the environment names. */
static void test_no_daemon(void **)
{
	static const struct {
		const char *docker_host, *reason;
	} rows[] = {
		{"unix:///nonexistent/docker.sock", "Docker's daemon does not run: there is no socket at "
						    "/nonexistent/docker.sock (apt install docker.io; "
						    "systemctl start docker)"},
		{"tcp://192.0.2.1:2375", "DOCKER_HOST=tcp://192.0.2.1:2375 is not a socket of this host: "
					 "only unix:///PATH can be used"},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct isolation_host host = {0};
		scoped_buf struct buf reasons = BUF_INIT(4096);
		assert_int_equal(setenv("DOCKER_HOST", rows[i].docker_host, 1), 0);
		assert_int_equal(isolation_container_privileged.missing(&config, &host, &reasons), 1);
		assert_string_equal(buf_text(&reasons), rows[i].reason);
	}
	assert_int_equal(fds_open(), before);
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
	const struct isolation_ops *chosen = NULL;
	struct isolation_host host = {0};
	scoped_buf struct buf notes = BUF_INIT(4096);
	if (mount_own_namespace(&e) < 0 || !hide_controllers(CGROUP_MEMORY | CGROUP_PIDS) ||
	    !hide("/usr/sbin/nft") || !hide("/usr/bin/lxcfs") || !hide("/usr/local/bin/lxcfs") ||
	    !hide("/proc/filesystems") || mount("x", "/dev", "tmpfs", 0, "size=4k") < 0)
		return "could not hide";
	(void)snprintf(config.image_dir, sizeof(config.image_dir), "/nonexistent/image");
	config.isolation = ISOLATION_SYSTEM;
	if (setresuid(65534, 65534, 65534) < 0 ||
	    isolation_select(&config, &host, &chosen, &notes, &e) != -ENOTSUP)
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
		cmocka_unit_test_setup(test_order, setup),
		cmocka_unit_test_setup(test_image_to_get, setup),
		cmocka_unit_test_setup(test_no_daemon, setup),
		cmocka_unit_test_setup(test_everything_missing, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
