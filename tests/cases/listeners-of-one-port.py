# SPDX-License-Identifier: MIT
"""criu#2153, and servers with several workers: each has a socket of its own that listens at the same port (SO_REUSEPORT)."""
import os
import socket
from report import in_child, same, steps


def listener(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", port))
    s.listen()
    return s


first = listener(0)
port = first.getsockname()[1]
others = [first, listener(port), listener(port)]


def serve(own):
    for s in others:
        if s is not own:
            s.close()
    while True:
        client = own.accept()[0]
        client.sendall(b"%d" % os.getpid())
        client.close()


workers = {in_child(lambda s=s: serve(s)) for s in others}
for s in others:
    s.close()


def look(step):
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    same("a worker answers", int(client.recv(64)) in workers, True)
    same("it is over", client.recv(64), b"")
    client.close()


steps(look)
