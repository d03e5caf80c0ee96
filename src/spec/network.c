#include "spec/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"

enum { EXCEPTION_TEXT_MAX = 32 };

#define PREFIX(a, b, c, d, bits)                                                                             \
	{                                                                                                    \
		(uint32_t)(a) << 24 | (b) << 16 | (c) << 8 | (d), bits                                       \
	}

static const struct cidr denied[] = {
	PREFIX(0, 0, 0, 0, 8),      PREFIX(10, 0, 0, 0, 8),     PREFIX(100, 64, 0, 0, 10),
	PREFIX(127, 0, 0, 0, 8),    PREFIX(169, 254, 0, 0, 16), PREFIX(172, 16, 0, 0, 12),
	PREFIX(192, 0, 0, 0, 24),   PREFIX(192, 0, 2, 0, 24),   PREFIX(192, 88, 99, 0, 24),
	PREFIX(192, 168, 0, 0, 16), PREFIX(198, 18, 0, 0, 15),  PREFIX(198, 51, 100, 0, 24),
	PREFIX(203, 0, 113, 0, 24), PREFIX(224, 0, 0, 0, 4),    PREFIX(240, 0, 0, 0, 4),
};

const struct cidr *network_denied(size_t *ret_n)
{
	*ret_n = sizeof(denied) / sizeof(denied[0]);
	return denied;
}

bool cidr_holds(const struct cidr *c, uint32_t address)
{
	uint32_t mask = c->bits == 0 ? 0 : UINT32_MAX << (32 - c->bits);
	return (address & mask) == c->address;
}

bool network_is_denied(uint32_t address, const struct network_allow *allow)
{
	for (uint32_t i = 0; i < allow->n; i++)
		if (cidr_holds(&allow->items[i].to, address))
			return false;
	for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
		if (cidr_holds(&denied[i], address))
			return true;
	return false;
}

static int refuse(const char *text, struct err *e)
{
	return err_set(e, -EINVAL,
		       CONFIG_PREFIX "NETWORK_ALLOW: \"%s\" is no exception: use ADDRESS, ADDRESS:PORT or "
				     "ADDRESS/BITS",
		       text);
}

/* Reads one exception; text is changed. */
static int parse_exception(char *text, struct network_exception *ret, struct err *e)
{
	char whole[EXCEPTION_TEXT_MAX];
	struct in_addr address;
	uint64_t number = 0;
	(void)snprintf(whole, sizeof(whole), "%.*s", EXCEPTION_TEXT_MAX - 1, text);
	struct network_exception x = {.to.bits = 32};
	char *rest = strpbrk(text, "/:");
	bool is_prefix = rest && *rest == '/';
	if (rest)
		*rest++ = '\0';
	if (inet_pton(AF_INET, text, &address) != 1)
		return refuse(whole, e);
	x.to.address = ntohl(address.s_addr);
	if (rest && num_parse(rest, is_prefix ? 0 : 1, is_prefix ? 32 : UINT16_MAX, &number) < 0)
		return refuse(whole, e);
	if (is_prefix)
		x.to.bits = (uint32_t)number;
	else if (rest)
		x.port = (uint16_t)number;
	if (!cidr_holds(&x.to, x.to.address))
		return err_set(e, -EINVAL,
			       CONFIG_PREFIX
			       "NETWORK_ALLOW: \"%s\" has bits behind its prefix that are not 0",
			       whole);
	*ret = x;
	return 0;
}

int network_allow_parse(const char *text, struct network_allow *ret, struct err *e)
{
	static const char separators[] = ", \t";
	struct network_allow allow = {0};
	char item[EXCEPTION_TEXT_MAX];
	for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
		size_t n = strcspn(text, separators);
		(void)snprintf(item, sizeof(item), "%.*s", (int)(n < sizeof(item) ? n : sizeof(item) - 1),
			       text);
		if (n >= sizeof(item))
			return refuse(item, e);
		if (allow.n == NETWORK_EXCEPTIONS_MAX)
			return err_set(e, -EINVAL,
				       CONFIG_PREFIX "NETWORK_ALLOW: more than %d exceptions: use prefixes",
				       NETWORK_EXCEPTIONS_MAX);
		int r = parse_exception(item, &allow.items[allow.n], e);
		if (r < 0)
			return r;
		allow.n++;
		text += n;
	}
	*ret = allow;
	return 0;
}

uint32_t slot_gateway(const struct config *c, uint32_t slot)
{
	return c->network_address + (slot << (32 - NETWORK_SLOT_BITS)) + 1;
}

uint32_t slot_guest(const struct config *c, uint32_t slot)
{
	return slot_gateway(c, slot) + 1;
}

static void make_mac(uint8_t end, uint32_t slot, uint8_t ret[static NETWORK_MAC_BYTES])
{
	const uint8_t mac[NETWORK_MAC_BYTES] = {0x02, 0x65, 0x72, end, (uint8_t)(slot >> 8), (uint8_t)slot};
	memcpy(ret, mac, sizeof(mac));
}

uint32_t slot_guest_in(const struct cidr *network, uint32_t slot)
{
	return network->address + (slot << (32 - NETWORK_SLOT_BITS)) + 2;
}

void slot_gateway_mac(uint32_t slot, uint8_t ret[static NETWORK_MAC_BYTES])
{
	make_mac(1, slot, ret);
}

void slot_guest_mac(uint32_t slot, uint8_t ret[static NETWORK_MAC_BYTES])
{
	make_mac(2, slot, ret);
}

void slot_link(enum isolation isolation, uint32_t slot, char ret[static NETWORK_LINK_SIZE])
{
	(void)snprintf(ret, NETWORK_LINK_SIZE, "%s%u", isolation == ISOLATION_VM ? "ertap" : "erveth", slot);
}

void network_address_text(uint32_t address, char ret[static NETWORK_ADDRESS_TEXT])
{
	(void)snprintf(ret, NETWORK_ADDRESS_TEXT, "%u.%u.%u.%u", address >> 24, address >> 16 & 255,
		       address >> 8 & 255, address & 255);
}
