#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains on what the worker processes of a DataLoader make (--start fork or spawn), through pinned
memory. With fork they are copies of a process that uses the GPU already. Workers that are spawned may use it themselves
(--on gpu), and may hand over what they made as it is (--on shared: CUDA's legacy IPC handles)."""

import gpu_steps

BATCH, WIDTH, WORKERS = 32, 256, 2


class Samples:
    """A map-style dataset whose sample depends on its number alone."""

    def __init__(self, n, on):
        self.n, self.on = n, on

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        import torch

        sample = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        if self.on == "cpu":
            return sample
        sample = sample.cuda().flip(0) * 2
        return sample if self.on == "shared" else sample.cpu()


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--on", choices=("cpu", "gpu", "shared"), default="cpu")
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    data = gpu_steps.package("torch.utils.data")
    torch.manual_seed(33)
    model = torch.nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = data.DataLoader(Samples(BATCH * (options.steps + 1), options.on), batch_size=BATCH, num_workers=WORKERS,
                             multiprocessing_context=options.start, pin_memory=options.on != "shared", timeout=120)
    batches = iter(loader)

    def train():
        inputs = next(batches).cuda(non_blocking=True)
        loss = (model(inputs) - inputs.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    train()
    for n in gpu_steps.steps(options):
        gpu_steps.say(n, f"loss {train()!r}")


if __name__ == "__main__":
    main()
