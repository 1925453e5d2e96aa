# SPDX-License-Identifier: MIT
"""criu#3109: a FIFO that nobody has ever written to, and whose reader does not wait, looked closed."""
import os
import select
from report import place, same, steps

path = os.path.join(place(), "fifo")
os.mkfifo(path)
reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
poll = select.poll()
poll.register(reader, select.POLLIN)


def look(step):
    same("events", poll.poll(1), [])


steps(look)
