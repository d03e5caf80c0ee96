/* wire/tree.h: round trips at every chunk size, and everything that the reader refuses. */
#include "wire/tree.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/rd.h"

/* Appends an entry's bytes without any check. */
static void add_raw(struct buf *b, const struct tree_entry *entry, size_t name_n, size_t target_n)
{
	uint8_t head[TREE_HEAD];
	wr_uint(head, entry->kind, 4);
	wr_uint(head + 4, entry->mode, 4);
	wr_uint(head + 8, entry->size, 8);
	wr_uint(head + 16, (uint64_t)entry->mtime_s, 8);
	wr_uint(head + 24, name_n, 4);
	wr_uint(head + 28, target_n, 4);
	buf_add(b, head, sizeof(head));
	buf_add(b, entry->name, name_n);
	buf_add(b, entry->target, target_n);
}

static void add_entry(struct buf *b, const struct tree_entry *entry)
{
	static uint8_t bytes[TREE_HEAD + 2 * (TREE_NAME_MAX + 1)];
	ptrdiff_t n = tree_write_entry(entry, bytes);
	assert_true(n > 0);
	buf_add(b, bytes, (size_t)n);
}

static void add_segment(struct buf *b, uint64_t offset, const char *bytes)
{
	uint8_t head[TREE_SEGMENT];
	tree_write_segment(offset, (uint32_t)strlen(bytes), head);
	buf_add(b, head, sizeof(head));
	buf_str(b, bytes);
}

static void describe(const struct tree_reader *r, struct buf *out)
{
	buf_fmt(out, "%d %s>%s %o %llu %lld\n", (int)r->entry.kind, r->entry.name, r->entry.target,
		r->entry.mode, (unsigned long long)r->entry.size, (long long)r->entry.mtime_s);
}

/* Reads a stream in chunks and writes down what was found; pieces of content are joined by their offsets. Returns the
 * last event or the error. */
static int read_all(const struct buf *stream, size_t chunk, struct tree_reader *r, struct buf *out)
{
	uint64_t content_end = UINT64_MAX;
	int event = TREE_MORE;
	for (size_t at = 0; at < stream->n; at += chunk) {
		const uint8_t *p = (const uint8_t *)stream->p + at, *data = NULL;
		size_t n = stream->n - at < chunk ? stream->n - at : chunk, data_n = 0;
		uint64_t offset = 0;
		struct err e = ERR_INIT;
		for (;;) {
			event = tree_read(r, &p, &n, &data, &data_n, &offset, &e);
			assert_int_equal(e.code, event < 0 ? event : 0);
			if (event < 0)
				return event;
			if (event == TREE_MORE)
				break;
			if (event == TREE_ENTRY)
				describe(r, out);
			if (event == TREE_DATA && offset != content_end)
				buf_fmt(out, "@%llu ", (unsigned long long)offset);
			if (event == TREE_DATA)
				buf_add(out, data, data_n);
			content_end = event == TREE_DATA ? offset + data_n : UINT64_MAX;
			if (event == TREE_FILE_DONE)
				buf_str(out, "!\n");
			if (event == TREE_DONE)
				buf_str(out, "end\n");
		}
		assert_int_equal(n, 0);
	}
	return event;
}

static void test_round_trip(void **)
{
	scoped_buf struct buf stream = BUF_INIT(65536);
	static const struct tree_entry entries[] = {
		{TREE_DIRECTORY, 0755, 0, 1700000000, ".", ""},
		{TREE_DIRECTORY, 0700, 0, -5, "a", ""},
		{TREE_LINK, 0777, 0, 3, "a/up", "../file with spaces"},
		{TREE_LINK, 0777, 0, 3, "...", "a/b"},
		{TREE_SKIPPED, 0, 0, 0, "a/socket", ""},
		{TREE_FILE, 0, 0, 0, "empty", ""},
	};
	static const struct tree_entry sparse = {TREE_FILE, 0644, 1ull << 40, 9, "a/sparse", ""};
	for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++)
		add_entry(&stream, &entries[i]);
	add_segment(&stream, 0, "");
	add_entry(&stream, &sparse);
	add_segment(&stream, 10, "some");
	add_segment(&stream, 14, "thing");
	add_segment(&stream, (1ull << 40) - 3, "end");
	add_segment(&stream, 1ull << 40, "");
	add_entry(&stream, &(struct tree_entry){.kind = TREE_END});
	assert_int_equal(buf_check(&stream), 0);

	for (size_t chunk = 1; chunk <= stream.n; chunk++) {
		struct tree_reader r;
		tree_reader_init(&r, 1ull << 40, 7);
		scoped_buf struct buf out = BUF_INIT(65536);
		assert_int_equal(read_all(&stream, chunk, &r, &out), TREE_MORE);
		assert_string_equal(buf_text(&out), "1 .> 755 0 1700000000\n"
						    "1 a> 700 0 -5\n"
						    "3 a/up>../file with spaces 777 0 3\n"
						    "3 ...>a/b 777 0 3\n"
						    "4 a/socket> 0 0 0\n"
						    "2 empty> 0 0 0\n!\n"
						    "2 a/sparse> 644 1099511627776 9\n"
						    "@10 something@1099511627773 end!\nend\n");
		assert_int_equal(r.bytes, 1ull << 40);
		assert_int_equal(r.entries, 7);
	}
}

