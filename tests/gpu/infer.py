#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decodes with a small transformer that keeps its keys and values on the GPU, and prints a digest of
all tokens so far at each step: two runs print the same lines."""

import hashlib
import math

import gpu_steps

OPTIONS = gpu_steps.parser(__doc__, steps=80).parse_args()
torch = gpu_steps.torch_with_gpus()

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
    torch.manual_seed(21)
    embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
    layers = torch.nn.ModuleList(Layer(OPTIONS.steps) for _ in range(LAYERS))
    head = torch.nn.Linear(WIDTH, VOCABULARY)
    for module in (embedding, layers, head):
        module.cuda().eval()

    tokens = torch.arange(BATCH, device="cuda")
    digest = hashlib.sha256()
    with torch.inference_mode():
        for step in gpu_steps.steps(OPTIONS):
            x = embedding(tokens)
            for layer in layers:
                x = layer(x, step - 1)
            probabilities = head(x).float().softmax(-1)
            tokens = torch.multinomial(probabilities, 1).squeeze(1)
            digest.update(tokens.cpu().numpy().tobytes())
            gpu_steps.say(step, f"tokens {digest.hexdigest()}")


if __name__ == "__main__":
    main()
