# SPDX-License-Identifier: MIT
"""What all programs of this folder do. A program makes what its report is about, and hands steps() a
function that looks at it; the line BAD says what is not as it was."""
import ctypes
import os
import sys
import tempfile
import time

libc = ctypes.CDLL(None, use_errno=True)
WORD = 0x5A


def same(what, now, before):
    if now != before:
        raise AssertionError(f"{what}: {now!r}, was {before!r}")


def in_child(work):
    """A process that does that until it ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print("BAD:", repr(error), flush=True)
        finally:
            os._exit(1)
    return pid


def sleep_on():
    while True:
        time.sleep(1000)


def place():
    return tempfile.mkdtemp(dir=os.getcwd())


def steps(look):
    """Tells a step at a time, while a buffer on the GPU keeps its bytes."""
    cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    room = ctypes.create_string_buffer(4096)
    for r in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
              cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)),
              cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(WORD), ctypes.c_size_t(1 << 20))):
        same("a call of the driver", r, 0)
    print("ready 1", flush=True)
    step = 0
    while True:
        step += 1
        try:
            look(step)
            same("a copy from the GPU", cuda.cuMemcpyDtoH_v2(room, memory, ctypes.c_size_t(4096)), 0)
            same("the buffer", room.raw, bytes([WORD]) * 4096)
        except Exception as error:
            print("BAD:", repr(error), flush=True)
            sys.exit(1)
        print(f"step {step} OK", flush=True)
        time.sleep(0.02)
