#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/scope.h"
#include "io/chan.h"
#include "io/child.h"
#include "io/loop.h"
#include "isolation/isolation.h"
#include "keeper/conduit.h"
#include "keeper/judge.h"
#include "keeper/network.h"
#include "keeper/state.h"
#include "keeper/tell.h"
#include "keeper/watchdog.h"
#include "resource/resource.h"
#include "spec/message.h"
#include "sys/oomlog.h"

enum {
	CONNECT_MS = 30000, /* from the boot to the executor's Hello */
	SYSTEM_MS = 120000, /* from there to a system that is up */
	TERM_MS = 10000,    /* from TERM to KILL */
	KILL_MS = 10000,    /* from KILL to the job's end: output of stragglers may take half of it */
	DEATH_MS = 1000,    /* from the end of the stream to the end of the sandbox that explains it */
	WATCH_MS = 500,     /* between two looks at the disk */
	PREPARE_MS = 60000, /* each step of making the sandbox */
	LEFTOVERS_MS = 300000,
	TAKE_DOWN_MS = 120000,
	SERVE_MS = 60000, /* one event */
	HEARTBEAT_MS = 15000,
	DESCRIPTORS = 256, /* of a keeper with everything, twice over and more */
	ORPHANS_MS = 1000, /* for killed processes whose parent died first, the container's init for one */
};

/* One keeper a process; everything it holds. */
struct keeper {
	struct sandbox_spec spec;
	struct host host;
	struct sandbox sandbox;
	struct network *network; /* NULL: none */
	struct isolated_view view;
	struct isolated *isolated;
	const struct isolation_ops *ops;
	struct child conduit;
	struct loop *loop;
	struct source *heartbeat, *deadline, *job_timer, *watch, *client_source, *conduit_source,
		*gone_source, *weaker_source, *door_source, *death_timer, *signals;
	int client;  /* borrowed; -1 when it is gone */
	int log;     /* borrowed: where the network log goes */
	int channel; /* to the conduit */
	int kmsg;
	enum keeper_state state;
	uint32_t job; /* id of the job's process */
	bool job_known;
	bool closed; /* the guest closed the stream */
	uint64_t phase_started_ms;
	enum phase phase;
	uint64_t least_free_bytes;
	bool inodes_ran_out;
	struct job_result result;
};

/* --- phases -------------------------------------------------------------------------------------------------- */

/* The running phase ends and another begins. */
static void enter_phase(struct keeper *k, enum phase phase)
{
	uint64_t now = clock_boot_ms();
	k->result.phase_ms[k->phase] += now - k->phase_started_ms;
	k->phase = phase;
	k->phase_started_ms = now;
}

/* --- the facts of an end ------------------------------------------------------------------------------------- */

static void look_at_disk(struct keeper *k, struct isolated_disk *disk)
{
	k->ops->disk(k->isolated, disk);
	if (disk->size_bytes > 0 && disk->free_bytes < k->least_free_bytes)
		k->least_free_bytes = disk->free_bytes;
	k->inodes_ran_out = k->inodes_ran_out || (disk->size_bytes > 0 && disk->no_inodes);
}

static void gather(struct keeper *k, struct judge_facts *f, char victim[static OOMLOG_NAME_MAX])
{
	struct cgroup_host host;
	*f = (struct judge_facts){.oom_victim = victim};
	victim[0] = '\0';
	if (cgroup_host_read(&host, NULL) == 0)
		cgroup_usage(&host, k->sandbox.id, &f->usage);
	look_at_disk(k, &f->disk);
	f->disk_least_free_bytes = k->least_free_bytes;
	f->inodes_ran_out = k->inodes_ran_out;
	if (f->usage.oom_kills > 0)
		oomlog_victim(k->kmsg, k->sandbox.id, victim);
	k->result.memory_peak_bytes = f->usage.memory_peak_bytes;
	k->result.cpu_ns = f->usage.cpu_ns;
	k->result.disk_used_bytes = f->disk.used_bytes;
}

static void judge_gone(struct keeper *k, bool starting)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	scoped_buf struct buf why = BUF_INIT(EVIDENCE_MAX);
	bool start_failed = false;
	gather(k, &f, victim);
	k->ops->why_gone(k->isolated, &start_failed, &why);
	if (starting)
		judge_set(&k->result, END_START_FAILED, "%s", buf_text(&why));
	else if (k->closed && !start_failed && k->view.gone_fd >= 0 && why.n == 0)
		judge_death(&k->result, &f, "the executor inside was killed");
	else
		judge_death(&k->result, &f, buf_text(&why));
}

