#include "keeper/conduit.h"

#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "conduit/conduit.h"
#include "guard/isolate.h"
#include "io/chan.h"
#include "spec/libexec.h"

int keeper_start_conduit(const struct sandbox *s, struct isolated_view *view, struct child *ret,
			 int *ret_channel, struct err *e)
{
	char path[CONFIG_PATH_MAX];
	struct conduit_config config;
	int ends[2] = {-1, -1};
	scoped_fd int config_fd = -1;
	conduit_config_init(&config, slot_uid_conduit(s->spec->config.uid_base, s->slot), view->peer_uid);
	int r = libexec_path("ermite-conduit", path, e);
	if (r == 0)
		r = file_memfd("conduit-config", &config, sizeof(config), &config_fd, e);
	if (r == 0)
		r = chan_pair(ends, e);
	if (r < 0)
		return r;
	*ret_channel = ends[0];
	scoped_fd int far = ends[1];
	const char *const arguments[] = {"ermite-conduit", s->id, NULL};
	const int fds[CONDUIT_FDS] = {-1,
				      -1,
				      STDERR_FILENO,
				      [CONDUIT_FD_CONFIG] = config_fd,
				      [CONDUIT_FD_CHANNEL] = far,
				      [CONDUIT_FD_LISTENER] = view->listen_fd};
	const struct child_plan plan = isolate_plan(path, arguments, fds, CONDUIT_FDS);
	r = child_start(&plan, ret, e);
	/* Only the conduit's is left, so that nobody can connect any more once it has closed it. */
	fd_close(&view->listen_fd);
	return r < 0 ? r : record_add_process(s->record, "conduit", ret->pid, e);
}
