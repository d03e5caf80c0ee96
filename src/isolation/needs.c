#include "isolation/needs.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "isolation/lxcfs.h"
#include "net/nftext.h"
#include "sys/cgroup.h"

bool needs_file_missing(const char *path)
{
	return access(path, F_OK) < 0;
}

unsigned needs_miss(struct buf *reasons, bool is_missing, const char *sentence)
{
	if (is_missing)
		buf_fmt(reasons, "%s%s", reasons->n ? "; " : "", sentence);
	return is_missing;
}

static bool overlay_missing(void)
{
	char text[4096];
	ssize_t n = file_read_text(AT_FDCWD, "/proc/filesystems", text, sizeof(text), NULL);
	return n < 0 || !strstr(text, "\toverlay\n");
}

static unsigned missing_controllers(struct buf *reasons)
{
	struct cgroup_host host;
	struct err e = ERR_INIT;
	if (cgroup_host_read(&host, &e) < 0)
		return needs_miss(reasons, true, e.msg);
	unsigned have = cgroup_controllers(&host);
	return needs_miss(reasons, !(have & CGROUP_MEMORY), "no memory cgroup controller") +
	       needs_miss(reasons, !(have & CGROUP_PIDS), "no pids cgroup controller") +
	       needs_miss(reasons, !(have & CGROUP_CPU), "no cpu cgroup controller");
}

static bool nft_missing(const struct config *c)
{
	return c->network_mode == NETWORK_NAT && !nftext_program();
}

unsigned needs_common(const struct config *c, struct buf *reasons)
{
	unsigned n = needs_miss(reasons, geteuid() != 0, "root is needed");
	n += needs_miss(reasons, overlay_missing(), "the kernel has no overlayfs (modprobe overlay)");
	n += needs_miss(reasons, needs_file_missing("/dev/loop-control"),
			"there are no loop devices (modprobe loop)");
	n += needs_miss(reasons, needs_file_missing("/dev/fuse"), "there is no /dev/fuse (modprobe fuse)");
	n += needs_miss(reasons, !lxcfs_program(), "lxcfs is not installed (apt install lxcfs)");
	n += needs_miss(reasons, nft_missing(c), "nft is not installed (apt install nftables)");
	return n + missing_controllers(reasons);
}
