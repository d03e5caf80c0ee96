#include "cmd/command.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/scope.h"
#include "wire/identity.h"

enum { OPTIONS_MAX = 128, PATH_BYTES = 128, HELP_COLUMN = 34, HELP_MAX = 65536, SAY_MAX = 4096 };

/* getopt_long() answers with these, above every letter: own options, then configuration options. */
enum { VALUE_HELP = 256, VALUE_VERSION, VALUE_OWN, VALUE_CONFIG = VALUE_OWN + OPTIONS_MAX };

const char *const command_config_all[] = {NULL};

/* One command being called. */
struct call {
	const struct command *command;
	bool is_root;          /* it is the program itself */
	char path[PATH_BYTES]; /* how it was called, "ermite-runner run" */
	struct config config;
	void *data;
	struct option longs[OPTIONS_MAX + 1];
	size_t n_longs;
	struct buf letters;
};

void command_say(const char *kind, const char *text)
{
	scoped_buf struct buf line = BUF_INIT(4 * SAY_MAX);
	buf_fmt(&line, "%s: ", COMMAND_PROGRAM);
	if (kind)
		buf_fmt(&line, "%s: ", kind);
	buf_plain(&line, text, strnlen(text, SAY_MAX));
	buf_str(&line, "\n");
	/* One write, so that lines of several processes do not mix. */
	ssize_t written = write(STDERR_FILENO, buf_text(&line), line.n);
	(void)written;
}

static bool uses_config(const struct command *c, const char *option)
{
	if (!c->config)
		return false;
	if (c->config == command_config_all)
		return true;
	for (size_t i = 0; c->config[i]; i++)
		if (strcmp(c->config[i], option) == 0)
			return true;
	return false;
}

/* Starts an option's line and goes to the column of its help. */
static void help_option(struct buf *out, char letter, const char *name, const char *argument)
{
	size_t start = out->n;
	if (letter)
		buf_fmt(out, "  -%c, --%s", letter, name);
	else
		buf_fmt(out, "      --%s", name);
	if (argument)
		buf_fmt(out, " %s", argument);
	size_t used = out->n - start;
	if (used + 2 > HELP_COLUMN)
		buf_fmt(out, "\n%*s", HELP_COLUMN, "");
	else
		buf_fmt(out, "%*s", (int)(HELP_COLUMN - used), "");
}

static void help_own_options(const struct command *c, bool is_root, struct buf *out)
{
	buf_str(out, "\nOptions:\n");
	for (const struct command_option *o = c->options; o && o->name; o++) {
		help_option(out, o->letter, o->name, o->argument);
		buf_fmt(out, "%s\n", o->help);
	}
	help_option(out, 'h', "help", NULL);
	buf_str(out, "Show this help.\n");
	if (!is_root)
		return;
	help_option(out, 0, "version", NULL);
	buf_str(out, "Show the version.\n");
}

static void help_config(const struct command *c, struct buf *out)
{
	size_t n = 0;
	const struct config_item *items = config_items(&n);
	buf_fmt(out, "\nConfiguration, also as ERMITE_RUNNER_* in the environment and in %s:\n", CONFIG_FILE);
	for (size_t i = 0; i < n; i++) {
		if (!uses_config(c, items[i].option))
			continue;
		help_option(out, 0, items[i].option, "VALUE");
		buf_fmt(out, "%s\n%*s(%s", items[i].help, HELP_COLUMN, "", items[i].accepted);
		if (items[i].default_text[0])
			buf_fmt(out, "; default: %s", items[i].default_text);
		buf_str(out, ")\n");
	}
}

/* Appends the help of the command being called. */
static void add_help(const struct call *call, struct buf *out)
{
	const struct command *c = call->command;
	const char *path = call->path;
	const char *args = c->subcommands ? "COMMAND" : "[OPTION...]";
	buf_fmt(out, "Usage: %s %s%s%s\n\n%s\n", path, args, c->args[0] ? " " : "", c->args, c->help);
	if (c->subcommands)
		buf_str(out, "\nCommands:\n");
	for (size_t i = 0; c->subcommands && c->subcommands[i]; i++)
		buf_fmt(out, "  %-10s %s\n", c->subcommands[i]->name, c->subcommands[i]->help);
	help_own_options(c, call->is_root, out);
	if (c->config)
		help_config(c, out);
	if (c->subcommands)
		buf_fmt(out, "\n\"%s COMMAND --help\" says more about a command.\n", path);
}

