#include "resource/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/num.h"
#include "base/scope.h"
#include "sys/process.h"

#define RECORD_FILE "record"
#define RECORD_HEAD "ermite-record 1"

enum { RECORD_FILE_MAX = 16384 };

struct record {
	int store_fd;
	int dir_fd; /* holds the lock */
	int file_fd;
	struct record_info info;
};

/* Whoever may change the state directory or one above it could put another in its place. What is not there yet is made
 * by us, in the deepest one that is. Locks there say who owns what, and files there are attached to loop devices. */
static int check_place(const char *state_dir, struct err *e)
{
	char path[CONFIG_PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s", state_dir);
	if (n < 0 || (size_t)n >= sizeof(path) || path[0] != '/')
		return err_set(e, -EINVAL, "no absolute path");
	for (;;) {
		scoped_fd int fd = -1;
		int r = file_open_owned(path, &fd, e);
		char *slash = strrchr(path, '/');
		if (r != -ENOENT || slash == path)
			return r < 0 ? r : file_check_local(fd, path, e);
		*slash = '\0';
	}
}

int record_open_store(const char *state_dir, int *ret_fd, struct err *e)
{
	char path[CONFIG_PATH_MAX + 16];
	int n = snprintf(path, sizeof(path), "%s/sandboxes", state_dir);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, -ENAMETOOLONG, "state directory %s", state_dir);
	scoped_fd int fd = -1;
	int r = check_place(state_dir, e);
	if (r == 0)
		r = file_make_dirs(state_dir, 0700, e);
	if (r == 0)
		r = file_make_dirs(path, 0700, e);
	if (r == 0)
		r = file_open_owned(path, &fd, e);
	if (r == 0)
		r = file_check_local(fd, path, e);
	if (r < 0)
		return err_ctx(e, r, "state directory %s", state_dir);
	*ret_fd = fd_steal(&fd);
	return 0;
}

static int lock(int fd, int how)
{
	int r = flock(fd, how);
	while (r < 0 && errno == EINTR)
		r = flock(fd, how);
	return r < 0 ? -errno : 0;
}

/* --- reading ------------------------------------------------------------------------------------------------- */

typedef bool line_fn(struct record_info *i, const char *value);

static bool read_boot(struct record_info *i, const char *value)
{
	size_t n = strlen(value);
	if (n + 1 != sizeof(i->boot_id))
		return false;
	memcpy(i->boot_id, value, n + 1);
	return true;
}

static bool read_isolation(struct record_info *i, const char *value)
{
	for (enum isolation k = ISOLATION_VM; k <= ISOLATION_SYSTEM; k++) {
		if (strcmp(value, isolation_name(k)) == 0) {
			i->isolation = k;
			return true;
		}
	}
	return false;
}

static bool read_slot(struct record_info *i, const char *value)
{
	uint64_t slot = 0;
	if (num_parse(value, 0, SLOTS_MAX - 1, &slot) < 0)
		return false;
	i->slot = (uint32_t)slot;
	return true;
}

static bool read_created(struct record_info *i, const char *value)
{
	return num_parse(value, 0, UINT64_MAX, &i->created_s) == 0;
}

static bool copy_name(char to[static RECORD_NAME_MAX], const char *from)
{
	size_t n = strlen(from);
	if (n == 0 || n >= RECORD_NAME_MAX)
		return false;
	memcpy(to, from, n + 1);
	return true;
}

/* "<name> <pid> <start time>" */
static bool read_process_into(struct record_process *p, const char *value)
{
	char copy[RECORD_NAME_MAX + 48];
	size_t n = strlen(value);
	if (n >= sizeof(copy))
		return false;
	memcpy(copy, value, n + 1);
	char *save = NULL;
	const char *name = strtok_r(copy, " ", &save);
	const char *pid_text = strtok_r(NULL, " ", &save);
	const char *start_text = strtok_r(NULL, " ", &save);
	uint64_t pid = 0;
	if (!start_text || !copy_name(p->name, name) || num_parse(pid_text, 2, INT32_MAX, &pid) < 0)
		return false;
	p->pid = (pid_t)pid;
	return num_parse(start_text, 0, UINT64_MAX, &p->start_time) == 0;
}

static bool read_keeper(struct record_info *i, const char *value)
{
	return read_process_into(&i->keeper, value);
}

