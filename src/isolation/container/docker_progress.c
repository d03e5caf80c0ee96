#include "isolation/container/docker_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { REWRITE_MS = 200, MIB = 1 << 20 };

void docker_progress_begin(struct docker_progress *p, const char *what)
{
	*p = (struct docker_progress){.what = what, .terminal = isatty(STDERR_FILENO) == 1, .shown_tenth = 0};
	(void)fprintf(stderr, "%s%s", what, p->terminal ? "" : "\n");
}

/* What is done can be more than the total, which is told beforehand or grows, and both come from outside. */
static int percent(uint64_t done, uint64_t total)
{
	if (total == 0)
		return 0;
	if (done >= total)
		return 100;
	return (int)(total > UINT64_MAX / 100 ? done / (total / 100 + 1) : done * 100 / total);
}

static void rewrite(struct docker_progress *p, uint64_t done, uint64_t total)
{
	uint64_t now = clock_boot_ms();
	if (p->shown_ms && now - p->shown_ms < REWRITE_MS)
		return;
	p->shown_ms = now;
	(void)fprintf(stderr, "\r%s: %llu of %llu MiB, %d %%\033[K", p->what, (unsigned long long)done / MIB,
		      (unsigned long long)total / MIB, percent(done, total));
}

void docker_progress_tell(struct docker_progress *p, uint64_t done, uint64_t total)
{
	if (p->terminal) {
		rewrite(p, done, total);
		return;
	}
	int tenth = percent(done, total) / 10;
	if (tenth <= p->shown_tenth)
		return;
	p->shown_tenth = tenth;
	(void)fprintf(stderr, "%s: %d %%\n", p->what, tenth * 10);
}

void docker_progress_end(const struct docker_progress *p)
{
	if (p->terminal)
		(void)fputc('\n', stderr);
}
