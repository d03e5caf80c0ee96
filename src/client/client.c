#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "client/keeper.h"
#include "client/pump.h"
#include "client/start.h"
#include "client/terminal.h"
#include "client/verdict.h"
#include "io/chan.h"
#include "io/loop.h"
#include "spec/message.h"

/* Ids of what is started inside: outputs count upwards from the last. */
enum { ID_PUT = 1, ID_JOB = 2, ID_GET = 3 };

/* Flags in START's a. */
enum { START_HAS_STDIN = 1, START_IS_JOB = 2 };

enum {
	PIPE_BYTES = 1 << 20,
	READ_BYTES = 65536,
	PATIENCE_MS =
		15000, /* after cancelling, for whoever reads our output: longer than the keeper's own deadline */
	N_OUTPUTS = 2, /* standard output and error */
	TEXT_MAX = 512
};

struct client {
	const struct client_job *job;
	struct loop *loop;
	struct child keeper;
	int channel;
	struct source *channel_source, *signals, *patience;

	bool created;
	bool finished; /* the keeper has told the result, or is gone */
	bool has_result;
	bool cancelled;
	bool job_succeeded;
	struct job_result result;
	char fault[TEXT_MAX]; /* what failed on this side, or "" */

	/* What runs inside now. */
	uint32_t id;
	bool over;
	int status;
	char failed[TEXT_MAX]; /* why it could not run, or "" */

	/* The job's streams: our ends of the pipes. */
	int stdin_pipe;
	int output_pipes[N_OUTPUTS];
	struct pump *input;
	struct pump *outputs[N_OUTPUTS];
	bool broken[N_OUTPUTS]; /* nobody takes this output any more */

	/* A copy on its way in or out: what the copying process inside says, and the tree of an output. */
	int words_pipe;
	struct source *words_source;
	char words[TEXT_MAX];
	int tree_pipe;
	struct source *tree_source;
	struct files_receiver *receiver;
	bool tree_done;
	char tree_fault[TEXT_MAX];
	size_t n_judged; /* outputs that were copied, or are known not to be there */

	/* The network log: our end of the pipe that the sandbox's helpers write to. */
	int log_pipe;
	struct pump *log;
	uint8_t bytes[READ_BYTES];
};

static void warn(void *data, const char *text)
{
	const struct client *c = data;
	c->job->say("warning", text);
}

/* Sends a message to the keeper. One that is gone is no error here: the loop hears of it, after its last words. */
static int tell(const struct client *c, const struct chan_message *m, struct err *e)
{
	int r = c->finished ? 0 : chan_send(c->channel, m, e);
	return r == -EPIPE ? 0 : r;
}

static void discard_outputs(struct client *c)
{
	for (int i = 0; i < N_OUTPUTS; i++) {
		if (pump_ended(c->outputs[i]))
			continue;
		/* With the keeper gone nothing that still holds the other end can be waited for. */
		if (!c->finished && pump_discard(c->outputs[i], NULL) == 0)
			continue;
		pump_free(c->outputs[i]);
		c->outputs[i] = NULL;
	}
}

static int cancel(struct client *c, const char *why, struct err *e)
{
	if (c->cancelled)
		return 0;
	c->cancelled = true;
	struct chan_message m = {.type = MESSAGE_CANCEL};
	m.n = (uint32_t)strnlen(why, CHAN_DATA_MAX);
	memcpy(m.data, why, m.n);
	loop_stop(c->loop);
	int r = tell(c, &m, e);
	return r < 0 ? r : loop_arm(c->patience, PATIENCE_MS, e);
}

static int on_patience(void *data, struct err *)
{
	struct client *c = data;
	discard_outputs(c);
	loop_stop(c->loop);
	return 0;
}

static int on_signal(void *data, int number, struct err *e)
{
	struct client *c = data;
	if (number == SIGWINCH) {
		struct chan_message m = {.type = MESSAGE_RESIZE, .id = ID_JOB};
		uint32_t rows = 0;
		uint32_t columns = 0;
		terminal_size(STDIN_FILENO, &rows, &columns);
		m.a = rows;
		m.b = columns;
		return c->id == ID_JOB && !c->over ? tell(c, &m, e) : 0;
	}
	if (c->cancelled || c->finished) {
		/* Asked twice: whoever is slow to take the output is waited for no longer. */
		discard_outputs(c);
		loop_stop(c->loop);
		return 0;
	}
	char why[64];
	(void)snprintf(why, sizeof(why), "the runner was sent SIG%s", sigabbrev_np(number));
	return cancel(c, why, e);
}

