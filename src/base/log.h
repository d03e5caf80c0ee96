/*
 * The log of a process: one line per event on standard error, as text or as JSON. Only the top of a process logs;
 * libraries return errors. Bytes that came from outside are escaped, so a log line is always one line.
 */
#ifndef ERMITE_BASE_LOG_H
#define ERMITE_BASE_LOG_H

enum log_format { LOG_TEXT, LOG_JSON };
enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Sets format, level and the name that stands in front of a text line (borrowed, for the life of the process). */
void log_setup(enum log_format format, enum log_level level, const char *name);

/* Logs one line at a level; below the level set nothing happens. */
[[gnu::format(printf, 2, 3)]] void log_line(enum log_level level, const char *format, ...);

#define log_error(...)   log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