/* --- actions ------------------------------------------------------------------------------------------------- */

/* What an event brings along. */
struct event_args {
	int status, signal;
	const char *text;
};

typedef int action_fn(struct keeper *k, const struct event_args *a, struct err *e);
static int happen(struct keeper *k, enum keeper_event event, const struct event_args *a, struct err *e);

static int signal_job(struct keeper *k, int number, struct err *e)
{
	const struct chan_message m = {.type = MESSAGE_SIGNAL, .id = k->job, .a = (uint64_t)number};
	int r = chan_send(k->channel, &m, e);
	return r == -EPIPE ? 0 : r; /* its end is an event of its own */
}

static int do_nothing(struct keeper *, const struct event_args *, struct err *)
{
	return 0;
}

static int do_impossible(struct keeper *k, const struct event_args *, struct err *e)
{
	return err_set(e, -EPROTO, "a message out of turn in state %s", keeper_state_name(k->state));
}

static int do_wait_ready(struct keeper *k, const struct event_args *, struct err *e)
{
	enter_phase(k, PHASE_READY);
	if (k->spec.config.ready != READY_SYSTEM)
		return happen(k, EVENT_SYSTEM_READY, NULL, e);
	return loop_arm(k->deadline, SYSTEM_MS, e);
}

static int do_report_ready(struct keeper *k, const struct event_args *, struct err *e)
{
	enter_phase(k, PHASE_COPY_IN);
	tell_text(k->client, MESSAGE_CREATED, k->sandbox.id);
	return loop_arm(k->deadline, 0, e);
}

static int do_start_job(struct keeper *k, const struct event_args *, struct err *e)
{
	enter_phase(k, PHASE_RUN);
	int r = loop_arm(k->job_timer, k->spec.config.job_timeout_ms, e);
	return r < 0 ? r : loop_arm(k->watch, WATCH_MS, e);
}

static int stop_timers(struct keeper *k, struct err *e)
{
	int r = loop_arm(k->job_timer, 0, e);
	return r < 0 ? r : loop_arm(k->deadline, 0, e);
}

static int do_judge(struct keeper *k, const struct event_args *a, struct err *e)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	enter_phase(k, PHASE_COPY_OUT);
	gather(k, &f, victim);
	judge_end(&k->result, &f, a->status, a->signal);
	return stop_timers(k, e);
}

static int do_judge_failed(struct keeper *k, const struct event_args *a, struct err *e)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	enter_phase(k, PHASE_COPY_OUT);
	gather(k, &f, victim);
	judge_set(&k->result, END_START_FAILED, "%s", a->text);
	k->result.exit_status = a->status; /* 126 or 127, as a shell says */
	return stop_timers(k, e);
}

static int do_keep_reason(struct keeper *k, const struct event_args *a, struct err *e)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	if (k->phase == PHASE_RUN) {
		enter_phase(k, PHASE_COPY_OUT);
		gather(k, &f, victim);
		k->result.signal = a ? a->signal : 0;
	}
	return stop_timers(k, e);
}

static int do_term_timeout(struct keeper *k, const struct event_args *, struct err *e)
{
	judge_set(&k->result, END_TIMEOUT, "the job ran longer than its timeout of %llu s",
		  (unsigned long long)(k->spec.config.job_timeout_ms / 1000));
	int r = loop_arm(k->deadline, TERM_MS, e);
	return r < 0 ? r : signal_job(k, SIGTERM, e);
}

static int do_term_cancelled(struct keeper *k, const struct event_args *a, struct err *e)
{
	judge_set(&k->result, END_CANCELLED, "%s",
		  a && a->text && a->text[0] ? a->text : "cancelled on request");
	int r = loop_arm(k->deadline, TERM_MS, e);
	return r < 0 ? r : signal_job(k, SIGTERM, e);
}

static int do_kill(struct keeper *k, const struct event_args *, struct err *e)
{
	int r = loop_arm(k->deadline, KILL_MS, e);
	return r < 0 ? r : signal_job(k, SIGKILL, e);
}

static int do_cancelled(struct keeper *k, const struct event_args *a, struct err *)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	gather(k, &f, victim);
	judge_set(&k->result, END_CANCELLED, "%s",
		  a && a->text && a->text[0] ? a->text : "cancelled on request");
	return 0;
}

