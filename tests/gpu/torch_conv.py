#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small convolutional network by cuDNN's deterministic algorithms, channels last."""

import gpu_steps


def main():
    options = gpu_steps.parser(__doc__).parse_args()
    torch = gpu_steps.torch_with_gpus()
    if not torch.backends.cudnn.is_available():
        gpu_steps.skip("this PyTorch has no cuDNN")
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(35)
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
                          nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
                          nn.Conv2d(64, 16, 3, padding=1)).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = torch.Generator(device="cuda").manual_seed(36)

    def train():
        inputs = torch.randn(16, 16, 64, 64, device="cuda", generator=source)
        loss = model(inputs.to(memory_format=torch.channels_last)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    train()
    for n in gpu_steps.steps(options):
        loss = train()
        gpu_steps.say(n, f"loss {loss!r} weights {gpu_steps.digest(*model.parameters())}")


if __name__ == "__main__":
    main()
