#include "isolation/container/docker.h"

int main(int n, char **arguments)
{
	return docker_main(n, arguments);
}
