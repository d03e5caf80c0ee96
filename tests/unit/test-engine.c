/* A daemon of the test's own gives each answer that a daemon may give, or fail to. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "isolation/container/engine.h"

/* What is to be missed is short, and what is to be kept is long enough for any machine. */
enum { ANSWER_MAX = 1000, SHORT_MS = 300, LONG_MS = 60'000, DRIP_MS = 20, REQUEST_MAX = 65536 };

#define LIMITS ((struct engine_limits){LONG_MS, LONG_MS, LONG_MS / 1000, ANSWER_MAX})

#define PONG "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"

#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

enum manner {
	WHOLE,  /* the answer, and the connection stays */
	CLOSES, /* the answer, and the connection ends */
	DRIPS,  /* a byte now and then, for ever again from the start */
};

struct daemon {
	pid_t pid;
	char directory[32];
	char socket[64];
};

static void send_all(int fd, const char *text)
{
	size_t n = strlen(text);
	while (n > 0) {
		ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
		if (sent <= 0)
			return;
		text += sent;
		n -= (size_t)sent;
	}
}

static void drip(int fd, const char *text)
{
	for (const char *at = text;; at = at[1] ? at + 1 : text) {
		if (send(fd, at, 1, MSG_NOSIGNAL) < 0)
			return;
		(void)poll(NULL, 0, DRIP_MS);
	}
}

/* Reads up to the end of a request; what is chunked ends with an empty chunk. Returns false at the end of all. */
static bool read_request(int fd)
{
	static char text[REQUEST_MAX];
	size_t n = 0;
	for (;;) {
		ssize_t got = recv(fd, text + n, sizeof(text) - 1 - n, 0);
		if (got <= 0)
			return false;
		n += (size_t)got;
		text[n] = '\0';
		bool chunked = strstr(text, "chunked");
		if (strstr(text, chunked ? "\r\n0\r\n\r\n" : "\r\n\r\n"))
			return true;
	}
}

/* Answers the first request with a version, every other with the answer. A NULL is silence. */
static void serve(int listener, const char *pong, const char *answer, enum manner manner)
{
	for (bool first = true;;) {
		int fd = accept(listener, NULL, NULL);
		while (read_request(fd)) {
			const char *text = first ? pong : answer;
			if (!text)
				(void)poll(NULL, 0, -1);
			if (!first && manner == DRIPS)
				drip(fd, text);
			send_all(fd, text);
			if (!first && manner == CLOSES)
				break;
			first = false;
		}
		(void)close(fd);
	}
}

static struct daemon daemon_start(const char *pong, const char *answer, enum manner manner)
{
	struct daemon d = {.directory = "/tmp/engine-XXXXXX"};
	assert_non_null(mkdtemp(d.directory));
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	(void)snprintf(d.socket, sizeof(d.socket), "%s/socket", d.directory);
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", d.socket);
	scoped_fd int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(listener >= 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 8), 0);
	d.pid = fork();
	assert_true(d.pid >= 0);
	if (d.pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(listener, pong, answer, manner);
		_exit(0);
	}
	return d;
}

static void daemon_stop(struct daemon *d)
{
	assert_int_equal(kill(d->pid, SIGKILL), 0);
	assert_int_equal(waitpid(d->pid, NULL, 0), d->pid);
	assert_int_equal(unlink(d->socket), 0);
	assert_int_equal(rmdir(d->directory), 0);
}

/* One GET of the answer that may take so long. Returns what the engine returns. */
static int ask(const char *answer, enum manner manner, uint32_t ms, json_t **ret, struct err *e)
{
	struct daemon d = daemon_start(PONG, answer, manner);
	struct engine *g = NULL;
	const struct engine_request q = {.method = "GET", .path = "/x", .ms = ms};
	int fds = fds_open();
	assert_int_equal(engine_new(d.socket, LIMITS, &g, e), 0);
	assert_int_equal(engine_version(g), 41);
	assert_true(engine_socket(g) >= 0);
	int r = engine_call(g, &q, ret, e);
	engine_free(g);
	assert_int_equal(fds_open(), fds);
	daemon_stop(&d);
	return r;
}

