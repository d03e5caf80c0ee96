#include "guest/input.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/scope.h"
#include "wire/frame.h"

/* Twice what can wait, so that bytes are moved to the front only after as many have gone. */
#define KEPT_SIZE (2u * FRAME_WINDOW)

/* What a terminal takes for the end of input. */
static const uint8_t end_of_file = 4;

void input_init(struct input *in, struct loop *loop, int fd, bool terminal, input_passed_fn *passed,
		void *data)
{
	*in = (struct input){.loop = loop, .fd = fd, .terminal = terminal, .passed = passed, .data = data};
}

static void input_close(struct input *in)
{
	loop_remove(&in->source);
	fd_close(&in->fd);
}

void input_done(struct input *in)
{
	input_close(in);
	if (in->kept)
		(void)munmap(in->kept, KEPT_SIZE);
	in->kept = NULL;
	in->n = 0;
}

/* Writes what goes in now. Returns the bytes; what can never go in counts as gone. */
static size_t input_write(struct input *in, const uint8_t *p, size_t n)
{
	ssize_t done = -1;
	if (in->fd >= 0)
		do
			done = write(in->fd, p, n);
		while (done < 0 && errno == EINTR);
	if (done < 0 && in->fd >= 0 && errno == EAGAIN)
		return 0;
	if (done < 0) {
		input_close(in);
		return n;
	}
	return (size_t)done;
}

/* Closes when the host has sent all and all has gone in. */
static void input_end_check(struct input *in)
{
	if (!in->ended || in->n > 0 || in->fd < 0)
		return;
	if (in->terminal)
		(void)input_write(in, &end_of_file, 1);
	input_close(in);
}

static int on_writable(void *data, int, uint32_t, struct err *e)
{
	struct input *in = data;
	size_t done = input_write(in, in->kept + in->at, in->n);
	in->at += done;
	in->n -= done;
	if (in->n == 0)
		loop_remove(&in->source);
	input_end_check(in);
	return done > 0 ? in->passed(in->data, (uint32_t)done, e) : 0;
}

static int input_keep(struct input *in, const uint8_t *p, size_t n, struct err *e)
{
	if (n > FRAME_WINDOW - in->n)
		return err_set(e, -EPROTO, "more standard input than there was credit for");
	if (!in->kept) {
		void *memory =
			mmap(NULL, KEPT_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory == MAP_FAILED)
			return err_sys(e, "keep standard input");
		in->kept = memory;
	}
	if (in->at + in->n + n > KEPT_SIZE || in->n == 0) {
		memmove(in->kept, in->kept + in->at, in->n);
		in->at = 0;
	}
	memcpy(in->kept + in->at + in->n, p, n);
	in->n += n;
	if (in->source)
		return 0;
	return loop_add_fd(in->loop, in->fd, EPOLLOUT, on_writable, in, &in->source, e);
}

int input_add(struct input *in, const uint8_t *p, size_t n, struct err *e)
{
	size_t done = in->n == 0 ? input_write(in, p, n) : 0;
	int r = done < n ? input_keep(in, p + done, n - done, e) : 0;
	if (r < 0 || done == 0)
		return r;
	return in->passed(in->data, (uint32_t)done, e);
}

void input_end(struct input *in)
{
	in->ended = true;
	input_end_check(in);
}
