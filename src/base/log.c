#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/num.h"

enum { MESSAGE_MAX = 2048, LINE_MAX_BYTES = 8 * MESSAGE_MAX };

/* What stands for a level: the word in JSON, and the priority that journald reads from a "<N>" prefix. */
static const struct {
	const char *word;
	int priority;
} levels[] = {
	[LOG_LEVEL_ERROR] = {"error", 3},
	[LOG_LEVEL_WARNING] = {"warning", 4},
	[LOG_LEVEL_INFO] = {"info", 6},
	[LOG_LEVEL_DEBUG] = {"debug", 7},
};

/* The one mutable global: how this process logs. */
static struct {
	enum log_format format;
	enum log_level level;
	const char *name;
	bool journal;
} state = {.format = LOG_TEXT, .level = LOG_LEVEL_INFO};

/* True when standard error is the journal's stream: $JOURNAL_STREAM is "device:inode" of it. It is compared, as
 * systemd.exec(5) asks, because a child may have been given another standard error and the old environment. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	const char *colon = stream ? strchr(stream, ':') : NULL;
	char device[24];
	if (!colon || (size_t)(colon - stream) >= sizeof(device))
		return false;
	size_t n = (size_t)(colon - stream);
	memcpy(device, stream, n);
	device[n] = '\0';
	uint64_t dev = 0;
	uint64_t ino = 0;
	struct stat st = {0};
	return num_parse(device, 0, UINT64_MAX, &dev) == 0 &&
	       num_parse(colon + 1, 0, UINT64_MAX, &ino) == 0 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

void log_setup(enum log_format format, enum log_level level, const char *name)
{
	state.format = format;
	state.level = level;
	state.name = name;
	state.journal = stderr_is_journal();
}

static void add_text(struct buf *line, enum log_level level, const char *message)
{
	if (state.journal)
		buf_fmt(line, "<%d>", levels[level].priority);
	if (state.name)
		buf_fmt(line, "%s: ", state.name);
	buf_plain(line, message, strlen(message));
}

static void add_json(struct buf *line, enum log_level level, const char *message)
{
	char time[21];
	clock_format_utc(clock_wall_s(), time);
	buf_fmt(line, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":", time, levels[level].word);
	buf_json(line, message, strlen(message));
	buf_str(line, "}");
}

void log_line(enum log_level level, const char *format, ...)
{
	if (level > state.level)
		return;
	int saved = errno;
	char message[MESSAGE_MAX];
	va_list args;
	va_start(args, format);
	if (vsnprintf(message, sizeof(message), format, args) < 0)
		message[0] = '\0';
	va_end(args);
	scoped_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
	if (state.format == LOG_JSON)
		add_json(&line, level, message);
	else
		add_text(&line, level, message);
	buf_str(&line, "\n");
	/* One write, so that lines of several processes do not mix; a log that cannot be written has nowhere to say
	 * so. */
	ssize_t written = write(STDERR_FILENO, buf_text(&line), line.n);
	(void)written;
	errno = saved;
}
