#include "net/services.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "net/members.h"
#include "net/relay/relay.h"
#include "net/resolvers.h"
#include "net/service.h"
#include "spec/forge.h"
#include "spec/id.h"
#include "spec/libexec.h"
#include "spec/message.h"
#include "spec/network.h"
#include "sys/netlink.h"
#include "sys/nflog.h"

#define DNS_BACKLOG   128
#define RELAY_BACKLOG 128

/* How long a change of resolv.conf may go unseen. */
#define RESOLVERS_MS 1000

#define NOTES_MAX 2048

struct services {
	struct services_plan plan;
	struct loop *loop;
	struct network_allow allow;
	struct forge forge;
	int udp, tcp, forge_listener; /* in the gateway's network namespace; -1: none */
	int refused;                  /* log of refused packets, there too; -1: none */
	int counts;
	struct resolvers resolvers;
	struct source *resolvers_timer;
	struct dial_targets forge_target;
	char dns_path[CONFIG_PATH_MAX], relay_path[CONFIG_PATH_MAX];
	int dns_fds[DNS_FDS], relay_fds[RELAY_FDS];
	struct service *dns, *relay;
};

_Static_assert((int)DNS_FD_CONFIG == SERVICE_FD_CONFIG && (int)DNS_FD_CHANNEL == SERVICE_FD_CHANNEL);
_Static_assert((int)RELAY_FD_CONFIG == SERVICE_FD_CONFIG && (int)RELAY_FD_CHANNEL == SERVICE_FD_CHANNEL);

/* Opens a socket of the current network namespace on an address that may not be there yet. Only connections that have
 * ended may be in the way: a datagram socket that is bound shuts everybody else out. */
static int open_listener(int type, uint32_t address, uint16_t port, int *ret_fd, struct err *e)
{
	const int on = 1;
	const int omit = IP_PMTUDISC_OMIT;
	const struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
	scoped_fd int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_sys(e, "make a listener");
	if (setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof(on)) < 0)
		return err_sys(e, "prepare a listener");
	/* The sandbox must not be able to say how long datagrams may be; connections hand TCP_NODELAY down. */
	int r = type == SOCK_DGRAM ? setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &omit, sizeof(omit))
				   : setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (r == 0 && type == SOCK_STREAM)
		r = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (r < 0)
		return err_sys(e, "prepare a listener");
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		return err_sys(e, "listen on port %u of the gateway's address", port);
	*ret_fd = fd_steal(&fd);
	return 0;
}

static int open_tcp(uint32_t address, uint16_t port, int backlog, int *ret_fd, struct err *e)
{
	scoped_fd int fd = -1;
	int r = open_listener(SOCK_STREAM, address, port, &fd, e);
	if (r < 0)
		return r;
	if (listen(fd, backlog) < 0)
		return err_sys(e, "listen on port %u of the gateway's address", port);
	*ret_fd = fd_steal(&fd);
	return 0;
}

/* A socket belongs for its life to the network namespace that it was made in: the keeper goes there for a moment. */
static int open_sockets(void *data, struct err *e)
{
	struct services *s = data;
	const struct config *c = s->plan.config;
	uint32_t gateway = slot_gateway(c, s->plan.slot);
	uint16_t port = (uint16_t)c->dns_port;
	int r = open_listener(SOCK_DGRAM, gateway, port, &s->udp, e);
	if (r == 0)
		r = open_tcp(gateway, port, DNS_BACKLOG, &s->tcp, e);
	if (r == 0 && s->forge_target.n > 0)
		r = open_tcp(gateway, s->forge.port, RELAY_BACKLOG, &s->forge_listener, e);
	if (r == 0 && s->plan.log_fd >= 0)
		r = nflog_open(members_log_group(s->plan.slot), &s->refused, e);
	return r;
}

/* The first address of the relay's target. */
static int look_up(const struct forge *forge, struct dial_target *ret, struct err *e)
{
	char port[sizeof("65535")];
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *list = NULL;
	(void)snprintf(port, sizeof(port), "%u", forge->target_port);
	int r = getaddrinfo(forge->target_host, port, &hints, &list);
	if (r != 0)
		return err_set(e, -ENOENT,
			       "guest forge access: the target %s cannot be resolved on this host: %s",
			       forge->target_host, gai_strerror(r));
	*ret = (struct dial_target){.n = list->ai_addrlen};
	memcpy(&ret->address, list->ai_addr, list->ai_addrlen);
	freeaddrinfo(list);
	return 0;
}

