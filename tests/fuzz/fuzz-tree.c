/* A tree's stream, read whole and in chunks: the same is found, and only what the header of wire/tree.h allows. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "wire/tree.h"

#define BYTES_MAX   (1u << 20)
#define ENTRIES_MAX 50

/* What was found, as one number that does not depend on how the content was cut. */
struct found {
	struct tree_reader reader;
	uint64_t digest;
	uint64_t end; /* of the file's content so far */
};

static void mix(struct found *f, const void *p, size_t n, uint64_t salt)
{
	const uint8_t *bytes = p;
	for (size_t i = 0; i < n; i++)
		f->digest = (f->digest ^ bytes[i] ^ (salt + i) << 8) * 0x100000001b3u;
}

static void check_name(const char *name)
{
	REQUIRE(name[0] != '/' && name[0] != '\0' && strlen(name) <= TREE_NAME_MAX);
	REQUIRE(!strstr(name, "//") && name[strlen(name) - 1] != '/');
	for (const char *at = name; at; at = strchr(at, '/')) {
		at += *at == '/';
		REQUIRE(strncmp(at, "../", 3) != 0 && strcmp(at, "..") != 0);
		REQUIRE(strncmp(at, "./", 2) != 0 && (strcmp(at, ".") != 0 || at == name));
	}
}

/* Written again, an entry is read as the same. */
static void check_entry(struct found *f)
{
	const struct tree_entry *entry = &f->reader.entry;
	check_name(entry->name);
	REQUIRE(strcmp(entry->name, ".") != 0 || entry->kind == TREE_DIRECTORY);
	REQUIRE((entry->kind == TREE_LINK) == (entry->target[0] != '\0') && entry->target[0] != '/');
	REQUIRE(entry->mode <= 0777 && (entry->kind == TREE_FILE || entry->size == 0));
	REQUIRE(f->reader.bytes <= BYTES_MAX && f->reader.entries <= ENTRIES_MAX);
	mix(f, entry->name, strlen(entry->name) + 1, entry->kind);
	mix(f, entry->target, strlen(entry->target) + 1, entry->mode);
	mix(f, &entry->size, sizeof(entry->size), (uint64_t)entry->mtime_s);
	f->end = 0;

	uint8_t *bytes = malloc(TREE_HEAD + 2 * (TREE_NAME_MAX + 1));
	struct tree_reader *again = malloc(sizeof(*again));
	REQUIRE(bytes && again);
	ptrdiff_t written = tree_write_entry(entry, bytes);
	REQUIRE(written > 0);
	tree_reader_init(again, BYTES_MAX, 1);
	const uint8_t *p = bytes, *data = NULL;
	size_t n = (size_t)written, data_n = 0;
	uint64_t offset = 0;
	REQUIRE(tree_read(again, &p, &n, &data, &data_n, &offset, NULL) == TREE_ENTRY && n == 0);
	REQUIRE(strcmp(again->entry.name, entry->name) == 0 &&
		strcmp(again->entry.target, entry->target) == 0);
	REQUIRE(again->entry.kind == entry->kind && again->entry.mode == entry->mode);
	REQUIRE(again->entry.size == entry->size && again->entry.mtime_s == entry->mtime_s);
	free(again);
	free(bytes);
}

static int read_chunk(struct found *f, const uint8_t *p, size_t n)
{
	const uint8_t *start = p, *stop = p + n, *data = NULL;
	size_t data_n = 0;
	uint64_t offset = 0;
	struct err e = ERR_INIT;
	for (;;) {
		int event = tree_read(&f->reader, &p, &n, &data, &data_n, &offset, &e);
		REQUIRE(p + n == stop);
		if (event < 0) {
			REQUIRE((event == -EPROTO || event == -EFBIG) && e.code == event);
			return event;
		}
		if (event == TREE_MORE) {
			REQUIRE(n == 0);
			return 0;
		}
		if (event == TREE_ENTRY)
			check_entry(f);
		else if (event != TREE_DATA)
			mix(f, "event", 5, (uint64_t)event);
		if (event == TREE_DATA) {
			REQUIRE(data >= start && data_n > 0 && data + data_n == p && offset >= f->end);
			f->end = offset + data_n;
			REQUIRE(f->end <= f->reader.entry.size && f->reader.entry.kind == TREE_FILE);
			mix(f, data, data_n, offset);
		}
	}
}

static uint64_t digest_of(const uint8_t *p, size_t n, size_t chunk)
{
	struct found *f = calloc(1, sizeof(*f));
	REQUIRE(f);
	tree_reader_init(&f->reader, BYTES_MAX, ENTRIES_MAX);
	int r = 0;
	for (size_t at = 0; at < n && r == 0; at += chunk)
		r = read_chunk(f, p + at, n - at < chunk ? n - at : chunk);
	mix(f, "result", 6, (uint64_t)r);
	if (r < 0)
		REQUIRE(read_chunk(f, (const uint8_t *)"x", 1) == -EPROTO);
	uint64_t digest = f->digest;
	free(f);
	return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	size_t chunk = data[0] == 0 ? 1 : data[0];
	REQUIRE(digest_of(data + 1, size - 1, size) == digest_of(data + 1, size - 1, chunk));
	return 0;
}
