#include "modes.h"

#define BYTES(text) text, sizeof(text) - 1

/* Frames as they are on the wire: the length in four bytes, then the message. Members of ToHost are 0a Hello, 12
 * Started, 1a Data, 22 Eof, 2a Credit, 32 Exited, 3a Failed, 42 SystemReady; within each, 08 is the id. */
#define HELLO   "\x05\0\0\0\x0a\x03\x0a\x01x"
#define STARTED "\x06\0\0\0\x12\x04\x08\x02\x10\x07"
#define DATA                                                                                                 \
	"\x0b\0\0\0\x1a\x09\x08\x02\x10\x01\x1a\x03"                                                         \
	"abc"
#define EOF_OUTPUT "\x06\0\0\0\x22\x04\x08\x02\x10\x01"
#define EXITED     "\x04\0\0\0\x32\x02\x08\x02"
#define READY      "\x02\0\0\0\x42\0"

#define MILLION 1000000

const struct wrong wrongs[] = {
	/* Frames that are none. */
	{"length-huge", STAGE_GREETED, BYTES("\xff\xff\xff\xff"), 1},
	{"length-over", STAGE_GREETED, BYTES("\x01\x00\x10\x00"), 1},
	{"length-zero", STAGE_GREETED, BYTES("\0\0\0\0"), 10 * MILLION},
	{"length-huge-first", STAGE_CONNECTED, BYTES("\xff\xff\xff\xff"), 1},

	/* Messages that are none. */
	{"member-unknown", STAGE_GREETED, BYTES("\x02\0\0\0\x7a\0"), MILLION},
	{"member-cut", STAGE_RUNNING, BYTES("\x04\0\0\0\x3a\x7f\x08\x02"), 1},
	{"member-huge", STAGE_RUNNING, BYTES("\x0a\0\0\0\x3a\x80\x80\x80\x20\x1a\xf0\xff\xff\x1f"), 1},
	{"varint-long", STAGE_RUNNING,
	 BYTES("\x0e\0\0\0\x32\x0c\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"), 1},
	{"wire-type-unknown", STAGE_RUNNING, BYTES("\x02\0\0\0\x37\x02"), 1},
	{"field-number-zero", STAGE_RUNNING, BYTES("\x02\0\0\0\x02\0"), 1},
	{"status-huge", STAGE_RUNNING,
	 BYTES("\x0f\0\0\0\x32\x0d\x08\x02\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"), 1},
	{"status-256", STAGE_RUNNING, BYTES("\x07\0\0\0\x32\x05\x08\x02\x10\x80\x02"), 1},
	{"status-and-signal", STAGE_RUNNING, BYTES("\x08\0\0\0\x32\x06\x08\x02\x10\x01\x18\x09"), 1},
	{"signal-65", STAGE_RUNNING, BYTES("\x06\0\0\0\x32\x04\x08\x02\x18\x41"), 1},
	{"channel-3", STAGE_RUNNING, BYTES("\x09\0\0\0\x1a\x07\x08\x02\x10\x03\x1a\x01x"), 1},
	{"failed-zero-byte", STAGE_RUNNING,
	 BYTES("\x0c\0\0\0\x3a\x0a\x08\x02\x10\x01\x1a\x04"
	       "a\0b\0"),
	 1},

	/* Out of turn. */
	{"started-before-hello", STAGE_CONNECTED, BYTES(STARTED), 1},
	{"hello-other-build", STAGE_CONNECTED, BYTES(HELLO), 1},
	{"hello-twice", STAGE_GREETED, BYTES(HELLO), 1},
	{"ready-flood", STAGE_GREETED, BYTES(READY), MILLION},
	/* Not of the job's number: its start may come just then. */
	{"started-unasked", STAGE_GREETED, BYTES("\x06\0\0\0\x12\x04\x08\x63\x10\x07"), 1},
	{"started-twice", STAGE_RUNNING, BYTES(STARTED), 1},
	{"started-unknown", STAGE_RUNNING, BYTES("\x06\0\0\0\x12\x04\x08\x63\x10\x07"), 1},
	{"data-before-started", STAGE_ASKED, BYTES(DATA), 1},
	{"data-unknown", STAGE_RUNNING, BYTES("\x09\0\0\0\x1a\x07\x08\x63\x10\x01\x1a\x01x"), 1},
	{"data-on-input", STAGE_RUNNING, BYTES("\x07\0\0\0\x1a\x05\x08\x02\x1a\x01x"), 1},
	{"data-empty", STAGE_RUNNING, BYTES("\x06\0\0\0\x1a\x04\x08\x02\x10\x01"), MILLION},
	{"data-after-eof", STAGE_RUNNING, BYTES(EOF_OUTPUT DATA), 1},
	{"data-after-exited", STAGE_RUNNING, BYTES(EXITED DATA), 1},
	{"eof-twice", STAGE_RUNNING, BYTES(EOF_OUTPUT EOF_OUTPUT), 1},
	{"eof-on-input", STAGE_RUNNING, BYTES("\x04\0\0\0\x22\x02\x08\x02"), 1},
	{"exited-before-started", STAGE_ASKED, BYTES(EXITED), 1},
	{"exited-twice", STAGE_RUNNING, BYTES(EXITED EXITED), 1},
	{"exited-unknown", STAGE_RUNNING, BYTES("\x04\0\0\0\x32\x02\x08\x63"), 1},
	{"failed-status-zero", STAGE_ASKED, BYTES("\x04\0\0\0\x3a\x02\x08\x02"), 1},

	/* Credit that nobody earned. */
	{"credit-zero", STAGE_RUNNING, BYTES("\x04\0\0\0\x2a\x02\x08\x02"), MILLION},
	{"credit-huge", STAGE_RUNNING, BYTES("\x0a\0\0\0\x2a\x08\x08\x02\x18\xff\xff\xff\xff\x0f"), 1},
	{"credit-unearned", STAGE_RUNNING, BYTES("\x06\0\0\0\x2a\x04\x08\x02\x18\x7f"), MILLION},
	{"credit-on-output", STAGE_RUNNING, BYTES("\x08\0\0\0\x2a\x06\x08\x02\x10\x01\x18\x7f"), 1},
	{0},
};
