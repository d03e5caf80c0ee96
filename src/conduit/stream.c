#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "conduit/state.h"
#include "wire/identity.h"

/* Bytes read at a time: as much as a Unix socket holds, and little enough to stay in the cache. */
#define READ_MAX 262144u

/* Room for any message to the guest that is made here; the long ones are Data, which never pass through it. */
#define SMALL_FRAME_MAX 128

int stream_room(struct conduit *c, size_t n, uint8_t **ret, struct err *e)
{
	int r = queue_room(&c->out, n, ret, e);
	if (r == -ENOBUFS) {
		c->violated = true;
		return err_set(e, -EPROTO, "the guest does not read: %zu bytes wait for it", c->out.n);
	}
	return r;
}

int stream_queue(struct conduit *c, struct err *e)
{
	uint8_t *room = NULL;
	int r = stream_room(c, SMALL_FRAME_MAX, &room, e);
	if (r < 0)
		return r;
	ptrdiff_t n = frame_to_guest_encode(&c->to_guest, room, SMALL_FRAME_MAX);
	if (n < 0)
		return err_code(e, (int)n, "encode a message");
	queue_added(&c->out, (size_t)n);
	return 0;
}

/* Begins or ends the time that something may take. */
static int deadline_set(struct deadline *d, bool pending, struct err *e)
{
	d->since_ms = pending ? clock_boot_ms() : 0;
	if (!pending || d->armed)
		return 0;
	d->armed = true;
	return loop_arm(d->timer, d->limit_ms, e);
}

/* The timer has fired. Returns 1 when the time is over, 0 or a negative errno. */
static int deadline_fired(struct deadline *d, struct err *e)
{
	d->armed = false;
	if (d->since_ms == 0)
		return 0;
	uint64_t gone = clock_boot_ms() - d->since_ms;
	if (gone >= d->limit_ms)
		return 1;
	d->armed = true;
	return loop_arm(d->timer, d->limit_ms - gone, e);
}

static int frame_too_slow(void *data, struct err *e)
{
	struct conduit *c = data;
	int r = deadline_fired(&c->frame, e);
	if (r <= 0)
		return r;
	c->violated = true;
	return err_set(e, -EPROTO, "a frame was begun and not complete after %u ms", c->config->frame_ms);
}

static int stalled(void *data, struct err *e)
{
	struct conduit *c = data;
	int r = deadline_fired(&c->stall, e);
	if (r <= 0)
		return r;
	c->violated = true;
	return err_set(e, -EPROTO, "the guest has read nothing for %u ms while %zu bytes wait for it",
		       c->config->frame_ms, c->out.n);
}

static int hello_too_late(void *data, struct err *e)
{
	struct conduit *c = data;
	c->violated = true;
	return err_set(e, -EPROTO, "no Hello within %u ms of the connection", c->config->hello_ms);
}

/* Watches the keeper and all input, or none of them while too much waits for the guest. */
static int set_congested(struct conduit *c, bool congested, struct err *e)
{
	if (congested == c->congested)
		return 0;
	c->congested = congested;
	int r = loop_set_events(c->channel_source, congested ? 0 : EPOLLIN, e);
	for (size_t i = 0; r == 0 && i < CONDUIT_PROCESSES; i++)
		r = feed_watch(&c->processes[i].feed, !congested, e);
	return r;
}

