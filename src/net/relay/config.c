/* Apart from the relay itself, so that whoever starts it does not link what only it needs. */
#include "net/relay/relay.h"

#define CONNECTIONS_MAX 64
#define IDLE_MS         600000
#define CONNECT_MS      10000

void relay_config_init(struct relay_config *c)
{
	*c = (struct relay_config){
		.magic = RELAY_CONFIG_MAGIC,
		.connections_max = CONNECTIONS_MAX,
		.idle_ms = IDLE_MS,
		.connect_ms = CONNECT_MS,
	};
}
