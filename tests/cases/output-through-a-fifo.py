# SPDX-License-Identifier: MIT
"""criu#104: the output of a program is a FIFO with a name, which another one reads."""
import os
from report import in_child, place, same, steps

path = os.path.join(place(), "fifo")
os.mkfifo(path)


def child():
    out, n = os.open(path, os.O_WRONLY), 0
    while True:
        n += 1
        os.write(out, b"%08d" % n)


in_child(child)
reader = os.open(path, os.O_RDONLY)


def look(step):
    for i in range(100):
        same("the number", int(os.read(reader, 8)), (step - 1) * 100 + i + 1)


steps(look)
