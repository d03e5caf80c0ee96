/*
 * The program `ermite-runner` of a hostile image. Its mode is a word in the file /opt/ermite/mode.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "guest/door.h"
#include "guest/self.h"
#include "modes.h"

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
	guest_give_up("no such mode");
}

static _Noreturn void misbehave(const struct mode *mode)
{
	struct guest *g = calloc(1, sizeof(*g));
	if (!g)
		guest_give_up("memory");
	g->fd = -1;
	guest_reach(g, mode->act ? mode->act->stage : mode->wrong->stage);
	if (mode->wrong && g->id != 0 && g->id != JOB_ID)
		guest_give_up("the bytes are not those of this process");
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
	char name[64];
	if (self_open_streams(&e) < 0 ||
	    file_read_text(AT_FDCWD, "/opt/ermite/mode", name, sizeof(name), &e) <= 0)
		guest_give_up("read the mode");
	name[strcspn(name, "\n")] = '\0';
	const struct mode mode = find_mode(name);
	(void)signal(SIGPIPE, SIG_IGN);
	if (mode.act && mode.act->stage == STAGE_INIT)
		misbehave(&mode);
	if (door_knock(&e) < 0)
		guest_give_up("knock");
	pid_t executor = fork();
	if (executor == 0)
		misbehave(&mode);
	/* The first process stays, whatever becomes of the executor: the sandbox does not end by itself. */
	for (;;)
		if (wait(NULL) < 0 && errno == ECHILD)
			(void)pause();
}
