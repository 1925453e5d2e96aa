# SPDX-License-Identifier: MIT
"""criu#375: Open MPI keeps a FIFO open whose file is gone with its session's folder."""
import os
import shutil
from report import place, same, steps

folder = place()
os.mkfifo(folder + "/fifo")
fifo = os.open(folder + "/fifo", os.O_RDWR)
shutil.rmtree(folder)
os.write(fifo, b"kept")


def look(step):
    same("what was written", os.read(fifo, 4), b"kept")
    os.write(fifo, b"kept")


steps(look)
