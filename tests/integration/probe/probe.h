/*
 * What the probe's parts share: one line for each thing tried, and children to try what cannot be taken back.
 *
 * The probe runs inside a sandbox and tries what a hostile job would. It is harmless there and leaves nothing but
 * things of the sandbox's own. A line is "OPEN" (it can be done), "shut" (refused) or "none" (not there at all), and
 * what was tried.
 */
#ifndef PROBE_H
#define PROBE_H

#include <stdbool.h>

/* Prints one line. r: a negative errno, or 0 and more for OPEN. */
void report(const char *kind, const char *what, long r);

/* 0, or the negative errno of a call that returns -1. */
long errno_of(long r);

/* Like errno_of(), for a call with senseless arguments: only an error that means "you may not" or "there is no such
 * thing" counts as one. */
long refusal_of(long r);

/* Runs try(argument) in a child and returns what it returned, which has to be 0 or a negative errno; -ESHUTDOWN when
 * it was killed. */
long in_child(long (*try)(const void *argument), const void *argument);

/* Takes a user namespace of its own unless it has the rights already, and then a private mount, pid, network and IPC
 * namespace. Returns 0 or a negative errno. */
long take_namespaces(void);

/* Files of /proc, /sys, /dev and the sandbox's directories: what can be read and written. */
void probe_files(void);

/* What differs in a proc and a sysfs that are mounted afresh. After probe_files(). */
void probe_fresh_files(void);

/* Device nodes and own descriptors. */
void probe_devices(void);

/* System calls, socket families, ids. */
void probe_calls(void);

/* File systems, masks and control groups. */
void probe_mounts(void);

#endif
