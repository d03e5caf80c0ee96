/*
 * Where things are in the keeper's private /run. Plain constants; the tree vanishes with the mount namespace.
 */
#ifndef ERMITE_ISOLATION_LAYOUT_H
#define ERMITE_ISOLATION_LAYOUT_H

#define RUN_BASE      "/run/base"      /* the image, read-only, ids mapped */
#define RUN_SCRATCH   "/run/scratch"   /* the scratch file system, ids mapped */
#define RUN_ROOT      "/run/root"      /* the overlay of the two */
#define RUN_JOB       "/run/job"       /* bound at /run/ermite inside */
#define RUN_GUEST     "/run/guest"     /* the guest program and its filter, bound at /opt/ermite inside */
#define RUN_DEV       "/run/dev"       /* device nodes that are bound into the sandbox */
#define RUN_EXTERNALS "/run/externals" /* bound at /opt/externals inside */
#define RUN_LXCFS     "/run/lxcfs"
#define RUN_LXC       "/run/lxc-path"
#define RUN_MOUNT     "/run/rootfs" /* where liblxc puts the root while it prepares it */
#define RUN_LXC_LOG   "/run/lxc.log"

#define RUN_EXEC_SOCKET RUN_JOB "/exec.sock"
#define RUN_DOOR_SOCKET RUN_JOB "/init.sock"

#endif
