#include "wire/mask.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/scope.h"
#include "wire/forms.h"

/*
 * The automaton is a trie of all forms with failure links (Aho and Corasick, 1975), its nodes in the order of the
 * sorted forms. A node's first child is then the node behind it, so a chain, which is what nearly all of the trie is,
 * needs no edges: 12 bytes a node. Further children stand in a hash table, those of the root in an array.
 *
 * Ordinary text hardly ever enters it: as long as nothing is under way, four bytes at a time are looked up in a filter
 * of the first four bytes of all forms.
 */
struct node {
	uint32_t fail;  /* longest proper suffix that is a node */
	uint32_t found; /* bytes of the longest form that ends here, 0 for none */
	uint32_t place; /* depth << DEPTH_SHIFT, flags, last byte */
};

#define DEPTH_SHIFT  10
#define HAS_BRANCHES 0x200u /* has more children than the node behind it */
#define IS_FORM      0x100u
#define FLAGS        (HAS_BRANCHES | IS_FORM)
#define ROOT         0u
#define FILTER_BITS  16

struct edge {
	uint32_t parent;
	uint32_t child; /* 0: a free slot */
};

struct mask {
	struct node *nodes; /* and one more, of depth 0, that is nobody's child */
	size_t nodes_n;
	struct edge *edges;
	size_t edges_n; /* slots, a power of two */
	size_t longest; /* bytes of the longest form */
	uint32_t first[256];
	uint8_t filter[(1 << FILTER_BITS) / 8];
};

/* Bytes start..end are to be masked. Positions count from the first byte of the chunk that is being fed; what was
 * held back has negative ones. */
struct mark {
	ptrdiff_t start, end;
};

struct mask_stream {
	const struct mask *m;
	uint32_t state;
	bool marked;   /* the last thing that the sink got is a mark: one that touches it continues it */
	uint8_t *held; /* the last held_n bytes, not yet given to the sink; room for the longest form */
	size_t held_n;
	struct mark *marks; /* not yet given to the sink: sorted, apart from each other */
	size_t marks_first, marks_n, marks_room;
};

/* One call of mask_feed(). */
struct feed {
	struct mask_stream *s;
	const uint8_t *p;
	ptrdiff_t n;
	ptrdiff_t done; /* everything before went to the sink */
	mask_sink *sink;
	void *data;
};

static size_t depth_of(const struct node *node)
{
	return node->place >> DEPTH_SHIFT;
}