static int on_created(struct client *c, struct chan_message *, struct err *)
{
	c->created = true;
	return 0;
}

static int on_warning(struct client *c, struct chan_message *m, struct err *)
{
	c->job->say("warning", m->data);
	return 0;
}

static int on_error(struct client *c, struct chan_message *m, struct err *)
{
	/* After a fault of this side the keeper can only wonder why no job came. */
	if (!c->fault[0])
		c->job->say(NULL, m->data);
	return 0;
}

static int on_started(struct client *, struct chan_message *, struct err *)
{
	return 0;
}

static int on_exited(struct client *c, struct chan_message *m, struct err *)
{
	if (m->id != c->id)
		return 0;
	c->over = true;
	c->status = m->b ? 128 + (int)(m->b & 0x7f) : (int)(m->a & 0xff);
	return 0;
}

static int on_failed(struct client *c, struct chan_message *m, struct err *)
{
	if (m->id != c->id)
		return 0;
	c->over = true;
	c->status = (int)(m->a & 0xff);
	(void)snprintf(c->failed, sizeof(c->failed), "%.*s", TEXT_MAX - 1, m->data);
	return 0;
}

static int on_result(struct client *c, struct chan_message *m, struct err *e)
{
	scoped_fd int fd = chan_take_fd(m, 0);
	int r = keeper_read_result(fd, &c->result, e);
	if (r < 0)
		return r;
	c->has_result = true;
	c->finished = true;
	loop_remove(&c->channel_source);
	return 0;
}

static int take_message(struct client *c, struct chan_message *m, struct err *e)
{
	static const struct {
		enum message_type type;
		int (*take)(struct client *c, struct chan_message *m, struct err *e);
	} rows[] = {
		{MESSAGE_CREATED, on_created}, {MESSAGE_WARNING, on_warning}, {MESSAGE_ERROR, on_error},
		{MESSAGE_STARTED, on_started}, {MESSAGE_EXITED, on_exited},   {MESSAGE_FAILED, on_failed},
		{MESSAGE_RESULT, on_result},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].type == m->type)
			return rows[i].take(c, m, e);
	return err_set(e, -EPROTO, "the keeper sent %s, which is not for us", message_name(m->type));
}

static int on_channel(void *data, int fd, uint32_t, struct err *e)
{
	struct client *c = data;
	struct chan_message m = {0};
	int r = chan_receive(fd, &m, e);
	if (r == -EAGAIN)
		return 0;
	if (r < 0)
		return r;
	loop_stop(c->loop);
	if (r == 0) {
		c->finished = true;
		loop_remove(&c->channel_source);
		return 0;
	}
	r = take_message(c, &m, e);
	chan_close_fds(&m);
	return r;
}

