# SPDX-License-Identifier: MIT
"""Our own: a unix socket that asked for credentials got a name of the kernel's; its peer, too, knows it by that."""
import socket
from report import same, steps

mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
mine.send(b"first")
theirs.recv(64)
name = mine.getsockname()
same("a name of the kernel's", name[:1], b"\0")


def look(step):
    same("the names", [mine.getsockname(), theirs.getpeername(), theirs.getsockname()], [name, name, ""])
    mine.send(b"%d" % step)
    same("what came", theirs.recv(64), b"%d" % step)


steps(look)
