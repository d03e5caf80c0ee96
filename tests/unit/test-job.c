#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "spec/job.h"

enum { TEXT_MAX = 8192 };

static struct job_result sample(void)
{
	return (struct job_result){
		.id = "er1a2b3c4d",
		.job_id = "task 7",
		.isolation = ISOLATION_SYSTEM,
		.slot = 3,
		.reason = END_EXITED,
		.evidence = "the command exited with status 2",
		.exit_status = 2,
		.phase_ms = {21, 40, 0, 3, 12'345, 5, 18},
		.memory_limit_mib = 4096,
		.disk_limit_mib = 65536,
		.cpus_limit = 2,
		.pids_limit = 8192,
		.timeout_ms = 21'600'000,
		.memory_peak_bytes = UINT64_C(812) * 1024 * 1024,
		.cpu_ns = 12'345'678'901,
		.disk_used_bytes = UINT64_C(120) * 1024 * 1024,
		.output_bytes = 1'300'000,
		.memory_enforced = true,
		.disk_enforced = true,
		.cpus_enforced = true,
		.pids_enforced = true,
		.network_enforced = true,
		.network_mode = NETWORK_NONE,
		.ready = READY_NOW,
	};
}

static void test_json(void **)
{
	const struct job_result r = sample();
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_json(&r, &out);
	assert_int_equal(buf_check(&out), 0);
	assert_string_equal(
		buf_text(&out),
		"{\"id\":\"er1a2b3c4d\",\"job_id\":\"task 7\",\"isolation\":\"system\",\"slot\":3,"
		"\"ready\":\"now\",\"reason\":\"exited\","
		"\"evidence\":\"the command exited with status 2\",\"exit_status\":2,\"signal\":0,"
		"\"limits\":{\"memory_mib\":4096,\"disk_mib\":65536,\"cpus\":2,\"pids\":8192,"
		"\"timeout_ms\":21600000,\"network\":\"none\",\"flows\":0,\"net_bytes_per_s\":0},"
		"\"enforced\":{\"memory\":true,\"disk\":true,\"cpus\":true,\"pids\":true,"
		"\"network\":true},"
		"\"phases_ms\":{\"create\":21,\"boot\":40,\"ready\":0,\"copy_in\":3,\"run\":12345,"
		"\"copy_out\":5,\"take_down\":18},"
		"\"memory_peak_bytes\":851443712,\"cpu_seconds\":12.345,"
		"\"disk_used_bytes\":125829120,\"output_bytes\":1300000,\"network_bytes\":0,"
		"\"network\":{\"sent_bytes\":0,\"received_bytes\":0,\"flows\":0,\"dns_questions\":0,"
		"\"refused\":{\"link\":0,\"spoof\":0,\"host\":0,\"private\":0,\"protocol\":0,\"cast\":0,"
		"\"flows\":0,\"invalid\":0,\"rate\":0,\"route\":0}}}");
}

/* The sample with a network that was used. */
static struct job_result networked(void)
{
	struct job_result r = sample();
	r.network_mode = NETWORK_NAT;
	r.network = (struct job_network){
		.sent_bytes = 2048,
		.received_bytes = UINT64_C(80) * 1024 * 1024,
		.flows = 14,
		.dns_questions = 9,
		.flows_limit = 4096,
		.bandwidth = UINT64_C(10) * 1024 * 1024,
	};
	for (uint32_t kind = REFUSAL_NONE; kind < REFUSALS; kind++)
		r.network.refused[kind] = 100 + kind;
	return r;
}

static json_int_t number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);
	if (!json_is_integer(value))
		fail_msg("%s is no number", name);
	return json_integer_value(value);
}

static void test_json_network(void **)
{
	const struct job_result r = networked();
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_json(&r, &out);
	json_t *root = json_loads(buf_text(&out), JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(root);
	const json_t *limits = json_object_get(root, "limits");
	assert_string_equal(json_string_value(json_object_get(limits, "network")), "nat");
	assert_int_equal(number(limits, "flows"), 4096);
	assert_int_equal(number(limits, "net_bytes_per_s"), 10'485'760);
	assert_int_equal(number(root, "network_bytes"), 83'888'128);
	const json_t *network = json_object_get(root, "network");
	assert_int_equal(number(network, "sent_bytes"), 2048);
	assert_int_equal(number(network, "received_bytes"), 83'886'080);
	assert_int_equal(number(network, "flows"), 14);
	assert_int_equal(number(network, "dns_questions"), 9);
	const json_t *refused = json_object_get(network, "refused");
	assert_int_equal(json_object_size(refused), REFUSALS - 1);
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++)
		assert_int_equal(number(refused, refusal_name(kind)), 100 + kind);
	json_decref(root);
}

