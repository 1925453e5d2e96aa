# SPDX-License-Identifier: MIT
"""criu#745, #1357: locks by flock, on bytes, and of the open file; a child has some of them by inheritance."""
import fcntl
import os
import struct
from report import in_child, place, same, sleep_on, steps

path = os.path.join(place(), "file")
files = [os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(3)]
fcntl.flock(files[0], fcntl.LOCK_EX)
fcntl.lockf(files[1], fcntl.LOCK_EX, 10, 100)
fcntl.fcntl(files[2], fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 500, 10, 0))
in_child(sleep_on)


def refused(take):
    try:
        take()
    except BlockingIOError:
        return True
    return False


def others():
    file = os.open(path, os.O_RDWR)
    free = [name for name, take in (("flock", lambda: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)),
                                    ("bytes", lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)),
                                    ("open file", lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 500)))
            if not refused(take)]
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 300)
    os._exit(len(free))


def look(step):
    same("locks that others can take", os.waitstatus_to_exitcode(os.waitpid(in_child(others), 0)[1]), 0)


steps(look)
