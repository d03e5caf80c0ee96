#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "probe.h"

enum { NODES_MAX = 64, NODE_MAX = 64 };

/* The nodes found so far, to be sorted. */
struct nodes {
	char text[NODES_MAX][NODE_MAX];
	size_t n;
};

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void add_node(struct nodes *nodes, const char *directory, const char *name)
{
	char path[512];
	struct stat st;
	(void)snprintf(path, sizeof(path), "%s/%s", directory, name);
	if (lstat(path, &st) < 0 || (!S_ISCHR(st.st_mode) && !S_ISBLK(st.st_mode)) || nodes->n == NODES_MAX)
		return;
	(void)snprintf(nodes->text[nodes->n++], NODE_MAX, "%.32s %c %u:%u", path,
		       S_ISCHR(st.st_mode) ? 'c' : 'b', major(st.st_rdev), minor(st.st_rdev));
}

/* Every node in /dev, so that a device nobody thought of is seen. */
static void list_nodes(const char *directory, struct nodes *nodes)
{
	DIR *d = opendir(directory);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		add_node(nodes, directory, e->d_name);
	if (d)
		(void)closedir(d);
}

static void probe_nodes(void)
{
	struct nodes nodes = {.n = 0};
	list_nodes("/dev", &nodes);
	list_nodes("/dev/net", &nodes);
	list_nodes("/dev/mapper", &nodes);
	list_nodes("/dev/vfio", &nodes);
	qsort(nodes.text, nodes.n, sizeof(nodes.text[0]), compare);
	for (size_t i = 0; i < nodes.n; i++) {
		char path[NODE_MAX];
		memcpy(path, nodes.text[i], sizeof(path));
		path[strcspn(path, " ")] = '\0';
		int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		report("device", nodes.text[i], fd < 0 ? -errno : 0);
		if (fd >= 0)
			(void)close(fd);
	}
}

static void probe_mknod(void)
{
	static const struct {
		const char *what;
		mode_t type;
		unsigned major_number, minor_number;
	} nodes[] = {
		{"char 1:1, the memory", S_IFCHR, 1, 1},
		{"char 1:3, null", S_IFCHR, 1, 3},
		{"char 1:11, the kernel log", S_IFCHR, 1, 11},
		{"char 10:229, fuse", S_IFCHR, 10, 229},
		{"char 10:232, kvm", S_IFCHR, 10, 232},
		{"char 10:237, loop-control", S_IFCHR, 10, 237},
		{"block 7:0, a loop device", S_IFBLK, 7, 0},
		{"block 8:0, a disk", S_IFBLK, 8, 0},
		{"char 0:0, overlay's whiteout", S_IFCHR, 0, 0},
	};
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		dev_t device = makedev(nodes[i].major_number, nodes[i].minor_number);
		int r = mknod("/tmp/.probe-node", nodes[i].type | 0600, device);
		report("mknod", nodes[i].what, errno_of(r));
		(void)unlink("/tmp/.probe-node");
	}
}

static const char *type_name(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "directory";
	case S_IFREG:
		return "file";
	case S_IFBLK:
		return "block device";
	case S_IFCHR:
		return "character device";
	case S_IFIFO:
		return "pipe";
	case S_IFSOCK:
		return "socket";
	default:
		return "anonymous";
	}
}

/* What this process was given: nothing that leads anywhere. */
static void probe_descriptors(void)
{
	for (int fd = 0; fd < 1024; fd++) {
		struct stat st;
		char link[32];
		char target[256] = "";
		char what[320];
		if (fstat(fd, &st) < 0)
			continue;
		(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = '\0';
		bool has_path = target[0] == '/';
		(void)snprintf(what, sizeof(what), "%d is a %s %s", fd, type_name(st.st_mode),
			       has_path ? target : "");
		report("descriptor", what, 0);
	}
}

/* The terminal of the job is the sandbox's own; without one there is none to be found. */
static void probe_terminal(void)
{
	char byte = 'x';
	int fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
	report("terminal", "/dev/tty", fd < 0 ? -errno : 0);
	if (fd >= 0)
		report("terminal", "TIOCSTI", errno_of(ioctl(fd, TIOCSTI, &byte)));
}

void probe_devices(void)
{
	probe_descriptors();
	probe_nodes();
	probe_mknod();
	probe_terminal();
}
