#include "conduit-lab.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/chan.h"
#include "wire/identity.h"

#define RECEIVED_MAX (8u << 20)

/* Nothing here takes longer, so whatever does has failed. */
#define PATIENCE_MS 20000

static void await(int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};
	if (poll(&p, 1, PATIENCE_MS) != 1)
		fail_msg("nothing happened on descriptor %d", fd);
}

static struct sockaddr_un address_of(const struct lab *l)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	assert_true(snprintf(a.sun_path, sizeof(a.sun_path), "%s/exec.sock", l->directory) > 0);
	return a;
}

/* The conduit closes what it was given itself, so the test's copies are all that is left to leak. */
static void run_conduit(const struct conduit_config *config, int channel, int listener)
{
	struct err e = ERR_INIT;
	int r = conduit_run(config, channel, listener, &e);
	if (r < 0)
		(void)dprintf(2, "conduit: %s\n", e.msg);
	exit(r < 0 ? 1 : 0);
}

void lab_open(struct lab *l, uid_t peer_uid, uint32_t hello_ms, uint32_t frame_ms)
{
	struct err e = ERR_INIT;
	struct conduit_config config;
	int ends[2];
	*l = (struct lab){.guest = -1, .directory = "/tmp/ermite-test-XXXXXX"};
	l->received = malloc(RECEIVED_MAX);
	assert_non_null(l->received);
	assert_non_null(mkdtemp(l->directory));
	struct sockaddr_un address = address_of(l);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(listener >= 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 128), 0);
	assert_int_equal(chan_pair(ends, &e), 0);
	conduit_config_init(&config, 1, peer_uid);
	config.hello_ms = hello_ms ? hello_ms : config.hello_ms;
	config.frame_ms = frame_ms ? frame_ms : config.frame_ms;
	config.copy_ms = frame_ms ? frame_ms : config.copy_ms;
	l->pid = fork();
	assert_true(l->pid >= 0);
	if (l->pid == 0) {
		close(ends[0]);
		free(l->received);
		run_conduit(&config, ends[1], listener);
	}
	close(ends[1]);
	close(listener);
	l->channel = ends[0];
}

