#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

/* Numbers that this C library's headers may not have. */
enum {
	CALL_QUOTACTL_FD = 443,
	CALL_MEMFD_SECRET = 447,
	CALL_STATMOUNT = 457,
	CALL_LISTMOUNT = 458,
	CALL_X32 = 0x40000000,
	GETPID_32 = 20,
	SOCKETCALL_32 = 102,
	KEYCTL_32 = 288,
	IO_URING_SETUP = 425,
};

#define BAD      (-1L)
#define BOOT_BAD 0x7fffffffL

/* Arguments are such that a call which is let through changes nothing. */
static const struct call {
	const char *name;
	long number;
	long arguments[5];
} calls[] = {
	{"bpf", SYS_bpf, {0, 0, 0}},
	{"io_uring_setup", IO_URING_SETUP, {1}},
	{"io_uring_enter", IO_URING_SETUP + 1, {BAD}},
	{"io_uring_register", IO_URING_SETUP + 2, {BAD}},
	{"userfaultfd", SYS_userfaultfd, {BAD}},
	{"perf_event_open", SYS_perf_event_open, {0}},
	{"keyctl", SYS_keyctl, {0, -3}},
	{"add_key", SYS_add_key, {0}},
	{"request_key", SYS_request_key, {0}},
	{"open_by_handle_at", SYS_open_by_handle_at, {BAD}},
	{"name_to_handle_at", SYS_name_to_handle_at, {BAD}},
	{"init_module", SYS_init_module, {0}},
	{"finit_module", SYS_finit_module, {BAD}},
	{"delete_module", SYS_delete_module, {0}},
	{"kexec_load", SYS_kexec_load, {0, 0, 0, BAD}},
	{"kexec_file_load", SYS_kexec_file_load, {BAD, BAD}},
	{"swapon", SYS_swapon, {0}},
	{"swapoff", SYS_swapoff, {0}},
	{"acct", SYS_acct, {1}},
	{"quotactl", SYS_quotactl, {BAD}},
	{"quotactl_fd", CALL_QUOTACTL_FD, {BAD, BAD}},
	{"settimeofday", SYS_settimeofday, {1}},
	{"clock_settime", SYS_clock_settime, {0, 1}},
	{"syslog", SYS_syslog, {10}},
	{"iopl", SYS_iopl, {3}},
	{"ioperm", SYS_ioperm, {0x80, 1, 1}},
	{"uselib", SYS_uselib, {0}},
	{"ustat", SYS_ustat, {0}},
	{"sysfs", SYS_sysfs, {3}},
	{"_sysctl", SYS__sysctl, {0}},
	{"create_module", SYS_create_module, {0}},
	{"nfsservctl", SYS_nfsservctl, {0}},
	{"lookup_dcookie", SYS_lookup_dcookie, {0}},
	{"move_pages", SYS_move_pages, {0}},
	{"vhangup", SYS_vhangup, {0}},
	{"reboot with a wrong magic number", SYS_reboot, {BOOT_BAD}},
	{"sethostname", SYS_sethostname, {0, BAD}},
	{"setdomainname", SYS_setdomainname, {0, BAD}},
	{"mount", SYS_mount, {1, 1, 1}},
	{"umount2", SYS_umount2, {1, BAD}},
	{"pivot_root", SYS_pivot_root, {1, 1}},
	{"chroot", SYS_chroot, {1}},
	{"setns", SYS_setns, {BAD}},
	{"fsopen", SYS_fsopen, {1, BAD}},
	{"open_tree", SYS_open_tree, {BAD, 1, 0x10001}},
	{"statmount", CALL_STATMOUNT, {0}},
	{"listmount", CALL_LISTMOUNT, {0}},
	{"memfd_secret", CALL_MEMFD_SECRET, {BAD}},
	{"fanotify_init with unlimited marks", SYS_fanotify_init, {0x20}},
	{"mlockall of the future", SYS_mlockall, {2}},
	{"ioprio_set to real time", SYS_ioprio_set, {1, 0, 1 << 13}},
	{"pidfd_getfd", SYS_pidfd_getfd, {BAD}},
	{"process_vm_writev", SYS_process_vm_writev, {BAD}},
	{"personality", SYS_personality, {0xffffffff}},
	{"modify_ldt", SYS_modify_ldt, {0}},
};

