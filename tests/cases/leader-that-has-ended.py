# SPDX-License-Identifier: MIT
"""criu#57: the first thread of a process has ended, others run on."""
import os
import platform
import threading
import time
from report import in_child, libc, same, steps

reader, writer = os.pipe()
EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]


def beat():
    while True:
        os.write(writer, b"x")
        time.sleep(0.01)


def child():
    threading.Thread(target=beat).start()
    libc.syscall(EXIT, 0)


in_child(child)
steps(lambda step: same("a beat", os.read(reader, 1), b"x"))
