/*
 * What a sandbox is made from, how a job ended, and what is reported of it: plain data without pointers.
 */
#ifndef ERMITE_SPEC_JOB_H
#define ERMITE_SPEC_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/config.h"
#include "spec/docker.h"
#include "spec/id.h"
#include "spec/refusal.h"

#define JOB_ID_MAX   256
#define EVIDENCE_MAX 320

/* Handed to the keeper in a memfd, as bytes: same build, same machine. */
struct sandbox_spec {
	uint32_t magic; /* SANDBOX_SPEC_MAGIC */
	uint32_t size;  /* sizeof(struct sandbox_spec) */
	struct config config;
	struct docker_choice docker;
	bool network_log;        /* what is refused and asked is told on KEEPER_FD_NETWORK_LOG */
	char job_id[JOB_ID_MAX]; /* any text of the caller, for messages only */
};

#define SANDBOX_SPEC_MAGIC 0x31706373u

/* Reads a specification and checks it: texts end, and it is of this build. Returns 0 or a negative errno. */
[[nodiscard]] int sandbox_spec_read(int fd, struct sandbox_spec *ret, struct err *e);

/* How an isolation is reported: "vm", "container_sysbox", "container_privileged", "system". */
const char *isolation_reported(enum isolation i, bool sysbox);

enum end_reason {
	END_NONE,
	END_EXITED,
	END_SIGNALLED,
	END_TIMEOUT,
	END_CANCELLED,
	END_OUT_OF_MEMORY,
	END_DISK_FULL,
	END_PIDS_LIMIT,
	END_START_FAILED,
	END_SANDBOX_DIED,
	END_PROTOCOL_ERROR,
	END_RUNNER_FAILED,
	END_REASONS,
};

/* "exited", "out_of_memory", …; never NULL. */
const char *end_reason_name(enum end_reason r);

/* The phases whose times are reported, in order. */
enum phase {
	PHASE_CREATE,
	PHASE_BOOT,
	PHASE_READY,
	PHASE_COPY_IN,
	PHASE_RUN,
	PHASE_COPY_OUT,
	PHASE_TAKE_DOWN,
	PHASES
};

/* "create", "boot", …; never NULL. */
const char *phase_name(enum phase p);

/* What a sandbox's network was used for. Without one everything is zero, the limits too. */
struct job_network {
	uint64_t sent_bytes, received_bytes; /* over its link, seen from the sandbox */
	uint64_t flows;                      /* that were let out */
	uint64_t dns_questions;              /* well-formed ones */
	uint64_t refused[REFUSALS];          /* packets, by enum refusal */
	uint32_t flows_limit;
	uint64_t bandwidth; /* bytes per second in each direction, 0: no limit */
};

/* How a job ended and what it used. */
struct job_result {
	char id[ID_SIZE];
	char job_id[JOB_ID_MAX];
	enum isolation isolation;
	bool sysbox; /* as in struct docker_choice */
	uint32_t slot;
	enum end_reason reason;
	char evidence[EVIDENCE_MAX]; /* one sentence */
	int exit_status;             /* what the command exits with: 0..255 */
	int signal;                  /* of the job, 0 when it exited */
	uint64_t phase_ms[PHASES];
	uint64_t memory_limit_mib, disk_limit_mib;
	uint32_t cpus_limit, pids_limit;
	uint64_t timeout_ms;
	uint64_t memory_peak_bytes;
	uint64_t cpu_ns;
	uint64_t disk_used_bytes;
	uint64_t output_bytes; /* standard output and error of the job */
	bool memory_enforced, disk_enforced, cpus_enforced, pids_enforced;
	bool network_enforced; /* what network_mode promises holds */
	enum network_mode network_mode;
	struct job_network network;
	enum ready ready;
};

/* Appends the result as one JSON object on one line, without a newline. Names are documented in ermite-runner(1). */
void job_result_json(const struct job_result *r, struct buf *out);

/* Appends a readable summary of a few lines for a person. */
void job_result_text(const struct job_result *r, struct buf *out);

#endif
