#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small network with everything seeded and deterministic, and prints each step's loss in
full: two runs print the same lines, whatever happened to one of them in between."""

import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (reads the environment above)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--interval-ms", type=int, default=0)
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args()

    torch.manual_seed(20)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model = torch.nn.Sequential(
        torch.nn.Linear(options.width, 2 * options.width),
        torch.nn.GELU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(2 * options.width, options.width),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    print(f"ready pid {os.getpid()}", flush=True)

    for step in range(1, options.steps + 1):
        inputs = torch.randn(256, options.width, device="cuda")
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)
        time.sleep(options.interval_ms / 1000)


main()
