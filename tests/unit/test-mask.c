/* wire/mask.h and wire/forms.h: tables of text in and out at every chunk size, and a comparison with naive masking. */
#include "wire/mask.h"

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "../fuzz/naive-mask.h"

static void into_buf(void *data, const uint8_t *p, size_t n)
{
	buf_add(data, p, n);
}

static struct mask *mask_of(const char *secrets, size_t n)
{
	struct mask *m = NULL;
	size_t ignored = 0;
	struct err e = ERR_INIT;
	assert_int_equal(mask_new(secrets, n, &m, &ignored, &e), 0);
	return m;
}

/* Masks text in chunks of a size. */
static void run(const struct mask *m, const char *text, size_t n, size_t chunk, struct buf *out)
{
	struct mask_stream *s = mask_stream_new(m);
	assert_non_null(s);
	for (size_t at = 0; at < n; at += chunk)
		mask_feed(s, (const uint8_t *)text + at, n - at < chunk ? n - at : chunk, into_buf, out);
	mask_flush(s, into_buf, out);
	mask_stream_free(s);
	assert_int_equal(buf_check(out), 0);
}

static void expect(const char *secrets, size_t secrets_n, const char *text, const char *wanted)
{
	struct mask *m = mask_of(secrets, secrets_n);
	assert_non_null(m);
	for (size_t chunk = 1; chunk <= strlen(text); chunk++) {
		scoped_buf struct buf out = BUF_INIT(1 << 20);
		run(m, text, strlen(text), chunk, &out);
		assert_string_equal(buf_text(&out), wanted);
	}
	mask_free(m);
}

