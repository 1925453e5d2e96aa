# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about frameworks: programs that use the GPU through PyTorch, JAX, CuPy, Triton,
Numba, cuDNN and NCCL are suspended, checkpointed and restored in the middle of their work and must print
what they print undisturbed. And what the library costs them while nothing happens."""

import json
import os
import re
import statistics
from dataclasses import dataclass

from harness import Failed, Skipped, expect, process_start, run
from library import Library

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, STEPS_BETWEEN, INTERVAL_MS = 80, 5, 100
READY_S, RANKS_READY_S, STEP_S, OPERATION_S, END_S, STEADY_S = 180, 90, 60, 240, 120, 240
RANKS_END_S = 45  # they take no pauses, and ended within 15 s on two H200s
EXCHANGED = ("--gpu-map", "0=1,1=0")


@dataclass(frozen=True)
class Way:
    """A way of using the GPU: a program of this folder, and how it is called."""

    name: str
    script: str
    args: tuple = ()
    env: tuple = ()  # NAME=value
    launcher: tuple = ()  # between Python and the script
    gpus: int = 1  # more than one: they change places, too
    says: str = ""  # must be on its line "ready"
    measured: bool = False  # the driver may be unable to do this: what happens is told, not judged
    undisturbed: tuple = None  # env of the run to compare with, where it is another
    checkpoints: bool = True  # not only suspended
    simulated: bool = False  # the simulated driver will do

    def argv(self, check, *args, env=None):
        env = self.env if env is None else env
        return ["env", "PYTHONUNBUFFERED=1", *caches(check), *env, check.options.python, *self.launcher,
                os.path.join(HERE, self.script), *self.args, *args]


def caches(check):
    """Compilers' caches, of this case alone: what one case compiles must not depend on the others."""
    folder = os.path.join(check.instance.dir, "cache")
    return [f"TORCHINDUCTOR_CACHE_DIR={folder}/inductor", f"TRITON_CACHE_DIR={folder}/triton",
            f"CUPY_CACHE_DIR={folder}/cupy"]


SMALL = ("--width", "1024")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
P2P_BY_IPC, BY_HOST_MEMORY = ("NCCL_CUMEM_ENABLE=0",), ("NCCL_P2P_DISABLE=1",)
WAYS = (
    Way("PyTorch, eager", "train.py", SMALL, says="allocator native"),
    Way("PyTorch, CUDA graph", "torch_graphs.py", ("--way", "graph")),
    Way("JAX", "jax_train.py", env=("XLA_PYTHON_CLIENT_PREALLOCATE=false",)),
    Way("PyTorch, torch.compile", "torch_compiled.py", env=("TORCHINDUCTOR_COMPILE_THREADS=1",)),
    Way("PyTorch, expandable segments", "train.py", SMALL, ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
        says="allocator expandable"),
    Way("JAX, memory taken in advance", "jax_train.py", env=("XLA_CLIENT_MEM_FRACTION=0.1",)),
    Way("PyTorch, cudaMallocAsync", "train.py", SMALL, ("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",),
        says="allocator cudaMallocAsync"),
    Way("CuPy", "cupy_work.py"),
    Way("Triton", "triton_kernel.py"),
    Way("cuDNN", "torch_conv.py"),
    Way("NCCL, one rank", "torch_nccl.py"),
    Way("PyTorch, streams and pinned memory", "torch_streams.py"),
    Way("PyTorch, DataLoader, fork", "torch_loader.py", ("--start", "fork")),
    Way("PyTorch, DataLoader, spawn", "torch_loader.py", ("--start", "spawn")),
    Way("PyTorch, DataLoader, CUDA workers", "torch_loader.py", ("--start", "spawn", "--on", "gpu")),
    Way("PyTorch, DataLoader, CUDA workers, tensors shared", "torch_loader.py", ("--start", "spawn", "--on", "shared")),
    Way("PyTorch, graphed callables", "torch_graphs.py", ("--way", "callables")),
    Way("PyTorch, torch.compile, reduce-overhead", "torch_compiled.py", ("--mode", "reduce-overhead"),
        ("TORCHINDUCTOR_COMPILE_THREADS=1",)),
    Way("PyTorch, torch.compile, compile workers", "torch_compiled.py"),
    Way("Numba", "numba_kernel.py"),
    Way("PyTorch, inference", "infer.py"),
    Way("no framework", "driver_api.py", simulated=True),
    Way("PyTorch, tensor shared by two processes", "torch_shared.py"),
    Way("PyTorch, tensor and events shared by two processes", "torch_shared.py", ("--events",)),
    Way("NCCL, two ranks", "torch_nccl.py", ("--ranks", "2"), gpus=2),
    Way("NCCL, two ranks, P2P by IPC", "torch_nccl.py", ("--ranks", "2"), P2P_BY_IPC, gpus=2),
    Way("NCCL, two ranks, shared memory", "torch_nccl.py", ("--ranks", "2"), BY_HOST_MEMORY, gpus=2),
    Way("torchrun, two ranks, DDP", "torch_ranks.py", ("--way", "ddp"), launcher=TORCHRUN, gpus=2),
    Way("torchrun, two ranks, FSDP", "torch_ranks.py", ("--way", "fsdp"), launcher=TORCHRUN, gpus=2),
    Way("torchrun, two ranks, tensor parallel", "torch_ranks.py", ("--way", "tp"), launcher=TORCHRUN, gpus=2),
    Way("torchrun, two ranks, tensor parallel, CUDA graph", "torch_ranks.py", ("--way", "tp", "--graph"),
        launcher=TORCHRUN, gpus=2),
    Way("torchrun, two ranks, DDP, P2P by IPC", "torch_ranks.py", ("--way", "ddp"), P2P_BY_IPC, TORCHRUN, 2),
    Way("torchrun, two ranks, DDP, shared memory", "torch_ranks.py", ("--way", "ddp"), BY_HOST_MEMORY, TORCHRUN, 2),
    Way("torchrun, two ranks, tensor parallel, CUDA graph, shared memory", "torch_ranks.py", ("--way", "tp", "--graph"),
        BY_HOST_MEMORY, TORCHRUN, 2),
    # Three quarters of the card: the run to compare with must not take them too.
    Way("JAX, all defaults", "jax_train.py", undisturbed=("XLA_PYTHON_CLIENT_PREALLOCATE=false",), measured=True,
        checkpoints=False),
)