static int do_no_job(struct keeper *k, const struct event_args *, struct err *)
{
	judge_set(&k->result, END_RUNNER_FAILED, "taken down before a job was started");
	return 0;
}

static int do_start_failed(struct keeper *k, const struct event_args *, struct err *)
{
	if (k->phase == PHASE_READY)
		judge_set(&k->result, END_START_FAILED, "the system inside did not come up within %d s",
			  SYSTEM_MS / 1000);
	else
		judge_set(&k->result, END_START_FAILED, "the executor did not connect within %d s",
			  CONNECT_MS / 1000);
	return 0;
}

static int do_start_died(struct keeper *k, const struct event_args *a, struct err *)
{
	if (a->text)
		judge_set(&k->result, END_START_FAILED, "%s", a->text);
	else
		judge_gone(k, true);
	return 0;
}

static int do_died(struct keeper *k, const struct event_args *a, struct err *)
{
	struct judge_facts f;
	char victim[OOMLOG_NAME_MAX];
	if (!a || !a->text) {
		judge_gone(k, false);
		return 0;
	}
	gather(k, &f, victim);
	judge_death(&k->result, &f, a->text);
	return 0;
}

static int do_protocol_error(struct keeper *k, const struct event_args *a, struct err *)
{
	judge_set(&k->result, END_PROTOCOL_ERROR, "%s", a->text);
	return 0;
}

static int do_runner_failed(struct keeper *k, const struct event_args *a, struct err *)
{
	judge_set(&k->result, END_RUNNER_FAILED, "%s", a->text);
	return 0;
}

static action_fn *const actions[] = {
	[ACTION_NONE] = do_nothing,
	[ACTION_IMPOSSIBLE] = do_impossible,
	[ACTION_WAIT_READY] = do_wait_ready,
	[ACTION_REPORT_READY] = do_report_ready,
	[ACTION_START_JOB] = do_start_job,
	[ACTION_JUDGE] = do_judge,
	[ACTION_JUDGE_FAILED] = do_judge_failed,
	[ACTION_KEEP_REASON] = do_keep_reason,
	[ACTION_TERM_TIMEOUT] = do_term_timeout,
	[ACTION_TERM_CANCELLED] = do_term_cancelled,
	[ACTION_KILL] = do_kill,
	[ACTION_CANCELLED] = do_cancelled,
	[ACTION_START_FAILED] = do_start_failed,
	[ACTION_START_DIED] = do_start_died,
	[ACTION_DIED] = do_died,
	[ACTION_PROTOCOL_ERROR] = do_protocol_error,
	[ACTION_RUNNER_FAILED] = do_runner_failed,
	[ACTION_NO_JOB] = do_no_job,
};

/* The one place where the state changes. a may be NULL. */
static int happen(struct keeper *k, enum keeper_event event, const struct event_args *a, struct err *e)
{
	const struct event_args none = {0};
	struct transition t = keeper_transition(k->state, event);
	if (t.next != k->state)
		record_set_state(k->sandbox.record, keeper_state_name(t.next));
	k->state = t.next;
	int r = actions[t.action](k, a ? a : &none, e);
	if (k->state == STATE_DOWN)
		loop_stop(k->loop);
	return r;
}

/* --- messages of the conduit --------------------------------------------------------------------------------- */

static int conduit_lost(struct keeper *k, struct err *e)
{
	struct child_end end = {.status = -1};
	char text[96];
	loop_remove(&k->conduit_source);
	if (k->closed)
		return 0; /* it has nothing to do any more */
	(void)!child_wait(&k->conduit, DEATH_MS, &end, NULL);
	(void)snprintf(text, sizeof(text), "ermite-conduit ended with status %d, signal %d", end.status,
		       end.signal);
	return happen(k, EVENT_RUNNER_FAILED, &(struct event_args){.text = text}, e);
}

