/* The image commands: options, checks of them, and what a person sees. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/scope.h"
#include "cmd/image.h"
#include "cmd/image_info.h"
#include "cmd/image_make.h"
#include "isolation/container/provide.h"
#include "spec/libexec.h"

enum { LIST_MAX = 8192, SIZE_TEXT = 32 };

struct image_options {
	const char *suite;  /* NULL: trixie */
	const char *mirror; /* NULL: Debian's own */
	struct buf include; /* names, each with a comma before it */
	bool verbose;
	bool json;
};

static const char *const image_config[] = {"state-dir", "image", NULL};
static const char *const make_config[] = {"state-dir", "image", "isolation", NULL};

/* Names reach a command line and apt: nothing that either could take for something else. */
static bool plain_word(const char *s, const char *also)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	char allowed[128];
	(void)snprintf(allowed, sizeof(allowed), "%s%s", letters, also);
	return *s && strchr(letters, *s) && s[strspn(s, allowed)] == 0;
}

static int set_suite(void *data, char *value, struct err *e)
{
	struct image_options *o = data;
	if (!plain_word(value, "-"))
		return err_set(e, -EINVAL, "%s is not the name of a Debian suite", value);
	o->suite = value;
	return 0;
}

static int set_mirror(void *data, char *value, struct err *e)
{
	struct image_options *o = data;
	static const char *const schemes[] = {"http://", "https://", "file:/", "copy:/"};
	for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++)
		if (strncmp(value, schemes[i], strlen(schemes[i])) == 0 && !strpbrk(value, " \t\n[]"))
			o->mirror = value;
	return o->mirror == value ? 0 : err_set(e, -EINVAL, "%s is not the URL of a mirror", value);
}

static int set_include(void *data, char *value, struct err *e)
{
	struct image_options *o = data;
	char *rest = NULL;
	if (!o->include.max)
		o->include = BUF_INIT(LIST_MAX);
	for (char *name = strtok_r(value, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
		if (!plain_word(name, "+-.:"))
			return err_set(e, -EINVAL, "%s is not the name of a package", name);
		buf_fmt(&o->include, ",%s", name);
	}
	return buf_check(&o->include) < 0 ? err_set(e, -E2BIG, "too many packages") : 0;
}

static int set_verbose(void *data, char *value, struct err *e)
{
	struct image_options *o = data;
	(void)value;
	(void)e;
	o->verbose = true;
	return 0;
}

static int set_json(void *data, char *value, struct err *e)
{
	struct image_options *o = data;
	(void)value;
	(void)e;
	o->json = true;
	return 0;
}

static void options_done(void *data)
{
	struct image_options *o = data;
	buf_done(&o->include);
}

/* Appends the packages of the list (one a line, # begins a comment), separated by commas. It is ours, so it may also
 * hold a pattern of apt, which may match nothing: for what not every suite has. */
static int read_packages(const char *path, struct buf *out, struct err *e)
{
	char text[LIST_MAX];
	char *rest = NULL;
	ssize_t n = file_read_text(AT_FDCWD, path, text, sizeof(text), e);
	if (n < 0)
		return (int)n;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		line[strcspn(line, "# \t")] = 0;
		if (!*line)
			continue;
		if (!plain_word(line + (*line == '?'), *line == '?' ? "+-.:()" : "+-.:"))
			return err_set(e, -EINVAL, "%s: %s is not the name of a package", path, line);
		buf_fmt(out, "%s%s", out->n ? "," : "", line);
	}
	return 0;
}

static void print_size(char text[static SIZE_TEXT], uint64_t bytes)
{
	uint64_t tenths = bytes / (1 << 20) * 10 / 1024;
	if (tenths < 10)
		(void)snprintf(text, SIZE_TEXT, "%llu MiB", (unsigned long long)(bytes >> 20));
	else
		(void)snprintf(text, SIZE_TEXT, "%llu.%llu GiB", (unsigned long long)(tenths / 10),
			       (unsigned long long)(tenths % 10));
}