/* Each of the flags stands for its own name. */
static void test_json_enforced(void **)
{
	struct job_result r = sample();
	bool *const flags[] = {&r.memory_enforced, &r.disk_enforced, &r.cpus_enforced, &r.pids_enforced,
			       &r.network_enforced};
	static const char *const names[] = {"memory", "disk", "cpus", "pids", "network"};
	for (size_t i = 0; i < 5; i++) {
		for (size_t j = 0; j < 5; j++)
			*flags[j] = i == j;
		scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
		job_result_json(&r, &out);
		json_t *root = json_loads(buf_text(&out), JSON_REJECT_DUPLICATES, NULL);
		assert_non_null(root);
		const json_t *enforced = json_object_get(root, "enforced");
		for (size_t j = 0; j < 5; j++)
			assert_int_equal(json_is_true(json_object_get(enforced, names[j])), i == j);
		json_decref(root);
	}
}

/* The widest values there are, and text that JSON must escape: still one valid object on one line. */
static void test_json_extremes(void **)
{
	struct job_result r = sample();
	memset(r.job_id, 1, sizeof(r.job_id) - 1);
	memset(r.evidence, '"', sizeof(r.evidence) - 1);
	r.evidence[0] = '\xff';
	r.evidence[1] = '\n';
	for (size_t i = 0; i < PHASES; i++)
		r.phase_ms[i] = UINT64_MAX;
	r.slot = r.cpus_limit = r.pids_limit = UINT32_MAX;
	r.memory_limit_mib = r.disk_limit_mib = r.timeout_ms = r.memory_peak_bytes = INT64_MAX;
	r.cpu_ns = UINT64_MAX;
	r.disk_used_bytes = r.output_bytes = INT64_MAX;
	memset(r.phase_ms, 0x7f, sizeof(r.phase_ms));
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_json(&r, &out);
	assert_int_equal(buf_check(&out), 0);
	assert_null(strchr(buf_text(&out), '\n'));
	json_t *root = json_loads(buf_text(&out), JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(root);
	assert_string_equal(json_string_value(json_object_get(root, "job_id")), r.job_id);
	assert_true(json_integer_value(json_object_get(root, "output_bytes")) == INT64_MAX);
	assert_true(json_real_value(json_object_get(root, "cpu_seconds")) > 18446744073.7);
	json_decref(root);
}

static void test_text(void **)
{
	const struct job_result r = sample();
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_text(&r, &out);
	assert_string_equal(
		buf_text(&out),
		"sandbox   er1a2b3c4d (system, slot 3)\n"
		"job       task 7\n"
		"ended     exited with status 2\n"
		"limits    memory 4096 MiB, disk 65536 MiB, 2 CPUs, 8192 processes, network none, "
		"timeout 6h\n"
		"used      memory peak 812 MiB, CPU 12.3 s, disk 120 MiB, output 1.2 MiB\n"
		"times     create 21 ms, boot 40 ms, copy in 3 ms, run 12.3 s, copy out 5 ms, "
		"take down 18 ms\n");
}

static void test_text_of_a_failed_start(void **)
{
	const struct job_result r = {
		.reason = END_START_FAILED,
		.evidence = "mount: \033[2Jno",
		.exit_status = 125,
		.memory_limit_mib = 256,
		.disk_limit_mib = 1024,
		.cpus_limit = 1,
		.pids_limit = 64,
		.timeout_ms = 0,
	};
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_text(&r, &out);
	assert_string_equal(
		buf_text(&out),
		"ended     start failed: mount: \\x1b[2Jno\n"
		"limits    memory 256 MiB, disk 1024 MiB, 1 CPU, 64 processes, network nat, timeout none\n"
		"used      memory peak 0 B, CPU 0.0 s, disk 0 B, output 0 B\n"
		"network   sent 0 B, received 0 B, 0 flows, 0 DNS questions\n");
}

static void check_line(const struct job_result *r, const char *line)
{
	scoped_buf struct buf out = BUF_INIT(TEXT_MAX);
	job_result_text(r, &out);
	if (!strstr(buf_text(&out), line))
		fail_msg("\"%s\" is not in \"%s\"", line, buf_text(&out));
}

static void test_text_of_signals(void **)
{
	struct job_result r = sample();
	r.reason = END_SIGNALLED;
	r.signal = SIGKILL;
	r.evidence[0] = '\0';
	check_line(&r, "ended     signalled, signal 9 (SIGKILL)\n");
	r.signal = 40;
	check_line(&r, "ended     signalled, signal 40\n");
	r.reason = END_OUT_OF_MEMORY;
	r.signal = SIGKILL;
	memcpy(r.evidence, "limit 256 MiB", 14);
	check_line(&r, "ended     out of memory, signal 9 (SIGKILL): limit 256 MiB\n");
}

static void test_text_of_sizes_and_times(void **)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} sizes[] = {
		{0, "output 0 B\n"},
		{1023, "output 1023 B\n"},
		{1024, "output 1.0 KiB\n"},
		{10'239, "output 9.9 KiB\n"},
		{10'240, "output 10 KiB\n"},
		{1'048'575, "output 1023 KiB\n"},
		{1'048'576, "output 1.0 MiB\n"},
		{UINT64_MAX, "output 15 EiB\n"},
	};
	static const struct {
		uint64_t ms;
		const char *text;
	} timeouts[] = {
		{1, "timeout 1ms\n"},         {1500, "timeout 1500ms\n"},   {90'000, "timeout 90s\n"},
		{1'800'000, "timeout 30m\n"}, {86'400'000, "timeout 1d\n"}, {90'000'000, "timeout 25h\n"},
	};
	struct job_result r = sample();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		r.output_bytes = sizes[i].bytes;
		check_line(&r, sizes[i].text);
	}
	for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
		r.timeout_ms = timeouts[i].ms;
		check_line(&r, timeouts[i].text);
	}
	r.phase_ms[PHASE_RUN] = 9999;
	check_line(&r, "run 9999 ms");
	r.phase_ms[PHASE_RUN] = 10'000;
	check_line(&r, "run 10.0 s");
}

