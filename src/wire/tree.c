#include "wire/tree.h"

#include <errno.h>
#include <string.h>

#include "base/rd.h"

enum state { STATE_HEAD, STATE_NAME, STATE_TARGET, STATE_SEGMENT, STATE_BYTES, STATE_DONE, STATE_FAILED };

/* Where the bytes of a segment go to. */
struct found {
	const uint8_t *p;
	size_t n;
	uint64_t offset;
};

void tree_reader_init(struct tree_reader *r, uint64_t bytes_max, uint64_t entries_max)
{
	memset(r, 0, sizeof(*r));
	r->bytes_max = bytes_max;
	r->entries_max = entries_max;
	r->state = STATE_HEAD;
}

static bool is_text(const char *p, size_t n, const char *text)
{
	return n == strlen(text) && memcmp(p, text, n) == 0;
}

static bool name_is_plain(const char *name)
{
	for (;;) {
		size_t n = strcspn(name, "/");
		if (n == 0 || is_text(name, n, ".") || is_text(name, n, ".."))
			return false;
		if (name[n] == '\0')
			return true;
		name += n + 1;
	}
}

/* A ".." behind a named component is refused even where the count of components says that it stays inside: the
 * component may be a link of the same tree, and ".." then starts from wherever that one leads. Leading ones start from
 * the real directory of the link, whose depth is known. */
bool tree_link_inside(const char *name, const char *target)
{
	size_t depth = 0;
	for (const char *c = name; *c; c++)
		depth += *c == '/';
	if (*target == '/' || *target == '\0')
		return false;
	bool named = false;
	while (*target) {
		size_t n = strcspn(target, "/");
		if (is_text(target, n, "..")) {
			if (named || depth == 0)
				return false;
			depth--;
		} else if (!is_text(target, n, ".")) {
			named = true;
		}
		target += n;
		target += strspn(target, "/");
	}
	return true;
}

/* What is wrong with an entry, or NULL: the one list of checks that reader and writer share. */
static const char *entry_fault(const struct tree_entry *entry)
{
	if (entry->mode > 0777)
		return "the mode has more than permission bits";
	if (entry->size > (entry->kind == TREE_FILE ? (uint64_t)INT64_MAX : 0))
		return "the size is impossible";
	bool root = entry->kind == TREE_DIRECTORY && strcmp(entry->name, ".") == 0;
	if (!root && !name_is_plain(entry->name))
		return "the name is absolute or has an empty, \".\" or \"..\" component";
	if (entry->kind != TREE_LINK)
		return *entry->target == '\0' ? NULL : "only a link has a target";
	return tree_link_inside(entry->name, entry->target) ? NULL : "the link leads out of the tree";
}

static int fail(struct tree_reader *r, int code, struct err *e, const char *what)
{
	r->state = STATE_FAILED;
	return err_set(e, code, "tree of files, entry %llu: %s", (unsigned long long)r->entries, what);
}

/* Collects bytes until want are there; true once they are. */
static bool collect(struct tree_reader *r, struct rd *in, void *into, size_t want)
{
	size_t left = rd_left(in), missing = want - r->have;
	size_t n = left < missing ? left : missing;
	memcpy((uint8_t *)into + r->have, rd_bytes(in, n), n);
	r->have += n;
	if (r->have < want)
		return false;
	r->have = 0;
	return true;
}

static int read_head(struct tree_reader *r, struct rd *in, struct found *, struct err *e)
{
	if (!collect(r, in, r->head, TREE_HEAD))
		return TREE_MORE;
	struct rd head = rd_over(r->head, TREE_HEAD);
	uint32_t kind = rd_u32(&head);
	r->entry = (struct tree_entry){.kind = kind, .name = r->name, .target = r->target};
	r->entry.mode = rd_u32(&head);
	r->entry.size = rd_u64(&head);
	r->entry.mtime_s = (int64_t)rd_u64(&head);
	r->name_n = rd_u32(&head);
	r->target_n = rd_u32(&head);
	if (kind == TREE_END) {
		static const uint8_t zeros[TREE_HEAD];
		if (memcmp(r->head + 4, zeros, TREE_HEAD - 4) != 0)
			return fail(r, -EPROTO, e, "the end carries something");
		r->state = STATE_DONE;
		return TREE_DONE;
	}
	r->entries++;
	if (kind < TREE_DIRECTORY || kind > TREE_SKIPPED)
		return fail(r, -EPROTO, e, "the kind is unknown");
	if (r->name_n == 0 || r->name_n > TREE_NAME_MAX || r->target_n > TREE_NAME_MAX)
		return fail(r, -EPROTO, e, "the name or the target is empty or too long");
	if (r->entries > r->entries_max)
		return fail(r, -EFBIG, e, "more entries than allowed");
	if (r->entry.size > r->bytes_max - r->bytes)
		return fail(r, -EFBIG, e, "more bytes than allowed");
	r->bytes += r->entry.size;
	r->state = STATE_NAME;
	return TREE_MORE;
}

