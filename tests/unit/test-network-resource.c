/* Needs root. The place of a sandbox in the gateway: made, unmade and swept, also after keepers that died at some point
 * of either. The state directory lies in the test's own /run. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/gateway.h"
#include "net/members.h"
#include "resource/resource.h"

#define STATE_DIR "/run/state"

enum { NOTES_MAX = 8192, CRASHES = 14 };

static const char *const names[] = {"network", NULL};
static struct host host = {-1, -1, -1};
static struct sandbox_spec spec;
static int beyond = -1;
static int store = -1;

static int open_store(const char *state_dir)
{
	struct err e = ERR_INIT;
	int fd = -1;
	lab_expect(record_open_store(state_dir, &fd, &e), 0, &e);
	return fd;
}

static int setup(void **)
{
	struct err e = ERR_INIT;
	lab_enter();
	beyond = lab_way_out();
	lab_expect(host_open(&host, &e), 0, &e);
	store = open_store(STATE_DIR);
	config_defaults(&spec.config);
	memcpy(spec.config.state_dir, STATE_DIR, sizeof(STATE_DIR));
	spec.config.isolation = ISOLATION_SYSTEM;
	spec.config.capacity = 8;
	return 0;
}

static int teardown(void **)
{
	host_close(&host);
	fd_close(&beyond);
	fd_close(&store);
	return 0;
}

static int begin(struct sandbox *s, int store_fd, struct buf *notes)
{
	*s = (struct sandbox){
		.spec = &spec, .store_fd = store_fd, .host = &host, .network.netns = -1, .notes = notes};
	int r = record_create(store_fd, &spec, names, &s->record, NULL);
	if (r < 0)
		return r;
	s->id = record_info(s->record)->id;
	s->slot = record_info(s->record)->slot;
	return 0;
}

static void make(struct sandbox *s, struct buf *notes)
{
	struct err e = ERR_INIT;
	assert_int_equal(begin(s, store, notes), 0);
	lab_expect(resource_network.make(s, &e), 0, &e);
}

static void unmake(struct sandbox *s)
{
	struct err e = ERR_INIT;
	lab_expect(resource_network.unmake(s, &e), 0, &e);
}

static void end(struct sandbox *s)
{
	struct err e = ERR_INIT;
	fd_close(&s->network.netns);
	lab_expect(record_remove(&s->record, &e), 0, &e);
}

/* The same parts, each with its end, in any order: sets have none. */
static void assert_parts(const char *text, const char *wanted, char part_end)
{
	char part[64];
	if (strlen(text) != strlen(wanted))
		fail_msg("\"%s\", not \"%s\"", text, wanted);
	for (const char *p = wanted; *p; p = strchr(p, part_end) + 1) {
		(void)snprintf(part, sizeof(part), "%.*s", (int)(strchr(p, part_end) + 1 - p), p);
		if (!strstr(text, part))
			fail_msg("\"%s\", not \"%s\"", text, wanted);
	}
}

static int note_link(void *data, const char *link)
{
	buf_fmt(data, "%s ", link);
	return 0;
}

static void assert_members(const char *wanted)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf links = BUF_INIT(1024);
	scoped_fd int netns = -1;
	assert_int_equal(gateway_look(&host, store, &netns), GATEWAY_OURS);
	lab_expect(members_each(netns, note_link, &links, &e), 0, &e);
	assert_parts(buf_text(&links), wanted, ' ');
}

static void assert_nothing(void)
{
	lab_run(-1, "set -e; ! ip link show erup; [ \"$(ls /run/ermite-runner)\" = gateway.lock ];"
		    "[ -z \"$(nft list tables)\" ]; ! grep /run/ermite-runner /proc/self/mountinfo;"
		    "! ip route | grep 10.200.");
}

static void tell(void *data, const struct leftover *l)
{
	buf_fmt(data, "%s %s%s%s;", l->kind, l->name, l->reason ? ": " : "", l->reason ? l->reason : "");
}

/* A sweep of this kind alone, and what it tells. */
static void sweep(int store_fd, bool dry_run, const char *wanted)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf told = BUF_INIT(4096);
	struct reap reap = {
		.store_fd = store_fd, .host = &host, .dry_run = dry_run, .tell = tell, .data = &told};
	lab_expect(resource_network.sweep(&reap, &e), 0, &e);
	assert_parts(buf_text(&told), wanted, ';');
}

static void test_make_and_unmake(void **)
{
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	struct sandbox first;
	struct sandbox second;
	struct stat one;
	struct stat two;
	int before = fds_open();
	lab_run(-1, "ip link set out0 mtu 1400");
	make(&first, &notes);
	assert_string_equal(buf_text(&notes), "net.ipv4.ip_forward was turned on; it stays on\n");
	assert_int_equal(first.network.gateway, 0x0ac80001);
	assert_int_equal(first.network.guest, 0x0ac80002);
	assert_int_equal(first.network.mtu, 1400);
	assert_string_equal(first.network.link, "erveth0");
	assert_members("erveth0 ");
	make(&second, NULL);
	assert_string_equal(second.network.link, "erveth1");
	assert_int_equal(fstat(first.network.netns, &one), 0);
	assert_int_equal(fstat(second.network.netns, &two), 0);
	assert_int_equal(one.st_ino, two.st_ino);
	for (int i = 0; i < 2; i++) {
		unmake(&first);
		assert_members("erveth1 ");
	}
	end(&first);
	for (int i = 0; i < 2; i++) {
		unmake(&second);
		assert_nothing();
	}
	end(&second);
	assert_int_equal(fds_open(), before);
}

