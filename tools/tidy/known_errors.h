/*
 * For clang-tidy only, included before every file: lets its analyzer know that the functions of base/err.h return a
 * negative code. Their definitions are in another file, so that it would follow paths on which an error is none.
 */
#ifndef ERMITE_TOOLS_TIDY_KNOWN_ERRORS_H
#define ERMITE_TOOLS_TIDY_KNOWN_ERRORS_H

#include "base/err.h"

static inline int known_negative(int code)
{
	if (code >= 0)
		__builtin_unreachable();
	return code;
}

#define err_set(...)  known_negative(err_set(__VA_ARGS__))
#define err_sys(...)  known_negative(err_sys(__VA_ARGS__))
#define err_code(...) known_negative(err_code(__VA_ARGS__))
#define err_ctx(...)  known_negative(err_ctx(__VA_ARGS__))

#endif
