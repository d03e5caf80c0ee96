/*
 * The configuration: every ERMITE_RUNNER_* name with its default, its range and its error, as one table.
 *
 * `struct config` is plain data without pointers: it is copied, compared and handed to the keeper as bytes. The table
 * in config.c is the only place that knows a name; options, help, the manual and /etc/ermite-runner/runner.env are
 * read by it.
 */
#ifndef ERMITE_SPEC_CONFIG_H
#define ERMITE_SPEC_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define CONFIG_FILE     "/etc/ermite-runner/runner.env"
#define CONFIG_PREFIX   "ERMITE_RUNNER_"
#define CONFIG_PATH_MAX 512 /* bytes of a path with its end */

/* The image of containers by default: fed to Docker from <state>/image. */
#define CONFIG_IMAGE_OCI "ermite-runner-debian-13:latest"

enum isolation { ISOLATION_AUTO, ISOLATION_VM, ISOLATION_CONTAINER, ISOLATION_SYSTEM };
enum ready { READY_DEFAULT, READY_NOW, READY_SYSTEM };
enum network_mode { NETWORK_NAT, NETWORK_NONE };
enum vmm { VMM_DEFAULT, VMM_FIRECRACKER, VMM_QEMU };
enum vm_accel { VM_ACCEL_KVM, VM_ACCEL_TCG };
enum log_choice { LOG_CHOICE_DEFAULT, LOG_CHOICE_TEXT, LOG_CHOICE_JSON };

struct config {
	enum isolation isolation;
	enum ready ready;
	enum network_mode network_mode;
	enum vmm vmm;
	enum vm_accel vm_accel;
	enum log_choice log;
	int log_level; /* enum log_level of base/log.h */
	uint32_t capacity;
	uint32_t job_cpus;
	uint32_t job_pids;
	uint32_t job_flows;
	uint32_t disk_overcommit;
	uint32_t uid_base;
	uint32_t network_address; /* host byte order */
	uint32_t network_prefix;  /* bits, 0..30 */
	uint32_t dns_port;
	uint64_t job_memory_mib;
	uint64_t job_disk_mib;
	uint64_t job_timeout_ms;     /* 0: none */
	uint64_t job_disk_bandwidth; /* bytes per second, 0: off */
	uint64_t job_disk_iops;      /* operations per second, 0: off */
	uint64_t job_net_bandwidth;  /* bytes per second, 0: off */
	bool jailer_on;
	bool guest_forge;
	bool insecure_http;
	bool deny_privileged;
	char state_dir[CONFIG_PATH_MAX];
	char image_dir[CONFIG_PATH_MAX]; /* empty: <state>/image */
	char image_oci[CONFIG_PATH_MAX];
	char network_allow[CONFIG_PATH_MAX];
	char firecracker[CONFIG_PATH_MAX];
	char jailer[CONFIG_PATH_MAX];
	char qemu[CONFIG_PATH_MAX];
	char kernel[CONFIG_PATH_MAX];
	char externals[CONFIG_PATH_MAX];
	char url[CONFIG_PATH_MAX];
	char guest_forge_target[CONFIG_PATH_MAX];
	char lock_file[CONFIG_PATH_MAX];
};

/* One row of the table. The second part is for config.c alone. */
struct config_item {
	const char *name;         /* environment variable, ERMITE_RUNNER_… */
	const char *option;       /* long option without the dashes, "job-cpus" */
	const char *default_text; /* what the manual and help say, "" for none */
	const char *accepted;     /* what is accepted, in words, for errors and the manual */
	const char *help;         /* one sentence */

	/* Reads a value into the field; returns 0, or a negative errno and leaves the field as it is. */
	int (*parse)(const struct config_item *item, const char *value, void *field);
	size_t offset;            /* of the field in struct config */
	const char *initial;      /* the default as a value, NULL where it is the field's zero */
	uint64_t min, max;        /* range of a number, or of an index into words */
	const char *const *words; /* the words to choose from */
};

/* The rows in the order of the specification; *ret_n is their number. Constant, never NULL. */
const struct config_item *config_items(size_t *ret_n);

/* Fills every default. */
void config_defaults(struct config *c);

/* Sets one item by its environment name or its option name. Returns 0; -ENOENT for an unknown name; -EINVAL for a
 * value that is not accepted, with a sentence naming the item, the value and what is accepted. c is unchanged on
 * failure. */
[[nodiscard]] int config_set(struct config *c, const char *name, const char *value, struct err *e);

/* Reads text in the form of an environment file: NAME=value lines, blank lines and comments behind # or ;, a value
 * in single or double quotes and backslashes as systemd reads them, except that nothing goes on in the next line.
 * file is for messages. An unknown name, and any other line, is an error with its line number. Returns 0 or a
 * negative errno; c is unchanged on failure. */
[[nodiscard]] int config_read_text(struct config *c, const char *file, const char *text, size_t n,
				   struct err *e);

/* Reads the file at path (missing: fine), then every ERMITE_RUNNER_* variable of environ that the table knows; an
 * unknown one in the environment is ignored. Returns 0 or a negative errno. */
[[nodiscard]] int config_load(struct config *c, const char *path, char *const environment[], struct err *e);

/* Checks what depends on more than one item: uid range against capacity, network against capacity, length of the
 * socket paths below the state directory. Returns 0 or -EINVAL with a sentence. */
[[nodiscard]] int config_check(const struct config *c, struct err *e);

/* Writes <state>/image into path: the image directory unless another one is named, and what Docker is fed from. */
void config_default_image_dir(const struct config *c, char path[static CONFIG_PATH_MAX]);

/* Writes the image directory in force into path. */
void config_image_dir(const struct config *c, char path[static CONFIG_PATH_MAX]);

/* Names for messages and JSON: "vm", "container", "system", "auto"; "now", "system"; "nat", "none". */
const char *isolation_name(enum isolation i);
const char *ready_name(enum ready r);
const char *network_mode_name(enum network_mode m);

#endif
