# SPDX-License-Identifier: MIT
"""criu#3162: a timer behind a descriptor ticks so often that it has always come before it is read."""
import ctypes
import os
import select
import struct
from report import libc, same, steps

TICK_NS = 500000
fd = libc.timerfd_create(1, 0)
when = ctypes.create_string_buffer(struct.pack("qqqq", 0, TICK_NS, 0, TICK_NS))
same("the timer", libc.timerfd_settime(fd, 0, when, None), 0)


def look(step):
    for _ in range(5):
        same("a tick", select.select([fd], [], [], 10)[0], [fd])
        assert struct.unpack("Q", os.read(fd, 8))[0] > 0


steps(look)
