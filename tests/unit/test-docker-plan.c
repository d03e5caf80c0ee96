#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/docker_plan.h"
#include "isolation/container/engine_answer.h"

enum { GOLDEN_MAX = 16384 };

#define IMAGE_ID "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Where the golden texts lie: the test's argument. */
static const char *golden_dir;

static struct docker_plan sample(void)
{
	return (struct docker_plan){
		.choice = {.socket = "/run/docker.sock", .image = IMAGE_ID},
		.id = "er1a2b3c4d",
		.job_id = "task 7",
		.store = "/var/lib/ermite-runner",
		.guest_dir = "/usr/libexec/ermite-runner/guest",
		.door_dir = "/var/lib/ermite-runner/sandboxes/er1a2b3c4d/door",
		.memory_bytes = UINT64_C(4) << 30,
		.cpus = 2,
		.pids = 8192,
		.capabilities = UINT64_C(0x1ffffffffff),
		.full = true,
	};
}

/* A host without CAP_SYS_RESOURCE. */
static struct docker_plan sample_singly(void)
{
	struct docker_plan plan = sample();
	plan.capabilities &= ~(UINT64_C(1) << 24);
	plan.full = false;
	return plan;
}

static json_t *image_of(const char *text)
{
	json_t *image = NULL;
	assert_int_equal(answer_parse(text, strlen(text), &image, NULL), 0);
	return image;
}

/* The request as text, which the caller frees. */
static char *request_text(const struct docker_plan *plan, unsigned version, const char *image_text)
{
	scoped_json json_t *image = image_of(image_text);
	scoped_json json_t *request = NULL;
	struct err e = ERR_INIT;
	int r = docker_plan_request(plan, version, image, &request, &e);
	assert_string_equal(e.msg, "");
	assert_int_equal(r, 0);
	char *text = json_dumps(request, JSON_INDENT(2));
	assert_non_null(text);
	return text;
}

static void check_golden(const char *name, const struct docker_plan *plan, unsigned version,
			 const char *image)
{
	char path[512];
	scoped_free char *text = request_text(plan, version, image);
	scoped_free char *golden = calloc(1, GOLDEN_MAX);
	assert_non_null(golden);
	(void)snprintf(path, sizeof(path), "%s/docker-%s.json", golden_dir, name);
	assert_true(file_read_text(AT_FDCWD, path, golden, GOLDEN_MAX, NULL) > 0);
	assert_string_equal(text, golden);
}

static void test_privileged(void **)
{
	const struct docker_plan plan = sample();
	check_golden("privileged", &plan, 45, "{\"Config\":{}}");
}

/* An engine of API 1.41 has no names for CAP_PERFMON and what came after it. */
static void test_singly_old(void **)
{
	const struct docker_plan plan = sample_singly();
	check_golden("singly-41", &plan, 41, "{\"Config\":{\"Volumes\":null}}");
}

static void test_singly_new(void **)
{
	const struct docker_plan plan = sample_singly();
	check_golden("singly-42", &plan, 42, "{\"Config\":{\"Volumes\":{}}}");
}

static void test_sysbox(void **)
{
	struct docker_plan plan = sample_singly();
	plan.choice.sysbox = true;
	check_golden("sysbox", &plan, 45, "{\"Config\":null}");
}

static void test_volumes(void **)
{
	const struct docker_plan plan = sample();
	check_golden("volumes", &plan, 45,
		     "{\"Config\":{\"Volumes\":{\"/data\":{},\"/data/\":{},\"/run\":{},\"/run/ermite/\":{},"
		     "\"/opt/ermite\":{},\"/srv/a b:c\":{},\"/sys/fs/cgroup\":{}}}}");
}

/* What stands in the label of the caller's name. */
static void test_job_ids(void **)
{
	static const struct {
		const char *job_id, *label;
	} rows[] = {
		{"", ""},
		{"a \"b\" \\ {}", "a \"b\" \\ {}"},
		{"line\nfeed\x1b[2J", "line\\x0afeed\\x1b[2J"},
		{"\xc3\xbc \xff", "\xc3\xbc \\xff"},
	};
	scoped_json json_t *image = image_of("{}");
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct docker_plan plan = sample();
		(void)snprintf(plan.job_id, sizeof(plan.job_id), "%s", rows[i].job_id);
		scoped_json json_t *request = NULL;
		assert_int_equal(docker_plan_request(&plan, 45, image, &request, NULL), 0);
		const char *label = NULL;
		assert_int_equal(
			answer_text(json_object_get(request, "Labels"), DOCKER_LABEL_CALLER, &label, NULL),
			0);
		assert_string_equal(label, rows[i].label);
	}
}

