# SPDX-License-Identifier: MIT
"""podman#11983: after a restore nothing could be written to an unnamed pair of sockets."""
import socket
from report import in_child, same, steps

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def child():
    ours.close()
    while True:
        theirs.send(theirs.recv(64)[::-1])


in_child(child)
theirs.close()


def look(step):
    ours.send(b"ab%d" % step)
    same("the answer", ours.recv(64), (b"ab%d" % step)[::-1])


steps(look)
