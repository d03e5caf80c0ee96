#include "client/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/chan.h"
#include "spec/libexec.h"

enum { END_MS = 5000, EXIT_STATUS_MAX = 255 };

int keeper_start(const struct sandbox_spec *spec, int network_log, struct child *ret_child, int *ret_channel,
		 struct err *e)
{
	/* The caller's environment stays here: it may hold secrets that are none of the keeper's business. */
	static const char *const environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
	char path[CONFIG_PATH_MAX];
	int r = libexec_path("ermite-keeper", path, e);
	if (r < 0)
		return r;
	scoped_fd int memfd = -1;
	r = file_memfd("sandbox-spec", spec, sizeof(*spec), &memfd, e);
	if (r < 0)
		return r;
	int ends[2] = {-1, -1};
	r = chan_pair(ends, e);
	if (r < 0)
		return r;
	scoped_fd int ours = ends[0];
	scoped_fd int theirs = ends[1];
	const char *const arguments[] = {"ermite-keeper", NULL};
	struct child_plan plan = {
		.path = path,
		.arguments = arguments,
		.environment = environment,
		.fds = (const int[]){-1, -1, STDERR_FILENO, memfd, theirs, network_log},
		.n_fds = 6,
		.new_session = true,
	};
	r = child_start(&plan, ret_child, e);
	if (r < 0)
		return r;
	*ret_channel = fd_steal(&ours);
	return 0;
}

int keeper_read_result(int fd, struct job_result *ret, struct err *e)
{
	struct job_result result = {0};
	char more = 0;
	ssize_t n = file_read_all(fd, &result, sizeof(result), e);
	if (n < 0)
		return (int)n;
	if (n != (ssize_t)sizeof(result) || file_read_all(fd, &more, 1, NULL) != 0)
		return err_set(e, -EPROTO, "the keeper's result has another size than expected");
	if (result.reason >= END_REASONS || result.exit_status < 0 || result.exit_status > EXIT_STATUS_MAX)
		return err_set(e, -EPROTO, "the keeper's result holds impossible numbers");
	result.id[sizeof(result.id) - 1] = '\0';
	result.job_id[sizeof(result.job_id) - 1] = '\0';
	result.evidence[sizeof(result.evidence) - 1] = '\0';
	*ret = result;
	return 0;
}

void keeper_wait(struct child *c, char *text, size_t size)
{
	struct child_end end = {0};
	if (child_wait(c, END_MS, &end, NULL) < 0)
		(void)snprintf(text, size, "it is still running");
	else if (end.signal)
		(void)snprintf(text, size, "it was ended by signal %d", end.signal);
	else
		(void)snprintf(text, size, "it ended with status %d", end.status);
}
