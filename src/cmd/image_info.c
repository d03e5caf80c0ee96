#include "cmd/image_info.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/scope.h"

/* Copies n bytes of value, or says that they do not fit. */
static int store(char *to, size_t size, const char *value, size_t n, struct err *e)
{
	if (n >= size)
		return err_set(e, -EINVAL, "value is too long");
	memcpy(to, value, n);
	to[n] = 0;
	return 0;
}

static int store_fact(struct image_info *info, const char *name, size_t name_n, const char *value, size_t n,
		      struct err *e)
{
	const struct {
		const char *name;
		char *to;
		size_t size;
	} rows[] = {
		{"sha256", info->sha256, sizeof(info->sha256)},
		{"init", info->init, sizeof(info->init)},
		{"codename", info->suite, sizeof(info->suite)},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (strlen(rows[i].name) == name_n && memcmp(rows[i].name, name, name_n) == 0)
			return store(rows[i].to, rows[i].size, value, n, e);
	if (name_n == strlen("systemd") && memcmp(name, "systemd", name_n) == 0)
		info->has_systemd = true;
	return 0;
}

int image_info_facts(struct image_info *info, const char *text, struct err *e)
{
	while (*text) {
		size_t line = strcspn(text, "\n");
		const char *space = memchr(text, ' ', line);
		if (space) {
			size_t name_n = (size_t)(space - text);
			int r = store_fact(info, text, name_n, space + 1, line - name_n - 1, e);
			if (r < 0)
				return err_ctx(e, r, "fact %.*s", (int)(name_n < 32 ? name_n : 32), text);
		}
		text += line;
		text += *text == '\n';
	}
	return 0;
}

/* A borrowed piece of the status file. */
struct piece {
	const char *p;
	size_t n;
};

struct stanza {
	struct piece name, version, architecture, status;
};

static void stanza_line(struct stanza *s, const char *line, size_t n)
{
	const struct {
		const char *field;
		struct piece *to;
	} rows[] = {
		{"Package: ", &s->name},
		{"Version: ", &s->version},
		{"Architecture: ", &s->architecture},
		{"Status: ", &s->status},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		size_t field_n = strlen(rows[i].field);
		if (n > field_n && memcmp(line, rows[i].field, field_n) == 0)
			*rows[i].to = (struct piece){line + field_n, n - field_n};
	}
}

static bool stanza_installed(const struct stanza *s)
{
	static const char installed[] = " ok installed";
	size_t n = sizeof(installed) - 1;
	return s->name.n && s->version.n && s->status.n > n &&
	       memcmp(s->status.p + s->status.n - n, installed, n) == 0;
}

static void stanza_json(const struct stanza *s, struct buf *out)
{
	buf_str(out, "{\"name\":");
	buf_json(out, s->name.p, s->name.n);
	buf_str(out, ",\"version\":");
	buf_json(out, s->version.p, s->version.n);
	buf_str(out, ",\"architecture\":");
	buf_json(out, s->architecture.p ? s->architecture.p : "", s->architecture.n);
	buf_str(out, "}");
}

uint64_t image_packages_json(const char *status, size_t n, struct buf *out)
{
	const char *end = status + n;
	struct stanza stanza = {0};
	uint64_t count = 0;

	buf_str(out, "[");
	for (const char *at = status; at < end;) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		size_t line = newline ? (size_t)(newline - at) : (size_t)(end - at);
		bool last = at + line + 1 >= end;
		stanza_line(&stanza, at, line);
		if (line == 0 || last) {
			if (stanza_installed(&stanza)) {
				buf_str(out, count++ ? "," : "");
				stanza_json(&stanza, out);
			}
			stanza = (struct stanza){0};
		}
		at += line + (newline ? 1 : 0);
	}
	buf_str(out, "]");
	return count;
}

static void text_member(struct buf *out, const char *name, const char *value)
{
	buf_fmt(out, ",\"%s\":", name);
	buf_json(out, value, strlen(value));
}

static void number_member(struct buf *out, const char *name, uint64_t value)
{
	buf_fmt(out, ",\"%s\":%llu", name, (unsigned long long)value);
}

void image_info_json(const struct image_info *info, const char *packages, struct buf *out)
{
	buf_str(out, "{\"format\":1");
	text_member(out, "source", info->source);
	text_member(out, "suite", info->suite);
	text_member(out, "created", info->created);
	text_member(out, "init", info->init);
	buf_fmt(out, ",\"has_systemd\":%s", info->has_systemd ? "true" : "false");
	text_member(out, "sha256", info->sha256);
	number_member(out, "size", info->size);
	number_member(out, "disk_size", info->disk_size);
	number_member(out, "package_count", info->packages);
	buf_fmt(out, ",\"packages\":");
	buf_str(out, packages);
	buf_str(out, "}\n");
}

static int get_text(const json_t *object, const char *name, char *to, size_t size, struct err *e)
{
	const char *value = json_string_value(json_object_get(object, name));
	if (!value)
		return err_set(e, -EINVAL, "member %s is no text", name);
	int r = store(to, size, value, strlen(value), e);
	return r < 0 ? err_ctx(e, r, "member %s", name) : 0;
}

static int get_number(const json_t *object, const char *name, uint64_t *ret, struct err *e)
{
	const json_t *value = json_object_get(object, name);
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return err_set(e, -EINVAL, "member %s is no size", name);
	*ret = (uint64_t)json_integer_value(value);
	return 0;
}

static int get_members(const json_t *object, struct image_info *info, struct err *e)
{
	const struct {
		const char *name;
		char *to;
		size_t size;
	} texts[] = {
		{"source", info->source, sizeof(info->source)},
		{"suite", info->suite, sizeof(info->suite)},
		{"created", info->created, sizeof(info->created)},
		{"init", info->init, sizeof(info->init)},
		{"sha256", info->sha256, sizeof(info->sha256)},
	};
	const struct {
		const char *name;
		uint64_t *to;
	} numbers[] = {
		{"size", &info->size},
		{"disk_size", &info->disk_size},
		{"package_count", &info->packages},
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < sizeof(texts) / sizeof(*texts); i++)
		r = get_text(object, texts[i].name, texts[i].to, texts[i].size, e);
	for (size_t i = 0; r == 0 && i < sizeof(numbers) / sizeof(*numbers); i++)
		r = get_number(object, numbers[i].name, numbers[i].to, e);
	if (r < 0)
		return r;
	const json_t *systemd = json_object_get(object, "has_systemd");
	if (!json_is_boolean(systemd))
		return err_set(e, -EINVAL, "member has_systemd is neither true nor false");
	info->has_systemd = json_is_true(systemd);
	return 0;
}

int image_info_parse(const char *text, size_t n, struct image_info *ret, struct err *e)
{
	json_error_t why;
	struct image_info info = IMAGE_INFO_INIT;
	json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
	if (!object)
		return err_set(e, -EINVAL, "line %d, column %d: %s", why.line, why.column, why.text);
	int r = get_members(object, &info, e);
	json_decref(object);
	if (r == 0)
		*ret = info;
	return r;
}

int image_info_load(const char *directory, struct image_info *ret, struct err *e)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/image.json", directory);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, -ENAMETOOLONG, "%s/image.json", directory);
	scoped_free char *text = malloc(IMAGE_JSON_MAX);
	if (!text)
		return err_code(e, -ENOMEM, "%s", path);
	ssize_t length = file_read_text(AT_FDCWD, path, text, IMAGE_JSON_MAX, e);
	if (length < 0)
		return (int)length;
	int r = image_info_parse(text, (size_t)length, ret, e);
	return r < 0 ? err_ctx(e, r, "%s", path) : 0;
}
