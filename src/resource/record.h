/*
 * The record of a sandbox: what was made for it, or is about to be. Whoever finds it can take the sandbox down.
 *
 * A sandbox's directory is <state>/sandboxes/<id>; its keeper holds a lock (flock) on it for as long as it lives. The
 * file "record" in it is text, a fact a line, only ever appended to. Everything that outlives the keeper is named in
 * the record, synced, before it is made; a torn last line is what a crash leaves and counts for nothing.
 *
 * Slots belong to records: one is free when no directory names it. Allocating, and looking for records without a
 * keeper, happens under a lock on <state>/sandboxes.
 */
#ifndef ERMITE_RESOURCE_RECORD_H
#define ERMITE_RESOURCE_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "spec/config.h"
#include "spec/docker.h"
#include "spec/id.h"
#include "spec/job.h"

#define RECORD_RESOURCES_MAX 16
#define RECORD_PROCESSES_MAX 8
#define RECORD_NAME_MAX      24
#define RECORD_LEFT_MAX      256

struct record_process {
	char name[RECORD_NAME_MAX];
	pid_t pid;
	uint64_t start_time;
};

/* What a record says. Plain data. */
struct record_info {
	char id[ID_SIZE];
	char boot_id[37];
	char job_id[JOB_ID_MAX];
	char state[RECORD_NAME_MAX]; /* the keeper's last state, "creating" … */
	char left[RECORD_LEFT_MAX];  /* why it could not be taken down when that was last tried, or empty */
	enum isolation isolation;
	char docker[DOCKER_SOCKET_SIZE]; /* the daemon whose container it is; empty: none */
	uint32_t slot;
	uint64_t created_s; /* wall clock */
	struct record_process keeper;
	struct record_process processes[RECORD_PROCESSES_MAX];
	unsigned n_processes;
	char resources[RECORD_RESOURCES_MAX][RECORD_NAME_MAX]; /* in the order of making */
	unsigned n_resources;
	bool held;     /* a keeper (or whoever takes it down) holds the lock */
	bool readable; /* false: torn or foreign; then only id, held and has_slot count */
	bool has_slot; /* the slot is known, as it can be of a torn one */
};

/* A record whose lock this process holds. */
struct record;

/* Opens <state>/sandboxes, made with its parents when missing (mode 0700 for both). Returns 0 and a descriptor;
 * -EPERM when the state directory or one above it does not belong to root or can be written by others, -ENOTSUP when
 * its file system is not this host's own. */
[[nodiscard]] int record_open_store(const char *state_dir, int *ret_fd, struct err *e);

/* Makes a new record with a fresh id, the lowest free slot below the capacity and the names of the resources that
 * will be made, NULL-ended; everything is synced. Returns 0 and the record (caller's), or -ENOSPC "no free slot". */
[[nodiscard]] int record_create(int store_fd, const struct sandbox_spec *spec, const char *const *resources,
				struct record **ret, struct err *e);

/* Takes over every record whose lock is free, one after the other: calls fn with it, which owns it from then on.
 * Returns 0 or a negative errno. */
typedef void record_orphan_fn(void *data, struct record *r);
[[nodiscard]] int record_for_orphans(int store_fd, record_orphan_fn *fn, void *data, struct err *e);

/* Reads all records in the order of their slots. Returns 0 and *ret_n entries in *ret (caller frees). */
[[nodiscard]] int record_list(int store_fd, struct record_info **ret, size_t *ret_n, struct err *e);

/* Calls fn for every directory of the store that has a valid id; dir_fd is borrowed. Ends with the first negative
 * errno that fn returns. Returns 0 or a negative errno. */
typedef int record_each_fn(void *data, int dir_fd, const char *id, struct err *e);
[[nodiscard]] int record_each(int store_fd, record_each_fn *fn, void *data, struct err *e);

/* Appends that a process is part of the sandbox, in place of an earlier one of that name. Not synced: processes do not
 * outlive the machine. */
[[nodiscard]] int record_add_process(struct record *r, const char *name, pid_t pid, struct err *e);

/* Appends the state. Not synced, for display only. */
void record_set_state(struct record *r, const char *state);

/* Appends why the sandbox could not be taken down, for whoever lists it. Not synced. */
void record_set_left(struct record *r, const char *reason);

/* What the record says; owned by it. */
const struct record_info *record_info(const struct record *r);

/* The directory of the sandbox; owned by the record. */
int record_dir(const struct record *r);

/* Removes the directory with everything in it and frees the record. */
[[nodiscard]] int record_remove(struct record **r, struct err *e);

/* Frees the record and its lock; the directory stays. NULL is fine. */
void record_free(struct record *r);

#endif