/* Docker's copy belongs to the image that is used unless another one is named. */
static int feed(const struct config *config, const char *directory, const struct image_info *info,
		struct err *e)
{
	char own[CONFIG_PATH_MAX];
	config_default_image_dir(config, own);
	if (strcmp(own, directory) != 0)
		return 0;
	int r = provide_feed(config, info->sha256, e);
	if (r > 0)
		(void)printf("fed to Docker as " CONFIG_IMAGE_OCI "\n");
	return r < 0 ? err_ctx(e, r, "the image is made, but Docker has not got it") : 0;
}

/* Makes the image, says what came of it and returns the exit status. */
static int make_and_tell(const struct config *config, const struct image_request *request, struct err *e)
{
	struct image_info info = IMAGE_INFO_INIT;
	char size[SIZE_TEXT];

	if (geteuid() != 0)
		return err_set(e, -EPERM, "making an image needs root");
	int r = image_make(request, &info, e);
	if (r < 0)
		return r;
	if (r > 0) {
		command_say(NULL, "interrupted: nothing was changed");
		return 128 + r;
	}
	print_size(size, info.disk_size);
	(void)printf("%s: %s, %llu packages, %s\n", request->directory,
		     info.suite[0] ? info.suite : info.source, (unsigned long long)info.packages, size);
	return feed(config, request->directory, &info, e);
}

static int run_build(const struct config *config, void *data, char *const args[], size_t n_args,
		     struct err *e)
{
	struct image_options *o = data;
	scoped_buf struct buf packages = BUF_INIT(2 * LIST_MAX);
	char directory[CONFIG_PATH_MAX], list[CONFIG_PATH_MAX], customize[CONFIG_PATH_MAX];
	(void)args;
	(void)n_args;

	config_image_dir(config, directory);
	int r = libexec_path("image-packages.list", list, e);
	if (r == 0)
		r = libexec_path("image-customize", customize, e);
	if (r == 0)
		r = read_packages(list, &packages, e);
	if (r < 0)
		return r;
	buf_str(&packages, buf_text(&o->include));
	if (buf_check(&packages) < 0)
		return err_set(e, -E2BIG, "too many packages");
	const char *suite = o->suite ? o->suite : "trixie";
	const struct image_request request = {
		.directory = directory,
		.kind = "debian",
		.suite = suite,
		.arguments = {suite, o->mirror ? o->mirror : "", buf_text(&packages), customize},
		.verbose = o->verbose,
	};
	return make_and_tell(config, &request, e);
}

static int run_import(const struct config *config, void *data, char *const args[], size_t n_args,
		      struct err *e)
{
	const struct image_options *o = data;
	char directory[CONFIG_PATH_MAX];
	scoped_free char *archive = realpath(args[0], NULL);
	(void)n_args;

	if (!archive)
		return err_sys(e, "%s", args[0]);
	config_image_dir(config, directory);
	const struct image_request request = {
		.directory = directory,
		.kind = "tar",
		.suite = "",
		.arguments = {archive},
		.no_network = true,
		.verbose = o->verbose,
	};
	return make_and_tell(config, &request, e);
}

/* One row of the list. */
static void tell(const char *directory, const struct image_info *info, bool in_force, bool json)
{
	char size[SIZE_TEXT];
	if (!json) {
		print_size(size, info->disk_size);
		(void)printf("%c %-40s %-10s %-20s %9s %8llu\n", in_force ? '*' : ' ', directory,
			     info->suite[0] ? info->suite : "-", info->created, size,
			     (unsigned long long)info->packages);
		return;
	}
	scoped_buf struct buf line = BUF_INIT(LIST_MAX);
	buf_str(&line, "{\"directory\":");
	buf_json(&line, directory, strlen(directory));
	buf_str(&line, ",\"source\":");
	buf_json(&line, info->source, strlen(info->source));
	buf_str(&line, ",\"suite\":");
	buf_json(&line, info->suite, strlen(info->suite));
	buf_str(&line, ",\"created\":");
	buf_json(&line, info->created, strlen(info->created));
	buf_str(&line, ",\"sha256\":");
	buf_json(&line, info->sha256, strlen(info->sha256));
	buf_fmt(&line,
		",\"size\":%llu,\"disk_size\":%llu,\"package_count\":%llu,\"has_systemd\":%s,\"in_force\":%"
		"s}",
		(unsigned long long)info->size, (unsigned long long)info->disk_size,
		(unsigned long long)info->packages, info->has_systemd ? "true" : "false",
		in_force ? "true" : "false");
	(void)printf("%s\n", buf_text(&line));
}

