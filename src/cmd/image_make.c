#include "cmd/image_make.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/scope.h"
#include "cmd/image_recipe.h"
#include "spec/libexec.h"

enum { STATUS_MAX = 16 << 20 };

/* The names that one image has in its parent directory. */
struct place {
	int parent; /* owned */
	char name[NAME_MAX + 1];
	char fresh[NAME_MAX + 1]; /* where it is being made */
	char lock[NAME_MAX + 1];
};

static int place_open(const char *directory, struct place *ret, struct err *e)
{
	char parent[CONFIG_PATH_MAX];
	const char *slash = strrchr(directory, '/');
	if (!slash || !slash[1] || strlen(directory) >= sizeof(parent))
		return err_set(e, -EINVAL, "%s: not a path that an image can have", directory);
	(void)snprintf(parent, sizeof(parent), "%.*s", (int)(slash - directory), directory);
	if ((size_t)snprintf(ret->name, sizeof(ret->name), "%s", slash + 1) + strlen(".lock") >=
	    sizeof(ret->name))
		return err_set(e, -ENAMETOOLONG, "%s", directory);
	(void)snprintf(ret->fresh, sizeof(ret->fresh), "%.*s.new", (int)sizeof(ret->name) - 6, ret->name);
	(void)snprintf(ret->lock, sizeof(ret->lock), "%.*s.lock", (int)sizeof(ret->name) - 6, ret->name);
	int r = file_make_dirs(parent[0] ? parent : "/", 0700, e);
	if (r < 0)
		return r;
	ret->parent = open(parent[0] ? parent : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return ret->parent < 0 ? err_sys(e, "open %s", parent) : 0;
}

/* The lock file stays: removing it would let two builders lock two different files. */
static int place_lock(const struct place *p, int *ret_fd, struct err *e)
{
	scoped_fd int fd = openat(p->parent, p->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(e, "open %s", p->lock);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK
			       ? err_set(e, -EBUSY, "another image is being made for this directory")
			       : err_sys(e, "lock %s", p->lock);
	*ret_fd = fd_steal(&fd);
	return 0;
}

/* Writes image.json from what the recipe left, and removes that. */
static int describe(int fresh, const struct image_request *request, struct image_info *info, struct err *e)
{
	char facts[4096];
	struct stat base;

	ssize_t n = file_read_text(fresh, "facts", facts, sizeof(facts), e);
	if (n < 0)
		return (int)n;
	(void)snprintf(info->source, sizeof(info->source), "%s", request->kind);
	clock_format_utc(clock_wall_s(), info->created);
	int r = image_info_facts(info, facts, e);
	if (r < 0)
		return r;
	if (request->suite[0])
		(void)snprintf(info->suite, sizeof(info->suite), "%s", request->suite);
	if (fstatat(fresh, "base.ext4", &base, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, "base.ext4");
	info->size = (uint64_t)base.st_size;
	info->disk_size = (uint64_t)base.st_blocks * 512;

	scoped_buf struct buf packages = BUF_INIT(IMAGE_JSON_MAX / 2);
	scoped_buf struct buf json = BUF_INIT(IMAGE_JSON_MAX - 1);
	scoped_free char *status = calloc(1, STATUS_MAX);
	if (!status)
		return err_code(e, -ENOMEM, "dpkg-status");
	n = file_read_text(fresh, "dpkg-status", status, STATUS_MAX, NULL);
	if (n < 0 && n != -ENOENT)
		return err_code(e, (int)n, "dpkg-status");
	info->packages = image_packages_json(status, n > 0 ? (size_t)n : 0, &packages);
	image_info_json(info, buf_text(&packages), &json);
	if (buf_check(&packages) < 0 || buf_check(&json) < 0)
		return err_set(e, -ENOBUFS, "the list of packages is too long");
	if (unlinkat(fresh, "facts", 0) < 0 || (unlinkat(fresh, "dpkg-status", 0) < 0 && errno != ENOENT))
		return err_sys(e, "remove the recipe's notes");
	return file_replace(fresh, "image.json", 0644, json.p, json.n, e);
}

/* Puts the new image into the old one's place in one step. What was there is called like the new one was until it is
 * removed. */
static int swap_in(const struct place *p, struct err *e)
{
	int r = renameat2(p->parent, p->fresh, p->parent, p->name, RENAME_EXCHANGE);
	if (r < 0 && errno == ENOENT)
		r = renameat2(p->parent, p->fresh, p->parent, p->name, RENAME_NOREPLACE);
	if (r < 0)
		return err_sys(e, "put the new image in place");
	return fsync(p->parent) < 0 ? err_sys(e, "sync the directory of the image") : 0;
}

/* The arguments of images/make: itself, the kind, the directory, and the rest. */
static int run_recipe(const struct image_request *request, struct err *e)
{
	char recipe[CONFIG_PATH_MAX];
	char fresh[CONFIG_PATH_MAX + 8];
	const char *arguments[3 + IMAGE_RECIPE_ARGUMENTS + 1] = {recipe, request->kind, fresh};

	int r = libexec_path("image-make", recipe, e);
	if (r < 0)
		return r;
	(void)snprintf(fresh, sizeof(fresh), "%s.new", request->directory);
	for (size_t i = 0; i < IMAGE_RECIPE_ARGUMENTS && request->arguments[i]; i++)
		arguments[3 + i] = request->arguments[i];
	return image_recipe_run(recipe, arguments, request->no_network, request->verbose, e);
}

/* With the lock held and nothing in the way. Positive: a signal. */
static int make_and_swap(const struct place *p, const struct image_request *request, struct image_info *ret,
			 struct err *e)
{
	struct image_info info = IMAGE_INFO_INIT;

	if (mkdirat(p->parent, p->fresh, 0755) < 0)
		return err_sys(e, "make %s", p->fresh);
	int r = run_recipe(request, e);
	if (r != 0)
		return r;
	scoped_fd int fresh = -1;
	r = file_open_beneath(p->parent, p->fresh, O_RDONLY | O_DIRECTORY, 0, &fresh, e);
	if (r == 0)
		r = describe(fresh, request, &info, e);
	if (r == 0)
		r = swap_in(p, e);
	if (r == 0)
		*ret = info;
	return r;
}

int image_make(const struct image_request *request, struct image_info *ret, struct err *e)
{
	struct place place = {.parent = -1};
	scoped_fd int lock = -1;

	int r = place_open(request->directory, &place, e);
	scoped_fd int parent = place.parent;
	if (r == 0)
		r = place_lock(&place, &lock, e);
	if (r == 0)
		r = file_remove_tree(place.parent, place.fresh, e);
	if (r < 0)
		return err_ctx(e, r, "image %s", request->directory);
	r = make_and_swap(&place, request, ret, e);
	if (r < 0)
		r = err_ctx(e, r, "image %s", request->directory);
	/* The unfinished new image, or the old one. What cannot be removed now is removed before the next one. */
	(void)file_remove_tree(parent, place.fresh, NULL);
	return r;
}