static const struct {
	int number;
	const char *name;
} families[] = {
	{1, "UNIX"},   {2, "INET"},    {3, "AX25"},        {4, "IPX"},      {5, "APPLETALK"},
	{6, "NETROM"}, {7, "BRIDGE"},  {8, "ATMPVC"},      {9, "X25"},      {10, "INET6"},
	{11, "ROSE"},  {12, "DECnet"}, {15, "KEY"},        {16, "NETLINK"}, {17, "PACKET"},
	{18, "ASH"},   {19, "ECONET"}, {20, "ATMSVC"},     {21, "RDS"},     {22, "SNA"},
	{23, "IRDA"},  {24, "PPPOX"},  {26, "LLC"},        {27, "IB"},      {28, "MPLS"},
	{29, "CAN"},   {30, "TIPC"},   {31, "BLUETOOTH"},  {32, "IUCV"},    {33, "RXRPC"},
	{34, "ISDN"},  {35, "PHONET"}, {36, "IEEE802154"}, {37, "CAIF"},    {38, "ALG"},
	{39, "NFC"},   {40, "VSOCK"},  {41, "KCM"},        {42, "QIPCRTR"}, {43, "SMC"},
	{44, "XDP"},   {45, "MCTP"},
};

static const struct {
	int number;
	const char *name;
} netlinks[] = {
	{NETLINK_ROUTE, "route"},
	{NETLINK_SOCK_DIAG, "sock_diag"},
	{NETLINK_XFRM, "xfrm"},
	{NETLINK_AUDIT, "audit"},
	{NETLINK_FIB_LOOKUP, "fib_lookup"},
	{NETLINK_CONNECTOR, "connector"},
	{NETLINK_NETFILTER, "netfilter"},
	{NETLINK_KOBJECT_UEVENT, "kobject_uevent"},
	{NETLINK_GENERIC, "generic"},
	{NETLINK_SCSITRANSPORT, "scsi"},
	{NETLINK_ISCSI, "iscsi"},
	{NETLINK_RDMA, "rdma"},
	{NETLINK_CRYPTO, "crypto"},
	{NETLINK_SELINUX, "selinux"},
};

static const struct {
	int flag;
	const char *name;
} namespaces[] = {
	{CLONE_NEWUSER, "user"},     {CLONE_NEWNS, "mount"},  {CLONE_NEWPID, "pid"},
	{CLONE_NEWNET, "network"},   {CLONE_NEWIPC, "ipc"},   {CLONE_NEWUTS, "uts"},
	{CLONE_NEWCGROUP, "cgroup"}, {CLONE_NEWTIME, "time"},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static long try_call(const void *argument)
{
	const struct call *c = argument;
	const long *a = c->arguments;
	return refusal_of(syscall(c->number, a[0], a[1], a[2], a[3], a[4]));
}

static void probe_sockets(void)
{
	static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
	char what[64];
	for (size_t i = 0; i < COUNT(families); i++) {
		long r = -EAFNOSUPPORT;
		for (size_t t = 0; t < COUNT(types) && r < 0; t++) {
			int fd = socket(families[i].number, types[t] | SOCK_CLOEXEC, 0);
			r = errno_of(fd);
			if (fd >= 0)
				(void)close(fd);
		}
		(void)snprintf(what, sizeof(what), "AF_%s", families[i].name);
		report("socket", what, r);
	}
	for (size_t i = 0; i < COUNT(netlinks); i++) {
		int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, netlinks[i].number);
		report("netlink", netlinks[i].name, errno_of(fd));
		if (fd >= 0)
			(void)close(fd);
	}
	int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, 1);
	int size = 1 << 30;
	report("socket", "raw ICMP", errno_of(fd));
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	report("socket", "SO_RCVBUFFORCE",
	       errno_of(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size))));
}

static long try_namespace(const void *argument)
{
	return errno_of(unshare(*(const int *)argument));
}

#ifdef __x86_64__
/* The old door of 32-bit programs, whose calls are numbered differently. */
static long call_32(long number)
{
	long r = number;
	__asm__ volatile("int $0x80" : "+a"(r) : "b"(0), "c"(0), "d"(0) : "memory", "cc");
	return r;
}
#else
static long call_32(long)
{
	return -ENOSYS;
}
#endif

static long try_32(const void *argument)
{
	long r = call_32(*(const long *)argument);
	return r == -ENOSYS || r == -EPERM ? r : 0;
}

