# SPDX-License-Identifier: MIT
"""crun#2250, and workers of vLLM and PyTorch: a worker asks for a signal when its parent ends (PR_SET_PDEATHSIG)."""
import ctypes
import os
import signal
from report import in_child, libc, same, steps

DEATH, ASK = 1, 2
ask, asked = os.pipe()
answered, answer = os.pipe()


def worker():
    libc.prctl(DEATH, signal.SIGUSR2, 0, 0, 0)
    signal.signal(signal.SIGUSR2, lambda *_: os.write(answer, b"alone"))
    os.close(asked)
    while os.read(ask, 1):
        number = ctypes.c_int()
        libc.prctl(ASK, ctypes.byref(number), 0, 0, 0)
        os.write(answer, b"%05d" % number.value)


def parent():
    in_child(worker)
    os.close(answered)
    while True:
        signal.pause()


middle = in_child(parent)


def look(step):
    os.write(asked, b"?")
    same("the signal that it asked for", int(os.read(answered, 5)), signal.SIGUSR2)


steps(look)