/* Lists one directory, if it is an image. Returns 1 when it is, 0 when not, or a negative errno. */
static int list_one(const char *directory, bool in_force, bool json, struct err *e)
{
	struct image_info info = IMAGE_INFO_INIT;
	int r = image_info_load(directory, &info, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	if (r < 0)
		return r;
	tell(directory, &info, in_force, json);
	return 1;
}

/* Images can be kept under any name in the state directory; one that is being made is not listed. */
static int list_others(const struct config *config, const char *in_force, bool json, struct err *e)
{
	char directory[CONFIG_PATH_MAX];
	DIR *all = opendir(config->state_dir);
	int r = 0, found = 0;

	if (!all)
		return errno == ENOENT ? 0 : err_sys(e, "%s", config->state_dir);
	for (const struct dirent *entry; r >= 0 && (entry = readdir(all));) {
		size_t n = strlen(entry->d_name);
		int length =
			snprintf(directory, sizeof(directory), "%s/%s", config->state_dir, entry->d_name);
		if (entry->d_name[0] == '.' || (n > 4 && strcmp(entry->d_name + n - 4, ".new") == 0) ||
		    (size_t)length >= sizeof(directory) || strcmp(directory, in_force) == 0)
			continue;
		r = list_one(directory, false, json, e);
		found += r > 0;
	}
	(void)closedir(all);
	return r < 0 ? r : found;
}

static int run_list(const struct config *config, void *data, char *const args[], size_t n_args, struct err *e)
{
	const struct image_options *o = data;
	char directory[CONFIG_PATH_MAX];
	(void)args;
	(void)n_args;

	config_image_dir(config, directory);
	if (!o->json)
		(void)printf("  %-40s %-10s %-20s %9s %8s\n", "DIRECTORY", "SUITE", "CREATED", "SIZE",
			     "PACKAGES");
	int r = list_one(directory, true, o->json, e);
	if (r >= 0)
		r = list_others(config, directory, o->json, e);
	return r < 0 ? r : 0;
}

static const struct command_option build_options[] = {
	{"suite", 0, "NAME", "The Debian suite, trixie unless given.", set_suite},
	{"mirror", 0, "URL", "Where to get packages, Debian's own mirrors unless given.", set_mirror},
	{"include", 0, "PKG[,PKG...]", "Add packages; may be given more than once.", set_include},
	{"verbose", 'v', NULL, "Show all that the programs used say.", set_verbose},
	{0},
};

static const struct command_option import_options[] = {
	{"verbose", 'v', NULL, "Show all that the programs used say.", set_verbose},
	{0},
};

static const struct command_option list_options[] = {
	{"json", 0, NULL, "One JSON object for each image.", set_json},
	{0},
};

static const struct command build = {
	.name = "build",
	.args = "",
	.help = "Make the image from Debian's packages.",
	.options = build_options,
	.config = make_config,
	.data_size = sizeof(struct image_options),
	.run = run_build,
	.done = options_done,
};

static const struct command import = {
	.name = "import",
	.args = "FILE",
	.help = "Make the image from the tar of a root file system, as docker export gives one.",
	.options = import_options,
	.config = make_config,
	.min_args = 1,
	.max_args = 1,
	.data_size = sizeof(struct image_options),
	.run = run_import,
	.done = options_done,
};

static const struct command list = {
	.name = "list",
	.args = "",
	.help = "List the images of this host; * stands at the one that jobs get.",
	.options = list_options,
	.config = image_config,
	.data_size = sizeof(struct image_options),
	.run = run_list,
	.done = options_done,
};

static const struct command *const image_commands[] = {&build, &import, &list, NULL};

const struct command cmd_image = {
	.name = "image",
	.args = "",
	.help = "Make and list the images that sandboxes start from.",
	.subcommands = image_commands,
};
