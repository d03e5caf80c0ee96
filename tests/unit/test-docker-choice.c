#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "isolation/container/capabilities.h"
#include "isolation/container/facts.h"
#include "spec/docker.h"

/* As many bytes as a path may have, and one more. */
#define TEN     "/23456789."
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define LONGEST HUNDRED "/23456/"

static void test_socket(void **)
{
	static const struct {
		const char *value, *path, *message;
	} rows[] = {
		{NULL, "/var/run/docker.sock", NULL},
		{"", "/var/run/docker.sock", NULL},
		{"unix:///run/x.sock", "/run/x.sock", NULL},
		{"unix://" LONGEST, LONGEST, NULL},
		{"unix://" LONGEST "8", NULL, "DOCKER_HOST: the path of a socket has at most 107 bytes"},
		{"unix://run/x.sock", NULL, "only unix:///PATH can be used"},
		{"unix://", NULL, "only unix:///PATH can be used"},
		{"/run/x.sock", NULL, "only unix:///PATH can be used"},
		{"tcp://127.0.0.1:2375", NULL,
		 "DOCKER_HOST=tcp://127.0.0.1:2375 is not a socket of this host"},
		{"ssh://there", NULL, "DOCKER_HOST=ssh://there is not a socket of this host"},
		{"fd://", NULL, "only unix:///PATH can be used"},
		{"unix:///run/x\n.sock", NULL, "DOCKER_HOST holds a control character"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char path[DOCKER_SOCKET_SIZE] = "as it was";
		struct err e = ERR_INIT;
		int r = docker_socket(rows[i].value, path, &e);
		if (rows[i].message) {
			assert_int_equal(r, -EINVAL);
			if (!strstr(e.msg, rows[i].message))
				fail_msg("\"%s\" does not say \"%s\"", e.msg, rows[i].message);
			assert_string_equal(path, "as it was");
		} else {
			assert_int_equal(r, 0);
			assert_string_equal(path, rows[i].path);
		}
	}
}

static void test_facts(void **)
{
	static const char all[] = "version 20.10.24+dfsg1\n"
				  "runtime sysbox-runc\n"
				  "something else\n"
				  "image sha256:0123\n"
				  "source abcd\n"
				  "trouble it is a rootless one: no rights\n";
	struct docker_facts f;
	struct err e = ERR_INIT;
	assert_int_equal(facts_read(all, &f, &e), 0);
	assert_string_equal(f.version, "20.10.24+dfsg1");
	assert_string_equal(f.image_id, "sha256:0123");
	assert_string_equal(f.image_source, "abcd");
	assert_string_equal(f.trouble, "it is a rootless one: no rights");
	assert_true(f.sysbox);
	assert_int_equal(facts_read("runtime sysbox-runc2\nversions 1\nimage", &f, &e), 0);
	assert_false(f.sysbox);
	assert_string_equal(f.version, "");
	assert_string_equal(f.image_id, "");
	assert_int_equal(facts_read("", &f, &e), 0);
}

/* A value that does not fit is not cut. */
static void test_facts_too_long(void **)
{
	char text[DOCKER_IMAGE_ID_SIZE + 16];
	struct docker_facts f;
	struct err e = ERR_INIT;
	(void)snprintf(text, sizeof(text), "image %0*d\n", DOCKER_IMAGE_ID_SIZE - 1, 1);
	assert_int_equal(facts_read(text, &f, &e), 0);
	assert_int_equal(strlen(f.image_id), DOCKER_IMAGE_ID_SIZE - 1);
	(void)snprintf(text, sizeof(text), "image %0*d\n", DOCKER_IMAGE_ID_SIZE, 1);
	assert_int_equal(facts_read(text, &f, &e), -EPROTO);
}

static void test_capabilities(void **)
{
	uint64_t have = 0;
	uint64_t all = 0;
	struct err e = ERR_INIT;
	scoped_buf struct buf names = BUF_INIT(4096);
	assert_int_equal(capabilities_read(&have, &all, &e), 0);
	assert_true((all & 1) && all + 1 > all && ((all + 1) & all) == 0);
	assert_int_equal(have & ~all, 0);
	capabilities_names(1 << 24 | 1 | UINT64_C(1) << 40 | UINT64_C(1) << 63, &names);
	assert_string_equal(buf_text(&names), "CAP_CHOWN, CAP_SYS_RESOURCE, CAP_CHECKPOINT_RESTORE, 63");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_socket),
		cmocka_unit_test(test_facts),
		cmocka_unit_test(test_facts_too_long),
		cmocka_unit_test(test_capabilities),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
