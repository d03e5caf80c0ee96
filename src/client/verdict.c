#include "client/verdict.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/client.h"

/* What the keeper knows to be wrong with the sandbox or the job comes first. */
static bool is_well(const struct job_result *r)
{
	return r->exit_status == 0 || r->reason == END_RUNNER_FAILED;
}

static void judge(struct job_result *r, enum end_reason reason, int status, const char *evidence)
{
	r->reason = reason;
	r->exit_status = status;
	(void)snprintf(r->evidence, sizeof(r->evidence), "%.*s", EVIDENCE_MAX - 1, evidence);
}

static void judge_without_keeper(const struct verdict *v, struct job_result *r)
{
	*r = (struct job_result){.isolation = v->spec->config.isolation,
				 .sysbox = v->spec->docker.sysbox,
				 .network_mode = v->spec->config.network_mode,
				 .ready = v->spec->config.ready};
	memcpy(r->job_id, v->spec->job_id, sizeof(r->job_id));
	char evidence[EVIDENCE_MAX];
	(void)snprintf(evidence, sizeof(evidence),
		       "the keeper is gone and has not said how the job ended: %s", v->keeper_end);
	judge(r, END_RUNNER_FAILED, CLIENT_FAILED, evidence);
}

void verdict_reach(const struct verdict *v, struct job_result *r,
		   void (*say)(const char *kind, const char *text))
{
	static const char cut[] = "cancelled before all outputs were copied";
	static const char gone[] = "the sandbox ended before all outputs were copied";
	const char *fault = v->fault;
	if (v->keeper_end) {
		judge_without_keeper(v, r);
		say(NULL, r->evidence);
	} else if (v->outputs_missing && r->exit_status == 0 && v->cancelled) {
		judge(r, END_CANCELLED, 128 + SIGINT, cut);
		say(NULL, r->evidence);
	} else if (v->outputs_missing && r->exit_status == 0 && !fault[0]) {
		fault = gone;
	}
	if (!fault[0])
		return;
	say(NULL, fault);
	if (is_well(r))
		judge(r, END_RUNNER_FAILED, CLIENT_FAILED, fault);
}
