#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"

enum { LINE_BYTES = 14'000 };

/* Standard error is a file while a test runs; cmocka reports on it after. */
struct capture {
	int file;
	int real;
};

static struct capture capture_begin(void)
{
	struct capture c = {.file = memfd_create("log", MFD_CLOEXEC)};
	c.real = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	assert_true(c.file >= 0 && c.real >= 0);
	assert_true(dup2(c.file, STDERR_FILENO) == STDERR_FILENO);
	return c;
}

static void capture_end(struct capture *c, char text[static LINE_BYTES])
{
	assert_true(dup2(c->real, STDERR_FILENO) == STDERR_FILENO);
	ssize_t n = pread(c->file, text, LINE_BYTES - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	close(c->file);
	close(c->real);
}

static void test_text(void **)
{
	char text[LINE_BYTES];
	unsetenv("JOURNAL_STREAM");
	struct capture c = capture_begin();
	log_setup(LOG_TEXT, LOG_LEVEL_INFO, "keeper");
	errno = ENOENT;
	log_error("job %s ended with %d", "a", 3);
	log_warning("warning");
	log_info("first\nsecond\033[2J\xff");
	log_debug("not shown");
	assert_int_equal(errno, ENOENT);
	capture_end(&c, text);
	assert_string_equal(text, "keeper: job a ended with 3\nkeeper: warning\n"
				  "keeper: first\\x0asecond\\x1b[2J\\xff\n");
}

static void test_levels(void **)
{
	static const char *const expected[] = {
		[LOG_LEVEL_ERROR] = "x: e\n",
		[LOG_LEVEL_WARNING] = "x: e\nx: w\n",
		[LOG_LEVEL_INFO] = "x: e\nx: w\nx: i\n",
		[LOG_LEVEL_DEBUG] = "x: e\nx: w\nx: i\nx: d\n",
	};
	for (unsigned level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
		char text[LINE_BYTES];
		struct capture c = capture_begin();
		log_setup(LOG_TEXT, (enum log_level)level, "x");
		log_error("e");
		log_warning("w");
		log_info("i");
		log_debug("d");
		capture_end(&c, text);
		assert_string_equal(text, expected[level]);
	}
}

static void test_json(void **)
{
	char text[LINE_BYTES];
	struct capture c = capture_begin();
	log_setup(LOG_JSON, LOG_LEVEL_DEBUG, "keeper");
	log_warning("a \"quoted\" name\n");
	capture_end(&c, text);
	/* {"time":"2026-01-31T12:34:56Z", … */
	assert_memory_equal(text, "{\"time\":\"2", 10);
	assert_memory_equal(text + 28, "Z\"", 2);
	assert_string_equal(text + 30, ",\"level\":\"warning\",\"message\":\"a \\\"quoted\\\" name\\n\"}\n");
}

static void test_journal(void **)
{
	char text[LINE_BYTES];
	char stream[64];
	struct capture c = capture_begin();
	struct stat st = {0};
	assert_int_equal(fstat(c.file, &st), 0);
	(void)snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_setup(LOG_TEXT, LOG_LEVEL_DEBUG, "x");
	log_error("e");
	log_warning("w");
	log_info("i");
	log_debug("d");
	/* Somebody else's journal, or junk, is not ours. */
	static const char *const others[] = {"1:1", "", ":", "1", "a:b", "99999999999999999999999999999:1"};
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		setenv("JOURNAL_STREAM", others[i], 1);
		log_setup(LOG_TEXT, LOG_LEVEL_DEBUG, "x");
		log_info("%zu", i);
	}
	unsetenv("JOURNAL_STREAM");
	capture_end(&c, text);
	assert_string_equal(text, "<3>x: e\n<4>x: w\n<6>x: i\n<7>x: d\nx: 0\nx: 1\nx: 2\nx: 3\nx: 4\nx: 5\n");
}

/* A message that is far too long is cut and stays one line, in the widest escaping too. */
static void test_long_message(void **)
{
	static char message[10'000];
	memset(message, 1, sizeof(message) - 1);
	for (int format = LOG_TEXT; format <= LOG_JSON; format++) {
		char text[LINE_BYTES];
		struct capture c = capture_begin();
		log_setup(format ? LOG_JSON : LOG_TEXT, LOG_LEVEL_INFO, "x");
		log_info("%s", message);
		capture_end(&c, text);
		size_t n = strlen(text);
		assert_true(n > 8000 && n < LINE_BYTES - 1);
		assert_ptr_equal(strchr(text, '\n'), text + n - 1);
		if (format)
			assert_string_equal(text + n - 3, "\"}\n");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),         cmocka_unit_test(test_levels),
		cmocka_unit_test(test_json),         cmocka_unit_test(test_journal),
		cmocka_unit_test(test_long_message),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