int stream_flush(struct conduit *c, struct err *e)
{
	if (c->guest < 0)
		return 0;
	size_t waited = c->out.n;
	ptrdiff_t n = c->deaf || waited == 0 ? 0 : queue_write(&c->out, c->guest);
	if (n == -EPIPE || n == -ECONNRESET) {
		/* Either the guest has gone, and the end of the stream follows what it has sent; or it has closed only
		 * the side that it should read, and then the time for reading runs out. */
		c->deaf = true;
		n = 0;
	}
	if (n < 0)
		return err_code(e, (int)n, "write to the guest");
	bool waits = c->out.n > 0;
	int r = 0;
	if (!waits || n > 0 || c->stall.since_ms == 0)
		r = deadline_set(&c->stall, waits, e);
	if (r == 0)
		r = loop_set_events(c->guest_source, waits && !c->deaf ? EPOLLIN | EPOLLOUT : EPOLLIN, e);
	if (r < 0)
		return r;
	return set_congested(c, c->out.n > (c->congested ? CONDUIT_OUT_HIGH / 2 : CONDUIT_OUT_HIGH), e);
}

/* What each message of the guest's needs to be in turn: the phase of the stream, and the state of the process it names.
 * Anything else is out of turn. */
struct rule {
	const char *name;
	enum conduit_phase phase;
	unsigned states;  /* enum process_state; 0: it names no process */
	size_t id_offset; /* of the id in ermite_ToHost */
	int (*take)(struct conduit *c, struct process *p, const ermite_ToHost *m, struct err *e);
};

static int take_hello(struct conduit *c, struct process *, const ermite_ToHost *m, struct err *e)
{
	if (strcmp(m->message.hello.build, build_identity()) != 0)
		return err_set(e, -EPROTO, "Hello: the guest program is another build than the host's");
	loop_remove(&c->hello_timer);
	c->phase = PHASE_OPEN;
	return conduit_tell(c, MESSAGE_CONNECTED, 0, 0, 0, e);
}

static int take_ready(struct conduit *c, struct process *, const ermite_ToHost *, struct err *e)
{
	if (c->ready_told)
		return err_set(e, -EPROTO, "SystemReady twice");
	c->ready_told = true;
	return conduit_tell(c, MESSAGE_SYSTEM_READY, 0, 0, 0, e);
}

static int take_started(struct conduit *c, struct process *p, const ermite_ToHost *m, struct err *e)
{
	p->state = PROCESS_RUNNING;
	return conduit_tell(c, MESSAGE_STARTED, p->id, m->message.started.pid, 0, e);
}

static int take_data(struct conduit *, struct process *p, const ermite_ToHost *m, struct err *e)
{
	const ermite_Data *d = &m->message.data;
	return process_output(p, d->channel, d->bytes.bytes, d->bytes.size, e);
}

static int take_eof(struct conduit *, struct process *p, const ermite_ToHost *m, struct err *e)
{
	uint32_t channel = m->message.eof.channel;
	if (channel == 0 || p->sinks[channel - 1].ended)
		return err_set(e, -EPROTO, "Eof of process %u on channel %u: %s", p->id, channel,
			       channel == 0 ? "it is the host's" : "it has ended already");
	return sink_end(&p->sinks[channel - 1], e);
}

static int take_credit(struct conduit *c, struct process *p, const ermite_ToHost *m, struct err *e)
{
	const ermite_Credit *credit = &m->message.credit;
	int r = credit->channel == 0
			? feed_credit(&p->feed, credit->bytes, e)
			: err_set(e, -EPROTO, "the guest grants none on channel %u", credit->channel);
	if (r < 0)
		return err_ctx(e, r, "Credit of process %u", p->id);
	return feed_watch(&p->feed, !c->congested, e);
}

static int take_exited(struct conduit *, struct process *p, const ermite_ToHost *m, struct err *e)
{
	p->status = p->failed ? p->status : m->message.exited.status;
	p->signal = m->message.exited.signal;
	if (p->tree && !p->tree_complete && p->status == 0 && p->signal == 0)
		return err_set(e, -EPROTO,
			       "Exited of process %u with status 0 before its files were complete", p->id);
	return process_end(p, PROCESS_ENDED, e);
}

