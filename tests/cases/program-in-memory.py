# SPDX-License-Identifier: MIT
"""criu#2231: a sandbox has written a program into memory (memfd), and is yet to run it by its descriptor. Here it asks whether it may
(AT_EXECVE_CHECK): what runs from memory alone is refused."""
import ctypes
import os
import platform
import shutil
import sys
from report import libc, same, steps

CALL = {"x86_64": 322, "aarch64": 281}[platform.machine()]
EMPTY_PATH, CHECK, EINVAL = 0x1000, 0x10000, 22
fd = os.memfd_create("program", 0)
with open(shutil.which("true"), "rb") as file:
    os.write(fd, file.read())


def may_run():
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    return 0 if libc.syscall(CALL, fd, b"", arguments, arguments, EMPTY_PATH | CHECK) == 0 else ctypes.get_errno()


if may_run() == EINVAL:
    print("ready 0: LACKS AT_EXECVE_CHECK of Linux 6.14", flush=True)
    sys.exit(0)


def look(step):
    same("why it may not be run", may_run(), 0)


steps(look)
