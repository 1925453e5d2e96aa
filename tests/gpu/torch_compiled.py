#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a layer through torch.compile: Triton kernels made at run time, and with --mode reduce-overhead
CUDA graphs that Inductor records. Whole numbers throughout: each step's weights are exact."""

import gpu_steps


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--mode", choices=("default", "reduce-overhead"), default="default")
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(30)

    inputs = torch.randint(-1, 2, (256, 512), device="cuda").float()
    wanted = torch.randint(-1, 2, (256, 512), device="cuda").float()
    weights = torch.randint(-3, 4, (512, 512), device="cuda").float().requires_grad_()

    def loss_of(w, shift):
        out = torch.relu(inputs @ w + shift)
        return (out * wanted).double().sum()

    compiled = torch.compile(loss_of, mode=options.mode)

    def train(n):
        shift = torch.full((512,), float(n % 3), device="cuda")
        if options.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        loss = compiled(weights, shift)
        loss.backward()
        value = loss.item()
        with torch.no_grad():
            weights.copy_(torch.remainder(weights - weights.grad, 7) - 3)
        weights.grad = None
        return value

    for n in range(3):  # compiles, warms up, records
        train(n)
    for n in gpu_steps.steps(options):
        value = train(n)
        gpu_steps.say(n, f"loss {value!r} weights {gpu_steps.digest(weights)}")


if __name__ == "__main__":
    main()
