# SPDX-License-Identifier: MIT
"""criu#429: files that have no name, by O_TMPFILE, mapped and written to, shared with a child; and one without content, by O_PATH."""
import mmap
import os
from report import in_child, place, same, sleep_on, steps

folder = place()
file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
os.ftruncate(file, 1 << 16)
memory = mmap.mmap(file, 1 << 16)
path = os.open(folder, os.O_PATH)
in_child(sleep_on)


def look(step):
    os.pwrite(file, b"%08d" % step, 100)
    same("by the mapping", memory[100:108], b"%08d" % step)
    same("links", os.fstat(file).st_nlink, 0)
    same("the folder", os.readlink(f"/proc/self/fd/{path}"), folder)


steps(look)
