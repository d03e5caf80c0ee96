#include "isolation/container/docker.h"

#include <stdio.h>
#include <string.h>

#include "isolation/container/docker_parts.h"

struct docker_command {
	const char *name;
	int n_arguments;
	int (*run)(char **arguments, struct err *e);
};

static const struct docker_command commands[] = {
	{"probe", 2, docker_probe},   {"pull", 2, docker_pull}, {"import", 3, docker_import},
	{"remove", 2, docker_remove}, {"list", 2, docker_list}, {"run", 0, docker_run},
};

int docker_main(int n, char **arguments)
{
	for (size_t i = 0; n > 1 && i < sizeof(commands) / sizeof(*commands); i++) {
		const struct docker_command *c = &commands[i];
		if (strcmp(arguments[1], c->name) != 0 || n - 2 != c->n_arguments)
			continue;
		struct err e = ERR_INIT;
		if (c->run(arguments + 2, &e) == 0)
			return 0;
		(void)fprintf(stderr, "%s\n", e.msg);
		return 1;
	}
	(void)fprintf(stderr, "ermite-docker: started by ermite-runner and ermite-keeper only\n");
	return 1;
}
