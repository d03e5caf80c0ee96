#include <unistd.h>

#include "base/log.h"
#include "net/dns/dns.h"

int main(void)
{
	log_setup(LOG_TEXT, LOG_LEVEL_INFO, "ermite-dns");
	/* Nothing is left to do at exit, and the filter would not allow it. */
	_exit(dns_run());
}