/* A name that is there already is that of a helper that ended and was started anew. */
static bool read_process(struct record_info *i, const char *value)
{
	struct record_process p;
	unsigned at = 0;
	if (!read_process_into(&p, value))
		return false;
	while (at < i->n_processes && strcmp(i->processes[at].name, p.name) != 0)
		at++;
	if (at == RECORD_PROCESSES_MAX)
		return false;
	i->processes[at] = p;
	i->n_processes += at == i->n_processes;
	return true;
}

static bool read_resource(struct record_info *i, const char *value)
{
	return i->n_resources < RECORD_RESOURCES_MAX && copy_name(i->resources[i->n_resources], value) &&
	       ++i->n_resources;
}

static bool read_state(struct record_info *i, const char *value)
{
	return copy_name(i->state, value);
}

/* Any text, for display: control bytes were replaced when it was written. */
static void copy_text(char *to, size_t size, const char *from)
{
	size_t n = strnlen(from, size - 1);
	memcpy(to, from, n);
	to[n] = '\0';
}

static bool read_job(struct record_info *i, const char *value)
{
	copy_text(i->job_id, sizeof(i->job_id), value);
	return true;
}

/* It becomes an argument of a program, and nothing else. */
static bool read_docker(struct record_info *i, const char *value)
{
	if (value[0] != '/' || strlen(value) >= sizeof(i->docker))
		return false;
	copy_text(i->docker, sizeof(i->docker), value);
	return true;
}

static bool read_left(struct record_info *i, const char *value)
{
	copy_text(i->left, sizeof(i->left), value);
	return true;
}

static const struct {
	const char *key;
	line_fn *read;
} lines[] = {
	{"boot ", read_boot},         {"isolation ", read_isolation}, {"slot ", read_slot},
	{"created ", read_created},   {"keeper ", read_keeper},       {"process ", read_process},
	{"resource ", read_resource}, {"state ", read_state},         {"job ", read_job},
	{"left ", read_left},         {"docker ", read_docker},
};

static bool read_line(struct record_info *i, const char *line)
{
	for (size_t k = 0; k < sizeof(lines) / sizeof(lines[0]); k++) {
		size_t n = strlen(lines[k].key);
		if (strncmp(line, lines[k].key, n) == 0)
			return lines[k].read(i, line + n);
	}
	return true; /* a later version's fact */
}

/* Whole lines only. True when the head, the boot and the slot are there. */
static bool read_text(struct record_info *i, char *text)
{
	char *end = strrchr(text, '\n');
	char *save = NULL;
	if (!end)
		return false;
	*end = '\0';
	const char *line = strtok_r(text, "\n", &save);
	if (!line || strcmp(line, RECORD_HEAD) != 0)
		return false;
	for (line = strtok_r(NULL, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!read_line(i, line))
			return false;
		i->has_slot = i->has_slot || strncmp(line, "slot ", 5) == 0;
	}
	return i->has_slot && i->boot_id[0];
}

/* True for what goes on only with more descriptors or memory, and says nothing about a file. */
static bool is_want(int code)
{
	return code == -EMFILE || code == -ENFILE || code == -ENOMEM;
}

/* Returns 0, whatever is in the record, or a negative errno when it could not be looked at: then nobody may believe
 * that it names no slot. */
static int read_record(int dir_fd, const char *id, struct record_info *ret, struct err *e)
{
	*ret = (struct record_info){0};
	memcpy(ret->id, id, ID_SIZE);
	scoped_fd int fd = -1;
	scoped_free char *text = malloc(RECORD_FILE_MAX + 1);
	if (!text)
		return err_set(e, -ENOMEM, "record of sandbox %s: out of memory", id);
	int code = file_open_beneath(dir_fd, RECORD_FILE, O_RDONLY, 0, &fd, NULL);
	if (is_want(code))
		return err_code(e, code, "open the record of sandbox %s", id);
	ssize_t n = code < 0 ? 0 : file_read_all(fd, text, RECORD_FILE_MAX, NULL);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	ret->readable = read_text(ret, text);
	return 0;
}

/* --- the store ----------------------------------------------------------------------------------------------- */

