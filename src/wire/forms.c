#include "wire/forms.h"

#include <string.h>

#define WHITE_SPACE " \t\n\r\v\f"

static const char hex_lower[] = "0123456789abcdef";
static const char hex_upper[] = "0123456789ABCDEF";

/* Borrowed bytes. */
struct span {
	const char *p;
	size_t n;
};

void forms_done(struct forms *f)
{
	if (f->text.p)
		explicit_bzero(f->text.p, f->text.n);
	buf_done(&f->text);
	buf_done(&f->list);
}

struct form *forms_list(const struct forms *f, size_t *ret_n)
{
	*ret_n = f->list.n / sizeof(struct form);
	return (void *)f->list.p;
}

static void put(struct forms *f, char c)
{
	buf_add(&f->text, &c, 1);
}

/* Makes the text from at on a form of n bytes. */
static void form_of(struct forms *f, size_t at, size_t n)
{
	struct form form = {.at = (uint32_t)at, .n = (uint32_t)n};
	if (n >= MASK_FORM_MIN)
		buf_add(&f->list, &form, sizeof(form));
}

/* Makes what was put since at one form. */
static void close_form(struct forms *f, size_t at)
{
	form_of(f, at, f->text.n - at);
}

static bool is_white(char c)
{
	return c != '\0' && strchr(WHITE_SPACE, c);
}

static struct span trim_end(struct span s)
{
	while (s.n > 0 && is_white(s.p[s.n - 1]))
		s.n--;
	return s;
}

static struct span trim(struct span s)
{
	s = trim_end(s);
	while (s.n > 0 && is_white(*s.p)) {
		s.p++;
		s.n--;
	}
	return s;
}

static void add_plain(struct forms *f, struct span s)
{
	if (trim(s).n < MASK_FORM_MIN)
		return;
	size_t at = f->text.n;
	buf_add(&f->text, s.p, s.n);
	close_form(f, at);
}

/* Base64 of s and a tail. Where text follows the secret its last digit is another one, so the form without it counts,
 * too, and the one without padding. */
static void add_base64_text(struct forms *f, struct span s, const char *tail, const char digits[static 64])
{
	size_t at = f->text.n, tail_n = strlen(tail), digits_n = 0;
	uint32_t bits = 0;
	unsigned have = 0;
	for (size_t i = 0; i < s.n + tail_n; i++) {
		bits = bits << 8 | (uint8_t)(i < s.n ? s.p[i] : tail[i - s.n]);
		for (have += 8; have >= 6; have -= 6)
			put(f, digits[bits >> (have - 6) & 63]);
	}
	if (have > 0)
		put(f, digits[bits << (6 - have) & 63]);
	digits_n = f->text.n - at;
	while ((f->text.n - at) % 4 != 0 && !f->text.bad)
		put(f, '=');
	close_form(f, at);
	form_of(f, at, digits_n);
	if (digits_n > 0)
		form_of(f, at, digits_n - 1);
}

/* A secret behind 0, 1 or 2 bytes of other text: the digits that mix both are left out, so the three shifts are base64
 * of the secret without its first 0, 2 or 1 bytes. A tail of "\n" is what `echo "$SECRET" | base64` encodes. */
static void add_base64(struct forms *f, struct span s)
{
	static const char standard[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	static const char url_safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	for (size_t skip = 0; skip < 3 && skip < s.n; skip++) {
		struct span rest = {s.p + skip, s.n - skip};
		add_base64_text(f, rest, "", standard);
		add_base64_text(f, rest, "\n", standard);
		add_base64_text(f, rest, "", url_safe);
		add_base64_text(f, rest, "\n", url_safe);
	}
}

static void put_hex(struct forms *f, uint8_t byte, const char *digits)
{
	put(f, digits[byte >> 4]);
	put(f, digits[byte & 15]);
}

static void add_hex(struct forms *f, struct span s, const char *digits)
{
	size_t at = f->text.n;
	for (size_t i = 0; i < s.n; i++)
		put_hex(f, (uint8_t)s.p[i], digits);
	close_form(f, at);
}

/* Percent-encoding as RFC 3986 has it, of everything but unreserved characters. */
static void add_url(struct forms *f, struct span s)
{
	size_t at = f->text.n;
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
		    c == '_' || c == '.' || c == '~') {
			put(f, c);
		} else {
			put(f, '%');
			put_hex(f, (uint8_t)c, hex_upper);
		}
	}
	close_form(f, at);
}

/* Decodes one character of UTF-8. Returns its bytes and the code point, or 1 and 0xdc00 + the byte (as Python says it)
 * for a byte that belongs to none. */
