#include "isolation/container/docker_parts.h"

int docker_image_inspect(struct engine *g, const char *reference, json_t **ret, struct err *e)
{
	scoped_buf struct buf path = BUF_INIT(ENGINE_PATH_MAX);
	buf_str(&path, "/images/");
	docker_escape(&path, reference);
	buf_str(&path, "/json");
	const struct engine_request q = {.method = "GET", .path = buf_text(&path), .ms = DOCKER_LOOK_MS};
	return engine_call(g, &q, ret, e);
}
