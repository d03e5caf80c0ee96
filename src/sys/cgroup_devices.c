#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "sys/cgroup.h"

enum { ANY = -1 };

/* Every device a sandbox may use; all are character devices. */
static const struct {
	int major, minor;
} devices[] = {
	{1, 3},     {1, 5},    {1, 7}, {1, 8}, {1, 9}, /* null, zero, full, random, urandom */
	{5, 0},     {5, 1},    {5, 2},                 /* tty, console, ptmx */
	{136, ANY},                                    /* pts */
	{10, 229},  {10, 200},                         /* fuse, net/tun */
};

enum { N_DEVICES = sizeof(devices) / sizeof(devices[0]) };

static int allow_v1(const char *path, struct err *e)
{
	char file[512];
	(void)snprintf(file, sizeof(file), "%s/devices.deny", path);
	int r = file_put(AT_FDCWD, file, "a", e);
	(void)snprintf(file, sizeof(file), "%s/devices.allow", path);
	for (size_t i = 0; r == 0 && i < N_DEVICES; i++) {
		char rule[32];
		if (devices[i].minor == ANY)
			(void)snprintf(rule, sizeof(rule), "c %d:* rwm", devices[i].major);
		else
			(void)snprintf(rule, sizeof(rule), "c %d:%d rwm", devices[i].major, devices[i].minor);
		r = file_put(AT_FDCWD, file, rule, e);
	}
	return r;
}

static struct bpf_insn load(unsigned to, int16_t offset)
{
	return (struct bpf_insn){
		.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = to & 0xfu, .src_reg = BPF_REG_1, .off = offset};
}

static struct bpf_insn alu(uint8_t op, unsigned reg, int32_t value)
{
	return (struct bpf_insn){
		.code = (uint8_t)(BPF_ALU | BPF_K | op), .dst_reg = reg & 0xfu, .imm = value};
}

static struct bpf_insn skip_unless_equal(unsigned reg, int32_t value, int16_t skip)
{
	return (struct bpf_insn){
		.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = reg & 0xfu, .off = skip, .imm = value};
}

/* r2 = kind of device, r4 = major, r5 = minor; for each row: return 1 when all three fit. At the end return 0. */
static size_t build(struct bpf_insn *program)
{
	const struct bpf_insn leave = {.code = BPF_JMP | BPF_EXIT};
	size_t n = 0;
	program[n++] = load(BPF_REG_2, offsetof(struct bpf_cgroup_dev_ctx, access_type));
	program[n++] = alu(BPF_AND, BPF_REG_2, 0xffff);
	program[n++] = load(BPF_REG_4, offsetof(struct bpf_cgroup_dev_ctx, major));
	program[n++] = load(BPF_REG_5, offsetof(struct bpf_cgroup_dev_ctx, minor));
	for (size_t i = 0; i < N_DEVICES; i++) {
		bool any = devices[i].minor == ANY;
		int16_t rest = any ? 3 : 4;
		program[n++] = skip_unless_equal(BPF_REG_2, BPF_DEVCG_DEV_CHAR, rest);
		program[n++] = skip_unless_equal(BPF_REG_4, devices[i].major, (int16_t)(rest - 1));
		if (!any)
			program[n++] = skip_unless_equal(BPF_REG_5, devices[i].minor, 2);
		program[n++] = alu(BPF_MOV, BPF_REG_0, 1);
		program[n++] = leave;
	}
	program[n++] = alu(BPF_MOV, BPF_REG_0, 0);
	program[n++] = leave;
	return n;
}

static int allow_v2(const char *path, struct err *e)
{
	struct bpf_insn program[6 + 5 * N_DEVICES];
	union bpf_attr attributes;
	memset(&attributes, 0, sizeof(attributes));
	attributes.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attributes.insn_cnt = (uint32_t)build(program);
	attributes.insns = (uint64_t)(uintptr_t)program;
	attributes.license = (uint64_t)(uintptr_t) "MIT";
	scoped_fd int loaded = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attributes, sizeof(attributes));
	if (loaded < 0)
		return err_sys(e, "load the device filter");
	scoped_fd int group = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (group < 0)
		return err_sys(e, "open %s", path);
	memset(&attributes, 0, sizeof(attributes));
	attributes.target_fd = (uint32_t)group;
	attributes.attach_bpf_fd = (uint32_t)loaded;
	attributes.attach_type = BPF_CGROUP_DEVICE;
	attributes.attach_flags = BPF_F_ALLOW_MULTI;
	if (syscall(SYS_bpf, BPF_PROG_ATTACH, &attributes, sizeof(attributes)) < 0)
		return err_sys(e, "attach the device filter to %s", path);
	return 0;
}

int cgroup_allow_devices(const char *path, bool v2, struct err *e)
{
	return v2 ? allow_v2(path, e) : allow_v1(path, e);
}
