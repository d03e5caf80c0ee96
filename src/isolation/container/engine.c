#include "isolation/container/engine.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/scope.h"
#include "isolation/container/engine_answer.h"

enum { VERSION_OLDEST = 40, VERSION_NEWEST = 51, VERSION_MAX = 999 };

struct engine {
	CURL *curl;
	struct curl_slist *headers;
	struct engine_limits limits;
	unsigned version; /* 0 until it is agreed on */
	char socket[128];
};

/* One request under way. */
struct exchange {
	struct engine *g;
	const char *what; /* the path, for messages */
	const struct engine_transfer *transfer;
	struct buf body; /* the answer so far, or its last line */
	struct err why;  /* what of ours ended it */
	char problem[CURL_ERROR_SIZE];
};

unsigned engine_version(const struct engine *g)
{
	return g->version;
}

int engine_socket(const struct engine *g)
{
	curl_socket_t fd = CURL_SOCKET_BAD;
	return curl_easy_getinfo(g->curl, CURLINFO_ACTIVESOCKET, &fd) == CURLE_OK ? fd : -1;
}

static long status_of(const struct engine *g)
{
	long status = 0;
	(void)curl_easy_getinfo(g->curl, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

static int take_line(struct exchange *x)
{
	scoped_json json_t *value = NULL;
	char said[ANSWER_SAID_MAX];
	int r = answer_parse(x->body.p, x->body.n, &value, &x->why);
	if (r < 0)
		return err_ctx(&x->why, r, "the Docker daemon's answer");
	if (answer_complaint(value, said))
		return err_set(&x->why, -EREMOTEIO, "Docker says: %s", said);
	return x->transfer->line(x->transfer->data, value, &x->why);
}

static int take_lines(struct exchange *x, const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (p[i] != '\n' && p[i] != '\r') {
			buf_add(&x->body, &p[i], 1);
			continue;
		}
		int r = x->body.n > 0 && !x->body.bad ? take_line(x) : 0;
		if (r < 0)
			return r;
		if (!x->body.bad)
			buf_clear(&x->body);
	}
	return 0;
}

/* libcurl brings bytes. Everything but their number ends the transfer. */
static size_t on_bytes(char *p, size_t size, size_t n, void *data)
{
	struct exchange *x = data;
	n *= size;
	if (x->transfer && status_of(x->g) < 300) {
		if (take_lines(x, p, n) < 0)
			return 0;
	} else {
		buf_add(&x->body, p, n);
	}
	if (!x->body.bad)
		return n;
	(void)err_set(&x->why, -EPROTO, "the Docker daemon's answer to %s is longer than %zu bytes", x->what,
		      x->body.max);
	return 0;
}

static size_t on_feed(char *p, size_t size, size_t n, void *data)
{
	struct exchange *x = data;
	ssize_t got = x->transfer->feed(x->transfer->data, p, size * n, &x->why);
	return got < 0 ? CURL_READFUNC_ABORT : (size_t)got;
}

/* The settings of every request. */
static int set_up(struct engine *g)
{
	const struct {
		CURLoption option;
		long value;
	} numbers[] = {
		{CURLOPT_NOSIGNAL, 1},
		{CURLOPT_FOLLOWLOCATION, 0},
		{CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1},
		{CURLOPT_HTTP09_ALLOWED, 0},
		{CURLOPT_PATH_AS_IS, 1},
		{CURLOPT_CONNECTTIMEOUT_MS, (long)g->limits.connect_ms},
	};
	const struct {
		CURLoption option;
		const char *value;
	} texts[] = {
		{CURLOPT_UNIX_SOCKET_PATH, g->socket},
		{CURLOPT_PROTOCOLS_STR, "http"},
		{CURLOPT_PROXY, ""}, /* whatever the environment says */
		{CURLOPT_USERAGENT, "ermite-docker"},
	};
	curl_easy_reset(g->curl);
	CURLcode r = CURLE_OK;
	for (size_t i = 0; r == CURLE_OK && i < sizeof(numbers) / sizeof(*numbers); i++)
		r = curl_easy_setopt(g->curl, numbers[i].option, numbers[i].value);
	for (size_t i = 0; r == CURLE_OK && i < sizeof(texts) / sizeof(*texts); i++)
		r = curl_easy_setopt(g->curl, texts[i].option, texts[i].value);
	if (r == CURLE_OK)
		r = curl_easy_setopt(g->curl, CURLOPT_HTTPHEADER, g->headers);
	return r == CURLE_OK ? 0 : -ENOMEM;
}

static int set_exchange(struct exchange *x, const char *url, const char *method)
{
	CURL *curl = x->g->curl;
	CURLcode r = curl_easy_setopt(curl, CURLOPT_URL, url);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, x->problem);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_WRITEDATA, x);
	return r == CURLE_OK ? 0 : -ENOMEM;
}

