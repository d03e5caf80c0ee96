#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/scope.h"
#include "spec/config.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void test_defaults(void **)
{
	struct config c;
	memset(&c, 0xa5, sizeof(c));
	config_defaults(&c);
	assert_int_equal(c.isolation, ISOLATION_AUTO);
	assert_int_equal(c.ready, READY_DEFAULT);
	assert_int_equal(c.network_mode, NETWORK_NAT);
	assert_int_equal(c.vmm, VMM_DEFAULT);
	assert_int_equal(c.vm_accel, VM_ACCEL_KVM);
	assert_int_equal(c.log, LOG_CHOICE_DEFAULT);
	assert_int_equal(c.log_level, LOG_LEVEL_INFO);
	assert_int_equal(c.capacity, 1);
	assert_int_equal(c.job_cpus, 2);
	assert_int_equal(c.job_pids, 8192);
	assert_int_equal(c.job_flows, 4096);
	assert_int_equal(c.disk_overcommit, 1);
	assert_int_equal(c.uid_base, 900000);
	assert_int_equal(c.network_address, 0x0ac80000);
	assert_int_equal(c.network_prefix, 16);
	assert_int_equal(c.dns_port, 53);
	assert_int_equal(c.job_memory_mib, 4096);
	assert_int_equal(c.job_disk_mib, 65536);
	assert_int_equal(c.job_timeout_ms, 21'600'000);
	assert_int_equal(c.job_disk_bandwidth, 0);
	assert_int_equal(c.job_disk_iops, 0);
	assert_int_equal(c.job_net_bandwidth, 0);
	assert_true(c.jailer_on);
	assert_false(c.guest_forge || c.insecure_http || c.deny_privileged);
	assert_string_equal(c.state_dir, "/var/lib/ermite-runner");
	assert_string_equal(c.image_oci, "ermite-runner-debian-13:latest");
	assert_string_equal(c.lock_file, "/run/ermite-runner.lock");
	const char *const empty[] = {c.image_dir, c.network_allow, c.firecracker,        c.jailer, c.qemu,
				     c.kernel,    c.externals,     c.guest_forge_target, c.url};
	for (size_t i = 0; i < COUNT(empty); i++)
		assert_string_equal(empty[i], "");
	assert_int_equal(config_check(&c, NULL), 0);
	struct config again;
	memset(&again, 0x5a, sizeof(again));
	config_defaults(&again);
	assert_memory_equal(&c, &again, sizeof(c));
}

/* The specification's names in its order, and option names that follow from them. */
static void test_table(void **)
{
	static const char *const names[] = {
		"ISOLATION",
		"STATE_DIR",
		"CAPACITY",
		"IMAGE",
		"JOB_CPUS",
		"JOB_MEMORY",
		"JOB_DISK",
		"JOB_PIDS",
		"JOB_TIMEOUT",
		"READY",
		"DISK_OVERCOMMIT",
		"JOB_DISK_BANDWIDTH",
		"JOB_DISK_IOPS",
		"JOB_NET_BANDWIDTH",
		"JOB_FLOWS",
		"UID_BASE",
		"NETWORK",
		"NETWORK_MODE",
		"NETWORK_ALLOW",
		"FIRECRACKER",
		"JAILER",
		"QEMU",
		"JAILER_MODE",
		"VMM",
		"VM_ACCEL",
		"KERNEL",
		"EXTERNALS",
		"GUEST_FORGE",
		"GUEST_FORGE_TARGET",
		"URL",
		"INSECURE_HTTP",
		"DENY_PRIVILEGED",
		"LOCK_FILE",
		"DNS_PORT",
		"LOG",
		"LOG_LEVEL",
	};
	size_t n = 0;
	const struct config_item *items = config_items(&n);
	assert_int_equal(n, COUNT(names));
	for (size_t i = 0; i < n; i++) {
		assert_memory_equal(items[i].name, "ERMITE_RUNNER_", 14);
		assert_string_equal(items[i].name + 14, names[i]);
		char option[64] = "";
		for (size_t j = 0; names[i][j]; j++)
			option[j] = names[i][j] == '_' ? '-' : (char)(names[i][j] | 0x20);
		assert_string_equal(items[i].option, option);
		assert_non_null(items[i].default_text);
		assert_true(items[i].accepted[0] && items[i].help[0]);
		assert_int_equal(items[i].help[strlen(items[i].help) - 1], '.');
	}
}

