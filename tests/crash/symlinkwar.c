/*
 * A war about links: opens files in ways of ours, and in one that is known to be wrong, below a directory in which
 * processes of another user exchange directories and files for links to somebody else's as fast as they can.
 *
 * symlinkwar DIRECTORY TRIES
 *
 * DIRECTORY is empty and root's. For each way there is a line of JSON: how often something was opened, how often
 * that was refused, and how often it was what lies outside. Each has its tries and goes on until it has met both;
 * the wrong one ends when it has been outside, which shows that the attack works. None takes longer than LIMIT_S.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/named.h"
#include "base/num.h"
#include "base/scope.h"
#include "guest/paths.h"

enum { ATTACKER = 4001, LIMIT_S = 600, TREE_FILES = 20, TREE_TAKES = 256 };

/* Everything outside; a descriptor of one of these is an escape. */
static const char *const outside[] = {"victim", "victim/f", "victim/d", "victim/d/f"};

/* What is opened, relative to DIRECTORY/base. */
static const struct {
	const char *path;
	int flags;
} wanted[] = {
	{"work/f", O_RDWR},
	{"work/d/f", O_RDWR},
	{"work/d", O_RDONLY | O_DIRECTORY},
	{"work", O_RDONLY | O_DIRECTORY},
};

enum { N_OUTSIDE = sizeof(outside) / sizeof(outside[0]), N_WANTED = sizeof(wanted) / sizeof(wanted[0]) };

struct war {
	char directory[PATH_MAX];
	int base;
	struct stat outside[N_OUTSIDE];
	unsigned long tries;
};

static _Noreturn void give_up(const char *what)
{
	(void)fprintf(stderr, "symlinkwar: %s: %s\n", what, err_text(errno));
	exit(2);
}

/* --- the field --------------------------------------------------------------------------------------------------- */

static void make_dir(const char *path, uid_t owner)
{
	if (mkdir(path, 0755) < 0 || lchown(path, owner, owner) < 0)
		give_up(path);
}

static void make_file(const char *path, uid_t owner)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || fchown(fd, owner, owner) < 0)
		give_up(path);
}

static void make_link(const char *target, const char *path)
{
	if (symlink(target, path) < 0 || lchown(path, ATTACKER, ATTACKER) < 0)
		give_up(path);
}

