#include "client/forge_access.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/scope.h"

static int check_resolves(const char *item, const char *name, struct err *e)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	int r = getaddrinfo(name, NULL, &hints, &found);
	if (r != 0)
		return err_set(e, -EINVAL, "%s%s: this host does not resolve %s: %s", CONFIG_PREFIX, item,
			       name, r == EAI_SYSTEM ? err_text(-errno) : gai_strerror(r));
	freeaddrinfo(found);
	return 0;
}

int forge_access_resolves(const struct forge *f, struct err *e)
{
	int r = f->on ? check_resolves("URL", f->host, e) : 0;
	if (r == 0 && f->on && f->target_host[0])
		r = check_resolves("GUEST_FORGE_TARGET", f->target_host, e);
	return r;
}

static int rewrite(const struct forge *f, struct env *list, const char *name, struct err *e)
{
	static const char between[] = "://";
	const char *value = env_get(list, name);
	const char *authority = value ? strstr(value, between) : NULL;
	if (!authority)
		return 0;
	authority += strlen(between);
	scoped_buf struct buf out = BUF_INIT(FORGE_ORIGIN_SIZE + strlen(value));
	buf_str(&out, f->origin);
	buf_str(&out, authority + strcspn(authority, "/?#"));
	int r = buf_check(&out);
	return r < 0 ? err_code(e, r, "%s", name) : env_put(list, name, buf_text(&out), e);
}

int forge_access_rewrite(const struct forge *f, struct env *list, struct err *e)
{
	static const char *const names[] = {
		"GITHUB_SERVER_URL",   "GITHUB_API_URL",    "GITHUB_GRAPHQL_URL", "GITEA_SERVER_URL",
		"GITEA_API_URL",       "GITEA_GRAPHQL_URL", "FORGEJO_SERVER_URL", "FORGEJO_API_URL",
		"FORGEJO_GRAPHQL_URL", "CI_SERVER_URL",     "CI_API_V4_URL",      "CI_API_GRAPHQL_URL",
	};
	int r = 0;
	for (size_t i = 0; f->on && i < sizeof(names) / sizeof(names[0]) && r == 0; i++)
		r = rewrite(f, list, names[i], e);
	return r;
}
