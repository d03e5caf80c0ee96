/*
 * make-filter LIST OUTPUT: compiles the list of system calls of a system sandbox into the BPF program that the guest
 * program loads. Runs at build time: building it with libseccomp takes longer than all the rest of a start.
 *
 * A line of the list is "NAME", allowed with any arguments; "NAME allow [ARGUMENT,VALUE,SCMP_CMP_EQ]"; or "NAME errno
 * NUMBER", also with such a condition. "default errno NUMBER" is for all that is not listed; blank lines and # comments
 * are skipped. Another architecture than the machine's own, 32-bit and x32 calls included, gets the default too.
 */
#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/scope.h"

struct line {
	const char *name;
	uint32_t action;
	unsigned n_conditions;
	struct scmp_arg_cmp condition;
};

/* "[0,38,SCMP_CMP_EQ]" */
static int read_condition(char *text, struct line *l)
{
	char *save = NULL;
	uint64_t argument = 0;
	uint64_t value = 0;
	const char *first = strtok_r(text, "[,", &save);
	const char *second = strtok_r(NULL, ",", &save);
	const char *third = strtok_r(NULL, "]", &save);
	if (!first || !second || !third || strcmp(third, "SCMP_CMP_EQ") != 0)
		return -EINVAL;
	if (num_parse(first, 0, 5, &argument) < 0 || num_parse(second, 0, UINT32_MAX, &value) < 0)
		return -EINVAL;
	l->n_conditions = 1;
	l->condition = (struct scmp_arg_cmp){.arg = (unsigned)argument, .op = SCMP_CMP_EQ, .datum_a = value};
	return 0;
}

static int read_line(char *text, struct line *l)
{
	char *save = NULL;
	uint64_t number = 0;
	*l = (struct line){.name = strtok_r(text, " \n", &save), .action = SCMP_ACT_ALLOW};
	char *word = strtok_r(NULL, " \n", &save);
	if (word && strcmp(word, "errno") == 0) {
		word = strtok_r(NULL, " \n", &save);
		if (!word || num_parse(word, 1, 4095, &number) < 0)
			return -EINVAL;
		l->action = SCMP_ACT_ERRNO((uint16_t)number);
		word = strtok_r(NULL, " \n", &save);
	} else if (word && strcmp(word, "allow") == 0) {
		word = strtok_r(NULL, " \n", &save);
	}
	return word ? read_condition(word, l) : 0;
}

static int add_rule(scmp_filter_ctx *filter, const struct line *l)
{
	if (strcmp(l->name, "default") == 0) {
		*filter = *filter ? NULL : seccomp_init(l->action);
		if (!*filter || seccomp_attr_set(*filter, SCMP_FLTATR_ACT_BADARCH, l->action) < 0)
			return -EINVAL;
		/* A binary tree instead of a list: the cost of a call must not depend on its place here. */
		return seccomp_attr_set(*filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	}
	int call = seccomp_syscall_resolve_name(l->name);
	if (!*filter || call == __NR_SCMP_ERROR)
		return -EINVAL;
	if (call < 0)
		return 0; /* not on this architecture */
	return seccomp_rule_add_array(*filter, l->action, call, l->n_conditions, &l->condition);
}

static int compile(FILE *list, scmp_filter_ctx *filter)
{
	char text[256];
	for (unsigned number = 1; fgets(text, sizeof(text), list); number++) {
		struct line l;
		char copy[256];
		memcpy(copy, text, sizeof(copy));
		if (text[0] == '#' || text[0] == '\n')
			continue;
		if (read_line(text, &l) < 0 || add_rule(filter, &l) < 0) {
			(void)fprintf(stderr, "make-filter: line %u is refused: %s", number, copy);
			return -EINVAL;
		}
	}
	return *filter ? 0 : -EINVAL;
}

int main(int n, char **arguments)
{
	scmp_filter_ctx filter = NULL;
	scoped_file FILE *list = n == 3 ? fopen(arguments[1], "re") : NULL;
	if (!list || compile(list, &filter) < 0)
		return 1;
	scoped_fd int out = open(arguments[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int r = out < 0 ? -errno : seccomp_export_bpf(filter, out);
	seccomp_release(filter);
	return r < 0;
}