/* Runs the loop until something is the case. Every callback that could make it so stops the loop. */
static int wait_until(struct client *c, bool (*is_so)(const struct client *c), struct err *e)
{
	while (!is_so(c)) {
		int r = loop_run(c->loop, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_created(const struct client *c)
{
	return c->created || c->finished || c->cancelled;
}

static bool is_copied_in(const struct client *c)
{
	return (c->over && !c->words_source) || c->finished || c->cancelled;
}

/* A cancelled job is waited for all the same: the keeper ends it within its deadline. */
static bool is_job_over(const struct client *c)
{
	return (c->over || c->finished) && pump_ended(c->outputs[0]) && pump_ended(c->outputs[1]);
}

static bool is_copied_out(const struct client *c)
{
	return (c->over && !c->words_source && !c->tree_source) || c->finished || c->cancelled;
}

static bool is_finished(const struct client *c)
{
	return c->finished;
}

/* Makes a pipe with a large buffer, as far as the host allows. */
static int make_pipe(int *ret_read, int *ret_write, struct err *e)
{
	int ends[2] = {-1, -1};
	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(e, "pipe");
	(void)fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES);
	*ret_read = ends[0];
	*ret_write = ends[1];
	return 0;
}

/* Our own end of a pipe never blocks us; the two ends do not share this. */
static int set_nonblocking(int fd, struct err *e)
{
	return fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? err_sys(e, "pipe") : 0;
}

/* Has something started inside. m holds the message's a and b, and from fds[1] on the pipe ends (borrowed). */
static int start_inside(struct client *c, const struct start_request *s, struct chan_message *m,
			struct err *e)
{
	scoped_buf struct buf frames = BUF_INIT(START_FRAMES_MAX);
	scoped_fd int memfd = -1;
	int r = start_encode(s, &frames, e);
	if (r == 0)
		r = file_memfd("start", frames.p, frames.n, &memfd, e);
	if (frames.p)
		explicit_bzero(frames.p, frames.n);
	if (r < 0)
		return r;
	m->type = MESSAGE_START;
	m->id = s->id;
	m->fds[0] = memfd;
	c->id = s->id;
	c->over = false;
	c->status = 0;
	c->failed[0] = '\0';
	return tell(c, m, e);
}

static void set_fault(struct client *c, const char *why)
{
	(void)snprintf(c->fault, sizeof(c->fault), "%.*s", TEXT_MAX - 1, why);
}

static int send_secrets(const struct client *c, struct err *e)
{
	if (c->job->secrets_n == 0)
		return 0;
	scoped_fd int memfd = -1;
	int r = file_memfd("secrets", c->job->secrets, c->job->secrets_n, &memfd, e);
	if (r < 0)
		return r;
	return tell(c, &(struct chan_message){.type = MESSAGE_SECRETS, .n_fds = 1, .fds = {memfd}}, e);
}

/* Keeps the first line that the copying process inside says, and reads the rest so that it never has to wait. */
static int on_words(void *data, int fd, uint32_t, struct err *)
{
	struct client *c = data;
	ssize_t n = read(fd, c->bytes, sizeof(c->bytes));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		loop_remove(&c->words_source);
		loop_stop(c->loop);
		c->words[strcspn(c->words, "\n")] = '\0';
		return 0;
	}
	size_t have = strlen(c->words);
	size_t room = sizeof(c->words) - 1 - have;
	size_t kept = (size_t)n < room ? (size_t)n : room;
	memcpy(c->words + have, c->bytes, kept);
	c->words[have + kept] = '\0';
	return 0;
}

/* Prepares to hear what a copying process says; the far end is the caller's. */
static int open_words(struct client *c, int *ret_write, struct err *e)
{
	c->words[0] = '\0';
	int r = make_pipe(&c->words_pipe, ret_write, e);
	if (r == 0)
		r = set_nonblocking(c->words_pipe, e);
	return r < 0 ? r : loop_add_fd(c->loop, c->words_pipe, EPOLLIN, on_words, c, &c->words_source, e);
}

static void close_words(struct client *c)
{
	loop_remove(&c->words_source);
	fd_close(&c->words_pipe);
}

/* Why a copy failed, in the words of whoever knows best. */
static const char *copy_fault(const struct client *c, const char *otherwise)
{
	return c->failed[0] ? c->failed : c->words[0] ? c->words : otherwise;
}

/* Starts the copy inside, fed by the sender. */
static int start_copy_in(struct client *c, struct files_sender *sender, struct err *e)
{
	scoped_fd int tree_read = -1;
	scoped_fd int tree_write = -1;
	scoped_fd int words_write = -1;
	int r = make_pipe(&tree_read, &tree_write, e);
	if (r == 0)
		r = open_words(c, &words_write, e);
	if (r == 0)
		r = files_sender_start(sender, c->job->workspace, tree_write, warn, c, e);
	if (r < 0)
		return r;
	char *const none[] = {NULL};
	struct start_request put = {.id = ID_PUT,
				    .kind = ermite_Kind_PUT,
				    .arguments = none,
				    .user = c->job->user,
				    .workdir = CLIENT_WORK_DIR,
				    .has_stdin = true};
	struct chan_message m = {
		.a = START_HAS_STDIN, .n_fds = 4, .fds = {-1, tree_read, words_write, words_write}};
	return start_inside(c, &put, &m, e);
}

static int copy_in(struct client *c, struct err *e)
{
	if (c->job->workspace < 0)
		return 0;
	struct files_sender sender = FILES_SENDER_INIT;
	struct err why = ERR_INIT;
	int r = start_copy_in(c, &sender, e);
	if (r == 0)
		r = wait_until(c, is_copied_in, e);
	close_words(c);
	int sent = r == 0 && c->over ? files_sender_wait(&sender, &why) : 0;
	files_sender_kill(&sender);
	if (r < 0 || !c->over || c->cancelled)
		return r;
	/* A sender whose reader went away knows nothing of the reason. */
	bool is_sender = sent < 0 && sent != -EPIPE;
	if (!is_sender && c->status == 0)
		return 0;
	char text[TEXT_MAX];
	(void)snprintf(text, sizeof(text), "workspace: %.400s",
		       is_sender ? why.msg : copy_fault(c, "the copy inside was ended"));
	set_fault(c, text);
	return 0;
}

static int on_input_end(void *data, struct pump *, int, struct err *)
{
	struct client *c = data;
	/* The end of our input, however it came, is the end of the job's. */
	fd_close(&c->stdin_pipe);
	return 0;
}

static int on_output_end(void *data, struct pump *p, int error, struct err *e)
{
	struct client *c = data;
	int i = p == c->outputs[1] ? 1 : 0;
	loop_stop(c->loop);
	if (error == 0 || c->broken[i])
		return 0;
	c->broken[i] = true;
	if (error != -EPIPE) {
		char text[TEXT_MAX];
		(void)snprintf(text, sizeof(text), "write the job's output: %s", err_text(error));
		c->job->say(NULL, text);
	}
	int r = cancel(c, "output closed", e);
	return r < 0 ? r : pump_discard(p, e);
}

/* Starts to relay between our standard streams and the pipes. */
static int start_pumps(struct client *c, struct err *e)
{
	static const int outputs[N_OUTPUTS] = {STDOUT_FILENO, STDERR_FILENO};
	int r = 0;
	for (int i = 0; i < N_OUTPUTS && r == 0; i++)
		if (c->output_pipes[i] >= 0)
			r = pump_new(c->loop, c->output_pipes[i], outputs[i], on_output_end, c,
				     &c->outputs[i], e);
	if (r == 0 && c->stdin_pipe >= 0)
		r = pump_new(c->loop, STDIN_FILENO, c->stdin_pipe, on_input_end, c, &c->input, e);
	if (r == 0 && c->job->terminal)
		r = terminal_raw(STDIN_FILENO, e);
	return r;
}

/* Makes the job's pipes; the far ends, in the order of START, go into m, which owns them. */
static int make_job_pipes(struct client *c, struct chan_message *m, struct err *e)
{
	bool has_stdin = c->job->has_stdin || c->job->terminal;
	int n_outputs = c->job->terminal ? 1 : N_OUTPUTS;
	*m = (struct chan_message){.n_fds = 1, .fds = {-1, -1, -1, -1}};
	m->a = START_IS_JOB | (has_stdin ? START_HAS_STDIN : 0);
	int r = has_stdin ? make_pipe(&m->fds[m->n_fds++], &c->stdin_pipe, e) : 0;
	if (r == 0 && has_stdin)
		r = set_nonblocking(c->stdin_pipe, e);
	for (int i = 0; i < n_outputs && r == 0; i++) {
		r = make_pipe(&c->output_pipes[i], &m->fds[m->n_fds++], e);
		if (r == 0)
			r = set_nonblocking(c->output_pipes[i], e);
	}
	return r;
}

static int start_job(struct client *c, struct err *e)
{
	const struct client_job *job = c->job;
	struct start_request s = {.id = ID_JOB,
				  .kind = ermite_Kind_RUN,
				  .arguments = job->arguments,
				  .environment = job->environment,
				  .user = job->user,
				  .workdir = job->workdir,
				  .has_stdin = job->has_stdin || job->terminal,
				  .terminal = job->terminal};
	if (job->terminal)
		terminal_size(STDIN_FILENO, &s.rows, &s.columns);
	struct chan_message m = {0};
	int r = make_job_pipes(c, &m, e);
	if (r == 0)
		r = start_inside(c, &s, &m, e);
	m.fds[0] = -1; /* was closed by the one who made it */
	chan_close_fds(&m);
	if (r < 0)
		return r;
	return start_pumps(c, e);
}

static void end_job_streams(struct client *c)
{
	terminal_restore();
	pump_free(c->input);
	c->input = NULL;
	fd_close(&c->stdin_pipe);
	for (int i = 0; i < N_OUTPUTS; i++) {
		pump_free(c->outputs[i]);
		c->outputs[i] = NULL;
		fd_close(&c->output_pipes[i]);
	}
}

static int run_job(struct client *c, struct err *e)
{
	int r = start_job(c, e);
	if (r == 0)
		r = wait_until(c, is_job_over, e);
	end_job_streams(c);
	c->job_succeeded = c->over && c->status == 0 && !c->failed[0];
	return r;
}

/* Takes what has come of an output. After a fault the rest is read and dropped, so that the sandbox is never made to
 * wait for us. */
static int on_tree(void *data, int fd, uint32_t, struct err *)
{
	struct client *c = data;
	ssize_t n = read(fd, c->bytes, sizeof(c->bytes));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		loop_remove(&c->tree_source);
		loop_stop(c->loop);
		return 0;
	}
	struct err why = ERR_INIT;
	int r = c->tree_fault[0] ? 0 : files_receive(c->receiver, c->bytes, (size_t)n, &why);
	if (r < 0)
		(void)snprintf(c->tree_fault, sizeof(c->tree_fault), "%s", why.msg);
	c->tree_done = c->tree_done || r == 1;
	return 0;
}

