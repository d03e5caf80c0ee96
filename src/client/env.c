#include "client/env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/named.h"
#include "base/scope.h"

void env_done(struct env *list)
{
	for (size_t i = 0; i < list->n; i++) {
		/* A value may be a secret; what is freed is found in a core file. */
		explicit_bzero(list->entries[i], strlen(list->entries[i]));
		free(list->entries[i]);
	}
	free(list->entries);
	*list = ENV_INIT;
}

static bool is_name_byte(char c, bool is_first)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
	       (!is_first && c >= '0' && c <= '9');
}

bool env_name_valid(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!is_name_byte(name[i], i == 0))
			return false;
	return n > 0;
}

static bool has_name(const char *entry, const char *name, size_t n)
{
	return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* Takes entry, whose first name_n bytes are its name. */
static int take(struct env *list, char *entry, size_t name_n, struct err *e)
{
	for (size_t i = 0; i < list->n; i++) {
		if (!has_name(list->entries[i], entry, name_n))
			continue;
		free(list->entries[i]);
		list->entries[i] = entry;
		return 0;
	}
	char **grown = reallocarray(list->entries, list->n + 2, sizeof(*grown));
	if (!grown) {
		free(entry);
		return err_set(e, -ENOMEM, "out of memory");
	}
	list->entries = grown;
	list->entries[list->n++] = entry;
	list->entries[list->n] = NULL;
	return 0;
}

/* Sets a variable from n bytes of "NAME=VALUE". */
static int set_bytes(struct env *list, const char *text, size_t n, struct err *e)
{
	const char *equals = memchr(text, '=', n);
	if (!equals)
		return err_set(e, -EINVAL, "there is no \"=\": NAME=VALUE is accepted");
	size_t name_n = (size_t)(equals - text);
	if (!env_name_valid(text, name_n))
		return err_set(
			e, -EINVAL,
			"what stands before \"=\" is not a name: letters, digits and \"_\" are accepted, "
			"no digit first");
	if (memchr(text, '\0', n))
		return err_set(e, -EINVAL, "the value holds a zero byte");
	char *entry = strndup(text, n);
	if (!entry)
		return err_set(e, -ENOMEM, "out of memory");
	return take(list, entry, name_n, e);
}

int env_set(struct env *list, const char *text, struct err *e)
{
	return set_bytes(list, text, strlen(text), e);
}

int env_put(struct env *list, const char *name, const char *value, struct err *e)
{
	char *entry = NULL;
	if (asprintf(&entry, "%s=%s", name, value) < 0)
		return err_set(e, -ENOMEM, "out of memory");
	return take(list, entry, strlen(name), e);
}

const char *env_get(const struct env *list, const char *name)
{
	size_t n = strlen(name);
	for (size_t i = 0; i < list->n; i++)
		if (has_name(list->entries[i], name, n))
			return list->entries[i] + n + 1;
	return NULL;
}

int env_read_text(struct env *list, const char *file, const char *text, size_t n, struct err *e)
{
	size_t line = 1;
	for (const char *at = text, *end = text + n; at < end; line++) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		const char *stop = newline ? newline : end;
		while (at < stop && (*at == ' ' || *at == '\t'))
			at++;
		if (at < stop && *at != '#') {
			int r = set_bytes(list, at, (size_t)(stop - at), e);
			if (r < 0)
				return err_ctx(e, r, "%s:%zu", file, line);
		}
		at = stop + 1;
	}
	return 0;
}

int env_read_file(struct env *list, const char *path, struct err *e)
{
	scoped_fd int fd = -1;
	int r = named_open(path, O_RDONLY | O_NOCTTY, &fd, e);
	if (r < 0)
		return err_ctx(e, r, "open %s", path);
	scoped_free char *text = malloc(ENV_FILE_MAX + 1);
	if (!text)
		return err_set(e, -ENOMEM, "out of memory");
	ssize_t n = file_read_all(fd, text, ENV_FILE_MAX + 1, e);
	if (n < 0)
		return err_ctx(e, (int)n, "%s", path);
	r = (size_t)n > ENV_FILE_MAX ? err_set(e, -EFBIG, "%s: longer than %u bytes", path, ENV_FILE_MAX)
				     : env_read_text(list, path, text, (size_t)n, e);
	explicit_bzero(text, (size_t)n);
	return r;
}
