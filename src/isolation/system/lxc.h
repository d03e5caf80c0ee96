/*
 * The program ermite-lxc: liblxc, one container, in the foreground.
 *
 * It is started early, loads its libraries and waits for the configuration: a memfd of zero-ended strings, key and
 * value in turn, in one message on descriptor 3. Then it starts the container and stays until the container's init has
 * ended. It dies with the keeper, and the container's init dies with it.
 */
#ifndef ERMITE_ISOLATION_LXC_H
#define ERMITE_ISOLATION_LXC_H

#define LXC_CHANNEL_FD 3

/* What ermite-lxc exits with. */
enum { LXC_ENDED = 0, LXC_START_FAILED = 1, LXC_MISUSED = 2 };

/* Runs the container named id. Returns what the program exits with; reasons are in the log at RUN_LXC_LOG. */
int lxc_run(const char *id);

#endif