int lab_connect(struct lab *l)
{
	struct sockaddr_un address = address_of(l);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

void lab_open_greeted(struct lab *l, uint32_t frame_ms)
{
	lab_open(l, geteuid(), 0, frame_ms);
	l->guest = lab_connect(l);
	assert_true(l->guest >= 0);
	lab_say(l, (struct said){.tag = ermite_ToHost_hello_tag, .text = build_identity()});
	assert_string_equal(lab_hear(l, ermite_ToGuest_hello_tag)->message.hello.build, build_identity());
	lab_told(l, MESSAGE_CONNECTED, 0, 0, 0);
}

void lab_close(struct lab *l, int status)
{
	close(l->channel);
	int got = -1;
	assert_int_equal(waitpid(l->pid, &got, 0), l->pid);
	if (!WIFEXITED(got) || WEXITSTATUS(got) != status)
		fail_msg("the conduit ended with %#x", (unsigned)got);
	if (l->guest >= 0)
		close(l->guest);
	free(l->received);
	struct sockaddr_un address = address_of(l);
	(void)unlink(address.sun_path);
	assert_int_equal(rmdir(l->directory), 0);
}

void lab_say_raw(struct lab *l, const void *p, size_t n)
{
	const char *at = p;
	while (n > 0) {
		await(l->guest, POLLOUT);
		ssize_t sent = send(l->guest, at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		assert_true(sent > 0 || errno == EAGAIN);
		at += sent > 0 ? sent : 0;
		n -= sent > 0 ? (size_t)sent : 0;
	}
}

static void put_text(char *field, size_t size, const char *text)
{
	memset(field, 0, size);
	if (text)
		memcpy(field, text, strnlen(text, size - 1));
}

void lab_say(struct lab *l, struct said s)
{
	static ermite_ToHost m;
	static uint8_t frame[FRAME_HEAD + FRAME_DATA_MAX + 64];
	m.which_message = s.tag;
	if (s.tag == ermite_ToHost_hello_tag) {
		put_text(m.message.hello.build, sizeof(m.message.hello.build), s.text);
	} else if (s.tag == ermite_ToHost_started_tag) {
		m.message.started = (ermite_Started){.id = s.id, .pid = s.n};
	} else if (s.tag == ermite_ToHost_data_tag) {
		m.message.data.id = s.id;
		m.message.data.channel = s.channel;
		m.message.data.bytes.size = (pb_size_t)(s.text && s.n == 0 ? strlen(s.text) : s.n);
		memset(m.message.data.bytes.bytes, 'x', s.n);
		if (s.text)
			memcpy(m.message.data.bytes.bytes, s.text, m.message.data.bytes.size);
	} else if (s.tag == ermite_ToHost_eof_tag) {
		m.message.eof = (ermite_Eof){.id = s.id, .channel = s.channel};
	} else if (s.tag == ermite_ToHost_credit_tag) {
		m.message.credit = (ermite_Credit){.id = s.id, .channel = s.channel, .bytes = s.n};
	} else if (s.tag == ermite_ToHost_exited_tag) {
		m.message.exited = (ermite_Exited){.id = s.id, .status = s.n, .signal = s.signal};
	} else if (s.tag == ermite_ToHost_failed_tag) {
		m.message.failed.id = s.id;
		m.message.failed.status = s.n;
		put_text(m.message.failed.text, sizeof(m.message.failed.text), s.text);
	}
	ptrdiff_t n = frame_to_host_encode(&m, frame, sizeof(frame));
	assert_true(n > 0);
	lab_say_raw(l, frame, (size_t)n);
}

const ermite_ToGuest *lab_hear(struct lab *l, pb_size_t tag)
{
	static ermite_ToGuest m;
	struct err e = ERR_INIT;
	for (;;) {
		const uint8_t *message = NULL;
		size_t message_n = 0;
		size_t frame_n = 0;
		int r = frame_next(l->received + l->taken, l->have - l->taken, &message, &message_n, &frame_n,
				   &e);
		assert_true(r >= 0);
		if (r == 1) {
			assert_int_equal(frame_to_guest_decode(message, message_n, &m, &e), 0);
			assert_int_equal(m.which_message, tag);
			l->taken += frame_n;
			return &m;
		}
		await(l->guest, POLLIN);
		ssize_t n = read(l->guest, l->received + l->have, RECEIVED_MAX - l->have);
		assert_true(n > 0);
		l->have += (size_t)n;
	}
}

void lab_tell(struct lab *l, uint32_t type, uint32_t id, uint64_t a, uint64_t b, const int *fds,
	      uint32_t n_fds)
{
	struct err e = ERR_INIT;
	static struct chan_message m;
	m.type = type;
	m.id = id;
	m.a = a;
	m.b = b;
	m.n = 0;
	m.n_fds = n_fds;
	for (uint32_t i = 0; i < n_fds; i++)
		m.fds[i] = fds[i];
	assert_int_equal(chan_send(l->channel, &m, &e), 0);
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]);
}

void lab_told(struct lab *l, enum message_type type, uint32_t id, uint64_t a, uint64_t b)
{
	struct err e = ERR_INIT;
	static struct chan_message m;
	await(l->channel, POLLIN);
	if (chan_receive(l->channel, &m, &e) != 1)
		fail_msg("%s instead of %s", "the end of the channel", message_name((uint32_t)type));
	if (m.type != (uint32_t)type || m.id != id || m.a != a || m.b != b)
		fail_msg("%s %u %llu %llu \"%s\" instead of %s %u %llu %llu", message_name(m.type), m.id,
			 (unsigned long long)m.a, (unsigned long long)m.b, m.data,
			 message_name((uint32_t)type), id, (unsigned long long)a, (unsigned long long)b);
	assert_true(message_permitted(m.type, SENDER_CONDUIT));
	assert_int_equal(m.n_fds, 0);
	memcpy(l->text, m.data, sizeof(l->text));
}