static size_t utf8_next(const char *p, size_t n, uint32_t *ret_code)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	uint8_t lead = (uint8_t)*p;
	size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
	uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
	size_t i = 1;
	while (i < length && i < n && ((uint8_t)p[i] & 0xc0) == 0x80)
		code = code << 6 | ((uint8_t)p[i++] & 0x3f);
	if (i < length || code < least[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
		*ret_code = 0xdc00u + lead;
		return 1;
	}
	*ret_code = code;
	return length;
}

static void put_json_unit(struct forms *f, uint32_t unit)
{
	buf_str(&f->text, "\\u");
	put_hex(f, (uint8_t)(unit >> 8), hex_lower);
	put_hex(f, (uint8_t)unit, hex_lower);
}

/* JSON's escapes; ascii says that everything outside printable ASCII is escaped, as some writers do. */
static void add_json(struct forms *f, struct span s, bool ascii)
{
	static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
	size_t at = f->text.n, length = 0;
	for (size_t i = 0; i < s.n; i += length) {
		uint32_t code = 0;
		length = utf8_next(s.p + i, s.n - i, &code);
		const char *escape = code > 0 && code < 0x80 ? strchr(escaped, (int)code) : NULL;
		if (escape) {
			put(f, '\\');
			put(f, letters[escape - escaped]);
		} else if (code < 0x20 || (ascii && code >= 0x7f && code < 0x10000)) {
			put_json_unit(f, code);
		} else if (ascii && code >= 0x10000) {
			put_json_unit(f, 0xd800 + ((code - 0x10000) >> 10));
			put_json_unit(f, 0xdc00 + ((code - 0x10000) & 0x3ff));
		} else {
			buf_add(&f->text, s.p + i, length);
		}
	}
	close_form(f, at);
}

/* A secret inside single quotes of a shell. */
static void add_shell(struct forms *f, struct span s)
{
	size_t at = f->text.n;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '\'')
			buf_str(&f->text, "'\\''");
		else
			put(f, s.p[i]);
	}
	close_form(f, at);
}

/* Writers of XML and HTML differ in which characters they escape and how: the entity of each of "&<>\"'", or NULL. */
static void add_xml(struct forms *f, struct span s, const char *const entities[static 5])
{
	static const char characters[] = "&<>\"'";
	size_t at = f->text.n;
	for (size_t i = 0; i < s.n; i++) {
		const char *c = s.p[i] ? strchr(characters, s.p[i]) : NULL;
		const char *entity = c ? entities[c - characters] : NULL;
		if (entity)
			buf_str(&f->text, entity);
		else
			put(f, s.p[i]);
	}
	close_form(f, at);
}

static void add_all_xml(struct forms *f, struct span s)
{
	static const char *const writers[][5] = {
		{"&amp;", "&lt;", "&gt;", NULL, NULL},         {"&amp;", "&lt;", NULL, "&quot;", NULL},
		{"&amp;", "&lt;", "&gt;", "&quot;", NULL},     {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"},
		{"&amp;", "&lt;", "&gt;", "&quot;", "&#x27;"}, {"&amp;", "&lt;", "&gt;", "&quot;", "&#039;"},
		{"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"},
	};
	for (size_t i = 0; i < sizeof(writers) / sizeof(writers[0]); i++)
		add_xml(f, s, writers[i]);
}

static void add_all(struct forms *f, struct span s)
{
	add_plain(f, s);
	add_base64(f, s);
	add_hex(f, s, hex_lower);
	add_hex(f, s, hex_upper);
	add_url(f, s);
	add_json(f, s, true);
	add_json(f, s, false);
	add_shell(f, s);
	add_all_xml(f, s);
}

/* Lines count alone because a terminal, an indentation or a prefix changes what stands between them. */
static void add_lines(struct forms *f, struct span s)
{
	while (s.n > 0) {
		size_t n = 0;
		while (n < s.n && s.p[n] != '\n' && s.p[n] != '\r')
			n++;
		add_plain(f, (struct span){s.p, n});
		add_plain(f, trim((struct span){s.p, n}));
		if (n < s.n)
			n++;
		s = (struct span){s.p + n, s.n - n};
	}
}

bool forms_add(struct forms *f, const char *secret, size_t n)
{
	struct span s = {secret, n}, inner = trim(s), ended = trim_end(s);
	if (inner.n < MASK_FORM_MIN)
		return false;
	add_all(f, s);
	/* A shell's $(cat file) drops the newline at the end of a secret, and the rest is encoded without it. */
	if (ended.n < s.n)
		add_all(f, ended);
	add_plain(f, inner);
	if (inner.p[0] == '"' && inner.p[inner.n - 1] == '"')
		add_plain(f, (struct span){inner.p + 1, inner.n - 2});
	add_lines(f, s);
	return true;
}
