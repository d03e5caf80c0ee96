/*
 * Opening what a person named on the command line.
 *
 * Such a path may lead through directories that another user can change, who may put a link there at any time. Root
 * would follow it to files that this user cannot reach. So every link on the way is looked at: one of root's or of
 * the caller's own is followed as open(2) does; one of another user only to what belongs to that user. Nothing is
 * resolved twice, so it does not matter what is exchanged meanwhile.
 */
#ifndef ERMITE_BASE_NAMED_H
#define ERMITE_BASE_NAMED_H

#include "base/err.h"

/* Opens an existing file or directory; flags as for open(2) without O_CREAT, and O_PATH only with O_DIRECTORY;
 * O_CLOEXEC is added. Returns 0 and a descriptor that the caller owns; -EPERM when a link of another user leads to
 * what is not theirs, -ELOOP for too many links and, with O_NOFOLLOW, for a last component that is one; or another
 * negative errno. The sentence does not name path. */
[[nodiscard]] int named_open(const char *path, int flags, int *ret_fd, struct err *e);

#endif
