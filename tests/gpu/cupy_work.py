#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CuPy: its memory pool with buffers that come and go, a kernel compiled from source, cuBLAS and cuFFT.
Whole numbers, rounded after the transforms: the results are exact."""

import gpu_steps

WIDTH = 512

SOURCE = r"""
extern "C" __global__ void advance(int *state, int n, int step)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		state[i] = (state[i] * 31 + step + i) % 8191;
}
"""


def main():
    options = gpu_steps.parser(__doc__).parse_args()
    cupy = gpu_steps.package("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        gpu_steps.skip(f"CuPy sees no GPU ({error})")
    advance = cupy.RawKernel(SOURCE, "advance")
    state = cupy.arange(WIDTH * WIDTH, dtype=cupy.int32) % 8191
    matrix = (cupy.arange(WIDTH * WIDTH, dtype=cupy.float32) % 7 - 3).reshape(WIDTH, WIDTH)
    kept = []

    def step(n):
        advance((64,), (256,), (state, cupy.int32(state.size), cupy.int32(n)))
        small = (state.reshape(WIDTH, WIDTH) % 5).astype(cupy.float32)
        product = matrix @ small
        there_and_back = cupy.rint(cupy.fft.ifft(cupy.fft.fft(product.astype(cupy.float64))).real)
        kept.append(cupy.full((n % 5 + 1) << 18, n, dtype=cupy.int32))
        if len(kept) > 4:
            kept.pop(n % 3)
        matrix[...] = cupy.mod(there_and_back, 7).astype(cupy.float32) - 3
        return gpu_steps.digest(cupy.asnumpy(state), cupy.asnumpy(matrix), *[cupy.asnumpy(k[:8]) for k in kept])

    step(0)
    for n in gpu_steps.steps(options):
        gpu_steps.say(n, f"all {step(n)}")


if __name__ == "__main__":
    main()
