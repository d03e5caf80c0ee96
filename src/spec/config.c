#include "spec/config.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/num.h"
#include "spec/id.h"
#include "spec/network.h"

/* The longest path of a socket below the state directory, and how long the kernel lets one be. */
#define LONGEST_SOCKET "/sandboxes/er01234567/run/control.sock"
enum { SOCKET_PATH_MAX = 106 };

/* A host's ids end before 4294967294; (uint32_t)-1 is no id. */
#define UID_END UINT64_C(4294967294)

enum { SUBNET_BITS = 30, BYTES_PER_MIB = 1024 * 1024 };

#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

static const char *const isolation_words[] = {
	[ISOLATION_AUTO] = "auto",
	[ISOLATION_VM] = "vm",
	[ISOLATION_CONTAINER] = "container",
	[ISOLATION_SYSTEM] = "system",
};
static const char *const ready_words[] = {
	[READY_DEFAULT] = "default",
	[READY_NOW] = "now",
	[READY_SYSTEM] = "system",
};
static const char *const network_mode_words[] = {[NETWORK_NAT] = "nat", [NETWORK_NONE] = "none"};
static const char *const vmm_words[] = {[VMM_FIRECRACKER] = "firecracker", [VMM_QEMU] = "qemu"};
static const char *const vm_accel_words[] = {[VM_ACCEL_KVM] = "kvm", [VM_ACCEL_TCG] = "tcg"};
static const char *const log_words[] = {[LOG_CHOICE_TEXT] = "text", [LOG_CHOICE_JSON] = "json"};
static const char *const log_level_words[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARNING] = "warning",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};
static const char *const switch_words[] = {[false] = "off", [true] = "on"};

/* Finds the index of a word, in any case, among those from min to max. */
static int find_word(const struct config_item *item, const char *value, unsigned *ret)
{
	for (unsigned i = (unsigned)item->min; i <= item->max; i++) {
		if (strcasecmp(item->words[i], value) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

/* One of several words, kept as an enum: those of this table all have the size of unsigned. */
static int parse_word(const struct config_item *item, const char *value, void *field)
{
	unsigned found = 0;
	int r = find_word(item, value, &found);
	if (r == 0)
		memcpy(field, &found, sizeof(found));
	return r;
}

/* "off" or "on", kept as a bool. */
static int parse_switch(const struct config_item *item, const char *value, void *field)
{
	unsigned found = 0;
	int r = find_word(item, value, &found);
	if (r == 0)
		*(bool *)field = found != 0;
	return r;
}

/* Exactly "0" or "1". */
static int parse_bool(const struct config_item *, const char *value, void *field)
{
	if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
		return -EINVAL;
	*(bool *)field = value[0] == '1';
	return 0;
}

static int parse_u32(const struct config_item *item, const char *value, void *field)
{
	uint64_t number = 0;
	int r = num_parse_blank(value, item->min, item->max, &number);
	if (r == 0)
		*(uint32_t *)field = (uint32_t)number;
	return r;
}

static int parse_u64(const struct config_item *item, const char *value, void *field)
{
	return num_parse_blank(value, item->min, item->max, field);
}

static int parse_size(const struct config_item *item, const char *value, void *field)
{
	uint64_t mib = 0;
	int r = num_parse_size_mib(value, &mib);
	if (r < 0)
		return r;
	if (mib < item->min)
		return -ERANGE;
	*(uint64_t *)field = mib;
	return 0;
}

/* "0", or a size, kept as bytes per second. */
static int parse_bandwidth(const struct config_item *, const char *value, void *field)
{
	uint64_t mib = 0;
	int r = num_parse_blank(value, 0, 0, &mib);
	if (r < 0)
		r = num_parse_size_mib(value, &mib);
	if (r == 0)
		*(uint64_t *)field = mib * BYTES_PER_MIB;
	return r;
}

static int parse_duration(const struct config_item *, const char *value, void *field)
{
	return num_parse_duration_ms(value, field);
}

/* Keeps a text that a field can hold and that has no control characters in it. */
static int store_text(char field[static CONFIG_PATH_MAX], const char *value)
{
	size_t n = strlen(value);
	if (n >= CONFIG_PATH_MAX)
		return -ENAMETOOLONG;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)value[i] < 0x20 || value[i] == 0x7f)
			return -EINVAL;
	memcpy(field, value, n + 1);
	return 0;
}

static int parse_absolute_path(const struct config_item *, const char *value, void *field)
{
	return value[0] == '/' ? store_text(field, value) : -EINVAL;
}

/* A path; the field holds it as an absolute one, since the keeper works in another directory. Nothing is accepted
 * where nothing is the default. */
static int parse_path(const struct config_item *item, const char *value, void *field)
{
	if (value[0] == '\0' && item->initial)
		return -EINVAL;
	if (value[0] == '/' || value[0] == '\0')
		return store_text(field, value);
	char directory[CONFIG_PATH_MAX];
	char path[2 * CONFIG_PATH_MAX];
	if (!getcwd(directory, sizeof(directory)))
		return -errno;
	int n = snprintf(path, sizeof(path), "%s/%s", strcmp(directory, "/") == 0 ? "" : directory, value);
	return n < 0 || (size_t)n >= sizeof(path) ? -ENAMETOOLONG : store_text(field, path);
}

/* An image directory or an OCI reference. Both stand in one item, so either takes the other back to its default. */
static int parse_image(const struct config_item *item, const char *value, void *field)
{
	struct config *c = field;
	static const char *const beginnings[] = {"/", "./", "../"};
	for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
		if (strncmp(value, beginnings[i], strlen(beginnings[i])) != 0)
			continue;
		int r = parse_path(item, value, c->image_dir);
		return r < 0 ? r : store_text(c->image_oci, CONFIG_IMAGE_OCI);
	}
	if (!value[0] || !strchr(ALNUM, value[0]) || value[strspn(value, ALNUM "._-/:@")] != '\0')
		return -EINVAL;
	int r = store_text(c->image_oci, value);
	if (r == 0)
		c->image_dir[0] = '\0';
	return r;
}

