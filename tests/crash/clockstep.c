/*
 * A library that is loaded into every program of the host under test (/etc/ld.so.preload in a mount namespace of the
 * test) and shifts its wall clock by as many seconds as stand, as a 64-bit number, in /etc/ermite-clockstep: a clock
 * that is set while the programs run, without setting the machine's. Where the file is missing nothing is shifted.
 *
 * A timer on the wall clock, which the kernel would move with the clock, ends the program.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME "/etc/ermite-clockstep"

typedef int get_time_fn(clockid_t, struct timespec *);
typedef int make_timer_fn(clockid_t, int);
typedef int make_posix_timer_fn(clockid_t, struct sigevent *restrict, timer_t *restrict);
typedef int sleep_fn(clockid_t, int, const struct timespec *, struct timespec *);

static const volatile int64_t *shift_s;
static get_time_fn *get_time;
static make_timer_fn *make_timer;
static make_posix_timer_fn *make_posix_timer;
static sleep_fn *sleep_on;

/* The file is mapped before the program gives up its file system, and the functions are found before its filter. */
[[gnu::constructor]] static void attach(void)
{
	get_time = (get_time_fn *)(uintptr_t)dlsym(RTLD_NEXT, "clock_gettime");
	make_timer = (make_timer_fn *)(uintptr_t)dlsym(RTLD_NEXT, "timerfd_create");
	make_posix_timer = (make_posix_timer_fn *)(uintptr_t)dlsym(RTLD_NEXT, "timer_create");
	sleep_on = (sleep_fn *)(uintptr_t)dlsym(RTLD_NEXT, "clock_nanosleep");
	int fd = open(FILE_NAME, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	void *p = mmap(NULL, sizeof(*shift_s), PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		shift_s = p;
	(void)close(fd);
}

static int is_wall(clockid_t id)
{
	return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI ||
	       id == CLOCK_REALTIME_ALARM;
}

static void refuse_wall(clockid_t id)
{
	if (is_wall(id))
		abort();
}

/* Sanitizers look at the clock before anything of this library has run. */
int clock_gettime(clockid_t id, struct timespec *t)
{
	int r = get_time ? get_time(id, t) : (int)syscall(SYS_clock_gettime, id, t);
	if (r == 0 && is_wall(id) && shift_s)
		t->tv_sec += *shift_s;
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict)
{
	struct timespec now = {0};
	int r = clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return r;
}

time_t time(time_t *ret)
{
	struct timespec now = {0};
	(void)clock_gettime(CLOCK_REALTIME, &now);
	if (ret)
		*ret = now.tv_sec;
	return now.tv_sec;
}

int timerfd_create(clockid_t id, int flags)
{
	refuse_wall(id);
	return make_timer(id, flags);
}

int timer_create(clockid_t id, struct sigevent *restrict event, timer_t *restrict ret)
{
	refuse_wall(id);
	return make_posix_timer(id, event, ret);
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
	if (flags & TIMER_ABSTIME)
		refuse_wall(id);
	return sleep_on(id, flags, t, left);
}
