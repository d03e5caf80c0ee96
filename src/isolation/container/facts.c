#include "isolation/container/facts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "resource/docker.h"

enum { LINES_MAX = 16384, ASK_MS = 60'000 };

static int copy_value(char *field, size_t size, const char *value, size_t n, struct err *e)
{
	if (n >= size)
		return err_set(e, -EPROTO, "ermite-docker printed a value of %zu bytes", n);
	memcpy(field, value, n);
	field[n] = '\0';
	return 0;
}

int facts_read(const char *text, struct docker_facts *ret, struct err *e)
{
	*ret = (struct docker_facts){0};
	const struct {
		const char *name;
		char *field;
		size_t size;
	} rows[] = {
		{"version ", ret->version, sizeof(ret->version)},
		{"image ", ret->image_id, sizeof(ret->image_id)},
		{"source ", ret->image_source, sizeof(ret->image_source)},
		{"trouble ", ret->trouble, sizeof(ret->trouble)},
	};
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&text, &line, &n)) {
		if (n == strlen("runtime sysbox-runc") && memcmp(line, "runtime sysbox-runc", n) == 0)
			ret->sysbox = true;
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
			size_t skip = strlen(rows[i].name);
			if (n < skip || memcmp(line, rows[i].name, skip) != 0)
				continue;
			int r = copy_value(rows[i].field, rows[i].size, line + skip, n - skip, e);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

void facts_ask(const char *socket, const char *image, struct docker_facts *ret)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf lines = BUF_INIT(LINES_MAX);
	const char *const arguments[] = {"ermite-docker", "probe", socket, image, NULL};
	const struct docker_call call = {
		.arguments = arguments, .mounts = -1, .ms = ASK_MS, .output = &lines};
	int r = docker_call(&call, &e);
	if (r == 0)
		r = facts_read(buf_text(&lines), ret, &e);
	if (r < 0)
		(void)snprintf(ret->trouble, sizeof(ret->trouble), "%s", e.msg);
}
