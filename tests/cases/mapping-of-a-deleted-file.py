# SPDX-License-Identifier: MIT
"""criu#2016: files in /dev/shm and elsewhere are mapped and deleted, and two processes share them."""
import mmap
import os
import tempfile
import time
from report import in_child, place, steps

def share(folder):
    file, name = tempfile.mkstemp(dir=folder)
    os.ftruncate(file, 8192)
    memory = mmap.mmap(file, 8192)
    os.close(file)
    os.unlink(name)
    return memory


maps = [share("/dev/shm"), share(place())]


def child():
    while True:
        for memory in maps:
            memory[1:9] = memory[4096:4104]
        time.sleep(0.001)


in_child(child)


def look(step):
    word, until = b"%08d" % step, time.monotonic() + 20
    for memory in maps:
        memory[4096:4104] = word
    while any(memory[1:9] != word for memory in maps):
        assert time.monotonic() < until, "the other process sees other memory"
        time.sleep(0.001)


steps(look)