static int start_copy_out(struct client *c, const struct client_output *o, uint32_t id, struct err *e)
{
	scoped_fd int tree_write = -1;
	scoped_fd int words_write = -1;
	int r = make_pipe(&c->tree_pipe, &tree_write, e);
	if (r == 0)
		r = set_nonblocking(c->tree_pipe, e);
	if (r == 0)
		r = open_words(c, &words_write, e);
	if (r < 0)
		return r;
	uint64_t bytes_max = c->job->spec->config.job_disk_mib << 20;
	c->tree_done = false;
	c->tree_fault[0] = '\0';
	c->receiver = files_receiver_new(&o->target, o->base, bytes_max, warn, c);
	if (!c->receiver)
		return err_set(e, -ENOMEM, "out of memory");
	r = loop_add_fd(c->loop, c->tree_pipe, EPOLLIN, on_tree, c, &c->tree_source, e);
	if (r < 0)
		return r;
	char *const arguments[] = {o->path, NULL};
	struct start_request get = {.id = id,
				    .kind = ermite_Kind_GET,
				    .arguments = arguments,
				    .user = "root",
				    .workdir = c->job->workdir[0] ? c->job->workdir : CLIENT_WORK_DIR};
	struct chan_message m = {.b = bytes_max, .n_fds = 3, .fds = {-1, tree_write, words_write}};
	return start_inside(c, &get, &m, e);
}

