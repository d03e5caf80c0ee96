/* Apart from isolate.c, so that whoever starts a helper does not link what only the helper needs. */
#include <sched.h>

#include "guard/isolate.h"

uint64_t isolate_clone_flags(void)
{
	/* No user namespace: the uid is nobody else's already, and none can be made from within without clone(). */
	return CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
}
