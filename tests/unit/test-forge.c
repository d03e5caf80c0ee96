#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "spec/forge.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

#define LABEL_63 "aaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggg1"
#define NAME_253                                                                                             \
	LABEL_63 "." LABEL_63 "." LABEL_63 ".aaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff12"

/* A configuration with access on and the URL given. */
static struct config with_url(const char *url)
{
	struct config c;
	config_defaults(&c);
	c.guest_forge = true;
	(void)snprintf(c.url, sizeof(c.url), "%s", url);
	return c;
}

static void test_off(void **)
{
	static const struct forge nothing;
	struct config c = with_url("not even a URL");
	struct forge f = {.on = true, .port = 1};
	c.guest_forge = false;
	assert_int_equal(forge_read(&c, &f, NULL), 0);
	assert_memory_equal(&f, &nothing, sizeof(f));
	c.guest_forge = true;
	c.network_mode = NETWORK_NONE;
	f.on = true;
	assert_int_equal(forge_read(&c, &f, NULL), 0);
	assert_memory_equal(&f, &nothing, sizeof(f));
}

static void test_urls(void **)
{
	static const struct {
		const char *url;
		const char *host;
		uint16_t port;
		bool https;
		const char *origin;
	} rows[] = {
		{"https://forge.example", "forge.example", 443, true, "https://forge.example"},
		{"https://forge.example/", "forge.example", 443, true, "https://forge.example"},
		{"https://Forge.EXAMPLE:443", "forge.example", 443, true, "https://forge.example"},
		{"https://forge.example:3000/", "forge.example", 3000, true, "https://forge.example:3000"},
		{"https://forge.example:80", "forge.example", 80, true, "https://forge.example:80"},
		{"http://forge.example", "forge.example", 80, false, "http://forge.example"},
		{"http://forge.example:443", "forge.example", 443, false, "http://forge.example:443"},
		{"http://forge:65535", "forge", 65535, false, "http://forge:65535"},
		{"https://a-b_c.1.x2", "a-b_c.1.x2", 443, true, "https://a-b_c.1.x2"},
		{"https://1.2.3.4.example", "1.2.3.4.example", 443, true, "https://1.2.3.4.example"},
		{"https://" NAME_253 ":65535", NAME_253, 65535, true, "https://" NAME_253 ":65535"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct config c = with_url(rows[i].url);
		struct forge f = {0};
		struct err e = ERR_INIT;
		c.insecure_http = true;
		if (forge_read(&c, &f, &e) < 0)
			fail_msg("%s: %s", rows[i].url, e.msg);
		assert_true(f.on);
		assert_string_equal(f.host, rows[i].host);
		assert_int_equal(f.port, rows[i].port);
		assert_int_equal(f.https, rows[i].https);
		assert_string_equal(f.origin, rows[i].origin);
		assert_string_equal(f.target_host, "");
		assert_int_equal(f.target_port, 0);
	}
}

/* What is refused, and what the sentence says of it. */
static void test_refused_urls(void **)
{
	static const struct {
		const char *url;
		const char *why;
	} rows[] = {
		{"", "ERMITE_RUNNER_GUEST_FORGE: 1 needs the forge's URL in ERMITE_RUNNER_URL"},
		{"ftp://forge.example", "an http:// or https:// URL"},
		{"HTTPS://forge.example", "an http:// or https:// URL"},
		{"forge.example", "an http:// or https:// URL"},
		{"http://forge.example", "http:// needs ERMITE_RUNNER_INSECURE_HTTP=1"},
		{"https://192.0.2.7", "needs a name, not an address"},
		{"https://192.0.2.7:3000/", "needs a name, not an address"},
		{"https://127.1", "needs a name, not an address"},
		{"https://3221225991", "needs a name, not an address"},
		{"https://0xc0000207", "needs a name, not an address"},
		{"https://0XC0.0.2.7", "needs a name, not an address"},
		{"https://0300.0.2.7", "needs a name, not an address"},
		{"https://[2001:db8::1]", "needs a name, not an address"},
		{"https://[::ffff:192.0.2.7]:443/", "needs a name, not an address"},
		{"https://2001:db8::1", "needs a name, not an address"},
		{"https://fe80::1", "its port is no number"},
		{"https://forge.example/git", "no path, query or fragment"},
		{"https://forge.example//", "no path, query or fragment"},
		{"https://forge.example/?q", "no path, query or fragment"},
		{"https://forge.example?q", "no path, query or fragment"},
		{"https://forge.example#x", "no path, query or fragment"},
		{"https://user@forge.example", "no user"},
		{"https://user:password@forge.example/", "no user"},
		{"https://@forge.example/", "no user"},
		{"https://forge.example@192.0.2.7/", "no user"},
		{"https://", "its host is no name"},
		{"https:///", "its host is no name"},
		{"https://:443", "its host is no name"},
		{"https://forge.example.", "its host is no name"},
		{"https://.forge.example", "its host is no name"},
		{"https://forge..example", "its host is no name"},
		{"https://forge%2eexample", "its host is no name"},
		{"https://f\xc3\xb6rge.example", "its host is no name"},
		{"https://forge.example\\git", "its host is no name"},
		{"https://" LABEL_63 "x.example", "its host is no name"},
		{"https://" NAME_253 "3", "its host is no name"},
		{"https://forge.example:", "its port is no number"},
		{"https://forge.example:/", "its port is no number"},
		{"https://forge.example:0", "its port is no number"},
		{"https://forge.example:65536", "its port is no number"},
		{"https://forge.example:4430000", "its port is no number"},
		{"https://forge.example:+443", "its port is no number"},
		{"https://forge.example:44a", "its port is no number"},
		{"https://forge.example:53", "the DNS forwarder has this port"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		const struct config c = with_url(rows[i].url);
		struct forge f = {.port = 7};
		struct err e = ERR_INIT;
		if (forge_read(&c, &f, &e) != -EINVAL)
			fail_msg("%s was accepted", rows[i].url);
		if (!strstr(e.msg, rows[i].why) || strncmp(e.msg, "ERMITE_RUNNER_", 14) != 0)
			fail_msg("%s: %s", rows[i].url, e.msg);
		assert_int_equal(f.port, 7);
	}
}

static void test_targets(void **)
{
	static const struct {
		const char *target;
		const char *host;
		uint16_t port; /* 0: refused */
	} rows[] = {
		{"", "", 0},
		{"127.0.0.1:3000", "127.0.0.1", 3000},
		{"Forge-Internal:443", "forge-internal", 443},
		{"a.b_c.example:65535", "a.b_c.example", 65535},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct config c = with_url("https://forge.example");
		struct forge f = {0};
		(void)snprintf(c.guest_forge_target, sizeof(c.guest_forge_target), "%s", rows[i].target);
		assert_int_equal(forge_read(&c, &f, NULL), 0);
		assert_string_equal(f.target_host, rows[i].host);
		assert_int_equal(f.target_port, rows[i].port);
	}
}

static void test_refused_targets(void **)
{
	static const char *const rows[] = {
		"forge",       ":80",       "forge:",   "forge:0", "forge:65536",
		"forge:80:80", "forge.:80", "[::1]:80", "::1:80",  "f/x:80",
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct config c = with_url("https://forge.example");
		struct forge f = {.port = 7};
		struct err e = ERR_INIT;
		(void)snprintf(c.guest_forge_target, sizeof(c.guest_forge_target), "%s", rows[i]);
		if (forge_read(&c, &f, &e) != -EINVAL)
			fail_msg("%s was accepted", rows[i]);
		assert_non_null(strstr(e.msg, "ERMITE_RUNNER_GUEST_FORGE_TARGET: "));
		assert_non_null(strstr(e.msg, " is not accepted: host:port"));
		assert_int_equal(f.port, 7);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_urls),
		cmocka_unit_test(test_refused_urls),
		cmocka_unit_test(test_targets),
		cmocka_unit_test(test_refused_targets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
