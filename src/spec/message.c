#include "spec/message.h"

#include <stddef.h>

/* One row a type: the name, who may send it, and how many descriptors come with it. What the keeper passes on from
 * one side to the other has both senders. */
static const struct row {
	const char *name;
	unsigned senders;
	uint32_t fds_min, fds_max;
} rows[MESSAGE_TYPES] = {
	[MESSAGE_START] = {"START", SENDER_CLIENT | SENDER_KEEPER, 2, 4},
	[MESSAGE_SIGNAL] = {"SIGNAL", SENDER_CLIENT | SENDER_KEEPER, 0, 0},
	[MESSAGE_RESIZE] = {"RESIZE", SENDER_CLIENT | SENDER_KEEPER, 0, 0},
	[MESSAGE_SECRETS] = {"SECRETS", SENDER_CLIENT | SENDER_KEEPER, 1, 1},
	[MESSAGE_CANCEL] = {"CANCEL", SENDER_CLIENT, 0, 0},
	[MESSAGE_DELETE] = {"DELETE", SENDER_CLIENT, 0, 0},
	[MESSAGE_CONNECTED] = {"CONNECTED", SENDER_CONDUIT, 0, 0},
	[MESSAGE_SYSTEM_READY] = {"SYSTEM_READY", SENDER_CONDUIT, 0, 0},
	[MESSAGE_STARTED] = {"STARTED", SENDER_CONDUIT | SENDER_KEEPER, 0, 0},
	[MESSAGE_EXITED] = {"EXITED", SENDER_CONDUIT | SENDER_KEEPER, 0, 0},
	[MESSAGE_FAILED] = {"FAILED", SENDER_CONDUIT | SENDER_KEEPER, 0, 0},
	[MESSAGE_PROTOCOL] = {"PROTOCOL", SENDER_CONDUIT, 0, 0},
	[MESSAGE_CLOSED] = {"CLOSED", SENDER_CONDUIT, 0, 0},
	[MESSAGE_COUNT] = {"COUNT", SENDER_CONDUIT, 0, 0},
	[MESSAGE_DIAL] = {"DIAL", SENDER_HELPER, 0, 0},
	[MESSAGE_SOCKETS] = {"SOCKETS", SENDER_KEEPER, 0, MESSAGE_FDS_MAX},
	[MESSAGE_RESOLVERS] = {"RESOLVERS", SENDER_KEEPER, 0, 0},
	[MESSAGE_CREATED] = {"CREATED", SENDER_KEEPER, 0, 0},
	[MESSAGE_WARNING] = {"WARNING", SENDER_KEEPER, 0, 0},
	[MESSAGE_RESULT] = {"RESULT", SENDER_KEEPER, 1, 1},
	[MESSAGE_ERROR] = {"ERROR", SENDER_KEEPER, 0, 0},
};

/* The row of a type; a number that is no type has one that nobody may send. */
static const struct row *row_of(uint32_t type)
{
	static const struct row unknown = {.name = "unknown"};
	return type < MESSAGE_TYPES && rows[type].name ? &rows[type] : &unknown;
}

const char *message_name(uint32_t type)
{
	return row_of(type)->name;
}

bool message_permitted(uint32_t type, enum message_sender sender)
{
	return (row_of(type)->senders & sender) != 0;
}

void message_fds(uint32_t type, uint32_t *ret_min, uint32_t *ret_max)
{
	*ret_min = row_of(type)->fds_min;
	*ret_max = row_of(type)->fds_max;
}
