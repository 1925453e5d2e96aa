#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A hundred cycles of suspend and resume and twenty of checkpoint and restore of one job: what brumate
holds is the same before and after."""

import os
import re

from cases import MIB, Log, case, expect, main, read_link, read_text, wait_until

WARM_UP = 10
RSS_MAY_GROW = 2 * MIB  # what an allocator keeps, not what a hundred leaks would take


def files_below(directory):
    return sorted(os.path.join(base, name) for base, _, names in os.walk(directory) for name in names)


def holding(pid):
    """Open files and threads of a process, by kind, so that a difference says what it is."""
    kinds = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        kind = re.sub(r"\d+", "N", read_link(f"/proc/{pid}/fd/{fd}"))
        kinds[kind] = kinds.get(kind, 0) + 1
    kinds["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    return kinds


def rss(pid):
    return int(re.search(r"^VmRSS:\s+(\d+)", read_text(f"/proc/{pid}/status"), re.MULTILINE).group(1)) * 1024


class Census:
    """What is there now."""

    def __init__(self, bed, job):
        self.vram = bed.vram()  # also makes sure that there is a broker
        self.pids = {"shim": bed.shim(job), "broker": bed.broker(), "job": bed.pid(job)}
        self.held = {who: holding(pid) for who, pid in self.pids.items()}
        self.rss = {who: rss(pid) for who, pid in self.pids.items()}
        self.processes = sorted(command for _, command in bed.processes())
        self.files = [path for name in ("RUNTIME", "STATE", "LOG") for path in files_below(bed.own[f"BRUMATE_{name}_DIR"])]


def compare(bed, job, before, same_job):
    def equal():
        now = Census(bed, job)
        return now if all(now.held[who] == before.held[who] for who in ("shim", "broker")) else None

    try:
        after = wait_until(equal, "threads and connections to end", 10)
    except Exception:
        now = Census(bed, job)
        expect(False, f"held before {before.held}, now {now.held}")
    if same_job:
        expect(after.held["job"] == before.held["job"], f"the job held {before.held['job']}, now {after.held['job']}")
    for who in ("shim", "broker"):
        expect(after.pids[who] == before.pids[who], f"it is another {who}")
        grown = after.rss[who] - before.rss[who]
        print(f"   {who}: memory {before.rss[who] // 1024} KiB before, {after.rss[who] // 1024} KiB after")
        expect(grown <= RSS_MAY_GROW, f"the {who} grew by {grown / MIB:.1f} MiB")
    expect(after.processes == before.processes, f"processes {before.processes}, now {after.processes}")
    expect(after.files == before.files, f"files come or gone: {set(after.files) ^ set(before.files)}")
    expect(after.vram == before.vram, f"device memory in use {before.vram}, now {after.vram}")


@case
def a_hundred_suspends(bed):
    job, log = bed.counter(mib=16)

    def cycle():
        bed.ok("suspend", job)
        bed.ok("resume", job)

    for _ in range(WARM_UP):
        cycle()
    before = Census(bed, job)
    for _ in range(100):
        cycle()
    compare(bed, job, before, same_job=True)
    bed.expect_whole(job, log)


@case
def twenty_checkpoints(bed):
    job, log = bed.counter(mib=16)

    def cycle():
        bed.ok("checkpoint", job, "--name", "cycle")
        bed.ok("restore", "cycle")
        bed.ok("rm", "--checkpoint", "cycle")

    for _ in range(WARM_UP):
        cycle()
    before = Census(bed, job)
    for _ in range(20):
        cycle()
    compare(bed, job, before, same_job=True)
    bed.expect_whole(job, log)


@case
def refusals_and_failures(bed):
    """What goes wrong gives back as much as what goes well."""
    job, log = bed.counter(mib=16)

    def cycle():
        bed.refused(6, "is running", "resume", job, "--gpu-map", "0=1,1=0")
        bed.ok("resume", job)
        bed.refused(3, "nosuch", "restore", "nosuch")
        for point, verb in (("suspend.gpu-checkpoint.end", "suspend"), ("checkpoint.frozen", "checkpoint"),
                            ("store.rename", "checkpoint")):
            bed.fault(point, "error:5")
            bed.refused(7, "injected|Input/output", verb, job)

    for _ in range(WARM_UP):
        cycle()
    before = Census(bed, job)
    for _ in range(10):
        cycle()
    compare(bed, job, before, same_job=True)
    bed.expect_whole(job, log)


@case
def jobs_that_come_and_go(bed):
    def cycle():
        job = bed.ok("run", "--", "true").out.strip()
        bed.ok("wait", job)
        bed.ok("rm", job)

    keep, log = bed.counter(mib=16)
    cycle()
    marks = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", keep, "log.marks")
    wait_until(lambda: os.path.exists(marks), "the shim to look at the log")
    wait_until(lambda: len(bed.named("brumate-shim")) == 1, "the end of idle shims", 15)
    before = Census(bed, keep)
    for _ in range(20):
        cycle()
    wait_until(lambda: len(bed.named("brumate-shim")) == 1, "the end of idle shims", 15)
    compare(bed, keep, before, same_job=True)
    expect(isinstance(log, Log) and log.goes_on(), "the job that stayed")


main()
