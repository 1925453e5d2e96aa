# SPDX-License-Identifier: MIT
"""criu, SQLite and LMDB: a lock of bytes of a file that is mapped, too."""
import fcntl
import mmap
import os
from report import in_child, place, same, steps

path = os.path.join(place(), "file")
held = open(path, "w+b")
held.write(bytes(8192))
held.flush()
memory = mmap.mmap(held.fileno(), 8192)
fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 50)
shared = open(path, "rb")  # not closed, which would give up all locks
fcntl.lockf(shared, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 4000)
fcntl.lockf(shared, fcntl.LOCK_SH | fcntl.LOCK_NB, 0, 5000)  # up to the end, wherever that is

asked, question = os.pipe()
answer, answered = os.pipe()


def is_free(file, how, start):
    try:
        fcntl.lockf(file, how | fcntl.LOCK_NB, 1, start)
    except OSError:
        return "0"
    fcntl.lockf(file, fcntl.LOCK_UN, 1, start)
    return "1"


def child():
    file = open(path, "r+b")
    while os.read(asked, 1):
        os.write(answered, "".join(
            is_free(file, how, start) for start in (49, 50, 149, 150, 3999, 4000, 5000, 1 << 40)
            for how in (fcntl.LOCK_EX, fcntl.LOCK_SH)).encode())


in_child(child)


def look(_):
    os.write(question, b"?")
    same("what another can lock", os.read(answer, 100).decode(), "1100001111010101")


steps(look)
