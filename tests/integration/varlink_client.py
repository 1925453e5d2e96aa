# SPDX-License-Identifier: MIT
"""A varlink client in a few lines, as anybody might write one: it knows the protocol, not brumate."""

import json
import socket


class Error(Exception):
    """An error reply."""

    def __init__(self, name, parameters):
        super().__init__(f"{name}: {parameters}")
        self.name = name
        self.parameters = parameters


class Client:
    def __init__(self, path, seconds=60):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.socket.settimeout(seconds)
        self.socket.connect(path)
        self.buffer = b""

    def send(self, data):
        self.socket.sendall(data)

    def receive(self):
        """The next message; None at the end of the stream."""
        while b"\0" not in self.buffer:
            more = self.socket.recv(65536)
            if not more:
                return None
            self.buffer += more
        frame, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(frame)

    def ask(self, method, parameters=None, more=False):
        message = {"method": method, "parameters": parameters or {}}
        if more:
            message["more"] = True
        self.send(json.dumps(message).encode() + b"\0")

    def replies(self):
        """The parameters of each reply to the call under way, the last one included."""
        while True:
            message = self.receive()
            if message is None:
                raise EOFError("the connection was closed")
            if "error" in message:
                raise Error(message["error"], message.get("parameters", {}))
            yield message.get("parameters", {})
            if not message.get("continues"):
                return

    def call(self, method, parameters=None):
        self.ask(method, parameters)
        return list(self.replies())[-1]

    def stream(self, method, parameters=None):
        self.ask(method, parameters, more=True)
        return list(self.replies())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
