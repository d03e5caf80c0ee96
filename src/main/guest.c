/*
 * The program inside every sandbox: `init` is its first process, `exec` runs what the host asks for.
 */
#include <stdio.h>
#include <string.h>

#include "guest/exec.h"
#include "guest/init.h"
#include "guest/self.h"
#include "wire/identity.h"

static int print_version(struct err *)
{
	return dprintf(1, "ermite-runner %s\n", build_identity()) < 0 ? -1 : 0;
}

static const struct {
	const char *name;
	int (*run)(struct err *e);
} commands[] = {{"init", init_run}, {"exec", exec_run}, {"--version", print_version}};

int main(int argc, char **argv)
{
	struct err e = ERR_INIT;
	for (size_t i = 0; argc == 2 && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[1], commands[i].name) != 0)
			continue;
		if (self_open_streams(&e) == 0 && commands[i].run(&e) == 0)
			return 0;
		(void)dprintf(2, "ermite-runner: %s: %s\n", argv[1], e.msg);
		return 1;
	}
	(void)dprintf(2, "usage: ermite-runner init | exec | --version\n");
	return 2;
}