/* A wanted output that is not there is the runner's failure when the job succeeded, a warning when it did not. */
static void judge_output(struct client *c, const struct client_output *o)
{
	if (c->over && c->status == 0 && c->tree_done && !c->tree_fault[0])
		return;
	const char *why = c->tree_fault[0] ? c->tree_fault : copy_fault(c, "it did not come out whole");
	char text[TEXT_MAX];
	(void)snprintf(text, sizeof(text), "output %.80s: %.400s", o->path, why);
	if (!c->job_succeeded)
		c->job->say("warning", text);
	else if (c->fault[0])
		c->job->say(NULL, text);
	else
		set_fault(c, text);
}

static void end_copy_out(struct client *c)
{
	close_words(c);
	loop_remove(&c->tree_source);
	fd_close(&c->tree_pipe);
	files_receiver_free(c->receiver);
	c->receiver = NULL;
}

static int copy_out(struct client *c, struct err *e)
{
	int r = 0;
	for (size_t i = 0; i < c->job->n_outputs && r == 0 && !c->finished && !c->cancelled; i++) {
		const struct client_output *o = &c->job->outputs[i];
		r = start_copy_out(c, o, ID_GET + (uint32_t)i, e);
		if (r == 0)
			r = wait_until(c, is_copied_out, e);
		end_copy_out(c);
		if (r == 0 && !c->cancelled) {
			judge_output(c, o);
			c->n_judged++;
		}
	}
	return r;
}

static bool may_go_on(const struct client *c)
{
	return !c->finished && !c->cancelled && !c->fault[0];
}

static int run_steps(struct client *c, struct err *e)
{
	int r = wait_until(c, is_created, e);
	if (r == 0 && may_go_on(c))
		r = send_secrets(c, e);
	if (r == 0 && may_go_on(c))
		r = copy_in(c, e);
	if (r == 0 && may_go_on(c))
		r = run_job(c, e);
	if (r == 0 && may_go_on(c))
		r = copy_out(c, e);
	if (r == 0)
		r = tell(c, &(struct chan_message){.type = MESSAGE_DELETE}, e);
	return r < 0 ? r : wait_until(c, is_finished, e);
}

