#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decodes with a transformer of the shape of today's language models and random weights, as large as is asked
for, in bfloat16, all of its buffers of 64 MiB or less. It answers the same question again and again: each answer
must be the first one, to the bit."""

import hashlib
import math

import gpu_steps

PARSER = gpu_steps.parser(__doc__, steps=1 << 30)
PARSER.add_argument("--gib", type=float, default=1.0, help="of device memory, about")
PARSER.add_argument("--tokens", type=int, default=16, help="of an answer")
OPTIONS = PARSER.parse_args()
torch = gpu_steps.torch_with_gpus()

VOCABULARY, WIDTH, INNER, HEADS, BATCH, LENGTH = 8192, 4096, 8192, 32, 8, 512
LAYER_BYTES = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * BATCH * LENGTH * WIDTH)


def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") / math.sqrt(shape[-1])


class Layer:
    """Attention and a gated network, as Llama has them, with all keys and values there from the beginning."""

    def __init__(self):
        self.q, self.k, self.v, self.out = (random(WIDTH, WIDTH) for _ in range(4))
        self.up, self.gate, self.down = random(INNER, WIDTH), random(INNER, WIDTH), random(WIDTH, INNER)
        self.keys, self.values = (random(BATCH, HEADS, LENGTH, WIDTH // HEADS) for _ in range(2))

    def attend(self, x, position):
        q, k, v = ((x @ w.T).view(BATCH, HEADS, 1, WIDTH // HEADS) for w in (self.q, self.k, self.v))
        self.keys[:, :, position] = k.squeeze(2)
        self.values[:, :, position] = v.squeeze(2)
        seen = slice(0, position + 1)
        x = torch.nn.functional.scaled_dot_product_attention(q, self.keys[:, :, seen], self.values[:, :, seen])
        return x.reshape(BATCH, WIDTH) @ self.out.T

    def forward(self, x, position):
        norm = torch.nn.functional.rms_norm
        x = x + self.attend(norm(x, (WIDTH,)), position)
        y = norm(x, (WIDTH,))
        return x + (torch.nn.functional.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T


def main():
    torch.manual_seed(21)
    embedding = random(VOCABULARY, WIDTH)
    layers = [Layer() for _ in range(max(1, int(OPTIONS.gib * 2**30 / LAYER_BYTES)))]
    torch.cuda.synchronize()
    first, answer, tokens = None, hashlib.sha256(), None

    with torch.inference_mode():
        for step in gpu_steps.steps(OPTIONS, f"layers {len(layers)} bytes {torch.cuda.memory_allocated()}"):
            position = (step - 1) % OPTIONS.tokens
            if position == 0:
                answer, tokens = hashlib.sha256(), torch.arange(BATCH, device="cuda")
            x = embedding[tokens]
            for layer in layers:
                x = layer.forward(x, LENGTH - OPTIONS.tokens + position)
            tokens = (x @ embedding.T).float().argmax(-1)
            answer.update(x.view(torch.uint8).cpu().numpy().tobytes())
            word = "OK"
            if position == OPTIONS.tokens - 1:
                first = first or answer.hexdigest()
                word = "answer OK" if answer.hexdigest() == first else "answer BAD"
            gpu_steps.say(step, word)


if __name__ == "__main__":
    main()
