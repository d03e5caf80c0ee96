#include "spec/refusal.h"

const char *refusal_name(uint32_t kind)
{
	static const char *const names[REFUSALS] = {
		[REFUSAL_NONE] = "none", [REFUSAL_LINK] = "link",       [REFUSAL_SPOOF] = "spoof",
		[REFUSAL_HOST] = "host", [REFUSAL_PRIVATE] = "private", [REFUSAL_PROTOCOL] = "protocol",
		[REFUSAL_CAST] = "cast", [REFUSAL_FLOWS] = "flows",     [REFUSAL_INVALID] = "invalid",
		[REFUSAL_RATE] = "rate", [REFUSAL_ROUTE] = "route",
	};
	return names[kind < REFUSALS ? kind : REFUSAL_NONE];
}
