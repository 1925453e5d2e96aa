#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small network with everything seeded and deterministic, and prints each step's loss in
full: two runs print the same lines, whatever happened to one of them in between."""

import gpu_steps


def allocator(torch):
    """Who allocates, as far as PyTorch tells."""
    backend = torch.cuda.get_allocator_backend()
    if backend == "native" and any(s.get("is_expandable") for s in torch.cuda.memory_snapshot()):
        return "expandable"
    return backend


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(20)
    model = torch.nn.Sequential(
        torch.nn.Linear(options.width, 2 * options.width),
        torch.nn.GELU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(2 * options.width, options.width),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in gpu_steps.steps(options, f"allocator {allocator(torch)}"):
        inputs = torch.randn(256, options.width, device="cuda")
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gpu_steps.say(step, f"loss {loss.item()!r}")


if __name__ == "__main__":
    main()
