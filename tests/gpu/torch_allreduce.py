#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One rank of a job that torchrun starts: sums up over the ranks by NCCL, from 8 bytes to a GiB, in blocks. Two such
jobs, alive at the same time, hand the turn to each other after each block, and so compare what a sum costs with and
without a library. A turn is a byte in a FIFO, which rank 0 reads; the others wait for it on their processors, as a
kernel that waits would disturb the other job. When all blocks are done rank 0 prints, for each size, the seconds of one
sum in each of its blocks."""

import json
import os
import time

import gpu_steps
from torch_ranks import NO_MULTICAST

SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30)
BLOCK_BYTES, BLOCK_SUMS = 1 << 31, 200  # a block ends at the first of these two, but has three sums at least
SHORT_BYTES, LONG_EVERY = 1 << 24, 8  # what takes longer varies less: a block of it in every eighth round will do


def timed_block(torch, dist, data):
    """The first sum, in which caches become this program's again, does not count."""
    sums = max(3, min(BLOCK_SUMS, BLOCK_BYTES // data.nbytes))
    dist.all_reduce(data)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(sums):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / sums


def main():
    parser = gpu_steps.parser(__doc__, steps=0)
    parser.add_argument("--blocks", type=int, default=320, help="blocks of each size that is short")
    parser.add_argument("--mine", default="mine", help="FIFO that gives the turn to this program")
    parser.add_argument("--other", default="other", help="FIFO that gives it to the other one")
    options = parser.parse_args()
    os.environ.update(NO_MULTICAST)
    torch = gpu_steps.torch_with_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    dist = gpu_steps.package("torch.distributed")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    together = dist.new_group(backend="gloo")
    first = dist.get_rank() == 0
    # Both ways, so that neither end waits for the other to be opened, and none sees an end of file.
    mine, other = (os.open(path, os.O_RDWR) for path in (options.mine, options.other)) if first else (None, None)
    whole = torch.zeros(SIZES[-1], dtype=torch.uint8, device="cuda")
    for size in SIZES:
        dist.all_reduce(whole[:size])
    torch.cuda.synchronize()
    if first:
        print(f"ready pid {os.getpid()}", flush=True)
    seconds = {size: [] for size in SIZES}
    for n in range(options.blocks):
        for size, found in seconds.items():
            if size > SHORT_BYTES and n % LONG_EVERY:
                continue
            if first:
                os.read(mine, 1)
            dist.barrier(together)
            found.append(round(timed_block(torch, dist, whole[:size]), 9))
            dist.barrier(together)
            if first:
                os.write(other, b"t")
    if first:
        print(f"seconds {json.dumps(seconds)}", flush=True)
        # The other one's last blocks are measured beside this program as all the others were.
        os.read(mine, 1)
    dist.barrier(together)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
