# SPDX-License-Identifier: MIT
"""vllm#45644: a worker ends while it holds a lock that processes share: who waits is told so, where the lock is robust."""
import ctypes
import errno
import mmap
import os
import time
from report import in_child, libc, same, sleep_on, steps

memory = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
kind = (ctypes.c_char * 64)()
libc.pthread_mutexattr_init(kind)
libc.pthread_mutexattr_setpshared(kind, 1)
libc.pthread_mutexattr_setrobust(kind, 1)
LOCK = ctypes.c_void_p(at)
libc.pthread_mutex_init(LOCK, kind)


def holder():
    same("lock", libc.pthread_mutex_lock(LOCK), 0)
    memory[100] = 1
    sleep_on()


def hold():
    memory[100] = 0
    pid = in_child(holder)
    while not memory[100]:
        time.sleep(0.001)
    return pid


pid = hold()


def look(step):
    global pid
    same("held", libc.pthread_mutex_trylock(LOCK), errno.EBUSY)
    if step % 5 == 0:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        same("the owner's death", libc.pthread_mutex_lock(LOCK), errno.EOWNERDEAD)
        libc.pthread_mutex_consistent(LOCK)
        libc.pthread_mutex_unlock(LOCK)
        pid = hold()


steps(look)
