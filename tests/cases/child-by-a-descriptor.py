# SPDX-License-Identifier: MIT
"""criu#2131 and others about event loops: a loop has pidfds of its children, a descriptor for signals and one to wake it."""
import os
import select
import signal
from report import in_child, same, sleep_on, steps

pid = in_child(sleep_on)
handle = os.pidfd_open(pid)
poll = select.epoll()
poll.register(handle, select.EPOLLIN)
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGUSR1, lambda *_: None)


def look(step):
    same("an end", poll.poll(0), [])
    same("by its descriptor", signal.pidfd_send_signal(handle, 0), None)
    os.kill(os.getpid(), signal.SIGUSR1)
    same("awake", os.read(reader, 1), bytes([signal.SIGUSR1]))


steps(look)
