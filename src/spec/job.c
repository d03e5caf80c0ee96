#include "spec/job.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/file.h"

static const char *const reason_names[END_REASONS] = {
	[END_NONE] = "none",
	[END_EXITED] = "exited",
	[END_SIGNALLED] = "signalled",
	[END_TIMEOUT] = "timeout",
	[END_CANCELLED] = "cancelled",
	[END_OUT_OF_MEMORY] = "out_of_memory",
	[END_DISK_FULL] = "disk_full",
	[END_PIDS_LIMIT] = "pids_limit",
	[END_START_FAILED] = "start_failed",
	[END_SANDBOX_DIED] = "sandbox_died",
	[END_PROTOCOL_ERROR] = "protocol_error",
	[END_RUNNER_FAILED] = "runner_failed",
};

static const char *const phase_names[PHASES] = {
	[PHASE_CREATE] = "create",       [PHASE_BOOT] = "boot", [PHASE_READY] = "ready",
	[PHASE_COPY_IN] = "copy_in",     [PHASE_RUN] = "run",   [PHASE_COPY_OUT] = "copy_out",
	[PHASE_TAKE_DOWN] = "take_down",
};

const char *isolation_reported(enum isolation i, bool sysbox)
{
	if (i != ISOLATION_CONTAINER)
		return isolation_name(i);
	return sysbox ? "container_sysbox" : "container_privileged";
}

const char *end_reason_name(enum end_reason r)
{
	return r < END_REASONS ? reason_names[r] : "unknown";
}

const char *phase_name(enum phase p)
{
	return p < PHASES ? phase_names[p] : "unknown";
}

int sandbox_spec_read(int fd, struct sandbox_spec *ret, struct err *e)
{
	ssize_t n = file_read_all(fd, ret, sizeof(*ret), e);
	if (n < 0)
		return (int)n;
	if ((size_t)n != sizeof(*ret) || ret->magic != SANDBOX_SPEC_MAGIC || ret->size != sizeof(*ret))
		return err_set(e, -EINVAL, "the specification is not of this build");
	ret->job_id[sizeof(ret->job_id) - 1] = '\0';
	ret->docker.socket[sizeof(ret->docker.socket) - 1] = '\0';
	ret->docker.image[sizeof(ret->docker.image) - 1] = '\0';
	return config_check(&ret->config, e);
}

static void json_text(struct buf *out, const char *name, const char *value)
{
	buf_fmt(out, "\"%s\":", name);
	buf_json(out, value, strlen(value));
}

static void json_phases(const struct job_result *r, struct buf *out)
{
	for (unsigned p = 0; p < PHASES; p++)
		buf_fmt(out, "%s\"%s\":%llu", p ? "," : "", phase_names[p],
			(unsigned long long)r->phase_ms[p]);
}

static const char *json_bool(bool value)
{
	return value ? "true" : "false";
}

static void json_network(const struct job_network *n, struct buf *out)
{
	buf_fmt(out, "\"network\":{\"sent_bytes\":%llu,\"received_bytes\":%llu,\"flows\":%llu,",
		(unsigned long long)n->sent_bytes, (unsigned long long)n->received_bytes,
		(unsigned long long)n->flows);
	buf_fmt(out, "\"dns_questions\":%llu,\"refused\":{", (unsigned long long)n->dns_questions);
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++)
		buf_fmt(out, "%s\"%s\":%llu", kind > REFUSAL_NONE + 1 ? "," : "", refusal_name(kind),
			(unsigned long long)n->refused[kind]);
	buf_str(out, "}}");
}

static void json_limits(const struct job_result *r, struct buf *out)
{
	buf_fmt(out,
		"\"limits\":{\"memory_mib\":%llu,\"disk_mib\":%llu,\"cpus\":%u,\"pids\":%u,"
		"\"timeout_ms\":%llu,\"network\":\"%s\",\"flows\":%u,\"net_bytes_per_s\":%llu}",
		(unsigned long long)r->memory_limit_mib, (unsigned long long)r->disk_limit_mib, r->cpus_limit,
		r->pids_limit, (unsigned long long)r->timeout_ms, network_mode_name(r->network_mode),
		r->network.flows_limit, (unsigned long long)r->network.bandwidth);
}

