/*
 * Reading what Docker's daemon says: JSON that nobody vouches for, bounded in size and depth, looked at only through
 * typed accessors.
 *
 * A value belongs to the answer that it lies in and lives as long as that. No accessor trusts a type: what is not as it
 * should be is -EPROTO with the name of the member.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_ENGINE_ANSWER_H
#define ERMITE_ISOLATION_CONTAINER_ENGINE_ANSWER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define ANSWER_DEPTH_MAX 64  /* arrays and objects in each other */
#define ANSWER_SAID_MAX  300 /* bytes of a sentence of the daemon that are passed on */

/* Releases a value at the end of its scope. */
static inline void answer_free(json_t **value)
{
	json_decref(*value);
	*value = NULL;
}

#define scoped_json __attribute__((cleanup(answer_free)))

/* Reads one JSON value of n bytes, a name in an object at most once. Returns 0 and a value that the caller owns, or
 * -EPROTO. */
[[nodiscard]] int answer_parse(const char *text, size_t n, json_t **ret, struct err *e);

/* The member of an object: 0 and the value, or NULL when it is not there or null; -EPROTO when it, or the object, is
 * of another type. */
[[nodiscard]] int answer_find(const json_t *object, const char *name, json_type type, json_t **ret,
			      struct err *e);

/* The same for a member that must be there: -EPROTO, too, when it is not. */
[[nodiscard]] int answer_need(const json_t *object, const char *name, json_type type, json_t **ret,
			      struct err *e);

/* The text of a member that must be there. */
[[nodiscard]] int answer_text(const json_t *object, const char *name, const char **ret, struct err *e);

/* The text of a member, or "" when it is not there. */
[[nodiscard]] int answer_text_or_empty(const json_t *object, const char *name, const char **ret,
				       struct err *e);

/* What the daemon says went wrong, fit for one line of ours, in said: from the member "message" (an error's body),
 * "errorDetail" or "error" (a stream). Returns false when it says nothing of the kind. */
bool answer_complaint(const json_t *object, char said[static ANSWER_SAID_MAX]);

#endif
