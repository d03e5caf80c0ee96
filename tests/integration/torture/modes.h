/*
 * What there is to do wrong. Each table ends with a row without a name.
 */
#ifndef ERMITE_TESTS_TORTURE_MODES_H
#define ERMITE_TESTS_TORTURE_MODES_H

#include "guest.h"

/* Something that takes more than the same bytes again and again. */
struct act {
	const char *name;
	enum stage stage; /* where it begins */
	void (*run)(struct guest *g);
};

/* In conduct.c and trees.c. */
extern const struct act acts[];
extern const struct act tree_acts[];

/* Bytes that no honest guest sends at a stage, heads of frames included. */
struct wrong {
	const char *name;
	enum stage stage;
	const char *bytes;
	size_t n;
	unsigned times;
};

/* In wrong.c. */
extern const struct wrong wrongs[];

#endif
