#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/forge_access.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const struct forge on = {
	.on = true,
	.https = true,
	.host = "localhost",
	.port = 3000,
	.origin = "https://localhost:3000",
};

/* Names that no resolver has to be asked for: one is in every hosts file, the other is none. */
static void test_resolves(void **)
{
	static const struct {
		const char *host, *target;
		const char *why; /* NULL: it does */
	} rows[] = {
		{"localhost", "", NULL},
		{"localhost", "127.0.0.1", NULL},
		{"localhost", "localhost", NULL},
		{"no..name", "", "ERMITE_RUNNER_URL: this host does not resolve no..name: "},
		{"localhost", "no..name",
		 "ERMITE_RUNNER_GUEST_FORGE_TARGET: this host does not resolve no..name: "},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct forge f = on;
		struct err e = ERR_INIT;
		(void)snprintf(f.host, sizeof(f.host), "%s", rows[i].host);
		(void)snprintf(f.target_host, sizeof(f.target_host), "%s", rows[i].target);
		assert_int_equal(forge_access_resolves(&f, &e), rows[i].why ? -EINVAL : 0);
		if (rows[i].why)
			assert_memory_equal(e.msg, rows[i].why, strlen(rows[i].why));
		f.on = false;
		assert_int_equal(forge_access_resolves(&f, NULL), 0);
	}
}

static void test_rewrite(void **)
{
	static const struct {
		const char *before, *after;
	} rows[] = {
		{"GITHUB_SERVER_URL=http://10.0.0.1:8080", "GITHUB_SERVER_URL=https://localhost:3000"},
		{"GITHUB_API_URL=http://forge/api/v1", "GITHUB_API_URL=https://localhost:3000/api/v1"},
		{"GITHUB_GRAPHQL_URL=https://x:1/api/graphql?a=b",
		 "GITHUB_GRAPHQL_URL=https://localhost:3000/api/graphql?a=b"},
		{"GITEA_SERVER_URL=https://x?q", "GITEA_SERVER_URL=https://localhost:3000?q"},
		{"GITEA_API_URL=https://x/", "GITEA_API_URL=https://localhost:3000/"},
		{"GITEA_GRAPHQL_URL=https://x#f", "GITEA_GRAPHQL_URL=https://localhost:3000#f"},
		{"FORGEJO_SERVER_URL=ssh://git@x/a://b", "FORGEJO_SERVER_URL=https://localhost:3000/a://b"},
		{"FORGEJO_API_URL=://", "FORGEJO_API_URL=https://localhost:3000"},
		{"FORGEJO_GRAPHQL_URL=", "FORGEJO_GRAPHQL_URL="},
		{"CI_SERVER_URL=none", "CI_SERVER_URL=none"},
		{"CI_API_V4_URL=https://x/api/v4", "CI_API_V4_URL=https://localhost:3000/api/v4"},
		{"CI_API_GRAPHQL_URL=https://x/g", "CI_API_GRAPHQL_URL=https://localhost:3000/g"},
		{"OTHER_URL=https://x/g", "OTHER_URL=https://x/g"},
		{"GITHUB_SERVER=https://x", "GITHUB_SERVER=https://x"},
	};
	for (int with = 0; with < 2; with++) {
		scoped_env struct env list = ENV_INIT;
		struct forge f = on;
		f.on = with == 1;
		for (size_t i = 0; i < COUNT(rows); i++)
			assert_int_equal(env_set(&list, rows[i].before, NULL), 0);
		assert_int_equal(forge_access_rewrite(&f, &list, NULL), 0);
		assert_int_equal(list.n, COUNT(rows));
		for (size_t i = 0; i < COUNT(rows); i++)
			assert_string_equal(list.entries[i], f.on ? rows[i].after : rows[i].before);
	}
}

static void test_rewrite_of_nothing(void **)
{
	scoped_env struct env list = ENV_INIT;
	assert_int_equal(forge_access_rewrite(&on, &list, NULL), 0);
	assert_int_equal(list.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resolves),
		cmocka_unit_test(test_rewrite),
		cmocka_unit_test(test_rewrite_of_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
