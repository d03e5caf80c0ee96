#include "cmd/image_progress.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"

/* A line that begins so begins this phase. Of the packages apt announced, each is told of `kinds` times in it. */
struct phase_row {
	const char *prefix;
	const char *phase; /* NULL: the rest of the line */
	unsigned kinds;
};

static const struct phase_row phase_rows[] = {
	{"P: ", NULL, 0},
	{"I: running apt-get update", "reading the package lists", 0},
	{"I: downloading packages", "downloading the first packages", 1},
	{"I: extracting archives", "unpacking the first packages", 0},
	{"I: installing essential packages", "installing the first packages", 2},
	{"I: installing remaining packages", "installing packages", 3},
	{"I: running --customize-hook", "customizing", 0},
	{"I: cleaning package lists", "cleaning up", 0},
};

/* Lines by which apt and dpkg tell of one package. */
static const char *const package_prefixes[] = {"Get:", "Unpacking ", "Setting up "};

static bool starts_with(const char *line, const char *prefix)
{
	return strncmp(line, prefix, strlen(prefix)) == 0;
}

static void begin_phase(struct image_progress *p, const char *phase, unsigned kinds)
{
	(void)snprintf(p->phase, sizeof(p->phase), "%s", phase);
	for (char *at = p->phase; *at; at++)
		if (*at < ' ' || *at > '~')
			*at = '?';
	p->events = 0;
	p->kinds = kinds;
}

/* "0 upgraded, 626 newly installed, 0 to remove and 0 not upgraded.": the count, or 0 for any other line. */
static uint64_t newly_installed(const char *line)
{
	const char *end = strstr(line, " newly installed, ");
	const char *comma = strstr(line, " upgraded, ");
	if (!end || !comma || comma >= end)
		return 0;
	const char *start = comma + strlen(" upgraded, ");
	char digits[24];
	uint64_t count = 0;
	(void)snprintf(digits, sizeof(digits), "%.*s", (int)(end - start < 20 ? end - start : 20), start);
	return num_parse(digits, 1, 1'000'000, &count) == 0 ? count : 0;
}

bool image_progress_line(struct image_progress *p, const char *line)
{
	for (size_t i = 0; i < sizeof(phase_rows) / sizeof(*phase_rows); i++) {
		const struct phase_row *row = &phase_rows[i];
		if (!starts_with(line, row->prefix))
			continue;
		begin_phase(p, row->phase ? row->phase : line + strlen(row->prefix), row->kinds);
		return true;
	}
	uint64_t count = newly_installed(line);
	if (count) {
		p->total = count;
		p->events = 0;
	}
	for (size_t i = 0; i < sizeof(package_prefixes) / sizeof(*package_prefixes); i++)
		if (starts_with(line, package_prefixes[i]))
			p->events++;
	return false;
}

int image_progress_percent(const struct image_progress *p)
{
	if (!p->total || !p->kinds)
		return -1;
	uint64_t all = p->total * p->kinds;
	return p->events >= all ? 100 : (int)(p->events * 100 / all);
}

void image_progress_text(const struct image_progress *p, uint64_t elapsed_s, struct buf *out)
{
	int percent = image_progress_percent(p);
	buf_fmt(out, "[%3llu s] %s", (unsigned long long)elapsed_s, *p->phase ? p->phase : "starting");
	if (percent > 0)
		buf_fmt(out, ", %d %%", percent);
}
