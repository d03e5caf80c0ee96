#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/scope.h"
#include "conduit/state.h"

#define STATUS_RUNNER    125     /* as a shell says 126 and 127, this one is ours */
#define TREE_ENTRIES_MAX 1048576 /* of one GET */

/* What a START brings, picked apart. */
struct request {
	uint32_t id;
	ermite_Kind kind;
	bool has_input;
	uint64_t tree_bytes_max;
	int input, output, error; /* owned */
};

#define REQUEST_INIT   ((struct request){.input = -1, .output = -1, .error = -1})
#define scoped_request __attribute__((cleanup(request_done)))

static void request_done(struct request *r)
{
	fd_close(&r->input);
	fd_close(&r->output);
	fd_close(&r->error);
}

struct process *process_find(struct conduit *c, uint32_t id)
{
	for (size_t i = 0; i < CONDUIT_PROCESSES; i++) {
		struct process *p = &c->processes[i];
		if (p->id == id && p->state != PROCESS_NONE)
			return p;
	}
	return NULL;
}

static struct process *find_vacant(struct conduit *c)
{
	for (size_t i = 0; i < CONDUIT_PROCESSES; i++)
		if (c->processes[i].state == PROCESS_NONE)
			return &c->processes[i];
	return NULL;
}

void process_release(struct process *p)
{
	feed_close(&p->feed);
	for (size_t i = 0; i < 2; i++)
		sink_done(&p->sinks[i]);
	free(p->tree);
	*p = (struct process){.conduit = p->conduit,
			      .state = PROCESS_NONE,
			      .feed = FEED_INIT,
			      .sinks = {SINK_INIT, SINK_INIT}};
}

static void add_bytes(void *data, const uint8_t *p, size_t n)
{
	buf_add(data, p, n);
}

/* What the guest says in words may hold a secret, or bytes that steer a terminal. */
static int tell_failed(struct process *p, struct err *e)
{
	struct conduit *c = p->conduit;
	scoped_buf struct buf masked = BUF_INIT(sizeof(p->text));
	scoped_buf struct buf plain = BUF_INIT(CHAN_DATA_MAX);
	struct mask_stream *mask = c->mask ? mask_stream_new(c->mask) : NULL;
	if (c->mask && !mask)
		return err_set(e, -ENOMEM, "out of memory");
	const uint8_t *text = (const uint8_t *)p->text;
	if (mask) {
		mask_feed(mask, text, strlen(p->text), add_bytes, &masked);
		mask_flush(mask, add_bytes, &masked);
	} else {
		buf_add(&masked, text, strlen(p->text));
	}
	mask_stream_free(mask);
	buf_plain(&plain, buf_text(&masked), masked.n);
	return conduit_tell_text(c, MESSAGE_FAILED, p->id, p->status, buf_text(&plain), e);
}

/* Tells the keeper how it ended, and frees its place. */
static int finish(struct process *p, struct err *e)
{
	uint64_t relayed = p->sinks[0].relayed + p->sinks[1].relayed;
	int r = conduit_tell(p->conduit, MESSAGE_COUNT, p->id, relayed, 0, e);
	if (r == 0 && p->state == PROCESS_ENDED)
		r = p->failed ? tell_failed(p, e)
			      : conduit_tell(p->conduit, MESSAGE_EXITED, p->id, p->status, p->signal, e);
	process_release(p);
	return r;
}

static int finish_when_done(struct process *p, struct err *e)
{
	bool over = p->state == PROCESS_ENDED || p->state == PROCESS_LOST;
	if (!over || !sink_is_done(&p->sinks[0]) || !sink_is_done(&p->sinks[1]))
		return 0;
	return finish(p, e);
}

int process_end(struct process *p, enum process_state state, struct err *e)
{
	p->state = state;
	feed_close(&p->feed);
	for (size_t i = 0; i < 2; i++) {
		int r = sink_end(&p->sinks[i], e);
		if (r < 0)
			return r;
	}
	return finish_when_done(p, e);
}

