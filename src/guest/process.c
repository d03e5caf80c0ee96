#include "guest/process.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/scope.h"
#include "guest/input.h"
#include "guest/spawn.h"

#define DRAIN_MS       5000 /* for output of stragglers after the main process has ended */
#define DRAIN_AGAIN_MS 500  /* and while the host has not taken what was said before */
#define N_OUTPUTS      2

/* Standard output or error of a process on its way to the host. */
struct output {
	struct process *process;
	struct source *source; /* while there is credit */
	uint32_t channel;
	int fd;          /* owned; -1 once it has ended */
	uint32_t credit; /* bytes that may be sent */
	int due;         /* bytes that were there when the main process ended and are not sent yet */
};

/* The main process as we know it: not yet the program, the program, a zombie. */
enum process_state { PROCESS_NONE, PROCESS_STARTING, PROCESS_RUNNING, PROCESS_DRAINING };

struct process {
	struct processes *table;
	enum process_state state;
	uint32_t id;
	pid_t pid;  /* also the number of its process group */
	int pidfd;  /* owned, as is the next */
	int report; /* -1 after the start */
	struct source *pidfd_source, *report_source, *timer;
	struct input input;
	uint32_t owed; /* credit for input that is sent with the start */
	struct output outputs[N_OUTPUTS];
	uint32_t status, signal; /* how it ended */
};

struct processes {
	struct loop *loop;
	struct stream *stream;
	struct process table[PROCESSES_MAX];
};

static struct process *process_find(struct processes *t, uint32_t id)
{
	for (size_t i = 0; i < PROCESSES_MAX; i++)
		if (t->table[i].state != PROCESS_NONE && t->table[i].id == id)
			return &t->table[i];
	return NULL;
}

static struct process *process_vacant(struct processes *t)
{
	for (size_t i = 0; i < PROCESSES_MAX; i++)
		if (t->table[i].state == PROCESS_NONE)
			return &t->table[i];
	return NULL;
}

/* A process that was forked just now has not made its group yet. */
static void process_kill(const struct process *p, int number)
{
	if (kill(-p->pid, number) < 0 && errno == ESRCH && p->state == PROCESS_STARTING)
		(void)kill(p->pid, number);
}

static void output_done(struct output *o)
{
	loop_remove(&o->source);
	fd_close(&o->fd);
}

/* Lets go of everything and gives the place back. */
static void process_done(struct process *p)
{
	loop_remove(&p->pidfd_source);
	loop_remove(&p->report_source);
	loop_remove(&p->timer);
	fd_close(&p->pidfd);
	fd_close(&p->report);
	input_done(&p->input);
	for (size_t i = 0; i < N_OUTPUTS; i++)
		output_done(&p->outputs[i]);
	p->state = PROCESS_NONE;
}

static int process_finish(struct process *p, struct err *e)
{
	process_kill(p, SIGKILL);
	(void)waitpid(p->pid, NULL, 0);
	process_done(p);
	return stream_send_exited(p->table->stream, p->id, p->status, p->signal, e);
}

static bool outputs_ended(const struct process *p)
{
	return p->outputs[0].fd < 0 && p->outputs[1].fd < 0;
}

static int output_ended(struct output *o, struct err *e)
{
	struct process *p = o->process;
	output_done(o);
	int r = stream_send_eof(p->table->stream, p->id, o->channel, e);
	if (r < 0)
		return r;
	return p->state == PROCESS_DRAINING && outputs_ended(p) ? process_finish(p, e) : 0;
}

/* Sends one message's worth of output. */
static int on_output(void *data, int fd, uint32_t, struct err *e)
{
	struct output *o = data;
	struct stream *stream = o->process->table->stream;
	size_t most = o->credit < FRAME_DATA_MAX ? o->credit : FRAME_DATA_MAX;
	ssize_t n = read(fd, stream_data_room(stream), most);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	/* A terminal that nobody has open any more says EIO. */
	if (n <= 0)
		return output_ended(o, e);
	o->credit -= (uint32_t)n;
	o->due = o->due > n ? o->due - (int)n : 0;
	/* Without credit it is not watched at all: a hang-up would be told again and again. */
	if (o->credit == 0)
		loop_remove(&o->source);
	return stream_send_data(stream, o->process->id, o->channel, (size_t)n, e);
}

static int output_watch(struct output *o, struct err *e)
{
	if (o->fd < 0 || o->source || o->credit == 0)
		return 0;
	return loop_add_fd(o->process->table->loop, o->fd, EPOLLIN, on_output, o, &o->source, e);
}

static int on_drained(void *data, struct err *e)
{
	struct process *p = data;
	for (size_t i = 0; i < N_OUTPUTS; i++)
		if (p->outputs[i].fd >= 0 && p->outputs[i].due > 0)
			return loop_arm(p->timer, DRAIN_AGAIN_MS, e);
	return process_finish(p, e);
}