static size_t edge_slot(const struct mask *m, uint32_t parent, uint8_t byte)
{
	uint64_t key = (uint64_t)parent << 8 | byte;
	return (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (m->edges_n - 1);
}

static uint32_t edge_find(const struct mask *m, uint32_t parent, uint8_t byte)
{
	size_t slot = edge_slot(m, parent, byte);
	while (m->edges[slot].child != 0) {
		const struct edge *edge = &m->edges[slot];
		if (edge->parent == parent && (uint8_t)m->nodes[edge->child].place == byte)
			return edge->child;
		slot = (slot + 1) & (m->edges_n - 1);
	}
	return 0;
}

static void edge_add(struct mask *m, uint32_t parent, uint8_t byte, uint32_t child)
{
	size_t slot = edge_slot(m, parent, byte);
	while (m->edges[slot].child != 0)
		slot = (slot + 1) & (m->edges_n - 1);
	m->edges[slot] = (struct edge){.parent = parent, .child = child};
	m->nodes[parent].place |= HAS_BRANCHES;
}

/* The child of a node by a byte, 0 when there is none. */
static uint32_t child_of(const struct mask *m, uint32_t node, uint8_t byte)
{
	if (node == ROOT)
		return m->first[byte];
	const struct node *at = &m->nodes[node];
	uint32_t place = ((at->place >> DEPTH_SHIFT) + 1) << DEPTH_SHIFT | byte;
	if ((at[1].place & ~FLAGS) == place)
		return node + 1;
	return at->place & HAS_BRANCHES ? edge_find(m, node, byte) : 0;
}

static uint32_t step(const struct mask *m, uint32_t node, uint8_t byte)
{
	for (;;) {
		uint32_t child = child_of(m, node, byte);
		if (child != 0 || node == ROOT)
			return child;
		node = m->nodes[node].fail;
	}
}

static uint32_t filter_bit(const uint8_t *p)
{
	uint32_t four = 0;
	memcpy(&four, p, sizeof(four));
	return four * 0x9e3779b1u >> (32 - FILTER_BITS);
}

/* Forms in the order of their bytes, a prefix before what it begins. */
static int form_order(const void *left, const void *right, void *text)
{
	const struct form *a = left, *b = right;
	size_t n = a->n < b->n ? a->n : b->n;
	int order = memcmp((const char *)text + a->at, (const char *)text + b->at, n);
	return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static size_t common_prefix(const uint8_t *text, const struct form *a, const struct form *b)
{
	size_t n = 0, least = a->n < b->n ? a->n : b->n;
	while (n < least && text[a->at + n] == text[b->at + n])
		n++;
	return n;
}

/* The sorted forms while the automaton is built from them. */
struct build {
	const uint8_t *text;
	const struct form *forms;
	size_t forms_n;
	uint32_t *
		path; /* longest + 1 nodes: those of the last form by depth; later, by depth, a list of nodes */
};

/* Counts nodes and edges, allocates both and the path. */
static int allocate(struct mask *m, struct build *b)
{
	size_t nodes = 1, edges = 1;
	for (size_t i = 0; i < b->forms_n; i++) {
		size_t shared = i > 0 ? common_prefix(b->text, &b->forms[i - 1], &b->forms[i]) : 0;
		nodes += b->forms[i].n - shared;
		edges += shared < b->forms[i].n;
		if (b->forms[i].n > m->longest)
			m->longest = b->forms[i].n;
	}
	assert(m->longest < 1u << (32 - DEPTH_SHIFT) && nodes < UINT32_MAX);
	for (m->edges_n = 2; m->edges_n < 2 * edges;)
		m->edges_n *= 2;
	m->nodes_n = nodes;
	m->nodes = calloc(nodes + 1, sizeof(*m->nodes));
	m->edges = calloc(m->edges_n, sizeof(*m->edges));
	b->path = calloc(m->longest + 1, sizeof(*b->path));
	return m->nodes && m->edges && b->path ? 0 : -ENOMEM;
}

/* Makes the trie. Until the links are known, fail is the parent. */
static void grow(struct mask *m, const struct build *b)
{
	uint32_t last = ROOT;
	for (size_t i = 0; i < b->forms_n; i++) {
		const struct form *form = &b->forms[i];
		size_t depth = i > 0 ? common_prefix(b->text, form - 1, form) : 0;
		for (; depth < form->n; depth++) {
			uint8_t byte = b->text[form->at + depth];
			uint32_t parent = b->path[depth], child = ++last;
			m->nodes[child].fail = parent;
			m->nodes[child].place = (uint32_t)(depth + 1) << DEPTH_SHIFT | byte;
			b->path[depth + 1] = child;
			if (parent == ROOT)
				m->first[byte] = child;
			else if (child != parent + 1)
				edge_add(m, parent, byte, child);
		}
		m->nodes[b->path[form->n]].place |= IS_FORM;
		uint32_t bit = filter_bit(b->text + form->at);
		m->filter[bit / 8] |= (uint8_t)(1u << bit % 8);
	}
}

/* Sets fail and found, nearer nodes first: a link always leads to a nearer one. Until a node is done, found chains the
 * nodes of its depth. */
static void link_up(struct mask *m, const struct build *b)
{
	memset(b->path, 0, (m->longest + 1) * sizeof(*b->path));
	for (uint32_t node = (uint32_t)m->nodes_n - 1; node > ROOT; node--) {
		size_t depth = depth_of(&m->nodes[node]);
		m->nodes[node].found = b->path[depth];
		b->path[depth] = node;
	}
	for (size_t depth = 1; depth <= m->longest; depth++) {
		uint32_t next = 0;
		for (uint32_t node = b->path[depth]; node != 0; node = next) {
			struct node *at = &m->nodes[node];
			uint32_t parent = at->fail;
			next = at->found;
			at->fail = parent == ROOT ? ROOT : step(m, m->nodes[parent].fail, (uint8_t)at->place);
			at->found = at->place & IS_FORM ? (uint32_t)depth : m->nodes[at->fail].found;
		}
	}
}

static int build(struct mask *m, const struct forms *forms)
{
	struct build b = {.text = (const uint8_t *)forms->text.p};
	struct form *list = forms_list(forms, &b.forms_n);
	qsort_r(list, b.forms_n, sizeof(*list), form_order, forms->text.p);
	b.forms = list;
	int r = allocate(m, &b);
	if (r == 0) {
		grow(m, &b);
		link_up(m, &b);
	}
	free(b.path);
	return r;
}

/* Makes the forms of all secrets. */
static int gather(const char *p, size_t n, struct forms *forms, size_t *ret_ignored, struct err *e)
{
	size_t ignored = 0;
	while (n > 0) {
		size_t length = strnlen(p, n);
		if (length == n)
			return err_set(e, -EINVAL, "secrets: the last one has no end");
		if (length > 0 && !forms_add(forms, p, length))
			ignored++;
		p += length + 1;
		n -= length + 1;
	}
	if (buf_check(&forms->text) < 0 || buf_check(&forms->list) < 0)
		return err_set(e, -ENOMEM, "secrets: out of memory");
	*ret_ignored = ignored;
	return 0;
}

int mask_new(const char *p, size_t n, struct mask **ret, size_t *ret_ignored, struct err *e)
{
	if (n > MASK_SECRETS_MAX)
		return err_set(e, -EMSGSIZE, "secrets: %zu bytes together, accepted are %d", n,
			       MASK_SECRETS_MAX);
	__attribute__((cleanup(forms_done))) struct forms forms = FORMS_INIT(n);
	size_t ignored = 0;
	int r = gather(p, n, &forms, &ignored, e);
	if (r < 0)
		return r;
	struct mask *m = NULL;
	if (forms.list.n > 0) {
		m = calloc(1, sizeof(*m));
		r = m ? build(m, &forms) : -ENOMEM;
		if (r < 0) {
			mask_free(m);
			return err_set(e, r, "secrets: out of memory");
		}
	}
	*ret = m;
	*ret_ignored = ignored;
	return 0;
}

void mask_free(struct mask *m)
{
	if (!m)
		return;
	free(m->nodes);
	free(m->edges);
	free(m);
}

struct mask_stream *mask_stream_new(const struct mask *m)
{
	struct mask_stream *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->m = m;
	/* Marks wait while a longer form that contains them is under way, so all lie within its length, apart. Twice
	 * that, so that moving them to the front is rare. Memory that is not written costs nothing. */
	s->marks_room = 2 * (m->longest / (MASK_FORM_MIN + 1) + 2);
	s->marks = calloc(s->marks_room, sizeof(*s->marks));
	s->held = calloc(m->longest, 1);
	if (!s->marks || !s->held) {
		mask_stream_free(s);
		return NULL;
	}
	return s;
}

void mask_stream_free(struct mask_stream *s)
{
	if (!s)
		return;
	free(s->held);
	free(s->marks);
	free(s);
}

static void give(const struct feed *f, const uint8_t *p, ptrdiff_t n)
{
	if (n > 0)
		f->sink(f->data, p, (size_t)n);
}

/* Gives everything before end to the sink as it is. */
static void give_until(struct feed *f, ptrdiff_t end)
{
	if (f->done < 0) {
		ptrdiff_t stop = end < 0 ? end : 0;
		give(f, f->s->held + ((ptrdiff_t)f->s->held_n + f->done), stop - f->done);
		f->done = stop;
	}
	if (f->done < end) {
		give(f, f->p + f->done, end - f->done);
		f->done = end;
	}
}

/* Gives everything before end to the sink, with marks: no form that is yet to be found begins there. A mark that
 * begins before or at end is certain, too, as a whole. */
static void settle(struct feed *f, ptrdiff_t end)
{
	struct mask_stream *s = f->s;
	while (s->marks_n > 0 && s->marks[s->marks_first].start <= end) {
		struct mark mark = s->marks[s->marks_first++];
		s->marks_n--;
		if (!s->marked || mark.start > f->done) {
			give_until(f, mark.start);
			give(f, (const uint8_t *)"***", 3);
			s->marked = true;
		}
		if (mark.end > f->done)
			f->done = mark.end;
	}
	if (f->done < end) {
		give_until(f, end);
		s->marked = false;
	}
}

/* Notes that a form was found, merged with marks that it touches. Its end is not before theirs. */
static void note(struct mask_stream *s, ptrdiff_t start, ptrdiff_t end)
{
	while (s->marks_n > 0 && s->marks[s->marks_first + s->marks_n - 1].end >= start) {
		struct mark *last = &s->marks[s->marks_first + s->marks_n - 1];
		start = last->start < start ? last->start : start;
		s->marks_n--;
	}
	if (s->marks_first + s->marks_n == s->marks_room) {
		memmove(s->marks, s->marks + s->marks_first, s->marks_n * sizeof(*s->marks));
		s->marks_first = 0;
	}
	assert(s->marks_first + s->marks_n < s->marks_room);
	s->marks[s->marks_first + s->marks_n++] = (struct mark){start, end};
}

/* The first position from i on where a form may begin, or where too few bytes are left to tell. */
static ptrdiff_t skip(const struct mask *m, const uint8_t *p, ptrdiff_t i, ptrdiff_t n)
{
	for (; i + MASK_FORM_MIN <= n; i++) {
		uint32_t bit = filter_bit(p + i);
		if (m->filter[bit / 8] & 1u << bit % 8)
			break;
	}
	return i;
}

static void scan(struct feed *f)
{
	struct mask_stream *s = f->s;
	const struct mask *m = s->m;
	uint32_t state = s->state;
	ptrdiff_t start = -(ptrdiff_t)depth_of(&m->nodes[state]); /* of what is under way */
	for (ptrdiff_t i = 0; i < f->n;) {
		if (state == ROOT) {
			i = start = skip(m, f->p, i, f->n);
			if (i == f->n)
				break;
		}
		state = step(m, state, f->p[i++]);
		const struct node *node = &m->nodes[state];
		ptrdiff_t depth = (ptrdiff_t)depth_of(node), before = start;
		start = i - depth;
		if (node->found > 0) {
			note(s, i - (ptrdiff_t)node->found, i);
			settle(f, start);
		}
		/* Something else is under way than before, and it is short: let the filter see it, too. Each turn
		 * begins further on than the last, so this ends. */
		if (start > before && start >= 0 && depth < MASK_FORM_MIN && start + MASK_FORM_MIN <= f->n) {
			state = ROOT;
			i = start;
		}
	}
	s->state = state;
}

/* Keeps what did not go to the sink, and counts from the end of the chunk. */
static void hold(struct feed *f)
{
	struct mask_stream *s = f->s;
	size_t kept = 0;
	if (f->done < 0) {
		kept = (size_t)-f->done;
		memmove(s->held, s->held + (s->held_n - kept), kept);
		f->done = 0;
	}
	size_t more = (size_t)(f->n - f->done);
	assert(kept + more <= s->m->longest);
	if (more > 0)
		memcpy(s->held + kept, f->p + f->done, more);
	s->held_n = kept + more;
	for (size_t i = 0; i < s->marks_n; i++) {
		s->marks[s->marks_first + i].start -= f->n;
		s->marks[s->marks_first + i].end -= f->n;
	}
}

void mask_feed(struct mask_stream *s, const uint8_t *p, size_t n, mask_sink *sink, void *data)
{
	struct feed f = {
		.s = s, .p = p, .n = (ptrdiff_t)n, .done = -(ptrdiff_t)s->held_n, .sink = sink, .data = data};
	scan(&f);
	settle(&f, f.n - (ptrdiff_t)depth_of(&s->m->nodes[s->state]));
	hold(&f);
}

void mask_flush(struct mask_stream *s, mask_sink *sink, void *data)
{
	/* A chunk of no bytes. */
	struct feed f = {.s = s, .p = s->held, .done = -(ptrdiff_t)s->held_n, .sink = sink, .data = data};
	settle(&f, 0);
	s->state = ROOT;
	s->marked = false;
	hold(&f);
}
