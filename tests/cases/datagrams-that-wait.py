# SPDX-License-Identifier: MIT
"""criu#368 (D-Bus and others): datagrams wait at a socket with a name whose file is deleted, and one in no file."""
import os
import socket
from report import place, same, steps

path = os.path.join(place(), "s")
named, hidden, sender = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3))
named.bind(path)
hidden.bind(f"\0brumate-case-{os.getpid()}")
sender.connect(path)
os.unlink(path)
for i in range(3):
    sender.send(b"%d" % i)


def look(step):
    same("the messages", [named.recv(8) for _ in range(3)], [b"0", b"1", b"2"])
    for i in range(3):
        sender.send(b"%d" % i)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as fresh:
        fresh.sendto(b"hidden", f"\0brumate-case-{os.getpid()}")
    same("the other", hidden.recv(8), b"hidden")


steps(look)