static int from_conduit(struct keeper *k, const struct chan_message *m, struct err *e)
{
	bool is_job = k->job_known && m->id == k->job;
	const struct event_args a = {
		.status = (int)(m->a & 0xff), .signal = (int)(m->b & 0x7f), .text = m->data};
	switch (m->type) {
	case MESSAGE_CONNECTED:
		return happen(k, EVENT_CONNECTED, NULL, e);
	case MESSAGE_SYSTEM_READY:
		/* Said whether anybody waits for it or not; before Hello the conduit lets nothing through. */
		return k->state == STATE_BOOTING ? 0 : happen(k, EVENT_SYSTEM_READY, NULL, e);
	case MESSAGE_PROTOCOL:
		return happen(k, EVENT_PROTOCOL_ERROR, &a, e);
	case MESSAGE_CLOSED:
		k->closed = true;
		return loop_arm(k->death_timer, DEATH_MS, e);
	case MESSAGE_COUNT:
		if (is_job)
			k->result.output_bytes += m->a;
		return 0;
	case MESSAGE_STARTED:
		tell(k->client, m);
		return 0;
	case MESSAGE_EXITED:
	case MESSAGE_FAILED: {
		int r = !is_job                     ? 0
			: m->type == MESSAGE_EXITED ? happen(k, EVENT_JOB_EXITED, &a, e)
						    : happen(k, EVENT_JOB_FAILED, &a, e);
		if (is_job)
			k->job_known = false;
		tell(k->client, m);
		return r;
	}
	default:
		return err_set(e, -EPROTO, "the conduit sent %s", message_name(m->type));
	}
}

static int on_conduit(void *data, int fd, uint32_t, struct err *e)
{
	struct keeper *k = data;
	struct chan_message m;
	int r = chan_receive(fd, &m, e);
	if (r <= 0)
		return r == -EAGAIN ? 0 : conduit_lost(k, e);
	if (!message_permitted(m.type, SENDER_CONDUIT) || m.n_fds > 0)
		r = err_set(e, -EPROTO, "the conduit sent %s", message_name(m.type));
	else
		r = from_conduit(k, &m, e);
	chan_close_fds(&m);
	return r;
}

/* --- messages of the client ---------------------------------------------------------------------------------- */

static int client_start(struct keeper *k, struct chan_message *m, struct err *e)
{
	bool is_job = m->a & 2;
	if (k->state != STATE_READY && k->state != STATE_RUNNING && k->state != STATE_OVER)
		return 0; /* too late; the client learns the end from RESULT */
	if (is_job && (k->job_known || k->state != STATE_READY))
		return err_set(e, -EPROTO, "the client started a second job");
	/* What comes out can never be more than the disk held. */
	uint64_t disk_bytes = k->spec.config.job_disk_mib << 20;
	if (m->b > disk_bytes)
		m->b = disk_bytes;
	int r = chan_send(k->channel, m, e);
	if (r < 0 || !is_job)
		return r == -EPIPE ? 0 : r;
	k->job = m->id;
	k->job_known = true;
	return happen(k, EVENT_JOB_START, NULL, e);
}

static int from_client(struct keeper *k, struct chan_message *m, struct err *e)
{
	const struct event_args a = {.text = m->data};
	int r = 0;
	switch (m->type) {
	case MESSAGE_START:
		return client_start(k, m, e);
	case MESSAGE_SECRETS:
	case MESSAGE_SIGNAL:
	case MESSAGE_RESIZE:
		r = chan_send(k->channel, m, e);
		return r == -EPIPE ? 0 : r;
	case MESSAGE_CANCEL:
		return happen(k, EVENT_CANCEL, &a, e);
	case MESSAGE_DELETE:
		return happen(k, EVENT_DELETE, NULL, e);
	default:
		return 0;
	}
}

static int on_client(void *data, int fd, uint32_t, struct err *e)
{
	struct keeper *k = data;
	struct chan_message m;
	int r = chan_receive(fd, &m, e);
	if (r == -EAGAIN)
		return 0;
	if (r <= 0) {
		loop_remove(&k->client_source);
		k->client = -1;
		return happen(k, EVENT_CLIENT_GONE, &(struct event_args){.text = "the client went away"}, e);
	}
	uint32_t least = 0;
	uint32_t most = 0;
	message_fds(m.type, &least, &most);
	if (!message_permitted(m.type, SENDER_CLIENT) || m.n_fds < least || m.n_fds > most)
		r = err_set(e, -EPROTO, "the client sent %s with %u descriptors", message_name(m.type),
			    m.n_fds);
	else
		r = from_client(k, &m, e);
	chan_close_fds(&m);
	return r;
}

/* --- other events -------------------------------------------------------------------------------------------- */

static int on_deadline(void *data, struct err *e)
{
	return happen(data, EVENT_DEADLINE, NULL, e);
}

