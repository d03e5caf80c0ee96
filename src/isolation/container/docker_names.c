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
