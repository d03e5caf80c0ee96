#include "isolation/container/engine_answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"

/* jansson reads 2048 levels, each a frame on the stack; the daemon needs a dozen. */
static bool too_deep(const char *text, size_t n)
{
	unsigned depth = 0;
	bool in_string = false;
	for (size_t i = 0; i < n; i++) {
		char c = text[i];
		if (in_string && c == '\\')
			i++;
		else if (c == '"')
			in_string = !in_string;
		else if (!in_string && (c == '[' || c == '{') && ++depth > ANSWER_DEPTH_MAX)
			return true;
		else if (!in_string && (c == ']' || c == '}') && depth > 0)
			depth--;
	}
	return false;
}

int answer_parse(const char *text, size_t n, json_t **ret, struct err *e)
{
	json_error_t why;
	if (too_deep(text, n))
		return err_set(e, -EPROTO, "not the JSON that it should be: nested too deeply");
	json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
	if (!value)
		return err_set(e, -EPROTO, "not the JSON that it should be: line %d, column %d", why.line,
			       why.column);
	*ret = value;
	return 0;
}

/* How messages call a type. */
static const char *type_name(json_type type)
{
	static const char *const names[] = {
		[JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
		[JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
		[JSON_FALSE] = "boolean",   [JSON_NULL] = "null",
	};
	return names[type];
}

int answer_find(const json_t *object, const char *name, json_type type, json_t **ret, struct err *e)
{
	if (!json_is_object(object))
		return err_set(e, -EPROTO, "no object with a member %s in it", name);
	json_t *value = json_object_get(object, name);
	if (!value || json_is_null(value)) {
		*ret = NULL;
		return 0;
	}
	/* A boolean is one of two types. */
	if (strcmp(type_name(json_typeof(value)), type_name(type)) != 0)
		return err_set(e, -EPROTO, "the member %s is no %s", name, type_name(type));
	*ret = value;
	return 0;
}

int answer_need(const json_t *object, const char *name, json_type type, json_t **ret, struct err *e)
{
	json_t *value = NULL;
	int r = answer_find(object, name, type, &value, e);
	if (r < 0)
		return r;
	if (!value)
		return err_set(e, -EPROTO, "the member %s is missing", name);
	*ret = value;
	return 0;
}

int answer_text(const json_t *object, const char *name, const char **ret, struct err *e)
{
	json_t *value = NULL;
	int r = answer_need(object, name, JSON_STRING, &value, e);
	if (r == 0)
		*ret = json_string_value(value);
	return r;
}

int answer_text_or_empty(const json_t *object, const char *name, const char **ret, struct err *e)
{
	json_t *value = NULL;
	int r = answer_find(object, name, JSON_STRING, &value, e);
	if (r == 0)
		*ret = value ? json_string_value(value) : "";
	return r;
}

bool answer_complaint(const json_t *object, char said[static ANSWER_SAID_MAX])
{
	const char *text = json_string_value(json_object_get(object, "message"));
	if (!text)
		text = json_string_value(json_object_get(json_object_get(object, "errorDetail"), "message"));
	if (!text)
		text = json_string_value(json_object_get(object, "error"));
	if (!text)
		return false;
	scoped_buf struct buf line = BUF_INIT(4 * ANSWER_SAID_MAX + 1);
	buf_plain(&line, text, strnlen(text, ANSWER_SAID_MAX));
	(void)snprintf(said, ANSWER_SAID_MAX, "%s", buf_text(&line));
	return true;
}
