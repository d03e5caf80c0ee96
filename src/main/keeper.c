#include <fcntl.h>
#include <signal.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "keeper/keeper.h"

int main(void)
{
	struct err e = ERR_INIT;
	log_setup(LOG_TEXT, LOG_LEVEL_INFO, "ermite-keeper");
	(void)signal(SIGPIPE, SIG_IGN);
	/* The last to be killed when the host runs out of memory; a host that forbids it is no reason to stop. */
	(void)!file_put(AT_FDCWD, "/proc/self/oom_score_adj", "-900", NULL);
	/* The client was told whatever there is to tell. */
	return keeper_run(KEEPER_FD_SPEC, KEEPER_FD_CLIENT, KEEPER_FD_NETWORK_LOG, &e) < 0;
}
