/*
 * What every fuzz target defines. libFuzzer calls it with bytes it makes up; main.c calls it with the files of a
 * corpus, which makes the target a unit test. A target aborts when something is wrong.
 */
#ifndef ERMITE_TESTS_FUZZ_H
#define ERMITE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An assertion whose condition always counts. */
#define REQUIRE(condition)                                                                                   \
	do {                                                                                                 \
		if (!(condition))                                                                            \
			abort();                                                                             \
	} while (0)

#endif
