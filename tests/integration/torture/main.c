/*
 * The hostile guest program. The name of its mode stands at the very end of the file that it is, filled up with zeros.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/scope.h"
#include "guest/door.h"
#include "guest/filter.h"
#include "guest/root.h"
#include "guest/self.h"
#include "modes.h"

#define MODE_BYTES 32

/* What the mode is: one of the two is set. */
struct mode {
	const struct act *act;
	const struct wrong *wrong;
};

static struct mode find_mode(const char *name)
{
	for (const struct wrong *w = wrongs; w->name; w++)
		if (strcmp(w->name, name) == 0)
			return (struct mode){.wrong = w};
	const struct act *const tables[] = {acts, tree_acts};
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct act *a = tables[i]; a->name; a++)
			if (strcmp(a->name, name) == 0)
				return (struct mode){.act = a};
	guest_give_up();
}

static _Noreturn void misbehave(const struct mode *mode)
{
	struct guest *g = calloc(1, sizeof(*g));
	if (!g)
		guest_give_up();
	g->fd = -1;
	guest_reach(g, mode->act ? mode->act->stage : mode->wrong->stage);
	if (mode->wrong && g->id != 0 && g->id != JOB_ID)
		guest_give_up();
	if (mode->act)
		mode->act->run(g);
	for (unsigned i = 0; mode->wrong && i < mode->wrong->times; i++)
		guest_send(g, mode->wrong->bytes, mode->wrong->n);
	/* From here on the host must end it. */
	while (g->fd >= 0)
		(void)guest_hear(g);
	for (;;)
		(void)pause();
}

int main(void)
{
	struct err e = ERR_INIT;
	char name[MODE_BYTES + 1] = {0};
	scoped_fd int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (self_open_streams(&e) < 0 || lseek(self, -MODE_BYTES, SEEK_END) < 0 ||
	    read(self, name, MODE_BYTES) != MODE_BYTES)
		guest_give_up();
	const struct mode mode = find_mode(name);
	(void)signal(SIGPIPE, SIG_IGN);
	if (mode.act && mode.act->stage == STAGE_INIT)
		misbehave(&mode);
	struct door_mounts mounts = DOOR_MOUNTS_INIT;
	scoped_fd int host = -1;
	if (door_knock(&mounts, &host, &e) < 0 || (mounts.n > 0 && root_build(&mounts, &e) < 0) ||
	    filter_load(FILTER_PATH, &e) < 0)
		guest_give_up();
	pid_t executor = fork();
	if (executor == 0)
		misbehave(&mode);
	/* The first process stays, whatever becomes of the executor: the sandbox does not end by itself. */
	for (;;)
		if (wait(NULL) < 0 && errno == ECHILD)
			(void)pause();
}