static void test_text_of_a_network(void **)
{
	struct job_result r = networked();
	check_line(&r, "8192 processes, network nat (4096 flows, 10 MiB/s), timeout 6h\n");
	check_line(&r, "\nnetwork   sent 2.0 KiB, received 80 MiB, 14 flows, 9 DNS questions, "
		       "packets refused: 101 link, 102 spoof, 103 host, 104 private, 105 protocol, 106 cast, "
		       "107 flows, 108 invalid, 109 rate, 110 route\ntimes ");
	memset(r.network.refused, 0, sizeof(r.network.refused));
	r.network.refused[REFUSAL_HOST] = 1;
	r.network.flows = r.network.dns_questions = 1;
	r.network.bandwidth = 0;
	check_line(&r, "network nat (4096 flows), timeout");
	check_line(&r, ", 1 flow, 1 DNS question, packets refused: 1 host\n");
	r.network.refused[REFUSAL_HOST] = 0;
	check_line(&r, ", 1 flow, 1 DNS question\n");
}

static void test_names(void **)
{
	static const char *const refusals[] = {
		"none", "link",  "spoof",   "host", "private", "protocol",
		"cast", "flows", "invalid", "rate", "route",   "none",
	};
	static const char *const reasons[] = {
		"none",           "exited",        "signalled",  "timeout",      "cancelled",
		"out_of_memory",  "disk_full",     "pids_limit", "start_failed", "sandbox_died",
		"protocol_error", "runner_failed", "unknown",
	};
	static const char *const phases[] = {"create", "boot",     "ready",     "copy_in",
					     "run",    "copy_out", "take_down", "unknown"};
	for (unsigned i = 0; i <= END_REASONS; i++)
		assert_string_equal(end_reason_name((enum end_reason)i), reasons[i]);
	for (unsigned i = 0; i <= PHASES; i++)
		assert_string_equal(phase_name((enum phase)i), phases[i]);
	for (uint32_t i = 0; i <= REFUSALS; i++)
		assert_string_equal(refusal_name(i), refusals[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_network),
		cmocka_unit_test(test_json_enforced),
		cmocka_unit_test(test_json_extremes),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_text_of_a_failed_start),
		cmocka_unit_test(test_text_of_signals),
		cmocka_unit_test(test_text_of_sizes_and_times),
		cmocka_unit_test(test_text_of_a_network),
		cmocka_unit_test(test_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
