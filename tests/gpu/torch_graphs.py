#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains with CUDA graphs: the whole step captured and replayed (--way graph), or forward and backward
made into graphs by make_graphed_callables (--way callables). The dropout's random state is in them."""

import gpu_steps


def whole_step(torch, model, optimizer, inputs):
    """Captures a step: a function that replays it and gives the loss."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            (model(inputs) - inputs).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()

    def step(fresh):
        inputs.copy_(fresh)
        graph.replay()
        return loss.item()

    return step


def graphed_model(torch, model, optimizer, inputs):
    graphed = torch.cuda.make_graphed_callables(model, (inputs,))

    def step(fresh):
        inputs.copy_(fresh)
        optimizer.zero_grad(set_to_none=True)
        loss = (graphed(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--way", choices=("graph", "callables"), default="graph")
    options = parser.parse_args()
    torch = gpu_steps.torch_with_gpus()
    torch.manual_seed(31)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1),
                                torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(128, 512, device="cuda")
    source = torch.Generator(device="cuda").manual_seed(32)
    step = (whole_step if options.way == "graph" else graphed_model)(torch, model, optimizer, inputs)
    for n in gpu_steps.steps(options):
        loss = step(torch.randn(128, 512, device="cuda", generator=source))
        gpu_steps.say(n, f"loss {loss!r} weights {gpu_steps.digest(*model.parameters())}")


if __name__ == "__main__":
    main()
