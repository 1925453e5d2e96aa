#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two processes work in turn on one CUDA tensor that torch.multiprocessing shares between them (CUDA's
legacy IPC handles). With --events each records an event that the other has open, and waits for the other's, instead of
synchronizing before it gives the turn away."""

import sys

import gpu_steps

WAIT_S = 300  # for the other one's turn, a suspend in between


class Turns:
    """How a process tells the other that its work on the tensor is done."""

    def __init__(self, torch, pipe, events):
        self.torch = torch
        self.own = self.others = None
        if events:
            self.own = torch.cuda.Event(interprocess=True)
            self.own.record()
            pipe.send(self.own.ipc_handle())
            self.others = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), pipe.recv())

    def take(self):
        if self.others:
            self.torch.cuda.current_stream().wait_event(self.others)

    def give(self):
        if self.own:
            self.own.record()
        else:
            self.torch.cuda.synchronize()


def other(shared, pipe, events):
    turns = Turns(gpu_steps.torch_with_gpus(), pipe, events)
    while pipe.poll(WAIT_S):
        n = pipe.recv()
        if n is None:
            break
        turns.take()
        shared.mul_(5).remainder_(8191).add_(n)
        turns.give()
        pipe.send(n)


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--events", action="store_true")
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    context = gpu_steps.package("torch.multiprocessing").get_context("spawn")
    shared = torch.arange(options.mib << 18, dtype=torch.int32, device="cuda") % 8191
    torch.cuda.synchronize()
    ours, theirs = context.Pipe()
    child = context.Process(target=other, args=(shared, theirs, options.events), daemon=True)
    child.start()
    theirs.close()
    turns = Turns(torch, ours, options.events)

    def turn(n):
        turns.give()
        ours.send(n)
        if not ours.poll(WAIT_S) or ours.recv() != n:
            sys.exit(f"the other process gave no answer to step {n}")
        turns.take()
        shared.mul_(3).remainder_(8191).add_(1)

    turn(0)
    for n in gpu_steps.steps(options):
        turn(n)
        torch.cuda.synchronize()
        gpu_steps.say(n, f"shared {gpu_steps.digest(shared)}")
    ours.send(None)
    child.join(30)
    sys.exit(child.exitcode or 0)


if __name__ == "__main__":
    main()
