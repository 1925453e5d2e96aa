#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs whose processes wait for each other on the GPU, as ranks do that compute together. No gate may close for
good while a kernel of another rank waits for what it holds back."""

import functools
import os
import re
import signal

from cases import (EXIT_TIMEOUT, EXIT_UNSUPPORTED, Skipped, all_go_on, case, expect, main, numbered_steps, run)


def ranks(bed, count, *options):
    job, log = bed.started([bed.program("ranks"), count, "--mib", 2, *options])
    log.wait_until(lambda text: len(set(re.findall(r"^rank (\d+) step ", text, re.M))) == members(count), "first steps")
    return job, log


def members(count):
    return {"independent": 3, "threads": 2}.get(count, count)


def reducing(bed, way, count):
    """Ranks that add their data up, as collective libraries do (tests/programs/reduce.c)."""
    job, log = bed.started([bed.program("reduce"), f"{way}:{count}", "--interval-ms", 2])
    log.wait_until(lambda text: len(set(re.findall(r"^rank (\d+) step ", text, re.M))) == count, "first steps")
    return job, log


def all_is_well(bed, job, log):
    round_trips(bed, job, log, 2)
    bed.operation("checkpoint", job, "--leave-running")
    go_on(log)
    before = steps(log)
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    go_on(log)
    expect(min(steps(log).values()) > min(before.values()), "it does not go on where it was")
    round_trips(bed, job, log, 1)
    bed.end(job)


steps = functools.partial(numbered_steps, word="rank")
go_on = functools.partial(all_go_on, word="rank")


def round_trips(bed, job, log, times):
    for _ in range(times):
        bed.operation("suspend", job, "--timeout", "60")
        before = steps(log)
        bed.expect_state(job, "suspended")
        expect(steps(log) == before, "a rank works while it is suspended")
        bed.operation("resume", job)
        go_on(log)


@case
def two_ranks(bed):
    job, log = ranks(bed, 2, "--busy-ms", 5)
    round_trips(bed, job, log, 5)
    bed.end(job)


@case
def five_ranks_out_of_step(bed):
    job, log = ranks(bed, 5, "--busy-ms", 5, "--interval-ms", 200)
    round_trips(bed, job, log, 2)
    bed.end(job)


@case
def on_one_gpu(bed):
    bed.own["BRUMATE_SIM_GPUS"] = "1"
    job, log = ranks(bed, 2, "--busy-ms", 5)
    round_trips(bed, job, log, 2)
    bed.end(job)


@case
def two_gpus_of_one_process(bed):
    job, log = ranks(bed, "threads", "--busy-ms", 5, "--interval-ms", 40)
    round_trips(bed, job, log, 4)
    bed.end(job)


@case
def checkpoint_and_restore(bed):
    job, log = ranks(bed, 2, "--busy-ms", 5, "--interval-ms", 20)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.operation("restore", checkpoint)
    go_on(log)
    bed.end(job)


@case
def by_another_clock(bed):
    """As those of a restored process are: CRIU puts it into a time namespace, where time goes on from the checkpoint."""
    with open("/proc/uptime", encoding="ascii") as file:
        behind_s = int(min(3600, float(file.read().split()[0]) / 2))
    there = run(["unshare", "--time", "--fork", "--monotonic", f"-{behind_s}", "true"])
    if behind_s < 60 or there.code:
        raise Skipped(f"no clock can be an hour behind here: {there.err.strip()}")
    job, log = bed.started(["unshare", "--time", "--fork", "--monotonic", f"-{behind_s}", bed.program("ranks"), 4, "--mib", 2,
                            "--busy-ms", 5])
    log.wait_until(lambda text: len(set(re.findall(r"^rank (\d+) step ", text, re.M))) == 4, "first steps")
    round_trips(bed, job, log, 3)
    bed.end(job)


@case
def independent_members(bed):
    """Kernels of 60 ms in each: let through one after the other they would hardly all be idle at once."""
    job, log = ranks(bed, "independent", "--busy-ms", 480)
    for _ in range(3):
        bed.operation("suspend", job)
        bed.operation("resume", job)
        go_on(log)
    bed.end(job)


@case
def a_rank_that_does_not_come(bed):
    """The others cannot become idle in time: nothing has happened, and all go on once it comes."""
    job, log = ranks(bed, 3, "--interval-ms", 4000)
    refused = bed.fails(EXIT_TIMEOUT, "suspend", job, "--timeout", "1")
    expect("process" in refused.err, refused.err)
    bed.expect_state(job, "running")
    go_on(log)
    bed.end(job)


@case
def killed_while_they_wait(bed):
    """A job that was restored is taken off the GPU before it is killed. Its gates cannot close, nor can the driver
    lock it: kernels wait for a rank that has died."""
    job, log = ranks(bed, 3)
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    go_on(log)
    os.kill(int(re.search(r"^ready pid (\d+)$", log.text(), re.M).group(1)), signal.SIGKILL)
    bed.ok("kill", "--grace", "0", job, timeout=100)
    bed.wait_state(job, ("exited", "lost"))


@case
def what_shares_nothing_needs_no_force(bed):
    two = f"{bed.program('counter')} --mib 4 --chunk-mib 4 --interval-ms 25"
    job, log = bed.started(["sh", "-c", f"{two} & {two} & wait"])
    log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    bed.operation("suspend", job)
    bed.operation("resume", job)
    bed.end(job)


@case
def without_an_agent_nothing_is_known(bed):
    two = f"{bed.program('counter')} --mib 4 --chunk-mib 4 --interval-ms 25"
    job, log = bed.started(["sh", "-c", f"{two} & LD_PRELOAD= {two} & wait"])
    log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    refused = bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    expect("has no agent" in refused.err and "--force" in refused.err, refused.err)
    expect(any("has no agent" in f["text"] for f in bed.doctor("--job", job)["findings"]), "doctor does not tell")
    bed.operation("suspend", job, "--force")
    bed.operation("resume", job)
    bed.end(job)


@case
def all_reduce_by_proxies(bed):
    all_is_well(bed, *reducing(bed, "proxy", 4))


@case
def all_reduce_by_registered_memory(bed):
    all_is_well(bed, *reducing(bed, "shm", 3))


@case
def all_reduce_by_descriptors(bed):
    all_is_well(bed, *reducing(bed, "fd", 3))


@case
def all_reduce_by_ipc(bed):
    all_is_well(bed, *reducing(bed, "ipc", 2))


main()
