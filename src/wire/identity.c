#include "wire/identity.h"

#include "build-id.h"
#include "paths.h"

_Static_assert(sizeof(ERMITE_VERSION "-" BUILD_COMMIT) <= 64, "the identity fits into Hello.build");

const char *build_identity(void)
{
	return ERMITE_VERSION "-" BUILD_COMMIT;
}
