#include "net/nftext.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"
#include "sys/netlink.h"

enum { NFT_MS = 20000 };

const char *nftext_program(void)
{
	static const char *const paths[] = {"/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", NULL};
	for (size_t i = 0; paths[i]; i++)
		if (access(paths[i], X_OK) == 0)
			return paths[i];
	return NULL;
}

/* Runs nft in the caller's network namespace. input: its standard input, -1: none; what it prints, on either stream, goes
 * to output. */
static int run(const char *const *arguments, int input, int output, struct err *e)
{
	const char *path = nftext_program();
	if (!path)
		return err_set(e, -ENOENT, "nft is not installed (apt install nftables)");
	const int fds[] = {input, output, output};
	const struct child_plan plan = {
		.path = path, .arguments = arguments, .fds = fds, .n_fds = 3, .die_with_parent = true};
	struct child child = CHILD_INIT;
	struct child_end end = {0};
	int r = child_start(&plan, &child, e);
	if (r < 0)
		return r;
	r = child_wait(&child, NFT_MS, &end, e);
	if (r < 0) {
		child_kill(&child);
		return err_ctx(e, r, "nft");
	}
	return end.status == 0 ? 0 : -EIO;
}

static int run_in(int netns, const char *const *arguments, int input, int output, struct err *e)
{
	scoped_fd int own = -1;
	if (netns < 0)
		return run(arguments, input, output, e);
	int r = netns_open(&own, e);
	if (r == 0)
		r = netns_enter(netns, e);
	if (r < 0)
		return r;
	r = run(arguments, input, output, e);
	int back = netns_enter(own, r < 0 ? NULL : e);
	return r < 0 ? r : back;
}

/* What nft printed, as one line. */
static void read_output(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	for (char *p = text; (p = strpbrk(p, "\n\t")); p++)
		*p = ' ';
}

int nftext_load(int netns, const struct buf *rules, struct err *e)
{
	static const char *const arguments[] = {"nft", "-f", "-", NULL};
	char said[256];
	scoped_fd int input = -1;
	scoped_fd int output = memfd_create("nft-output", MFD_CLOEXEC);
	int r = buf_check(rules);
	if (r < 0)
		return err_set(e, r, "the rules: out of memory");
	if (output < 0)
		return err_sys(e, "memfd");
	r = file_memfd("nft-rules", buf_text(rules), rules->n, &input, e);
	if (r < 0)
		return r;
	r = run_in(netns, arguments, input, output, e);
	if (r != -EIO)
		return r;
	read_output(output, said, sizeof(said));
	return err_set(e, r, "nft refused the rules: %s", said);
}

int nftext_list(const char *family, const char *table, struct buf *out, struct err *e)
{
	const char *const arguments[] = {"nft", "list", "table", family, table, NULL};
	char part[4096];
	scoped_fd int output = memfd_create("nft-output", MFD_CLOEXEC);
	if (output < 0)
		return err_sys(e, "memfd");
	int r = run(arguments, -1, output, e);
	if (r < 0)
		return r == -EIO ? err_set(e, r, "nft does not list table %s %s", family, table) : r;
	off_t at = 0;
	for (ssize_t n; (n = pread(output, part, sizeof(part), at)) > 0; at += n)
		buf_add(out, part, (size_t)n);
	return 0;
}