static void test_bad_images(void **)
{
	static const char *const images[] = {
		"[]",
		"{\"Config\":[]}",
		"{\"Config\":{\"Volumes\":[]}}",
		"{\"Config\":{\"Volumes\":{\"\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"/\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"///\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"data\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"/a/../b\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"/a/..\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"/a/.\":{}}}}",
		"{\"Config\":{\"Volumes\":{\"/a//b\":{}}}}",
	};
	const struct docker_plan plan = sample();
	for (size_t i = 0; i < sizeof(images) / sizeof(*images); i++) {
		scoped_json json_t *image = image_of(images[i]);
		json_t *request = NULL;
		struct err e = ERR_INIT;
		assert_int_equal(docker_plan_request(&plan, 45, image, &request, &e), -EPROTO);
		assert_non_null(strstr(e.msg, "image"));
		assert_null(request);
	}
}

/* As many volumes as are covered, and one more. */
static void test_many_volumes(void **)
{
	const struct docker_plan plan = sample();
	scoped_json json_t *image = image_of("{\"Config\":{\"Volumes\":{}}}");
	json_t *volumes = json_object_get(json_object_get(image, "Config"), "Volumes");
	for (int i = 0; i < 65; i++) {
		char path[16];
		json_t *request = NULL;
		(void)snprintf(path, sizeof(path), "/v%d", i);
		assert_int_equal(json_object_set_new(volumes, path, json_object()), 0);
		int r = docker_plan_request(&plan, 45, image, &request, NULL);
		assert_int_equal(r, i < 64 ? 0 : -EPROTO);
		json_decref(request);
	}
}

/* A directory of the host may have any name, but Docker speaks UTF-8. */
static void test_bad_paths(void **)
{
	scoped_json json_t *image = image_of("{}");
	struct docker_plan plans[3] = {sample(), sample(), sample()};
	plans[0].store[1] = '\xff';
	plans[1].guest_dir[1] = '\xff';
	plans[2].door_dir[1] = '\xff';
	for (size_t i = 0; i < 3; i++) {
		json_t *request = NULL;
		assert_int_equal(docker_plan_request(&plans[i], 45, image, &request, NULL), -EINVAL);
	}
}

static void test_read(void **)
{
	struct docker_plan plan = sample(), back;
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), 0);
	assert_string_equal(back.id, plan.id);
	assert_int_equal(docker_plan_read(&plan, sizeof(plan) - 1, &back, NULL), -EINVAL);
	memset(plan.job_id, 'x', sizeof(plan.job_id));
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), -EINVAL);
	plan = sample();
	plan.id[2] = 'X';
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), -EINVAL);
	plan = sample();
	plan.choice.image[8] = '/';
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), -EINVAL);
	plan = sample();
	plan.cpus = 0;
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), -EINVAL);
	plan = sample();
	plan.guest_dir[0] = 'x';
	assert_int_equal(docker_plan_read(&plan, sizeof(plan), &back, NULL), -EINVAL);
}

static void test_references(void **)
{
	static const struct {
		const char *reference;
		bool valid, id;
	} rows[] = {
		{"debian", true, false},
		{"ermite-runner-debian-13:latest", true, false},
		{"registry.example:5000/a/b_c:v1.2", true, false},
		{"a@" IMAGE_ID, true, false},
		{IMAGE_ID, true, true},
		{"sha256:00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff", true, false},
		{IMAGE_ID "0", true, false},
		{"sha256:", true, false},
		{"", false, false},
		{"/a", false, false},
		{"a/", false, false},
		{"-a", false, false},
		{"a//b", false, false},
		{"../containers/x", false, false},
		{"a/../../x", false, false},
		{"a?b", false, false},
		{"a b", false, false},
		{"a\nb", false, false},
		{"a%2f", false, false},
		{"\xc3\xbc", false, false},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		assert_int_equal(docker_reference_valid(rows[i].reference), rows[i].valid);
		assert_int_equal(docker_image_id_valid(rows[i].reference), rows[i].id);
	}
}

static void test_escape(void **)
{
	scoped_buf struct buf path = BUF_INIT(100);
	docker_escape(&path, "a/b:c-._~ ?&=%#\n\xff\"");
	assert_string_equal(buf_text(&path), "a/b:c-._~%20%3F%26%3D%25%23%0A%FF%22");
}

int main(int n, char **arguments)
{
	if (n != 2) {
		(void)fprintf(stderr, "usage: test-docker-plan GOLDEN-DIRECTORY\n");
		return 1;
	}
	golden_dir = arguments[1];
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_privileged), cmocka_unit_test(test_singly_old),
		cmocka_unit_test(test_singly_new), cmocka_unit_test(test_sysbox),
		cmocka_unit_test(test_volumes),    cmocka_unit_test(test_job_ids),
		cmocka_unit_test(test_bad_images), cmocka_unit_test(test_many_volumes),
		cmocka_unit_test(test_bad_paths),  cmocka_unit_test(test_read),
		cmocka_unit_test(test_references), cmocka_unit_test(test_escape),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
