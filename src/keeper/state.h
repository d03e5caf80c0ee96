/*
 * The life of a sandbox as a table: what an event means in a state. Pure; the keeper carries out the actions.
 */
#ifndef ERMITE_KEEPER_STATE_H
#define ERMITE_KEEPER_STATE_H

enum keeper_state {
	STATE_BOOTING,  /* made; the executor is not connected */
	STATE_WAITING,  /* the executor is connected; the system inside is coming up */
	STATE_READY,    /* jobs can start */
	STATE_RUNNING,  /* the job runs */
	STATE_STOPPING, /* the job was told to end */
	STATE_KILLING,  /* the job was killed and must be gone soon */
	STATE_OVER,     /* the job has ended; its outputs can be fetched */
	STATE_DOWN,     /* to be taken down */
	KEEPER_STATES,
};

enum keeper_event {
	EVENT_CONNECTED,
	EVENT_SYSTEM_READY,
	EVENT_JOB_START,
	EVENT_JOB_EXITED,
	EVENT_JOB_FAILED, /* could not be started inside */
	EVENT_TIMEOUT,    /* the job's own time is over */
	EVENT_CANCEL,
	EVENT_CLIENT_GONE,
	EVENT_DELETE,
	EVENT_DEADLINE, /* the step that the state waits for took too long */
	EVENT_SANDBOX_GONE,
	EVENT_PROTOCOL_ERROR,
	EVENT_RUNNER_FAILED, /* a process of ours ended */
	KEEPER_EVENTS,
};

enum keeper_action {
	ACTION_NONE,
	ACTION_IMPOSSIBLE,   /* the event cannot come in this state: whoever sent it broke the rules */
	ACTION_WAIT_READY,   /* wait for the system inside, or go on at once */
	ACTION_REPORT_READY, /* tell the client */
	ACTION_START_JOB,
	ACTION_JUDGE,          /* the job's own end is the end reason, unless a limit explains it */
	ACTION_JUDGE_FAILED,   /* could not be started: its text is the evidence */
	ACTION_KEEP_REASON,    /* the end reason is there already */
	ACTION_TERM_TIMEOUT,   /* TERM to the job, reason timeout */
	ACTION_TERM_CANCELLED, /* TERM to the job, reason cancelled */
	ACTION_KILL,           /* KILL to the job */
	ACTION_CANCELLED,      /* reason cancelled, nothing to end in order */
	ACTION_START_FAILED,   /* reason start_failed: it did not come up in time */
	ACTION_START_DIED,     /* reason start_failed: it died on the way up */
	ACTION_DIED,           /* reason sandbox_died, or the limit that explains it */
	ACTION_PROTOCOL_ERROR,
	ACTION_RUNNER_FAILED,
	ACTION_NO_JOB, /* deleted before a job: reason runner_failed, for the client gave up */
};

struct transition {
	enum keeper_state next;
	enum keeper_action action;
};

/* What an event means in a state; every pair is defined. In STATE_DOWN nothing means anything. */
struct transition keeper_transition(enum keeper_state state, enum keeper_event event);

/* "booting", …; never NULL. */
const char *keeper_state_name(enum keeper_state state);

#endif