static int watch_signals(struct client *c, struct err *e)
{
	static const int cancelling[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	sigset_t set;
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof(cancelling) / sizeof(cancelling[0]); i++) {
		/* What our parent had us ignore (nohup, a shell's background job) stays ignored; a signal
		 * descriptor would bring it all the same. */
		struct sigaction now = {0};
		if (sigaction(cancelling[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			sigaddset(&set, cancelling[i]);
	}
	if (c->job->terminal)
		sigaddset(&set, SIGWINCH);
	return loop_add_signals(c->loop, &set, on_signal, c, &c->signals, e);
}

static void warn_of_log(struct client *c, int error)
{
	char text[TEXT_MAX];
	(void)snprintf(text, sizeof(text), "network log: %s", err_text(error));
	c->job->say("warning", text);
}

static int on_log_end(void *data, struct pump *p, int error, struct err *e)
{
	if (error == 0)
		return 0;
	warn_of_log(data, error);
	return pump_discard(p, e);
}

/* Prepares to copy the network log; the far end is the caller's and never blocks whoever writes to it. */
static int open_log(struct client *c, int *ret_write, struct err *e)
{
	if (c->job->network_log < 0)
		return 0;
	int r = make_pipe(&c->log_pipe, ret_write, e);
	if (r == 0)
		r = set_nonblocking(c->log_pipe, e);
	if (r == 0)
		r = set_nonblocking(*ret_write, e);
	return r < 0 ? r : pump_new(c->loop, c->log_pipe, c->job->network_log, on_log_end, c, &c->log, e);
}

/* Takes what is left in the pipe: all there will be, since whoever wrote to it is gone before the keeper ends. */
static void close_log(struct client *c)
{
	int r = pump_flush(c->log);
	if (r < 0)
		warn_of_log(c, r);
	pump_free(c->log);
	c->log = NULL;
	fd_close(&c->log_pipe);
}

static int start_keeper(struct client *c, struct err *e)
{
	scoped_fd int log_write = -1;
	int r = open_log(c, &log_write, e);
	return r < 0 ? r : keeper_start(c->job->spec, log_write, &c->keeper, &c->channel, e);
}

static int prepare(struct client *c, struct err *e)
{
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return err_sys(e, "ignore SIGPIPE");
	c->loop = loop_new();
	if (!c->loop)
		return err_sys(e, "make an event loop");
	int r = watch_signals(c, e);
	if (r == 0)
		r = loop_add_timer(c->loop, on_patience, c, &c->patience, e);
	if (r == 0)
		r = start_keeper(c, e);
	return r < 0 ? r : loop_add_fd(c->loop, c->channel, EPOLLIN, on_channel, c, &c->channel_source, e);
}

/* The result as this side sees it. A job that succeeded and whose outputs nobody came to copy has not done what was
 * asked for. */
static void conclude(struct client *c, const char *keeper_end)
{
	const struct verdict v = {.spec = c->job->spec,
				  .keeper_end = c->has_result ? NULL : keeper_end,
				  .fault = c->fault,
				  .outputs_missing = c->job_succeeded && c->n_judged < c->job->n_outputs,
				  .cancelled = c->cancelled};
	verdict_reach(&v, &c->result, c->job->say);
}

static void done(struct client *c)
{
	end_job_streams(c);
	end_copy_out(c);
	close_log(c);
	fd_close(&c->channel);
	fd_close(&c->keeper.pidfd);
	loop_free(c->loop);
}

int client_check(const struct client_job *job, struct err *e)
{
	struct start_request s = {.arguments = job->arguments,
				  .environment = job->environment,
				  .user = job->user,
				  .workdir = job->workdir};
	return start_check(&s, e);
}

int client_run(const struct client_job *job, struct job_result *ret, struct err *e)
{
	scoped_free struct client *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(e, -ENOMEM, "out of memory");
	c->job = job;
	c->keeper = CHILD_INIT;
	c->channel = c->stdin_pipe = c->words_pipe = c->tree_pipe = c->log_pipe = -1;
	c->output_pipes[0] = c->output_pipes[1] = -1;
	int r = prepare(c, e);
	if (r == 0)
		r = run_steps(c, e);
	if (r == 0) {
		char keeper_end[64] = "";
		fd_close(&c->channel);
		keeper_wait(&c->keeper, keeper_end, sizeof(keeper_end));
		conclude(c, keeper_end);
		*ret = c->result;
	}
	done(c);
	return r;
}