/* Reads "a.b.c.d" from the first n bytes of text, in host byte order. */
static int parse_address(const char *text, size_t n, uint32_t *ret)
{
	char copy[INET_ADDRSTRLEN];
	struct in_addr address = {0};
	if (n >= sizeof(copy))
		return -EINVAL;
	memcpy(copy, text, n);
	copy[n] = '\0';
	if (inet_pton(AF_INET, copy, &address) != 1)
		return -EINVAL;
	*ret = ntohl(address.s_addr);
	return 0;
}

/* Reads "a.b.c.d/p" with no bit set behind the prefix. */
static int parse_cidr(const char *text, uint64_t max_prefix, uint32_t *ret_address, uint32_t *ret_prefix)
{
	uint32_t address = 0;
	uint64_t prefix = 0;
	size_t n = strcspn(text, "/");
	if (text[n] != '/' || parse_address(text, n, &address) < 0 ||
	    num_parse(text + n + 1, 0, max_prefix, &prefix) < 0)
		return -EINVAL;
	if (address & (uint32_t)(UINT64_C(0xffffffff) >> prefix))
		return -EINVAL;
	*ret_address = address;
	*ret_prefix = (uint32_t)prefix;
	return 0;
}

static int parse_network(const struct config_item *item, const char *value, void *field)
{
	struct config *c = field;
	return parse_cidr(value, item->max, &c->network_address, &c->network_prefix);
}

static int parse_allow(const struct config_item *, const char *value, void *field)
{
	struct network_allow allow = {0};
	int r = network_allow_parse(value, &allow, NULL);
	return r < 0 ? r : store_text(field, value);
}

static int parse_url(const struct config_item *, const char *value, void *field)
{
	bool is_url = strncmp(value, "http://", 7) == 0 || strncmp(value, "https://", 8) == 0;
	if (value[0] && (!is_url || strpbrk(value, " \t")))
		return -EINVAL;
	return store_text(field, value);
}

static int parse_host_port(const struct config_item *, const char *value, void *field)
{
	uint64_t port = 0;
	size_t n = strspn(value, ALNUM "._-");
	if (value[0] && (n == 0 || value[n] != ':' || num_parse(value + n + 1, 1, 65535, &port) < 0))
		return -EINVAL;
	return store_text(field, value);
}

/* Parts of a row. A default that is a value stands once, for the reader and for config_defaults(). A row without
 * FIELD is about several fields: its parser gets the whole struct. */
#define NAMES(env, opt)     .name = CONFIG_PREFIX env, .option = (opt)
#define FIELD(field)        .offset = offsetof(struct config, field)
#define DEFAULT(text)       .default_text = (text), .initial = (text)
#define NUMBERS(lo, hi)     .min = (lo), .max = (hi), .accepted = "a whole number from " #lo " to " #hi
#define WORDS(list, lo, hi) .words = (list), .min = (lo), .max = (hi)

