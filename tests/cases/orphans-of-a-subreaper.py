# SPDX-License-Identifier: MIT
"""ray#42992: a process asks for the orphans of its tree, as the raylet does."""
import ctypes
import os
import time
from report import in_child, libc, same, sleep_on, steps

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
reader, writer = os.pipe()


def child():
    if os.fork() == 0:
        while os.getppid() != own:
            time.sleep(0.01)
        os.write(writer, b"%d" % os.getpid())
        sleep_on()
    os._exit(0)


own = os.getpid()
os.waitpid(in_child(child), 0)
orphan = int(os.read(reader, 16))


def look(step):
    on = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(on), 0, 0, 0)
    same("subreaper", on.value, 1)
    with open(f"/proc/{orphan}/stat", encoding="utf-8") as file:
        same("the parent", int(file.read().rsplit(")")[1].split()[1]), own)
    pid = in_child(lambda: os._exit(4))
    same("a new child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 4)


steps(look)