/* Each entry is refused by the writer and by the reader; lengths of -1 stand for those of the texts. */
static void test_entries_refused(void **)
{
	static const struct {
		struct tree_entry entry;
		int name_n, target_n;
		bool writer_cannot; /* say it at all */
	} table[] = {
		{{TREE_FILE, 0644, 1, 0, "", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "/etc/passwd", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "..", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "a/../b", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "a/..", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "./a", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "a/./b", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "a//b", ""}, -1, -1, false},
		{{TREE_DIRECTORY, 0755, 0, 0, "a/", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, ".", ""}, -1, -1, false},
		{{TREE_LINK, 0777, 0, 0, ".", "a"}, -1, -1, false},
		{{TREE_FILE, 0644, 1, 0, "a\0b", ""}, 3, -1, true},
		{{TREE_FILE, 04755, 1, 0, "a", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 1ull << 63, 0, "a", ""}, -1, -1, false},
		{{TREE_FILE, 0644, 0, 0, "a", "b"}, -1, -1, false},
		{{TREE_DIRECTORY, 0755, 1, 0, "a", ""}, -1, -1, false},
		{{TREE_SKIPPED, 0, 0, 0, "a", "b"}, -1, -1, false},
		{{TREE_LINK, 0777, 0, 0, "a", ""}, -1, -1, false},
		{{TREE_LINK, 0777, 0, 0, "a", "/etc/passwd"}, -1, -1, false},
		{{TREE_LINK, 0777, 0, 0, "a", "../b"}, -1, -1, false},
		{{TREE_LINK, 0777, 0, 0, "a", "b\0c"}, -1, 3, true},
		{{0, 0, 0, 0, "a", ""}, -1, -1, false},
		{{6, 0, 0, 0, "a", ""}, -1, -1, false},
		{{TREE_END, 0, 0, 0, "a", ""}, -1, -1, true},
		{{TREE_END, 1, 0, 0, "", ""}, -1, -1, true},
		{{TREE_FILE, 0644, 1, 0, "a", ""}, INT32_MAX, -1, true},
	};
	static uint8_t bytes[TREE_HEAD + 2 * (TREE_NAME_MAX + 1)];
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		const struct tree_entry *entry = &table[i].entry;
		if (!table[i].writer_cannot)
			assert_int_equal(tree_write_entry(entry, bytes), -EINVAL);
		scoped_buf struct buf stream = BUF_INIT(65536), out = BUF_INIT(65536);
		size_t name_n = table[i].name_n < 0 ? strlen(entry->name) : (size_t)table[i].name_n;
		size_t target_n = table[i].target_n < 0 ? strlen(entry->target) : (size_t)table[i].target_n;
		if (name_n == INT32_MAX) {
			add_raw(&stream, entry, 1, 0);
			wr_uint((uint8_t *)stream.p + 24, name_n, 4);
		} else {
			add_raw(&stream, entry, name_n, target_n);
		}
		struct tree_reader r;
		tree_reader_init(&r, UINT64_MAX, UINT64_MAX);
		assert_int_equal(read_all(&stream, 7, &r, &out), -EPROTO);
		assert_string_equal(buf_text(&out), "");
		/* The reader stays refusing, whatever follows. */
		assert_int_equal(read_all(&stream, 1, &r, &out), -EPROTO);
	}
}

