#include "keeper/tell.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "spec/message.h"

void tell(int client, const struct chan_message *m)
{
	if (client >= 0 && chan_send(client, m, NULL) < 0)
		(void)shutdown(client, SHUT_RDWR);
}

void tell_text(int client, uint32_t type, const char *text)
{
	struct chan_message m = {.type = type};
	m.n = (uint32_t)strnlen(text, CHAN_DATA_MAX);
	memcpy(m.data, text, m.n);
	tell(client, &m);
}

void tell_lines(int client, uint32_t type, const struct buf *lines)
{
	const char *at = buf_text(lines);
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&at, &line, &n)) {
		char text[512];
		(void)snprintf(text, sizeof(text), "%.*s", (int)(n < 500 ? n : 500), line);
		tell_text(client, type, text);
	}
}

void tell_leftover(void *data, const struct leftover *l)
{
	const int *client = data;
	scoped_buf struct buf text = BUF_INIT(1024);
	leftover_text(l, &text);
	tell_text(*client, MESSAGE_WARNING, buf_text(&text));
}
