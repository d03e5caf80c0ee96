"""The servers of the lab's internet, as threads of the test on sockets made in the lab's namespaces."""

import contextlib
import http.server
import os
import random
import socket
import ssl
import struct
import subprocess
import threading
import time

A, NS, CNAME, SOA, PTR, MX, TXT, AAAA, OPT, HTTPS, ANY = 1, 2, 5, 6, 12, 15, 16, 28, 41, 65, 255
SERVFAIL, REFUSED = 2, 5
SO_RCVBUFFORCE = 33
BLOCK = bytes(1 << 16)


# --- DNS messages ------------------------------------------------------------------------------------------------


def encode_name(name):
    labels = [label for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"


def encode_question(name, kind=A, identity=None, edns=None, flags=0x0100):
    identity = random.getrandbits(16) if identity is None else identity
    option = b"" if edns is None else b"\0" + struct.pack("!HHIH", OPT, edns, 0, 0)
    head = struct.pack("!HHHHHH", identity, flags, 1, 0, 0, 1 if option else 0)
    return head + encode_name(name) + struct.pack("!HH", kind, 1) + option


def decode_name(message, at):
    labels = []
    while message[at]:
        if message[at] >= 0xC0:
            rest, _ = decode_name(message, (message[at] & 0x3F) << 8 | message[at + 1])
            return ".".join([*labels, rest]), at + 2
        labels.append(message[at + 1 : at + 1 + message[at]].decode("latin-1"))
        at += 1 + message[at]
    return ".".join(labels), at + 1


class Answer:
    """A decoded answer; addresses are the data of its A records."""

    def __init__(self, message):
        self.size = len(message)
        self.identity, flags, questions, answers, _, self.additional = struct.unpack("!HHHHHH", message[:12])
        self.response = bool(flags & 0x8000)
        self.truncated = bool(flags & 0x0200)
        self.code = flags & 15
        self.records, at = [], 12
        self.name = None
        for _ in range(questions):
            self.name, at = decode_name(message, at)
            at += 4
        for _ in range(answers):
            _, at = decode_name(message, at)
            kind, _, _, size = struct.unpack("!HHIH", message[at : at + 10])
            self.records.append((kind, message[at + 10 : at + 10 + size]))
            at += 10 + size

    @property
    def addresses(self):
        return [socket.inet_ntoa(data) for kind, data in self.records if kind == A]

    def __repr__(self):
        return f"Answer({self.name}, code {self.code}, truncated {self.truncated}, {self.records[:3]})"


def receive_exactly(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def receive_message(connection):
    return receive_exactly(connection, *struct.unpack("!H", receive_exactly(connection, 2)))


def send_message(connection, message):
    connection.sendall(struct.pack("!H", len(message)) + message)


# --- servers -----------------------------------------------------------------------------------------------------


class Server:
    """Something that listens until it is closed."""

    def __init__(self):
        self.sockets, self.open = [], True

    def thread(self, function, *arguments):
        def run():
            with contextlib.suppress(OSError, EOFError, ValueError, TypeError, struct.error):
                function(*arguments)

        threading.Thread(target=run, daemon=True).start()

    def accept_all(self, listener, serve):
        while self.open:
            connection, peer = listener.accept()
            self.thread(serve, connection, peer)

    def close(self):
        self.open = False
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Question:
    """What a DNS server was asked, and when."""

    def __init__(self, via, message, source):
        self.time, self.via, self.source = time.monotonic(), via, source
        self.identity, self.flags = struct.unpack("!HH", message[:4])
        self.name, at = decode_name(message, 12)
        (self.kind,) = struct.unpack("!H", message[at : at + 2])
        self.section = message[12 : at + 4]

    def answer(self, *records, flags=0x8180, identity=None, section=None):
        """records are (type, data) pairs."""
        encoded = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(d)) + d for kind, d in records)
        identity = self.identity if identity is None else identity
        section = self.section if section is None else section
        return struct.pack("!HHHHHH", identity & 0xFFFF, flags, 1, len(records), 0, 0) + section + encoded


WRONG = (A, socket.inet_aton("6.6.6.6"))