static void add_long(struct call *call, const char *name, bool has_argument, int value)
{
	assert(call->n_longs < OPTIONS_MAX);
	call->longs[call->n_longs++] = (struct option){
		.name = name, .has_arg = has_argument ? required_argument : no_argument, .val = value};
}

/* Makes getopt_long()'s tables. A name that is both, the command's own option wins. */
static void prepare_options(struct call *call)
{
	/* "+": stop at the first argument that is no option; ":": tell a missing value from an unknown option. */
	buf_str(&call->letters, "+:h");
	add_long(call, "help", false, VALUE_HELP);
	if (call->is_root)
		add_long(call, "version", false, VALUE_VERSION);
	const struct command_option *own = call->command->options;
	for (int i = 0; own && own[i].name; i++) {
		add_long(call, own[i].name, own[i].argument, VALUE_OWN + i);
		if (own[i].letter)
			buf_fmt(&call->letters, "%c%s", own[i].letter, own[i].argument ? ":" : "");
	}
	size_t n = 0;
	const struct config_item *items = config_items(&n);
	for (size_t i = 0; i < n; i++)
		if (uses_config(call->command, items[i].option))
			add_long(call, items[i].option, true, VALUE_CONFIG + (int)i);
	call->longs[call->n_longs] = (struct option){0};
}

/* The sentence for an option that getopt_long() refused; found is '?' or ':'. */
static int refuse_option(const struct call *call, int found, char *const argv[], struct err *e)
{
	char letter[3] = {'-', (char)optopt, '\0'};
	const char *text = optopt > 0 && optopt < VALUE_HELP ? letter : argv[optind - 1];
	int n = (int)strcspn(text, "=");
	if (found == ':')
		return err_set(e, -EINVAL, "option %.*s needs a value", n, text);
	if (optopt >= VALUE_HELP)
		return err_set(e, -EINVAL, "option %.*s takes no value", n, text);
	return err_set(e, -EINVAL, "unknown option %.*s: see \"%s --help\"", n, text, call->path);
}

static int set_own(struct call *call, const struct command_option *option, struct err *e)
{
	assert(option);
	int r = option->set(call->data, optarg, e);
	return r < 0 ? err_ctx(e, r, "--%s", option->name) : 0;
}

static const struct command_option *own_by_letter(const struct command *c, int letter)
{
	for (const struct command_option *o = c->options; o && o->name; o++)
		if (o->letter == letter)
			return o;
	return NULL;
}

/* Takes one option. Returns 0, a VALUE_ that asks for text instead of work, or a negative errno. */
static int take_option(struct call *call, int found, char *const argv[], struct err *e)
{
	if (found == '?' || found == ':')
		return refuse_option(call, found, argv, e);
	if (found == 'h' || found == VALUE_HELP)
		return VALUE_HELP;
	if (found == VALUE_VERSION)
		return VALUE_VERSION;
	if (found >= VALUE_CONFIG) {
		size_t n = 0;
		return config_set(&call->config, config_items(&n)[found - VALUE_CONFIG].option, optarg, e);
	}
	const struct command *c = call->command;
	return set_own(call, found >= VALUE_OWN ? &c->options[found - VALUE_OWN] : own_by_letter(c, found),
		       e);
}

static int parse_options(struct call *call, int argc, char *argv[], struct err *e)
{
	/* 0 makes glibc forget an earlier scan, also one that stopped inside a cluster of letters. */
	optind = 0;
	opterr = 0;
	for (;;) {
		int found = getopt_long(argc, argv, buf_text(&call->letters), call->longs, NULL);
		if (found < 0)
			return 0;
		int r = take_option(call, found, argv, e);
		if (r != 0)
			return r;
	}
}

static int print_text(const struct buf *text, struct err *e)
{
	if (buf_check(text) < 0 || fputs(buf_text(text), stdout) < 0 || fflush(stdout) != 0)
		return err_sys(e, "write to standard output");
	return 0;
}

static int print_help(const struct call *call, struct err *e)
{
	scoped_buf struct buf text = BUF_INIT(HELP_MAX);
	add_help(call, &text);
	return print_text(&text, e);
}

static int print_version(struct err *e)
{
	scoped_buf struct buf text = BUF_INIT(HELP_MAX);
	buf_fmt(&text, "%s %s\n", COMMAND_PROGRAM, build_identity());
	return print_text(&text, e);
}

