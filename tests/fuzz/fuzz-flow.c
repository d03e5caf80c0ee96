/* What a netlink log socket gave: whatever it is, every flow in it is one that can be written down. */
#include <string.h>

#include "fuzz.h"
#include "wire/flow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rd r = rd_over(data, size);
	struct flow f;
	size_t left = rd_left(&r);
	while (flow_next(&r, &f)) {
		REQUIRE(rd_left(&r) < left);
		left = rd_left(&r);
		REQUIRE(f.address_n == 0 || f.address_n == 4 || f.address_n == 16);
		REQUIRE(f.has_ports <= 1 && (f.has_ports || (f.port == 0 && f.source_port == 0)));
		REQUIRE(!f.has_ports || f.address_n > 0);
		char text[FLOW_ADDRESS_TEXT];
		char protocol[FLOW_PROTOCOL_MAX];
		flow_address_text(&f, f.source, text);
		REQUIRE(memchr(text, '\0', sizeof(text)) && (text[0] != '\0') == (f.address_n > 0));
		flow_protocol_text(&f, protocol);
		REQUIRE(memchr(protocol, '\0', sizeof(protocol)) && protocol[0] != '\0');
	}
	return 0;
}