class DnsServer(Server):
    """A resolver. What the first label of a name begins with decides how it answers."""

    def __init__(self, net, address, port=53, records=None, good="1.2.3.4"):
        super().__init__()
        self.net, self.address, self.port = net, address, port
        self.records = records or {}
        self.good = good
        self.silent = False  # as if it were dead
        self.questions, self.lock = [], threading.Lock()
        self.release = threading.Event()  # of questions for "held..."
        self.udp = net.socket(socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        self.udp.bind((address, port))
        self.tcp = net.listen(address, port)
        self.sockets = [self.udp, self.tcp]
        self.thread(self.serve_udp)
        self.thread(self.accept_all, self.tcp, self.serve_tcp)

    def asked(self, name, via=None):
        with self.lock:
            found = [q for q in self.questions if q.name.lower() == name.lower()]
        return [q for q in found if via in (None, q.via)]

    def note(self, question):
        with self.lock:
            self.questions.append(question)

    def result(self, question):
        """The records of a good answer."""
        address = self.records.get(question.name.lower(), self.good)
        return [(A, socket.inet_aton(address))] if question.kind == A else []

    def serve_udp(self):
        while self.open:
            message, source = self.udp.recvfrom(65535)
            question = Question("udp", message, source)
            self.note(question)
            self.thread(self.answer_udp, question)

    def answer_udp(self, question):
        good = question.answer(*self.result(question))
        wrong = question.answer(WRONG, identity=question.identity)
        label, send = question.name.lower(), self.udp.sendto
        if self.silent or label.startswith(("silent", "udpsilent")):
            return
        if label.startswith("held"):
            self.release.wait(20)
        elif label.startswith("tc"):
            good = question.answer(flags=0x8380)
        elif label.startswith("big"):
            good = question.answer(*[(A, socket.inet_aton(f"8.8.4.{i}")) for i in range(60)])
        elif question.name.lower().endswith(".invalid"):
            good = question.answer(flags=0x8183)
        elif label.startswith("servfail"):
            good = question.answer(flags=0x8182)
        elif label.startswith("wrongid"):
            for distance in (1, 2, 0x8000):
                send(question.answer(WRONG, identity=question.identity + distance), question.source)
        elif label.startswith("wrongname"):
            section = encode_name("other.test") + question.section[-4:]
            send(question.answer(WRONG, section=section), question.source)
        elif label.startswith("wrongkind"):
            send(question.answer(WRONG, section=question.section[:-4] + b"\0\x10\0\1"), question.source)
        elif label.startswith(("wrongport", "wrongsource")):
            address = self.address if label.startswith("wrongport") else "8.8.4.4"
            with self.net.socket(socket.SOCK_DGRAM) as other:
                other.bind((address, 0 if label.startswith("wrongport") else self.port))
                other.sendto(wrong, question.source)
            time.sleep(0.05)
        elif label.startswith("notanswer"):
            send(question.answer(WRONG, flags=0x0180), question.source)
        elif label.startswith("private"):
            good = question.answer((A, socket.inet_aton("192.168.50.5")))
        send(good, question.source)

    def serve_tcp(self, connection, source):
        with connection:
            while self.open:
                question = Question("tcp", receive_message(connection), source)
                self.note(question)
                if self.silent or question.name.lower().startswith("silent"):
                    self.release.wait(20)
                    return
                count = 60 if question.name.lower().startswith("big") else 0
                more = [(A, socket.inet_aton(f"8.8.4.{i}")) for i in range(count)]
                send_message(connection, question.answer(*(more or self.result(question))))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, body, kind="text/plain", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_bulk(self, size):
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        while size:
            size -= self.wfile.write(BLOCK[:size])

    def body(self):
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def do_GET(self):
        self.server.note(self)
        if self.path.startswith("/git/"):
            self.git()
        elif self.path.startswith("/bulk/"):
            self.send_bulk(int(self.path.rpartition("/")[2]))
        else:
            self.reply(f"{self.server.greeting} {self.client_address[0]} {self.headers['Host']}\n".encode())

    def do_POST(self):
        self.server.note(self)
        if self.path.startswith("/git/"):
            self.git()
        else:
            self.reply(b"%d\n" % sum(map(len, self.body())))

    do_PUT = do_POST

    def git(self):
        """git http-backend as a CGI program."""
        path, _, query = self.path.removeprefix("/git").partition("?")
        environment = {
            **dict(GIT_PROJECT_ROOT=self.server.repositories, GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path),
            **dict(QUERY_STRING=query, REQUEST_METHOD=self.command, REMOTE_USER="lab", PATH=os.environ["PATH"]),
            **dict(CONTENT_TYPE=self.headers.get("Content-Type", ""), GIT_CONFIG_NOSYSTEM="1", HOME="/nonexistent"),
            **dict(GIT_PROTOCOL=self.headers.get("Git-Protocol", "")),
            **dict(HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", "")),
            **dict(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*"),
        }
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = b"".join(self.chunks() if chunked else self.body())
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.reply(content, fields.get("Content-Type", ""), int(fields.get("Status", "200").split()[0]))

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()


class HttpServer(http.server.ThreadingHTTPServer):
    """HTTP, and HTTPS with a certificate, on a listener of a namespace."""

    daemon_threads = True

    def __init__(self, net, address, port, greeting="hello", repositories=None, certificate=None):
        super().__init__((address, port), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = net.listen(address, port)
        self.context = None
        if certificate:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        self.server_name, self.server_port = address, port
        self.greeting, self.repositories = greeting, str(repositories)
        self.requests = []
        self.runner = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.runner.start()

    def finish_request(self, request, client_address):
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        pass

    def note(self, handler):
        self.requests.append((handler.client_address[0], handler.path))

    def close(self):
        self.shutdown()
        self.server_close()


class Listener(Server):
    """Takes connections and datagrams and remembers who came; replies to datagrams with what they hold."""

    def __init__(self, net, address, port):
        super().__init__()
        self.came = []
        self.udp = net.socket(socket.SOCK_DGRAM)
        self.udp.bind((address, port))
        self.tcp = net.listen(address, port, 4096)
        self.sockets = [self.udp, self.tcp]
        self.thread(self.serve_udp)
        self.thread(self.serve_tcp)

    def serve_udp(self):
        while self.open:
            data, source = self.udp.recvfrom(65535)
            self.came.append(("udp", source, data))
            self.udp.sendto(data, source)

    def serve_tcp(self):
        while self.open:
            connection, source = self.tcp.accept()
            self.came.append(("tcp", source, b""))
            connection.close()
