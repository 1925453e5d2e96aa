#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A training loop in JAX: gradients, a jitted step with donated weights, random keys on the device. Whole
numbers: the weights are exact, whatever algorithms XLA picked. How much memory JAX takes in advance is
up to its own variables."""

import gpu_steps


def main():
    options = gpu_steps.parser(__doc__).parse_args()
    jax = gpu_steps.package("jax")
    jnp = gpu_steps.package("jax.numpy")
    numpy = gpu_steps.package("numpy")
    if jax.default_backend() != "gpu":
        gpu_steps.skip(f"JAX runs on {jax.default_backend()}")

    def loss_of(weights, inputs, wanted):
        return (jax.nn.relu(inputs @ weights[0]) * wanted).sum() + (inputs @ weights[1] * wanted).sum()

    def train(weights, key):
        key, one, other = jax.random.split(key, 3)
        inputs = jax.random.randint(one, (256, 512), -1, 2).astype(jnp.float32)
        wanted = jax.random.randint(other, (256, 512), -1, 2).astype(jnp.float32)
        gradients = jax.grad(loss_of)(weights, inputs, wanted)
        return [jnp.mod(w - g, 7.0) - 3.0 for w, g in zip(weights, gradients)], key

    train = jax.jit(train, donate_argnums=0)
    key = jax.random.key(37)
    weights = [jax.random.randint(jax.random.key(n), (512, 512), -3, 4).astype(jnp.float32) for n in (38, 39)]
    weights, key = train(weights, key)
    jax.block_until_ready(weights)
    for n in gpu_steps.steps(options):
        weights, key = train(weights, key)
        gpu_steps.say(n, f"weights {gpu_steps.digest(*[numpy.asarray(w) for w in weights])}")


if __name__ == "__main__":
    main()
