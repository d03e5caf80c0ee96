#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

#define FRESH "/tmp/.probe-fresh"

/* Only opened, never written. */
static const char *const written[] = {
	"/proc/sys/kernel/core_pattern",
	"/proc/sys/kernel/core_pipe_limit",
	"/proc/sys/kernel/modprobe",
	"/proc/sys/kernel/hotplug",
	"/proc/sys/kernel/poweroff_cmd",
	"/proc/sys/kernel/usermodehelper/bset",
	"/proc/sys/kernel/sysrq",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/printk",
	"/proc/sys/kernel/printk_ratelimit",
	"/proc/sys/kernel/dmesg_restrict",
	"/proc/sys/kernel/kptr_restrict",
	"/proc/sys/kernel/perf_event_paranoid",
	"/proc/sys/kernel/unprivileged_bpf_disabled",
	"/proc/sys/kernel/randomize_va_space",
	"/proc/sys/kernel/modules_disabled",
	"/proc/sys/kernel/kexec_load_disabled",
	"/proc/sys/kernel/yama/ptrace_scope",
	"/proc/sys/kernel/pid_max",
	"/proc/sys/kernel/threads-max",
	"/proc/sys/kernel/ns_last_pid",
	"/proc/sys/kernel/sched_rt_runtime_us",
	"/proc/sys/kernel/keys/maxkeys",
	"/proc/sys/kernel/shmmax",
	"/proc/sys/kernel/msgmax",
	"/proc/sys/kernel/hostname",
	"/proc/sys/kernel/random/urandom_min_reseed_secs",
	"/proc/sys/vm/drop_caches",
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/swappiness",
	"/proc/sys/vm/mmap_min_addr",
	"/proc/sys/vm/compact_memory",
	"/proc/sys/vm/dirty_bytes",
	"/proc/sys/vm/nr_hugepages",
	"/proc/sys/vm/panic_on_oom",
	"/proc/sys/vm/unprivileged_userfaultfd",
	"/proc/sys/fs/file-max",
	"/proc/sys/fs/nr_open",
	"/proc/sys/fs/mount-max",
	"/proc/sys/fs/pipe-max-size",
	"/proc/sys/fs/suid_dumpable",
	"/proc/sys/fs/protected_symlinks",
	"/proc/sys/fs/protected_regular",
	"/proc/sys/fs/aio-max-nr",
	"/proc/sys/fs/mqueue/queues_max",
	"/proc/sys/fs/inotify/max_user_watches",
	"/proc/sys/fs/binfmt_misc/register",
	"/proc/sys/user/max_user_namespaces",
	"/proc/sys/user/max_inotify_watches",
	"/proc/sys/net/ipv4/ip_forward",
	"/proc/sys/net/ipv4/tcp_mem",
	"/proc/sys/net/core/somaxconn",
	"/proc/sys/net/core/rmem_max",
	"/proc/sys/net/core/bpf_jit_enable",
	"/proc/sys/net/netfilter/nf_conntrack_max",
	"/proc/sys/dev/tty/legacy_tiocsti",
	"/proc/sys/dev/tty/ldisc_autoload",
	"/proc/sysrq-trigger",
	"/proc/kmsg",
	"/proc/mtrr",
	"/proc/irq/default_smp_affinity",
	"/proc/bus/pci/00/00.0",
	"/proc/acpi/wakeup",
	"/proc/scsi/scsi",
	"/proc/driver/rtc",
	"/proc/fs/ext4",
	"/proc/timer_stats",
	"/proc/latency_stats",
	"/proc/1/oom_score_adj",
	"/proc/1/mem",
	"/proc/1/uid_map",
	"/proc/1/attr/current",
	"/proc/self/oom_score_adj",
	"/proc/self/mem",
	"/proc/self/timerslack_ns",
	"/proc/self/loginuid",
	"/proc/self/attr/exec",
	"/sys/kernel/uevent_helper",
	"/sys/kernel/profiling",
	"/sys/kernel/rcu_expedited",
	"/sys/kernel/reboot/mode",
	"/sys/kernel/mm/ksm/run",
	"/sys/kernel/mm/transparent_hugepage/enabled",
	"/sys/kernel/debug/sched/debug",
	"/sys/kernel/tracing/trace",
	"/sys/kernel/security/apparmor/.load",
	"/sys/power/state",
	"/sys/power/wake_lock",
	"/sys/module/loop/parameters/max_loop",
	"/sys/module/overlay/parameters/metacopy",
	"/sys/module/kernel/parameters/initcall_debug",
	"/sys/devices/system/cpu/cpu1/online",
	"/sys/devices/system/memory/probe",
	"/sys/devices/virtual/net/lo/mtu",
	"/sys/bus/pci/rescan",
	"/sys/bus/workqueue/devices/writeback/cpumask",
	"/sys/block/loop0/queue/scheduler",
	"/sys/block/loop0/uevent",
	"/sys/block/zram0/disksize",
	"/sys/fs/fuse/connections/1/abort",
	"/sys/fs/ext4/loop0/trigger_fs_error",
	"/sys/fs/cgroup/release_agent",
	"/sys/fs/cgroup/memory/release_agent",
	"/sys/fs/cgroup/systemd/release_agent",
	"/sys/fs/cgroup/devices/devices.allow",
	"/sys/firmware/efi/vars",
	"/sys/class/tty/tty0/active",
	"/opt/ermite/ermite-runner",
	"/opt/ermite/seccomp.bpf",
	"/run/ermite/init.sock",
	"/etc/hostname",
	"/etc/shadow",
};