int process_grant(struct process *p, struct err *e)
{
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t bytes = p->state == PROCESS_RUNNING ? sink_grant(&p->sinks[i]) : 0;
		if (bytes == 0)
			continue;
		ermite_ToGuest *m = &p->conduit->to_guest;
		m->which_message = ermite_ToGuest_credit_tag;
		m->message.credit = (ermite_Credit){.id = p->id, .channel = i + 1, .bytes = bytes};
		int r = stream_queue(p->conduit, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A sink has passed on bytes that it had kept. */
static int sink_moved(void *data, struct err *e)
{
	struct process *p = data;
	struct conduit *c = p->conduit;
	int r = process_grant(p, e);
	if (r == 0)
		r = finish_when_done(p, e);
	if (r == 0)
		r = stream_flush(c, e);
	return r < 0 ? r : conduit_settle(c, e);
}

/* More came out than the client wants, which is not the guest's offence: the rest is thrown away, and what sends it is
 * ended. */
static int tree_too_big(struct process *p, const char *why, struct err *e)
{
	p->failed = true;
	p->status = STATUS_RUNNER;
	(void)snprintf(p->text, sizeof(p->text), "%.*s", (int)sizeof(p->text) - 1, why);
	sink_drop(&p->sinks[0]);
	free(p->tree);
	p->tree = NULL;
	ermite_ToGuest *m = &p->conduit->to_guest;
	m->which_message = ermite_ToGuest_signal_tag;
	m->message.signal = (ermite_Signal){.id = p->id, .number = SIGKILL};
	return stream_queue(p->conduit, e);
}

/* Runs the reader over bytes of a tree. Returns 0, -EPROTO or -EFBIG. */
static int check_tree(struct process *p, const uint8_t *bytes, size_t n, struct err *e)
{
	while (n > 0) {
		const uint8_t *data = NULL;
		size_t data_n = 0;
		uint64_t offset = 0;
		int r = tree_read(p->tree, &bytes, &n, &data, &data_n, &offset, e);
		if (r < 0)
			return err_ctx(e, r, "files from process %u", p->id);
		p->tree_complete = r == TREE_DONE;
	}
	return 0;
}

int process_output(struct process *p, uint32_t channel, const uint8_t *bytes, size_t n, struct err *e)
{
	if (channel == 0 || n == 0)
		return err_set(e, -EPROTO, "Data of process %u: %zu bytes on channel %u", p->id, n, channel);
	struct sink *s = &p->sinks[channel - 1];
	int r = sink_charge(s, n, e);
	if (r < 0)
		return err_ctx(e, r, "Data of process %u, channel %u", p->id, channel);
	if (p->tree && channel == 1) {
		struct err why = ERR_INIT;
		r = check_tree(p, bytes, n, &why);
		if (r == -EFBIG)
			return tree_too_big(p, why.msg, e);
		if (r < 0)
			return err_set(e, r, "%s", why.msg);
	}
	r = sink_give(s, bytes, n, e);
	return r < 0 ? r : process_grant(p, e);
}

/* Input can be read: it goes right behind the head of a frame into the queue. */
static int feed_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct process *p = data;
	struct conduit *c = p->conduit;
	uint8_t *room = NULL;
	int r = stream_room(c, FRAME_DATA_HEAD_MAX + FRAME_DATA_MAX, &room, e);
	if (r < 0)
		return r;
	uint8_t *bytes = room + FRAME_DATA_HEAD_MAX;
	size_t most = p->feed.window < FRAME_DATA_MAX ? p->feed.window : FRAME_DATA_MAX;
	ssize_t n = read(fd, bytes, most);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n > 0) {
		uint8_t head[FRAME_DATA_HEAD_MAX];
		size_t head_n = frame_data_head(p->id, 0, (size_t)n, head);
		memmove(room + head_n, bytes, (size_t)n);
		memcpy(room, head, head_n);
		queue_added(&c->out, head_n + (size_t)n);
		p->feed.window -= (uint32_t)n;
	} else {
		/* A pipe that cannot be read is at its end, too: nobody else could tell the process inside. */
		feed_close(&p->feed);
		c->to_guest.which_message = ermite_ToGuest_eof_tag;
		c->to_guest.message.eof = (ermite_Eof){.id = p->id, .channel = 0};
		r = stream_queue(c, e);
	}
	if (r == 0)
		r = feed_watch(&p->feed, !c->congested, e);
	return r < 0 ? r : stream_flush(c, e);
}