/* A value, and the integer field of that size where it must arrive. */
struct number_row {
	const char *name;
	const char *value;
	size_t offset, size;
	uint64_t expected;
};

#define AT(field) offsetof(struct config, field), sizeof(((struct config *)NULL)->field)

static const struct number_row number_rows[] = {
	{"JOB_MEMORY", "512M", AT(job_memory_mib), 512},
	{"JOB_MEMORY", "4G", AT(job_memory_mib), 4096},
	{"JOB_MEMORY", "64GiB", AT(job_memory_mib), 65536},
	{"JOB_MEMORY", "1t", AT(job_memory_mib), 1048576},
	{"JOB_MEMORY", " 2g ", AT(job_memory_mib), 2048},
	{"JOB_MEMORY", "1024MB", AT(job_memory_mib), 1024},
	{"JOB_MEMORY", "4096", AT(job_memory_mib), 4096},
	{"JOB_MEMORY", "256M", AT(job_memory_mib), 256},
	{"JOB_DISK", "1G", AT(job_disk_mib), 1024},
	{"JOB_DISK", "1024", AT(job_disk_mib), 1024},
	{"ISOLATION", "VM", AT(isolation), ISOLATION_VM},
	{"ISOLATION", "vm", AT(isolation), ISOLATION_VM},
	{"ISOLATION", "Container", AT(isolation), ISOLATION_CONTAINER},
	{"ISOLATION", "system", AT(isolation), ISOLATION_SYSTEM},
	{"ISOLATION", "auto", AT(isolation), ISOLATION_AUTO},
	{"CAPACITY", "1", AT(capacity), 1},
	{"CAPACITY", " 1024 ", AT(capacity), 1024},
	{"JOB_CPUS", "1", AT(job_cpus), 1},
	{"JOB_CPUS", "128", AT(job_cpus), 128},
	{"JOB_PIDS", "64", AT(job_pids), 64},
	{"JOB_PIDS", "4194304", AT(job_pids), 4194304},
	{"JOB_TIMEOUT", "0", AT(job_timeout_ms), 0},
	{"JOB_TIMEOUT", "90s", AT(job_timeout_ms), 90'000},
	{"JOB_TIMEOUT", "2d", AT(job_timeout_ms), 172'800'000},
	{"READY", "now", AT(ready), READY_NOW},
	{"READY", "system", AT(ready), READY_SYSTEM},
	{"DISK_OVERCOMMIT", "100", AT(disk_overcommit), 100},
	{"JOB_DISK_BANDWIDTH", "0", AT(job_disk_bandwidth), 0},
	{"JOB_DISK_BANDWIDTH", "50M", AT(job_disk_bandwidth), 52'428'800},
	{"JOB_NET_BANDWIDTH", "1T", AT(job_net_bandwidth), 1'099'511'627'776},
	{"JOB_NET_BANDWIDTH", " 3 ", AT(job_net_bandwidth), 3'145'728},
	{"JOB_DISK_IOPS", "4294967295", AT(job_disk_iops), 4294967295},
	{"JOB_FLOWS", "16", AT(job_flows), 16},
	{"JOB_FLOWS", "1048576", AT(job_flows), 1048576},
	{"UID_BASE", "1000", AT(uid_base), 1000},
	{"UID_BASE", "4000000000", AT(uid_base), 4000000000},
	{"NETWORK", "192.168.4.0/24", AT(network_address), 0xc0a80400},
	{"NETWORK", "192.168.4.0/24", AT(network_prefix), 24},
	{"NETWORK", "10.0.0.4/30", AT(network_prefix), 30},
	{"NETWORK_MODE", "none", AT(network_mode), NETWORK_NONE},
	{"VMM", "firecracker", AT(vmm), VMM_FIRECRACKER},
	{"VMM", "qemu", AT(vmm), VMM_QEMU},
	{"VM_ACCEL", "tcg", AT(vm_accel), VM_ACCEL_TCG},
	{"JAILER_MODE", "off", AT(jailer_on), false},
	{"JAILER_MODE", "on", AT(jailer_on), true},
	{"GUEST_FORGE", "1", AT(guest_forge), true},
	{"INSECURE_HTTP", "1", AT(insecure_http), true},
	{"DENY_PRIVILEGED", "1", AT(deny_privileged), true},
	{"DENY_PRIVILEGED", "0", AT(deny_privileged), false},
	{"DNS_PORT", "65535", AT(dns_port), 65535},
	{"LOG", "json", AT(log), LOG_CHOICE_JSON},
	{"LOG", "text", AT(log), LOG_CHOICE_TEXT},
	{"LOG_LEVEL", "error", AT(log_level), LOG_LEVEL_ERROR},
	{"LOG_LEVEL", "warning", AT(log_level), LOG_LEVEL_WARNING},
	{"LOG_LEVEL", "debug", AT(log_level), LOG_LEVEL_DEBUG},
};

static void full_name(const char *name, char full[static 64])
{
	(void)snprintf(full, 64, "ERMITE_RUNNER_%s", name);
}

static void test_numbers(void **)
{
	for (size_t i = 0; i < COUNT(number_rows); i++) {
		const struct number_row *row = &number_rows[i];
		struct config c;
		struct err e = ERR_INIT;
		char name[64];
		full_name(row->name, name);
		config_defaults(&c);
		int r = config_set(&c, name, row->value, &e);
		uint64_t got = 0;
		memcpy(&got, (const char *)&c + row->offset, row->size);
		if (r != 0 || got != row->expected)
			fail_msg("%s=\"%s\": %d, %llu (%s)", name, row->value, r, (unsigned long long)got,
				 e.msg);
	}
}

struct text_row {
	const char *name;
	const char *value;
	size_t offset;
	const char *expected;
};

#define TEXT(field) offsetof(struct config, field)

static const struct text_row text_rows[] = {
	{"STATE_DIR", "/srv/ermite runner", TEXT(state_dir), "/srv/ermite runner"},
	{"IMAGE", "registry.example/x:1", TEXT(image_oci), "registry.example/x:1"},
	{"IMAGE", "registry.example/x:1", TEXT(image_dir), ""},
	{"IMAGE", "/images/u24", TEXT(image_dir), "/images/u24"},
	{"IMAGE", "/images/u24", TEXT(image_oci), "ermite-runner-debian-13:latest"},
	{"IMAGE", "./u24", TEXT(image_dir), "/usr/lib/./u24"},
	{"IMAGE", "../u24", TEXT(image_dir), "/usr/lib/../u24"},
	{"IMAGE", "debian@sha256:00ff", TEXT(image_oci), "debian@sha256:00ff"},
	{"NETWORK_ALLOW", "10.1.0.0/16", TEXT(network_allow), "10.1.0.0/16"},
	{"NETWORK_ALLOW", "10.1.2.3:443, 10.2.0.0/32 0.0.0.0/0", TEXT(network_allow),
	 "10.1.2.3:443, 10.2.0.0/32 0.0.0.0/0"},
	{"NETWORK_ALLOW", "10.1.2.3", TEXT(network_allow), "10.1.2.3"},
	{"NETWORK_ALLOW", "", TEXT(network_allow), ""},
	{"FIRECRACKER", "/opt/firecracker", TEXT(firecracker), "/opt/firecracker"},
	{"FIRECRACKER", "", TEXT(firecracker), ""},
	{"JAILER", "bin/jailer", TEXT(jailer), "/usr/lib/bin/jailer"},
	{"QEMU", "qemu", TEXT(qemu), "/usr/lib/qemu"},
	{"KERNEL", "/boot/vmlinux", TEXT(kernel), "/boot/vmlinux"},
	{"EXTERNALS", "/opt/node", TEXT(externals), "/opt/node"},
	{"LOCK_FILE", "/tmp/lock", TEXT(lock_file), "/tmp/lock"},
	{"URL", "https://forge.example:3000", TEXT(url), "https://forge.example:3000"},
	{"URL", "http://forge.example", TEXT(url), "http://forge.example"},
	{"GUEST_FORGE_TARGET", "forge.example:3000", TEXT(guest_forge_target), "forge.example:3000"},
};

static void test_texts(void **)
{
	assert_int_equal(chdir("/usr/lib"), 0);
	for (size_t i = 0; i < COUNT(text_rows); i++) {
		const struct text_row *row = &text_rows[i];
		struct config c;
		struct err e = ERR_INIT;
		char name[64];
		full_name(row->name, name);
		config_defaults(&c);
		int r = config_set(&c, name, row->value, &e);
		const char *got = (const char *)&c + row->offset;
		if (r != 0 || strcmp(got, row->expected) != 0)
			fail_msg("%s=\"%s\": %d, \"%s\" (%s)", name, row->value, r, got, e.msg);
	}
	assert_int_equal(chdir("/"), 0);
	struct config c;
	config_defaults(&c);
	assert_int_equal(config_set(&c, "qemu", "qemu", NULL), 0);
	assert_string_equal(c.qemu, "/qemu");
}

struct refused_row {
	const char *name;
	const char *value;
};

static const struct refused_row refused_rows[] = {
	{"JOB_MEMORY", ""},
	{"JOB_MEMORY", "0"},
	{"JOB_MEMORY", "-1"},
	{"JOB_MEMORY", "G"},
	{"JOB_MEMORY", "12K"},
	{"JOB_MEMORY", "1x"},
	{"JOB_MEMORY", "99999999999T"},
	{"JOB_MEMORY", "10M"},
	{"JOB_MEMORY", "255M"},
	{"JOB_DISK", "100M"},
	{"JOB_DISK", "1023"},
	{"JOB_CPUS", "0"},
	{"JOB_CPUS", "129"},
	{"JOB_CPUS", "1.5"},
	{"CAPACITY", "0"},
	{"CAPACITY", "1025"},
	{"CAPACITY", "abc"},
	{"CAPACITY", ""},
	{"CAPACITY", "-1"},
	{"JOB_PIDS", "63"},
	{"JOB_PIDS", "4194305"},
	{"JOB_TIMEOUT", ""},
	{"JOB_TIMEOUT", "90"},
	{"JOB_TIMEOUT", "-1s"},
	{"READY", "default"},
	{"READY", "later"},
	{"DISK_OVERCOMMIT", "0"},
	{"DISK_OVERCOMMIT", "101"},
	{"JOB_DISK_BANDWIDTH", "0M"},
	{"JOB_DISK_BANDWIDTH", "10K"},
	{"JOB_DISK_BANDWIDTH", ""},
	{"JOB_DISK_IOPS", "4294967296"},
	{"JOB_DISK_IOPS", "5M"},
	{"JOB_NET_BANDWIDTH", "-1"},
	{"JOB_FLOWS", "15"},
	{"JOB_FLOWS", "1048577"},
	{"UID_BASE", "10"},
	{"UID_BASE", "999"},
	{"UID_BASE", "4000000001"},
	{"NETWORK", "fd00::/64"},
	{"NETWORK", "10.0.0.0/31"},
	{"NETWORK", "10.0.0.1/16"},
	{"NETWORK", "10.0.0.0"},
	{"NETWORK", "10.0.0.0/"},
	{"NETWORK", "10.0.0.0/x"},
	{"NETWORK", "10.0.0/16"},
	{"NETWORK", "10.0.0.256/24"},
	{"NETWORK", "10.0.0.0/16 "},
	{"NETWORK", "255.255.255.255.255/16"},
	{"NETWORK", ""},
	{"NETWORK_MODE", "bridge"},
	{"NETWORK_MODE", ""},
	{"NETWORK_ALLOW", "10.1.2"},
	{"NETWORK_ALLOW", "10.1.2.3/16"},
	{"NETWORK_ALLOW", "10.1.0.0/16:80"},
	{"NETWORK_ALLOW", "10.0.0.0/33"},
	{"NETWORK_ALLOW", "10.1.2.3:0"},
	{"NETWORK_ALLOW", "10.1.2.3:65536"},
	{"NETWORK_ALLOW", "mirror.example:80"},
	{"NETWORK_ALLOW", "10.0.0.0/8, x"},
	{"NETWORK_ALLOW", "10.0.0.0/8;10.1.0.0/16"},
	{"STATE_DIR", "state"},
	{"STATE_DIR", "./state"},
	{"STATE_DIR", ""},
	{"STATE_DIR", "/var/\n"},
	{"LOCK_FILE", ""},
	{"ISOLATION", "docker"},
	{"ISOLATION", ""},
	{"ISOLATION", "vm "},
	{"IMAGE", ""},
	{"IMAGE", "-x"},
	{"IMAGE", "an image"},
	{"IMAGE", "debian\n"},
	{"IMAGE", "/images/\t"},
	{"JAILER_MODE", "1"},
	{"VMM", "crosvm"},
	{"VM_ACCEL", "hvf"},
	{"KERNEL", "/boot/\x7f"},
	{"GUEST_FORGE", "yes"},
	{"GUEST_FORGE", "true"},
	{"GUEST_FORGE", " 1"},
	{"GUEST_FORGE", "2"},
	{"GUEST_FORGE", ""},
	{"GUEST_FORGE_TARGET", "forge.example"},
	{"GUEST_FORGE_TARGET", ":3000"},
	{"GUEST_FORGE_TARGET", "forge.example:0"},
	{"GUEST_FORGE_TARGET", "a b:3000"},
	{"URL", "ftp://forge.example"},
	{"URL", "forge.example"},
	{"URL", "https://forge example"},
	{"DNS_PORT", "0"},
	{"DNS_PORT", "65536"},
	{"LOG", "xml"},
	{"LOG_LEVEL", "trace"},
};

static const struct config_item *item_named(const char *name)
{
	size_t n = 0;
	const struct config_item *items = config_items(&n);
	for (size_t i = 0; i < n; i++)
		if (strcmp(items[i].name, name) == 0)
			return &items[i];
	fail_msg("no item %s", name);
	return NULL;
}

/* Refused: with name, value and what is accepted in the sentence, and nothing changed. */
static void test_refused(void **)
{
	for (size_t i = 0; i < COUNT(refused_rows); i++) {
		const struct refused_row *row = &refused_rows[i];
		struct config c;
		struct config before;
		struct err e = ERR_INIT;
		char name[64];
		char sentence[512];
		full_name(row->name, name);
		(void)snprintf(sentence, sizeof(sentence), "%s: \"%s\" is not accepted: %s", name, row->value,
			       item_named(name)->accepted);
		config_defaults(&c);
		before = c;
		int r = config_set(&c, name, row->value, &e);
		if (r != -EINVAL || strcmp(e.msg, sentence) != 0)
			fail_msg("%s=\"%s\": %d (%s)", name, row->value, r, e.msg);
		assert_memory_equal(&c, &before, sizeof(c));
	}
}

static void test_sentences(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	config_defaults(&c);
	assert_int_equal(config_set(&c, "ERMITE_RUNNER_JOB_CPUS", "0", &e), -EINVAL);
	assert_string_equal(e.msg,
			    "ERMITE_RUNNER_JOB_CPUS: \"0\" is not accepted: a whole number from 1 to 128");
	assert_int_equal(config_set(&c, "job-cpus", "x", &e), -EINVAL);
	assert_string_equal(e.msg,
			    "ERMITE_RUNNER_JOB_CPUS: \"x\" is not accepted: a whole number from 1 to 128");
	static const char *const unknown[] = {"ERMITE_RUNNER_JOB_CPU", "job_cpus", "JOB_CPUS", "",
					      "JOB-CPUS"};
	for (size_t i = 0; i < COUNT(unknown); i++)
		assert_int_equal(config_set(&c, unknown[i], "1", &e), -ENOENT);
	assert_int_equal(config_set(&c, "ERMITE_RUNNER_NOTHING", "1", &e), -ENOENT);
	assert_string_equal(e.msg, "ERMITE_RUNNER_NOTHING is not a name of the configuration");
	assert_int_equal(config_set(&c, "job-cpus", "7", &e), 0);
	assert_int_equal(c.job_cpus, 7);
}

/* Longest path that fits, and one byte more; of a value far too long the sentence shows the beginning. */
static void test_long_values(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	char path[2000];
	memset(path, 'a', sizeof(path));
	path[0] = '/';
	path[CONFIG_PATH_MAX] = '\0';
	config_defaults(&c);
	assert_int_equal(config_set(&c, "kernel", path, &e), -EINVAL);
	path[CONFIG_PATH_MAX - 1] = '\0';
	assert_int_equal(config_set(&c, "kernel", path, &e), 0);
	assert_int_equal(strlen(c.kernel), CONFIG_PATH_MAX - 1);
	path[CONFIG_PATH_MAX - 1] = path[CONFIG_PATH_MAX] = 'a';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(config_set(&c, "state-dir", path, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "\" is not accepted: an absolute path"));
	assert_int_equal(config_set(&c, "image", path + 1, &e), -EINVAL);
	assert_int_equal(config_set(&c, "network", path, &e), -EINVAL);
	assert_int_equal(config_set(&c, "network-allow", path, &e), -EINVAL);
	assert_string_equal(c.state_dir, "/var/lib/ermite-runner");
}

/* The image is one item: what is set last holds, and the other form goes back to its default. */
static void test_image_set_twice(void **)
{
	struct config c;
	char path[CONFIG_PATH_MAX];
	config_defaults(&c);
	config_image_dir(&c, path);
	assert_string_equal(path, "/var/lib/ermite-runner/image");
	assert_int_equal(config_set(&c, "image", "registry.example/x:1", NULL), 0);
	config_image_dir(&c, path);
	assert_string_equal(path, "/var/lib/ermite-runner/image");
	assert_int_equal(config_set(&c, "image", "/images/u24", NULL), 0);
	config_image_dir(&c, path);
	assert_string_equal(path, "/images/u24");
	assert_string_equal(c.image_oci, "ermite-runner-debian-13:latest");
	assert_int_equal(config_set(&c, "image", "x", NULL), 0);
	assert_int_equal(config_set(&c, "state-dir", "/s", NULL), 0);
	config_image_dir(&c, path);
	assert_string_equal(path, "/s/image");
	memset(c.state_dir, 'a', sizeof(c.state_dir) - 1);
	config_image_dir(&c, path);
	assert_int_equal(strlen(path), CONFIG_PATH_MAX - 1);
}

static void test_check_network(void **)
{
	static const struct {
		const char *network;
		const char *capacity;
		int result;
	} rows[] = {
		{"10.0.0.0/30", "1", 0},         {"10.0.0.0/30", "2", -EINVAL}, {"10.0.0.0/29", "2", 0},
		{"10.0.0.0/29", "3", -EINVAL},   {"10.0.0.0/20", "1024", 0},    {"10.0.0.0/21", "512", 0},
		{"10.0.0.0/21", "513", -EINVAL}, {"0.0.0.0/0", "1024", 0},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct config c;
		struct err e = ERR_INIT;
		config_defaults(&c);
		assert_int_equal(config_set(&c, "network", rows[i].network, &e), 0);
		assert_int_equal(config_set(&c, "capacity", rows[i].capacity, &e), 0);
		assert_int_equal(config_check(&c, &e), rows[i].result);
	}
	struct config c;
	struct err e = ERR_INIT;
	config_defaults(&c);
	assert_int_equal(config_set(&c, "network", "10.0.0.0/30", &e), 0);
	assert_int_equal(config_set(&c, "capacity", "2", &e), 0);
	assert_int_equal(config_check(&c, &e), -EINVAL);
	assert_string_equal(e.msg,
			    "ERMITE_RUNNER_NETWORK: \"10.0.0.0/30\" is not accepted: each sandbox takes a "
			    "/30 of it, too few for a capacity of 2");
}

static void test_check_uids(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	config_defaults(&c);
	/* As far as the table lets both go. */
	c.uid_base = 4000000000;
	c.capacity = 1024;
	assert_int_equal(config_check(&c, &e), 0);
	/* Bytes from elsewhere may go further: 65536 ids below the base, and as many for each sandbox. */
	c.capacity = 3;
	c.uid_base = 4294967294u - 4 * 65536;
	assert_int_equal(config_check(&c, &e), 0);
	c.uid_base++;
	assert_int_equal(config_check(&c, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "ERMITE_RUNNER_UID_BASE"));
	c.capacity = UINT32_MAX;
	assert_int_equal(config_check(&c, &e), -EINVAL);
}

static void test_check_socket_paths(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	config_defaults(&c);
	const size_t longest = 106 - strlen("/sandboxes/er01234567/run/control.sock");
	memset(c.state_dir, 0, sizeof(c.state_dir));
	memset(c.state_dir, 'a', longest);
	c.state_dir[0] = '/';
	assert_int_equal(config_check(&c, &e), 0);
	c.state_dir[longest] = 'a';
	assert_int_equal(config_check(&c, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "at most 68 bytes leave room"));
}

static void read_good(struct config *c, const char *text)
{
	struct err e = ERR_INIT;
	config_defaults(c);
	if (config_read_text(c, "f", text, strlen(text), &e) != 0)
		fail_msg("%s", e.msg);
}

static void test_file(void **)
{
	struct config c;
	read_good(&c, "");
	read_good(&c, "\n \n# comment\n; comment\n\t# ERMITE_RUNNER_CAPACITY=7");
	assert_int_equal(c.capacity, 1);
	read_good(&c, "ERMITE_RUNNER_CAPACITY=7\n  ERMITE_RUNNER_JOB_CPUS= 3 \t\r\nERMITE_RUNNER_URL=");
	assert_int_equal(c.capacity, 7);
	assert_int_equal(c.job_cpus, 3);
	read_good(&c, "ERMITE_RUNNER_CAPACITY=7\nERMITE_RUNNER_CAPACITY=8\n");
	assert_int_equal(c.capacity, 8);
	static const struct {
		const char *text;
		const char *kernel;
	} rows[] = {
		{"ERMITE_RUNNER_KERNEL='/a b'\n", "/a b"},
		{"ERMITE_RUNNER_KERNEL=\"/a b\"  \n", "/a b"},
		{"ERMITE_RUNNER_KERNEL=  \"/a b \"", "/a b "},
		{"ERMITE_RUNNER_KERNEL=/a b  \n", "/a b"},
		{"ERMITE_RUNNER_KERNEL=/a\\ \\b\\\\\\ \n", "/a b\\ "},
		{"ERMITE_RUNNER_KERNEL='/a\\b\"c'", "/a\\b\"c"},
		{"ERMITE_RUNNER_KERNEL=\"/a\\\"b\\\\c\\$d\\`e\\nf'g\"", "/a\"b\\c$d`e\\nf'g"},
		{"ERMITE_RUNNER_KERNEL=/a#b\"c", "/a#b\"c"},
		{"ERMITE_RUNNER_KERNEL=''", ""},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		read_good(&c, rows[i].text);
		assert_string_equal(c.kernel, rows[i].kernel);
	}
}

static void test_file_errors(void **)
{
	static const struct {
		const char *text;
		const char *sentence;
	} rows[] = {
		{"\nERMITE_RUNNER_JOB_CPU=2\n",
		 "f:2: ERMITE_RUNNER_JOB_CPU is not a name of the configuration"},
		{"ERMITE_RUNNER_CAPACITY=7\n\nERMITE_RUNNER_JOB_CPUS=0\n",
		 "f:3: ERMITE_RUNNER_JOB_CPUS: \"0\" is not accepted: a whole number from 1 to 128"},
		{"job-cpus=2", "f:1: \"job-cpus=2\" is not NAME=value"},
		{"PATH=/bin", "f:1: PATH is not a name of the configuration"},
		{"CAPACITY", "f:1: \"CAPACITY\" is not NAME=value"},
		{"=1", "f:1: \"=1\" is not NAME=value"},
		{"ERMITE_RUNNER_CAPACITY =1", "f:1: \"ERMITE_RUNNER_CAPACITY =1\" is not NAME=value"},
		{"export ERMITE_RUNNER_CAPACITY=1",
		 "f:1: \"export ERMITE_RUNNER_CAPACITY=1\" is not NAME=value"},
		{"ERMITE_RUNNER_URL=\"x\ny\"", "f:1: \"ERMITE_RUNNER_URL=\"x\" is not NAME=value"},
		{"ERMITE_RUNNER_URL='x", "f:1: \"ERMITE_RUNNER_URL='x\" is not NAME=value"},
		{"ERMITE_RUNNER_URL='x' y", "f:1: \"ERMITE_RUNNER_URL='x' y\" is not NAME=value"},
		{"ERMITE_RUNNER_URL=x\\\ny", "f:1: \"ERMITE_RUNNER_URL=x\\\" is not NAME=value"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct config c;
		struct config before;
		struct err e = ERR_INIT;
		config_defaults(&c);
		before = c;
		assert_int_equal(config_read_text(&c, "f", rows[i].text, strlen(rows[i].text), &e), -EINVAL);
		assert_string_equal(e.msg, rows[i].sentence);
		assert_memory_equal(&c, &before, sizeof(c));
	}
	struct config c;
	struct err e = ERR_INIT;
	config_defaults(&c);
	static const char zero[] = "ERMITE_RUNNER_CAPACITY=2\0\n";
	assert_int_equal(config_read_text(&c, "f", zero, sizeof(zero) - 1, &e), -EINVAL);
	assert_string_equal(e.msg, "f:1: not a line of text");
}

/* The longest value, name and line that can be read, and what is longer. */
static void test_file_limits(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	char text[8192];
	config_defaults(&c);
	int n = snprintf(text, sizeof(text), "ERMITE_RUNNER_KERNEL=/%0*d", CONFIG_PATH_MAX - 2, 0);
	assert_int_equal(config_read_text(&c, "f", text, (size_t)n, &e), 0);
	assert_int_equal(strlen(c.kernel), CONFIG_PATH_MAX - 1);
	for (int width = CONFIG_PATH_MAX - 1; width < 8000; width += 499) {
		n = snprintf(text, sizeof(text), "ERMITE_RUNNER_KERNEL=/%0*d", width, 0);
		assert_int_equal(config_read_text(&c, "f", text, (size_t)n, &e), -EINVAL);
		n = snprintf(text, sizeof(text), "ERMITE_RUNNER_KERNEL='/%0*d'", width, 0);
		assert_int_equal(config_read_text(&c, "f", text, (size_t)n, &e), -EINVAL);
		n = snprintf(text, sizeof(text), "A%0*d=1", width, 0);
		assert_int_equal(config_read_text(&c, "f", text, (size_t)n, &e), -EINVAL);
	}
}

static void write_file(const char *path, const char *text, size_t repeat)
{
	scoped_fd int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	assert_true(fd >= 0);
	for (size_t i = 0; i < repeat; i++)
		assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void test_load(void **)
{
	struct config c;
	struct err e = ERR_INIT;
	char path[] = "/tmp/test-config-XXXXXX";
	scoped_fd int fd = mkostemp(path, O_CLOEXEC);
	assert_true(fd >= 0);
	/* Kept apart from the array, whose strings are not constant by its type. */
	char capacity[] = "ERMITE_RUNNER_CAPACITY=5";
	char other[] = "PATH=/bin";
	char unknown[] = "ERMITE_RUNNER_NOT_OURS=x";
	char no_value[] = "ERMITE_RUNNER_JOB_CPUS";
	char long_name[200] = "ERMITE_RUNNER_";
	memset(long_name + 14, 'X', 150);
	memcpy(long_name + 164, "=1", 3);
	char *const environment[] = {other, capacity, unknown, no_value, long_name, NULL};
	write_file(path, "ERMITE_RUNNER_CAPACITY=7\nERMITE_RUNNER_JOB_CPUS=4\n", 1);
	config_defaults(&c);
	assert_int_equal(config_load(&c, path, environment, &e), 0);
	assert_int_equal(e.code, 0);
	assert_int_equal(c.capacity, 5);
	assert_int_equal(c.job_cpus, 4);
	config_defaults(&c);
	assert_int_equal(config_load(&c, "/nonexistent/runner.env", environment, &e), 0);
	assert_int_equal(c.capacity, 5);
	assert_int_equal(e.code, 0);
	char bad[] = "ERMITE_RUNNER_CAPACITY=abc";
	char *const bad_environment[] = {bad, NULL};
	assert_int_equal(config_load(&c, path, bad_environment, &e), -EINVAL);
	assert_string_equal(e.msg,
			    "ERMITE_RUNNER_CAPACITY: \"abc\" is not accepted: a whole number from 1 to 1024");
	write_file(path, "# a file that nobody wrote by hand\n", 3000);
	assert_int_equal(config_load(&c, path, environment, &e), -EFBIG);
	assert_int_equal(config_load(&c, "/tmp", environment, &e), -EISDIR);
	assert_int_equal(unlink(path), 0);
}

static void test_names(void **)
{
	assert_string_equal(isolation_name(ISOLATION_AUTO), "auto");
	assert_string_equal(isolation_name(ISOLATION_VM), "vm");
	assert_string_equal(isolation_name(ISOLATION_CONTAINER), "container");
	assert_string_equal(isolation_name(ISOLATION_SYSTEM), "system");
	assert_string_equal(ready_name(READY_NOW), "now");
	assert_string_equal(ready_name(READY_SYSTEM), "system");
	assert_string_equal(network_mode_name(NETWORK_NAT), "nat");
	assert_string_equal(network_mode_name(NETWORK_NONE), "none");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_sentences),
		cmocka_unit_test(test_long_values),
		cmocka_unit_test(test_image_set_twice),
		cmocka_unit_test(test_check_network),
		cmocka_unit_test(test_check_uids),
		cmocka_unit_test(test_check_socket_paths),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_file_errors),
		cmocka_unit_test(test_file_limits),
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
