# SPDX-License-Identifier: MIT
"""criu#1992, #1813: a child is stopped, as job control does it, and stays so until it is continued."""
import mmap
import os
import signal
import struct
from report import in_child, same, steps

memory = mmap.mmap(-1, 4096)


def count():
    while True:
        memory[:8] = struct.pack("q", struct.unpack("q", memory[:8])[0] + 1)
        os.kill(os.getpid(), signal.SIGSTOP)


child = in_child(count)
os.waitpid(child, os.WUNTRACED)


def look(step):
    with open(f"/proc/{child}/stat", encoding="utf-8") as file:
        same("its state", file.read().rsplit(")", 1)[1].split()[0], "T")
    before = struct.unpack("q", memory[:8])[0]
    os.kill(child, signal.SIGCONT)
    while struct.unpack("q", memory[:8])[0] == before:
        pass
    same("how it stopped", os.WSTOPSIG(os.waitpid(child, os.WUNTRACED)[1]), signal.SIGSTOP)
    same("how often it went on", struct.unpack("q", memory[:8])[0], before + 1)


steps(look)
