# SPDX-License-Identifier: MIT
"""Our own: a database keeps a context for asynchronous input and output (io_setup), whose ring is mapped."""
import ctypes
import os
import platform
import struct
import sys
from report import libc, place, same, steps

SETUP, SUBMIT, EVENTS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[platform.machine()]
READ = 0
context = ctypes.c_ulong()
if libc.syscall(SETUP, 8, ctypes.byref(context)) != 0:
    print("ready 0: LACKS io_setup", flush=True)
    sys.exit(0)
path = os.path.join(place(), "file")
with open(path, "wb") as file:
    file.write(b"0123456789abcdef" * 256)
fd = os.open(path, os.O_RDONLY)
room = ctypes.create_string_buffer(4096)


def look(step):
    ctypes.memset(room, 0, 4096)
    request = ctypes.create_string_buffer(struct.pack("=QIIHhIQQqQII", step, 0, 0, READ, 0, fd, ctypes.addressof(room), 16, 16, 0, 0, 0))
    same("a request", libc.syscall(SUBMIT, context, 1, (ctypes.c_void_p * 1)(ctypes.addressof(request))), 1)
    event = ctypes.create_string_buffer(32)
    same("its end", libc.syscall(EVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None), 1)
    data, _, result, _ = struct.unpack("QQqq", event.raw)
    same("what came", (data, result, room.raw[:16]), (step, 16, b"0123456789abcdef"))


steps(look)
