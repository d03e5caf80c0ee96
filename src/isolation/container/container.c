#include "isolation/container/container.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "base/scope.h"
#include "io/chan.h"
#include "io/child.h"
#include "isolation/container/capabilities.h"
#include "isolation/container/provide.h"
#include "isolation/disk.h"
#include "isolation/door.h"
#include "isolation/layout.h"
#include "isolation/lxcfs.h"
#include "isolation/private_run.h"
#include "resource/docker.h"
#include "spec/libexec.h"
#include "sys/mounts.h"
#include "sys/userns.h"

#define DOOR_DIR    "door"
#define DOOR_SOCKET "init.sock"

enum { END_MS = 5000, ANSWER_MS = 1000, MOUNTS_MAX = 5, READ_ONLY = MOUNT_ATTR_RDONLY };

struct isolated {
	struct sandbox *sandbox; /* borrowed from the keeper */
	uid_t uid;               /* host id of root inside */
	struct child docker;     /* ermite-docker */
	int channel;             /* to it; while it is open, the keeper lives */
	int gone;                /* epoll: readable when what stands for the container has ended */
	bool ended;              /* ermite-docker was reaped */
	struct child_end end;
	struct child lxcfs;
	int door_dir, door_fd, listen_fd;
	struct door_visitor init;
	char guest_dir[CONFIG_PATH_MAX];
};

static const struct resource *const resources[] = {&resource_network,   &resource_scratch, &resource_docker,
						   &resource_processes, &resource_cgroup,  NULL};

/* --- starting ------------------------------------------------------------------------------------------------ */

/* Sysbox gives all its containers the range of the user "sysbox" in /etc/subuid. */
static uid_t sysbox_root(void)
{
	static const char name[] = "sysbox:";
	scoped_file FILE *f = fopen("/etc/subuid", "re");
	scoped_free char *line = NULL;
	size_t size = 0;
	while (f && getline(&line, &size, f) > 0) {
		uint64_t first = 0;
		char *number = line + strlen(name);
		if (strncmp(line, name, strlen(name)) != 0)
			continue;
		number[strcspn(number, ":\n")] = '\0';
		if (num_parse(number, 1, UINT32_MAX - SLOT_IDS, &first) == 0)
			return (uid_t)first;
	}
	return 0;
}

/* Started before the keeper has mounts of its own: it stays among the host's. */
static int start_docker(struct isolated *i, struct err *e)
{
	char path[CONFIG_PATH_MAX];
	int ends[2] = {-1, -1};
	int r = libexec_path("ermite-docker", path, e);
	if (r == 0)
		r = chan_pair(ends, e);
	if (r < 0)
		return r;
	i->channel = ends[0];
	scoped_fd int far = ends[1];
	const char *const arguments[] = {"ermite-docker", "run", NULL};
	/* What it has to say of a failure it says over the channel. */
	const int fds[] = {-1, -1, -1, [DOCKER_CHANNEL_FD] = far};
	const struct child_plan plan = {.path = path,
					.arguments = arguments,
					.environment = child_environment,
					.fds = fds,
					.n_fds = 4,
					.die_with_parent = true,
					.new_session = true};
	r = child_start(&plan, &i->docker, e);
	return r < 0 ? r : record_add_process(i->sandbox->record, "docker", i->docker.pid, e);
}

/* The door lies in the sandbox's directory and not in the private /run: Docker binds it, and sees the host's files.
 * The path that it is made by is short, however long the state directory's is. */
static int make_door(struct isolated *i, struct err *e)
{
	char path[64];
	int record = record_dir(i->sandbox->record);
	if (mkdirat(record, DOOR_DIR, 0755) < 0)
		return err_sys(e, "make the directory of the door");
	int r = file_open_beneath(record, DOOR_DIR, O_RDONLY | O_DIRECTORY, 0, &i->door_dir, e);
	if (r < 0)
		return r;
	if (fchmod(i->door_dir, 0755) < 0)
		return err_sys(e, "make the directory of the door");
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d/" DOOR_SOCKET, i->door_dir);
	r = door_listen(path, i->uid, 1, &i->door_fd, e);
	/* Sysbox may map the ids of what it binds, so that no owner fits. On the host only root comes to it, and
	 * inside nobody else is there as long as it is. */
	if (r == 0 && i->uid != 0 && chmod(path, 0666) < 0)
		r = err_sys(e, "open the door to all");
	return r;
}

