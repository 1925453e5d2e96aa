#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A kernel compiled by Numba that advances a state in place, with a copy to the host at each step."""

import gpu_steps

OPTIONS = gpu_steps.parser(__doc__).parse_args()
numpy = gpu_steps.package("numpy")
cuda = gpu_steps.package("numba.cuda")

WORDS = 1 << 20


def main():
    if not cuda.is_available():
        gpu_steps.skip("Numba sees no GPU")

    @cuda.jit
    def advance(state, step):
        i = cuda.grid(1)
        if i < state.size:
            state[i] = (state[i] * 31 + step + i) % 8191

    state = cuda.to_device(numpy.arange(WORDS, dtype=numpy.int64) % 8191)

    def step(n):
        advance[WORDS // 256, 256](state, n)
        return gpu_steps.digest(state.copy_to_host())

    step(0)
    for n in gpu_steps.steps(OPTIONS):
        gpu_steps.say(n, f"state {step(n)}")


if __name__ == "__main__":
    main()
