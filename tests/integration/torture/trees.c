#include <string.h>
#include <time.h>

#include "base/rd.h"
#include "modes.h"
#include "wire/tree.h"

/* An output that was asked for is called `out`; its disk has DISK_BYTES. */
#define DISK_BYTES (UINT64_C(1) << 30)

/* Sends an entry without a check of what is in it. */
static void send_entry(struct guest *g, struct tree_entry entry, size_t name_n)
{
	uint8_t head[TREE_HEAD];
	size_t target_n = entry.target ? strlen(entry.target) : 0;
	wr_uint(head, entry.kind, 4);
	wr_uint(head + 4, entry.mode, 4);
	wr_uint(head + 8, entry.size, 8);
	wr_uint(head + 16, (uint64_t)entry.mtime_s, 8);
	wr_uint(head + 24, name_n, 4);
	wr_uint(head + 28, target_n, 4);
	guest_output(g, head, sizeof(head));
	guest_output(g, entry.name, name_n);
	guest_output(g, entry.target, target_n);
}

static void send_named(struct guest *g, enum tree_kind kind, const char *name, const char *target)
{
	send_entry(g, (struct tree_entry){.kind = kind, .mode = 0755, .name = name, .target = target},
		   strlen(name));
}

static void send_directory(struct guest *g)
{
	send_named(g, TREE_DIRECTORY, "out", NULL);
}

static void end_tree(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_END}, 0);
}

static void absolute(struct guest *g)
{
	send_named(g, TREE_DIRECTORY, "/etc/torture", NULL);
}

static void parent(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_DIRECTORY, "out/../../torture", NULL);
}

static void zero_in_name(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_DIRECTORY, .name = "out\0x"}, 5);
}

static void name_long(struct guest *g)
{
	static char name[TREE_NAME_MAX + 1];
	memset(name, 'x', sizeof(name));
	send_entry(g, (struct tree_entry){.kind = TREE_DIRECTORY, .name = name}, sizeof(name));
}

static void name_empty(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_DIRECTORY, .name = ""}, 0);
}

static void kind_unknown(struct guest *g)
{
	send_named(g, (enum tree_kind)9, "out", NULL);
}

static void mode_setuid(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_FILE, .mode = 04755, .name = "out"}, 3);
}

static void link_absolute(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_LINK, "out/link", "/etc/passwd");
}

static void link_out(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_LINK, "out/link", "../../torture");
}

static void size_negative(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_FILE, .size = UINT64_MAX, .name = "out"}, 3);
}

static void segment_past(struct guest *g)
{
	uint8_t segment[TREE_SEGMENT];
	send_entry(g, (struct tree_entry){.kind = TREE_FILE, .size = 1, .name = "out"}, 3);
	tree_write_segment(5, 1, segment);
	guest_output(g, segment, sizeof(segment));
}

static void unfinished(struct guest *g)
{
	send_directory(g);
	guest_say_exited(g, 0);
}

static void after_end(struct guest *g)
{
	send_directory(g);
	end_tree(g);
	send_directory(g);
}

/* The rest breaks no rule of the stream: the client has to refuse it, or to stop somewhere. */

static void finish(struct guest *g)
{
	end_tree(g);
	guest_say_exited(g, 0);
}

static void foreign(struct guest *g)
{
	send_named(g, TREE_DIRECTORY, "other", NULL);
	finish(g);
}

static void duplicate(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_LINK, "out/x", "y");
	send_named(g, TREE_LINK, "out/x", "z");
	finish(g);
}

static void through_link(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_DIRECTORY, "out/real", NULL);
	send_named(g, TREE_LINK, "out/link", "real");
	send_named(g, TREE_DIRECTORY, "out/link/below", NULL);
	finish(g);
}

static void nasty_names(struct guest *g)
{
	send_directory(g);
	send_named(g, TREE_SKIPPED, "out/\x1b]0;owned\x07\x1b[2J\r\n%n%s\xff", NULL);
	finish(g);
}

static void too_big(struct guest *g)
{
	send_entry(g, (struct tree_entry){.kind = TREE_FILE, .size = DISK_BYTES + 1, .name = "out"}, 3);
	for (;;)
		(void)guest_hear(g);
}

/* Entries that make nothing on the host, for ever, many at a time. */
static void endless(struct guest *g)
{
	static const struct tree_entry entry = {.kind = TREE_SKIPPED, .name = "out/x", .target = ""};
	static uint8_t many[1024 * (TREE_HEAD + 5)];
	size_t n = 0;
	while (n < sizeof(many)) {
		ptrdiff_t entry_n = tree_write_entry(&entry, many + n);
		if (entry_n < 0)
			guest_give_up();
		n += (size_t)entry_n;
	}
	for (;;) {
		guest_output(g, many, n);
		/* The host is not to be worn out by this, but to come to the end of its patience. */
		(void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
}

const struct act tree_acts[] = {
	{"tree-absolute", STAGE_COPY_OUT, absolute},
	{"tree-parent", STAGE_COPY_OUT, parent},
	{"tree-zero-in-name", STAGE_COPY_OUT, zero_in_name},
	{"tree-name-long", STAGE_COPY_OUT, name_long},
	{"tree-name-empty", STAGE_COPY_OUT, name_empty},
	{"tree-kind-unknown", STAGE_COPY_OUT, kind_unknown},
	{"tree-mode-setuid", STAGE_COPY_OUT, mode_setuid},
	{"tree-link-absolute", STAGE_COPY_OUT, link_absolute},
	{"tree-link-out", STAGE_COPY_OUT, link_out},
	{"tree-size-negative", STAGE_COPY_OUT, size_negative},
	{"tree-segment-past", STAGE_COPY_OUT, segment_past},
	{"tree-unfinished", STAGE_COPY_OUT, unfinished},
	{"tree-after-end", STAGE_COPY_OUT, after_end},
	{"tree-foreign", STAGE_COPY_OUT, foreign},
	{"tree-duplicate", STAGE_COPY_OUT, duplicate},
	{"tree-through-link", STAGE_COPY_OUT, through_link},
	{"tree-nasty-names", STAGE_COPY_OUT, nasty_names},
	{"tree-too-big", STAGE_COPY_OUT, too_big},
	{"tree-endless", STAGE_COPY_OUT, endless},
	{0},
};
