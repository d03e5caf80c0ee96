/* Apart from the forwarder itself, so that whoever starts it does not link what only it needs. */
#include "net/dns/dns.h"

#define UDP_MS        1000
#define TCP_MS        1000
#define QUESTION_MS   6000
#define MESSAGE_MS    2000
#define CONNECTION_MS 30000

void dns_config_init(struct dns_config *c)
{
	*c = (struct dns_config){
		.magic = DNS_CONFIG_MAGIC,
		.udp_ms = UDP_MS,
		.tcp_ms = TCP_MS,
		.question_ms = QUESTION_MS,
		.message_ms = MESSAGE_MS,
		.connection_ms = CONNECTION_MS,
	};
}
