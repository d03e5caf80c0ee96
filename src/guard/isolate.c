#include "guard/isolate.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An empty file system becomes the root and the old root goes. /proc serves as the place to mount it, since it is
 * there on every host; nothing of it is visible afterwards. */
static int empty_root(const struct isolate_plan *, struct err *e)
{
	const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_sys(e, "make mounts private");
	if (mount("empty", "/proc", "tmpfs", flags, "size=4k,nr_inodes=1,mode=0") < 0)
		return err_sys(e, "mount");
	if (chdir("/proc") < 0)
		return err_sys(e, "chdir");
	/* The new root is mounted over the old one at the same place, so the old one is on top afterwards. */
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return err_sys(e, "pivot_root");
	if (umount2(".", MNT_DETACH) < 0)
		return err_sys(e, "unmount the old root");
	if (chdir("/") < 0)
		return err_sys(e, "chdir");
	return 0;
}

/* Limits are lowered, never raised: raising needs a capability that root may not have. */
static int lower_limit(__rlimit_resource_t resource, rlim_t value, struct err *e)
{
	struct rlimit limit = {0};
	if (getrlimit(resource, &limit) < 0)
		return err_sys(e, "read limit %d", (int)resource);
	if (limit.rlim_max < value)
		value = limit.rlim_max;
	limit = (struct rlimit){.rlim_cur = value, .rlim_max = value};
	if (setrlimit(resource, &limit) < 0)
		return err_sys(e, "set limit %d", (int)resource);
	return 0;
}

static int lower_limits(const struct isolate_plan *plan, struct err *e)
{
	const struct {
		__rlimit_resource_t resource;
		rlim_t value;
	} limits[] = {
		{RLIMIT_NPROC, 0},
		{RLIMIT_FSIZE, 0},
		{RLIMIT_CORE, 0},
		{RLIMIT_MEMLOCK, 0},
		{RLIMIT_MSGQUEUE, 0},
		{RLIMIT_NOFILE, plan->files},
		{RLIMIT_AS, plan->memory_bytes},
	};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		int r = lower_limit(limits[i].resource, limits[i].value, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The bounding set must be emptied while CAP_SETPCAP is still there. EINVAL tells the first number that is no
 * capability of this kernel. */
static int empty_bounding_set(const struct isolate_plan *, struct err *e)
{
	for (unsigned long capability = 0;; capability++) {
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0)
			continue;
		return errno == EINVAL && capability > CAP_SETPCAP ? 0
								   : err_sys(e, "capability %lu", capability);
	}
}

static int drop_identity(const struct isolate_plan *plan, struct err *e)
{
	/* The kernel forgets this one when the uid changes. */
	int end_signal = 0;
	if (prctl(PR_GET_PDEATHSIG, &end_signal) < 0)
		return err_sys(e, "read the parent-death signal");
	if (setgroups(0, NULL) < 0)
		return err_sys(e, "setgroups");
	if (setresgid(plan->uid, plan->uid, plan->uid) < 0)
		return err_sys(e, "setresgid %u", plan->uid);
	if (setresuid(plan->uid, plan->uid, plan->uid) < 0)
		return err_sys(e, "setresuid %u", plan->uid);
	if (prctl(PR_SET_PDEATHSIG, end_signal) < 0)
		return err_sys(e, "set the parent-death signal");
	return 0;
}

/* The change of uid has emptied the effective and the permitted set; the inheritable one it leaves. */
static int empty_capabilities(const struct isolate_plan *, struct err *e)
{
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		return err_sys(e, "ambient set");
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
	if (syscall(SYS_capset, &head, none) < 0)
		return err_sys(e, "capset");
	return 0;
}

static int no_way_back(const struct isolate_plan *, struct err *e)
{
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return err_sys(e, "not dumpable");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_sys(e, "no_new_privs");
	return 0;
}

static bool maps_memory(int number)
{
	return number == SCMP_SYS(mmap) || number == SCMP_SYS(mprotect);
}

static int fill_filter(scmp_filter_ctx filter, const struct isolate_plan *plan, struct err *e)
{
	/* A call by another architecture's numbers is a call that is not listed. */
	int r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	for (size_t i = 0; r >= 0 && i < plan->n_syscalls; i++) {
		int number = plan->syscalls[i];
		if (maps_memory(number))
			r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 1,
					     SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
		else
			r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
	}
	for (size_t i = 0; r >= 0 && i < plan->n_rules; i++) {
		const struct isolate_rule *rule = &plan->rules[i];
		struct scmp_arg_cmp when = {.arg = rule->argument,
					    .op = SCMP_CMP_MASKED_EQ,
					    .datum_a = rule->mask,
					    .datum_b = rule->value};
		r = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, rule->number, 1, &when);
	}
	if (r >= 0)
		r = seccomp_load(filter);
	return r < 0 ? err_code(e, r, "system call filter") : 0;
}

static int filter_calls(const struct isolate_plan *plan, struct err *e)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
	if (!filter)
		return err_set(e, -ENOMEM, "out of memory");
	int r = fill_filter(filter, plan, e);
	seccomp_release(filter);
	return r;
}

int isolate_enter(const struct isolate_plan *plan, struct err *e)
{
	/* In an order in which each step still has the privilege that it needs. */
	static const struct {
		const char *name;
		int (*take)(const struct isolate_plan *plan, struct err *e);
	} steps[] = {
		{"empty root", empty_root},
		{"limits", lower_limits},
		{"bounding set", empty_bounding_set},
		{"identity", drop_identity},
		{"capabilities", empty_capabilities},
		{"no way back", no_way_back},
		{"filter", filter_calls},
	};
	if (plan->uid == 0)
		return err_set(e, -EINVAL, "isolate: uid 0 is no isolation");
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		int r = steps[i].take(plan, e);
		if (r < 0)
			return err_ctx(e, r, "isolate: %s", steps[i].name);
	}
	return 0;
}