int record_each(int store_fd, record_each_fn *fn, void *data, struct err *e)
{
	scoped_fd int again = openat(store_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	scoped_dir DIR *d = again < 0 ? NULL : fdopendir(again);
	if (!d)
		return err_sys(e, "read the store of sandboxes");
	(void)fd_steal(&again);
	for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
		if (!id_valid(entry->d_name))
			continue;
		scoped_fd int dir =
			openat(store_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (dir < 0 && is_want(-errno))
			return err_sys(e, "open the directory of sandbox %s", entry->d_name);
		if (dir < 0)
			continue; /* removed meanwhile, or no directory */
		int r = fn(data, dir, entry->d_name, e);
		if (r < 0)
			return r;
	}
	return 0;
}

struct listing {
	struct record_info *infos;
	size_t n, cap;
};

static int list_one(void *data, int dir_fd, const char *id, struct err *e)
{
	struct listing *l = data;
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 8;
		struct record_info *more = reallocarray(l->infos, cap, sizeof(*more));
		if (!more)
			return err_set(e, -ENOMEM, "list sandboxes: out of memory");
		l->infos = more;
		l->cap = cap;
	}
	struct record_info *i = &l->infos[l->n];
	int r = read_record(dir_fd, id, i, e);
	if (r < 0)
		return r;
	i->held = lock(dir_fd, LOCK_SH | LOCK_NB) == -EWOULDBLOCK;
	l->n++;
	return 0;
}

