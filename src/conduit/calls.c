#include "conduit/calls.h"

size_t extra_calls(int[static EXTRA_CALLS_MAX])
{
	return 0;
}

uint64_t memory_max(void)
{
	/* Buffers of at most 2 MiB for each of 128 sinks, the automaton that masks secrets, and the program. */
	return UINT64_C(1) << 29;
}
