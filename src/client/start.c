#include "client/start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/scope.h"
#include "wire/frame.h"

enum { HEAD_ROOM = 64 }; /* bytes of a frame beside its longest field */

/* Appends the strings, each with its zero, and counts them. */
static uint32_t add_strings(struct buf *out, char *const *strings)
{
	uint32_t n = 0;
	for (; strings && strings[n]; n++)
		buf_add(out, strings[n], strlen(strings[n]) + 1);
	return n;
}

static size_t strings_bytes(char *const *strings)
{
	size_t n = 0;
	for (size_t i = 0; strings && strings[i]; i++)
		n += strlen(strings[i]) + 1;
	return n;
}

int start_check(const struct start_request *s, struct err *e)
{
	size_t n = strings_bytes(s->arguments) + strings_bytes(s->environment);
	if (n > FRAME_STRINGS_MAX)
		return err_set(e, -E2BIG,
			       "the command with its environment is %zu bytes long: at most %u are accepted",
			       n, FRAME_STRINGS_MAX);
	size_t user_max = sizeof((ermite_Start){0}.user) - 1;
	if (strlen(s->user) > user_max)
		return err_set(e, -E2BIG, "the user's name is longer than %zu bytes", user_max);
	size_t workdir_max = sizeof((ermite_Start){0}.workdir) - 1;
	if (strlen(s->workdir) > workdir_max)
		return err_set(e, -E2BIG, "the working directory is longer than %zu bytes", workdir_max);
	return 0;
}

static int add_frame(const ermite_ToGuest *m, struct buf *out, struct err *e)
{
	static const size_t size = FRAME_HEAD + HEAD_ROOM + FRAME_DATA_MAX;
	scoped_free uint8_t *frame = malloc(size);
	if (!frame)
		return err_set(e, -ENOMEM, "out of memory");
	ptrdiff_t n = frame_to_guest_encode(m, frame, size);
	if (n < 0)
		return err_code(e, (int)n, "encode a start");
	buf_add(out, frame, (size_t)n);
	explicit_bzero(frame, (size_t)n);
	return 0;
}

/* Adds the strings in pieces of what one message may hold. */
static int add_string_frames(const struct start_request *s, const struct buf *strings, ermite_ToGuest *m,
			     struct buf *out, struct err *e)
{
	for (size_t at = 0; at < strings->n;) {
		size_t n = strings->n - at < FRAME_DATA_MAX ? strings->n - at : FRAME_DATA_MAX;
		m->which_message = ermite_ToGuest_strings_tag;
		m->message.strings.id = s->id;
		m->message.strings.bytes.size = (pb_size_t)n;
		memcpy(m->message.strings.bytes.bytes, strings->p + at, n);
		int r = add_frame(m, out, e);
		if (r < 0)
			return r;
		at += n;
	}
	return 0;
}

static void fill_start(const struct start_request *s, ermite_Start *start)
{
	*start = (ermite_Start){
		.id = s->id,
		.kind = s->kind,
		.terminal = s->terminal,
		.rows = s->rows,
		.columns = s->columns,
		.has_stdin = s->has_stdin,
	};
	memcpy(start->user, s->user, strlen(s->user));
	memcpy(start->workdir, s->workdir, strlen(s->workdir));
}

int start_encode(const struct start_request *s, struct buf *out, struct err *e)
{
	int r = start_check(s, e);
	if (r < 0)
		return r;
	scoped_free ermite_ToGuest *m = calloc(1, sizeof(*m));
	if (!m)
		return err_set(e, -ENOMEM, "out of memory");
	scoped_buf struct buf strings = BUF_INIT(FRAME_STRINGS_MAX);
	uint32_t arguments = add_strings(&strings, s->arguments);
	uint32_t environment = add_strings(&strings, s->environment);
	r = buf_check(&strings);
	if (r < 0)
		return err_code(e, r, "collect the command");
	r = add_string_frames(s, &strings, m, out, e);
	if (r < 0)
		return r;
	m->which_message = ermite_ToGuest_start_tag;
	fill_start(s, &m->message.start);
	m->message.start.argument_count = arguments;
	m->message.start.environment_count = environment;
	r = add_frame(m, out, e);
	return r < 0 ? r : buf_check(out);
}