/* In the current directory, which is the war's. */
static void make_field(struct war *w)
{
	char victim[PATH_MAX + 8];
	(void)snprintf(victim, sizeof(victim), "%s/victim", w->directory);
	make_dir("victim", 0);
	make_file("victim/f", 0);
	make_dir("victim/d", 0);
	make_file("victim/d/f", 0);
	make_dir("base", ATTACKER);
	make_dir("base/work", ATTACKER);
	make_file("base/work/f", ATTACKER);
	make_dir("base/work/d", ATTACKER);
	make_file("base/work/d/f", ATTACKER);
	make_link(victim, "base/evil");
	make_link("../../victim/d", "base/work/e");
	make_link("../../victim/f", "base/work/g");
	make_dir("base/tree", ATTACKER);
	for (size_t i = 0; i < N_OUTSIDE; i++)
		if (lstat(outside[i], &w->outside[i]) < 0)
			give_up(outside[i]);
	w->base = open("base", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (w->base < 0)
		give_up("base");
}

/* Exchanges two names of a directory until it is killed. */
static pid_t attack(const char *directory, const char *a, const char *b)
{
	pid_t parent = getpid();
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	int at = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0 || setresuid(ATTACKER, ATTACKER, ATTACKER) < 0)
		_exit(1);
	/* Another user is one whom the kernel does not tell of a parent's end, unless asked now. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		_exit(1);
	for (;;)
		(void)renameat2(at, a, at, b, RENAME_EXCHANGE);
}

/* --- ways -------------------------------------------------------------------------------------------------------- */

typedef int way_fn(const struct war *w, const char *path, int flags);

/* Looks first and opens then; between the two lies whatever a program does. */
static int look_and_open(const struct war *w, const char *path, int flags)
{
	struct stat st;
	char full[PATH_MAX + 64];
	(void)snprintf(full, sizeof(full), "%s/base/%s", w->directory, path);
	if (lstat(full, &st) < 0 || S_ISLNK(st.st_mode))
		return -ELOOP;
	(void)sched_yield();
	int fd = open(full, flags | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int beneath(const struct war *w, const char *path, int flags)
{
	int fd = -1;
	int r = file_open_beneath(w->base, path, flags, 0, &fd, NULL);
	return r < 0 ? r : fd;
}

/* Nothing below a directory of the attacker's may be made anywhere else. */
static int make_beneath(const struct war *w, const char *path, int flags)
{
	char made[64];
	int fd = -1;
	(void)snprintf(made, sizeof(made), "%s/made", path);
	int r = file_open_beneath(w->base, flags & O_DIRECTORY ? made : path, O_RDWR | O_CREAT, 0600, &fd,
				  NULL);
	return r < 0 ? r : fd;
}

static int in_root(const struct war *w, const char *path, int flags)
{
	int fd = -1;
	int r = file_open_in_root(w->base, path, flags, &fd, NULL);
	return r < 0 ? r : fd;
}

static int guest_in_root(const struct war *w, const char *path, int flags)
{
	int fd = -1;
	int r = paths_open_root(w->base, path, flags, &fd, NULL);
	return r < 0 ? r : fd;
}

static int named(const struct war *w, const char *path, int flags)
{
	char full[PATH_MAX + 64];
	int fd = -1;
	(void)snprintf(full, sizeof(full), "%s/base/%s", w->directory, path);
	int r = named_open(full, flags, &fd, NULL);
	return r < 0 ? r : fd;
}

/* Makes a directory and a link that are exchanged from then on, and removes both. What the link leads to is looked at
 * afterwards. */
static int remove_tree(const struct war *w, const char *, int)
{
	char name[16];
	scoped_fd int tree = openat(w->base, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (mkdirat(tree, "dir", 0755) < 0)
		give_up("make a directory in the tree");
	scoped_fd int dir = openat(tree, "dir", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	for (int i = 0; i < TREE_FILES; i++) {
		(void)snprintf(name, sizeof(name), "%d", i);
		scoped_fd int file = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (file < 0)
			give_up("make a file in the tree");
	}
	if (symlinkat("../../victim/d", tree, "link") < 0)
		give_up("make a link in the tree");
	int r = file_remove_tree(tree, "dir", NULL);
	while (file_remove_tree(tree, "link", NULL) < 0 || file_remove_tree(tree, "dir", NULL) < 0)
		r = -EAGAIN;
	return r < 0 ? r : fcntl(tree, F_DUPFD_CLOEXEC, 3);
}

/* From now on openat2() is unknown, as on an old kernel. */
static void forget_openat2(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
		give_up("seccomp");
}

/* The last ones are without openat2(). */
static const struct {
	const char *name;
	way_fn *open;
	unsigned takes; /* as long as so many tries */
	bool is_wrong;
	bool without_openat2;
} ways[] = {
	{"look and open", look_and_open, 1, true, false},
	{"file_open_beneath", beneath, 1, false, false},
	{"file_open_beneath, making", make_beneath, 1, false, false},
	{"file_open_in_root", in_root, 1, false, false},
	{"paths_open_root", guest_in_root, 1, false, false},
	{"named_open", named, 1, false, false},
	{"file_remove_tree", remove_tree, TREE_TAKES, false, false},
	{"file_open_beneath, walking", beneath, 1, false, true},
	{"file_remove_tree, walking", remove_tree, TREE_TAKES, false, true},
};

enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

/* --- the war ----------------------------------------------------------------------------------------------------- */

static bool is_outside(const struct war *w, int fd)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		give_up("look at what was opened");
	for (size_t i = 0; i < N_OUTSIDE; i++)
		if (st.st_dev == w->outside[i].st_dev && st.st_ino == w->outside[i].st_ino)
			return true;
	return false;
}

/* On a busy machine the attackers may not have run yet when all tries are made. */
static bool is_over(const struct war *w, int way, unsigned long opened, unsigned long refused,
		    unsigned long escaped)
{
	if (ways[way].is_wrong)
		return escaped > 0;
	return opened + refused >= w->tries / ways[way].takes && opened > 0 && refused > 0;
}

static void fight(const struct war *w, int way)
{
	unsigned long opened = 0, refused = 0, escaped = 0;
	uint64_t end_ms = clock_boot_ms() + LIMIT_S * UINT64_C(1000);
	while (!is_over(w, way, opened, refused, escaped) && clock_boot_ms() < end_ms) {
		size_t i = (opened + refused) % N_WANTED;
		scoped_fd int fd = ways[way].open(w, wanted[i].path, wanted[i].flags);
		opened += fd >= 0;
		refused += fd < 0;
		escaped += fd >= 0 && is_outside(w, fd);
	}
	(void)printf("{\"way\": \"%s\", \"opened\": %lu, \"refused\": %lu, \"escaped\": %lu}\n",
		     ways[way].name, opened, refused, escaped);
	(void)fflush(stdout);
}

int main(int argc, char *argv[])
{
	struct war w = {.base = -1};
	uint64_t tries = 0;
	if (argc != 3 || !realpath(argv[1], w.directory) || num_parse(argv[2], 1, INT_MAX, &tries) < 0)
		give_up("symlinkwar DIRECTORY TRIES");
	w.tries = tries;
	if (chdir(w.directory) < 0)
		give_up(w.directory);
	make_field(&w);
	const pid_t attackers[] = {
		attack("base", "work", "evil"),
		attack("base/work", "d", "e"),
		attack("base/work", "f", "g"),
		attack("base/tree", "dir", "link"),
	};
	for (int i = 0; i < N_WAYS; i++) {
		if (ways[i].without_openat2)
			forget_openat2();
		fight(&w, i);
	}
	for (size_t i = 0; i < sizeof(attackers) / sizeof(attackers[0]); i++) {
		(void)kill(attackers[i], SIGKILL);
		(void)waitpid(attackers[i], NULL, 0);
	}
	return 0;
}
