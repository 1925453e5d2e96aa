# SPDX-License-Identifier: MIT
"""criu#2496: several processes keep the pidfd of a child that has ended, and that nobody waits for any more."""
import os
import select
import signal
from report import in_child, same, steps

child = in_child(lambda: os._exit(3))
fd = os.pidfd_open(child)
os.waitpid(child, 0)
ask, asked = os.pipe()
answered, answer = os.pipe()


def is_dead():
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        signal.pidfd_send_signal(fd, 0)
        return False
    except ProcessLookupError:
        return bool(poll.poll(10000))


def other():
    while os.read(ask, 1):
        os.write(answer, b"dead" if is_dead() else b"live")


in_child(other)


def look(step):
    same("its end, as we see it", is_dead(), True)
    os.write(asked, b"?")
    same("its end, as the other sees it", os.read(answered, 4), b"dead")


steps(look)
