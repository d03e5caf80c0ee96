/*
 * What is known of an image: image.json, written once when the image is made and read by whoever lists it.
 *
 * Pure bytes and structs, but for image_info_load().
 */
#ifndef ERMITE_CMD_IMAGE_INFO_H
#define ERMITE_CMD_IMAGE_INFO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define IMAGE_JSON_MAX (8u << 20) /* bytes of image.json at most */

struct image_info {
	char source[16];    /* "debian" or "tar" */
	char suite[64];     /* of Debian; for an archive what it says of itself, or empty */
	char created[21];   /* UTC */
	char init[64];      /* of the image; empty when it has none */
	bool has_systemd;   /* the init is systemd */
	char sha256[65];    /* of base.ext4, lower-case hex */
	uint64_t size;      /* bytes of base.ext4 */
	uint64_t disk_size; /* bytes that base.ext4 takes on the disk, holes not counted */
	uint64_t packages;  /* number of Debian packages */
};

#define IMAGE_INFO_INIT ((struct image_info){0})

/* Reads the facts that making the image left (lines of a name and a value) into info. Unknown names are passed over.
 * Returns 0, or -EINVAL for a value that does not fit or has not its form. */
[[nodiscard]] int image_info_facts(struct image_info *info, const char *text, struct err *e);

/* Appends the installed packages of a dpkg status file (n bytes) to out as a JSON array of objects with "name",
 * "version" and "architecture". Returns their number. */
uint64_t image_packages_json(const char *status, size_t n, struct buf *out);

/* Appends image.json: one object; packages is the array from image_packages_json(). */
void image_info_json(const struct image_info *info, const char *packages, struct buf *out);

/* Reads image.json text of n bytes. Returns 0 or -EINVAL. */
[[nodiscard]] int image_info_parse(const char *text, size_t n, struct image_info *ret, struct err *e);

/* Reads image.json of the image directory. Returns 0; -ENOENT when there is none; another negative errno. */
[[nodiscard]] int image_info_load(const char *directory, struct image_info *ret, struct err *e);

#endif
