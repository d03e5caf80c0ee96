/* Masking compared with the obvious way. Input: bytes of secrets, chunk size, secrets, text. */
#include "fuzz.h"
#include "naive-mask.h"
#include "wire/mask.h"

#define TEXT_MAX 2048

static void into_buf(void *data, const uint8_t *p, size_t n)
{
	buf_add(data, p, n);
}

static void compare(const char *secrets, size_t secrets_n, size_t chunk, const uint8_t *text, size_t text_n)
{
	struct mask *m = NULL;
	size_t ignored = 0, wanted_ignored = 0, forms_n = 0;
	REQUIRE(mask_new(secrets, secrets_n, &m, &ignored, NULL) == 0);
	struct forms forms = FORMS_INIT(secrets_n);
	for (size_t at = 0; at < secrets_n; at += strlen(secrets + at) + 1)
		if (secrets[at] != '\0' && !forms_add(&forms, secrets + at, strlen(secrets + at)))
			wanted_ignored++;
	(void)forms_list(&forms, &forms_n);
	REQUIRE(buf_check(&forms.text) == 0 && buf_check(&forms.list) == 0);
	REQUIRE((m != NULL) == (forms_n > 0) && ignored == wanted_ignored);
	if (m) {
		scoped_buf struct buf wanted = BUF_INIT(3 * TEXT_MAX);
		scoped_buf struct buf out = BUF_INIT(3 * TEXT_MAX);
		struct mask_stream *s = mask_stream_new(m);
		REQUIRE(s);
		for (size_t at = 0; at < text_n; at += chunk)
			mask_feed(s, text + at, text_n - at < chunk ? text_n - at : chunk, into_buf, &out);
		mask_flush(s, into_buf, &out);
		mask_stream_free(s);
		naive_mask(&forms, text, text_n, &wanted);
		REQUIRE(out.n == wanted.n && (out.n == 0 || memcmp(out.p, wanted.p, out.n) == 0));
	}
	mask_free(m);
	forms_done(&forms);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	size_t secrets_n = data[0] < size - 2 ? data[0] : size - 2;
	size_t text_n = size - 2 - secrets_n < TEXT_MAX ? size - 2 - secrets_n : TEXT_MAX;
	char secrets[256] = {0};
	memcpy(secrets, data + 2, secrets_n);
	compare(secrets, secrets_n + 1, data[1] == 0 ? 1 : data[1], data + 2 + secrets_n, text_n);
	return 0;
}
