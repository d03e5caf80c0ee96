#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "conduit/conduit.h"

static int run(struct err *e)
{
	struct conduit_config config = {0};
	int r = conduit_config_read(CONDUIT_FD_CONFIG, &config, e);
	if (r < 0)
		return r;
	(void)close(CONDUIT_FD_CONFIG);
	(void)signal(SIGPIPE, SIG_IGN);
	r = conduit_isolate(&config, e);
	return r < 0 ? r : conduit_run(&config, CONDUIT_FD_CHANNEL, CONDUIT_FD_LISTENER, e);
}

int main(void)
{
	struct err e = ERR_INIT;
	log_setup(LOG_TEXT, LOG_LEVEL_INFO, "ermite-conduit");
	int r = run(&e);
	if (r < 0)
		log_error("%s", e.msg);
	/* Nothing is left to do at exit, and the filter would not allow it. */
	_exit(r < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
}
