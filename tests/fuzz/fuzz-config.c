/* The text of a configuration file: whatever it is, it is taken as a whole or refused with a sentence. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "spec/config.h"

static void check_text(const char *text, size_t size)
{
	REQUIRE(memchr(text, '\0', size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config *c = calloc(1, sizeof(*c)), *before = calloc(1, sizeof(*before));
	char *text = malloc(size + 1);
	REQUIRE(c && before && text);
	memcpy(text, data, size);
	text[size] = '\0';
	config_defaults(c);
	memcpy(before, c, sizeof(*c));
	struct err e = ERR_INIT;
	int r = config_read_text(c, "file", text, size, &e);
	REQUIRE(r == 0 || memcmp(c, before, sizeof(*c)) == 0);
	REQUIRE(e.code == r && (r == 0) == (e.msg[0] == '\0'));
	REQUIRE(c->capacity >= 1 && c->capacity <= 1024 && c->job_cpus >= 1 && c->job_cpus <= 128);
	REQUIRE(c->network_prefix <= 30 && c->job_memory_mib >= 256 && c->job_disk_mib >= 1024);
	check_text(c->state_dir, sizeof(c->state_dir));
	check_text(c->image_dir, sizeof(c->image_dir));
	check_text(c->image_oci, sizeof(c->image_oci));
	check_text(c->url, sizeof(c->url));
	r = config_check(c, &e);
	REQUIRE(r == 0 || r == -EINVAL);
	free(text);
	free(before);
	free(c);
	return 0;
}