static const struct config_item items[] = {
	{NAMES("ISOLATION", "isolation"), FIELD(isolation), .parse = parse_word, DEFAULT("auto"),
	 WORDS(isolation_words, ISOLATION_AUTO, ISOLATION_SYSTEM),
	 .accepted = "auto, vm, container or system",
	 .help = "The kind of sandbox; auto takes the strongest that this host can give."},
	{NAMES("STATE_DIR", "state-dir"), FIELD(state_dir), .parse = parse_absolute_path,
	 DEFAULT("/var/lib/ermite-runner"), .accepted = "an absolute path",
	 .help = "The directory of images, records and scratch files."},
	{NAMES("CAPACITY", "capacity"), FIELD(capacity), .parse = parse_u32, DEFAULT("1"), NUMBERS(1, 1024),
	 .help = "How many sandboxes may live at once."},
	{NAMES("IMAGE", "image"), .parse = parse_image, .initial = CONFIG_IMAGE_OCI,
	 .default_text = "<state>/image, or " CONFIG_IMAGE_OCI " for a container",
	 .accepted = "an image directory (begins with /, ./ or ../) or an OCI reference",
	 .help = "The image that sandboxes are made from."},
	{NAMES("JOB_CPUS", "job-cpus"), FIELD(job_cpus), .parse = parse_u32, DEFAULT("2"), NUMBERS(1, 128),
	 .help = "CPUs of a sandbox."},
	{NAMES("JOB_MEMORY", "job-memory"), FIELD(job_memory_mib), .parse = parse_size, DEFAULT("4G"),
	 .min = 256, .accepted = "a size of at least 256M",
	 .help = "Memory of a sandbox; no swap comes on top."},
	{NAMES("JOB_DISK", "job-disk"), FIELD(job_disk_mib), .parse = parse_size, DEFAULT("64G"), .min = 1024,
	 .accepted = "a size of at least 1G", .help = "Disk space of a sandbox."},
	{NAMES("JOB_PIDS", "job-pids"), FIELD(job_pids), .parse = parse_u32, DEFAULT("8192"),
	 NUMBERS(64, 4194304), .help = "Processes and threads of a sandbox."},
	{NAMES("JOB_TIMEOUT", "job-timeout"), FIELD(job_timeout_ms), .parse = parse_duration, DEFAULT("6h"),
	 .accepted = "a duration such as 90s, 30m, 6h or 2d, or 0 for none",
	 .help = "How long a job may run."},
	{NAMES("READY", "ready"), FIELD(ready), .parse = parse_word,
	 WORDS(ready_words, READY_NOW, READY_SYSTEM),
	 .default_text = "system with an init in the image or Docker in the sandbox, else now",
	 .accepted = "now or system",
	 .help = "When the job starts: with the executor connected, or with the system inside up."},
	{NAMES("DISK_OVERCOMMIT", "disk-overcommit"), FIELD(disk_overcommit), .parse = parse_u32,
	 DEFAULT("1"), NUMBERS(1, 100),
	 .help = "How far the disk space promised to sandboxes may exceed the free space."},
	{NAMES("JOB_DISK_BANDWIDTH", "job-disk-bandwidth"), FIELD(job_disk_bandwidth),
	 .parse = parse_bandwidth, DEFAULT("0"), .accepted = "bytes per second as a size, or 0 for no limit",
	 .help = "Disk bandwidth of a sandbox."},
	{NAMES("JOB_DISK_IOPS", "job-disk-iops"), FIELD(job_disk_iops), .parse = parse_u64, DEFAULT("0"),
	 NUMBERS(0, 4294967295), .help = "Disk operations per second of a sandbox; 0 for no limit."},
	{NAMES("JOB_NET_BANDWIDTH", "job-net-bandwidth"), FIELD(job_net_bandwidth), .parse = parse_bandwidth,
	 DEFAULT("0"), .accepted = "bytes per second as a size, or 0 for no limit",
	 .help = "Network bandwidth of a sandbox, in each direction."},
	{NAMES("JOB_FLOWS", "job-flows"), FIELD(job_flows), .parse = parse_u32, DEFAULT("4096"),
	 NUMBERS(16, 1048576), .help = "Tracked network flows of a sandbox."},
	{NAMES("UID_BASE", "uid-base"), FIELD(uid_base), .parse = parse_u32, DEFAULT("900000"),
	 NUMBERS(1000, 4000000000), .help = "First host id of the range that belongs to sandboxes."},
	{NAMES("NETWORK", "network"), .parse = parse_network, DEFAULT("10.200.0.0/16"), .max = SUBNET_BITS,
	 .accepted = "an IPv4 prefix of at most /30 with no host bits set, such as 10.200.0.0/16",
	 .help = "The network that sandboxes get their /30 from."},
	{NAMES("NETWORK_MODE", "network-mode"), FIELD(network_mode), .parse = parse_word, DEFAULT("nat"),
	 WORDS(network_mode_words, NETWORK_NAT, NETWORK_NONE), .accepted = "nat or none",
	 .help = "The way out of a sandbox; none leaves only the loopback."},
	{NAMES("NETWORK_ALLOW", "network-allow"), FIELD(network_allow), .parse = parse_allow,
	 .default_text = "",
	 .accepted =
		 "at most 32 IPv4 addresses, address:port or prefixes, with commas or blanks between them",
	 .help = "Exceptions to the denied address ranges."},
	{NAMES("FIRECRACKER", "firecracker"), FIELD(firecracker), .parse = parse_path,
	 .default_text = "from PATH", .accepted = "a path", .help = "The firecracker program."},
	{NAMES("JAILER", "jailer"), FIELD(jailer), .parse = parse_path, .default_text = "from PATH",
	 .accepted = "a path", .help = "Firecracker's jailer program."},
	{NAMES("QEMU", "qemu"), FIELD(qemu), .parse = parse_path, .default_text = "from PATH",
	 .accepted = "a path", .help = "The qemu-system program."},
	{NAMES("JAILER_MODE", "jailer-mode"), FIELD(jailer_on), .parse = parse_switch, DEFAULT("on"),
	 WORDS(switch_words, 0, 1), .accepted = "on or off",
	 .help = "Whether Firecracker runs under its jailer."},
	{NAMES("VMM", "vmm"), FIELD(vmm), .parse = parse_word, WORDS(vmm_words, VMM_FIRECRACKER, VMM_QEMU),
	 .default_text = "the first found of firecracker and qemu", .accepted = "firecracker or qemu",
	 .help = "The program that runs virtual machines."},
	{NAMES("VM_ACCEL", "vm-accel"), FIELD(vm_accel), .parse = parse_word, DEFAULT("kvm"),
	 WORDS(vm_accel_words, VM_ACCEL_KVM, VM_ACCEL_TCG), .accepted = "kvm or tcg",
	 .help = "How virtual machines run; tcg is slow and is never chosen by itself."},
	{NAMES("KERNEL", "kernel"), FIELD(kernel), .parse = parse_path,
	 .default_text = "<image>/vmlinux (x86-64) or <image>/Image (arm64)", .accepted = "a path",
	 .help = "The kernel of virtual machines."},
	{NAMES("EXTERNALS", "externals"), FIELD(externals), .parse = parse_path, .default_text = "",
	 .accepted = "the path of a directory", .help = "A directory attached read-only at /opt/externals."},
	{NAMES("GUEST_FORGE", "guest-forge"), FIELD(guest_forge), .parse = parse_bool, DEFAULT("0"),
	 .accepted = "0 or 1", .help = "Whether sandboxes may reach the forge."},
	{NAMES("GUEST_FORGE_TARGET", "guest-forge-target"), FIELD(guest_forge_target),
	 .parse = parse_host_port, .default_text = "", .accepted = "host:port",
	 .help = "Where connections of sandboxes to the forge are relayed to."},
	{NAMES("URL", "url"), FIELD(url), .parse = parse_url, .default_text = "",
	 .accepted = "an http:// or https:// URL", .help = "The forge's URL."},
	{NAMES("INSECURE_HTTP", "insecure-http"), FIELD(insecure_http), .parse = parse_bool, DEFAULT("0"),
	 .accepted = "0 or 1", .help = "Whether the forge's URL may be an http:// one."},
	{NAMES("DENY_PRIVILEGED", "deny-privileged"), FIELD(deny_privileged), .parse = parse_bool,
	 DEFAULT("0"), .accepted = "0 or 1", .help = "Refuse to run jobs in privileged containers."},
	{NAMES("LOCK_FILE", "lock-file"), FIELD(lock_file), .parse = parse_path,
	 DEFAULT("/run/ermite-runner.lock"), .accepted = "a path",
	 .help = "The lock of the host's one daemon."},
	{NAMES("DNS_PORT", "dns-port"), FIELD(dns_port), .parse = parse_u32, DEFAULT("53"), NUMBERS(1, 65535),
	 .help = "The DNS forwarder's port, other than 53 for tests."},
	{NAMES("LOG", "log"), FIELD(log), .parse = parse_word,
	 WORDS(log_words, LOG_CHOICE_TEXT, LOG_CHOICE_JSON), .default_text = "text on a terminal, else json",
	 .accepted = "text or json", .help = "The form of log lines."},
	{NAMES("LOG_LEVEL", "log-level"), FIELD(log_level), .parse = parse_word, DEFAULT("info"),
	 WORDS(log_level_words, LOG_LEVEL_ERROR, LOG_LEVEL_DEBUG),
	 .accepted = "error, warning, info or debug", .help = "The least important lines that are logged."},
};

