# SPDX-License-Identifier: MIT
"""ray#63408: a thread of a child reads from a pipe whose end means that the parent has ended."""
import os
import threading
from report import in_child, same, steps

read_end, write_end = os.pipe()
ask, asked = os.pipe()
answered, answer = os.pipe()
ended = threading.Event()


def watch():
    os.read(read_end, 1)
    ended.set()


def child():
    os.close(write_end)
    threading.Thread(target=watch, daemon=True).start()
    while os.read(ask, 1):
        os.write(answer, b"alone" if ended.is_set() else b"there")


in_child(child)
os.close(read_end)


def look(step):
    os.write(asked, b"?")
    same("the parent", os.read(answered, 5), b"there")


steps(look)