/* Names and targets of at most TREE_NAME_MAX bytes pass, one more is refused. */
static void test_longest_name(void **)
{
	static char name[TREE_NAME_MAX + 2];
	memset(name, 'n', TREE_NAME_MAX);
	for (size_t i = 200; i < TREE_NAME_MAX; i += 200)
		name[i] = '/';
	for (int kind = 0; kind < 3; kind++) {
		struct tree_entry entry = {TREE_LINK, 0777, 0, 0, "a", "a"};
		name[TREE_NAME_MAX] = kind == 0 ? '\0' : 'n';
		entry.name = kind == 2 ? "a" : name;
		entry.target = kind == 1 ? "a" : name;
		scoped_buf struct buf stream = BUF_INIT(65536), out = BUF_INIT(65536);
		add_raw(&stream, &entry, strlen(entry.name), strlen(entry.target));
		struct tree_reader r;
		tree_reader_init(&r, 0, 1);
		assert_int_equal(read_all(&stream, 1000, &r, &out), kind == 0 ? TREE_MORE : -EPROTO);
		assert_int_equal(out.n, kind == 0 ? strlen("3 > 777 0 0\n") + 2 * TREE_NAME_MAX : 0);
		static uint8_t bytes[TREE_HEAD + 2 * (TREE_NAME_MAX + 1)];
		assert_int_equal(tree_write_entry(&entry, bytes), kind == 0 ? (ptrdiff_t)stream.n : -EINVAL);
	}
}

static void test_segments_refused(void **)
{
	static const struct {
		uint64_t offset;
		uint32_t length;
	} table[] = {
		{0, 1},          /* before the end of the last one */
		{99, 2},         /* over the size */
		{101, 1},        /* past it */
		{UINT64_MAX, 1}, /* wraps around */
		{99, 0},         /* the end is elsewhere */
		{101, 0},        {50, TREE_CHUNK_MAX + 1}, {50, UINT32_MAX},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		scoped_buf struct buf stream = BUF_INIT(65536), out = BUF_INIT(65536);
		add_entry(&stream, &(struct tree_entry){TREE_FILE, 0644, 100, 0, "a", ""});
		add_segment(&stream, 0, "xy");
		uint8_t head[TREE_SEGMENT];
		tree_write_segment(table[i].offset, table[i].length, head);
		buf_add(&stream, head, sizeof(head));
		struct tree_reader r;
		tree_reader_init(&r, 100, 1);
		assert_int_equal(read_all(&stream, 5, &r, &out), -EPROTO);
	}
}

static void test_limits(void **)
{
	scoped_buf struct buf stream = BUF_INIT(65536);
	for (int i = 0; i < 3; i++) {
		add_entry(&stream, &(struct tree_entry){TREE_FILE, 0644, 100, 0, "a", ""});
		add_segment(&stream, 100, "");
	}
	add_entry(&stream, &(struct tree_entry){.kind = TREE_END});
	static const struct {
		uint64_t bytes, entries;
		int result;
	} table[] = {
		{300, 3, TREE_MORE}, {299, 3, -EFBIG}, {300, 2, -EFBIG}, {UINT64_MAX, UINT64_MAX, TREE_MORE}};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct tree_reader r;
		scoped_buf struct buf out = BUF_INIT(65536);
		tree_reader_init(&r, table[i].bytes, table[i].entries);
		assert_int_equal(read_all(&stream, 11, &r, &out), table[i].result);
	}

	/* The end is the end. */
	struct tree_reader r;
	scoped_buf struct buf out = BUF_INIT(65536);
	tree_reader_init(&r, 300, 3);
	assert_int_equal(read_all(&stream, stream.n, &r, &out), TREE_MORE);
	buf_add(&stream, "x", 1);
	tree_reader_init(&r, 300, 3);
	assert_int_equal(read_all(&stream, stream.n, &r, &out), -EPROTO);
}

static void test_link_inside(void **)
{
	static const struct {
		const char *name, *target;
		bool inside;
	} table[] = {
		{"a", "b", true},
		{"a", "b/c/d", true},
		{"a", ".", true},
		{"a", "./b", true},
		{"a", "..", false},
		{"a", "./..", false},
		{"a", "../a", false},
		{"a", "/", false},
		{"a", "/a", false},
		{"a", "", false},
		{"d/a", "..", true},
		{"d/a", "../b", true},
		{"d/a", "../..", false},
		{"d/a", "..//../b", false},
		{"d/e/a", "../../b", true},
		{"d/e/a", ".././../b", true},
		{"d/e/a", "../../../b", false},
		/* d/up -> .. is the root, and d/up/.. its parent: no counting sees that. */
		{"d/a", "up/..", false},
		{"d/a", "up/../b", false},
		{"d/e/a", "../x/../y", false},
		{"a", "..b", true},
		{"a", "b/...", true},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		assert_int_equal(tree_link_inside(table[i].name, table[i].target), table[i].inside);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_entries_refused),
		cmocka_unit_test(test_longest_name), cmocka_unit_test(test_segments_refused),
		cmocka_unit_test(test_limits),       cmocka_unit_test(test_link_inside),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
