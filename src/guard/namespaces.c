/* Apart from isolate.c, so that whoever starts a helper does not link what only the helper needs. */
#include <sched.h>

#include "guard/isolate.h"

uint64_t isolate_clone_flags(void)
{
	/* No user namespace: the uid is nobody else's already, and none can be made from within without clone(). */
	return CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
}

struct child_plan isolate_plan(const char *path, const char *const *arguments, const int *fds, size_t n_fds)
{
	return (struct child_plan){.path = path,
				   .arguments = arguments,
				   .fds = fds,
				   .n_fds = n_fds,
				   .clone_flags = isolate_clone_flags(),
				   .die_with_parent = true,
				   .new_session = true};
}
