#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decodes with a small transformer that keeps its keys and values on the GPU, and prints a digest of
all tokens so far at each step: two runs print the same lines."""

import argparse
import hashlib
import math
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (reads the environment above)

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH = 4096, 1024, 16, 8, 8


class Layer(torch.nn.Module):
    def __init__(self, length):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        shape = (BATCH, HEADS, length, WIDTH // HEADS)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def attend(self, x, position):
        q, k, v = (t.view(BATCH, HEADS, WIDTH // HEADS) for t in self.qkv(x).chunk(3, dim=-1))
        self.keys[:, :, position] = k
        self.values[:, :, position] = v
        keys, values = self.keys[:, :, : position + 1], self.values[:, :, : position + 1]
        scores = (q.unsqueeze(2) @ keys.transpose(2, 3)) / math.sqrt(WIDTH // HEADS)
        return (scores.softmax(-1) @ values).reshape(BATCH, WIDTH)

    def forward(self, x, position):
        x = x + self.out(self.attend(self.norms[0](x), position))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--interval-ms", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(21)
    torch.use_deterministic_algorithms(True)
    embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
    layers = torch.nn.ModuleList(Layer(options.steps) for _ in range(LAYERS))
    head = torch.nn.Linear(WIDTH, VOCABULARY)
    for module in (embedding, layers, head):
        module.cuda().eval()

    tokens = torch.arange(BATCH, device="cuda")
    digest = hashlib.sha256()
    print(f"ready pid {os.getpid()}", flush=True)
    with torch.inference_mode():
        for step in range(1, options.steps + 1):
            x = embedding(tokens)
            for layer in layers:
                x = layer(x, step - 1)
            probabilities = head(x).float().softmax(-1)
            tokens = torch.multinomial(probabilities, 1).squeeze(1)
            digest.update(tokens.cpu().numpy().tobytes())
            print(f"step {step} tokens {digest.hexdigest()}", flush=True)
            time.sleep(options.interval_ms / 1000)


main()