static void test_good(void **)
{
	static const char *const answers[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}",
		CHUNKED "3\r\n{\"a\r\n5\r\n\": 1}\r\n0\r\n\r\n",
	};
	for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
		json_t *value = NULL;
		struct err e = ERR_INIT;
		assert_int_equal(ask(answers[i], WHOLE, LONG_MS, &value, &e), 0);
		assert_int_equal(json_integer_value(json_object_get(value, "a")), 1);
		json_decref(value);
	}
}

static void test_no_body(void **)
{
	json_t *value = NULL;
	struct err e = ERR_INIT;
	assert_int_equal(ask("HTTP/1.1 204 No Content\r\n\r\n", WHOLE, LONG_MS, &value, &e), 0);
	assert_null(value);
	assert_int_equal(ask("HTTP/1.1 304 Not Modified\r\n\r\n", WHOLE, LONG_MS, &value, &e), 0);
	assert_null(value);
}

struct bad {
	const char *answer;
	enum manner manner;
	int r;
	const char *words;
};

static const struct bad bad_answers[] = {
	{NULL, WHOLE, -ETIMEDOUT, "does not answer"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n ", DRIPS, -ETIMEDOUT, "does not answer"},
	{"HTTP/1.1 200 OK\r\nX: ", DRIPS, -ETIMEDOUT, "does not answer"},
	{"", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.1 200 OK\r\n", CLOSES, -EPROTO, "has no end"},
	{"HTTP/1.1 200 OK\r\nContent-Le", CLOSES, -EPROTO, "has no end"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.0 200 OK\r\n\r\n{\"a\": 1}", CLOSES, -EPROTO, "has no end"},
	{"GARBAGE\r\n\r\n", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.1 abc\r\n\r\n", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"a\"", CLOSES, -EPROTO, "answer to /x"},
	{CHUNKED "3\r\n{\"a\r\n", CLOSES, -EPROTO, "answer to /x"},
	{CHUNKED "zz\r\n{}\r\n0\r\n\r\n", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}", CLOSES, -EPROTO, "answer to /x"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{\"a\"", WHOLE, -EPROTO, "not the JSON"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"a\":1,\"a\":2} ", WHOLE, -EPROTO, "not the JSON"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}x", WHOLE, -EPROTO, "not the JSON"},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\"\xff\"", WHOLE, -EPROTO, "not the JSON"},
	{"HTTP/1.1 500 No\r\nContent-Length: 17\r\n\r\n{\"message\":\"why\"}", WHOLE, -EREMOTEIO,
	 "Docker says: why (HTTP 500)"},
	{"HTTP/1.1 500 No\r\nContent-Length: 25\r\n\r\n{\"message\":\"a\\nb\\u001b[2J\"}", WHOLE, -EREMOTEIO,
	 "(HTTP 500)"},
	{"HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nwhat?", WHOLE, -EREMOTEIO,
	 "Docker refuses /x (HTTP 500)"},
	{"HTTP/1.1 500 No\r\nContent-Length: 13\r\n\r\n{\"message\":1}", WHOLE, -EREMOTEIO,
	 "Docker refuses /x (HTTP 500)"},
	{"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", WHOLE, -ENOENT, "HTTP 404"},
	{"HTTP/1.1 409 No\r\nContent-Length: 0\r\n\r\n", WHOLE, -EEXIST, "HTTP 409"},
	{"HTTP/1.1 301 No\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n", WHOLE, -EREMOTEIO,
	 "HTTP 301"},
};

static void test_bad(void **)
{
	for (size_t i = 0; i < sizeof(bad_answers) / sizeof(*bad_answers); i++) {
		const struct bad *b = &bad_answers[i];
		json_t *value = NULL;
		struct err e = ERR_INIT;
		int r = ask(b->answer, b->manner, b->r == -ETIMEDOUT ? SHORT_MS : LONG_MS, &value, &e);
		if (r != b->r || !strstr(e.msg, b->words))
			fail_msg("answer %zu: %d, %s", i, r, e.msg);
		assert_null(value);
		assert_null(strpbrk(e.msg, "\n\x1b"));
	}
}

/* An answer that is one byte too long, told or not, good or bad; and the longest that is not. */
static void test_size(void **)
{
	char text[4 * ANSWER_MAX];
	for (int status = 200; status <= 500; status += 300) {
		for (int too_long = 0; too_long <= 1; too_long++) {
			struct err e = ERR_INIT;
			json_t *value = NULL;
			int n = ANSWER_MAX + too_long;
			(void)snprintf(text, sizeof(text), "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n{}%*s",
				       status, n, n - 2, "");
			int r = ask(text, WHOLE, LONG_MS, &value, &e);
			assert_int_equal(r, too_long ? -EPROTO : status == 200 ? 0 : -EREMOTEIO);
			assert_int_equal(strstr(e.msg, "longer than 1000 bytes") != NULL, too_long);
			json_decref(value);
		}
	}
}

static void test_depth(void **)
{
	char text[512];
	for (int depth = 64; depth <= 65; depth++) {
		struct err e = ERR_INIT;
		json_t *value = NULL;
		char nest[160];
		memset(nest, '[', (size_t)depth);
		memset(nest + depth, ']', (size_t)depth);
		(void)snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%.*s",
			       2 * depth, 2 * depth, nest);
		assert_int_equal(ask(text, WHOLE, LONG_MS, &value, &e), depth == 64 ? 0 : -EPROTO);
		assert_int_equal(strstr(e.msg, "nested too deeply") != NULL, depth == 65);
		json_decref(value);
	}
}

