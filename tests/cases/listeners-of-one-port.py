# SPDX-License-Identifier: MIT
"""criu#2153, and servers with several workers: each has a socket of its own that listens at the same port (SO_REUSEPORT). Nobody
connects later: a connection that is not accepted yet is refused."""
import os
import socket
import threading
from report import in_child, same, steps


def listener(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(("127.0.0.1", port))
    s.listen()
    return s


first = listener(0)
port = first.getsockname()[1]
listeners = [first, listener(port), listener(port)]


def answer(client, own):
    while client.recv(1):
        asked = [own.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_REUSEPORT, socket.SO_ACCEPTCONN)]
        client.sendall(b"%08d %d %d %05d" % (os.getpid(), *asked, own.getsockname()[1]))


def serve(own):
    for s in listeners:
        if s is not own:
            s.close()
    while True:
        threading.Thread(target=answer, args=(own.accept()[0], own), daemon=True).start()


workers = {in_child(lambda s=s: serve(s)) for s in listeners}
for s in listeners:
    s.close()
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]


def ask(client):
    client.sendall(b"?")
    return client.recv(18, socket.MSG_WAITALL).split()


for c in clients:
    ask(c)


def look(step):
    for client in clients:
        pid, *rest = ask(client)
        same("a worker answers", int(pid) in workers, True)
        same("its listener", rest, [b"1", b"1", b"%05d" % port])


steps(look)
