# SPDX-License-Identifier: MIT
"""Our own: processes share a mutex that lends its holder the waiter's priority (PTHREAD_PRIO_INHERIT), of which the kernel knows who waits."""
import ctypes
import mmap
import struct
from report import in_child, libc, same, steps

INHERIT, SHARED = 1, 1
memory = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
attributes = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(attributes)
for set_it, value in ((libc.pthread_mutexattr_setpshared, SHARED), (libc.pthread_mutexattr_setprotocol, INHERIT)):
    same("an attribute", set_it(attributes, value), 0)
mutex, turn = [ctypes.c_void_p(at + 256 * n) for n in range(2)]
for m in (mutex, turn):
    same("the mutex", libc.pthread_mutex_init(m, attributes), 0)
COUNT = 2048


def counted():
    return struct.unpack("q", memory[COUNT:COUNT + 8])[0]


def work():
    while True:
        same("the lock", libc.pthread_mutex_lock(mutex), 0)
        memory[COUNT:COUNT + 8] = struct.pack("q", counted() + 1)
        same("the lock", libc.pthread_mutex_unlock(mutex), 0)


same("the lock", libc.pthread_mutex_lock(mutex), 0)
for _ in range(2):
    in_child(work)


def look(step):
    before = counted()
    same("the lock", libc.pthread_mutex_unlock(mutex), 0)
    while counted() == before:
        pass
    same("the lock", libc.pthread_mutex_lock(mutex), 0)


steps(look)