enum { N_ITEMS = sizeof(items) / sizeof(items[0]) };

const struct config_item *config_items(size_t *ret_n)
{
	*ret_n = N_ITEMS;
	return items;
}

static const struct config_item *find_item(const char *name)
{
	for (size_t i = 0; i < N_ITEMS; i++)
		if (strcmp(items[i].name, name) == 0 || strcmp(items[i].option, name) == 0)
			return &items[i];
	return NULL;
}

static int parse_item(struct config *c, const struct config_item *item, const char *value)
{
	return item->parse(item, value, (char *)c + item->offset);
}

void config_defaults(struct config *c)
{
	/* Also the padding: a configuration is compared as bytes. */
	memset(c, 0, sizeof(*c));
	for (size_t i = 0; i < N_ITEMS; i++) {
		int r = items[i].initial ? parse_item(c, &items[i], items[i].initial) : 0;
		assert(r == 0);
		(void)r;
	}
}

int config_set(struct config *c, const char *name, const char *value, struct err *e)
{
	const struct config_item *item = find_item(name);
	if (!item)
		return err_set(e, -ENOENT, "%s is not a name of the configuration", name);
	if (parse_item(c, item, value) < 0)
		return err_set(e, -EINVAL, "%s: \"%.100s\" is not accepted: %s", item->name, value,
			       item->accepted);
	return 0;
}