static int take_failed(struct conduit *, struct process *p, const ermite_ToHost *m, struct err *e)
{
	const ermite_Failed *failed = &m->message.failed;
	if (failed->status == 0)
		return err_set(e, -EPROTO, "Failed of process %u with status 0", p->id);
	if (!p->failed) {
		p->failed = true;
		p->status = failed->status;
		memcpy(p->text, failed->text, sizeof(p->text));
	}
	return process_end(p, PROCESS_ENDED, e);
}

#define ID_OF(member) offsetof(ermite_ToHost, message.member.id)
#define BEGUN         (PROCESS_STARTING | PROCESS_RUNNING)

static const struct rule rules[] = {
	[ermite_ToHost_hello_tag] = {"Hello", PHASE_GREETING, 0, 0, take_hello},
	[ermite_ToHost_system_ready_tag] = {"SystemReady", PHASE_OPEN, 0, 0, take_ready},
	[ermite_ToHost_started_tag] = {"Started", PHASE_OPEN, PROCESS_STARTING, ID_OF(started), take_started},
	[ermite_ToHost_data_tag] = {"Data", PHASE_OPEN, PROCESS_RUNNING, ID_OF(data), take_data},
	[ermite_ToHost_eof_tag] = {"Eof", PHASE_OPEN, PROCESS_RUNNING, ID_OF(eof), take_eof},
	[ermite_ToHost_credit_tag] = {"Credit", PHASE_OPEN, BEGUN, ID_OF(credit), take_credit},
	[ermite_ToHost_exited_tag] = {"Exited", PHASE_OPEN, PROCESS_RUNNING, ID_OF(exited), take_exited},
	[ermite_ToHost_failed_tag] = {"Failed", PHASE_OPEN, BEGUN, ID_OF(failed), take_failed},
};

_Static_assert(sizeof(((struct process *)0)->text) == sizeof(((ermite_Failed *)0)->text), "stream.options");

static const char *state_name(enum process_state state)
{
	switch (state) {
	case PROCESS_STARTING:
		return "has not started";
	case PROCESS_RUNNING:
		return "runs already";
	case PROCESS_ENDED:
	case PROCESS_LOST:
		return "has ended";
	case PROCESS_NONE:
		break;
	}
	return "is not there";
}

/* Checks that a message is in turn. Returns 0 and the process that it names, if any; or -EPROTO. */
static int check_turn(struct conduit *c, const struct rule *rule, uint32_t id, struct process **ret,
		      struct err *e)
{
	if (c->phase != rule->phase)
		return err_set(e, -EPROTO, "%s %s", rule->name,
			       c->phase == PHASE_GREETING ? "before Hello" : "twice");
	if (rule->states == 0)
		return 0;
	struct process *p = process_find(c, id);
	enum process_state state = p ? p->state : PROCESS_NONE;
	if (!(rule->states & state))
		return err_set(e, -EPROTO, "%s of process %u, which %s", rule->name, id, state_name(state));
	*ret = p;
	return 0;
}

static int take_message(struct conduit *c, const uint8_t *p, size_t n, struct err *e)
{
	struct process *process = NULL;
	uint32_t id = 0;
	uint32_t channel = 0;
	const uint8_t *bytes = NULL;
	size_t bytes_n = 0;
	if (frame_data_peek(p, n, &id, &channel, &bytes, &bytes_n) == 1) {
		int r = check_turn(c, &rules[ermite_ToHost_data_tag], id, &process, e);
		if (r < 0)
			return r;
		process_moved(process);
		return process_output(process, channel, bytes, bytes_n, e);
	}
	ermite_ToHost *m = &c->from_guest;
	int r = frame_to_host_decode(p, n, m, e);
	if (r < 0)
		return r;
	const struct rule *rule = &rules[m->which_message];
	if (rule->states)
		memcpy(&id, (const char *)m + rule->id_offset, sizeof(id));
	r = check_turn(c, rule, id, &process, e);
	if (r == 0 && process)
		process_moved(process);
	return r < 0 ? r : rule->take(c, process, m, e);
}