/* The main process has ended: notes how, and what is still to be sent. */
static int on_ended(void *data, int fd, uint32_t, struct err *e)
{
	struct process *p = data;
	siginfo_t info = {0};
	if (waitid(P_PIDFD, (id_t)fd, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
		return err_sys(e, "wait for process %d", (int)p->pid);
	if (info.si_pid == 0)
		return 0;
	if (info.si_code == CLD_EXITED)
		p->status = (uint32_t)info.si_status;
	else
		p->signal = (uint32_t)info.si_status;
	loop_remove(&p->pidfd_source);
	p->state = PROCESS_DRAINING;
	if (outputs_ended(p))
		return process_finish(p, e);
	for (size_t i = 0; i < N_OUTPUTS; i++)
		if (p->outputs[i].fd >= 0 && ioctl(p->outputs[i].fd, FIONREAD, &p->outputs[i].due) < 0)
			p->outputs[i].due = 0;
	int r = loop_add_timer(p->table->loop, on_drained, p, &p->timer, e);
	return r < 0 ? r : loop_arm(p->timer, DRAIN_MS, e);
}

/* The process is the program now. */
static int process_running(struct process *p, struct err *e)
{
	p->state = PROCESS_RUNNING;
	loop_remove(&p->report_source);
	fd_close(&p->report);
	int r = stream_send_started(p->table->stream, p->id, (uint32_t)p->pid, e);
	if (r == 0 && p->owed > 0)
		r = stream_send_credit(p->table->stream, p->id, p->owed, e);
	for (size_t i = 0; r == 0 && i < N_OUTPUTS; i++)
		r = output_watch(&p->outputs[i], e);
	if (r < 0)
		return r;
	return loop_add_fd(p->table->loop, p->pidfd, EPOLLIN, on_ended, p, &p->pidfd_source, e);
}

static int on_report(void *data, int fd, uint32_t, struct err *e)
{
	struct process *p = data;
	struct job_failure failure;
	ssize_t n = read(fd, &failure, sizeof(failure));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n != (ssize_t)sizeof(failure))
		return process_running(p, e);
	failure.text[sizeof(failure.text) - 1] = '\0';
	process_kill(p, SIGKILL);
	(void)waitpid(p->pid, NULL, 0);
	process_done(p);
	return stream_send_failed(p->table->stream, p->id, failure.status, failure.text, e);
}

static int on_input_passed(void *data, uint32_t bytes, struct err *e)
{
	struct process *p = data;
	if (p->state == PROCESS_STARTING) {
		p->owed += bytes;
		return 0;
	}
	return stream_send_credit(p->table->stream, p->id, bytes, e);
}

/* Fills a vacant place from what was spawned, and owns it from then on. */
static void process_fill(struct process *p, struct processes *t, const ermite_Start *start,
			 const struct spawned *s)
{
	*p = (struct process){
		.table = t,
		.state = PROCESS_STARTING,
		.id = start->id,
		.pid = s->pid,
		.pidfd = s->pidfd,
		.report = s->report,
		.outputs = {{.process = p, .channel = 1, .fd = s->out, .credit = FRAME_WINDOW},
			    {.process = p, .channel = 2, .fd = s->err, .credit = FRAME_WINDOW}},
	};
	input_init(&p->input, t->loop, s->in, start->terminal, on_input_passed, p);
}

int processes_start(struct processes *t, const struct job *job, struct err *e)
{
	struct err why = ERR_INIT;
	uint32_t id = job->start->id;
	if (process_find(t, id))
		return err_set(e, -EPROTO, "process %u was started twice", id);
	struct process *p = process_vacant(t);
	if (!p) {
		(void)snprintf(why.msg, sizeof(why.msg), "%d processes run already", PROCESSES_MAX);
		return stream_send_failed(t->stream, id, 125, why.msg, e);
	}
	struct spawned spawned = SPAWNED_INIT;
	if (spawn_start(job, &spawned, &why) < 0)
		return stream_send_failed(t->stream, id, 125, why.msg, e);
	process_fill(p, t, job->start, &spawned);
	return loop_add_fd(t->loop, p->report, EPOLLIN, on_report, p, &p->report_source, e);
}

int processes_data(struct processes *t, const ermite_Data *m, struct err *e)
{
	struct process *p = process_find(t, m->id);
	if (m->channel != 0)
		return err_set(e, -EPROTO, "bytes from the host on channel %u", m->channel);
	return p ? input_add(&p->input, m->bytes.bytes, m->bytes.size, e) : 0;
}

int processes_eof(struct processes *t, const ermite_Eof *m, struct err *e)
{
	struct process *p = process_find(t, m->id);
	if (m->channel != 0)
		return err_set(e, -EPROTO, "end of file from the host on channel %u", m->channel);
	if (p)
		input_end(&p->input);
	return 0;
}

int processes_credit(struct processes *t, const ermite_Credit *m, struct err *e)
{
	struct process *p = process_find(t, m->id);
	if (m->channel < 1 || m->channel > N_OUTPUTS)
		return err_set(e, -EPROTO, "credit from the host for channel %u", m->channel);
	if (!p)
		return 0;
	struct output *o = &p->outputs[m->channel - 1];
	if (m->bytes > FRAME_WINDOW - o->credit)
		return err_set(e, -EPROTO, "credit from the host for more than was sent");
	o->credit += m->bytes;
	return p->state == PROCESS_STARTING ? 0 : output_watch(o, e);
}

int processes_signal(struct processes *t, const ermite_Signal *m, struct err *)
{
	const struct process *p = process_find(t, m->id);
	if (p)
		process_kill(p, (int)m->number);
	return 0;
}

int processes_resize(struct processes *t, const ermite_Resize *m, struct err *)
{
	const struct process *p = process_find(t, m->id);
	struct winsize size = {.ws_row = (unsigned short)m->rows, .ws_col = (unsigned short)m->columns};
	/* Without a terminal this does nothing, as it should. */
	if (p && p->outputs[0].fd >= 0 && ioctl(p->outputs[0].fd, TIOCSWINSZ, &size) < 0)
		return 0;
	return 0;
}

struct processes *processes_new(struct loop *loop, struct stream *stream)
{
	struct processes *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->loop = loop;
	t->stream = stream;
	return t;
}

void processes_free(struct processes *t)
{
	if (!t)
		return;
	/* Nobody waits here: a process that cannot die at once must not keep the executor. */
	for (size_t i = 0; i < PROCESSES_MAX; i++) {
		if (t->table[i].state == PROCESS_NONE)
			continue;
		process_kill(&t->table[i], SIGKILL);
		process_done(&t->table[i]);
	}
	free(t);
}
