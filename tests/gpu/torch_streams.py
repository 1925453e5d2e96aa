#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Works on four streams with copies from and to pinned memory that are under way while the program
sleeps, ordered by events."""

import gpu_steps

STREAMS, WIDTH = 4, 1024


def main():
    options = gpu_steps.parser(__doc__).parse_args()
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(34)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    state = [torch.randn(WIDTH, WIDTH, device="cuda") for _ in range(STREAMS)]
    mixer = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5
    fresh = [torch.randn(WIDTH, WIDTH).pin_memory() for _ in range(STREAMS)]
    out = [torch.empty(WIDTH, WIDTH, pin_memory=True) for _ in range(STREAMS)]
    staged = [torch.empty(WIDTH, WIDTH, device="cuda") for _ in range(STREAMS)]
    done = [torch.cuda.Event() for _ in range(STREAMS)]
    torch.cuda.synchronize()

    def start():
        """Puts a step's work on all streams; each waits for the one before it, whose result it reads."""
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                staged[i].copy_(fresh[i], non_blocking=True)
                stream.wait_event(done[i - 1])
                state[i].copy_(torch.tanh(state[i] @ mixer + staged[i] + state[i - 1]))
                out[i].copy_(state[i], non_blocking=True)
                done[i].record(stream)

    start()
    for n in gpu_steps.steps(options):
        torch.cuda.synchronize()
        gpu_steps.say(n, f"out {gpu_steps.digest(*out)}")
        start()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