/* Readies a request with the version in its path, once that is known. */
static int prepare(struct exchange *x, const char *method, struct err *e)
{
	struct engine *g = x->g;
	scoped_buf struct buf url = BUF_INIT(ENGINE_PATH_MAX);
	buf_str(&url, "http://docker");
	if (g->version)
		buf_fmt(&url, "/v1.%u", g->version);
	buf_str(&url, x->what);
	if (buf_check(&url) < 0)
		return err_set(e, -ENAMETOOLONG, "what Docker is asked for is longer than %d bytes",
			       ENGINE_PATH_MAX);
	/* libcurl keeps a copy of every text but a body. */
	if (set_up(g) < 0 || set_exchange(x, buf_text(&url), method) < 0)
		return err_set(e, -ENOMEM, "libcurl: out of memory, or without a feature that is needed");
	return 0;
}

/* Why nobody could be reached: found by the number of the system's own error. */
static int no_connection(const struct engine *g, struct err *e)
{
	long number = 0;
	(void)curl_easy_getinfo(g->curl, CURLINFO_OS_ERRNO, &number);
	switch (number) {
	case ENOENT:
	case ENOTDIR:
		return err_set(e, -ENOENT, "there is no Docker daemon: the socket %s does not exist",
			       g->socket);
	case ECONNREFUSED:
		return err_set(e, -ECONNREFUSED, "the Docker daemon is not running: nothing listens at %s",
			       g->socket);
	case EACCES:
	case EPERM:
		return err_set(e, -EACCES, "this user may not open Docker's socket %s", g->socket);
	default:
		return err_code(e, number > 0 ? -(int)number : -EIO, "connect to Docker's socket %s",
				g->socket);
	}
}

static int transport_error(struct exchange *x, CURLcode code, struct err *e)
{
	if (x->why.code < 0)
		return err_set(e, x->why.code, "%s", x->why.msg);
	if (code == CURLE_COULDNT_CONNECT)
		return no_connection(x->g, e);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return err_set(e, -ETIMEDOUT, "the Docker daemon at %s does not answer (%s)", x->g->socket,
			       x->what);
	return err_set(e, -EPROTO, "the Docker daemon's answer to %s: %s", x->what,
		       *x->problem ? x->problem : curl_easy_strerror(code));
}

/* A status that is none of success. */
static int refusal(const struct exchange *x, long status, struct err *e)
{
	scoped_json json_t *value = NULL;
	char said[ANSWER_SAID_MAX];
	int code = status == 404 ? -ENOENT : status == 409 ? -EEXIST : -EREMOTEIO;
	if (answer_parse(buf_text(&x->body), x->body.n, &value, NULL) == 0 && answer_complaint(value, said))
		return err_set(e, code, "Docker says: %s (HTTP %ld)", said, status);
	return err_set(e, code, "Docker refuses %s (HTTP %ld)", x->what, status);
}

static bool has_header(const struct engine *g, const char *name)
{
	struct curl_header *header = NULL;
	return curl_easy_header(g->curl, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
}

/* libcurl takes an answer that ends within its head for a good one without a body. The daemon always says how long a
 * body is, or sends it in chunks. */
static bool is_whole(const struct engine *g, long status)
{
	return status == 204 || status == 304 || has_header(g, "Content-Length") ||
	       has_header(g, "Transfer-Encoding");
}

/* Runs what was prepared. Returns 0 for a status of success. */
static int perform(struct exchange *x, struct err *e)
{
	CURLcode code = curl_easy_perform(x->g->curl);
	if (code != CURLE_OK)
		return transport_error(x, code, e);
	long status = status_of(x->g);
	/* 304: what was to be started or stopped is. */
	if ((status < 200 || status >= 300) && status != 304)
		return refusal(x, status, e);
	if (!is_whole(x->g, status))
		return err_set(e, -EPROTO, "the Docker daemon's answer to %s has no end", x->what);
	return 0;
}

/* What is sent with a call: a POST has a body, if an empty one. */
static int set_body(struct engine *g, const struct engine_request *q)
{
	const char *body = q->body ? q->body : strcmp(q->method, "POST") == 0 ? "" : NULL;
	CURLcode r = curl_easy_setopt(g->curl, CURLOPT_TIMEOUT_MS, (long)q->ms);
	if (r == CURLE_OK && body)
		r = curl_easy_setopt(g->curl, CURLOPT_POSTFIELDS, body);
	return r == CURLE_OK ? 0 : -ENOMEM;
}

static int call(struct exchange *x, const struct engine_request *q, json_t **ret, struct err *e)
{
	int r = prepare(x, q->method, e);
	if (r < 0)
		return r;
	if (set_body(x->g, q) < 0)
		return err_set(e, -ENOMEM, "libcurl: out of memory");
	r = perform(x, e);
	if (r < 0 || !ret)
		return r;
	if (x->body.n == 0) {
		*ret = NULL;
		return 0;
	}
	r = answer_parse(x->body.p, x->body.n, ret, e);
	return r < 0 ? err_ctx(e, r, "the Docker daemon's answer to %s", q->path) : 0;
}

int engine_call(struct engine *g, const struct engine_request *q, json_t **ret, struct err *e)
{
	struct exchange x = {.g = g, .what = q->path, .body = BUF_INIT(g->limits.answer_bytes)};
	int r = call(&x, q, ret, e);
	buf_done(&x.body);
	return r;
}

static int set_transfer(struct exchange *x)
{
	CURL *curl = x->g->curl;
	CURLcode r = curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)x->g->limits.stall_s);
	if (r == CURLE_OK && !x->transfer->feed)
		r = curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
	if (r != CURLE_OK || !x->transfer->feed)
		return r == CURLE_OK ? 0 : -ENOMEM;
	r = curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_feed);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_READDATA, x);
	if (r == CURLE_OK)
		r = curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
	return r == CURLE_OK ? 0 : -ENOMEM;
}

