/*
 * For tests: how many descriptors this process has open. The same number before and after is the proof that nothing
 * leaked.
 */
#ifndef ERMITE_TESTS_FDS_H
#define ERMITE_TESTS_FDS_H

#include <fcntl.h>

/* The number of open descriptors below 1024. */
static inline int fds_open(void)
{
	int n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif
