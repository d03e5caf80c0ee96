#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/chan.h"
#include "isolation/container/docker.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/docker_plan.h"
#include "isolation/container/engine_answer.h"

enum {
	CREATE_MS = 20'000,
	START_MS = 25'000,
	KNOCK_LOOK_MS = 500, /* so often the container that has not knocked is looked at */
};

/* Takes the plan from the keeper. */
static int receive_plan(struct docker_plan *ret, struct err *e)
{
	struct chan_message m;
	char bytes[sizeof(struct docker_plan) + 1];
	int r = chan_receive(DOCKER_CHANNEL_FD, &m, e);
	if (r == 0)
		return err_set(e, -EPIPE, "the keeper is gone");
	if (r < 0)
		return r;
	scoped_fd int fd = chan_take_fd(&m, 0);
	chan_close_fds(&m);
	if (m.type != DOCKER_PLAN || fd < 0)
		return err_set(e, -EPROTO, "the keeper sends no plan");
	ssize_t n = file_read_all(fd, bytes, sizeof(bytes), e);
	return n < 0 ? (int)n : docker_plan_read(bytes, (size_t)n, ret, e);
}

static int create(struct engine *g, const struct docker_plan *plan, struct err *e)
{
	scoped_json json_t *image = NULL;
	scoped_json json_t *request = NULL;
	char path[64];
	int r = docker_image_inspect(g, plan->choice.image, &image, e);
	if (r == 0)
		r = docker_plan_request(plan, engine_version(g), image, &request, e);
	if (r < 0)
		return r;
	scoped_free char *body = json_dumps(request, JSON_COMPACT);
	if (!body)
		return err_set(e, -ENOMEM, "the request to Docker: out of memory");
	(void)snprintf(path, sizeof(path), "/containers/create?name=%s", plan->id);
	const struct engine_request q = {.method = "POST", .path = path, .body = body, .ms = CREATE_MS};
	return engine_call(g, &q, NULL, e);
}

static int start(struct engine *g, const struct docker_plan *plan, struct err *e)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "/containers/%s/start", plan->id);
	const struct engine_request q = {.method = "POST", .path = path, .ms = START_MS};
	return engine_call(g, &q, NULL, e);
}

/* An error with the reason when the container no longer runs. */
static int look(struct engine *g, const struct docker_plan *plan, struct err *e)
{
	scoped_json json_t *container = NULL;
	json_t *state = NULL, *running = NULL, *status = NULL;
	const char *why = "";
	char path[64];
	(void)snprintf(path, sizeof(path), "/containers/%s/json", plan->id);
	const struct engine_request q = {.method = "GET", .path = path, .ms = DOCKER_LOOK_MS};
	int r = engine_call(g, &q, &container, e);
	if (r == 0)
		r = answer_need(container, "State", JSON_OBJECT, &state, e);
	if (r == 0)
		r = answer_need(state, "Running", JSON_TRUE, &running, e);
	if (r == 0)
		r = answer_need(state, "ExitCode", JSON_INTEGER, &status, e);
	if (r == 0)
		r = answer_text_or_empty(state, "Error", &why, e);
	if (r < 0)
		return err_ctx(e, r, "look at the container");
	if (json_is_true(running))
		return 0;
	scoped_buf struct buf plain = BUF_INIT(4 * ANSWER_SAID_MAX + 1);
	buf_plain(&plain, why, strnlen(why, ANSWER_SAID_MAX));
	return err_set(e, -ECHILD, "the container ended with status %lld before it knocked%s%.300s",
		       (long long)json_integer_value(status), *why ? ": " : "", buf_text(&plain));
}

/* Waits for the keeper to take the knock. An error, also when the container has ended. */
static int await_knock(struct engine *g, const struct docker_plan *plan, struct err *e)
{
	struct pollfd channel = {.fd = DOCKER_CHANNEL_FD, .events = POLLIN};
	int n;
	while ((n = poll(&channel, 1, KNOCK_LOOK_MS)) == 0) {
		int r = look(g, plan, e);
		if (r < 0)
			return r;
	}
	if (n < 0)
		return err_sys(e, "wait for the knock");
	struct chan_message m;
	int r = chan_receive(DOCKER_CHANNEL_FD, &m, e);
	if (r <= 0)
		return r < 0 ? r : err_set(e, -EPIPE, "the keeper is gone");
	chan_close_fds(&m);
	return m.type == DOCKER_KNOCKED ? 0 : err_set(e, -EPROTO, "the keeper sends no knock");
}

static int launch(const struct docker_plan *plan, struct err *e)
{
	scoped_engine struct engine *g = NULL;
	int r = engine_new(plan->choice.socket, ENGINE_LIMITS, &g, e);
	if (r == 0)
		r = create(g, plan, e);
	if (r < 0)
		return err_ctx(e, r, "create the container");
	r = start(g, plan, e);
	if (r < 0)
		return err_ctx(e, r, "start the container");
	return await_knock(g, plan, e);
}

/* Tells the keeper why this ends. Messages of its own that nobody read, as that of a knock that came nevertheless,
 * would make its end of the channel give an error first. */
static void tell_failure(const struct err *e)
{
	struct pollfd channel = {.fd = DOCKER_CHANNEL_FD, .events = POLLIN};
	struct chan_message m = {.type = DOCKER_FAILED, .n = (uint32_t)strlen(e->msg)};
	memcpy(m.data, e->msg, m.n);
	(void)chan_send(DOCKER_CHANNEL_FD, &m, NULL);
	(void)shutdown(DOCKER_CHANNEL_FD, SHUT_RD);
	while (poll(&channel, 1, 0) == 1 && chan_receive(DOCKER_CHANNEL_FD, &m, NULL) == 1)
		chan_close_fds(&m);
}

int docker_run(char **, struct err *e)
{
	struct docker_plan plan;
	int r = receive_plan(&plan, e);
	if (r == 0)
		r = launch(&plan, e);
	if (r < 0)
		tell_failure(e);
	return r;
}
