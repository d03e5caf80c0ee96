#include "wire/frame.h"

#include <assert.h>
#include <errno.h>
#include <pb_decode.h>
#include <pb_encode.h>
#include <stdbool.h>
#include <string.h>

#include "base/rd.h"

#define CHANNEL_MAX   2
#define STATUS_MAX    255
#define SIGNAL_MAX    64
#define DIMENSION_MAX 65535 /* struct winsize holds 16 bits */

/* Keys of the fields of a Data message on the wire: field number << 3 | wire type. */
#define KEY_DATA    (ermite_ToHost_data_tag << 3 | 2)
#define KEY_ID      (ermite_Data_id_tag << 3 | 0)
#define KEY_CHANNEL (ermite_Data_channel_tag << 3 | 0)
#define KEY_BYTES   (ermite_Data_bytes_tag << 3 | 2)

_Static_assert((int)ermite_ToHost_data_tag == (int)ermite_ToGuest_data_tag,
	       "Data has the same bytes in both directions");
_Static_assert(sizeof(((ermite_Data *)0)->bytes.bytes) == FRAME_DATA_MAX, "stream.options and frame.h agree");
_Static_assert(sizeof(((ermite_Strings *)0)->bytes.bytes) == FRAME_DATA_MAX,
	       "stream.options and frame.h agree");

int frame_next(const uint8_t *p, size_t n, const uint8_t **ret_message, size_t *ret_message_n,
	       size_t *ret_frame_n, struct err *e)
{
	if (n < FRAME_HEAD)
		return 0;
	struct rd r = rd_over(p, n);
	uint32_t length = rd_u32(&r);
	if (length == 0 || length > FRAME_MAX)
		return err_set(e, -EPROTO, "a frame of %u bytes, accepted are 1 to %u", length, FRAME_MAX);
	const uint8_t *message = rd_bytes(&r, length);
	if (!message)
		return 0;
	*ret_message = message;
	*ret_message_n = length;
	*ret_frame_n = FRAME_HEAD + (size_t)length;
	return 1;
}

/* The decoder zeroes a text before it fills it and ends it at size - 1 at the latest, so a zero byte inside shows as
 * something behind the end. Zero bytes at the very end change nothing that a reader sees. */
static bool text_is_plain(const char *text, size_t size)
{
	for (size_t i = strlen(text); i < size; i++)
		if (text[i] != '\0')
			return false;
	return true;
}

static bool exited_is_sane(const ermite_Exited *m)
{
	return m->status <= STATUS_MAX && m->signal <= SIGNAL_MAX && (m->status == 0 || m->signal == 0);
}

static bool failed_is_sane(const ermite_Failed *m)
{
	return m->status <= STATUS_MAX && text_is_plain(m->text, sizeof(m->text));
}

static bool credit_is_sane(const ermite_Credit *m)
{
	return m->channel <= CHANNEL_MAX && m->bytes > 0 && m->bytes <= FRAME_WINDOW;
}

static bool start_is_sane(const ermite_Start *m)
{
	return m->kind <= _ermite_Kind_MAX && m->argument_count <= FRAME_STRINGS_MAX &&
	       m->environment_count <= FRAME_STRINGS_MAX && m->rows <= DIMENSION_MAX &&
	       m->columns <= DIMENSION_MAX && text_is_plain(m->user, sizeof(m->user)) &&
	       text_is_plain(m->workdir, sizeof(m->workdir));
}

static bool to_host_is_sane(const ermite_ToHost *m)
{
	switch (m->which_message) {
	case ermite_ToHost_hello_tag:
		return text_is_plain(m->message.hello.build, sizeof(m->message.hello.build));
	case ermite_ToHost_data_tag:
		return m->message.data.channel <= CHANNEL_MAX;
	case ermite_ToHost_eof_tag:
		return m->message.eof.channel <= CHANNEL_MAX;
	case ermite_ToHost_credit_tag:
		return credit_is_sane(&m->message.credit);
	case ermite_ToHost_exited_tag:
		return exited_is_sane(&m->message.exited);
	case ermite_ToHost_failed_tag:
		return failed_is_sane(&m->message.failed);
	case ermite_ToHost_started_tag:
	case ermite_ToHost_system_ready_tag:
		return true;
	default:
		return false;
	}
}

static bool to_guest_is_sane(const ermite_ToGuest *m)
{
	switch (m->which_message) {
	case ermite_ToGuest_hello_tag:
		return text_is_plain(m->message.hello.build, sizeof(m->message.hello.build));
	case ermite_ToGuest_start_tag:
		return start_is_sane(&m->message.start);
	case ermite_ToGuest_data_tag:
		return m->message.data.channel <= CHANNEL_MAX;
	case ermite_ToGuest_eof_tag:
		return m->message.eof.channel <= CHANNEL_MAX;
	case ermite_ToGuest_credit_tag:
		return credit_is_sane(&m->message.credit);
	case ermite_ToGuest_signal_tag:
		return m->message.signal.number > 0 && m->message.signal.number <= SIGNAL_MAX;
	case ermite_ToGuest_resize_tag:
		return m->message.resize.rows <= DIMENSION_MAX && m->message.resize.columns <= DIMENSION_MAX;
	case ermite_ToGuest_strings_tag:
		return true;
	default:
		return false;
	}
}

