# SPDX-License-Identifier: MIT
"""criu#2231: a sandbox has written a program into memory (memfd), and is yet to run it by its descriptor."""
import os
import shutil
from report import in_child, same, steps

fd = os.memfd_create("program", 0)
with open(shutil.which("true"), "rb") as file:
    os.write(fd, file.read())


def look(step):
    child = in_child(lambda: os.execve(fd, ["true"], {}))
    same("how it ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


steps(look)
