# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about ranks that compute together by NCCL on two GPUs: how long their gates take to close, many
operations one after the other, and what a sum costs with the library. Whether each transport comes back is in
framework_cases.py."""

import json
import os
import random
import re
import statistics
import time

from framework_cases import (END_S, EXCHANGED, TORCHRUN, Undisturbed, Way, is_ready, need, results_of,
                             same_as_undisturbed, slower_by, wait_step)
from harness import expect, process_start

FOREVER, WORK, SKEW_MS = 10**6, "5", "1000"  # work: of a step of about 100 ms on an H100
STEADY_S, SUM_WORTH_A_LOOK = 400, 1.0  # per cent
CHECKPOINT_EVERY = 5


class Ranks:
    """A job of two ranks that goes on until it is ended."""

    def __init__(self, check, way, *args):
        need(check, way)
        self.check = check
        self.id = check.instance.run(way.argv(check, "--steps", FOREVER, *args), name="ranks", options=("--data-path", "broker"))
        self.log = check.instance.log(self.id)
        pid = check.instance.job(self.id)["pid"]
        start = process_start(pid)
        is_ready(self.log, lambda: process_start(pid) == start)
        self.go_on(5)

    def steps(self):
        return len(results_of(self.log.text()))

    def go_on(self, steps=2):
        wait_step(self.log, self.steps() + steps)

    def step_s(self):
        """Of those that were not disturbed, the typical one."""
        took = [float(line.split()[1]) for line in self.log.text().splitlines() if line.startswith("took ")]
        return statistics.median(took) / 1e3

    def descriptors(self):
        """How many each process of the job has open, the root's first."""
        pids = [self.check.instance.job(self.id)["pid"]]
        for pid in pids:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    pids += map(int, file.read().split())
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


def gate_seconds(summary):
    return sum(phase["seconds"] for phase in summary["phases"] if phase["name"] == "gate")


def tell_drain(check, what, step_s, found):
    text = (f"step {step_s * 1e3:.0f} ms; gate {statistics.median(found) * 1e3:.0f} ms, worst of {len(found)} "
            f"{max(found) * 1e3:.0f} ms")
    check.measured[f"drain, {what}"] = text
    print(f"drain, {what}: {text}", flush=True)


def drain(check, what, way, *args, bounded=True):
    """At random moments of a step. What a rank that is late keeps the others waiting for is told, not judged."""
    ranks = Ranks(check, way, "--work", WORK, *args)
    step_s, found = ranks.step_s(), []
    for _ in range(check.options.rank_rounds):
        time.sleep(random.uniform(0, step_s))
        found.append(gate_seconds(check.do("suspend", ranks.id)))
        check.do("resume", ranks.id)
        ranks.go_on()
    check.instance.end(ranks.id)
    tell_drain(check, what, step_s, found)
    expect(not bounded or (statistics.median(found) <= step_s and max(found) <= 2 * step_s),
           f"gates {sorted(found)} s, a step is {step_s} s")


