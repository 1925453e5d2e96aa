#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two processes work in turn on one CUDA tensor that torch.multiprocessing shares between them (CUDA's
legacy IPC handles)."""

import sys

import gpu_steps

WAIT_S = 300  # for the other one's turn, a suspend in between


def other(shared, pipe):
    torch = gpu_steps.torch_with_gpus()
    while pipe.poll(WAIT_S):
        n = pipe.recv()
        if n is None:
            break
        shared.mul_(5).remainder_(8191).add_(n)
        torch.cuda.synchronize()
        pipe.send(n)


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--mib", type=int, default=16)
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    context = gpu_steps.package("torch.multiprocessing").get_context("spawn")
    shared = torch.arange(options.mib << 18, dtype=torch.int32, device="cuda") % 8191
    torch.cuda.synchronize()
    ours, theirs = context.Pipe()
    child = context.Process(target=other, args=(shared, theirs), daemon=True)
    child.start()
    theirs.close()

    def turn(n):
        ours.send(n)
        if not ours.poll(WAIT_S) or ours.recv() != n:
            sys.exit(f"the other process gave no answer to step {n}")
        shared.mul_(3).remainder_(8191).add_(1)
        torch.cuda.synchronize()

    turn(0)
    for n in gpu_steps.steps(options):
        turn(n)
        gpu_steps.say(n, f"shared {gpu_steps.digest(shared)}")
    ours.send(None)
    child.join(30)
    sys.exit(child.exitcode or 0)


if __name__ == "__main__":
    main()