int config_check(const struct config *c, struct err *e)
{
	static const char refused[] = "is not accepted:";
	uint64_t end = (uint64_t)c->uid_base + UINT64_C(65536) * ((uint64_t)c->capacity + 1);
	if (end > UID_END)
		return err_set(e, -EINVAL,
			       "%sUID_BASE: \"%u\" %s a capacity of %u needs ids up to %llu, too many",
			       CONFIG_PREFIX, c->uid_base, refused, c->capacity, (unsigned long long)end - 1);
	/* Each sandbox takes a /30. */
	const uint32_t a = c->network_address;
	if (UINT64_C(1) << (SUBNET_BITS - c->network_prefix) < c->capacity)
		return err_set(
			e, -EINVAL,
			"%sNETWORK: \"%u.%u.%u.%u/%u\" %s each sandbox takes a /30 of it, too few for a "
			"capacity of %u",
			CONFIG_PREFIX, a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255, c->network_prefix,
			refused, c->capacity);
	const size_t most = SOCKET_PATH_MAX - (sizeof(LONGEST_SOCKET) - 1);
	if (strlen(c->state_dir) > most)
		return err_set(
			e, -EINVAL,
			"%sSTATE_DIR: \"%.100s\" %s at most %zu bytes leave room for the sockets below it",
			CONFIG_PREFIX, c->state_dir, refused, most);
	return 0;
}

void config_default_image_dir(const struct config *c, char path[static CONFIG_PATH_MAX])
{
	static const char image[] = "/image";
	/* config_check() keeps the state directory far shorter than this. */
	size_t n = strnlen(c->state_dir, CONFIG_PATH_MAX - sizeof(image));
	memcpy(path, c->state_dir, n);
	memcpy(path + n, image, sizeof(image));
}

void config_image_dir(const struct config *c, char path[static CONFIG_PATH_MAX])
{
	if (c->image_dir[0])
		memcpy(path, c->image_dir, CONFIG_PATH_MAX);
	else
		config_default_image_dir(c, path);
}

const char *isolation_name(enum isolation i)
{
	return isolation_words[i];
}

const char *ready_name(enum ready r)
{
	return ready_words[r];
}

const char *network_mode_name(enum network_mode m)
{
	return network_mode_words[m];
}