/* Resolves with the host's root directory as ours: /etc/resolv.conf and the C library's other ways often lead into
 * /run, and the keeper has one of its own. */
static int look_up_on_host(struct services *s, struct err *e)
{
	struct dial_target *target = &s->forge_target.items[0];
	scoped_fd int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0 || here < 0)
		return err_sys(e, "open the root directory");
	if (fchdir(s->plan.root_fd) < 0 || chroot(".") < 0)
		return err_sys(e, "enter the host's root directory");
	int r = look_up(&s->forge, target, e);
	if (fchdir(root) < 0 || chroot(".") < 0 || fchdir(here) < 0)
		return err_sys(e, "leave the host's root directory");
	s->forge_target.n = r == 0;
	return r;
}

static int open_counts(struct services *s, struct err *e)
{
	s->counts = memfd_create("dns-counts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (s->counts < 0 || ftruncate(s->counts, sizeof(struct dns_counts)) < 0 ||
	    fcntl(s->counts, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return err_sys(e, "make the forwarder's counters");
	return 0;
}

static int dns_configure(void *data, int *ret_fd, struct err *e)
{
	struct services *s = data;
	const struct config *c = s->plan.config;
	struct dns_config config;
	dns_config_init(&config);
	config.uid = slot_uid_dns(c->uid_base, s->plan.slot);
	config.guest = slot_guest(c, s->plan.slot);
	config.gateway = slot_gateway(c, s->plan.slot);
	config.n_resolvers = s->resolvers.targets.n;
	config.generation = s->resolvers.generation;
	config.log = s->plan.log_fd >= 0;
	config.forge = s->forge.on;
	(void)snprintf(config.forge_name, sizeof(config.forge_name), "%s", s->forge.host);
	config.allow = s->allow;
	return file_memfd("dns-config", &config, sizeof(config), ret_fd, e);
}

static int dns_dial(void *data, int channel, const struct chan_message *m, struct err *e)
{
	struct services *s = data;
	return dial_answer(&s->resolvers.targets, s->resolvers.generation, channel, m, e);
}

static int relay_configure(void *data, int *ret_fd, struct err *e)
{
	struct services *s = data;
	struct relay_config config;
	relay_config_init(&config);
	config.uid = slot_uid_relay(s->plan.config->uid_base, s->plan.slot);
	config.guest = slot_guest(s->plan.config, s->plan.slot);
	return file_memfd("relay-config", &config, sizeof(config), ret_fd, e);
}

static int relay_dial(void *data, int channel, const struct chan_message *m, struct err *e)
{
	struct services *s = data;
	if (m->b != DIAL_TCP)
		return err_set(e, -EPROTO, "DIAL of a kind that a relay does not use");
	return dial_answer(&s->forge_target, 0, channel, m, e);
}

static int started(void *data, const char *name, pid_t pid, struct err *e)
{
	struct services *s = data;
	return s->plan.started(s->plan.data, name, pid, e);
}

static void warn(void *data, const char *sentence)
{
	struct services *s = data;
	s->plan.warn(s->plan.data, sentence);
}

/* Gives each line of notes to a person. */
static void warn_lines(struct services *s, const struct buf *notes)
{
	const char *at = buf_text(notes);
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&at, &line, &n)) {
		char sentence[256];
		(void)snprintf(sentence, sizeof(sentence), "/etc/resolv.conf: %.*s", (int)(n < 200 ? n : 200),
			       line);
		warn(s, sentence);
	}
}

static bool check_resolvers(struct services *s)
{
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	int changed = resolvers_check(&s->resolvers, &notes);
	warn_lines(s, &notes);
	return changed > 0;
}

static int resolvers_due(void *data, struct err *e)
{
	struct services *s = data;
	if (check_resolvers(s)) {
		struct chan_message m;
		m.type = MESSAGE_RESOLVERS;
		m.id = 0;
		m.a = s->resolvers.generation;
		m.b = s->resolvers.targets.n;
		m.n = m.n_fds = 0;
		service_tell(s->dns, &m);
	}
	return loop_arm(s->resolvers_timer, RESOLVERS_MS, e);
}

/* Where a program of ours is. */
static int find_program(const struct services *s, const char *name, char path[static CONFIG_PATH_MAX],
			struct err *e)
{
	if (!s->plan.programs)
		return libexec_path(name, path, e);
	(void)snprintf(path, CONFIG_PATH_MAX, "%s/%s", s->plan.programs, name);
	return 0;
}

