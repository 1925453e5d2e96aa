#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""driver_cycle.py PID: takes a process through the driver's own lock, checkpoint, restore and unlock, with nothing of
brumate's. Exit status 1 where the driver refuses a step."""

import ctypes
import sys

import cuda_driver

LOCK_MS = 10000
RESTORE_ARGS_SIZE = 64
PID = int(sys.argv[1])


class LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


def main():
    call = cuda_driver.load()
    call("cuInit", 0)
    call("cuCheckpointProcessLock", PID, ctypes.byref(LockArgs(timeout_ms=LOCK_MS)))
    try:
        call("cuCheckpointProcessCheckpoint", PID, None)
        call("cuCheckpointProcessRestore", PID, ctypes.create_string_buffer(RESTORE_ARGS_SIZE))
    finally:
        call("cuCheckpointProcessUnlock", PID, None)


if __name__ == "__main__":
    main()
