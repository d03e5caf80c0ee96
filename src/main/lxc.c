#include <stdio.h>
#include <unistd.h>

#include "isolation/system/lxc.h"
#include "spec/id.h"

int main(int n, char **arguments)
{
	if (n != 2 || !id_valid(arguments[1])) {
		(void)fprintf(stderr, "ermite-lxc: started by ermite-keeper only\n");
		return LXC_MISUSED;
	}
	/* The directory that the user stood in is of no use and would be kept busy. */
	if (chdir("/") < 0)
		return LXC_MISUSED;
	return lxc_run(arguments[1]);
}