static int fill_plan(const struct isolated *i, struct docker_plan *p, struct err *e)
{
	const struct sandbox_spec *spec = i->sandbox->spec;
	uint64_t all = 0;
	*p = (struct docker_plan){
		.choice = spec->docker,
		.memory_bytes = spec->config.job_memory_mib << 20,
		.cpus = spec->config.job_cpus,
		.pids = spec->config.job_pids,
	};
	memcpy(p->id, i->sandbox->id, sizeof(p->id));
	memcpy(p->job_id, spec->job_id, sizeof(p->job_id));
	memcpy(p->guest_dir, i->guest_dir, sizeof(p->guest_dir));
	int r = docker_store(i->sandbox->store_fd, p->store, e);
	if (r == 0)
		r = file_path(i->door_dir, p->door_dir, sizeof(p->door_dir), e);
	if (r == 0)
		r = capabilities_read(&p->capabilities, &all, e);
	p->full = p->capabilities == all;
	return r;
}

static int send_plan(struct isolated *i, struct err *e)
{
	scoped_free struct docker_plan *plan = calloc(1, sizeof(*plan));
	scoped_fd int fd = -1;
	if (!plan)
		return err_set(e, -ENOMEM, "container: out of memory");
	int r = fill_plan(i, plan, e);
	if (r == 0)
		r = file_memfd("docker-plan", plan, sizeof(*plan), &fd, e);
	if (r < 0)
		return r;
	const struct chan_message m = {.type = DOCKER_PLAN, .n_fds = 1, .fds = {fd}};
	r = chan_send(i->channel, &m, e);
	return r < 0 ? err_ctx(e, r, "ermite-docker") : 0;
}

/* Before the knock ermite-docker stands for the container; from then on its first process does. */
static int watch_end_of(struct isolated *i, int pidfd, struct err *e)
{
	struct epoll_event event = {.events = EPOLLIN};
	if (epoll_ctl(i->gone, EPOLL_CTL_ADD, pidfd, &event) < 0)
		return err_sys(e, "watch the container");
	return 0;
}

static int prepare_steps(struct isolated *i, struct isolated_view *view, struct err *e)
{
	int r = private_run_guest(i->guest_dir, e);
	if (r == 0)
		r = start_docker(i, e);
	if (r == 0)
		r = make_door(i, e);
	/* Docker takes longer than all else, and needs none of it until the guest program has knocked. */
	if (r == 0)
		r = send_plan(i, e);
	if (r == 0)
		r = private_run_make(i->guest_dir, e);
	if (r == 0)
		r = lxcfs_start(&i->lxcfs, e);
	if (r == 0)
		r = record_add_process(i->sandbox->record, "lxcfs", i->lxcfs.pid, e);
	if (r == 0)
		r = door_listen(RUN_EXEC_SOCKET, i->uid, 8, &i->listen_fd, e);
	if (r == 0)
		r = private_run_externals(i->sandbox->spec->config.externals, e);
	if (r == 0)
		r = watch_end_of(i, i->docker.pidfd, e);
	if (r < 0)
		return r;
	*view = (struct isolated_view){
		.listen_fd = fd_steal(&i->listen_fd),
		.peer_uid = i->uid,
		.door_fd = i->door_fd,
		.gone_fd = i->gone,
		.weaker_fd = i->lxcfs.pidfd,
		.weaker = "lxcfs ended: free, uptime and /proc/meminfo inside no longer work",
		.has_init = true};
	return 0;
}

/* What was asked of Docker is answered before its helper goes: a container that it makes after that would be nobody's
 * until the next reap. */
static void end_docker(struct isolated *i)
{
	fd_close(&i->channel);
	if (!i->ended)
		i->ended = child_wait(&i->docker, END_MS, &i->end, NULL) == 0;
	if (!i->ended)
		child_kill(&i->docker);
}

static int end(struct isolated *i, bool keep_disk, struct err *e)
{
	(void)e;
	door_end(&i->init);
	end_docker(i);
	child_kill(&i->lxcfs);
	(void)umount2(RUN_LXCFS, MNT_DETACH | UMOUNT_NOFOLLOW);
	disk_unmount(keep_disk);
	(void)umount2(RUN_GUEST, MNT_DETACH | UMOUNT_NOFOLLOW);
	fd_close(&i->gone);
	fd_close(&i->door_dir);
	fd_close(&i->door_fd);
	fd_close(&i->listen_fd);
	free(i);
	return 0;
}

static int prepare(struct sandbox *s, struct isolated **ret, struct isolated_view *view, struct err *e)
{
	struct isolated *i = calloc(1, sizeof(*i));
	bool sysbox = s->spec->docker.sysbox;
	if (!i)
		return err_set(e, -ENOMEM, "container: out of memory");
	*i = (struct isolated){.sandbox = s,
			       .uid = sysbox ? sysbox_root() : 0,
			       .docker = CHILD_INIT,
			       .channel = -1,
			       .gone = epoll_create1(EPOLL_CLOEXEC),
			       .lxcfs = CHILD_INIT,
			       .door_dir = -1,
			       .door_fd = -1,
			       .listen_fd = -1,
			       .init = DOOR_VISITOR_INIT};
	s->root_uid = i->uid;
	s->all_devices = !sysbox;
	int r = prepare_steps(i, view, e);
	if (r < 0) {
		(void)end(i, false, NULL);
		return r;
	}
	*ret = i;
	return 0;
}