/* A byte is read, so that a mask, which is an empty file or directory, counts as not there. */
static const char *const read_from[] = {
	"/proc/kcore",
	"/proc/kmsg",
	"/proc/keys",
	"/proc/key-users",
	"/proc/kallsyms",
	"/proc/kpagecount",
	"/proc/kpageflags",
	"/proc/kpagecgroup",
	"/proc/slabinfo",
	"/proc/vmallocinfo",
	"/proc/pagetypeinfo",
	"/proc/buddyinfo",
	"/proc/zoneinfo",
	"/proc/vmstat",
	"/proc/modules",
	"/proc/config.gz",
	"/proc/cmdline",
	"/proc/version",
	"/proc/iomem",
	"/proc/ioports",
	"/proc/dma",
	"/proc/interrupts",
	"/proc/softirqs",
	"/proc/irq/0/spurious",
	"/proc/timer_list",
	"/proc/timer_stats",
	"/proc/latency_stats",
	"/proc/sched_debug",
	"/proc/schedstat",
	"/proc/crypto",
	"/proc/devices",
	"/proc/diskstats",
	"/proc/partitions",
	"/proc/swaps",
	"/proc/mdstat",
	"/proc/mtrr",
	"/proc/cgroups",
	"/proc/acpi",
	"/proc/asound",
	"/proc/scsi",
	"/proc/bus/pci/devices",
	"/proc/fs/ext4",
	"/proc/fs/jbd2",
	"/proc/pressure/memory",
	"/proc/sysvipc/shm",
	"/proc/sys/kernel/random/boot_id",
	"/proc/sys/fs/binfmt_misc",
	"/proc/1/environ",
	"/proc/1/mem",
	"/proc/1/maps",
	"/proc/1/root",
	"/proc/1/cwd",
	"/proc/1/fd",
	"/proc/1/stack",
	"/proc/1/pagemap",
	"/proc/self/stack",
	"/proc/self/pagemap",
	"/sys/kernel/debug",
	"/sys/kernel/tracing",
	"/sys/kernel/security",
	"/sys/kernel/config",
	"/sys/kernel/notes",
	"/sys/kernel/vmcoreinfo",
	"/sys/kernel/btf/vmlinux",
	"/sys/kernel/slab",
	"/sys/kernel/boot_params/data",
	"/sys/kernel/mm/page_idle/bitmap",
	"/sys/fs/bpf",
	"/sys/fs/pstore",
	"/sys/fs/ext4",
	"/sys/fs/fuse/connections",
	"/sys/firmware",
	"/sys/firmware/dmi/tables/DMI",
	"/sys/firmware/acpi/tables/DSDT",
	"/sys/hypervisor",
	"/sys/devices/virtual/powercap",
	"/sys/class/thermal",
	"/sys/class/net",
	"/sys/class/dmi/id/product_uuid",
	"/sys/block",
	"/sys/bus/pci/devices/0000:00:00.0/config",
	"/sys/bus/pci/devices/0000:00:01.0/resource0",
	"/sys/module",
	"/run/ermite",
	"/run/ermite/exec.sock",
	"/dev/.lxc/proc",
	"/opt/externals",
	"/lost+found",
	"/var/lib/docker",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static long results_written[COUNT(written)];
static long results_read[COUNT(read_from)];

static long try_write(const char *path)
{
	int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == EISDIR ? -ENOENT : -errno;
	(void)close(fd);
	return 0;
}

static long try_list(int fd)
{
	DIR *d = fdopendir(fd);
	int n = 0;
	while (d && readdir(d))
		n++;
	if (d)
		(void)closedir(d);
	return n > 2 ? 0 : -ENOENT;
}

static long try_read(const char *path)
{
	char byte;
	struct stat st;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return try_list(fd);
	ssize_t n = read(fd, &byte, 1);
	long r = n < 0 && errno != EAGAIN && errno != EIO ? -errno : 0;
	(void)close(fd);
	return n == 0 ? -ENOENT : r;
}

void probe_files(void)
{
	for (size_t i = 0; i < COUNT(written); i++) {
		results_written[i] = try_write(written[i]);
		report("write", written[i], results_written[i]);
	}
	for (size_t i = 0; i < COUNT(read_from); i++) {
		results_read[i] = try_read(read_from[i]);
		report("read", read_from[i], results_read[i]);
	}
}

/* More can be done than with the proc and the sysfs that everybody sees. */
static void report_more(const char *kind, const char *path, long (*try)(const char *path), long before)
{
	char fresh[256];
	if (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0)
		return;
	(void)snprintf(fresh, sizeof(fresh), FRESH "%s", path);
	if (before < 0 && try(fresh) == 0)
		report(kind, path, 0);
}

static long try_fresh(const void *)
{
	if (mount("proc", FRESH "/proc", "proc", 0, NULL) < 0 ||
	    mount("sysfs", FRESH "/sys", "sysfs", 0, NULL) < 0)
		return -errno;
	for (size_t i = 0; i < COUNT(written); i++)
		report_more("write afresh", written[i], try_write, results_written[i]);
	for (size_t i = 0; i < COUNT(read_from); i++)
		report_more("read afresh", read_from[i], try_read, results_read[i]);
	return 0;
}

static long try_fresh_in_namespaces(const void *)
{
	if ((mkdir(FRESH, 0700) < 0 || mkdir(FRESH "/proc", 0700) < 0 || mkdir(FRESH "/sys", 0700) < 0) &&
	    errno != EEXIST)
		return -errno;
	long r = take_namespaces();
	return r < 0 ? r : in_child(try_fresh, NULL);
}

void probe_fresh_files(void)
{
	report("mount", "a proc and a sysfs of one's own", in_child(try_fresh_in_namespaces, NULL));
}
