#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sums over ranks by NCCL, one process and one GPU a rank, and works with the sums; which transport it
takes is up to NCCL's own variables. Whole numbers: the sums are exact."""

import datetime
import os
import sys
import tempfile

import gpu_steps

WAIT_S = 300
WORDS = 1 << 20

# NVLink multicast can put GPUs that others share out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def work(rank, options, store):
    for name, value in NO_MULTICAST.items():
        os.environ[name] = value
    torch = gpu_steps.torch_with_gpus(options.ranks)
    dist = gpu_steps.package("torch.distributed")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=options.ranks,
                            timeout=datetime.timedelta(seconds=WAIT_S))
    state = torch.arange(WORDS, dtype=torch.int64, device="cuda") + rank

    def exchange(n):
        dist.all_reduce(state)
        state.mul_(rank + 2).add_(n).remainder_(1000003)
        torch.cuda.synchronize()

    exchange(0)
    for n in gpu_steps.steps(options) if rank == 0 else range(1, options.steps + 1):
        exchange(n)
        if rank == 0:
            gpu_steps.say(n, f"state {gpu_steps.digest(state)}")
    dist.destroy_process_group()


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    gpu_steps.torch_with_gpus(options.ranks)
    context = gpu_steps.package("torch.multiprocessing").get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="brumate-nccl-") as folder:
        store = os.path.join(folder, "store")
        others = [context.Process(target=work, args=(rank, options, store), daemon=True)
                  for rank in range(1, options.ranks)]
        for process in others:
            process.start()
        work(0, options, store)
        for process in others:
            process.join(30)
    sys.exit(any(process.exitcode for process in others))


if __name__ == "__main__":
    main()
