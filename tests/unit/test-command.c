#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "cmd/command.h"

enum { ARGS_MAX = 12, OUT_MAX = 4096 };

/* What the fake command below was given; a test looks at it afterwards. */
static struct {
	bool flag;
	char text[64];
	unsigned cpus;
	size_t n_args;
	char last[64];
	int answer;
	unsigned times_run, times_done;
} seen;

struct fake {
	bool flag;
	char *text;
};

static int set_flag(void *data, char *value, struct err *e)
{
	if (value)
		return err_set(e, -EINVAL, "a value came");
	((struct fake *)data)->flag = true;
	return 0;
}

static int set_text(void *data, char *value, struct err *e)
{
	if (strcmp(value, "bad") == 0)
		return err_set(e, -EINVAL, "\"bad\" is not accepted");
	((struct fake *)data)->text = value;
	return 0;
}

static int fake_run(const struct config *c, void *data, char *const args[], size_t n_args, struct err *e)
{
	const struct fake *f = data;
	seen.times_run++;
	seen.flag = f->flag;
	(void)snprintf(seen.text, sizeof(seen.text), "%s", f->text ? f->text : "");
	seen.cpus = c->job_cpus;
	seen.n_args = n_args;
	(void)snprintf(seen.last, sizeof(seen.last), "%s", n_args ? args[n_args - 1] : "");
	assert_null(args[n_args]);
	return seen.answer < 0 ? err_set(e, seen.answer, "it broke\nin two") : seen.answer;
}

static void fake_done(void *)
{
	seen.times_done++;
}

static const struct command_option fake_options[] = {
	{"flag", 'f', NULL, "Raise the flag.", set_flag},
	{"text", 't', "TEXT", "Take a text.", set_text},
	{0},
};

static const char *const fake_config[] = {"job-cpus", NULL};

static const struct command fake = {
	.name = "fake",
	.args = "THING [THING]",
	.help = "Do a thing.",
	.options = fake_options,
	.config = fake_config,
	.min_args = 1,
	.max_args = 2,
	.data_size = sizeof(struct fake),
	.run = fake_run,
	.done = fake_done,
};

static const struct command strict = {
	.name = "strict",
	.args = "",
	.help = "Take nothing.",
	.failed_status = 125,
	.usage_status = 125,
	.data_size = sizeof(struct fake),
	.run = fake_run,
};

static const struct command *const inner_table[] = {&fake, NULL};
static const struct command inner = {
	.name = "inner", .args = "", .help = "Hold commands.", .subcommands = inner_table};
static const struct command *const root_table[] = {&fake, &strict, &inner, NULL};
static const struct command root = {
	.name = "ermite-runner", .args = "", .help = "Test.", .subcommands = root_table};

/* Where the output of a call goes, and what it was. */
static void read_back(int fd, char text[static OUT_MAX])
{
	ssize_t n = pread(fd, text, OUT_MAX - 1, 0);
	text[n > 0 ? n : 0] = '\0';
}

/* Runs the command line, which is split at blanks. Standard output and error come back in out and err. */
static int call(const char *line, char out[static OUT_MAX], char err[static OUT_MAX])
{
	char words[256];
	char *argv[ARGS_MAX + 1] = {NULL};
	int argc = 0;
	(void)snprintf(words, sizeof(words), "%s", line);
	char *rest = NULL;
	for (char *w = strtok_r(words, " ", &rest); w && argc < ARGS_MAX; w = strtok_r(NULL, " ", &rest))
		argv[argc++] = w;
	static const int fds[2] = {STDOUT_FILENO, STDERR_FILENO};
	int saved[2] = {-1, -1};
	int files[2] = {-1, -1};
	(void)fflush(stdout);
	for (int i = 0; i < 2; i++) {
		saved[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		files[i] = memfd_create("output", MFD_CLOEXEC);
		assert_int_equal(dup2(files[i], fds[i]), fds[i]);
	}
	int answer = seen.answer;
	memset(&seen, 0, sizeof(seen));
	seen.answer = answer;
	int status = command_main(&root, argc, argv);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(dup2(saved[i], fds[i]), fds[i]);
		read_back(files[i], i == 0 ? out : err);
		(void)close(saved[i]);
		(void)close(files[i]);
	}
	return status;
}

