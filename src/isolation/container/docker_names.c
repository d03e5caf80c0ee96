#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "isolation/container/docker_parts.h"

enum { REFERENCE_MAX = 512 };

bool docker_image_id_valid(const char *id)
{
	static const char prefix[] = "sha256:";
	if (strncmp(id, prefix, sizeof(prefix) - 1) != 0)
		return false;
	id += sizeof(prefix) - 1;
	return strlen(id) == 64 && strspn(id, "0123456789abcdef") == 64;
}

bool docker_reference_valid(const char *reference)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._/:@";
	size_t n = strlen(reference);
	return n > 0 && n < REFERENCE_MAX && strspn(reference, allowed) == n && *reference != '/' &&
	       *reference != '-' && !strstr(reference, "..") && !strstr(reference, "//") &&
	       reference[n - 1] != '/';
}

void docker_escape(struct buf *path, const char *text)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/:";
	for (const char *at = text; *at; at++) {
		if (strchr(plain, *at))
			buf_add(path, at, 1);
		else
			buf_fmt(path, "%%%02X", (unsigned)(unsigned char)*at);
	}
}

int docker_reference_add(const char *reference, struct buf *path, struct err *e)
{
	const char *digest = strchr(reference, '@');
	const char *slash = strrchr(reference, '/');
	const char *colon = strrchr(reference, ':');
	const char *tag = digest ? digest : colon && (!slash || colon > slash) ? colon : NULL;
	char name[REFERENCE_MAX] = "";
	size_t n = tag ? (size_t)(tag - reference) : strlen(reference);
	if (n == 0 || n >= sizeof(name) || (tag && !tag[1]))
		return err_set(e, -EINVAL, "%s is not the name of an image", reference);
	(void)snprintf(name, sizeof(name), "%.*s", (int)n, reference);
	docker_escape(path, name);
	buf_str(path, "&tag=");
	docker_escape(path, tag ? tag + 1 : "latest");
	return 0;
}
