/* The pure parts of the image commands: progress from what programs say, image.json and the list of packages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/image_info.h"
#include "cmd/image_progress.h"

static void progress_phases(void **state)
{
	static const struct {
		const char *line, *phase;
	} rows[] = {
		{"P: making the file system", "making the file system"},
		{"I: running apt-get update...", "reading the package lists"},
		{"I: downloading packages with apt...", "downloading the first packages"},
		{"I: installing remaining packages inside the chroot...", "installing packages"},
		{"I: running --customize-hook in shell: sh -c x", "customizing"},
		{"P: a\033[2Jb", "a?[2Jb"},
		{"P: 0123456789012345678901234567890123456789012345678901234567890123456789",
		 "012345678901234567890123456789012345678901234567890123456789012"},
	};
	(void)state;

	struct image_progress p = IMAGE_PROGRESS_INIT;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		assert_true(image_progress_line(&p, rows[i].line));
		assert_string_equal(p.phase, rows[i].phase);
		assert_int_equal(image_progress_percent(&p), -1);
	}
	static const char *const others[] = {"",   "I: done", "Get:1 http://x", "Setting up a (1) ...",
					     "P:", "I: "};
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		assert_false(image_progress_line(&p, others[i]));
}

static void progress_percent(void **state)
{
	static const struct {
		const char *line;
		int percent;
	} rows[] = {
		{"I: downloading packages with apt...", -1},
		{"0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.", 0},
		{"Get:1 http://deb.debian.org/debian trixie/main amd64 a amd64 1 [1 kB]", 25},
		{"Get:2 http://deb.debian.org/debian trixie/main amd64 b amd64 1 [1 kB]", 50},
		{"I: installing essential packages...", 0},
		{"Unpacking a (1) ...", 12},
		{"Setting up a (1) ...", 25},
		{"I: installing remaining packages inside the chroot...", 0},
		{"12 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.", 0},
		{"Get:1 http://x", 16},
		{"Get:2 http://x", 33},
		{"Unpacking c (1) ...", 50},
		{"Unpacking d (1) ...", 66},
		{"Setting up c (1) ...", 83},
		{"Setting up d (1) ...", 100},
		{"Setting up d (1) ...", 100},
		{"0 upgraded, x newly installed, 0 to remove", 100},
		{"0 upgraded, 99999999999999999999999 newly installed, 0 to remove", 100},
		{" newly installed,  upgraded, ", 100},
		{"P: shrinking the file system", -1},
	};
	(void)state;

	struct image_progress p = IMAGE_PROGRESS_INIT;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		(void)image_progress_line(&p, rows[i].line);
		assert_int_equal(image_progress_percent(&p), rows[i].percent);
	}
}

static void progress_text(void **state)
{
	(void)state;
	struct image_progress p = IMAGE_PROGRESS_INIT;
	scoped_buf struct buf text = BUF_INIT(256);

	image_progress_text(&p, 0, &text);
	assert_string_equal(buf_text(&text), "[  0 s] starting");
	buf_clear(&text);
	(void)image_progress_line(&p, "I: downloading packages with apt...");
	(void)image_progress_line(&p, "0 upgraded, 4 newly installed, 0 to remove and 0 not upgraded.");
	(void)image_progress_line(&p, "Get:1 x");
	image_progress_text(&p, 1234, &text);
	assert_string_equal(buf_text(&text), "[1234 s] downloading the first packages, 25 %");
}

static void packages(void **state)
{
	static const struct {
		const char *status, *json;
		uint64_t count;
	} rows[] = {
		{"", "[]", 0},
		{"\n\n", "[]", 0},
		{"Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1:2-3\n",
		 "[{\"name\":\"a\",\"version\":\"1:2-3\",\"architecture\":\"all\"}]", 1},
		{"Package: a\nStatus: install ok installed\nVersion: 1",
		 "[{\"name\":\"a\",\"version\":\"1\","
		 "\"architecture\":\"\"}]",
		 1},
		{"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
		 "Package: b\nStatus: hold ok installed\nDescription: x\n Package: c\n more\nVersion: "
		 "\"2\"\n\n",
		 "[{\"name\":\"b\",\"version\":\"\\\"2\\\"\",\"architecture\":\"\"}]", 1},
		{"Package: a\nStatus: install ok installed\nVersion: 1\n\n\n"
		 "Package: b\nStatus: install ok installed\nVersion: 2\nArchitecture: amd64\n",
		 "[{\"name\":\"a\",\"version\":\"1\",\"architecture\":\"\"},"
		 "{\"name\":\"b\",\"version\":\"2\",\"architecture\":\"amd64\"}]",
		 2},
		{"Package: \nStatus: ok installed\nVersion: \n\nStatus: ok installed\n", "[]", 0},
	};
	(void)state;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		scoped_buf struct buf json = BUF_INIT(4096);
		assert_int_equal(image_packages_json(rows[i].status, strlen(rows[i].status), &json),
				 rows[i].count);
		assert_string_equal(buf_text(&json), rows[i].json);
	}
}

static void facts(void **state)
{
	(void)state;
	struct image_info info = IMAGE_INFO_INIT;
	struct err e = ERR_INIT;

	assert_int_equal(
		image_info_facts(&info,
				 "init /sbin/init\nsystemd yes\nshape round\nempty\ncodename trixie\n"
				 "sha256 00ff",
				 &e),
		0);
	assert_string_equal(info.init, "/sbin/init");
	assert_string_equal(info.suite, "trixie");
	assert_string_equal(info.sha256, "00ff");
	assert_true(info.has_systemd);

	char text[128] = "init /";
	memset(text + 6, 'x', 63);
	assert_int_equal(image_info_facts(&info, text, &e), -EINVAL);
	assert_string_equal(e.msg, "fact init: value is too long");
	assert_string_equal(info.init, "/sbin/init");
	text[6 + 62] = 0;
	assert_int_equal(image_info_facts(&info, text, &e), 0);
}

static const struct image_info sample = {
	.source = "debian",
	.suite = "trixie",
	.created = "2026-01-31T12:34:56Z",
	.init = "/sbin/init",
	.has_systemd = true,
	.sha256 = "70e7a9e9c2c90090ed8d6aea3a8b3ec75e5c528dc201df9c4f72b711c2041974",
	.size = 2214412288,
	.disk_size = 1848885248,
	.packages = 1,
};

static void json_round_trip(void **state)
{
	(void)state;
	struct image_info back = IMAGE_INFO_INIT;
	struct err e = ERR_INIT;
	scoped_buf struct buf json = BUF_INIT(4096);

	image_info_json(&sample, "[{\"name\":\"a\",\"version\":\"1\",\"architecture\":\"all\"}]", &json);
	assert_int_equal(buf_check(&json), 0);
	assert_int_equal(image_info_parse(json.p, json.n, &back, &e), 0);
	assert_string_equal(back.source, sample.source);
	assert_string_equal(back.suite, sample.suite);
	assert_string_equal(back.created, sample.created);
	assert_string_equal(back.init, sample.init);
	assert_string_equal(back.sha256, sample.sha256);
	assert_true(back.has_systemd);
	assert_true(back.size == sample.size && back.disk_size == sample.disk_size);
	assert_int_equal(back.packages, 1);
}

static void json_refused(void **state)
{
	static const struct {
		const char *text, *message; /* how it begins */
	} rows[] = {
		{"", "line 1, column "},
		{"[]", "member source is no text"},
		{"{\"source\":\"debian-and-much-more-of-it\"}", "member source: value is too long"},
		{"{\"source\":\"a\",\"suite\":\"b\",\"created\":\"c\",\"init\":\"\",\"sha256\":\"d\","
		 "\"size\":-1}",
		 "member size is no size"},
		{"{\"source\":\"a\",\"suite\":\"b\",\"created\":\"c\",\"init\":\"\",\"sha256\":\"d\","
		 "\"size\":1,"
		 "\"disk_size\":1,\"package_count\":\"1\"}",
		 "member package_count is no size"},
		{"{\"source\":\"a\",\"suite\":\"b\",\"created\":\"c\",\"init\":\"\",\"sha256\":\"d\","
		 "\"size\":1,"
		 "\"disk_size\":1,\"package_count\":1,\"has_systemd\":1}",
		 "member has_systemd is neither true nor false"},
		{"{\"source\":\"a\",\"source\":\"b\"}", "line 1, column "},
	};
	(void)state;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct image_info info = sample;
		struct err e = ERR_INIT;
		assert_int_equal(image_info_parse(rows[i].text, strlen(rows[i].text), &info, &e), -EINVAL);
		assert_memory_equal(e.msg, rows[i].message, strlen(rows[i].message));
		assert_memory_equal(&info, &sample, sizeof(info));
	}
}

static void load(void **state)
{
	(void)state;
	char directory[] = "/tmp/test-image-XXXXXX";
	char path[64];
	struct image_info info = IMAGE_INFO_INIT;
	struct err e = ERR_INIT;

	assert_non_null(mkdtemp(directory));
	assert_int_equal(image_info_load(directory, &info, &e), -ENOENT);

	scoped_buf struct buf json = BUF_INIT(4096);
	image_info_json(&sample, "[]", &json);
	(void)snprintf(path, sizeof(path), "%s/image.json", directory);
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(json.p, 1, json.n, file), json.n);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(image_info_load(directory, &info, &e), 0);
	assert_string_equal(info.suite, "trixie");

	assert_int_equal(truncate(path, 10), 0);
	assert_int_equal(image_info_load(directory, &info, &e), -EINVAL);
	assert_non_null(strstr(e.msg, path));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(progress_phases), cmocka_unit_test(progress_percent),
		cmocka_unit_test(progress_text),   cmocka_unit_test(packages),
		cmocka_unit_test(facts),           cmocka_unit_test(json_round_trip),
		cmocka_unit_test(json_refused),    cmocka_unit_test(load),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
