# SPDX-License-Identifier: MIT
"""Ray's store hands memory over by descriptors; criu#1251 stumbles over such sockets: one is on its way, not yet taken."""
import os
import socket
from report import same, steps

one, other = socket.socketpair()
memory = os.memfd_create("handed")
os.write(memory, b"handed over")
socket.send_fds(one, [b"here"], [memory])
os.close(memory)


def look(step):
    text, files, _, _ = socket.recv_fds(other, 16, 1)
    same("the message", (text, os.pread(files[0], 64, 0)), (b"here", b"handed over"))
    socket.send_fds(one, [b"here"], files)
    os.close(files[0])


steps(look)
