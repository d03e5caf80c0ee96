#include "spec/forge.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"

enum { LABEL_MAX = 63 };

#define HOST_BYTES "abcdefghijklmnopqrstuvwxyz0123456789-_"

static const struct scheme {
	const char *prefix;
	bool https;
	uint16_t port;
} schemes[] = {{"https://", true, 443}, {"http://", false, 80}};

static int refuse(const char *item, const char *value, const char *why, struct err *e)
{
	return err_set(e, -EINVAL, "%s%s: \"%.200s\" is not accepted: %s", CONFIG_PREFIX, item, value, why);
}

/* What a C library takes for an IPv4 address, "127.1" and "0x7f000001" among it, never reaches a name server. */
static bool is_address(const char *host)
{
	struct in_addr address;
	return inet_aton(host, &address) != 0;
}

/* Reads a host of n bytes in lower case: labels of at most 63 bytes between dots, 253 in all. */
static bool read_host(const char *text, size_t n, char ret[static FORGE_HOST_SIZE])
{
	char host[FORGE_HOST_SIZE];
	if (n == 0 || n >= sizeof(host))
		return false;
	for (size_t i = 0; i < n; i++)
		host[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] | 0x20) : text[i];
	host[n] = '\0';
	for (const char *label = host;; label++) {
		size_t length = strspn(label, HOST_BYTES);
		if (length == 0 || length > LABEL_MAX)
			return false;
		label += length;
		if (*label == '\0')
			break;
		if (*label != '.')
			return false;
	}
	memcpy(ret, host, n + 1);
	return true;
}

static bool read_port(const char *text, uint16_t *ret)
{
	uint64_t port = 0;
	if (num_parse(text, 1, UINT16_MAX, &port) < 0)
		return false;
	*ret = (uint16_t)port;
	return true;
}

static const struct scheme *find_scheme(const char *url)
{
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		if (strncmp(url, schemes[i].prefix, strlen(schemes[i].prefix)) == 0)
			return &schemes[i];
	return NULL;
}

/* Reads "host" or "host:port", which ends in "", "/" or in what no origin has. */
static int read_authority(const char *url, const char *text, struct forge *f, struct err *e)
{
	size_t n = strcspn(text, "/?#");
	if (memchr(text, '@', n))
		return refuse("URL", url, "guest forge access takes no user in it", e);
	if (strcmp(text + n, "") != 0 && strcmp(text + n, "/") != 0)
		return refuse("URL", url, "guest forge access takes no path, query or fragment in it", e);
	if (text[0] == '[')
		return refuse("URL", url, "guest forge access needs a name, not an address", e);
	size_t host_n = strcspn(text, ":/");
	if (!read_host(text, host_n, f->host))
		return refuse("URL", url, "its host is no name", e);
	if (is_address(f->host))
		return refuse("URL", url, "guest forge access needs a name, not an address", e);
	if (text[host_n] != ':')
		return 0;
	char port[sizeof("65535")];
	size_t port_n = n - host_n - 1;
	(void)snprintf(port, sizeof(port), "%.*s", (int)port_n, text + host_n + 1);
	if (port_n >= sizeof(port) || !read_port(port, &f->port))
		return refuse("URL", url, "its port is no number from 1 to 65535", e);
	return 0;
}

static int read_url(const struct config *c, struct forge *f, struct err *e)
{
	if (!c->url[0])
		return err_set(e, -EINVAL, "%sGUEST_FORGE: 1 needs the forge's URL in %sURL", CONFIG_PREFIX,
			       CONFIG_PREFIX);
	const struct scheme *scheme = find_scheme(c->url);
	if (!scheme)
		return refuse("URL", c->url, "an http:// or https:// URL", e);
	if (!scheme->https && !c->insecure_http)
		return refuse("URL", c->url, "http:// needs " CONFIG_PREFIX "INSECURE_HTTP=1", e);
	f->https = scheme->https;
	f->port = scheme->port;
	int r = read_authority(c->url, c->url + strlen(scheme->prefix), f, e);
	if (r < 0)
		return r;
	if (f->port == c->dns_port)
		return refuse("URL", c->url, "the DNS forwarder has this port on the gateway", e);
	char suffix[sizeof(":65535")] = "";
	if (f->port != scheme->port)
		(void)snprintf(suffix, sizeof(suffix), ":%u", f->port);
	(void)snprintf(f->origin, sizeof(f->origin), "%s%s%s", scheme->prefix, f->host, suffix);
	return 0;
}

static int read_target(const char *target, struct forge *f, struct err *e)
{
	if (!target[0])
		return 0;
	size_t n = strcspn(target, ":");
	if (target[n] != ':' || !read_host(target, n, f->target_host) ||
	    !read_port(target + n + 1, &f->target_port))
		return refuse("GUEST_FORGE_TARGET", target, "host:port", e);
	return 0;
}

int forge_read(const struct config *c, struct forge *ret, struct err *e)
{
	struct forge f = {.on = c->guest_forge && c->network_mode != NETWORK_NONE};
	int r = f.on ? read_url(c, &f, e) : 0;
	if (r == 0 && f.on)
		r = read_target(c->guest_forge_target, &f, e);
	if (r == 0)
		*ret = f;
	return r;
}
