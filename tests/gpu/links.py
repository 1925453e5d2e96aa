#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How fast pinned host memory is copied from and to each GPU alone and all of them at once: the limit of
what several jobs can do at once. Prints JSON, in GB/s: {"out": {"one": …, "all": …}, "in": …}."""

import argparse
import concurrent.futures
import ctypes
import json
import threading
import time

import cuda_driver

BYTES, COPIES = 2 << 30, 6


class Link:
    """A GPU, some of its memory, and as much pinned memory."""

    def __init__(self, call, ordinal):
        self.call = call
        self.context, self.device = ctypes.c_void_p(), ctypes.c_uint64()
        self.host = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ordinal)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(BYTES))
        self.call("cuMemHostAlloc", ctypes.byref(self.host), ctypes.c_size_t(BYTES), 0)
        ctypes.memset(self.host, ordinal, BYTES)

    def copy(self, way, together):
        self.call("cuCtxSetCurrent", self.context)
        together.wait()
        for _ in range(COPIES):
            if way == "out":
                self.call("cuMemcpyDtoHAsync_v2", self.host, self.device, ctypes.c_size_t(BYTES), None)
            else:
                self.call("cuMemcpyHtoDAsync_v2", self.device, self.host, ctypes.c_size_t(BYTES), None)
        self.call("cuCtxSynchronize")


def gbps(links, way):
    """Of all @links together; the second of two rounds counts."""
    for _ in range(2):
        together = threading.Barrier(len(links) + 1)
        with concurrent.futures.ThreadPoolExecutor(len(links)) as pool:
            done = [pool.submit(link.copy, way, together) for link in links]
            together.wait()
            start = time.monotonic()
            for future in done:
                future.result()
            seconds = time.monotonic() - start
    return round(len(links) * COPIES * BYTES / seconds / 1e9, 2)


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    call = cuda_driver.load()
    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    links = [Link(call, ordinal) for ordinal in range(count.value)]
    print(json.dumps({way: {"one": gbps(links[:1], way), "all": gbps(links, way)} for way in ("out", "in")}))


if __name__ == "__main__":
    main()
