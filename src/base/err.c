#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *err_text(int code)
{
	const char *text = strerrordesc_np(code < 0 ? -code : code);
	return text ? text : "unknown error";
}

/* Formats into msg and cuts what does not fit; a cut message still says where the error is. */
[[gnu::format(printf, 3, 0)]] static size_t format_cut(char *msg, size_t size, const char *format,
						       va_list args)
{
	int n = vsnprintf(msg, size, format, args);
	if (n < 0) {
		msg[0] = '\0';
		return 0;
	}
	return (size_t)n < size ? (size_t)n : size - 1;
}

static void append(char *msg, size_t size, size_t at, const char *separator, const char *tail)
{
	const char *parts[] = {separator, tail};
	for (size_t i = 0; i < 2; i++) {
		size_t n = strnlen(parts[i], size - 1 - at);
		memcpy(msg + at, parts[i], n);
		at += n;
	}
	msg[at] = '\0';
}

/* Fills e with the formatted text, separator and tail. Returns code. */
[[gnu::format(printf, 4, 0)]] static int fill(struct err *e, int code, const char *tail, const char *format,
					      va_list args)
{
	size_t n = format_cut(e->msg, sizeof(e->msg), format, args);
	append(e->msg, sizeof(e->msg), n, tail[0] ? ": " : "", tail);
	e->code = code;
	return code;
}

int err_set(struct err *e, int code, const char *format, ...)
{
	if (!e)
		return code;
	va_list args;
	va_start(args, format);
	(void)fill(e, code, "", format, args);
	va_end(args);
	return code;
}

int err_sys(struct err *e, const char *format, ...)
{
	int code = errno ? -errno : -EIO;
	if (!e)
		return code;
	va_list args;
	va_start(args, format);
	(void)fill(e, code, err_text(code), format, args);
	va_end(args);
	return code;
}

int err_code(struct err *e, int code, const char *format, ...)
{
	if (!e)
		return code;
	va_list args;
	va_start(args, format);
	(void)fill(e, code, err_text(code), format, args);
	va_end(args);
	return code;
}

int err_ctx(struct err *e, int code, const char *format, ...)
{
	if (!e)
		return code;
	char old[sizeof(e->msg)];
	memcpy(old, e->msg, sizeof(old));
	va_list args;
	va_start(args, format);
	(void)fill(e, code, old, format, args);
	va_end(args);
	return code;
}
