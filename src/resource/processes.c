#include "resource/resource.h"
#include "sys/process.h"

enum { KILL_MS = 5000 };

/* The keeper starts them itself, each named in the record when it is there; all die with the keeper's thread. */
static int make(struct sandbox *, struct err *)
{
	return 0;
}

static int unmake(struct sandbox *s, struct err *e)
{
	const struct record_info *info = record_info(s->record);
	int first = 0;
	char boot_id[37];
	int r = process_boot_id(boot_id, e);
	if (r < 0)
		return r;
	for (int i = 0; i < 36; i++)
		if (boot_id[i] != info->boot_id[i])
			return 0; /* the machine was restarted since: nothing of it runs */
	for (unsigned i = info->n_processes; i-- > 0;) {
		r = process_kill(info->processes[i].pid, info->processes[i].start_time, KILL_MS,
				 first ? NULL : e);
		if (r < 0 && first == 0)
			first = err_ctx(e, r, "%s", info->processes[i].name);
	}
	return first;
}

const struct resource resource_processes = {.name = "processes", .make = make, .unmake = unmake};