/* --- booting ------------------------------------------------------------------------------------------------- */

/* As it is, root inside being the host's; with Sysbox its ids are mapped. */
static int mount_disk(struct isolated *i, struct err *e)
{
	scoped_fd int ids = -1;
	int r = disk_mount(i->sandbox, NULL, e);
	if (r < 0 || i->uid == 0)
		return r;
	r = userns_make(i->uid, SLOT_IDS, &ids, e);
	return r < 0 ? r : mount_idmap(RUN_SCRATCH, ids, e);
}

static int boot(struct isolated *i, struct err *e)
{
	int r = mount_disk(i, e);
	return r < 0 ? r : lxcfs_wait(&i->lxcfs, e);
}

static int knock(struct isolated *i, int *ret_netns, struct err *e)
{
	int r = door_take(i->door_fd, i->uid, &i->init, e);
	fd_close(&i->door_fd);
	(void)unlinkat(i->door_dir, DOOR_SOCKET, 0);
	return r < 0 ? r : door_bind(i->sandbox, &i->init, ret_netns, e);
}

/* Detached copies of our mounts, in the order that the guest program expects. */
static int open_mounts(const struct config *c, int fds[static MOUNTS_MAX], size_t *ret_n, struct err *e)
{
	static const uint64_t job = READ_ONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
	const struct {
		const char *path;
		uint64_t attributes;
	} rows[MOUNTS_MAX] = {
		{RUN_SCRATCH, 0}, {RUN_GUEST, 0}, {RUN_JOB, job}, {RUN_LXCFS, 0}, {RUN_EXTERNALS, 0},
	};
	size_t n = c->externals[0] ? MOUNTS_MAX : MOUNTS_MAX - 1;
	int r = 0;
	for (*ret_n = 0; r == 0 && *ret_n < n; *ret_n += r == 0)
		r = mount_detached(rows[*ret_n].path, rows[*ret_n].attributes, &fds[*ret_n], e);
	return r;
}

static int admit(struct isolated *i, struct err *e)
{
	int fds[MOUNTS_MAX];
	size_t n = 0;
	const struct chan_message m = {.type = DOCKER_KNOCKED};
	int r = watch_end_of(i, i->init.pidfd, e);
	(void)epoll_ctl(i->gone, EPOLL_CTL_DEL, i->docker.pidfd, NULL);
	if (r == 0)
		r = chan_send(i->channel, &m, e);
	if (r == 0)
		r = open_mounts(&i->sandbox->spec->config, fds, &n, e);
	if (r == 0)
		r = door_admit(&i->init, fds, n, e);
	for (size_t k = 0; k < n; k++)
		fd_close(&fds[k]);
	/* Docker answers its start about now. Where it does not, ermite-docker is reaped in the end. */
	if (r == 0)
		i->ended = child_wait(&i->docker, ANSWER_MS, &i->end, NULL) == 0;
	return r;
}

/* --- ending -------------------------------------------------------------------------------------------------- */

/* The sentence that ermite-docker left, if it did. */
static bool read_failure(struct isolated *i, struct buf *reason)
{
	struct chan_message m;
	struct pollfd p = {.fd = i->channel, .events = POLLIN};
	while (poll(&p, 1, 0) > 0 && chan_receive(i->channel, &m, NULL) == 1) {
		chan_close_fds(&m);
		if (m.type != DOCKER_FAILED)
			continue;
		buf_str(reason, m.data);
		return true;
	}
	return false;
}

static void why_gone(struct isolated *i, bool *ret_start_failed, struct buf *reason)
{
	if (!i->ended)
		i->ended = child_wait(&i->docker, 1000, &i->end, NULL) == 0;
	*ret_start_failed = i->init.pidfd < 0;
	if (read_failure(i, reason))
		return;
	door_last_words(&i->init, reason);
	if (reason->n > 0)
		return;
	if (!*ret_start_failed)
		buf_str(reason, "the system inside ended: init exited, or it was powered off");
	else if (i->ended && i->end.signal)
		buf_fmt(reason, "ermite-docker was killed by signal %d", i->end.signal);
	else
		buf_str(reason, "the container ended before its first program ran");
}

static void disk(struct isolated *, struct isolated_disk *ret)
{
	disk_usage(ret);
}

#define COMMON                                                                                               \
	.kind = ISOLATION_CONTAINER, .resources = resources, .prepare = prepare, .boot = boot,               \
	.knock = knock, .admit = admit, .why_gone = why_gone, .disk = disk, .end = end

const struct isolation_ops isolation_container_sysbox = {
	COMMON,
	.sysbox = true,
	.missing = provide_missing_sysbox,
	.provide = provide_sysbox,
};

const struct isolation_ops isolation_container_privileged = {
	COMMON,
	.missing = provide_missing_privileged,
	.provide = provide_privileged,
};