static void test_versions(void **)
{
	static const struct {
		const char *pong;
		int r;
		unsigned version;
		const char *words;
	} rows[] = {
		{"HTTP/1.1 200 OK\r\nApi-Version: 1.40\r\nContent-Length: 0\r\n\r\n", 0, 40, ""},
		{"HTTP/1.1 200 OK\r\nApi-Version: 1.999\r\nContent-Length: 0\r\n\r\n", 0, 51, ""},
		{"HTTP/1.1 200 OK\r\nApi-Version: 1.39\r\nContent-Length: 0\r\n\r\n", -ENOTSUP, 0, "too old"},
		{"HTTP/1.1 200 OK\r\nApi-Version: 2.0\r\nContent-Length: 0\r\n\r\n", -EPROTO, 0, "version"},
		{"HTTP/1.1 200 OK\r\nApi-Version: 1.4x\r\nContent-Length: 0\r\n\r\n", -EPROTO, 0, "version"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", -EPROTO, 0, "no Docker daemon"},
		{"HTTP/1.1 403 No\r\nApi-Version: 1.41\r\nContent-Length: 0\r\n\r\n", -EREMOTEIO, 0,
		 "HTTP 403"},
		{NULL, -ETIMEDOUT, 0, "does not answer"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct daemon d = daemon_start(rows[i].pong, NULL, WHOLE);
		struct engine *g = NULL;
		struct err e = ERR_INIT;
		struct engine_limits limits = LIMITS;
		if (!rows[i].pong)
			limits.ping_ms = SHORT_MS;
		int r = engine_new(d.socket, limits, &g, &e);
		assert_int_equal(r, rows[i].r);
		assert_non_null(strstr(e.msg, rows[i].words));
		assert_int_equal(g ? engine_version(g) : 0, rows[i].version);
		engine_free(g);
		daemon_stop(&d);
	}
}

static void test_unreachable(void **)
{
	struct daemon d = daemon_start(PONG, NULL, WHOLE);
	struct engine *g = NULL;
	struct err e = ERR_INIT;
	assert_int_equal(engine_new("/nonexistent/socket", LIMITS, &g, &e), -ENOENT);
	assert_non_null(strstr(e.msg, "/nonexistent/socket does not exist"));
	assert_int_equal(kill(d.pid, SIGKILL), 0);
	assert_int_equal(waitpid(d.pid, NULL, 0), d.pid);
	assert_int_equal(engine_new(d.socket, LIMITS, &g, &e), -ECONNREFUSED);
	assert_non_null(strstr(e.msg, "is not running"));
	char path[200];
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(engine_new(path, LIMITS, &g, &e), -ENAMETOOLONG);
	assert_null(g);
	assert_int_equal(unlink(d.socket), 0);
	assert_int_equal(rmdir(d.directory), 0);
}

/* What a transfer sends and gets. */
struct moved {
	unsigned pieces; /* to send */
	int fault;       /* instead of the last */
	unsigned lines;
};

static ssize_t feed(void *data, char *p, size_t n, struct err *e)
{
	struct moved *m = data;
	if (m->pieces == 0)
		return m->fault ? err_set(e, m->fault, "ours is broken") : 0;
	m->pieces--;
	memset(p, 'x', n < 100 ? n : 100);
	return n < 100 ? (ssize_t)n : 100;
}

static int count(void *data, const json_t *value, struct err *e)
{
	struct moved *m = data;
	m->lines++;
	return json_object_get(value, "stop") ? err_set(e, -EPROTO, "stopped") : 0;
}

static void test_transfer(void **)
{
	static const struct {
		const char *answer;
		enum manner manner;
		int fault, r;
		unsigned lines;
		const char *words;
	} rows[] = {
		{CHUNKED "b\r\n{\"a\":1}\r\n{}\r\n4\r\n\r\n{}\r\n0\r\n\r\n", WHOLE, 0, 0, 3, ""},
		{CHUNKED "3\r\n{}\n\r\n13\r\n{\"error\":\"no disk\"}\r\n0\r\n\r\n", WHOLE, 0, -EREMOTEIO, 1,
		 "Docker says: no disk"},
		{CHUNKED "24\r\n{\"errorDetail\":{\"message\":\"no net\"}}\r\n0\r\n\r\n", WHOLE, 0,
		 -EREMOTEIO, 0, "Docker says: no net"},
		{CHUNKED "e\r\n{\"stop\":true}\n\r\n0\r\n\r\n", WHOLE, 0, -EPROTO, 1, "stopped"},
		{CHUNKED "3\r\n{x\n\r\n0\r\n\r\n", WHOLE, 0, -EPROTO, 0, "not the JSON"},
		{CHUNKED "3\r\n{}\n\r\n", CLOSES, 0, -EPROTO, 1, "answer to"},
		{CHUNKED "3\r\n{}\n\r\n", WHOLE, 0, -ETIMEDOUT, 1, "does not answer"},
		{"HTTP/1.1 500 No\r\nContent-Length: 17\r\n\r\n{\"message\":\"why\"}", WHOLE, 0, -EREMOTEIO,
		 0, "Docker says: why"},
		{"", WHOLE, -EIO, -EIO, 0, "ours is broken"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct daemon d = daemon_start(PONG, rows[i].answer, rows[i].manner);
		struct engine *g = NULL;
		struct err e = ERR_INIT;
		struct moved m = {.pieces = 3, .fault = rows[i].fault};
		const struct engine_transfer t = {"/t", feed, count, &m};
		struct engine_limits limits = LIMITS;
		if (rows[i].r == -ETIMEDOUT)
			limits.stall_s = 1;
		assert_int_equal(engine_new(d.socket, limits, &g, &e), 0);
		int r = engine_transfer(g, &t, &e);
		if (r != rows[i].r || m.lines != rows[i].lines || !strstr(e.msg, rows[i].words))
			fail_msg("transfer %zu: %d, %u lines, %s", i, r, m.lines, e.msg);
		engine_free(g);
		daemon_stop(&d);
	}
}

/* A daemon that closes after each answer is asked again. */
static void test_again(void **)
{
	struct daemon d = daemon_start(PONG, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", CLOSES);
	struct engine *g = NULL;
	struct err e = ERR_INIT;
	const struct engine_request q = {.method = "POST", .path = "/x", .ms = LONG_MS};
	assert_int_equal(engine_new(d.socket, LIMITS, &g, &e), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(engine_call(g, &q, NULL, &e), 0);
	engine_free(g);
	daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),        cmocka_unit_test(test_no_body),
		cmocka_unit_test(test_bad),         cmocka_unit_test(test_size),
		cmocka_unit_test(test_depth),       cmocka_unit_test(test_versions),
		cmocka_unit_test(test_unreachable), cmocka_unit_test(test_transfer),
		cmocka_unit_test(test_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
