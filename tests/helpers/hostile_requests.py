"""What a stranger sends to a server to wear it out: each kind of it again and again, over its port."""

import json
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress

_ROUTE = "POST /v1/summarize HTTP/1.1\r\n"
_LONGEST = {"num_beams": 16, "max_length": 1000, "min_length": 1000, "no_repeat_ngram_size": 0}
_LONGEST_WAIT = 330  # seconds; the server answers 408 after 300
_IDLE = 200  # connections that say nothing


def _foreign(lines: int) -> bytes:
    """A text of so many lines, none of which has a word of the title, so that all of them are compared."""
    text = "\n".join(f"row {line} speaks of stone {line % 97} and of water {line % 89}" for line in range(lines))
    return json.dumps({"title": "Quux", "documents": [text]}).encode()


def _long(title: str = "Florence") -> bytes:
    text = "Florence lies on the river Arno. It is the capital of Tuscany in the north of Italy."
    return json.dumps({"title": title, "documents": [text] * 3, "options": _LONGEST}).encode()


def post(body: bytes, head: str = "", host: str = "localhost", close: str = "Connection: close\r\n") -> bytes:
    """A request to summarize, byte by byte as it goes over the wire."""
    length = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return f"{_ROUTE}Host: {host}\r\n{length}{head}{close}\r\n".encode() + body


_BODY = json.dumps({"title": "Florence", "documents": ["Florence lies on the river Arno."]}).encode()
# The bytes of each kind, and the status that they deserve.
REQUESTS: dict[str, tuple[bytes, int]] = {
    "4000 lines": (post(_foreign(4000)), 200),
    "9000 lines": (post(_foreign(9000)), 200),
    "20000 lines": (post(_foreign(20_000)), 413),
    "a million documents": (post(b'{"title": "x", "documents": [' + b"1," * 999_999 + b"1]}"), 413),
    "a thousand invalid documents": (post(b'{"title": "x", "documents": [' + b"1," * 999 + b"1]}"), 422),
    "a word of 7 MB": (post(json.dumps({"title": "x", "documents": ["a" * 7_000_000]}).encode()), 413),
    "a word of 3.9 MB": (post(json.dumps({"title": "x", "documents": ["a" * 3_900_000]}).encode()), 200),
    "nested lists": (post(b"[" * 500_000), 413),
    "nested documents": (post(b'{"title": "x", "documents": ' + b'{"text": ' * 100_000 + b"}" * 100_001), 413),
    "wrong host": (post(_BODY, host="evil.example"), 403),
    "wrong origin": (post(_BODY, head="Origin: http://evil.example\r\n"), 403),
    "huge header": (post(_BODY, head=f"X: {'y' * 1_000_000}\r\n"), 431),
    "many headers": (post(_BODY, head="X: y\r\n" * 100_000), 431),
    "gzip": (post(b"\x1f\x8b\x08" + b"\0" * 100_000, head="Content-Encoding: gzip\r\n"), 400),
    "another encoding": (post(_BODY.decode().encode("utf-16"), head="Content-Encoding: br\r\n"), 400),
    "the longest that is taken": (post(_long()), 200),
}


class Attack:
    """Strangers who send each of these to ``port``, one after the other of a kind, from now until :meth:`stop`.

    ``statuses`` is what each kind was answered; None where the connection ended without an answer.
    """

    def __init__(self, port: int):
        self.statuses: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
        self._port, self._over = port, threading.Event()
        kinds = [lambda kind=kind: self._send(kind) for kind in REQUESTS]
        kinds += [self._leave] * 4 + [self._drip] * 8 + [self._pipeline]
        loops = [threading.Thread(target=self._repeat, args=(kind,), daemon=True) for kind in kinds]
        self._threads = [*loops, threading.Thread(target=self._sit, daemon=True)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=_LONGEST_WAIT)

    def _repeat(self, ask: Callable[[], None]) -> None:
        while not self._over.is_set():
            with suppress(OSError):
                ask()
            self._over.wait(0.5)

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=_LONGEST_WAIT)

    def _send(self, kind: str) -> None:
        status = None
        try:
            with self._connect() as connection:
                with suppress(OSError):  # refused before all of it came: the answer may be there still
                    connection.sendall(REQUESTS[kind][0])
                status = _status(connection)
        finally:
            self.statuses[kind][status] += 1

    def _leave(self) -> None:
        """Ask for all that one may ask for, and go."""
        with self._connect() as connection:
            connection.sendall(post(_long()))
            self._over.wait(0.2)

    def _drip(self) -> None:
        """A body of which a byte comes each second."""
        with self._connect() as connection:
            head, _, body = post(_BODY).partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n")
            for byte in body:
                if self._over.wait(1):
                    return
                connection.sendall(bytes([byte]))

    def _pipeline(self) -> None:
        """Fifty requests before the first answer is read."""
        wave = post(_BODY, close="") + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with self._connect() as connection:
            connection.sendall(wave * 24 + post(_BODY))
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        for line in answer.split(b"HTTP/1.1 ")[1:]:
            self.statuses["pipelined"][int(line[:3])] += 1

    def _sit(self) -> None:
        """Connections that say nothing."""
        connections = [self._connect() for _ in range(_IDLE)]
        self._over.wait()
        for connection in connections:
            connection.close()


def _status(connection: socket.socket) -> int | None:
    with suppress(OSError):
        answer = connection.recv(1 << 16)
        return int(answer.split()[1]) if answer else None
    return None