# What programs print.

def results_of(text):
    return re.findall(r"^step \d+ .*$", text, re.MULTILINE)


def wait_step(log, step, seconds=STEP_S):
    log.wait_until(lambda text: len(results_of(text)) >= step, f"step {step}", seconds)


def same_as_undisturbed(log, want):
    have = results_of(log.text())
    for n, (one, other) in enumerate(zip(have, want)):
        expect(one == other, f"line {n + 1} is {one!r}, undisturbed {other!r}")
    expect(len(have) == len(want), f"{len(have)} steps, undisturbed {len(want)}")


def is_ready(log, alive, seconds=READY_S):
    """Waits for the program's line "ready"; it may also say that it cannot run here, or end."""

    def settled(text):
        if not alive():
            text = log.text()  # what it wrote last
        if skipped := re.search(r"^SKIP: (.*)$", text, re.MULTILINE):
            raise Skipped(skipped[1])
        ready = re.search(r"^ready .*$", text, re.MULTILINE)
        expect(ready or alive(), f"the program ended before it was ready: {log.tail(12)}")
        return ready

    return log.wait_until(settled, "ready", seconds)[0]


def is_ready_beside(log, alive, plain):
    """As is_ready(). What fails without brumate too, in the undisturbed run, says nothing about brumate."""
    try:
        return is_ready(log, alive)
    except Failed:
        try:
            is_ready(plain.log, lambda: plain.process.poll() is None)
        except Failed as failed:
            raise Skipped(f"it does not run here without brumate either: {plain.log.tail(1)}") from failed
        raise


# How many GPUs there are.

def gpu_count(check):
    if check.options.simulated:
        return int(os.environ.get("BRUMATE_SIM_GPUS", "2"))
    result = run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], timeout=30)
    return len(result.out.split()) if result.code == 0 else 0


def need_gpus(check, n):
    have = gpu_count(check)
    if have < n:
        raise Skipped(f"needs {n} GPUs, has {have}")


def need(check, way):
    if check.options.simulated and not way.simulated:
        raise Skipped("frameworks need a real GPU")
    need_gpus(check, way.gpus)


# Disturbed and undisturbed.

class Refused(Exception):
    """An operation that did not succeed, of a way that is only measured."""

    def __init__(self, verb, why):
        super().__init__(why)
        self.verb = verb