def many_operations(check, way):
    """Suspended and resumed again and again, now and then checkpointed and restored, on exchanged GPUs every other time; each
    line as undisturbed, and nothing left behind."""
    ranks = Ranks(check, way, "--work", WORK)
    step_s, descriptors, gpu_bytes, found = ranks.step_s(), ranks.descriptors(), [], []
    for n in range(check.options.rank_rounds):
        summary = check.do("suspend", ranks.id)
        gpu_bytes.append(summary["gpu_bytes"])
        found.append(gate_seconds(summary))
        check.do("resume", ranks.id)
        ranks.go_on()
        if n % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            saved = check.do("checkpoint", ranks.id)
            check.do("restore", saved["checkpoint"], *(EXCHANGED if n // CHECKPOINT_EVERY % 2 else ()))
            ranks.go_on()
    expect(all(last <= first + 2 for first, last in zip(descriptors, ranks.descriptors())),
           f"open descriptors: {descriptors} at first, {ranks.descriptors()} at last")
    expect(max(gpu_bytes) <= 1.02 * gpu_bytes[0], f"device memory grew: {gpu_bytes}")
    check.instance.end(ranks.id)
    have = results_of(ranks.log.text())
    plain = check.instance.start(way.argv(check, "--steps", len(have)), "plain")
    expect(plain.wait(END_S + len(have)) == 0, f"undisturbed, it failed: {plain.log.tail(8)}")
    same_as_undisturbed(ranks.log, results_of(plain.log.text()))
    tell_drain(check, f"{way.name}, many operations", step_s, found)
    check.measured[f"{way.name}: many operations"] = (
        f"{len(found)} suspends and resumes, {len(found) // CHECKPOINT_EVERY} checkpoints and restores, {len(have)} steps as "
        f"undisturbed")


def while_they_begin(check, way):
    """Suspended again and again from the start until they are at work: the driver and NCCL are set up, and graphs captured.
    An operation may be refused, or take too long, but nothing is lost by it."""
    need(check, way)
    steps = ("--steps", "20")
    undisturbed = Undisturbed(check, way, *steps)
    job = check.instance.run(way.argv(check, *steps), name="beginning", options=("--data-path", "broker"))
    log, codes = check.instance.log(job), []
    pid = check.instance.job(job)["pid"]
    start = process_start(pid)
    while process_start(pid) == start and not re.search("^ready ", log.text(), re.MULTILINE):
        time.sleep(random.uniform(0, 0.5))
        codes.append(check.instance.cli("suspend", job).code)
        if codes[-1] == 0:
            check.do("resume", job)
        expect(codes[-1] or check.instance.job(job)["state"] in ("running", "exited"), "it is not running")
    ended = check.instance.cli("wait", job, timeout=END_S)
    expect(ended.code == 0, f"{ended.why()}; suspends {codes}; the log ends: {log.tail(8)}")
    same_as_undisturbed(log, undisturbed.results())
    check.measured[f"{way.name}: suspended while it began"] = f"{codes.count(0)} times, refused or too late {codes}"
    expect(0 in codes, f"no suspend came before it was at work: {codes}")


def sums(check):
    """Two jobs live at the same time, one with the library and its agents; only one works at a time."""
    turns = {path: os.path.join(check.instance.dir, f"turn-{path}") for path in ("driver", "broker")}
    way = Way("steady state, NCCL", "torch_allreduce.py", launcher=TORCHRUN, gpus=2)
    need(check, way)
    for path in turns.values():
        os.mkfifo(path)
    logs = {}
    for path, other in (("driver", "broker"), ("broker", "driver")):
        job = check.instance.run(way.argv(check, "--mine", turns[path], "--other", turns[other]), name=path,
                                 options=("--data-path", path))
        logs[path] = check.instance.log(job)
        pid = check.instance.job(job)["pid"]
        start = process_start(pid)
        is_ready(logs[path], lambda pid=pid, start=start: process_start(pid) == start)
    with open(turns["driver"], "wb", buffering=0) as first:
        first.write(b"t")
    without, ours = (json.loads(logs[path].wait_for(r"^seconds (\{.*\})$", STEADY_S)[1]) for path in ("driver", "broker"))
    with open(turns["broker"], "wb", buffering=0) as last:
        last.write(b"t")
    for size in without:
        paired, groups = slower_by(without[size], ours[size])
        one, other = (statistics.median(found[size]) for found in (without, ours))
        quick = [statistics.quantiles(found[size])[0] for found in (without, ours)]
        check.measured[f"NCCL, {size} bytes"] = (
            f"{one * 1e6:.1f} µs without, {other * 1e6:.1f} µs with the library ({(other / one - 1) * 100:+.2f} %; by "
            f"neighbours {paired:+.2f} %, groups {groups[1]:+.2f} to {groups[-2]:+.2f}; by the quicker quarters "
            f"{(quick[1] / quick[0] - 1) * 100:+.2f} %); {int(size) / other / 1e9:.2f} GB/s")
    large = str(max(map(int, without)))  # short sums vary by more than what is looked for
    paired, _ = slower_by(without[large], ours[large])
    expect(paired <= SUM_WORTH_A_LOOK, f"{large} bytes are summed up {paired:.2f} % slower with the library")


def register(case):
    """Adds the cases to gpu-check's list."""
    def ranks(name, *args):
        return Way(name, "torch_ranks.py", args, launcher=TORCHRUN, gpus=2)

    ddp, fsdp, tp = ranks("DDP", "--way", "ddp"), ranks("FSDP", "--way", "fsdp"), ranks("tensor parallel", "--way", "tp")
    graph = ranks("tensor parallel, CUDA graph", "--way", "tp", "--graph")
    for way in (ddp, fsdp, tp, graph):
        case(f"ranks: drain, {way.name}")(lambda check, way=way: drain(check, way.name, way))
    for way in (ddp, graph):
        case(f"ranks: drain, {way.name}, one rank late")(
            lambda check, way=way: drain(check, f"{way.name}, one rank {SKEW_MS} ms late", way, "--skew-ms", SKEW_MS,
                                         bounded=False))
    case("ranks: suspended while they begin")(lambda check: while_they_begin(check, graph))
    case("ranks: many operations, DDP")(lambda check: many_operations(check, ddp))
    case("ranks: steady state, sums by NCCL")(sums)