static void test_where_marks_stand(void **)
{
	static const struct {
		const char *secrets;
		size_t n;
		const char *text, *wanted;
	} table[] = {
#define SECRETS(text) text, sizeof(text)
		{SECRETS("hello123"), "say hello123 twice: hello123.", "say *** twice: ***."},
		{SECRETS("hello123"), "nothing to hide", "nothing to hide"},
		{SECRETS("hello123"), "hello12", "hello12"},
		{SECRETS("hello123"), "hello12\nhello123", "hello12\n***"},
		{SECRETS("hello123"), "hellohello123", "hello***"},
		{SECRETS("secret\0secret123"), "secret secret12 secret123 secret1234", "*** ***12 *** ***4"},
		{SECRETS("secret123\0secret"), "xsecret12y", "x***12y"},
		{SECRETS("abcdef\0defghi"), "abcdefghi abcdef defghi abcdefgh", "*** *** *** ***gh"},
		{SECRETS("abcd"), "abcdabcdabcd", "***"},
		{SECRETS("abcd"), "abcd abcd", "*** ***"},
		{SECRETS("aaab"), "aaaaab", "aa***"},
		{SECRETS("bcde\0abcdeXYZ"), "abcdeXY! abcdeXYZ", "a***XY! ***"},
		{SECRETS("bcde\0fghi\0abcde-fghi-XYZ"), "abcde-fghi-XY abcde-fghi-XYZ", "a***-***-XY ***"},
		{SECRETS("first line\nsecond line"), "first line\r\n  second line\n", "***\r\n  ***\n"},
		{SECRETS("first line\nsecond line"), "first line\nsecond line\n", "***\n"},
		{SECRETS("one\nfour\nfive5"), "one four five5 one\nfour", "one *** *** one\n***"},
		{SECRETS("  padded  \n"), "x padded, padded", "x ***, ***"},
		{SECRETS("\"quoted\""), "quoted \"quoted\"", "*** ***"},
		{SECRETS("long enough\0e\0\0tom"), "e tom long enough", "e tom ***"},
		{SECRETS("long enough\n        \n}"), "{        }", "{        }"},
#undef SECRETS
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		expect(table[i].secrets, table[i].n, table[i].text, table[i].wanted);
}

static void test_forms(void **)
{
	static const struct {
		const char *secret, *text, *wanted;
	} table[] = {
		{"s3cr&t\"Pa55word/+x", "s3cr&t\"Pa55word/+x", "***"},
		/* As printf "$SECRET" | base64, as echo, and behind one and two other bytes. */
		{"s3cr&t\"Pa55word/+x", "czNjciZ0IlBhNTV3b3JkLyt4\n", "***\n"},
		{"s3cr&t\"Pa55word/+x", "czNjciZ0IlBhNTV3b3JkLyt4Cg==\n", "***\n"},
		{"s3cr&t\"Pa55word/+x", "eHMzY3ImdCJQYTU1d29yZC8reA==", "eHMz***"},
		{"s3cr&t\"Pa55word/+x", "eHhzM2NyJnQiUGE1NXdvcmQvK3g=", "eHhz***"},
		/* Followed by something else: the digit that mixes both is left. */
		{"s3cr&t\"Pa55word/+x", "eHMzY3ImdCJQYTU1d29yZC8reHl5", "eHMz***Hl5"},
		{"password>>>???", "cGFzc3dvcmQ+Pj4/Pz8= cGFzc3dvcmQ-Pj4_Pz8", "*** ***"},
		{"s3cr&t\"Pa55word/+x", "7333637226742250613535776f72642f2b78", "***"},
		{"s3cr&t\"Pa55word/+x", "7333637226742250613535776F72642F2B78", "***"},
		{"s3cr&t\"Pa55word/+x", "s3cr%26t%22Pa55word%2F%2Bx", "***"},
		{"s3cr&t\"Pa55word/+x", "s3cr&t\\\"Pa55word/+x", "***"},
		{"s3cr&t\"Pa55word/+x", "s3cr&amp;t&quot;Pa55word/+x", "***"},
		{"s3cr&t\"Pa55word/+x", "s3cr&amp;t\"Pa55word/+x", "***"},
		{"it's mine", "it'\\''s mine", "***"},
		{"it's <mine>", "it&apos;s &lt;mine&gt; it's &lt;mine&gt;", "*** ***"},
		{"\"it's\" <mine>", "&quot;it's&quot; &lt;mine&gt; &quot;it&#x27;s&quot; &lt;mine&gt;",
		 "*** ***"},
		{"\"it's\" <mine>", "&quot;it&#039;s&quot; &lt;mine&gt; &#34;it&#39;s&#34; &lt;mine&gt;",
		 "*** ***"},
		{"line one\nline two", "line one\\nline two line%20one%0Aline%20two", "*** ***"},
		{"caf\xc3\xa9\x01\x7f", "caf\\u00e9\\u0001\\u007f caf\xc3\xa9\\u0001\x7f", "*** ***"},
		{"key\xf0\x9f\x94\x91", "key\\ud83d\\udd11 key\xf0\x9f\x94\x91", "*** ***"},
		/* A lone byte of UTF-8, an overlong form, a surrogate: as Python's surrogateescape has it. */
		{"bad\xe9", "bad\\udce9", "***"},
		{"bad\xc0\x80", "bad\\udcc0\\udc80", "***"},
		{"bad\xed\xa0\x80", "bad\\udced\\udca0\\udc80", "***"},
		{"token-of-file\n", "dG9rZW4tb2YtZmlsZQ== 746f6b656e2d6f662d66696c65", "*** ***"},
		/* The shortest one: its hex and base64 are long enough to be searched. */
		{"abcd", "61626364 YWJjZA== YWJjZ", "*** *** ***"},
		{"abcde", "abcde abcd", "*** abcd"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		expect(table[i].secret, strlen(table[i].secret) + 1, table[i].text, table[i].wanted);
}

/* Bytes are held back only while they may be the beginning of a form. */
static void test_what_is_held_back(void **)
{
	struct mask *m = mask_of("hello123", 9);
	struct mask_stream *s = mask_stream_new(m);
	assert_non_null(s);
	static const struct {
		const char *fed, *wanted;
	} table[] = {
		{"abc", "abc"},       {" hell", " "},    {"", ""},         {"o", ""},
		{"12", ""},           {"3", "***"},      {"hello", ""},    {"!", "hello!"},
		{"hellohe", "hello"}, {"llo123", "***"}, {"hello123", ""},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		scoped_buf struct buf out = BUF_INIT(4096);
		mask_feed(s, (const uint8_t *)table[i].fed, strlen(table[i].fed), into_buf, &out);
		assert_string_equal(buf_text(&out), table[i].wanted);
	}
	mask_stream_free(s);
	mask_free(m);
}

static uint32_t next_random(uint32_t *state)
{
	*state = *state * 1664525u + 1013904223u;
	return *state >> 16;
}

/* One random set of secrets over few letters, so that forms overlap, and random text made of their pieces. */
static void compare_once(uint32_t seed)
{
	uint32_t random = seed;
	uint32_t letters = 1 + next_random(&random) % 4;
	char secrets[128], text[512];
	size_t secrets_n = 0, text_n = 0;
	size_t count = 1 + next_random(&random) % 5;
	for (size_t i = 0; i < count; i++) {
		size_t n = 3 + next_random(&random) % 12;
		for (size_t k = 0; k < n; k++)
			secrets[secrets_n++] = "ab\n'"[next_random(&random) % letters];
		secrets[secrets_n++] = '\0';
	}
	struct forms forms = FORMS_INIT(secrets_n);
	for (size_t at = 0; at < secrets_n; at += strlen(secrets + at) + 1)
		(void)forms_add(&forms, secrets + at, strlen(secrets + at));
	size_t forms_n = 0;
	const struct form *list = forms_list(&forms, &forms_n);
	while (text_n < 400) {
		if (forms_n > 0 && next_random(&random) % 3 == 0) {
			const struct form *form = &list[next_random(&random) % forms_n];
			size_t n = 1 + next_random(&random) % form->n;
			memcpy(text + text_n, forms.text.p + form->at, n);
			text_n += n;
		} else {
			text[text_n++] = "ab\n'"[next_random(&random) % letters];
		}
	}
	scoped_buf struct buf wanted = BUF_INIT(4096);
	naive_mask(&forms, (const uint8_t *)text, text_n, &wanted);
	struct mask *m = mask_of(secrets, secrets_n);
	assert_int_equal(m != NULL, forms_n > 0);
	for (size_t chunk = 1; m && chunk <= text_n; chunk += 1 + next_random(&random) % 60) {
		scoped_buf struct buf out = BUF_INIT(4096);
		run(m, text, text_n, chunk, &out);
		assert_int_equal(out.n, wanted.n);
		assert_memory_equal(out.p, wanted.p, wanted.n);
	}
	mask_free(m);
	forms_done(&forms);
}

static void test_like_naive_masking(void **)
{
	for (uint32_t seed = 1; seed <= 600; seed++)
		compare_once(seed);
}

static void test_what_is_refused(void **)
{
	static char many[MASK_SECRETS_MAX + 1];
	struct mask *m = NULL;
	size_t ignored = 7;
	struct err e = ERR_INIT;
	assert_int_equal(mask_new(many, sizeof(many), &m, &ignored, &e), -EMSGSIZE);
	assert_string_equal(e.msg, "secrets: 131073 bytes together, accepted are 131072");
	assert_int_equal(mask_new("no end", 6, &m, &ignored, &e), -EINVAL);
	assert_int_equal(ignored, 7);

	assert_int_equal(mask_new("", 0, &m, &ignored, &e), 0);
	assert_null(m);
	assert_int_equal(ignored, 0);
	assert_int_equal(mask_new("e\0\0abc\0 x y ", 13, &m, &ignored, &e), 0);
	assert_null(m);
	assert_int_equal(ignored, 3);
	mask_free(NULL);
	mask_stream_free(NULL);
}

/* The most that is accepted, of the bytes with the longest escapes, in few and in many secrets: the memory stays
 * bounded, and what is found is right. */
static void test_large_secrets(void **)
{
	static char secrets[MASK_SECRETS_MAX];
	for (size_t length = 9; length <= sizeof(secrets); length += sizeof(secrets) - 9) {
		uint32_t random = (uint32_t)length;
		for (size_t i = 0; i < sizeof(secrets); i++)
			secrets[i] = "&'\"<>\xc3\xa9kz/?"[next_random(&random) % 11];
		for (size_t i = length - 1; i < sizeof(secrets); i += length)
			secrets[i] = '\0';
		secrets[sizeof(secrets) - 1] = '\0';
		struct mask *m = mask_of(secrets, sizeof(secrets));
		assert_non_null(m);
		struct mallinfo2 used = mallinfo2();
		assert_true(used.uordblks + used.hblkhd < (size_t)64 << 20);
		scoped_buf struct buf out = BUF_INIT(sizeof(secrets));
		run(m, secrets, strlen(secrets), 1000, &out);
		assert_string_equal(buf_text(&out), "***");
		mask_free(m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_where_marks_stand), cmocka_unit_test(test_forms),
		cmocka_unit_test(test_what_is_held_back), cmocka_unit_test(test_like_naive_masking),
		cmocka_unit_test(test_what_is_refused),   cmocka_unit_test(test_large_secrets),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
