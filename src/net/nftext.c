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

struct start {
	const char *const *arguments;
	int input; /* standard input, -1: none */
	struct nftext *run;
};

/* Starts nft in the caller's network namespace. What it prints, on either stream, goes to run->output. */
static int start(void *data, struct err *e)
{
	const struct start *s = data;
	const char *path = nftext_program();
	*s->run = (struct nftext){.child = CHILD_INIT, .output = memfd_create("nft-output", MFD_CLOEXEC)};
	if (s->run->output < 0)
		return err_sys(e, "memfd");
	if (!path)
		return err_set(e, -ENOENT, "nft is not installed (apt install nftables)");
	const int fds[] = {s->input, s->run->output, s->run->output};
	const struct child_plan plan = {
		.path = path, .arguments = s->arguments, .fds = fds, .n_fds = 3, .die_with_parent = true};
	return child_start(&plan, &s->run->child, e);
}

int nftext_begin(int netns, const struct buf *rules, struct nftext *ret, struct err *e)
{
	static const char *const arguments[] = {"nft", "-f", "-", NULL};
	scoped_fd int input = -1;
	*ret = (struct nftext){.child = CHILD_INIT, .output = -1};
	int r = buf_check(rules);
	if (r < 0)
		return err_set(e, r, "the rules: out of memory");
	r = file_memfd("nft-rules", buf_text(rules), rules->n, &input, e);
	struct start how = {.arguments = arguments, .input = input, .run = ret};
	return r < 0 ? r : netns_with(netns, start, &how, e);
}

/* What nft printed, as one line. */
static void read_output(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	for (char *p = text; (p = strpbrk(p, "\n\t")); p++)
		*p = ' ';
}

int nftext_end(struct nftext *run, struct err *e)
{
	char said[256];
	struct child_end end = {0};
	scoped_fd int output = fd_steal(&run->output);
	int r = child_wait(&run->child, NFT_MS, &end, e);
	child_kill(&run->child);
	if (r < 0 || end.status == 0)
		return r < 0 ? err_ctx(e, r, "nft") : 0;
	read_output(output, said, sizeof(said));
	return err_set(e, -EIO, "nft refused the rules: %s", said);
}

int nftext_load(int netns, const struct buf *rules, struct err *e)
{
	struct nftext run;
	int r = nftext_begin(netns, rules, &run, e);
	int end = nftext_end(&run, r < 0 ? NULL : e);
	return r < 0 ? r : end;
}

int nftext_list(const char *family, const char *table, struct buf *out, struct err *e)
{
	const char *const arguments[] = {"nft", "list", "table", family, table, NULL};
	char part[4096];
	struct nftext run = {.child = CHILD_INIT, .output = -1};
	struct start how = {.arguments = arguments, .input = -1, .run = &run};
	int r = start(&how, e);
	scoped_fd int output = run.output < 0 ? -1 : fcntl(run.output, F_DUPFD_CLOEXEC, 3);
	int end = nftext_end(&run, r < 0 ? NULL : e);
	if (r < 0 || end < 0)
		return r < 0 ? r : end;
	off_t at = 0;
	for (ssize_t n; (n = pread(output, part, sizeof(part), at)) > 0; at += n)
		buf_add(out, part, (size_t)n);
	return 0;
}