def operate(check, way, verb, what, *options):
    """Carries out an operation; its summary. Of a way that is only measured, by --force where brumate asks for it."""
    args = [verb, what, *options, "--format", "json"]
    result = check.instance.cli(*args, timeout=OPERATION_S)
    if way.measured and result.code == 4 and "--force" in result.err:
        check.measured[f"{way.name}: {verb}"] = "asks for --force"
        result = check.instance.cli(*args, "--force", timeout=OPERATION_S)
    if result.code and way.measured:
        raise Refused(verb, ((result.err or result.out).strip() or f"exit {result.code}").splitlines()[0])
    expect(result.code == 0, result.why())
    value = result.json()
    summary = value.get("summary", value)
    check.operations.append(summary)
    return summary


def disturb(check, way, job, log):
    """The operations, with work between them. The job must not have ended by itself."""
    wait_step(log, STEPS_BETWEEN)
    summary = operate(check, way, "suspend", job)
    check.measured[f"{way.name}: MB moved by broker / driver"] = " / ".join(
        str(round(summary.get(key, 0) / 1e6)) for key in ("data_bytes", "driver_bytes"))
    operate(check, way, "resume", job)
    wait_step(log, len(results_of(log.text())) + STEPS_BETWEEN)
    for options in ([], EXCHANGED) if way.gpus > 1 else ([],):
        if way.checkpoints:
            restore_in_the_middle(check, way, job, log, options)


def restore_in_the_middle(check, way, job, log, options):
    saved = operate(check, way, "checkpoint", job)
    steps = len(results_of(log.text()))
    operate(check, way, "restore", saved["checkpoint"], *options)
    wait_step(log, steps + STEPS_BETWEEN)


def ends_right(check, job, log, undisturbed):
    ended = check.instance.cli("wait", job, timeout=END_S)
    expect(ended.code == 0, f"{ended.why()}; the log ends: {log.tail(8)}")
    same_as_undisturbed(log, undisturbed.results())


def goes_on_or_is_told(check, way, job, log, undisturbed, refused):
    """Where the driver cannot do it: a job that still runs must end right, one that is lost is told of."""
    state = check.instance.job(job)["state"]
    check.measured[f"{way.name}: {refused.verb}"] = f"{state} after: {refused}"
    if state == "running":
        ends_right(check, job, log, undisturbed)
    else:
        expect(all(a == b for a, b in zip(results_of(log.text()), undisturbed.results())),
               "a line was wrong before the job was lost")


class Undisturbed:
    """The same program without brumate: beside the job, or once before all jobs of its ranks. Those have their GPUs for
    themselves, as kernels that wait for others may fail where they share one with a job that was restored
    (docs/driver-behaviour.md)."""

    found = {}  # what ranks print, whichever way they talk: {(script, args): lines}

    def __init__(self, check, way, *args):
        self.key, self.plain = (way.script, way.args, args), None
        self.end_s = RANKS_END_S if way.gpus > 1 else END_S
        if way.gpus > 1 and self.key in self.found:
            return
        self.plain = check.instance.start(way.argv(check, *args, env=way.undisturbed), "plain")
        if way.gpus > 1:
            self.of_ranks(check)

    def of_ranks(self, check):
        try:
            is_ready(self.plain.log, lambda: self.plain.process.poll() is None, RANKS_READY_S)
            self.found[self.key], self.plain = self.results(), None
        except Failed as failed:
            check.keep_evidence()
            raise Skipped(f"it does not run here without brumate either: {failed}") from failed

    def job_is_ready(self, log, alive):
        return is_ready_beside(log, alive, self.plain) if self.plain else is_ready(log, alive, RANKS_READY_S)

    def results(self):
        """When it has ended."""
        if self.key in self.found:
            return self.found[self.key]
        expect(self.plain.wait(self.end_s) == 0, f"undisturbed, it failed: {self.plain.log.tail(8)}")
        lines = results_of(self.plain.log.text())
        expect(lines, "undisturbed, it printed no step")
        return lines


