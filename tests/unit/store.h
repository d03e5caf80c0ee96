/*
 * For tests that need a state directory with a store of sandboxes, and a specification of a small sandbox in it.
 */
#ifndef ERMITE_TESTS_STORE_H
#define ERMITE_TESTS_STORE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/scope.h"
#include "resource/record.h"
#include "resource/resource.h"

/* The directory of the test; made by store_make(), on a disk and not in memory. */
static char state_dir[] = "/var/lib/ermite-test-XXXXXX";
static struct sandbox_spec spec;

/* Makes the state directory and fills the specification. Returns 0 or a negative errno. */
static inline int store_make(void)
{
	if (!mkdtemp(state_dir))
		return -1;
	config_defaults(&spec.config);
	memcpy(spec.config.state_dir, state_dir, sizeof(state_dir));
	spec.config.isolation = ISOLATION_SYSTEM;
	spec.config.capacity = 8;
	spec.config.job_memory_mib = 256;
	spec.config.job_disk_mib = 1024;
	spec.config.job_pids = 64;
	spec.config.job_cpus = 1;
	return 0;
}

/* Opens the store as a process of its own does: locks belong to an open file. Returns a descriptor or -1. */
static inline int store_open(void)
{
	int fd = -1;
	return record_open_store(state_dir, &fd, NULL) < 0 ? -1 : fd;
}

/* Appends a line for each thing that a reap tells; data is a struct buf. */
static inline void store_tell(void *data, const struct leftover *l)
{
	leftover_text(l, data);
	buf_str(data, "\n");
}

/* Takes down whatever the test left, then the directory itself; for guardian_start(). */
static inline void store_clean(void)
{
	scoped_buf struct buf said = BUF_INIT(4096);
	scoped_fd int store = store_open();
	scoped_fd int parent = open("/var/lib", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct reap reap = {.store_fd = store, .tell = store_tell, .data = &said};
	if (store >= 0)
		(void)!resources_reap(&reap, NULL);
	(void)!file_remove_tree(parent, strrchr(state_dir, '/') + 1, NULL);
}

#endif
