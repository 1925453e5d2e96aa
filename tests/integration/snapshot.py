#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints of a job that goes on before its memory is copied: what was parked is the snapshot, and goes to the
checkpoint behind the job."""

import contextlib
import json
import os
import re
import signal

from bench_jobs import bench_job, change, check
from cases import MIB, case, expect, main, read_text, wait_until


VRAM = 512 * MIB  # of each GPU of a bed


def seen(log, pattern):
    return [line for line in log.lines() if re.match(pattern, line)]


@contextlib.contextmanager
def draining(bed, job, log, name, *options, point="data.copy"):
    """A checkpoint of a job that goes on, held where the broker copies its memory, once the job does go on."""
    gaps = len(seen(log, "gap"))
    with bed.held_at(point, "checkpoint", job, "--leave-running", "--name", name, "--format", "json", *options) as saving:
        wait_until(lambda: len(seen(log, "gap")) > gaps, "the job to go on")
        yield saving


def in_use(bed):
    """With what the broker takes part in."""
    return bed.gpus()[0]["used_bytes"]


def done(background):
    """The summary of a command that ran in the background."""
    code, out, err = background.end()
    expect(code == 0, f"exit {code}: {err}")
    value = json.loads(out)
    return value.get("summary", value)


def phases(summary):
    return [phase["name"] for phase in summary["phases"]]


def expect_let_go(bed, job, used):
    wait_until(lambda: bed.vram() == used, "the snapshot to be let go", 10)
    table = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "parked.json")
    expect(not os.path.exists(table), "the table is left")


def expect_restored(bed, name):
    """The checkpoint comes back with what the memory held when it was made."""
    job = bed.operation("restore", name)["job"]
    check(bed, job, bed.log(job))
    bed.ok("kill", "--grace", "5s", job)


@case
def it_runs_before_its_memory_is_copied(bed):
    job, log = bench_job(bed, "--change", "50")
    used = bed.vram()
    with draining(bed, job, log, "copy") as saving:
        # All that it writes now is not to be in the checkpoint.
        change(bed, job, log)
        check(bed, job, log)
        bed.expect_state(job, "checkpointing")
        expect(in_use(bed) >= used[0] + 64 * MIB, f"in use {in_use(bed)}, before {used}: nothing is held beside the job")
        bed.refused(6, "a checkpoint is under way", "suspend", job)
    summary = done(saving)
    expect("drain" in phases(summary) and summary["drain_s"] > 0, f"{summary}")
    expect(summary["downtime_s"] + summary["drain_s"] <= summary["seconds"], f"{summary}")
    expect_let_go(bed, job, used)
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


FUTEX = "202"  # the number of the call


def waits_for_memory(pid):
    return read_text(f"/proc/{pid}/syscall").split()[:1] == [FUTEX]


@case
def memory_it_asks_for_comes_first(bed):
    """There is room for the job and its snapshot, or for the job and more: it waits for that, and sees no error."""
    job, log = bench_job(bed, "--grow", 240, mib=160)
    used = bed.vram()
    expect(used[0] + 400 * MIB > VRAM, "there is room for everything")
    with draining(bed, job, log, "copy") as saving:
        os.kill(bed.pid(job), signal.SIGHUP)
        log.wait_for("^asks")
        wait_until(lambda: waits_for_memory(bed.pid(job)), "the program to ask for memory")
        expect(not seen(log, "grown|.*ERR"), log.text())
    done(saving)
    log.wait_for("^grown")
    free = int(seen(log, "asks")[0].split()[-1])
    expect(free >= VRAM - used[0] - 32 * MIB, f"{free} bytes were told to be free, {used} in use before")
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


@case
def room_for_a_part(bed):
    """There is no room for all of it twice: what has none is copied before the job goes on, and let go of."""
    job, log = bench_job(bed, "--change", "50", mib=320)
    used = bed.vram()
    with draining(bed, job, log, "copy", point="checkpoint.drain.begin") as saving:
        change(bed, job, log)
        check(bed, job, log)
        expect(in_use(bed) <= VRAM, f"in use {in_use(bed)}")
    done(saving)
    expect_let_go(bed, job, used)
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


@case
def no_room(bed):
    job, log = bench_job(bed, mib=160)
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 24])
    used = bed.vram()
    for name in ("one", "two"):
        bed.operation("checkpoint", job, "--leave-running", "--name", name)
        check(bed, job, log)
        wait_until(lambda: bed.vram() == used, "device memory in use as before", 10)
    bed.end(hog)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "two")


if __name__ == "__main__":
    main()
