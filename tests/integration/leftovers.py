#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a fork leaves of the GPU's devices in a child that cannot use them: it goes through every operation, and
nothing that could be more than a leftover is taken for one. A disk stands in for the device: it can be
mapped, and CRIU refuses it as it does the real one."""

import os

from cases import DeviceNode, case, expect, main

DISK = "/dev/loop0"

# The parent gives up its mappings before it is ready, as the driver's checkpoint makes it do. Its child looks
# in each step that all of them are at their addresses, and uses them once they are not the device's.
PROGRAM = """
import ctypes, os, socket, sys, time
device, library = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
memory = ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 22)) == 0
READ_WRITE, SHARED, PRIVATE, FIXED = 3, 1, 2, 0x100000
AREAS = [(0x300600000, 2 << 20, SHARED, 0), (0x300800000, 4096, SHARED, 1 << 16),
         (0x301000000, 3 * 4096, SHARED, 0)]
if library:
    fd = os.open(library, os.O_RDONLY)
    assert libc.mmap(None, 4096, 1, PRIVATE, fd, 0) is not None
    os.close(fd)
fd = os.open(device, os.O_RDWR)
for at, size, flags, offset in AREAS:
    assert libc.mmap(at, size, READ_WRITE, flags | FIXED, fd, offset) == at
os.close(fd)
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    step = before = 0
    count = len(os.listdir("/proc/self/fd"))
    while theirs.recv(1):
        with open("/proc/self/maps") as file:
            maps = file.read()
        good = len(os.listdir("/proc/self/fd")) == count
        for at, size, _, _ in AREAS:
            good = good and f"{at:x}-{at + size:x} rw-s " in maps
        if good and device not in maps:
            step += 1
            for at, size, _, _ in AREAS:
                words = (ctypes.c_uint64 * (size // 8)).from_address(at)
                good = good and words[0] == step - 1 and words[size // 8 - 1] == 0
                words[0] = step
        theirs.send(b"z" if good and step else b"d" if good else b"-")
    os._exit(0)
theirs.close()
for at, size, _, _ in AREAS:
    assert libc.munmap(at, size) == 0
print("ready", os.getpid(), flush=True)
step = 0
while True:
    step += 1
    ours.send(b"?")
    answer = ours.recv(1)
    value = ctypes.c_uint32()
    assert cuda.cuMemsetD32_v2(memory, ctypes.c_uint32(step), ctypes.c_size_t(16)) == 0
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(value), memory, ctypes.c_size_t(4)) == 0
    good = answer in (b"d", b"z") and value.value == step
    print("step", step, "OK" if good else "WRONG", "zeroes" if answer == b"z" else "device", flush=True)
    time.sleep(0.01)
"""


def start(bed, device, library=""):
    script = os.path.join(bed.dir, "forks.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    return bed.started(["python3", "-u", script, device, library])


def standing_in(log):
    """What stands at the child's addresses, by its last step."""
    log.goes_on()
    text = log.text()
    expect("WRONG" not in text, log.tail())
    return text.strip().splitlines()[-1].split()[-1]


@case
def a_forked_child_goes_on(bed):
    with DeviceNode(DISK) as device:
        job, log = start(bed, device)
        for verb in ("suspend", "resume"):
            bed.operation(verb, job)
        bed.operation("checkpoint", job, "--leave-running", "--name", "running")
        expect(standing_in(log) == "device", "the running job's mappings were touched")
        bed.operation("checkpoint", job, "--name", "first")
    # Where it is restored there need not even be such a device.
    bed.operation("restore", "first")
    expect(standing_in(log) == "zeroes", "the device is mapped after the restore")
    for verb in ("suspend", "resume"):
        bed.operation(verb, job)
    bed.operation("checkpoint", job, "--name", "second")
    bed.operation("restore", "second")
    expect(standing_in(log) == "zeroes", "what was written in place of the device is lost")


@case
def state_that_nobody_saved_is_refused(bed):
    library = os.path.join(bed.dir, "libnvidia-glcore.so.1")
    with open(library, "wb") as file:
        file.write(bytes(4096))
    with DeviceNode(DISK) as device:
        job, log = start(bed, device, library)
        bed.refused(7, r"process \d+ \(python3.*\) maps /dev/nvidia.*would be lost", "checkpoint", job)
        bed.expect_whole(job, log)
        expect(not bed.checkpoints() and not bed.partials(), "a refused checkpoint left something")


main()
