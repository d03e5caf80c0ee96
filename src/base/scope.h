/*
 * Scoped ownership: a variable declared scoped_fd, scoped_free, scoped_file or scoped_dir is released when it leaves
 * its scope.
 *
 * Always initialise it at the declaration (tools/check-style refuses one without "="). Ownership leaves with
 * fd_steal() or ptr_steal(). The cleaners keep errno and accept "empty": -1 and NULL.
 */
#ifndef ERMITE_BASE_SCOPE_H
#define ERMITE_BASE_SCOPE_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Closes *fd unless it is negative and sets it to -1; keeps errno. close() is never retried: Linux has always
 * released the number by then. */
static inline void fd_close(int *fd)
{
	if (*fd < 0)
		return;
	int saved = errno;
	(void)close(*fd);
	errno = saved;
	*fd = -1;
}

/* Returns *fd and leaves -1 behind. */
static inline int fd_steal(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}

static inline void scope_free(void *p)
{
	void *memory = *(void **)p;
	int saved = errno;
	free(memory);
	errno = saved;
}

static inline void scope_dir(DIR **d)
{
	if (!*d)
		return;
	int saved = errno;
	(void)closedir(*d);
	errno = saved;
}

static inline void scope_file(FILE **f)
{
	if (!*f)
		return;
	int saved = errno;
	(void)fclose(*f);
	errno = saved;
}

/* Returns the pointer and leaves NULL behind; the type is the variable's own. */
#define ptr_steal(p) ((__typeof__(*(p)))ptr_steal_raw((void *)(p)))
static inline void *ptr_steal_raw(void *p)
{
	void *taken = *(void **)p;
	*(void **)p = NULL;
	return taken;
}

#define scoped_fd   __attribute__((cleanup(fd_close)))
#define scoped_free __attribute__((cleanup(scope_free)))
#define scoped_file __attribute__((cleanup(scope_file)))
#define scoped_dir  __attribute__((cleanup(scope_dir)))

#endif