/* Without a network, or on no host, nothing is made, nor looked for. */
static void test_none(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	spec.config.network_mode = NETWORK_NONE;
	make(&s, NULL);
	assert_int_equal(s.network.netns, -1);
	unmake(&s);
	s.host = NULL;
	unmake(&s);
	end(&s);
	struct reap reap = {.store_fd = store, .tell = tell};
	lab_expect(resource_network.sweep(&reap, &e), 0, &e);
	lab_run(-1, "[ -z \"$(nft list tables)\" ]; ! ip link show erup");
}

static void test_failures(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	struct sandbox other;
	/* What is not accepted leaves a gateway without members, which goes. */
	(void)snprintf(spec.config.network_allow, sizeof(spec.config.network_allow), "nonsense");
	assert_int_equal(begin(&s, store, NULL), 0);
	assert_int_equal(resource_network.make(&s, &e), -EINVAL);
	assert_int_equal(s.network.netns, -1);
	unmake(&s);
	end(&s);
	assert_nothing();
	/* Another network while there are sandboxes of one: it is refused, and those stay. */
	spec.config.network_allow[0] = '\0';
	make(&s, NULL);
	spec.config.network_address = 0x0ad20000;
	assert_int_equal(begin(&other, store, NULL), 0);
	assert_int_equal(resource_network.make(&other, &e), -EBUSY);
	unmake(&other);
	assert_members("erveth0 ");
	end(&other);
	unmake(&s);
	end(&s);
	assert_nothing();
}

static void test_sweep(void **)
{
	struct sandbox kept;
	struct sandbox lost;
	struct sandbox last;
	scoped_fd int other = open_store("/run/other");
	sweep(store, false, "");
	make(&kept, NULL);
	make(&lost, NULL);
	make(&last, NULL);
	sweep(store, false, "");
	end(&lost);
	sweep(store, true, "member erveth1;");
	assert_members("erveth0 erveth1 erveth2 ");
	/* Sandboxes of another directory are none of ours. */
	sweep(other, false, "");
	assert_members("erveth0 erveth1 erveth2 ");
	sweep(store, false, "member erveth1;");
	assert_members("erveth0 erveth2 ");
	end(&kept);
	end(&last);
	sweep(store, false, "member erveth0;member erveth2;");
	assert_nothing();
	sweep(store, false, "");
}

/* A gateway that nobody is in, and one that is half there. */
static void test_sweep_gateway(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	make(&s, NULL);
	end(&s);
	scoped_fd int netns = -1;
	assert_int_equal(gateway_look(&host, store, &netns), GATEWAY_OURS);
	lab_expect(members_remove(netns, "erveth0", &e), 0, &e);
	fd_close(&netns);
	sweep(store, true, "gateway " HOST_RUN_DIR "/gateway;");
	assert_members("");
	sweep(store, false, "gateway " HOST_RUN_DIR "/gateway;");
	assert_nothing();
	make(&s, NULL);
	end(&s);
	assert_int_equal(unlinkat(host.run, "gateway.conf", 0), 0);
	sweep(store, false, "gateway " HOST_RUN_DIR "/gateway;");
	assert_nothing();
}

static int keeper(void)
{
	struct sandbox s;
	int fd = -1;
	return record_open_store(STATE_DIR, &fd, NULL) < 0 || begin(&s, fd, NULL) < 0 ||
	       resource_network.make(&s, NULL) < 0 || resource_network.unmake(&s, NULL) < 0;
}

/* Runs a keeper that is killed after so many system calls. Returns how many there were: fewer when it came to the end.
 */
static unsigned run_keeper(unsigned calls)
{
	int status = 0;
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		(void)raise(SIGSTOP);
		_exit(keeper());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (unsigned i = 0; i < calls; i++) {
		/* A system call stops twice: before and after it. */
		for (int stop = 0; stop < 2; stop++) {
			assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
			assert_int_equal(waitpid(pid, &status, 0), pid);
			if (WIFEXITED(status)) {
				assert_int_equal(WEXITSTATUS(status), 0);
				return i;
			}
		}
	}
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return calls;
}

static void reap_all(void)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf told = BUF_INIT(4096);
	scoped_fd int own = open_store(STATE_DIR);
	struct reap reap = {.store_fd = own, .host = &host, .tell = tell, .data = &told};
	lab_expect(resources_reap(&reap, &e), 0, &e);
	if (reap.n_left > 0)
		fail_msg("%s", buf_text(&told));
	lab_run(-1, "[ -z \"$(ls " STATE_DIR "/sandboxes)\" ]");
}

static void test_crashes(void **)
{
	unsigned calls = run_keeper(UINT32_MAX);
	assert_nothing();
	reap_all();
	for (unsigned i = 0; i < CRASHES; i++) {
		(void)run_keeper(calls * (i + 1) / (CRASHES + 1));
		reap_all();
		/* Of one that had not begun there may be no lock. */
		lab_run(-1, "touch /run/ermite-runner/gateway.lock");
		assert_nothing();
	}
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_make_and_unmake, setup, teardown),
		cmocka_unit_test_setup_teardown(test_none, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sweep_gateway, setup, teardown),
		cmocka_unit_test_setup_teardown(test_crashes, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