static int start_dns(struct services *s, struct err *e)
{
	const int fds[DNS_FDS] = {-1,
				  -1,
				  STDERR_FILENO,
				  [DNS_FD_UDP] = s->udp,
				  [DNS_FD_TCP] = s->tcp,
				  [DNS_FD_COUNTS] = s->counts,
				  [DNS_FD_LOG] = s->plan.log_fd,
				  [DNS_FD_REFUSED] = s->refused};
	memcpy(s->dns_fds, fds, sizeof(fds));
	const struct service_plan plan = {.name = "ermite-dns",
					  .id = s->plan.id,
					  .path = s->dns_path,
					  .fds = s->dns_fds,
					  .n_fds = DNS_FDS,
					  .configure = dns_configure,
					  .dial = dns_dial,
					  .started = started,
					  .warn = warn,
					  .data = s};
	int r = find_program(s, plan.name, s->dns_path, e);
	return r < 0 ? r : service_start(&plan, s->loop, &s->dns, e);
}

static int start_relay(struct services *s, struct err *e)
{
	const int fds[RELAY_FDS] = {-1, -1, STDERR_FILENO, [RELAY_FD_LISTENER] = s->forge_listener};
	memcpy(s->relay_fds, fds, sizeof(fds));
	const struct service_plan plan = {.name = "ermite-relay",
					  .id = s->plan.id,
					  .path = s->relay_path,
					  .fds = s->relay_fds,
					  .n_fds = RELAY_FDS,
					  .configure = relay_configure,
					  .dial = relay_dial,
					  .started = started,
					  .warn = warn,
					  .data = s};
	int r = find_program(s, plan.name, s->relay_path, e);
	return r < 0 ? r : service_start(&plan, s->loop, &s->relay, e);
}

static int start_all(struct services *s, struct err *e)
{
	const struct config *c = s->plan.config;
	int r = forge_read(c, &s->forge, e);
	if (r == 0)
		r = network_allow_parse(c->network_allow, &s->allow, e);
	if (r == 0 && s->forge.target_host[0] != '\0')
		r = look_up_on_host(s, e);
	if (r == 0)
		r = netns_with(s->plan.gateway_fd, open_sockets, s, e);
	if (r == 0)
		r = open_counts(s, e);
	if (r < 0)
		return r;
	(void)check_resolvers(s);
	r = start_dns(s, e);
	if (r == 0 && s->forge_listener >= 0)
		r = start_relay(s, e);
	if (r == 0)
		r = loop_add_timer(s->loop, resolvers_due, s, &s->resolvers_timer, e);
	return r < 0 ? r : loop_arm(s->resolvers_timer, RESOLVERS_MS, e);
}

int services_start(const struct services_plan *plan, struct loop *loop, struct services **ret, struct err *e)
{
	struct services *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, -ENOMEM, "out of memory");
	s->plan = *plan;
	s->loop = loop;
	s->udp = s->tcp = s->forge_listener = s->refused = s->counts = -1;
	s->resolvers.root_fd = plan->root_fd;
	s->resolvers.own = (struct cidr){plan->config->network_address, plan->config->network_prefix};
	int r = start_all(s, e);
	if (r < 0) {
		services_end(s);
		return err_ctx(e, r, "network services");
	}
	*ret = s;
	return 0;
}

int services_bind(struct services *s, const char *link, struct err *e)
{
	const int fds[] = {s->udp, s->tcp, s->forge_listener};
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0 &&
		    setsockopt(fds[i], SOL_SOCKET, SO_BINDTODEVICE, link, (socklen_t)strlen(link)) < 0)
			return err_sys(e, "bind the network services to %s", link);
	return 0;
}

void services_counts(const struct services *s, struct dns_counts *ret)
{
	/* The helper writes to it at the same time and may be in a sandbox's hands: they are numbers, no more. */
	if (pread(s->counts, ret, sizeof(*ret), 0) != (ssize_t)sizeof(*ret))
		*ret = (struct dns_counts){0};
}

void services_end(struct services *s)
{
	if (!s)
		return;
	loop_remove(&s->resolvers_timer);
	service_end(s->dns);
	service_end(s->relay);
	fd_close(&s->udp);
	fd_close(&s->tcp);
	fd_close(&s->forge_listener);
	fd_close(&s->refused);
	fd_close(&s->counts);
	free(s);
}
