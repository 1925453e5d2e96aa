# SPDX-License-Identifier: MIT
"""criu#368: a program starts a daemon, which leaves it by forking twice, and talks to it by a socket; ssh-agent or its like."""
import os
import socket
import time
from report import in_child, place, same, steps

path = os.path.join(place(), "s")


def daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        client, _ = server.accept()
        with client:
            client.send(client.recv(16).upper())


os.waitpid(in_child(daemon), 0)


def look(step):
    until = time.monotonic() + 20
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                assert time.monotonic() < until, "nobody listens"
                continue
            client.send(b"word")
            same("the answer", client.recv(16), b"WORD")
            return


steps(look)
