/* ermite-runner: what a person types. */
#include "cmd/commands.h"

int main(int argc, char *argv[])
{
	return command_main(&cmd_root, argc, argv);
}
