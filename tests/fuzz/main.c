/* Feeds every file of the directory given to the fuzz target. An empty directory is a failure. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/scope.h"
#include "fuzz.h"

static int feed(int dirfd, const char *name, struct err *e)
{
	scoped_fd int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(e, "open %s", name);
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_sys(e, "stat %s", name);
	if (!S_ISREG(st.st_mode))
		return 0;
	size_t size = (size_t)st.st_size;
	scoped_free uint8_t *bytes = malloc(size + 1);
	if (!bytes)
		return err_set(e, -ENOMEM, "out of memory");
	ssize_t n = file_read_all(fd, bytes, size, e);
	if (n < 0)
		return (int)n;
	(void)LLVMFuzzerTestOneInput(bytes, (size_t)n);
	return 1;
}

static int feed_all(const char *path, struct err *e)
{
	DIR *directory = opendir(path);
	if (!directory)
		return err_sys(e, "open %s", path);
	int count = 0, r = 0;
	for (struct dirent *entry = readdir(directory); entry && r >= 0; entry = readdir(directory)) {
		r = feed(dirfd(directory), entry->d_name, e);
		count += r > 0;
	}
	(void)closedir(directory);
	if (r < 0)
		return r;
	return count > 0 ? count : err_set(e, -ENOENT, "no files in %s", path);
}

int main(int argc, char **argv)
{
	struct err e = ERR_INIT;
	int count = argc == 2 ? feed_all(argv[1], &e) : err_set(&e, -EINVAL, "usage: %s DIRECTORY", argv[0]);
	if (count < 0) {
		(void)fprintf(stderr, "%s\n", e.msg);
		return 1;
	}
	(void)printf("%d files\n", count);
	return 0;
}