void process_moved(struct process *p)
{
	/* One that was given up has only to end. */
	if (p->is_copy && !p->failed)
		p->moved_ms = clock_boot_ms();
}

/* Whether a copy is the guest's to get on with: the client has taken all that came, and given something to take. */
static bool guest_has_turn(const struct process *p)
{
	bool taken = p->sinks[0].kept.n == 0 && p->sinks[1].kept.n == 0;
	return taken && (!p->feed.given || p->feed.fd < 0 || p->feed.window < FRAME_WINDOW);
}

int process_check_copies(void *conduit, struct err *e)
{
	struct conduit *c = conduit;
	uint64_t now = clock_boot_ms();
	uint64_t limit = c->config->copy_ms;
	uint64_t next = 0;
	for (size_t i = 0; i < CONDUIT_PROCESSES; i++) {
		struct process *p = &c->processes[i];
		if (!p->is_copy || !(p->state & (PROCESS_STARTING | PROCESS_RUNNING)))
			continue;
		if (!guest_has_turn(p))
			p->moved_ms = now;
		uint64_t gone = now - p->moved_ms;
		if (gone >= limit) {
			c->violated = true;
			return err_set(e, -EPROTO, "the guest has left a copy of files alone for %llu ms",
				       (unsigned long long)limit);
		}
		if (next == 0 || limit - gone < next)
			next = limit - gone;
	}
	c->copy_armed = next > 0;
	return next > 0 ? loop_arm(c->copy_timer, next, e) : 0;
}

