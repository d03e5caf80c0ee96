#include <unistd.h>

#include "base/log.h"
#include "net/relay/relay.h"

int main(void)
{
	log_setup(LOG_TEXT, LOG_LEVEL_INFO, "ermite-relay");
	/* Nothing is left to do at exit, and the filter would not allow it. */
	_exit(relay_run());
}
