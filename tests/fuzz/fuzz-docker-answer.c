/* What Docker's daemon answers: taken as the JSON that it is, or refused with a sentence. As an image's description it
 * makes a request whose mounts are ours, or none. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "isolation/container/docker_plan.h"
#include "isolation/container/engine_answer.h"

/* A path with a slash at its end in which nothing leads elsewhere. */
static void check_target(const char *target)
{
	REQUIRE(target && target[0] == '/' && target[1]);
	REQUIRE(!strstr(target, "//") && !strstr(target, "/../") && !strstr(target, "/./"));
	REQUIRE(target[strlen(target) - 1] != '/');
}

static void check_mounts(const json_t *mounts)
{
	const json_t *mount, *other;
	size_t i, j;
	REQUIRE(json_is_array(mounts) && json_array_size(mounts) >= 3);
	json_array_foreach(mounts, i, mount)
	{
		const char *target = json_string_value(json_object_get(mount, "Target"));
		bool is_bind = strcmp(json_string_value(json_object_get(mount, "Type")), "bind") == 0;
		check_target(target);
		REQUIRE(is_bind == (i == 1 || i == 2));
		json_array_foreach(mounts, j, other)
		{
			const char *taken = json_string_value(json_object_get(other, "Target"));
			REQUIRE(i == j || strcmp(target, taken) != 0);
		}
	}
}

static void check_request(const json_t *image)
{
	static const struct docker_plan plan = {
		.id = "er1a2b3c4d",
		.store = "/s",
		.guest_dir = "/g",
		.door_dir = "/d",
		.cpus = 1,
	};
	scoped_json json_t *request = NULL;
	struct err e = ERR_INIT;
	int r = docker_plan_request(&plan, 41, image, &request, &e);
	REQUIRE(r == 0 || r == -EPROTO);
	REQUIRE(e.code == r && (r == 0) == (e.msg[0] == '\0') && (r == 0) == (request != NULL));
	if (r == 0)
		check_mounts(json_object_get(json_object_get(request, "HostConfig"), "Mounts"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	scoped_json json_t *value = NULL;
	struct err e = ERR_INIT;
	char said[ANSWER_SAID_MAX];
	const char *text = NULL;
	int r = answer_parse((const char *)data, size, &value, &e);
	REQUIRE(r == 0 || r == -EPROTO);
	REQUIRE(e.code == r && (r == 0) == (e.msg[0] == '\0') && (r == 0) == (value != NULL));
	if (r < 0)
		return 0;
	if (answer_complaint(value, said)) {
		REQUIRE(memchr(said, '\0', sizeof(said)));
		for (const char *at = said; *at; at++)
			REQUIRE((unsigned char)*at >= ' ' && *at != '\x7f');
	}
	r = answer_text_or_empty(value, "message", &text, &e);
	REQUIRE(r == 0 ? text != NULL : r == -EPROTO);
	check_request(value);
	return 0;
}