static void log_as_configured(const struct config *c)
{
	bool is_text = c->log == LOG_CHOICE_TEXT || (c->log == LOG_CHOICE_DEFAULT && isatty(STDERR_FILENO));
	log_setup(is_text ? LOG_TEXT : LOG_JSON, (enum log_level)c->log_level, COMMAND_PROGRAM);
}

static int check_count(const struct call *call, unsigned n, const char *extra, struct err *e)
{
	const struct command *c = call->command;
	if (n < c->min_args)
		return err_set(e, -EINVAL, "%s needs %s: see \"%s --help\"", c->name, c->args, call->path);
	if (n > c->max_args)
		return err_set(e, -EINVAL, "%s does not take \"%s\": see \"%s --help\"", c->name, extra,
			       call->path);
	return 0;
}

/* Reads everything that the command's run function is given. Returns as take_option(). */
static int prepare(struct call *call, int argc, char *argv[], struct err *e)
{
	prepare_options(call);
	if (call->command->config) {
		int r = config_load(&call->config, CONFIG_FILE, environ, e);
		if (r < 0)
			return r;
	}
	int r = parse_options(call, argc, argv, e);
	if (r != 0)
		return r;
	unsigned n = (unsigned)(argc - optind);
	r = check_count(call, n,
			n > call->command->max_args ? argv[optind + (int)call->command->max_args] : "", e);
	if (r < 0 || !call->command->config)
		return r;
	return config_check(&call->config, e);
}

static int report(const struct err *e, int status)
{
	command_say(NULL, e->msg);
	return status;
}

/* Runs a command without subcommands, or the options of one with them. */
static int call_command(struct call *call, int argc, char *argv[])
{
	const struct command *c = call->command;
	struct err e = ERR_INIT;
	int usage_status = c->usage_status ? c->usage_status : COMMAND_USAGE;
	int failed_status = c->failed_status ? c->failed_status : COMMAND_FAILED;
	int r = prepare(call, argc, argv, &e);
	if (r < 0)
		return report(&e, usage_status);
	if (r == VALUE_HELP || r == VALUE_VERSION) {
		r = r == VALUE_HELP ? print_help(call, &e) : print_version(&e);
		return r < 0 ? report(&e, failed_status) : 0;
	}
	if (!c->run) {
		(void)err_set(&e, -EINVAL, "no command given: see \"%s --help\"", call->path);
		return report(&e, usage_status);
	}
	log_as_configured(&call->config);
	r = c->run(&call->config, call->data, argv + optind, (size_t)(argc - optind), &e);
	return r < 0 ? report(&e, failed_status) : r;
}

static const struct command *find(const struct command *const *table, const char *name)
{
	for (size_t i = 0; table[i]; i++)
		if (strcmp(table[i]->name, name) == 0)
			return table[i];
	return NULL;
}

/* Goes down the tree of commands by name, then calls what was found. */
static int descend(struct call *call, const struct command *root, int argc, char *argv[])
{
	call->command = root;
	(void)snprintf(call->path, sizeof(call->path), "%s", root->name);
	while (call->command->subcommands && argc > 1 && argv[1][0] != '-') {
		const struct command *next = find(call->command->subcommands, argv[1]);
		if (!next) {
			struct err e = ERR_INIT;
			(void)err_set(&e, -EINVAL, "unknown command \"%s\": see \"%s --help\"", argv[1],
				      call->path);
			return report(&e, COMMAND_USAGE);
		}
		size_t n = strlen(call->path);
		(void)snprintf(call->path + n, sizeof(call->path) - n, " %s", next->name);
		call->command = next;
		argc--;
		argv++;
	}
	call->is_root = call->command == root;
	if (call->command->data_size > 0) {
		call->data = calloc(1, call->command->data_size);
		if (!call->data)
			return report(&(struct err){.msg = "out of memory"}, COMMAND_FAILED);
	}
	int status = call_command(call, argc, argv);
	if (call->command->done && call->data)
		call->command->done(call->data);
	free(call->data);
	return status;
}

int command_main(const struct command *root, int argc, char *argv[])
{
	scoped_free struct call *call = calloc(1, sizeof(*call));
	if (!call)
		return report(&(struct err){.msg = "out of memory"}, COMMAND_FAILED);
	call->letters = BUF_INIT(HELP_MAX);
	config_defaults(&call->config);
	int status = descend(call, root, argc, argv);
	buf_done(&call->letters);
	return status;
}