static int by_slot(const void *a, const void *b)
{
	const struct record_info *x = a;
	const struct record_info *y = b;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

int record_list(int store_fd, struct record_info **ret, size_t *ret_n, struct err *e)
{
	struct listing l = {0};
	/* A shared lock that we hold for a moment must not look like a keeper to one who allocates. */
	int r = lock(store_fd, LOCK_EX);
	if (r == 0)
		r = record_each(store_fd, list_one, &l, e);
	(void)lock(store_fd, LOCK_UN);
	if (r < 0) {
		free(l.infos);
		return r;
	}
	if (l.n > 0)
		qsort(l.infos, l.n, sizeof(l.infos[0]), by_slot);
	*ret = l.infos;
	*ret_n = l.n;
	return 0;
}

/* --- making -------------------------------------------------------------------------------------------------- */

struct count {
	struct slots slots;
	uint32_t n;
};

static int count_one(void *data, int dir_fd, const char *id, struct err *e)
{
	struct count *c = data;
	struct record_info i;
	int r = read_record(dir_fd, id, &i, e);
	if (i.has_slot)
		slots_mark(&c->slots, i.slot);
	c->n++;
	return r;
}

/* One line of display text, whatever the caller's text holds. */
static void add_text(struct buf *b, const char *key, const char *text)
{
	buf_str(b, key);
	for (const char *p = text; *p; p++) {
		char c = (unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p;
		buf_add(b, &c, 1);
	}
	buf_str(b, "\n");
}

static int write_first(struct record *r, const struct sandbox_spec *spec, const char *const *resources,
		       struct err *e)
{
	struct record_info *i = &r->info;
	scoped_buf struct buf b = BUF_INIT(RECORD_FILE_MAX);
	int code = process_boot_id(i->boot_id, e);
	if (code == 0)
		code = process_start_time(getpid(), &i->keeper.start_time, e);
	if (code < 0)
		return code;
	i->keeper.pid = getpid();
	i->created_s = clock_wall_s();
	i->isolation = spec->config.isolation;
	buf_fmt(&b, RECORD_HEAD "\nboot %s\nisolation %s\nslot %u\ncreated %llu\nkeeper keeper %d %llu\n",
		i->boot_id, isolation_name(i->isolation), i->slot, (unsigned long long)i->created_s,
		i->keeper.pid, (unsigned long long)i->keeper.start_time);
	add_text(&b, "job ", spec->job_id);
	if (spec->docker.socket[0]) {
		copy_text(i->docker, sizeof(i->docker), spec->docker.socket);
		add_text(&b, "docker ", i->docker);
	}
	for (; *resources; resources++) {
		buf_fmt(&b, "resource %s\n", *resources);
		if (!read_resource(i, *resources))
			return err_set(e, -EINVAL, "resource name %s", *resources);
	}
	code = buf_check(&b);
	if (code < 0)
		return err_code(e, code, "write the record");
	code = file_open_beneath(r->dir_fd, RECORD_FILE, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0600,
				 &r->file_fd, e);
	if (code == 0)
		code = file_write_all(r->file_fd, b.p, b.n, e);
	if (code < 0)
		return code;
	/* What comes later must find room, however full the disk is by then. Not every file system can promise that. */
	(void)fallocate(r->file_fd, FALLOC_FL_KEEP_SIZE, 0, RECORD_FILE_MAX);
	/* One sync: file systems with a journal write the new names with the new file. Should a power cut lose the
	 * record all the same, the directory's name is enough to remove what is in it; nothing else outlives that. */
	if (fsync(r->file_fd) < 0)
		return err_sys(e, "sync the record");
	i->readable = true;
	i->has_slot = true;
	return 0;
}

static int make_locked(struct record *r, const struct sandbox_spec *spec, const char *const *resources,
		       struct err *e)
{
	struct count c = {0};
	int code = record_each(r->store_fd, count_one, &c, e);
	if (code < 0)
		return code;
	/* One whose slot cannot be read keeps a place too, though nobody knows which. */
	int slot = c.n >= spec->config.capacity ? -ENOSPC : slots_take(&c.slots, spec->config.capacity);
	if (slot < 0)
		return err_set(e, -ENOSPC,
			       "no free slot: %u of %u sandboxes are there (ERMITE_RUNNER_CAPACITY)", c.n,
			       spec->config.capacity);
	r->info.slot = (uint32_t)slot;
	code = id_make(r->info.id, e);
	if (code < 0)
		return code;
	if (mkdirat(r->store_fd, r->info.id, 0700) < 0)
		return err_sys(e, "make the directory of sandbox %s", r->info.id);
	code = file_open_beneath(r->store_fd, r->info.id, O_RDONLY | O_DIRECTORY, 0, &r->dir_fd, e);
	if (code == 0)
		code = lock(r->dir_fd, LOCK_EX | LOCK_NB);
	if (code == 0)
		code = write_first(r, spec, resources, e);
	if (code < 0)
		(void)file_remove_tree(r->store_fd, r->info.id, NULL);
	return code;
}

static struct record *record_new(int store_fd)
{
	struct record *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->dir_fd = r->file_fd = -1;
	r->store_fd = fcntl(store_fd, F_DUPFD_CLOEXEC, 3);
	if (r->store_fd < 0) {
		free(r);
		return NULL;
	}
	return r;
}

int record_create(int store_fd, const struct sandbox_spec *spec, const char *const *resources,
		  struct record **ret, struct err *e)
{
	struct record *r = record_new(store_fd);
	if (!r)
		return err_sys(e, "make a record");
	int code = lock(store_fd, LOCK_EX);
	if (code < 0)
		code = err_code(e, code, "lock the store of sandboxes");
	else
		code = make_locked(r, spec, resources, e);
	(void)lock(store_fd, LOCK_UN);
	if (code < 0) {
		record_free(r);
		return code;
	}
	*ret = r;
	return 0;
}

/* --- taking over --------------------------------------------------------------------------------------------- */

struct orphans {
	char ids[SLOTS_MAX][ID_SIZE];
	size_t n;
};

static int find_orphan(void *data, int dir_fd, const char *id, struct err *)
{
	struct orphans *o = data;
	if (o->n < SLOTS_MAX && lock(dir_fd, LOCK_EX | LOCK_NB) == 0)
		memcpy(o->ids[o->n++], id, ID_SIZE);
	return 0;
}

/* Locks a record for good if it is still without a keeper. Returns 0, 1 when it is gone or held again, or a negative
 * errno. */
static int take_over_locked(struct record *r, const char *id, struct err *e)
{
	int code = file_open_beneath(r->store_fd, id, O_RDONLY | O_DIRECTORY, 0, &r->dir_fd, NULL);
	if (is_want(code))
		return err_code(e, code, "open its directory");
	if (code < 0 || lock(r->dir_fd, LOCK_EX | LOCK_NB) < 0)
		return 1;
	code = read_record(r->dir_fd, id, &r->info, e);
	if (code < 0)
		return code;
	code = file_open_beneath(r->dir_fd, RECORD_FILE, O_WRONLY | O_APPEND, 0, &r->file_fd, NULL);
	return is_want(code) ? err_code(e, code, "open its record") : 0;
}

/* Whoever lists records holds their locks for an instant, with the store locked: that must not look like a keeper. */
static int take_over(int store_fd, const char *id, struct record **ret, struct err *e)
{
	struct record *r = record_new(store_fd);
	if (!r)
		return err_sys(e, "take over sandbox %s", id);
	int code = lock(store_fd, LOCK_EX);
	if (code < 0)
		code = err_code(e, code, "lock the store of sandboxes");
	else
		code = take_over_locked(r, id, e);
	(void)lock(store_fd, LOCK_UN);
	if (code != 0) {
		record_free(r);
		return code < 0 ? err_ctx(e, code, "take over sandbox %s", id) : code;
	}
	*ret = r;
	return 0;
}

int record_for_orphans(int store_fd, record_orphan_fn *fn, void *data, struct err *e)
{
	scoped_free struct orphans *o = calloc(1, sizeof(*o));
	if (!o)
		return err_set(e, -ENOMEM, "look for orphans: out of memory");
	int code = lock(store_fd, LOCK_EX);
	if (code == 0)
		code = record_each(store_fd, find_orphan, o, e);
	(void)lock(store_fd, LOCK_UN);
	for (size_t i = 0; code == 0 && i < o->n; i++) {
		struct record *r = NULL;
		code = take_over(store_fd, o->ids[i], &r, e);
		if (code == 0)
			fn(data, r);
		else if (code > 0)
			code = 0;
	}
	return code;
}

/* Appends a line in whole or not at all: half of one would spoil the record. */
static int append(struct record *r, const char *line, size_t n, struct err *e)
{
	struct stat st;
	if (fstat(r->file_fd, &st) < 0)
		return err_sys(e, "look at the record");
	if (st.st_size + (off_t)n > RECORD_FILE_MAX)
		return err_set(e, -EFBIG, "the record is full");
	int code = file_write_all(r->file_fd, line, n, e);
	if (code < 0 && ftruncate(r->file_fd, st.st_size) < 0)
		return err_ctx(e, code, "the record is torn");
	return code;
}

int record_add_process(struct record *r, const char *name, pid_t pid, struct err *e)
{
	uint64_t start = 0;
	char line[RECORD_NAME_MAX + 64];
	int code = process_start_time(pid, &start, e);
	if (code < 0)
		return code;
	int n = snprintf(line, sizeof(line), "process %s %d %llu", name, pid, (unsigned long long)start);
	/* What cannot be read would spoil the record. */
	if (n < 0 || (size_t)n >= sizeof(line) - 1 || !read_line(&r->info, line))
		return err_set(e, -EINVAL, "process %s in a record", name);
	line[n++] = '\n';
	return append(r, line, (size_t)n, e);
}

void record_set_state(struct record *r, const char *state)
{
	char line[RECORD_NAME_MAX + 16];
	int n = snprintf(line, sizeof(line), "state %s\n", state);
	if (n > 0 && (size_t)n < sizeof(line))
		(void)!append(r, line, (size_t)n, NULL);
}

void record_set_left(struct record *r, const char *reason)
{
	static const char key[] = "left ";
	char text[RECORD_LEFT_MAX];
	scoped_buf struct buf line = BUF_INIT(RECORD_LEFT_MAX + sizeof(key));
	copy_text(text, sizeof(text), reason);
	add_text(&line, key, text);
	if (buf_check(&line) < 0)
		return;
	copy_text(text, line.n - strlen(key), buf_text(&line) + strlen(key));
	/* Each reap finds the same again. */
	if (strcmp(text, r->info.left) == 0)
		return;
	(void)!append(r, buf_text(&line), line.n, NULL);
	copy_text(r->info.left, sizeof(r->info.left), text);
}

const struct record_info *record_info(const struct record *r)
{
	return &r->info;
}

int record_dir(const struct record *r)
{
	return r->dir_fd;
}

int record_remove(struct record **r, struct err *e)
{
	struct err own = ERR_INIT;
	int code = file_remove_tree((*r)->store_fd, (*r)->info.id, &own);
	if (code < 0) {
		record_set_left(*r, own.msg); /* where its file is still there */
		return err_set(e, code, "%s", own.msg);
	}
	record_free(*r);
	*r = NULL;
	return 0;
}

void record_free(struct record *r)
{
	if (!r)
		return;
	fd_close(&r->file_fd);
	fd_close(&r->dir_fd);
	fd_close(&r->store_fd);
	free(r);
}
