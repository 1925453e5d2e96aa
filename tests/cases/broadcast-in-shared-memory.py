# SPDX-License-Identifier: MIT
"""vllm-ascend#3717: workers wait, spinning, for a word in a block of shared memory with a name."""
import time
from multiprocessing import resource_tracker, shared_memory
from report import in_child, steps

block = shared_memory.SharedMemory(create=True, size=1 << 16)
resource_tracker.unregister(block._name, "shared_memory")


def worker(rank):
    seen = shared_memory.SharedMemory(block.name)
    while True:
        seen.buf[64 * rank + 64] = seen.buf[0]
        time.sleep(0)


for rank in range(2):
    in_child(lambda rank=rank: worker(rank))


def look(step):
    until = time.monotonic() + 20
    block.buf[0] = step % 251
    while any(block.buf[64 * rank + 64] != step % 251 for rank in range(2)):
        assert time.monotonic() < until, "a worker does not see it"
        time.sleep(0.001)


steps(look)
