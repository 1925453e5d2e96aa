# SPDX-License-Identifier: MIT
"""cri-o#1365: a log was renamed, and one begun under its name; a child still writes to the first."""
import os
from report import in_child, place, same, steps

log = os.path.join(place(), "log")
old = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(old, b"begin\n")
ask, asked = os.pipe()
answered, answer = os.pipe()


def child():
    while step := os.read(ask, 64):
        os.write(old, b"child %s\n" % step)
        os.write(answer, b".")


in_child(child)
os.rename(log, log + ".1")
new = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lines = {log: b"", log + ".1": b"begin\n"}


def look(step):
    os.write(asked, b"%d" % step)
    os.read(answered, 1)
    os.write(new, b"parent %d\n" % step)
    lines[log] += b"parent %d\n" % step
    lines[log + ".1"] += b"child %d\n" % step
    for path, text in lines.items():
        with open(path, "rb") as file:
            same(os.path.basename(path), file.read(), text)


steps(look)
