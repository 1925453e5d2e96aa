#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Uses the driver without any framework, found by dlopen: memory that is filled, copied on the device and
read back. It runs on the simulated driver too."""

import ctypes
import hashlib

import cuda_driver
import gpu_steps

OPTIONS = gpu_steps.parser(__doc__).parse_args()
BYTES = 8 << 20


def main():
    try:
        call = cuda_driver.load()
    except OSError as error:
        gpu_steps.skip(f"no driver ({error})")
    call("cuInit", 0)
    context, one, other = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(one), ctypes.c_size_t(BYTES))
    call("cuMemAlloc_v2", ctypes.byref(other), ctypes.c_size_t(BYTES))
    call("cuMemsetD8_v2", one, ctypes.c_ubyte(1), ctypes.c_size_t(BYTES))
    host = ctypes.create_string_buffer(BYTES)
    seed = b"seed"
    for n in gpu_steps.steps(OPTIONS):
        # Each step's bytes depend on all that was on the GPU before.
        call("cuMemcpyDtoD_v2", other, one, ctypes.c_size_t(BYTES))
        call("cuMemcpyDtoH_v2", host, other, ctypes.c_size_t(BYTES))
        seed = hashlib.sha256(seed + host.raw).digest()
        at = int.from_bytes(seed[:4], "little") % (BYTES - len(seed))
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(one.value + at), seed, ctypes.c_size_t(len(seed)))
        gpu_steps.say(n, f"memory {seed.hex()}")


if __name__ == "__main__":
    main()
