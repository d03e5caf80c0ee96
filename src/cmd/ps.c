#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/scope.h"
#include "cmd/commands.h"
#include "resource/record.h"

enum { LINES_MAX = 4 << 20, AGE_MAX = 32 };

struct options {
	bool json;
};

static int set_json(void *data, char *, struct err *)
{
	((struct options *)data)->json = true;
	return 0;
}

static const struct command_option options[] = {
	{"json", 0, NULL, "Print one JSON object per sandbox and line.", set_json},
	{0},
};

static const char *const config[] = {"state-dir", "log", "log-level", NULL};

/* A record whose lock is free belongs to nobody: the next start or reap takes it down. */
static const char *state_of(const struct record_info *r)
{
	if (!r->held)
		return "leftover";
	return r->readable ? r->state : "unknown";
}

static uint64_t age_s(const struct record_info *r, uint64_t now_s)
{
	return r->readable && now_s > r->created_s ? now_s - r->created_s : 0;
}

/* The age in the largest unit that it has one of: 59s, 3m, 26h, 2d. */
static void format_age(uint64_t s, char text[static AGE_MAX])
{
	static const struct {
		uint64_t from, divisor;
		char unit;
	} units[] = {{172800, 86400, 'd'}, {7200, 3600, 'h'}, {120, 60, 'm'}, {0, 1, 's'}};
	size_t i = 0;
	while (s < units[i].from)
		i++;
	(void)snprintf(text, AGE_MAX, "%" PRIu64 "%c", s / units[i].divisor, units[i].unit);
}

static void print_row(const struct record_info *r, uint64_t now_s, struct buf *out)
{
	char age[AGE_MAX];
	format_age(age_s(r, now_s), age);
	buf_fmt(out, "%-10s  %-9s  %4u  %-12s  %5s  %7d  ", r->id, isolation_name(r->isolation), r->slot,
		state_of(r), age, (int)r->keeper.pid);
	buf_plain(out, r->job_id, strlen(r->job_id));
	buf_str(out, "\n");
	if (!r->left[0])
		return;
	buf_str(out, "            ");
	buf_plain(out, r->left, strlen(r->left));
	buf_str(out, "\n");
}

static void print_json(const struct record_info *r, uint64_t now_s, struct buf *out)
{
	buf_fmt(out,
		"{\"id\":\"%s\",\"isolation\":\"%s\",\"slot\":%u,\"state\":\"%s\",\"age_s\":%" PRIu64
		",\"pid\":%d,\"job_id\":",
		r->id, isolation_name(r->isolation), r->slot, state_of(r), age_s(r, now_s),
		(int)r->keeper.pid);
	buf_json(out, r->job_id, strlen(r->job_id));
	buf_str(out, ",\"reason\":");
	if (r->left[0])
		buf_json(out, r->left, strlen(r->left));
	else
		buf_str(out, "null");
	buf_str(out, "}\n");
}

static int run_ps(const struct config *c, void *data, char *const[], size_t, struct err *e)
{
	const struct options *o = data;
	scoped_fd int store = -1;
	scoped_free struct record_info *list = NULL;
	size_t n = 0;
	int r = record_open_store(c->state_dir, &store, e);
	if (r == 0)
		r = record_list(store, &list, &n, e);
	if (r < 0)
		return r;
	scoped_buf struct buf out = BUF_INIT(LINES_MAX);
	if (!o->json)
		buf_fmt(&out, "%-10s  %-9s  %4s  %-12s  %5s  %7s  %s\n", "ID", "ISOLATION", "SLOT", "STATE",
			"AGE", "PID", "JOB");
	uint64_t now_s = clock_wall_s();
	for (size_t i = 0; i < n; i++)
		(o->json ? print_json : print_row)(&list[i], now_s, &out);
	r = buf_check(&out);
	if (r < 0)
		return err_code(e, r, "list sandboxes");
	r = file_write_all(STDOUT_FILENO, buf_text(&out), out.n, e);
	return r < 0 ? err_ctx(e, r, "standard output") : 0;
}

const struct command cmd_ps = {
	.name = "ps",
	.args = "",
	.help = "List the sandboxes that live now.",
	.options = options,
	.config = config,
	.data_size = sizeof(struct options),
	.run = run_ps,
};
