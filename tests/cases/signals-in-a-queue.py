# SPDX-License-Identifier: MIT
"""criu#666: signals that wait, blocked, each with a value, came out of order or unblocked."""
import ctypes
import os
import platform
import signal
from report import libc, same, steps

QUEUE = {"x86_64": 129, "aarch64": 138}[platform.machine()]
NUMBER = signal.SIGRTMIN + 3
signal.pthread_sigmask(signal.SIG_BLOCK, {NUMBER, signal.SIGUSR1})


class Info(ctypes.Structure):
    _fields_ = [("signo", ctypes.c_int), ("errno", ctypes.c_int), ("code", ctypes.c_int), ("pad", ctypes.c_int),
                ("pid", ctypes.c_int), ("uid", ctypes.c_int), ("value", ctypes.c_uint64), ("rest", ctypes.c_char * 96)]


def send(value):
    info = Info(NUMBER, 0, -1, 0, os.getpid(), os.getuid(), value)
    same("sigqueue", libc.syscall(QUEUE, os.getpid(), NUMBER, ctypes.byref(info)), 0)


def take():
    info, words = Info(), (ctypes.c_uint64 * 16)(1 << NUMBER - 1)
    same("a signal", libc.sigtimedwait(words, ctypes.byref(info), (ctypes.c_long * 2)(0, 0)), NUMBER)
    return info.value


for i in range(5):
    send(i)
os.kill(os.getpid(), signal.SIGUSR1)


def look(step):
    same("the values", [take() for _ in range(5)], list(range(5)))
    for value in range(5):
        send(value)
    same("SIGUSR1", signal.SIGUSR1 in signal.sigpending(), True)


steps(look)