int frame_to_host_decode(const uint8_t *p, size_t n, ermite_ToHost *ret, struct err *e)
{
	pb_istream_t in = pb_istream_from_buffer(p, n);
	if (!pb_decode(&in, ermite_ToHost_fields, ret))
		return err_set(e, -EPROTO, "message from the guest: %s", PB_GET_ERROR(&in));
	if (!to_host_is_sane(ret))
		return err_set(e, -EPROTO,
			       "message from the guest: kind %u is unknown or has a value out of range",
			       (unsigned)ret->which_message);
	return 0;
}

int frame_to_guest_decode(const uint8_t *p, size_t n, ermite_ToGuest *ret, struct err *e)
{
	pb_istream_t in = pb_istream_from_buffer(p, n);
	if (!pb_decode(&in, ermite_ToGuest_fields, ret))
		return err_set(e, -EPROTO, "message from the host: %s", PB_GET_ERROR(&in));
	if (!to_guest_is_sane(ret))
		return err_set(e, -EPROTO,
			       "message from the host: kind %u is unknown or has a value out of range",
			       (unsigned)ret->which_message);
	return 0;
}

static ptrdiff_t encode(const pb_msgdesc_t *fields, const void *m, uint8_t *p, size_t size)
{
	if (size < FRAME_HEAD)
		return -EMSGSIZE;
	pb_ostream_t out = pb_ostream_from_buffer(p + FRAME_HEAD, size - FRAME_HEAD);
	if (!pb_encode(&out, fields, m))
		return -EMSGSIZE;
	wr_uint(p, out.bytes_written, FRAME_HEAD);
	return (ptrdiff_t)(FRAME_HEAD + out.bytes_written);
}

ptrdiff_t frame_to_host_encode(const ermite_ToHost *m, uint8_t *p, size_t size)
{
	return encode(ermite_ToHost_fields, m, p, size);
}

ptrdiff_t frame_to_guest_encode(const ermite_ToGuest *m, uint8_t *p, size_t size)
{
	return encode(ermite_ToGuest_fields, m, p, size);
}

/* A varint of at most 32 bits in its shortest form; anything else marks the cursor bad. */
static uint32_t varint_read(struct rd *r)
{
	uint64_t value = 0;
	for (unsigned shift = 0; shift < 35; shift += 7) {
		uint8_t byte = rd_u8(r);
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte & 0x80)
			continue;
		if ((byte == 0 && shift > 0) || value > UINT32_MAX)
			break;
		return (uint32_t)value;
	}
	r->bad = true;
	return 0;
}

static size_t varint_write(uint32_t value, uint8_t *p)
{
	size_t n = 0;
	for (; value > 0x7f; value >>= 7)
		p[n++] = (uint8_t)(value | 0x80);
	p[n++] = (uint8_t)value;
	return n;
}

/* A number field that stands next, or 0 (how a message says zero) when another key does. */
static uint32_t number_read(struct rd *r, uint8_t key)
{
	if (rd_left(r) == 0 || *r->p != key)
		return 0;
	(void)rd_u8(r);
	uint32_t value = varint_read(r);
	if (value == 0)
		r->bad = true;
	return value;
}

int frame_data_peek(const uint8_t *p, size_t n, uint32_t *ret_id, uint32_t *ret_channel,
		    const uint8_t **ret_bytes, size_t *ret_bytes_n)
{
	struct rd r = rd_over(p, n);
	if (rd_u8(&r) != KEY_DATA || varint_read(&r) != rd_left(&r))
		return 0;
	uint32_t id = number_read(&r, KEY_ID);
	uint32_t channel = number_read(&r, KEY_CHANNEL);
	if (rd_u8(&r) != KEY_BYTES)
		return 0;
	uint32_t bytes_n = varint_read(&r);
	const uint8_t *bytes = rd_bytes(&r, bytes_n);
	if (!rd_finish(&r) || channel > CHANNEL_MAX || bytes_n == 0 || bytes_n > FRAME_DATA_MAX)
		return 0;
	*ret_id = id;
	*ret_channel = channel;
	*ret_bytes = bytes;
	*ret_bytes_n = bytes_n;
	return 1;
}

static size_t number_write(uint8_t key, uint32_t value, uint8_t *p)
{
	if (value == 0)
		return 0;
	p[0] = key;
	return 1 + varint_write(value, p + 1);
}

size_t frame_data_head(uint32_t id, uint32_t channel, size_t n, uint8_t p[static FRAME_DATA_HEAD_MAX])
{
	assert(channel <= CHANNEL_MAX && n > 0 && n <= FRAME_DATA_MAX);
	uint8_t inner[FRAME_DATA_HEAD_MAX];
	size_t inner_n = number_write(KEY_ID, id, inner);
	inner_n += number_write(KEY_CHANNEL, channel, inner + inner_n);
	inner_n += number_write(KEY_BYTES, (uint32_t)n, inner + inner_n);

	size_t head_n = FRAME_HEAD + number_write(KEY_DATA, (uint32_t)(inner_n + n), p + FRAME_HEAD);
	memcpy(p + head_n, inner, inner_n);
	head_n += inner_n;
	wr_uint(p, head_n - FRAME_HEAD + n, FRAME_HEAD);
	return head_n;
}

const char *frame_string_next(const char *strings, size_t n, size_t *at)
{
	if (*at >= n)
		return NULL;
	const char *string = strings + *at;
	const char *end = memchr(string, '\0', n - *at);
	if (!end)
		return NULL;
	*at += (size_t)(end - string) + 1;
	return string;
}