/* Reads the frames of a start to p, which has room for one byte more than they may be. Returns their bytes. */
static ssize_t read_frames(int fd, uint8_t *p, struct err *e)
{
	size_t n = 0;
	while (n <= CONDUIT_START_MAX) {
		ssize_t got = pread(fd, p + n, CONDUIT_START_MAX + 1 - n, (off_t)n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_sys(e, "read its frames");
		if (got == 0)
			return (ssize_t)n;
		n += (size_t)got;
	}
	return err_set(e, -E2BIG, "its frames have more than %u bytes", CONDUIT_START_MAX);
}

/* Takes one frame of a start into account. Returns 1 when it was the Start itself, 0 or -EINVAL. */
static int check_frame(const ermite_ToGuest *m, struct request *request, size_t *strings_n, struct err *e)
{
	if (m->which_message == ermite_ToGuest_strings_tag) {
		*strings_n += m->message.strings.bytes.size;
		if (m->message.strings.id != request->id || *strings_n > FRAME_STRINGS_MAX)
			return err_set(e, -EINVAL, "strings that are too many or another's");
		return 0;
	}
	const ermite_Start *start = &m->message.start;
	if (m->which_message != ermite_ToGuest_start_tag || start->id != request->id ||
	    start->has_stdin != request->has_input)
		return err_set(e, -EINVAL, "they are not those of this start");
	request->kind = start->kind;
	return 1;
}

/* Checks n bytes of frames: Strings, then one Start, all of the same id. */
static int check_frames(struct conduit *c, const uint8_t *p, size_t n, struct request *request, struct err *e)
{
	size_t strings_n = 0;
	for (;;) {
		const uint8_t *message = NULL;
		size_t message_n = 0;
		size_t frame_n = 0;
		int r = frame_next(p, n, &message, &message_n, &frame_n, e);
		if (r == 0)
			r = err_set(e, -EINVAL, "they are cut short");
		if (r > 0)
			r = frame_to_guest_decode(message, message_n, &c->to_guest, e);
		if (r >= 0)
			r = check_frame(&c->to_guest, request, &strings_n, e);
		if (r < 0)
			return err_ctx(e, -EINVAL, "its frames");
		p += frame_n;
		n -= frame_n;
		if (r == 1)
			return n == 0 ? 0 : err_set(e, -EINVAL, "its frames go on after the start");
	}
}

/* Takes the pipes out of a START. */
static int take_pipes(struct chan_message *m, struct request *request, struct err *e)
{
	uint32_t at = 1;
	if (request->has_input)
		request->input = chan_take_fd(m, at++);
	request->output = chan_take_fd(m, at++);
	request->error = chan_take_fd(m, at++);
	if (request->output < 0 || at < m->n_fds)
		return err_set(e, -EINVAL, "%u descriptors are not what it says", m->n_fds);
	return 0;
}

static int open_sink(struct process *p, size_t i, int *fd, struct err *e)
{
	const struct mask *mask = p->tree && i == 0 ? NULL : p->conduit->mask;
	struct mask_stream *stream = mask ? mask_stream_new(mask) : NULL;
	if (mask && !stream)
		return err_set(e, -ENOMEM, "out of memory");
	const struct sink_owner owner = {.loop = p->conduit->loop, .moved = sink_moved, .data = p};
	return sink_open(&p->sinks[i], fd_steal(fd), stream, &owner, e);
}

/* Fills a vacant place. Output is masked, except a tree of files, whose bytes are checked instead. */
static int set_up(struct process *p, struct request *request, struct err *e)
{
	p->id = request->id;
	p->is_copy = request->kind != ermite_Kind_RUN;
	if (request->kind == ermite_Kind_GET) {
		p->tree = malloc(sizeof(*p->tree));
		if (!p->tree)
			return err_set(e, -ENOMEM, "out of memory");
		tree_reader_init(p->tree, request->tree_bytes_max, TREE_ENTRIES_MAX);
	}
	int r = open_sink(p, 0, &request->output, e);
	if (r == 0)
		r = open_sink(p, 1, &request->error, e);
	if (r == 0 && request->has_input)
		r = feed_open(&p->feed, p->conduit->loop, fd_steal(&request->input), feed_ready, p, e);
	/* Input is sent at once, without waiting for Started: the executor keeps it. */
	if (r == 0)
		r = feed_watch(&p->feed, !p->conduit->congested, e);
	if (r < 0)
		return r;
	p->state = PROCESS_STARTING;
	process_moved(p);
	return p->is_copy && !p->conduit->copy_armed ? process_check_copies(p->conduit, e) : 0;
}

static int try_start(struct conduit *c, struct chan_message *m, struct err *e)
{
	scoped_request struct request request = REQUEST_INIT;
	request.id = m->id;
	request.has_input = m->a & 1;
	request.tree_bytes_max = m->b;
	scoped_fd int frames = chan_take_fd(m, 0);
	int r = take_pipes(m, &request, e);
	if (r < 0)
		return r;
	if (c->phase != PHASE_OPEN)
		return err_set(e, -ENOTCONN, "the executor is not connected");
	struct process *p = find_vacant(c);
	if (!p)
		return err_set(e, -EAGAIN, "%d processes run already", CONDUIT_PROCESSES);
	uint8_t *room = NULL;
	r = stream_room(c, CONDUIT_START_MAX + 1, &room, e);
	if (r < 0)
		return r;
	ssize_t n = read_frames(frames, room, e);
	if (n < 0)
		return (int)n;
	r = check_frames(c, room, (size_t)n, &request, e);
	if (r == 0)
		r = set_up(p, &request, e);
	if (r < 0) {
		process_release(p);
		return r;
	}
	queue_added(&c->out, (size_t)n);
	c->masking_fixed = true;
	return 0;
}

int process_start(struct conduit *c, struct chan_message *m, struct err *e)
{
	struct err why = ERR_INIT;
	if (process_find(c, m->id))
		return err_set(e, -EPROTO, "START of process %u, which is there already", m->id);
	int r = try_start(c, m, &why);
	if (r == 0)
		return 0;
	/* No room for it, and that is the guest's fault. */
	if (r == -EPROTO)
		return err_set(e, r, "%s", why.msg);
	return conduit_tell_text(c, MESSAGE_FAILED, m->id, STATUS_RUNNER, why.msg, e);
}
