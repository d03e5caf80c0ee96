/*
 * What the commands that look for leftovers have in common.
 */
#ifndef ERMITE_CMD_REAP_H
#define ERMITE_CMD_REAP_H

#include "spec/docker.h"

/* The socket of this host's Docker daemon, put into path; NULL where none listens: what is left with one that does not
 * run is found when it does. */
const char *reap_find_docker(char path[static DOCKER_SOCKET_SIZE]);

#endif