static int finish_entry(struct tree_reader *r, struct err *e)
{
	r->name[r->name_n] = '\0';
	r->target[r->target_n] = '\0';
	if (strlen(r->name) != r->name_n || strlen(r->target) != r->target_n)
		return fail(r, -EPROTO, e, "a zero byte in the name or the target");
	const char *fault = entry_fault(&r->entry);
	if (fault)
		return fail(r, -EPROTO, e, fault);
	r->at = 0;
	r->state = r->entry.kind == TREE_FILE ? STATE_SEGMENT : STATE_HEAD;
	return TREE_ENTRY;
}

static int read_name(struct tree_reader *r, struct rd *in, struct found *, struct err *e)
{
	if (!collect(r, in, r->name, r->name_n))
		return TREE_MORE;
	if (r->target_n == 0)
		return finish_entry(r, e);
	r->state = STATE_TARGET;
	return TREE_MORE;
}

static int read_target(struct tree_reader *r, struct rd *in, struct found *, struct err *e)
{
	if (!collect(r, in, r->target, r->target_n))
		return TREE_MORE;
	return finish_entry(r, e);
}

static int read_segment(struct tree_reader *r, struct rd *in, struct found *, struct err *e)
{
	if (!collect(r, in, r->head, TREE_SEGMENT))
		return TREE_MORE;
	struct rd head = rd_over(r->head, TREE_SEGMENT);
	uint64_t offset = rd_u64(&head), size = r->entry.size;
	uint32_t length = rd_u32(&head);
	if (length == 0) {
		if (offset != size)
			return fail(r, -EPROTO, e, "the last segment is not at the end of the file");
		r->state = STATE_HEAD;
		return TREE_FILE_DONE;
	}
	if (length > TREE_CHUNK_MAX || offset < r->at || offset > size || length > size - offset)
		return fail(r, -EPROTO, e, "a segment is too long, out of order or past the size");
	r->at = offset;
	r->segment_left = length;
	r->state = STATE_BYTES;
	return TREE_MORE;
}

static int read_bytes(struct tree_reader *r, struct rd *in, struct found *found, struct err *)
{
	size_t n = rd_left(in) < r->segment_left ? rd_left(in) : (size_t)r->segment_left;
	*found = (struct found){.p = rd_bytes(in, n), .n = n, .offset = r->at};
	r->at += n;
	r->segment_left -= n;
	if (r->segment_left == 0)
		r->state = STATE_SEGMENT;
	return TREE_DATA;
}

static int read_past_end(struct tree_reader *r, struct rd *, struct found *, struct err *e)
{
	return fail(r, -EPROTO, e, "bytes behind the end");
}

static int read_failed(struct tree_reader *r, struct rd *, struct found *, struct err *e)
{
	return fail(r, -EPROTO, e, "bytes behind a fault");
}

/* Each is called with at least one byte and consumes some, or fails. */
static int (*const steps[])(struct tree_reader *r, struct rd *in, struct found *found, struct err *e) = {
	[STATE_HEAD] = read_head,       [STATE_NAME] = read_name,   [STATE_TARGET] = read_target,
	[STATE_SEGMENT] = read_segment, [STATE_BYTES] = read_bytes, [STATE_DONE] = read_past_end,
	[STATE_FAILED] = read_failed,
};

int tree_read(struct tree_reader *r, const uint8_t **p, size_t *n, const uint8_t **ret_data, size_t *ret_n,
	      uint64_t *ret_offset, struct err *e)
{
	struct rd in = rd_over(*p, *n);
	struct found found = {0};
	int event = TREE_MORE;
	while (event == TREE_MORE && rd_left(&in) > 0)
		event = steps[r->state](r, &in, &found, e);
	*p = in.p;
	*n = rd_left(&in);
	if (event == TREE_DATA) {
		*ret_data = found.p;
		*ret_n = found.n;
		*ret_offset = found.offset;
	}
	return event;
}

static void write_head(const struct tree_entry *entry, size_t name_n, size_t target_n, uint8_t *p)
{
	wr_uint(p, entry->kind, 4);
	wr_uint(p + 4, entry->mode, 4);
	wr_uint(p + 8, entry->size, 8);
	wr_uint(p + 16, (uint64_t)entry->mtime_s, 8);
	wr_uint(p + 24, name_n, 4);
	wr_uint(p + 28, target_n, 4);
}

ptrdiff_t tree_write_entry(const struct tree_entry *entry, uint8_t *p)
{
	if (entry->kind == TREE_END) {
		write_head(&(struct tree_entry){.kind = TREE_END}, 0, 0, p);
		return TREE_HEAD;
	}
	size_t name_n = strlen(entry->name), target_n = strlen(entry->target);
	if (entry->kind < TREE_DIRECTORY || entry->kind > TREE_SKIPPED || name_n > TREE_NAME_MAX ||
	    target_n > TREE_NAME_MAX || entry_fault(entry))
		return -EINVAL;
	write_head(entry, name_n, target_n, p);
	memcpy(p + TREE_HEAD, entry->name, name_n);
	memcpy(p + TREE_HEAD + name_n, entry->target, target_n);
	return (ptrdiff_t)(TREE_HEAD + name_n + target_n);
}

void tree_write_segment(uint64_t offset, uint32_t length, uint8_t p[static TREE_SEGMENT])
{
	wr_uint(p, offset, 8);
	wr_uint(p + 8, length, 4);
}