static long try_x32(const void *argument)
{
	return refusal_of(syscall(CALL_X32 | *(const long *)argument, 0, 0, 0));
}

static void probe_other_abis(void)
{
	static const long numbers_32[] = {GETPID_32, SOCKETCALL_32, KEYCTL_32, IO_URING_SETUP};
	static const long numbers_x32[] = {SYS_getpid, SYS_add_key, SYS_bpf, IO_URING_SETUP};
	char what[48];
	for (size_t i = 0; i < COUNT(numbers_32); i++) {
		(void)snprintf(what, sizeof(what), "number %ld", numbers_32[i]);
		report("32-bit call", what, in_child(try_32, &numbers_32[i]));
	}
	for (size_t i = 0; i < COUNT(numbers_x32); i++) {
		(void)snprintf(what, sizeof(what), "number %ld", numbers_x32[i]);
		report("x32 call", what, in_child(try_x32, &numbers_x32[i]));
	}
}

static long try_clock(const void *)
{
	struct timex t = {.modes = ADJ_FREQUENCY};
	return errno_of(adjtimex(&t));
}

static long try_real_time(const void *)
{
	const struct sched_param p = {.sched_priority = 1};
	return errno_of(sched_setscheduler(0, SCHED_FIFO, &p));
}

static long try_nice(const void *)
{
	return errno_of(setpriority(PRIO_PROCESS, 0, -20));
}

static long try_rlimit(const void *)
{
	struct rlimit now;
	if (getrlimit(RLIMIT_NOFILE, &now) < 0)
		return -errno;
	now.rlim_max++;
	return errno_of(setrlimit(RLIMIT_NOFILE, &now));
}

static long try_oom_score(const void *)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -errno : errno_of(write(fd, "-1000", 5));
}

static long try_ptrace(const void *argument)
{
	pid_t pid = *(const pid_t *)argument;
	if (ptrace(PTRACE_SEIZE, pid, 0, 0) < 0)
		return -errno;
	return errno_of(kill(pid, 0));
}

static long try_foreign_id(const void *)
{
	return errno_of(setresuid(65536, 65536, 65536));
}

static long try_foreign_owner(const void *)
{
	int fd = open("/tmp/.probe-file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	long r = errno_of(fchown(fd, 65536, 65536));
	(void)unlink("/tmp/.probe-file");
	return r;
}

static long try_foreign_group(const void *)
{
	const gid_t groups[] = {65536};
	return errno_of(setgroups(1, groups));
}

/* A child with a user namespace of its own waits for its map to be written from here. */
static long try_foreign_map(const void *)
{
	char path[64];
	int ready[2];
	if (pipe2(ready, O_CLOEXEC) < 0)
		return -errno;
	pid_t pid = fork();
	if (pid == 0) {
		(void)unshare(CLONE_NEWUSER);
		(void)close(ready[1]);
		(void)pause();
		_exit(0);
	}
	(void)close(ready[1]);
	char byte;
	(void)!read(ready[0], &byte, 1);
	(void)snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	long r = errno_of(write(fd, "0 65536 1", 9));
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, 0);
	return r;
}

static const struct {
	const char *name;
	long (*try)(const void *argument);
} deeds[] = {
	{"set the clock's frequency", try_clock},
	{"run with real-time priority", try_real_time},
	{"run with nice -20", try_nice},
	{"raise a hard limit", try_rlimit},
	{"be spared by the OOM killer", try_oom_score},
	{"take an id outside the range", try_foreign_id},
	{"give a file to an id outside the range", try_foreign_owner},
	{"join a group outside the range", try_foreign_group},
	{"map an id outside the range", try_foreign_map},
};

void probe_calls(void)
{
	static const pid_t watched[] = {1, 2};
	for (size_t i = 0; i < COUNT(calls); i++)
		report("call", calls[i].name, in_child(try_call, &calls[i]));
	probe_other_abis();
	probe_sockets();
	for (size_t i = 0; i < COUNT(namespaces); i++)
		report("unshare", namespaces[i].name, in_child(try_namespace, &namespaces[i].flag));
	report("ptrace", "the sandbox's init", in_child(try_ptrace, &watched[0]));
	report("ptrace", "the executor", in_child(try_ptrace, &watched[1]));
	for (size_t i = 0; i < COUNT(deeds); i++)
		report("deed", deeds[i].name, in_child(deeds[i].try, NULL));
}
