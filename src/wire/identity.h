/*
 * The build identity: what host and guest say first on the stream. Equal strings mean programs of one build.
 */
#ifndef ERMITE_WIRE_IDENTITY_H
#define ERMITE_WIRE_IDENTITY_H

/* "<version>-<commit>"; constant, never NULL, at most 63 bytes (Hello.build). */
const char *build_identity(void);

#endif
