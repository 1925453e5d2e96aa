#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small model, and has the whole job saved when SIGTERM comes. After the restore the loop goes on at the same step."""

import argparse
import signal

import torch

import brumate

stop = False


def note_signal(_signal, _frame):
    """Only notes it: the program is saved between two steps, where nothing is under way."""
    global stop
    stop = True


@brumate.on_restore
def say():
    print("restored", flush=True)


def main():
    global stop
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100000)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, note_signal)
    torch.manual_seed(1)  # every run prints the same losses, so that one sees what a restore keeps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, options.steps + 1):
        data = torch.randn(512, 256, device=device)
        loss = torch.nn.functional.mse_loss(model(data), data.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if stop:
            stop = False
            try:
                brumate.checkpoint(leave_running=False)  # returns in the restored program
            except brumate.BrumateError as error:
                raise SystemExit(f"ended without a checkpoint: {error}") from error


if __name__ == "__main__":
    main()