static int no_configuration(void **)
{
	seen.answer = 0;
	return unsetenv("ERMITE_RUNNER_JOB_CPUS");
}

static void options_arrive(void **)
{
	static const struct {
		const char *line;
		bool flag;
		const char *text;
		unsigned cpus;
		size_t n_args;
		const char *last;
	} rows[] = {
		{"ermite-runner fake a", false, "", 2, 1, "a"},
		{"ermite-runner fake --flag a b", true, "", 2, 2, "b"},
		{"ermite-runner fake -f -t x a", true, "x", 2, 1, "a"},
		{"ermite-runner fake -ftx a", true, "x", 2, 1, "a"},
		{"ermite-runner fake --text=y --text z a", false, "z", 2, 1, "a"},
		{"ermite-runner fake --job-cpus 7 -- --flag", false, "", 7, 1, "--flag"},
		{"ermite-runner fake a --flag", false, "", 2, 2, "--flag"},
		{"ermite-runner inner fake -t x a", false, "x", 2, 1, "a"},
	};
	char out[OUT_MAX];
	char err[OUT_MAX];
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(call(rows[i].line, out, err), 0);
		assert_string_equal(err, "");
		assert_int_equal(seen.times_run, 1);
		assert_int_equal(seen.times_done, 1);
		assert_int_equal(seen.flag, rows[i].flag);
		assert_string_equal(seen.text, rows[i].text);
		assert_int_equal(seen.cpus, rows[i].cpus);
		assert_int_equal(seen.n_args, rows[i].n_args);
		assert_string_equal(seen.last, rows[i].last);
	}
}

static void refusals(void **)
{
	static const struct {
		const char *line;
		int status;
		const char *err;
	} rows[] = {
		{"ermite-runner", 2, "ermite-runner: no command given: see \"ermite-runner --help\"\n"},
		{"ermite-runner inner", 2,
		 "ermite-runner: no command given: see \"ermite-runner inner --help\"\n"},
		{"ermite-runner nope", 2,
		 "ermite-runner: unknown command \"nope\": see \"ermite-runner --help\"\n"},
		{"ermite-runner inner nope", 2,
		 "ermite-runner: unknown command \"nope\": see \"ermite-runner inner --help\"\n"},
		{"ermite-runner --nope", 2,
		 "ermite-runner: unknown option --nope: see \"ermite-runner --help\"\n"},
		{"ermite-runner fake --nope=1 a", 2,
		 "ermite-runner: unknown option --nope: see \"ermite-runner fake --help\"\n"},
		{"ermite-runner fake -fx a", 2,
		 "ermite-runner: unknown option -x: see \"ermite-runner fake --help\"\n"},
		{"ermite-runner fake --version a", 2,
		 "ermite-runner: unknown option --version: see \"ermite-runner fake --help\"\n"},
		{"ermite-runner fake --capacity 2 a", 2,
		 "ermite-runner: unknown option --capacity: see \"ermite-runner fake --help\"\n"},
		{"ermite-runner fake --text", 2, "ermite-runner: option --text needs a value\n"},
		{"ermite-runner fake -t", 2, "ermite-runner: option -t needs a value\n"},
		{"ermite-runner fake --flag=1 a", 2, "ermite-runner: option --flag takes no value\n"},
		{"ermite-runner fake --text bad a", 2, "ermite-runner: --text: \"bad\" is not accepted\n"},
		{"ermite-runner fake", 2,
		 "ermite-runner: fake needs THING [THING]: see \"ermite-runner fake --help\"\n"},
		{"ermite-runner fake a b c", 2,
		 "ermite-runner: fake does not take \"c\": see \"ermite-runner fake --help\"\n"},
		{"ermite-runner strict a", 125,
		 "ermite-runner: strict does not take \"a\": see \"ermite-runner strict --help\"\n"},
		{"ermite-runner strict --x", 125,
		 "ermite-runner: unknown option --x: see \"ermite-runner strict --help\"\n"},
	};
	char out[OUT_MAX];
	char err[OUT_MAX];
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(call(rows[i].line, out, err), rows[i].status);
		assert_string_equal(err, rows[i].err);
		assert_string_equal(out, "");
		assert_int_equal(seen.times_run, 0);
	}
}

