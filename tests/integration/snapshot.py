#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints of a job that goes on before its memory is copied: what was parked is the snapshot, and goes to the
checkpoint behind the job."""

import json
import os

from bench_jobs import bench_job, change, check
from cases import MIB, case, expect, main, wait_until


def checkpoint(bed, job, name, *options, point="data.import"):
    """A checkpoint of a job that goes on, held where the broker takes its memory."""
    return bed.held_at(point, "checkpoint", job, "--leave-running", "--name", name, "--format", "json", *options)


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
    with checkpoint(bed, job, "copy") as saving:
        # All that it writes now is not to be in the checkpoint.
        change(bed, job, log)
        check(bed, job, log)
        bed.expect_state(job, "checkpointing")
        expect(bed.vram()[0] >= used[0] + 64 * MIB, f"in use {bed.vram()}, before {used}: nothing is held beside the job")
        bed.refused(6, "a checkpoint is under way", "suspend", job)
    summary = done(saving)
    expect("drain" in phases(summary) and summary["drain_s"] > 0, f"{summary}")
    expect(summary["downtime_s"] + summary["drain_s"] <= summary["seconds"], f"{summary}")
    expect_let_go(bed, job, used)
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


if __name__ == "__main__":
    main()
