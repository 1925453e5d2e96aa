#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains or generates in blocks, each started by SIGUSR1 and ended by a line "block N SECONDS": two of
these, alive at the same time and asked in turn, compare what a step costs with and without a library."""

import os
import signal
import time

import gpu_steps


def training(torch):
    """Small enough that launches, not the GPU, are what takes time."""
    nn = torch.nn
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(64, 512, device="cuda")

    def step():
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def generation(torch):
    """A token for each of a batch by a small transformer over a window on the GPU, one read back a step."""
    nn, width, length = torch.nn, 1024, 32
    layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 16, 2 * width, batch_first=True, dropout=0.0)
                           for _ in range(4)).cuda().eval()
    head = nn.Linear(width, 4096).cuda()
    table = torch.randn(4096, width, device="cuda")
    window = torch.zeros(8, length, width, device="cuda")
    count = 0

    def step():
        nonlocal count
        with torch.inference_mode():
            x = window
            for layer in layers:
                x = layer(x)
            tokens = head(x[:, count % length]).argmax(-1)
            count += 1
            window[:, count % length] = table[tokens]
            return int(tokens[0])

    return step


def main():
    parser = gpu_steps.parser(__doc__, steps=0)
    parser.add_argument("--way", choices=("training", "generation"), default="training")
    parser.add_argument("--block", type=int, default=100, help="steps a block")
    options = parser.parse_args()
    # Before there are threads: each of them inherits this. Few processors, but the same for both programs.
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) >= 8:
        os.sched_setaffinity(0, cpus[2:6])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(40)
    step = (training if options.way == "training" else generation)(torch)
    for _ in range(options.block):
        step()
    torch.cuda.synchronize()
    print(f"ready pid {os.getpid()}", flush=True)
    block = 0
    while signal.sigtimedwait({signal.SIGUSR1}, 300):
        start = time.perf_counter()
        for _ in range(options.block):
            step()
        torch.cuda.synchronize()
        block += 1
        print(f"block {block} {time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