static void bad_configuration_is_named(void **)
{
	char out[OUT_MAX];
	char err[OUT_MAX];
	assert_int_equal(call("ermite-runner fake --job-cpus 0 a", out, err), 2);
	assert_non_null(strstr(err, "0"));
	assert_non_null(strstr(err, "128"));
	assert_int_equal(setenv("ERMITE_RUNNER_JOB_CPUS", "many", 1), 0);
	assert_int_equal(call("ermite-runner fake a", out, err), 2);
	assert_non_null(strstr(err, "ERMITE_RUNNER_JOB_CPUS"));
	/* A command that uses no configuration is not bothered by it. */
	assert_int_equal(call("ermite-runner strict", out, err), 0);
	assert_int_equal(setenv("ERMITE_RUNNER_JOB_CPUS", "5", 1), 0);
	assert_int_equal(call("ermite-runner fake a", out, err), 0);
	assert_int_equal(seen.cpus, 5);
	assert_int_equal(call("ermite-runner fake --job-cpus 6 a", out, err), 0);
	assert_int_equal(seen.cpus, 6);
}

static void failure_is_one_line(void **)
{
	char out[OUT_MAX];
	char err[OUT_MAX];
	seen.answer = -EIO;
	assert_int_equal(call("ermite-runner fake a", out, err), 1);
	assert_string_equal(err, "ermite-runner: it broke\\x0ain two\n");
	assert_int_equal(call("ermite-runner strict", out, err), 125);
	seen.answer = 42;
	assert_int_equal(call("ermite-runner fake a", out, err), 42);
	assert_string_equal(err, "");
}

static void help_comes_from_the_table(void **)
{
	static const char *const lines[] = {"ermite-runner fake --help", "ermite-runner fake -h",
					    "ermite-runner fake -f --help --nope"};
	char out[OUT_MAX];
	char err[OUT_MAX];
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(call(lines[i], out, err), 0);
		assert_string_equal(err, "");
		assert_int_equal(seen.times_run, 0);
		assert_ptr_equal(
			strstr(out, "Usage: ermite-runner fake [OPTION...] THING [THING]\n\nDo a thing.\n"),
			out);
		assert_non_null(strstr(out, "\n  -f, --flag                      Raise the flag.\n"));
		assert_non_null(strstr(out, "\n  -t, --text TEXT                 Take a text.\n"));
		assert_non_null(strstr(out, "\n      --job-cpus VALUE            "));
		assert_null(strstr(out, "--capacity"));
	}
	assert_int_equal(call("ermite-runner inner --help", out, err), 0);
	assert_non_null(strstr(out, "\n  fake       Do a thing.\n"));
	assert_int_equal(call("ermite-runner --help", out, err), 0);
	assert_non_null(strstr(out, "\n  strict     Take nothing.\n"));
	assert_non_null(strstr(out, "\n      --version                   Show the version.\n"));
}

static void version(void **)
{
	char out[OUT_MAX];
	char err[OUT_MAX];
	assert_int_equal(call("ermite-runner --version", out, err), 0);
	assert_ptr_equal(strstr(out, "ermite-runner "), out);
	assert_int_equal(out[strlen(out) - 1], '\n');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(options_arrive, no_configuration),
		cmocka_unit_test_setup(refusals, no_configuration),
		cmocka_unit_test_setup(bad_configuration_is_named, no_configuration),
		cmocka_unit_test_setup(failure_is_one_line, no_configuration),
		cmocka_unit_test_setup(help_comes_from_the_table, no_configuration),
		cmocka_unit_test_setup(version, no_configuration),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