static int on_job_timeout(void *data, struct err *e)
{
	return happen(data, EVENT_TIMEOUT, NULL, e);
}

static int on_watch(void *data, struct err *e)
{
	struct keeper *k = data;
	struct isolated_disk disk;
	look_at_disk(k, &disk);
	return k->phase == PHASE_RUN ? loop_arm(k->watch, WATCH_MS, e) : 0;
}

static int on_heartbeat(void *data, struct err *e)
{
	const struct keeper *k = data;
	watchdog_step("serving the sandbox", SERVE_MS);
	return loop_arm(k->heartbeat, HEARTBEAT_MS, e);
}

/* The stream ended, and the sandbox did not within the time that an end of its own takes. */
static int on_death(void *data, struct err *e)
{
	return happen(data, EVENT_SANDBOX_GONE,
		      &(struct event_args){
			      .text = "the executor inside ended while the system went on: it was killed"},
		      e);
}

static int on_gone(void *data, int, uint32_t, struct err *e)
{
	struct keeper *k = data;
	loop_remove(&k->gone_source);
	return happen(k, EVENT_SANDBOX_GONE, NULL, e);
}

static int on_weaker(void *data, int, uint32_t, struct err *)
{
	struct keeper *k = data;
	loop_remove(&k->weaker_source);
	tell_text(k->client, MESSAGE_WARNING, k->view.weaker);
	return 0;
}

/* What knocks is under its limits and linked to the gateway before it goes on. */
static int on_door(void *data, int, uint32_t, struct err *e)
{
	struct keeper *k = data;
	scoped_fd int netns = -1;
	loop_remove(&k->door_source);
	int r = k->ops->knock(k->isolated, &netns, e);
	if (r == 0)
		r = network_plug(k->network, netns, e);
	return r < 0 ? r : k->ops->admit(k->isolated, e);
}

static int on_signal(void *data, int number, struct err *e)
{
	char text[64];
	(void)snprintf(text, sizeof(text), "the keeper got signal %d", number);
	return happen(data, EVENT_CANCEL, &(struct event_args){.text = text}, e);
}

/* --- making -------------------------------------------------------------------------------------------------- */

static int watch_everything(struct keeper *k, struct err *e)
{
	sigset_t set;
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	int r = loop_add_timer(k->loop, on_heartbeat, k, &k->heartbeat, e);
	if (r == 0)
		r = loop_add_timer(k->loop, on_deadline, k, &k->deadline, e);
	if (r == 0)
		r = loop_add_timer(k->loop, on_job_timeout, k, &k->job_timer, e);
	if (r == 0)
		r = loop_add_timer(k->loop, on_watch, k, &k->watch, e);
	if (r == 0)
		r = loop_add_timer(k->loop, on_death, k, &k->death_timer, e);
	if (r == 0)
		r = loop_add_signals(k->loop, &set, on_signal, k, &k->signals, e);
	if (r == 0)
		r = loop_add_fd(k->loop, k->client, EPOLLIN, on_client, k, &k->client_source, e);
	if (r == 0)
		r = loop_add_fd(k->loop, k->channel, EPOLLIN, on_conduit, k, &k->conduit_source, e);
	if (r == 0)
		r = loop_add_fd(k->loop, k->view.gone_fd, EPOLLIN, on_gone, k, &k->gone_source, e);
	if (r == 0 && k->view.weaker_fd >= 0)
		r = loop_add_fd(k->loop, k->view.weaker_fd, EPOLLIN, on_weaker, k, &k->weaker_source, e);
	if (r == 0 && k->view.door_fd >= 0)
		r = loop_add_fd(k->loop, k->view.door_fd, EPOLLIN, on_door, k, &k->door_source, e);
	return r;
}

/* "now" or "system", from the configuration or from what the image is. */
static int settle_ready(struct keeper *k, struct err *e)
{
	enum ready *ready = &k->spec.config.ready;
	if (*ready == READY_DEFAULT)
		*ready = k->view.has_init ? READY_SYSTEM : READY_NOW;
	if (*ready == READY_SYSTEM && !k->view.has_init)
		return err_set(e, -EINVAL,
			       "ready \"system\" needs an image with systemd, which says when it is up: use "
			       "\"now\"");
	k->result.ready = *ready;
	return 0;
}

