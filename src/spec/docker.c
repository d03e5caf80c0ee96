#include "spec/docker.h"

#include <errno.h>
#include <string.h>

int docker_socket(const char *docker_host, char ret[static DOCKER_SOCKET_SIZE], struct err *e)
{
	static const char scheme[] = "unix://";
	const char *path = DOCKER_SOCKET_DEFAULT;
	if (docker_host && docker_host[0]) {
		bool is_unix = strncmp(docker_host, scheme, strlen(scheme)) == 0;
		path = is_unix ? docker_host + strlen(scheme) : "";
	}
	size_t n = strnlen(path, DOCKER_SOCKET_SIZE);
	if (path[0] != '/')
		return err_set(
			e, -EINVAL,
			"DOCKER_HOST=%.100s is not a socket of this host: only unix:///PATH can be used",
			docker_host);
	if (n == DOCKER_SOCKET_SIZE)
		return err_set(e, -EINVAL, "DOCKER_HOST: the path of a socket has at most %d bytes",
			       DOCKER_SOCKET_SIZE - 1);
	/* It stands in a line of the record. */
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
			return err_set(e, -EINVAL, "DOCKER_HOST holds a control character");
	memcpy(ret, path, n + 1);
	return 0;
}