/* Takes all whole frames out of what was received. */
static int take_frames(struct conduit *c, size_t before, struct err *e)
{
	size_t at = 0;
	for (;;) {
		const uint8_t *message = NULL;
		size_t message_n = 0;
		size_t frame_n = 0;
		int r = frame_next(c->received + at, c->have - at, &message, &message_n, &frame_n, e);
		if (r > 0)
			r = take_message(c, message, message_n, e);
		if (r < 0)
			return r;
		if (frame_n == 0)
			break;
		at += frame_n;
	}
	memmove(c->received, c->received + at, c->have - at);
	c->have -= at;
	/* The time of a frame that was there before goes on. */
	if (at > 0 || before == 0)
		return deadline_set(&c->frame, c->have > 0, e);
	return 0;
}

/* The stream has ended: nothing more comes from any process, but all that came is still passed on. Whoever is killed
 * while it writes leaves half a frame behind, so that is no offence. */
static int stream_ended(struct conduit *c, struct err *e)
{
	c->phase = PHASE_CLOSED;
	loop_remove(&c->guest_source);
	loop_remove(&c->hello_timer);
	fd_close(&c->guest);
	queue_done(&c->out);
	int r = deadline_set(&c->frame, false, e);
	if (r == 0)
		r = deadline_set(&c->stall, false, e);
	if (r == 0)
		r = set_congested(c, false, e);
	for (size_t i = 0; r == 0 && i < CONDUIT_PROCESSES; i++) {
		struct process *p = &c->processes[i];
		if (p->state & BEGUN)
			r = process_end(p, PROCESS_LOST, e);
	}
	return r < 0 ? r : conduit_settle(c, e);
}

static int receive(struct conduit *c, struct err *e)
{
	size_t room = sizeof(c->received) - c->have;
	/* Not recvmsg(): descriptors that a guest sends are dropped by the kernel. */
	ssize_t n = read(c->guest, c->received + c->have, room < READ_MAX ? room : READ_MAX);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n == 0 || (n < 0 && errno == ECONNRESET))
		return stream_ended(c, e);
	if (n < 0)
		return err_sys(e, "read the stream");
	size_t before = c->have;
	c->have += (size_t)n;
	int r = take_frames(c, before, e);
	/* From here on -EPROTO means one thing: the guest. */
	if (r == -EPROTO)
		c->violated = true;
	return r;
}

static int guest_ready(void *data, int, uint32_t events, struct err *e)
{
	struct conduit *c = data;
	/* A hang-up is the end of what can be read, which read() tells. */
	int r = events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? receive(c, e) : 0;
	return r < 0 ? r : stream_flush(c, e);
}

int stream_open(struct conduit *c, int fd, struct err *e)
{
	c->guest = fd;
	c->phase = PHASE_GREETING;
	c->frame.limit_ms = c->stall.limit_ms = c->config->frame_ms;
	int r = loop_add_fd(c->loop, fd, EPOLLIN, guest_ready, c, &c->guest_source, e);
	if (r == 0)
		r = loop_add_timer(c->loop, hello_too_late, c, &c->hello_timer, e);
	if (r == 0)
		r = loop_arm(c->hello_timer, c->config->hello_ms, e);
	if (r == 0)
		r = loop_add_timer(c->loop, frame_too_slow, c, &c->frame.timer, e);
	if (r == 0)
		r = loop_add_timer(c->loop, stalled, c, &c->stall.timer, e);
	if (r == 0)
		r = loop_add_timer(c->loop, process_check_copies, c, &c->copy_timer, e);
	if (r < 0)
		return r;
	ermite_Hello *hello = &c->to_guest.message.hello;
	c->to_guest.which_message = ermite_ToGuest_hello_tag;
	(void)snprintf(hello->build, sizeof(hello->build), "%s", build_identity());
	r = stream_queue(c, e);
	return r < 0 ? r : stream_flush(c, e);
}
