# SPDX-License-Identifier: MIT
"""criu#1992, #1813: a child is stopped, as job control does it, and stays so until it is continued."""
import mmap
import os
import signal
import time
from report import in_child, same, steps

memory = mmap.mmap(-1, 4096)


def count():
    os.kill(os.getpid(), signal.SIGSTOP)
    memory[:7] = b"goes on"


child = in_child(count)
os.waitpid(child, os.WUNTRACED)


def state():
    with open(f"/proc/{child}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def look(step):
    until = time.monotonic() + 10
    while state() == "t" and time.monotonic() < until:  # CRIU lets one process go after the other
        time.sleep(0.01)
    same("its state", state(), "T")
    same("what it has done since", memory[:7], bytes(7))


steps(look)
