#include "isolation/container/capabilities.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>

enum { BITS = 64 };

#define NAME(name) [name] = #name
static const char *const names[] = {
	NAME(CAP_CHOWN),
	NAME(CAP_DAC_OVERRIDE),
	NAME(CAP_DAC_READ_SEARCH),
	NAME(CAP_FOWNER),
	NAME(CAP_FSETID),
	NAME(CAP_KILL),
	NAME(CAP_SETGID),
	NAME(CAP_SETUID),
	NAME(CAP_SETPCAP),
	NAME(CAP_LINUX_IMMUTABLE),
	NAME(CAP_NET_BIND_SERVICE),
	NAME(CAP_NET_BROADCAST),
	NAME(CAP_NET_ADMIN),
	NAME(CAP_NET_RAW),
	NAME(CAP_IPC_LOCK),
	NAME(CAP_IPC_OWNER),
	NAME(CAP_SYS_MODULE),
	NAME(CAP_SYS_RAWIO),
	NAME(CAP_SYS_CHROOT),
	NAME(CAP_SYS_PTRACE),
	NAME(CAP_SYS_PACCT),
	NAME(CAP_SYS_ADMIN),
	NAME(CAP_SYS_BOOT),
	NAME(CAP_SYS_NICE),
	NAME(CAP_SYS_RESOURCE),
	NAME(CAP_SYS_TIME),
	NAME(CAP_SYS_TTY_CONFIG),
	NAME(CAP_MKNOD),
	NAME(CAP_LEASE),
	NAME(CAP_AUDIT_WRITE),
	NAME(CAP_AUDIT_CONTROL),
	NAME(CAP_SETFCAP),
	NAME(CAP_MAC_OVERRIDE),
	NAME(CAP_MAC_ADMIN),
	NAME(CAP_SYSLOG),
	NAME(CAP_WAKE_ALARM),
	NAME(CAP_BLOCK_SUSPEND),
	NAME(CAP_AUDIT_READ),
	NAME(CAP_PERFMON),
	NAME(CAP_BPF),
	NAME(CAP_CHECKPOINT_RESTORE),
};

const char *capability_name(unsigned number)
{
	return number < sizeof(names) / sizeof(names[0]) ? names[number] : NULL;
}

int capabilities_read(uint64_t *ret_have, uint64_t *ret_all, struct err *e)
{
	uint64_t have = 0;
	uint64_t all = 0;
	for (int i = 0; i < BITS; i++) {
		/* The kernel refuses a number that it has no capability for. */
		int is_there = prctl(PR_CAPBSET_READ, i, 0, 0, 0);
		if (is_there < 0 && errno == EINVAL)
			break;
		if (is_there < 0)
			return err_sys(e, "read the bounding set of capabilities");
		all |= UINT64_C(1) << i;
		have |= (uint64_t)(is_there > 0) << i;
	}
	*ret_have = have;
	*ret_all = all;
	return 0;
}

void capabilities_names(uint64_t set, struct buf *out)
{
	const char *separator = "";
	for (unsigned i = 0; i < BITS; i++) {
		if (!(set >> i & 1))
			continue;
		const char *name = capability_name(i);
		if (name)
			buf_fmt(out, "%s%s", separator, name);
		else
			buf_fmt(out, "%s%u", separator, i);
		separator = ", ";
	}
}