void job_result_json(const struct job_result *r, struct buf *out)
{
	buf_str(out, "{");
	json_text(out, "id", r->id);
	buf_str(out, ",");
	json_text(out, "job_id", r->job_id);
	buf_fmt(out, ",\"isolation\":\"%s\",\"slot\":%u,\"ready\":\"%s\",\"reason\":\"%s\",",
		isolation_reported(r->isolation, r->sysbox), r->slot, ready_name(r->ready),
		end_reason_name(r->reason));
	json_text(out, "evidence", r->evidence);
	buf_fmt(out, ",\"exit_status\":%d,\"signal\":%d", r->exit_status, r->signal);
	buf_str(out, ",");
	json_limits(r, out);
	buf_fmt(out, ",\"enforced\":{\"memory\":%s,\"disk\":%s,\"cpus\":%s,\"pids\":%s,\"network\":%s}",
		json_bool(r->memory_enforced), json_bool(r->disk_enforced), json_bool(r->cpus_enforced),
		json_bool(r->pids_enforced), json_bool(r->network_enforced));
	buf_str(out, ",\"phases_ms\":{");
	json_phases(r, out);
	buf_fmt(out, "},\"memory_peak_bytes\":%llu,\"cpu_seconds\":%llu.%03llu",
		(unsigned long long)r->memory_peak_bytes, (unsigned long long)(r->cpu_ns / 1'000'000'000),
		(unsigned long long)(r->cpu_ns / 1'000'000 % 1000));
	uint64_t network_bytes = r->network.sent_bytes + r->network.received_bytes;
	buf_fmt(out, ",\"disk_used_bytes\":%llu,\"output_bytes\":%llu,\"network_bytes\":%llu,",
		(unsigned long long)r->disk_used_bytes, (unsigned long long)r->output_bytes,
		(unsigned long long)network_bytes);
	json_network(&r->network, out);
	buf_str(out, "}");
}

/* Appends a number of bytes as a person reads it: "0 B", "812 MiB", "1.2 GiB". */
static void text_bytes(struct buf *out, uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	size_t unit = 0;
	uint64_t tenths = 0;
	while (bytes >= 1024) {
		tenths = bytes % 1024 * 10 / 1024;
		bytes /= 1024;
		unit++;
	}
	if (bytes < 10 && unit > 0)
		buf_fmt(out, "%llu.%llu %s", (unsigned long long)bytes, (unsigned long long)tenths,
			units[unit]);
	else
		buf_fmt(out, "%llu %s", (unsigned long long)bytes, units[unit]);
}

/* Appends a measured time: "21 ms", "12.3 s". */
static void text_time(struct buf *out, uint64_t ms)
{
	if (ms < 10'000)
		buf_fmt(out, "%llu ms", (unsigned long long)ms);
	else
		buf_fmt(out, "%llu.%llu s", (unsigned long long)(ms / 1000),
			(unsigned long long)(ms / 100 % 10));
}

/* Appends a configured time in the largest unit that it is a whole number of: "6h", "90s", "none". */
static void text_duration(struct buf *out, uint64_t ms)
{
	static const struct {
		const char *name;
		uint64_t ms;
	} units[] = {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};
	size_t i = 0;
	while (ms % units[i].ms != 0)
		i++;
	if (ms == 0)
		buf_str(out, "none");
	else
		buf_fmt(out, "%llu%s", (unsigned long long)(ms / units[i].ms), units[i].name);
}

/* Appends "2 CPUs", "1 process". */
static void text_count(struct buf *out, uint64_t n, const char *one, const char *many)
{
	buf_fmt(out, "%llu %s", (unsigned long long)n, n == 1 ? one : many);
}

/* How the job ended: in words of our own where the status says all, else the reason with its evidence. */
static void text_ended(const struct job_result *r, struct buf *out)
{
	if (r->reason == END_EXITED) {
		buf_fmt(out, "exited with status %d", r->exit_status);
		return;
	}
	for (const char *p = end_reason_name(r->reason); *p; p++)
		buf_add(out, *p == '_' ? " " : p, 1);
	if (r->signal) {
		const char *name = sigabbrev_np(r->signal);
		buf_fmt(out, ", signal %d%s%s%s", r->signal, name ? " (SIG" : "", name ? name : "",
			name ? ")" : "");
	}
	if (r->evidence[0]) {
		buf_str(out, ": ");
		buf_plain(out, r->evidence, strlen(r->evidence));
	}
}

/* A line of the phases that took place; one that did not has no time. */
static void text_times(const struct job_result *r, struct buf *out)
{
	const char *separator = "times     ";
	for (unsigned p = 0; p < PHASES; p++) {
		if (r->phase_ms[p] == 0)
			continue;
		buf_str(out, separator);
		for (const char *c = phase_names[p]; *c; c++)
			buf_add(out, *c == '_' ? " " : c, 1);
		buf_str(out, " ");
		text_time(out, r->phase_ms[p]);
		separator = ", ";
	}
	if (separator[0] == ',')
		buf_str(out, "\n");
}

/* Appends the network's mode with its limits: "nat (4096 flows, 10 MiB/s)". */
static void text_network_limits(const struct job_result *r, struct buf *out)
{
	const struct job_network *n = &r->network;
	buf_fmt(out, "network %s", network_mode_name(r->network_mode));
	if (n->flows_limit == 0)
		return;
	buf_str(out, " (");
	text_count(out, n->flows_limit, "flow", "flows");
	if (n->bandwidth) {
		buf_str(out, ", ");
		text_bytes(out, n->bandwidth);
		buf_str(out, "/s");
	}
	buf_str(out, ")");
}

/* A line of what went over the network and what was refused. */
static void text_network(const struct job_network *n, struct buf *out)
{
	buf_str(out, "network   sent ");
	text_bytes(out, n->sent_bytes);
	buf_str(out, ", received ");
	text_bytes(out, n->received_bytes);
	buf_str(out, ", ");
	text_count(out, n->flows, "flow", "flows");
	buf_str(out, ", ");
	text_count(out, n->dns_questions, "DNS question", "DNS questions");
	const char *separator = ", packets refused: ";
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++) {
		if (n->refused[kind] == 0)
			continue;
		buf_fmt(out, "%s%llu %s", separator, (unsigned long long)n->refused[kind],
			refusal_name(kind));
		separator = ", ";
	}
	buf_str(out, "\n");
}

void job_result_text(const struct job_result *r, struct buf *out)
{
	if (r->id[0])
		buf_fmt(out, "sandbox   %s (%s, slot %u)\n", r->id,
			isolation_reported(r->isolation, r->sysbox), r->slot);
	if (r->job_id[0]) {
		buf_str(out, "job       ");
		buf_plain(out, r->job_id, strlen(r->job_id));
		buf_str(out, "\n");
	}
	buf_str(out, "ended     ");
	text_ended(r, out);
	buf_fmt(out, "\nlimits    memory %llu MiB, disk %llu MiB, ", (unsigned long long)r->memory_limit_mib,
		(unsigned long long)r->disk_limit_mib);
	text_count(out, r->cpus_limit, "CPU", "CPUs");
	buf_str(out, ", ");
	text_count(out, r->pids_limit, "process", "processes");
	buf_str(out, ", ");
	text_network_limits(r, out);
	buf_str(out, ", timeout ");
	text_duration(out, r->timeout_ms);
	buf_str(out, "\nused      memory peak ");
	text_bytes(out, r->memory_peak_bytes);
	buf_fmt(out, ", CPU %llu.%llu s, disk ", (unsigned long long)(r->cpu_ns / 1'000'000'000),
		(unsigned long long)(r->cpu_ns / 100'000'000 % 10));
	text_bytes(out, r->disk_used_bytes);
	buf_str(out, ", output ");
	text_bytes(out, r->output_bytes);
	buf_str(out, "\n");
	if (r->network_mode == NETWORK_NAT)
		text_network(&r->network, out);
	text_times(r, out);
}