int engine_transfer(struct engine *g, const struct engine_transfer *t, struct err *e)
{
	struct exchange x = {
		.g = g, .what = t->path, .transfer = t, .body = BUF_INIT(g->limits.answer_bytes)};
	int r = prepare(&x, "POST", e);
	if (r == 0 && set_transfer(&x) < 0)
		r = err_set(e, -ENOMEM, "libcurl: out of memory");
	if (r == 0)
		r = perform(&x, e);
	if (r == 0 && x.body.n > 0 && take_line(&x) < 0) /* the last one need not end */
		r = err_set(e, x.why.code, "%s", x.why.msg);
	buf_done(&x.body);
	return r;
}

/* The newest version of the interface that both sides know. */
static int agree(struct engine *g, struct err *e)
{
	const struct engine_request ping = {.method = "GET", .path = "/_ping", .ms = g->limits.ping_ms};
	struct curl_header *header = NULL;
	uint64_t version = 0;
	int r = engine_call(g, &ping, NULL, e);
	if (r < 0)
		return r;
	if (curl_easy_header(g->curl, "Api-Version", 0, CURLH_HEADER, -1, &header) != CURLHE_OK)
		return err_set(e, -EPROTO, "what listens at %s is no Docker daemon: it tells no version",
			       g->socket);
	if (strncmp(header->value, "1.", 2) != 0 ||
	    num_parse(header->value + 2, 0, VERSION_MAX, &version) < 0)
		return err_set(e, -EPROTO, "the Docker daemon at %s tells a version that is none", g->socket);
	if (version < VERSION_OLDEST)
		return err_set(
			e, -ENOTSUP,
			"the Docker daemon at %s is too old: it speaks API 1.%u, needed is 1.%d or newer",
			g->socket, (unsigned)version, VERSION_OLDEST);
	g->version = version < VERSION_NEWEST ? (unsigned)version : VERSION_NEWEST;
	return 0;
}

/* No "Expect": the daemon takes a body at once. */
static int add_headers(struct engine *g)
{
	static const char *const headers[] = {"Content-Type: application/json", "Expect:"};
	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		struct curl_slist *longer = curl_slist_append(g->headers, headers[i]);
		if (!longer)
			return -ENOMEM;
		g->headers = longer;
	}
	return 0;
}

int engine_new(const char *socket, struct engine_limits limits, struct engine **ret, struct err *e)
{
	scoped_engine struct engine *g = calloc(1, sizeof(*g));
	if (!g)
		return err_set(e, -ENOMEM, "Docker: out of memory");
	g->limits = limits;
	int n = snprintf(g->socket, sizeof(g->socket), "%s", socket);
	if (n < 0 || (size_t)n >= sizeof(g->socket))
		return err_set(e, -ENAMETOOLONG, "Docker's socket: the path is too long");
	/* Without its TLS library: nothing here leaves this host. */
	if (curl_global_init(CURL_GLOBAL_NOTHING) != CURLE_OK)
		return err_set(e, -ENOMEM, "libcurl cannot be used");
	g->curl = curl_easy_init();
	if (!g->curl || add_headers(g) < 0)
		return err_set(e, -ENOMEM, "libcurl: out of memory");
	int r = agree(g, e);
	if (r == 0)
		*ret = ptr_steal(&g);
	return r;
}

void engine_free(struct engine *g)
{
	if (!g)
		return;
	curl_easy_cleanup(g->curl);
	curl_slist_free_all(g->headers);
	curl_global_cleanup();
	free(g);
}
