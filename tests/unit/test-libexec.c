#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "spec/libexec.h"

enum { N_HEADERS = 3 };

/* An executable as far as its headers go. */
struct program {
	Elf64_Ehdr head;
	Elf64_Phdr headers[N_HEADERS];
};

/* This test's own file header, made one of a static program. */
static struct program static_program(void)
{
	struct program p = {0};
	scoped_fd int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(read(fd, &p.head, sizeof(p.head)), sizeof(p.head));
	p.head.e_phoff = sizeof(p.head);
	p.head.e_phnum = N_HEADERS;
	p.headers[0].p_type = PT_LOAD;
	p.headers[1].p_type = PT_DYNAMIC;
	p.headers[2].p_type = PT_TLS;
	return p;
}

/* Checks the first n bytes of p as a file; the sentence lies in e. */
static int check(const struct program *p, size_t n, struct err *e)
{
	char path[] = "/tmp/test-libexec-XXXXXX";
	scoped_fd int fd = mkostemp(path, O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, p, n), (ssize_t)n);
	*e = ERR_INIT;
	int r = libexec_check_static(path, e);
	assert_int_equal(unlink(path), 0);
	return r;
}

static void test_static(void **)
{
	struct err e;
	struct program p = static_program();
	assert_int_equal(check(&p, sizeof(p), &e), 0);
	assert_string_equal(e.msg, "");
	p.head.e_type = ET_EXEC;
	assert_int_equal(check(&p, sizeof(p), &e), 0);
}

static void test_dynamic(void **)
{
	struct err e;
	for (size_t i = 0; i < N_HEADERS; i++) {
		struct program p = static_program();
		p.headers[i].p_type = PT_INTERP;
		assert_int_equal(check(&p, sizeof(p), &e), -ENOEXEC);
		assert_non_null(strstr(e.msg, "is dynamically linked and would not run in a sandbox"));
		assert_non_null(strstr(e.msg, "`make` in the source tree builds a static one"));
	}
	/* A real one: this test. */
	assert_int_equal(libexec_check_static("/proc/self/exe", &e), -ENOEXEC);
}

static void test_cut_short(void **)
{
	struct err e;
	struct program p = static_program();
	for (size_t n = 0; n < sizeof(p); n++)
		assert_int_equal(check(&p, n, &e), -ENOEXEC);
}

static void test_other_files(void **)
{
	struct err e;
	static const struct {
		size_t offset;
		size_t size;
		uint64_t value;
	} rows[] = {
		{offsetof(Elf64_Ehdr, e_ident), 1, 'E'},
		{offsetof(Elf64_Ehdr, e_ident) + EI_CLASS, 1, ELFCLASS32},
		{offsetof(Elf64_Ehdr, e_ident) + EI_DATA, 1, ELFDATA2MSB},
		{offsetof(Elf64_Ehdr, e_type), 2, ET_REL},
		{offsetof(Elf64_Ehdr, e_type), 2, ET_CORE},
		{offsetof(Elf64_Ehdr, e_machine), 2, EM_S390},
		{offsetof(Elf64_Ehdr, e_phentsize), 2, sizeof(Elf64_Phdr) - 1},
		{offsetof(Elf64_Ehdr, e_phnum), 2, 0},
		{offsetof(Elf64_Ehdr, e_phnum), 2, 65},
		{offsetof(Elf64_Ehdr, e_phnum), 2, 65535},
		{offsetof(Elf64_Ehdr, e_phoff), 8, UINT64_MAX},
		{offsetof(Elf64_Ehdr, e_phoff), 8, 1'000'000},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct program p = static_program();
		memcpy((char *)&p.head + rows[i].offset, &rows[i].value, rows[i].size);
		assert_int_equal(check(&p, sizeof(p), &e), -ENOEXEC);
		assert_non_null(strstr(e.msg, "`make` in the source tree builds a static one"));
	}
	assert_int_equal(libexec_check_static("/nonexistent", &e), -ENOENT);
	assert_string_equal(e.msg,
			    "guest program /nonexistent is not there; `make` in the source tree builds a "
			    "static one");
	assert_int_equal(libexec_check_static("/tmp", &e), -ENOEXEC);
	assert_int_equal(libexec_check_static("/dev/null", &e), -ENOEXEC);
}

static void test_path(void **)
{
	struct err e = ERR_INIT;
	char path[CONFIG_PATH_MAX] = "untouched";
	char own[CONFIG_PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
	assert_true(n > 0);
	own[n] = '\0';
	/* What lies beside this program is found there, anything else where programs are installed. */
	assert_int_equal(libexec_path(strrchr(own, '/') + 1, path, &e), 0);
	assert_string_equal(path, own);
	assert_int_equal(libexec_path("guest/no-such-program", path, &e), 0);
	assert_int_equal(path[0], '/');
	assert_non_null(strstr(path, "/ermite-runner/guest/no-such-program"));
	char before[CONFIG_PATH_MAX];
	memcpy(before, path, sizeof(path));
	char name[CONFIG_PATH_MAX];
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(libexec_path(name, path, &e), -ENAMETOOLONG);
	assert_string_equal(path, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_static),    cmocka_unit_test(test_dynamic),
		cmocka_unit_test(test_cut_short), cmocka_unit_test(test_other_files),
		cmocka_unit_test(test_path),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
