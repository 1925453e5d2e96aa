#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One rank of a job that torchrun starts: trains a small transformer with its gradients summed over the ranks (--way
ddp), with its weights spread over them (fsdp), or generates with each layer's work split between them (tp), with
the step captured in a CUDA graph (--graph) or not. Rank 0 prints a digest of what every rank has. A sum of two numbers
is the same in either order, so two ranks compute the same to the bit each time."""

import datetime
import gc
import os
import time

import gpu_steps

WAIT_S = 300
VOCABULARY, HEADS, LAYERS, BATCH, LENGTH = 2048, 8, 2, 8, 32
BUSY = 8192  # the side of the matrices that take time

# NVLink multicast can put GPUs that others share out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class Ranks:
    """This rank among the others."""

    def __init__(self, torch, device):
        self.torch, self.device = torch, device
        self.dist = gpu_steps.package("torch.distributed")
        self.dist.init_process_group("nccl" if device.type == "cuda" else "gloo",
                                     timeout=datetime.timedelta(seconds=WAIT_S))
        self.rank, self.n = self.dist.get_rank(), self.dist.get_world_size()

    def digest(self, *parts):
        """Of what all ranks have, the same on each."""
        mine = bytes.fromhex(gpu_steps.digest(*parts))
        words = self.torch.tensor(list(mine), dtype=self.torch.int64, device=self.device) * (self.rank + 1)
        self.dist.all_reduce(words)
        return gpu_steps.digest(words)


def transformer(torch, width):
    nn = torch.nn
    layers = [nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True, dropout=0.0) for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(VOCABULARY, width), *layers, nn.Linear(width, VOCABULARY))


def spread(torch, model):
    """Its weights in shards, as FSDP of the present PyTorch has them."""
    fsdp = gpu_steps.package("torch.distributed.fsdp")
    for layer in model[1:-1]:
        fsdp.fully_shard(layer)
    return fsdp.fully_shard(model)


def local(parameters):
    return [p.to_local() if hasattr(p, "to_local") else p for p in parameters]


def training(torch, ranks, options):
    """A function that takes a step, and what to make a digest of."""
    torch.manual_seed(51)
    model = transformer(torch, options.width).to(ranks.device)
    if options.way == "fsdp":
        trained = spread(torch, model)
    else:
        ids = [ranks.device.index] if ranks.device.type == "cuda" else None
        trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    source = torch.Generator().manual_seed(52 + ranks.rank)

    def step():
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=source).to(ranks.device)
        logits = trained(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: local(trained.parameters())


class SplitLayer:
    """A layer of which each rank has some heads, and some rows of the rest; the parts are summed up."""

    def __init__(self, torch, ranks, width):
        part = width // ranks.n
        self.torch, self.ranks, self.heads = torch, ranks, HEADS // ranks.n
        # All ranks draw the same numbers, and each takes its part.
        whole = [torch.randn(3, width, width), torch.randn(width, width), torch.randn(4 * width, width),
                 torch.randn(width, 4 * width)]
        mine = slice(ranks.rank * part, (ranks.rank + 1) * part)
        wide = slice(4 * ranks.rank * part, 4 * (ranks.rank + 1) * part)
        parts = [whole[0][:, mine].reshape(3 * part, width), whole[1][:, mine], whole[2][wide], whole[3][:, wide]]
        self.qkv, self.out, self.up, self.down = [(p * width ** -0.5).contiguous().to(ranks.device) for p in parts]

    def summed(self, x):
        self.ranks.dist.all_reduce(x)
        return x

    def __call__(self, x):
        torch, norm = self.torch, self.torch.nn.functional.layer_norm
        q, k, v = ((norm(x, x.shape[-1:]) @ self.qkv.T).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4))
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.summed(attended @ self.out.T)
        return x + self.summed(torch.nn.functional.gelu(norm(x, x.shape[-1:]) @ self.up.T) @ self.down.T)


def generation(torch, ranks, options):
    """The next token for each of a batch, by a window of the last ones."""
    torch.manual_seed(53)
    table = torch.randn(VOCABULARY, options.width).to(ranks.device)
    layers = [SplitLayer(torch, ranks, options.width) for _ in range(LAYERS)]
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH)).to(ranks.device)

    def step():
        x = table[tokens]
        for layer in layers:
            x = layer(x)
        logits = x[:, -1] @ table.T
        following = logits.argmax(-1, keepdim=True)
        tokens.copy_(torch.cat((tokens[:, 1:], following), 1))
        return logits.amax()

    return step, lambda: [tokens]


def captured(torch, step):
    """The same step, replayed from a graph with its collectives in it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = step()

    def replay():
        graph.replay()
        return result

    return replay


def slowed(torch, ranks, step, options):
    """With work that takes time on the GPU, and one rank that is late now and then."""
    busy = torch.ones(BUSY, BUSY, device=ranks.device) if options.work else None
    n = 0

    def slow():
        nonlocal n
        n += 1
        for _ in range(options.work):
            torch.mm(busy, busy)
        if options.skew_ms and n % 5 == 0 and ranks.rank == n // 5 % ranks.n:
            time.sleep(options.skew_ms / 1000)
        return step()

    return slow


def work(torch, ranks, options):
    """All steps. What it has captured is gone with it: NCCL ends a group only when no graph has its sums any more."""
    step, state = (generation if options.way == "tp" else training)(torch, ranks, options)
    step = slowed(torch, ranks, captured(torch, step) if options.graph else step, options)
    step()
    for n in gpu_steps.steps(options) if ranks.rank == 0 else range(1, options.steps + 1):
        start = time.monotonic()
        result = step().item()
        took_ms = (time.monotonic() - start) * 1e3
        digest = ranks.digest(*state())
        if ranks.rank == 0:
            gpu_steps.say(n, f"result {result!r} of all {digest}")
        if ranks.rank == 0 and options.work:
            print(f"took {took_ms:.1f} ms", flush=True)


def main():
    parser = gpu_steps.parser(__doc__)
    parser.add_argument("--way", choices=("ddp", "fsdp", "tp"), default="ddp")
    parser.add_argument("--graph", action="store_true", help="generate by a CUDA graph")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--work", type=int, default=0, help="large matrix products a step, about 20 ms each on an H100")
    parser.add_argument("--gpu", type=int, default=0, help="of the first rank of this node")
    parser.add_argument("--skew-ms", type=int, default=0, help="so late is one rank in every fifth step")
    options = parser.parse_args()
    os.environ.update(NO_MULTICAST)
    torch = gpu_steps.torch_with_gpus(options.gpu + int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    device = torch.device("cuda", options.gpu + int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    ranks = Ranks(torch, device)
    with torch.inference_mode(options.way == "tp"):
        work(torch, ranks, options)
    gc.collect()
    ranks.dist.destroy_process_group()


if __name__ == "__main__":
    main()
