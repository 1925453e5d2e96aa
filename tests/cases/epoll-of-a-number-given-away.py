# SPDX-License-Identifier: MIT
"""criu#2296: the number under which an epoll knows a pipe is that of a plain file by now."""
import os
import select
from report import place, same, steps

reader, writer = os.pipe()
poll = select.epoll()
poll.register(reader, select.EPOLLIN)
kept = os.dup(reader)
file = os.open(os.path.join(place(), "file"), os.O_RDWR | os.O_CREAT)
os.dup2(file, reader)


def look(step):
    os.write(writer, b"x")
    same("events", poll.poll(1), [(reader, select.EPOLLIN)])
    os.read(kept, 1)


steps(look)
