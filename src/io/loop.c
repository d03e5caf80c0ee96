#include "io/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/scope.h"

#define EVENTS_AT_ONCE 32

/* One watched descriptor. Timers and signals own theirs, in `own`; the others are borrowed. */
struct source {
	struct loop *loop;
	struct source *next, **link; /* in the list of the living or of the dead */
	int fd;
	int own;
	uint32_t events;
	bool dead;
	/* Reads what the descriptor tells and calls the one of the three that is set. */
	int (*dispatch)(struct source *s, uint32_t events, struct err *e);
	loop_fd_fn *on_fd;
	loop_timer_fn *on_timer;
	loop_signal_fn *on_signal;
	void *data;
};

/* A source that is removed while callbacks run may still stand in the batch that epoll gave: it is only marked dead
 * then, and freed when the batch is through. */
struct loop {
	int epoll;
	bool stopped;
	bool dispatching;
	struct source *living;
	struct source *dead;
};

struct loop *loop_new(void)
{
	struct loop *l = calloc(1, sizeof(*l));
	if (!l)
		return NULL;
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0) {
		int saved = errno;
		free(l);
		errno = saved;
		return NULL;
	}
	return l;
}

static void link_into(struct source **list, struct source *s)
{
	s->next = *list;
	s->link = list;
	if (s->next)
		s->next->link = &s->next;
	*list = s;
}

static void unlink_source(struct source *s)
{
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
}

static void free_all(struct source **list)
{
	while (*list) {
		struct source *s = *list;
		unlink_source(s);
		fd_close(&s->own);
		free(s);
	}
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	assert(!l->dispatching);
	free_all(&l->living);
	free_all(&l->dead);
	fd_close(&l->epoll);
	free(l);
}

/* Adds a copy of *model to the loop; on failure the model's own descriptor stays with the caller. */
static int add(struct loop *l, const struct source *model, struct source **ret, struct err *e)
{
	scoped_free struct source *s = malloc(sizeof(*s));
	if (!s)
		return err_set(e, -ENOMEM, "watch descriptor %d: out of memory", model->fd);
	*s = *model;
	s->loop = l;
	struct epoll_event event = {.events = s->events, .data.ptr = s};
	if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &event) < 0)
		return err_sys(e, "watch descriptor %d", s->fd);
	link_into(&l->living, s);
	*ret = ptr_steal(&s);
	return 0;
}

static int dispatch_fd(struct source *s, uint32_t events, struct err *e)
{
	return s->on_fd(s->data, s->fd, events, e);
}

/* One parameter more than we like: a struct for them would have to be written at every call.
 * NOLINTNEXTLINE(readability-function-size) */
int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn *fn, void *data, struct source **ret,
		struct err *e)
{
	struct source model = {
		.fd = fd, .own = -1, .events = events, .dispatch = dispatch_fd, .on_fd = fn, .data = data};
	return add(l, &model, ret, e);
}

int loop_set_events(struct source *s, uint32_t events, struct err *e)
{
	if (events == s->events)
		return 0;
	struct epoll_event event = {.events = events, .data.ptr = s};
	if (epoll_ctl(s->loop->epoll, EPOLL_CTL_MOD, s->fd, &event) < 0)
		return err_sys(e, "change what is watched of descriptor %d", s->fd);
	s->events = events;
	return 0;
}

static int dispatch_timer(struct source *s, uint32_t, struct err *e)
{
	uint64_t count = 0;
	ssize_t n = read(s->fd, &count, sizeof(count));
	/* Armed anew by a callback earlier in this batch: not due yet. */
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0)
		return err_sys(e, "read a timer");
	return s->on_timer(s->data, e);
}

int loop_add_timer(struct loop *l, loop_timer_fn *fn, void *data, struct source **ret, struct err *e)
{
	scoped_fd int fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "make a timer");
	struct source model = {.fd = fd,
			       .own = fd,
			       .events = EPOLLIN,
			       .dispatch = dispatch_timer,
			       .on_timer = fn,
			       .data = data};
	int r = add(l, &model, ret, e);
	if (r < 0)
		return r;
	(void)fd_steal(&fd);
	return 0;
}

int loop_arm(struct source *timer, uint64_t ms, struct err *e)
{
	struct itimerspec spec = {
		.it_value = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000}};
	if (timerfd_settime(timer->fd, 0, &spec, NULL) < 0)
		return err_sys(e, "arm a timer");
	return 0;
}

static int dispatch_signals(struct source *s, uint32_t, struct err *e)
{
	struct signalfd_siginfo info = {0};
	ssize_t n = read(s->fd, &info, sizeof(info));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0)
		return err_sys(e, "read signals");
	/* One at a time: the callback may remove the source, and epoll tells again while more are there. */
	return s->on_signal(s->data, (int)info.ssi_signo, e);
}

int loop_add_signals(struct loop *l, const sigset_t *set, loop_signal_fn *fn, void *data, struct source **ret,
		     struct err *e)
{
	if (sigprocmask(SIG_BLOCK, set, NULL) < 0)
		return err_sys(e, "block signals");
	scoped_fd int fd = signalfd(-1, set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "make a signal descriptor");
	struct source model = {.fd = fd,
			       .own = fd,
			       .events = EPOLLIN,
			       .dispatch = dispatch_signals,
			       .on_signal = fn,
			       .data = data};
	int r = add(l, &model, ret, e);
	if (r < 0)
		return r;
	(void)fd_steal(&fd);
	return 0;
}

void loop_remove(struct source **s)
{
	struct source *gone = *s;
	if (!gone)
		return;
	*s = NULL;
	struct loop *l = gone->loop;
	/* Fails only for a descriptor that was closed too early, which is then out of the set anyway. */
	(void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, gone->fd, NULL);
	fd_close(&gone->own);
	gone->dead = true;
	unlink_source(gone);
	link_into(&l->dead, gone);
	if (!l->dispatching)
		free_all(&l->dead);
}

static int dispatch_batch(struct loop *l, const struct epoll_event *events, int n, struct err *e)
{
	for (int i = 0; i < n && !l->stopped; i++) {
		struct source *s = events[i].data.ptr;
		if (s->dead)
			continue;
		int r = s->dispatch(s, events[i].events, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int loop_run(struct loop *l, struct err *e)
{
	assert(!l->dispatching);
	int r = 0;
	while (r >= 0 && !l->stopped) {
		struct epoll_event events[EVENTS_AT_ONCE];
		int n = epoll_wait(l->epoll, events, EVENTS_AT_ONCE, -1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, "wait for events");
		l->dispatching = true;
		r = dispatch_batch(l, events, n, e);
		l->dispatching = false;
		free_all(&l->dead);
	}
	l->stopped = false;
	return r < 0 ? r : 0;
}

void loop_stop(struct loop *l)
{
	l->stopped = true;
}
