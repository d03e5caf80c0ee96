/* The configuration from outside the command line: the file in /etc and the environment. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/scope.h"
#include "spec/config.h"

enum { FILE_MAX_BYTES = 64 * 1024, NAME_MAX_BYTES = 64, VALUE_MAX_BYTES = 2 * CONFIG_PATH_MAX };

#define BLANKS     " \t\r"
#define NAME_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

/* A value being read. */
struct value {
	char text[VALUE_MAX_BYTES];
	size_t n;
};

static int value_add(struct value *v, char c)
{
	if (v->n + 1 >= sizeof(v->text))
		return -EINVAL;
	v->text[v->n++] = c;
	v->text[v->n] = '\0';
	return 0;
}

/* Reads up to the closing quote. In double quotes a backslash takes away the meaning of what has one there, and is
 * itself everywhere else; in single quotes nothing has a meaning. Moves *at behind the quote. */
static int read_quoted(const char **at, struct value *v)
{
	const char *p = *at;
	const char quote = *p++;
	int r = 0;
	for (; *p && *p != quote && r == 0; p++) {
		if (quote == '"' && *p == '\\' && p[1] && strchr("\"\\`$", p[1]))
			p++;
		r = value_add(v, *p);
	}
	if (r < 0 || *p != quote)
		return -EINVAL;
	*at = p + 1;
	return 0;
}

/* Reads to the end of the line, without the blanks there; a backslash stands for the character behind it. */
static int read_bare(const char **at, struct value *v)
{
	const char *p = *at;
	size_t end = 0;
	int r = 0;
	for (; *p && r == 0; p++) {
		bool escaped = *p == '\\';
		if (escaped && !*++p)
			return -EINVAL;
		r = value_add(v, *p);
		if (escaped || !strchr(BLANKS, *p))
			end = v->n;
	}
	v->n = end;
	v->text[end] = '\0';
	*at = p;
	return r;
}

/* Cuts a line into name and value. Returns 0, or -EINVAL when it has another form. */
static int split_line(const char *line, char name[static NAME_MAX_BYTES], struct value *v)
{
	size_t n = strspn(line, NAME_CHARS);
	if (n == 0 || n >= NAME_MAX_BYTES || line[n] != '=')
		return -EINVAL;
	memcpy(name, line, n);
	name[n] = '\0';
	*v = (struct value){0};
	const char *p = line + n + 1;
	p += strspn(p, BLANKS);
	int r = *p == '"' || *p == '\'' ? read_quoted(&p, v) : read_bare(&p, v);
	return r < 0 || p[strspn(p, BLANKS)] != '\0' ? -EINVAL : 0;
}

/* Takes one terminated line of the file. */
static int read_line(struct config *c, const char *line, struct err *e)
{
	line += strspn(line, BLANKS);
	if (*line == '\0' || *line == '#' || *line == ';')
		return 0;
	char name[NAME_MAX_BYTES];
	struct value v;
	if (split_line(line, name, &v) < 0)
		return err_set(e, -EINVAL, "\"%.100s\" is not NAME=value", line);
	if (strncmp(name, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) != 0)
		return err_set(e, -EINVAL, "%s is not a name of the configuration", name);
	return config_set(c, name, v.text, e) < 0 ? -EINVAL : 0;
}

int config_read_text(struct config *c, const char *file, const char *text, size_t n, struct err *e)
{
	struct config read = *c;
	size_t at = 0;
	for (unsigned number = 1; at < n; number++) {
		char line[2 * VALUE_MAX_BYTES];
		const char *end = memchr(text + at, '\n', n - at);
		size_t length = end ? (size_t)(end - text) - at : n - at;
		if (length >= sizeof(line) || memchr(text + at, '\0', length))
			return err_set(e, -EINVAL, "%s:%u: not a line of text", file, number);
		memcpy(line, text + at, length);
		line[length] = '\0';
		int r = read_line(&read, line, e);
		if (r < 0)
			return err_ctx(e, r, "%s:%u", file, number);
		at += length + 1;
	}
	*c = read;
	return 0;
}

static int load_file(struct config *c, const char *path, struct err *e)
{
	scoped_free char *text = malloc(FILE_MAX_BYTES);
	if (!text)
		return err_set(e, -ENOMEM, "%s: out of memory", path);
	ssize_t n = file_read_text(AT_FDCWD, path, text, FILE_MAX_BYTES, e);
	if (n == -ENOENT)
		return 0;
	return n < 0 ? (int)n : config_read_text(c, path, text, (size_t)n, e);
}

/* Takes "NAME=value" of the environment when it is ours and known. */
static int take_variable(struct config *c, const char *variable, struct err *e)
{
	char name[NAME_MAX_BYTES];
	size_t n = strcspn(variable, "=");
	if (strncmp(variable, CONFIG_PREFIX, strlen(CONFIG_PREFIX)) != 0 || n >= sizeof(name) || !variable[n])
		return 0;
	memcpy(name, variable, n);
	name[n] = '\0';
	int r = config_set(c, name, variable + n + 1, e);
	return r == -ENOENT ? 0 : r;
}

int config_load(struct config *c, const char *path, char *const environment[], struct err *e)
{
	struct err error = ERR_INIT;
	int r = load_file(c, path, &error);
	for (size_t i = 0; r == 0 && environment[i]; i++)
		r = take_variable(c, environment[i], &error);
	if (r < 0 && e)
		*e = error;
	return r;
}