void lab_told_protocol(struct lab *l, const char *words)
{
	struct err e = ERR_INIT;
	static struct chan_message m;
	lab_told(l, MESSAGE_PROTOCOL, 0, 0, 0);
	if (strcmp(l->text, words) != 0)
		fail_msg("\"%s\" instead of \"%s\"", l->text, words);
	await(l->channel, POLLIN);
	assert_int_equal(chan_receive(l->channel, &m, &e), 0);
}

int lab_memfd(const void *p, size_t n)
{
	int fd = memfd_create("lab", MFD_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, p, n), (ssize_t)n);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

size_t lab_encode_start(uint32_t id, ermite_Kind kind, bool has_input, uint8_t *p, size_t size)
{
	static ermite_ToGuest m;
	static const char strings[] = "sh\0A=1";
	m.which_message = ermite_ToGuest_strings_tag;
	m.message.strings.id = id;
	m.message.strings.bytes.size = sizeof(strings);
	memcpy(m.message.strings.bytes.bytes, strings, sizeof(strings));
	ptrdiff_t n = frame_to_guest_encode(&m, p, size);
	assert_true(n > 0);
	m.which_message = ermite_ToGuest_start_tag;
	m.message.start = (ermite_Start){.id = id,
					 .kind = kind,
					 .argument_count = 1,
					 .environment_count = 1,
					 .user = "runner",
					 .workdir = "/",
					 .has_stdin = has_input};
	ptrdiff_t more = frame_to_guest_encode(&m, p + n, size - (size_t)n);
	assert_true(more > 0);
	return (size_t)(n + more);
}

struct pipes lab_start(struct lab *l, uint32_t id, ermite_Kind kind, bool has_input, uint64_t tree_max)
{
	uint8_t frames[512];
	size_t n = lab_encode_start(id, kind, has_input, frames, sizeof(frames));
	struct pipes pipes = {.input = -1};
	int fds[4] = {lab_memfd(frames, n)};
	uint32_t n_fds = 1;
	int ends[2];
	if (has_input) {
		assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
		pipes.input = ends[1];
		fds[n_fds++] = ends[0];
	}
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pipes.output = ends[0];
	fds[n_fds++] = ends[1];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pipes.error = ends[0];
	fds[n_fds++] = ends[1];
	lab_tell(l, MESSAGE_START, id, has_input, tree_max, fds, n_fds);
	const ermite_ToGuest *m = lab_hear(l, ermite_ToGuest_strings_tag);
	assert_int_equal(m->message.strings.id, id);
	assert_int_equal(m->message.strings.bytes.size, 7);
	m = lab_hear(l, ermite_ToGuest_start_tag);
	assert_int_equal(m->message.start.id, id);
	assert_int_equal(m->message.start.has_stdin, has_input);
	return pipes;
}

struct pipes lab_start_running(struct lab *l, uint32_t id, ermite_Kind kind, bool has_input,
			       uint64_t tree_max)
{
	struct pipes pipes = lab_start(l, id, kind, has_input, tree_max);
	lab_say(l, (struct said){.tag = ermite_ToHost_started_tag, .id = id, .n = 100 + id});
	lab_told(l, MESSAGE_STARTED, id, 100 + id, 0);
	return pipes;
}

void lab_expect_pipe(int fd, const char *text)
{
	char got[1024];
	size_t have = 0;
	for (;;) {
		await(fd, POLLIN);
		ssize_t n = read(fd, got + have, sizeof(got) - 1 - have);
		assert_true(n >= 0);
		if (n == 0)
			break;
		have += (size_t)n;
	}
	got[have] = '\0';
	assert_string_equal(got, text);
	close(fd);
}
