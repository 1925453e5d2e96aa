# SPDX-License-Identifier: MIT
"""Servers of tests/programs/server.c as jobs, and who asks them."""

import contextlib
import re
import socket
import threading
import time

from cases import Failed, expect, wait_until


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Connection:
    """One that is kept alive."""

    def __init__(self, port, seconds=60):
        self.socket = socket.create_connection(("127.0.0.1", port), seconds)
        self.text = b""

    def send(self, path="/"):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: it\r\n\r\n".encode())

    def answer(self):
        """The body of the next answer."""
        while True:
            found = re.match(rb"HTTP/1.1 200 OK\r\n.*?Content-Length: (\d+)\r\n\r\n", self.text, re.DOTALL)
            end = found.end() + int(found[1]) if found else 0
            if found and len(self.text) >= end:
                body, self.text = self.text[found.end():end].decode(), self.text[end:]
                return body
            more = self.socket.recv(65536)
            if not more:
                raise Failed(f"the server hung up: {self.text!r}")
            self.text += more

    def ask(self, path="/"):
        self.send(path)
        return self.answer()

    def close(self):
        self.socket.close()

    def end(self):
        """Closes it, and waits until the server has: a job of a user is not saved with a connection of which it knows nothing yet."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65536):
                pass
        self.close()


class Server:
    """A job that answers on a port of its own, and by its device memory."""

    def __init__(self, bed, name, mib=64, options=("--wake",), watch=False, env=None):
        self.bed, self.name, self.port, self.lock = bed, name, free_port(), threading.Lock()
        self.steps = 0
        argv = [bed.program("server"), *(["watch"] if watch else []), "--port", self.port, "--mib", mib, "--chunk-mib", min(mib, 16)]
        self.job, self.log = bed.started(argv, name, options=options, env=env)

    def state(self):
        return self.bed.state(self.job)

    def note(self, body):
        """Each answer is right, and counts one more than the last."""
        found = re.fullmatch(r"step (\d+) OK\n", body)
        expect(found, f"{self.name}: {body!r}")
        return int(found[1])

    def ask(self):
        """One request with a connection of its own; how long it took."""
        start = time.monotonic()
        with self.lock:
            connection = Connection(self.port)
            step = self.note(connection.ask())
            connection.end()
            expect(step == self.steps + 1, f"{self.name}: answer {step} after {self.steps}")
            self.steps = step
        return time.monotonic() - start

    def health(self):
        connection = Connection(self.port, 10)
        expect(connection.ask("/health") == "alive\n", "it is not alive")
        connection.close()

    def suspend(self, *options):
        self.settle()
        self.bed.operation("suspend", self.job, *options)

    def settle(self):
        """Its answers come before the end of the resume that let them."""
        self.wait_state("running")

    def wait_state(self, state, seconds=30):
        wait_until(lambda: self.state() == state, f"{self.name} to be {state}", seconds)
