#include <unistd.h>

#include "isolation/container/docker.h"

int main(int n, char **arguments)
{
	/* The directory that the user stood in is of no use and would be kept busy. */
	if (chdir("/") < 0)
		return 1;
	return docker_main(n, arguments);
}
