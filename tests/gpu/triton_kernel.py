#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A Triton kernel that advances a state in place and sums up each block, compiled at run time."""

import gpu_steps

OPTIONS = gpu_steps.parser(__doc__).parse_args()
torch = gpu_steps.torch_with_gpus()
triton = gpu_steps.package("triton")
tl = gpu_steps.package("triton.language")

WORDS, BLOCK = 1 << 22, 1024


@triton.jit
def advance(state, sums, step, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = at < n
    x = tl.load(state + at, mask=mask, other=0)
    x = (x * 31 + step + at) % 8191
    tl.store(state + at, x, mask=mask)
    tl.store(sums + tl.program_id(0), tl.sum(x, axis=0))


def main():
    state = torch.arange(WORDS, dtype=torch.int32, device="cuda") % 8191
    sums = torch.zeros(WORDS // BLOCK, dtype=torch.int32, device="cuda")

    def step(n):
        # From 1000 on: Triton compiles again for a 1 and for multiples of 16.
        advance[(WORDS // BLOCK,)](state, sums, 1000 + n, WORDS, SIZE=BLOCK)
        torch.cuda.synchronize()

    for n in (-7, -8):  # both ways it is compiled: 993, and 992, which 16 divides
        step(n)
    for n in gpu_steps.steps(OPTIONS):
        step(n)
        gpu_steps.say(n, f"state {gpu_steps.digest(state)} sums {gpu_steps.digest(sums)}")


if __name__ == "__main__":
    main()
