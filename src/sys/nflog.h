/*
 * The kernel's log of packets (nfnetlink_log): what rules with "log group N" tell, for one group.
 */
#ifndef ERMITE_SYS_NFLOG_H
#define ERMITE_SYS_NFLOG_H

#include <stdint.h>

#include "base/err.h"

#define NFLOG_COPY_BYTES 128 /* of each packet: its heads */

/* Opens a log socket of the current network namespace and binds it to the group, which nobody else may have. It gives
 * messages of nfnetlink_log with the heads of the packets, within 0.1 s; read() and recv() do not block. What does not
 * fit its buffer is lost, and the next receiving fails with ENOBUFS once. Whoever holds the descriptor can only read:
 * the kernel asks for CAP_NET_ADMIN at every request. Returns 0 and a descriptor that the caller owns, or a negative
 * errno; -EPERM also when another socket has the group. */
[[nodiscard]] int nflog_open(uint16_t group, int *ret_fd, struct err *e);

#endif