def framework(check, way):
    need(check, way)
    steps = ("--steps", STEPS)
    undisturbed = Undisturbed(check, way, *steps)
    job = check.instance.run(way.argv(check, *steps, "--interval-ms", INTERVAL_MS), name="framework",
                             options=("--data-path", "broker"))
    log = check.instance.log(job)
    pid = check.instance.job(job)["pid"]
    start = process_start(pid) if pid else None
    ready = undisturbed.job_is_ready(log, lambda: start is not None and process_start(pid) == start)
    expect(way.says in ready, f"expected {way.says!r}: {ready}")
    try:
        disturb(check, way, job, log)
    except Refused as refused:
        goes_on_or_is_told(check, way, job, log, undisturbed, refused)
        return
    if way.measured:
        check.measured[f"{way.name}: outcome"] = "suspended, resumed" + (", restored" if way.checkpoints else "")
    ends_right(check, job, log, undisturbed)


def same_output(check, way):
    """The same program with and without the library, side by side: no operation."""
    need(check, way)
    steps = ("--steps", "20")
    undisturbed = Undisturbed(check, way, *steps)
    library = Library(check)
    ours = check.instance.start([*library.words(), *way.argv(check, *steps)], "ours")
    undisturbed.job_is_ready(ours.log, lambda: ours.process.poll() is None)
    library.wait_managing(ours)
    expect(ours.wait(END_S) == 0, f"it failed: {ours.log.tail(8)}")
    same_as_undisturbed(ours.log, undisturbed.results())


# What it costs while nothing happens.

BLOCKS, BLOCK_STEPS, GROUPS, WORTH_A_LOOK = 600, 4, 10, 1.05


def slower_by(without, ours):
    """Per cent, the median of all blocks and of each of some groups of them. Each block is compared with the
    two of the other program around it, so that what slows the machine down for a while slows both."""
    ratios = [2 * mine / (before + after) for mine, before, after in zip(ours, without, without[1:])]
    size = len(ratios) // GROUPS
    groups = [statistics.median(ratios[n * size:(n + 1) * size]) for n in range(GROUPS)]
    return (statistics.median(ratios) - 1) * 100, sorted((ratio - 1) * 100 for ratio in groups)


def steady(check, what):
    """Two jobs live at the same time, one with the library and its agent; only one works at a time."""
    turns = {path: os.path.join(check.instance.dir, f"turn-{path}") for path in ("driver", "broker")}
    args = ("--way", what, "--block", str(BLOCK_STEPS), "--blocks", str(BLOCKS))
    way = Way(f"steady state, {what}", "torch_rate.py", args)
    need(check, way)
    for path in turns.values():
        os.mkfifo(path)
    logs = {}
    for path, other in (("driver", "broker"), ("broker", "driver")):
        argv = way.argv(check, "--mine", turns[path], "--other", turns[other])
        job = check.instance.run(argv, name=path, options=("--data-path", path))
        logs[path] = check.instance.log(job)
        pid = check.instance.job(job)["pid"]
        start = process_start(pid)
        is_ready(logs[path], lambda pid=pid, start=start: start is not None and process_start(pid) == start)
    for path, manages in (("driver", False), ("broker", True)):
        memory = check.instance.ok("inspect", path, "--format", "json").json().get("memory", [])
        expect(any(m["data_bytes"] for m in memory) == manages, f"the library's part in job {path}: {memory}")
    with open(turns["driver"], "wb", buffering=0) as first:
        first.write(b"t")
    without, ours = (json.loads(logs[path].wait_for(r"^blocks (\[.*\])$", STEADY_S)[1]) for path in ("driver", "broker"))
    with open(turns["broker"], "wb", buffering=0) as last:
        last.write(b"t")
    ratio, groups = slower_by(without, ours)
    for figure, seconds in (("step without the library, ms", without), ("step with it, ms", ours)):
        check.measured[f"steady state, {what}: {figure}"] = round(statistics.median(seconds) * 1e3 / BLOCK_STEPS, 4)
    check.measured[f"steady state, {what}: slower by, %"] = round(ratio, 2)
    check.measured[f"steady state, {what}: groups of blocks, %"] = f"{groups[1]:.2f} to {groups[-2]:.2f}"
    expect(ratio < (WORTH_A_LOOK - 1) * 100, f"{ratio:.1f} % slower with the library")


def register(case):
    """Adds the cases to gpu-check's list."""
    for way in WAYS:
        kind = "framework, measured" if way.measured else "framework"
        case(f"{kind}: {way.name}")(lambda check, way=way: framework(check, way))
        if not way.measured:
            case(f"same output: {way.name}")(lambda check, way=way: same_output(check, way))
    for what in ("training", "generation"):
        case(f"steady state: {what}")(lambda check, what=what: steady(check, what))