static int make_resources(struct keeper *k, struct err *e)
{
	scoped_buf struct buf notes = BUF_INIT(8192);
	watchdog_step("making the resources", PREPARE_MS);
	k->sandbox.notes = &notes;
	int r = resources_make(&k->sandbox, k->ops->resources, e);
	k->sandbox.notes = NULL;
	tell_lines(k->client, MESSAGE_WARNING, &notes);
	return r;
}

static int make(struct keeper *k, struct err *e)
{
	watchdog_step("preparing the sandbox", PREPARE_MS);
	int r = k->ops->prepare(&k->sandbox, &k->isolated, &k->view, e);
	/* No path is relative from here on, and the directory that the user stood in is not kept busy. */
	if (r == 0 && chdir("/") < 0)
		r = err_sys(e, "chdir /");
	if (r == 0)
		r = settle_ready(k, e);
	if (r == 0)
		r = keeper_start_conduit(&k->sandbox, &k->view, &k->conduit, &k->channel, e);
	if (r == 0)
		r = make_resources(k, e);
	watchdog_step("booting the sandbox", PREPARE_MS);
	if (r == 0)
		r = network_start(&k->sandbox, k->loop, &k->client, k->spec.network_log ? k->log : -1,
				  &k->network, e);
	if (r == 0)
		r = k->ops->boot(k->isolated, e);
	k->result.memory_enforced = k->result.disk_enforced = k->result.cpus_enforced =
		k->result.pids_enforced = k->result.network_enforced = r == 0;
	if (r == 0)
		r = watch_everything(k, e);
	if (r == 0)
		r = loop_arm(k->deadline, CONNECT_MS, e);
	return r;
}

/* What a job's status alone does not say: a limit that was met, a failure of ours or of the sandbox. */
static void tell_reason(struct keeper *k)
{
	enum end_reason reason = k->result.reason;
	if (reason >= END_START_FAILED)
		tell_text(k->client, MESSAGE_ERROR, k->result.evidence);
	else if (reason == END_TIMEOUT || reason >= END_OUT_OF_MEMORY)
		tell_text(k->client, MESSAGE_WARNING, k->result.evidence);
}

/* Makes the sandbox and serves it until it is to be taken down; leaves the reason in the result. */
static void live(struct keeper *k)
{
	struct err e = ERR_INIT;
	record_set_state(k->sandbox.record, keeper_state_name(STATE_BOOTING));
	int r = make(k, &e);
	if (r < 0) {
		judge_set(&k->result, END_START_FAILED, "%s", e.msg);
		return;
	}
	enter_phase(k, PHASE_BOOT);
	r = on_heartbeat(k, &e);
	if (r == 0)
		r = loop_run(k->loop, &e);
	if (r < 0 && k->result.reason == END_NONE)
		judge_set(&k->result, END_RUNNER_FAILED, "%s", e.msg);
}

/* --- taking down --------------------------------------------------------------------------------------------- */

static int take_down(struct keeper *k, struct err *e)
{
	enter_phase(k, PHASE_TAKE_DOWN);
	watchdog_step("taking the sandbox down", TAKE_DOWN_MS);
	network_use(k->network, &k->result.network);
	network_end(k->network);
	k->network = NULL;
	loop_free(k->loop);
	k->loop = NULL;
	int r = k->isolated ? k->ops->end(k->isolated, false, e) : 0;
	child_kill(&k->conduit);
	fd_close(&k->channel);
	int r_resources = resources_unmake(&k->sandbox, r < 0 ? NULL : e);
	child_reap_orphans(ORPHANS_MS);
	r = r < 0 ? r : r_resources;
	if (r == 0)
		r = record_remove(&k->sandbox.record, e);
	enter_phase(k, PHASE_TAKE_DOWN);
	return r;
}

static void tell_result(struct keeper *k)
{
	scoped_fd int fd = -1;
	if (file_memfd("job-result", &k->result, sizeof(k->result), &fd, NULL) < 0)
		return; /* the client sees us go without one and says so */
	const struct chan_message m = {.type = MESSAGE_RESULT, .n_fds = 1, .fds = {fd}};
	tell(k->client, &m);
}

/* --- the whole ----------------------------------------------------------------------------------------------- */

