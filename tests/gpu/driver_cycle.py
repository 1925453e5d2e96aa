#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Says that it is ready once it has the driver, reads the pid of a process, and takes that through the driver's own lock, checkpoint,
restore and unlock, with nothing of brumate's. Exit status 1 where the driver refuses a step."""

import ctypes
import sys

import cuda_driver

LOCK_MS = 10000
RESTORE_ARGS_SIZE = 64


class LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


def main():
    call = cuda_driver.load()
    call("cuInit", 0)
    print("ready to go", flush=True)
    pid = int(sys.stdin.readline())
    call("cuCheckpointProcessLock", pid, ctypes.byref(LockArgs(timeout_ms=LOCK_MS)))
    try:
        call("cuCheckpointProcessCheckpoint", pid, None)
        call("cuCheckpointProcessRestore", pid, ctypes.create_string_buffer(RESTORE_ARGS_SIZE))
    finally:
        call("cuCheckpointProcessUnlock", pid, None)


if __name__ == "__main__":
    main()
