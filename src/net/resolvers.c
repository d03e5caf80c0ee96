#include "net/resolvers.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/scope.h"

#define FILE_NAME "etc/resolv.conf"
#define TEXT_SIZE 8192
#define DNS_PORT  53

/* Remembers which file this is. Returns true when it is not the one that was read. */
static bool is_new(struct resolvers *r, const struct stat *st)
{
	bool same = r->generation > 0 && r->device == st->st_dev && r->inode == st->st_ino &&
		    r->bytes == st->st_size && r->modified.tv_sec == st->st_mtim.tv_sec &&
		    r->modified.tv_nsec == st->st_mtim.tv_nsec;
	r->device = st->st_dev;
	r->inode = st->st_ino;
	r->bytes = st->st_size;
	r->modified = st->st_mtim;
	return !same;
}

int resolvers_check(struct resolvers *r, struct buf *notes)
{
	struct stat st = {0};
	char text[TEXT_SIZE];
	struct dial_targets targets;
	scoped_fd int fd = -1;
	/* Not to wait for a writer, should it be a pipe. */
	bool there =
		file_open_in_root(r->root_fd, FILE_NAME, O_RDONLY | O_NONBLOCK | O_NOCTTY, &fd, NULL) == 0 &&
		fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
	if (!there)
		st = (struct stat){0};
	if (!is_new(r, &st))
		return 0;
	ssize_t n = there ? file_read_all(fd, text, sizeof(text) - 1, NULL) : 0;
	text[n > 0 ? n : 0] = '\0';
	dial_read_resolvers(text, DNS_PORT, &r->own, &targets, notes);
	if (r->generation > 0 && dial_targets_are_same(&targets, &r->targets))
		return 0;
	r->targets = targets;
	r->generation++;
	return 1;
}