static void begin_result(struct keeper *k)
{
	const struct config *c = &k->spec.config;
	struct job_result *r = &k->result;
	memcpy(r->job_id, k->spec.job_id, sizeof(r->job_id));
	r->isolation = c->isolation;
	r->sysbox = k->spec.docker.sysbox;
	r->memory_limit_mib = c->job_memory_mib;
	r->disk_limit_mib = c->job_disk_mib;
	r->cpus_limit = c->job_cpus;
	r->pids_limit = c->job_pids;
	r->timeout_ms = c->job_timeout_ms;
	r->network_mode = c->network_mode;
	r->network.flows_limit = c->network_mode == NETWORK_NAT ? c->job_flows : 0;
	r->network.bandwidth = c->network_mode == NETWORK_NAT ? c->job_net_bandwidth : 0;
	k->least_free_bytes = UINT64_MAX;
	k->phase = PHASE_CREATE;
	k->phase_started_ms = clock_boot_ms();
}

/* Takes a slot and writes the record. What a dead keeper left is taken down first. */
static int begin(struct keeper *k, struct err *e)
{
	const char *names[RECORD_RESOURCES_MAX] = {NULL};
	watchdog_step("taking down what others left", LEFTOVERS_MS);
	int r = record_open_store(k->spec.config.state_dir, &k->sandbox.store_fd, e);
	const char *docker = k->spec.docker.socket;
	struct reap reap = {.store_fd = k->sandbox.store_fd,
			    .host = &k->host,
			    .docker_socket = docker[0] ? docker : NULL,
			    .tell = tell_leftover,
			    .data = &k->client};
	if (r < 0)
		return r;
	/* What cannot be looked for now is no reason against this sandbox: the next one looks again. */
	struct err unseen = ERR_INIT;
	if (resources_reap(&reap, &unseen) < 0)
		tell_text(k->client, MESSAGE_WARNING, unseen.msg);
	for (size_t i = 0; k->ops->resources[i]; i++)
		names[i] = k->ops->resources[i]->name;
	r = record_create(k->sandbox.store_fd, &k->spec, names, &k->sandbox.record, e);
	if (r < 0)
		return r;
	const struct record_info *info = record_info(k->sandbox.record);
	k->sandbox.spec = &k->spec;
	k->sandbox.host = &k->host;
	k->sandbox.id = info->id;
	k->sandbox.slot = info->slot;
	k->result.slot = info->slot;
	memcpy(k->result.id, info->id, sizeof(k->result.id));
	return 0;
}

static int run(struct keeper *k, struct err *e)
{
	k->ops = isolation_find(k->spec.config.isolation, k->spec.docker.sysbox);
	if (!k->ops)
		return err_set(e, -ENOTSUP, "isolation %s", isolation_name(k->spec.config.isolation));
	k->loop = loop_new();
	if (!k->loop)
		return err_sys(e, "make an event loop");
	k->kmsg = oomlog_open();
	int r = file_need_descriptors(DESCRIPTORS, e);
	if (r == 0)
		r = child_adopt_orphans(e);
	if (r == 0)
		r = host_open(&k->host, e);
	if (r == 0)
		r = watchdog_start(e);
	if (r == 0)
		r = begin(k, e);
	if (r < 0)
		return r;
	live(k);
	tell_reason(k);
	struct err down = ERR_INIT;
	r = take_down(k, &down);
	if (r < 0)
		tell_leftover(&k->client, &(struct leftover){"sandbox", k->result.id, down.msg});
	return r;
}

int keeper_run(int spec_fd, int client, int log, struct err *e)
{
	scoped_free struct keeper *k = calloc(1, sizeof(*k));
	if (!k)
		return err_set(e, -ENOMEM, "out of memory");
	k->client = client;
	k->log = log;
	k->channel = k->kmsg = k->sandbox.store_fd = k->sandbox.network.netns = -1;
	k->host = HOST_INIT;
	k->conduit = CHILD_INIT;
	int r = sandbox_spec_read(spec_fd, &k->spec, e);
	if (r == 0) {
		begin_result(k);
		r = run(k, e);
	}
	if (r < 0 && k->result.reason == END_NONE) {
		judge_set(&k->result, END_START_FAILED, "%s", e->msg);
		tell_text(k->client, MESSAGE_ERROR, e->msg);
	}
	tell_result(k);
	loop_free(k->loop);
	record_free(k->sandbox.record);
	fd_close(&k->kmsg);
	fd_close(&k->sandbox.store_fd);
	fd_close(&k->sandbox.network.netns);
	host_close(&k->host);
	return r;
}
