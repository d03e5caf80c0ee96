#include "isolation/system/apparmor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"
#include "spec/libexec.h"

bool apparmor_enabled(void)
{
	char text[8];
	return file_read_text(AT_FDCWD, "/sys/module/apparmor/parameters/enabled", text, sizeof(text), NULL) >
		       0 &&
	       text[0] == 'Y';
}

const char *apparmor_parser(void)
{
	static const char *const candidates[] = {"/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"};
	for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++)
		if (access(candidates[i], X_OK) == 0)
			return candidates[i];
	return NULL;
}

static bool is_loaded(void)
{
	scoped_file FILE *f = fopen("/sys/kernel/security/apparmor/profiles", "re");
	scoped_free char *line = NULL;
	size_t size = 0;
	while (f && getline(&line, &size, f) > 0)
		if (strncmp(line, APPARMOR_PROFILE " ", strlen(APPARMOR_PROFILE " ")) == 0)
			return true;
	return false;
}

int apparmor_load(struct err *e)
{
	char path[CONFIG_PATH_MAX];
	if (!apparmor_enabled() || is_loaded())
		return 0;
	const char *parser = apparmor_parser();
	if (!parser)
		return err_set(e, -ENOENT, "apparmor_parser is not installed (apt install apparmor)");
	int r = libexec_path(APPARMOR_PROFILE ".apparmor", path, e);
	if (r < 0)
		return r;
	const char *const arguments[] = {"apparmor_parser", "--replace", path, NULL};
	r = child_run(parser, arguments, STDERR_FILENO, e);
	if (r > 0)
		return err_set(e, -EIO, "apparmor_parser refused %s with status %d", path, r);
	return r;
}
