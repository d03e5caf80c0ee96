#include "keeper/network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keeper/tell.h"
#include "net/members.h"
#include "net/plug.h"
#include "net/services.h"
#include "net/watch.h"
#include "spec/message.h"

struct network {
	struct sandbox *sandbox; /* borrowed */
	const int *client;       /* borrowed */
	struct services *services;
	struct watch *watch;
};

static void warn(void *data, const char *sentence)
{
	const struct network *n = data;
	tell_text(*n->client, MESSAGE_WARNING, sentence);
}

static int started(void *data, const char *name, pid_t pid, struct err *e)
{
	const struct network *n = data;
	return record_add_process(n->sandbox->record, name, pid, e);
}

static int start(struct network *n, struct loop *loop, int log_fd, struct err *e)
{
	const struct sandbox *s = n->sandbox;
	const struct config *c = &s->spec->config;
	const struct services_plan services = {.config = c,
					       .id = s->id,
					       .slot = s->slot,
					       .gateway_fd = s->network.netns,
					       .root_fd = s->host->root,
					       .log_fd = log_fd,
					       .started = started,
					       .warn = warn,
					       .data = n};
	const struct watch_plan watch = {
		.host = s->host,
		.network = {.address = c->network_address, .bits = c->network_prefix},
		.gateway = s->network.netns,
		.warn = warn,
		.data = n};
	int r = services_start(&services, loop, &n->services, e);
	return r < 0 ? r : watch_start(&watch, loop, &n->watch, e);
}

int network_start(struct sandbox *s, struct loop *loop, const int *client, int log_fd, struct network **ret,
		  struct err *e)
{
	if (s->network.netns < 0)
		return 0;
	struct network *n = calloc(1, sizeof(*n));
	if (!n)
		return err_set(e, -ENOMEM, "out of memory");
	*n = (struct network){.sandbox = s, .client = client};
	int r = start(n, loop, log_fd, e);
	if (r < 0) {
		network_end(n);
		return r;
	}
	*ret = n;
	return 0;
}

int network_plug(struct network *n, int sandbox_netns, struct err *e)
{
	if (!n)
		return 0;
	const struct sandbox *s = n->sandbox;
	const struct plug plug = {.gateway = s->network.netns,
				  .sandbox = sandbox_netns,
				  .link = s->network.link,
				  .slot = s->slot,
				  .gateway_address = s->network.gateway,
				  .guest_address = s->network.guest,
				  .mtu = s->network.mtu};
	int r = plug_in(&plug, e);
	return r < 0 ? r : services_bind(n->services, s->network.link, e);
}

void network_use(const struct network *n, struct job_network *ret)
{
	struct member_counts counts;
	struct dns_counts dns = {0};
	uint64_t sent = 0;
	uint64_t received = 0;
	if (!n)
		return;
	const struct sandbox_network *net = &n->sandbox->network;
	services_counts(n->services, &dns);
	ret->dns_questions = dns.questions;
	if (members_counts(net->netns, net->link, &counts, NULL) == 0) {
		ret->flows = counts.flows;
		memcpy(ret->refused, counts.refused, sizeof(ret->refused));
	}
	if (plug_bytes(net->netns, net->link, &sent, &received, NULL) == 0) {
		ret->sent_bytes = sent;
		ret->received_bytes = received;
	}
}

void network_end(struct network *n)
{
	if (!n)
		return;
	watch_end(n->watch);
	services_end(n->services);
	free(n);
}
