# SPDX-License-Identifier: MIT
"""`brumate http`, and its clients."""

import http.client
import json
import os
import signal
import socket

from cases import expect, wait_until


class Face:
    def __init__(self, bed):
        self.bed, self.path = bed, os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "http.sock")
        self.server = bed.spawn("http")
        wait_until(self.answers, "it to listen")

    def answers(self):
        try:
            self.connect().close()
            return True
        except OSError:
            return False

    def connect(self):
        it = socket.socket(socket.AF_UNIX)
        it.settimeout(60)
        it.connect(self.path)
        return it

    def raw(self, data):
        """What comes back for these bytes."""
        it, got = self.connect(), b""
        it.sendall(data)
        while more := it.recv(65536):
            got += more
        it.close()
        return got

    def begin(self, method, **parameters):
        """The connection of a call."""
        it, body = self.connect(), json.dumps(parameters).encode()
        it.sendall(b"POST /v1/%s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (method.encode(), len(body), body))
        return it

    def call(self, method, verb="POST", **parameters):
        """(status, object)."""
        connection = http.client.HTTPConnection("brumate")
        connection.sock = self.connect()
        connection.request(verb, f"/v1/{method}", json.dumps(parameters) if parameters else None)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        return answer.status, body

    def stop(self):
        self.server.signal(signal.SIGTERM)
        code, out, err = self.server.end()
        expect((code, out, err) == (0, "", ""), f"{code} {out!r} {err!r}")
