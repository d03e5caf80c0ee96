#include "spec/libexec.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rd.h"
#include "base/scope.h"
#include "paths.h"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "not a machine that this program knows"
#endif

/* Our own executables have about a dozen program headers. */
enum { HEADERS_MAX = 64 };

#define HOW_TO_BUILD "`make` in the source tree builds a static one"

/* Writes the directory of the running executable into path. Returns its length or a negative errno. */
static ssize_t own_directory(char path[static CONFIG_PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", path, CONFIG_PATH_MAX);
	if (n < 0)
		return -errno;
	if (n == CONFIG_PATH_MAX)
		return -ENAMETOOLONG;
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	if (!slash)
		return -ENOENT;
	*slash = '\0';
	return slash - path;
}

int libexec_path(const char *name, char path[static CONFIG_PATH_MAX], struct err *e)
{
	char own[CONFIG_PATH_MAX];
	ssize_t n = own_directory(own);
	if (n < 0)
		return err_code(e, (int)n, "find the directory of this program");
	const char *directories[] = {own, ERMITE_LIBEXECDIR};
	char found[CONFIG_PATH_MAX];
	for (size_t i = 0; i < 2; i++) {
		int length = snprintf(found, sizeof(found), "%s/%s", directories[i], name);
		if (length < 0 || (size_t)length >= sizeof(found))
			return err_set(e, -ENAMETOOLONG, "%s/%s: path too long", directories[i], name);
		if (access(found, F_OK) == 0)
			break;
	}
	memcpy(path, found, sizeof(found));
	return 0;
}

/* What the file header says that matters here. */
struct elf {
	uint64_t headers_at;
	size_t n_headers;
};

/* Returns 0, or -ENOEXEC when these are not the first bytes of an executable for this machine. */
static int read_elf(const uint8_t *bytes, size_t n, struct elf *ret)
{
	static const uint8_t ident[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB};
	struct rd r = rd_over(bytes, n);
	const uint8_t *magic = rd_bytes(&r, EI_NIDENT);
	if (!magic || memcmp(magic, ident, sizeof(ident)) != 0)
		return -ENOEXEC;
	uint64_t type = rd_uint(&r, 2);
	uint64_t machine = rd_uint(&r, 2);
	(void)rd_bytes(&r, sizeof(Elf64_Word) + sizeof(Elf64_Addr));
	uint64_t headers_at = rd_u64(&r);
	(void)rd_bytes(&r, sizeof(Elf64_Off) + sizeof(Elf64_Word) + sizeof(Elf64_Half));
	uint64_t header_size = rd_uint(&r, 2);
	uint64_t n_headers = rd_uint(&r, 2);
	if (r.bad || (type != ET_EXEC && type != ET_DYN) || machine != MACHINE)
		return -ENOEXEC;
	if (header_size != sizeof(Elf64_Phdr) || n_headers == 0 || n_headers > HEADERS_MAX)
		return -ENOEXEC;
	*ret = (struct elf){.headers_at = headers_at, .n_headers = n_headers};
	return 0;
}

/* Looks through the program headers. Returns 0 or -ENOEXEC with a sentence. */
static int check_headers(int fd, const char *path, const struct elf *elf, struct err *e)
{
	uint8_t bytes[HEADERS_MAX * sizeof(Elf64_Phdr)];
	size_t size = elf->n_headers * sizeof(Elf64_Phdr);
	if (lseek(fd, (off_t)elf->headers_at, SEEK_SET) < 0)
		return err_set(e, -ENOEXEC, "%s is damaged; " HOW_TO_BUILD, path);
	ssize_t n = file_read_all(fd, bytes, size, e);
	if (n < 0)
		return err_ctx(e, (int)n, "%s", path);
	if ((size_t)n != size)
		return err_set(e, -ENOEXEC, "%s is cut short; " HOW_TO_BUILD, path);
	struct rd r = rd_over(bytes, size);
	for (size_t i = 0; i < elf->n_headers; i++) {
		uint32_t type = rd_u32(&r);
		(void)rd_bytes(&r, sizeof(Elf64_Phdr) - sizeof(Elf64_Word));
		if (type == PT_INTERP)
			return err_set(
				e, -ENOEXEC,
				"%s is dynamically linked and would not run in a sandbox; " HOW_TO_BUILD,
				path);
	}
	return 0;
}

int libexec_check_static(const char *path, struct err *e)
{
	scoped_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st = {0};
	if (fd < 0 || fstat(fd, &st) < 0) {
		int r = err_sys(e, "guest program %s", path);
		return r == -ENOENT ? err_set(e, r, "guest program %s is not there; " HOW_TO_BUILD, path) : r;
	}
	if (!S_ISREG(st.st_mode))
		return err_set(e, -ENOEXEC, "guest program %s is not a file; " HOW_TO_BUILD, path);
	uint8_t head[sizeof(Elf64_Ehdr)];
	ssize_t n = file_read_all(fd, head, sizeof(head), e);
	if (n < 0)
		return err_ctx(e, (int)n, "guest program %s", path);
	struct elf elf = {0};
	int r = read_elf(head, (size_t)n, &elf);
	if (r < 0)
		return err_set(e, r, "guest program %s is not an executable for this machine; " HOW_TO_BUILD,
			       path);
	r = check_headers(fd, path, &elf, e);
	return r < 0 ? err_ctx(e, r, "guest program") : 0;
}
