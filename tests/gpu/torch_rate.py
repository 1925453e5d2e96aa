#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains or generates in blocks of a few steps: two of these, alive at the same time, hand the turn to each
other after each block, and so compare what a step costs with and without a library. A turn is a byte in a
FIFO. When all blocks are done it prints their seconds, in the order of time."""

import json
import os
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


def timed_block(torch, step, steps):
    """The first step, in which caches become this program's again, does not count."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = gpu_steps.parser(__doc__, steps=0)
    parser.add_argument("--way", choices=("training", "generation"), default="training")
    parser.add_argument("--block", type=int, default=4, help="steps a block")
    parser.add_argument("--blocks", type=int, default=100, help="blocks in all")
    parser.add_argument("--mine", default="mine", help="FIFO that gives the turn to this program")
    parser.add_argument("--other", default="other", help="FIFO that gives it to the other one")
    options = parser.parse_args()
    # Before there are threads: each of them inherits this. One processor, the same for both programs: what
    # it costs to wake a thread on another one varies more than what is looked for.
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(40)
    # Both ways, so that neither end waits for the other to be opened, and none sees an end of file.
    mine, other = (os.open(path, os.O_RDWR) for path in (options.mine, options.other))
    step = (training if options.way == "training" else generation)(torch)
    for _ in range(100):
        step()
    torch.cuda.synchronize()
    print(f"ready pid {os.getpid()}", flush=True)
    seconds = []
    for _ in range(options.blocks):
        os.read(mine, 1)
        seconds.append(round(timed_block(torch, step, options.block), 7))
        os.write(other, b"t")
    print(f"blocks {json.dumps(seconds)}", flush=True)
    # The other one's last blocks are measured beside this program as all the others were.
    os.read(mine, 1)


if __name__ == "__main__":
    main()
