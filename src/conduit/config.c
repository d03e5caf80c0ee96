#include <errno.h>

#include "base/file.h"
#include "conduit/conduit.h"

#define HELLO_MS 10000
#define FRAME_MS 30000
#define COPY_MS  60000

void conduit_config_init(struct conduit_config *c, uid_t uid, uid_t peer_uid)
{
	*c = (struct conduit_config){
		.magic = CONDUIT_MAGIC,
		.size = sizeof(*c),
		.uid = uid,
		.peer_uid = peer_uid,
		.hello_ms = HELLO_MS,
		.frame_ms = FRAME_MS,
		.copy_ms = COPY_MS,
	};
}

int conduit_config_read(int fd, struct conduit_config *ret, struct err *e)
{
	struct conduit_config c = {0};
	ssize_t n = file_read_all(fd, &c, sizeof(c), e);
	if (n < 0)
		return err_ctx(e, (int)n, "configuration");
	if (n != (ssize_t)sizeof(c) || c.magic != CONDUIT_MAGIC || c.size != sizeof(c))
		return err_set(e, -EINVAL, "configuration: it is not one of this build");
	*ret = c;
	return 0;
}
