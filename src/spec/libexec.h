/*
 * Where the programs that belong to this one are found, and whether the guest program can run in a sandbox.
 */
#ifndef ERMITE_SPEC_LIBEXEC_H
#define ERMITE_SPEC_LIBEXEC_H

#include "base/err.h"
#include "spec/config.h"

/* Writes the path of a program of ours ("ermite-keeper", "guest/ermite-runner") into path: beside the running
 * executable when it is there, as in the build tree, else where it is installed; the latter is not looked at.
 * Returns 0 or a negative errno. */
[[nodiscard]] int libexec_path(const char *name, char path[static CONFIG_PATH_MAX], struct err *e);

/* Checks that the file is an executable for this machine that needs no other file to run (ELF without PT_INTERP).
 * Returns 0; -ENOEXEC, with a sentence saying what is wrong and how to build it; or the errno of reading it. */
[[nodiscard]] int libexec_check_static(const char *path, struct err *e);

#endif
