#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A wall clock that is set back and forth under jobs, commands and shims. What is the latest checkpoint of a job, and
when the next is due, does not depend on it."""

import contextlib
import os

from cases import case, expect, main, wait_until
from harness import Failed, run

HOURS = 3600


class Clock:
    """The wall clock of all that the bed starts from now on."""

    def __init__(self, bed):
        self.path = os.path.join(bed.dir, "clock")
        self.set(0)
        bed.own["BRUMATE_TEST_CLOCK"] = self.path
        bed.own["LD_PRELOAD"] = os.path.join(bed.build.path, "tests", "programs", "libclock.so")
        now = run(["date", "+%s"], env=bed.command_env()).out
        self.set(100 * HOURS)
        then = run(["date", "+%s"], env=bed.command_env()).out
        expect(int(then) - int(now) >= 100 * HOURS, "this test proves nothing: the clock cannot be set")
        self.set(0)

    def set(self, seconds):
        """Against the real one."""
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.write(str(seconds))
        os.rename(self.path + ".new", self.path)


def come_and_gone(bed, seen):
    """Notes the checkpoints that are there; how many ever were."""
    with contextlib.suppress(Failed, FileNotFoundError):
        seen.update(bed.checkpoints())
    return len(seen)


@case
def set_back_under_a_schedule(bed):
    clock = Clock(bed)
    job, log = bed.counter(name="train")
    bed.ok("checkpoint", job, "--name", "first", "--leave-running")
    clock.set(-2 * HOURS)
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "1")
    seen = set()
    wait_until(lambda: come_and_gone(bed, seen) >= 3, "new checkpoints by the schedule", 60)
    bed.end_schedule(job)
    wait_until(lambda: len(bed.checkpoints()) == 1, "the older ones to go")
    left = bed.checkpoints()[0]
    expect(left != "first", "the new ones are let go of instead of the old one")
    expect(bed.job(job)["checkpoint"] == left, f"the record names {bed.job(job)['checkpoint']}, {left} is there")
    bed.expect_whole(job, log)
    bed.end(job)
    bed.ok("restore", "train")
    expect(bed.job(job)["checkpoint"] == left, "another was restored")


@case
def the_latest_is_the_one_made_last(bed):
    """By prune, by the name of a job whose record is gone, and after a restore."""
    clock = Clock(bed)
    job, _ = bed.counter(name="train")
    for name, hours in (("one", 0), ("two", -2), ("three", -5), ("four", 3), ("five", -1)):
        clock.set(hours * HOURS)
        bed.ok("checkpoint", job, "--name", name, "--leave-running")
    expect(bed.checkpoints() == ["one", "two", "three", "four", "five"], f"ls has another order: {bed.checkpoints()}")
    expect(bed.ok("prune", "--keep-last", "3", "--dry-run").out.split() == ["two", "one"], "prune")
    bed.end(job)
    bed.ok("rm", job)
    expect(bed.ok("inspect", "train", "--format", "json").json()["manifest"]["id"] == "five", "the job's name means")
    clock.set(-9 * HOURS)
    bed.ok("restore", "two")  # its record begins anew
    bed.ok("checkpoint", job, "--name", "six", "--leave-running")
    expect(bed.checkpoints()[-1] == "six", f"{bed.checkpoints()}")
    bed.end(job)
    bed.ok("rm", job)
    expect(bed.ok("inspect", "train", "--format", "json").json()["manifest"]["id"] == "six", "after a restore")


@case
def what_a_record_names_is_not_pruned(bed):
    """A job that was restored from an older checkpoint may be restored from that again."""
    job, _ = bed.counter()
    for name in ("one", "two", "three"):
        bed.ok("checkpoint", job, "--name", name, "--leave-running")
    bed.end(job)
    bed.ok("restore", "one")
    result = bed.ok("prune", "--keep-last", "1")
    expect(result.out.split() == ["two"] and "kept one: job" in result.err, result.why())
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "1")
    wait_until(lambda: not {"one", "three"} & set(bed.checkpoints()), "the older ones to go", 60)
    bed.end_schedule(job)


@case
def set_back_before_the_shim_died(bed):
    """A shim that takes over goes on with the schedule as if the clock had not been touched."""
    clock = Clock(bed)
    job, log = bed.counter()
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "2")
    seen = set()
    wait_until(lambda: come_and_gone(bed, seen), "the first checkpoint", 60)
    for hours in (-2, 4):
        wait_until(lambda: bed.state(job) == "running", "between two")
        bed.kill_shim(job)
        clock.set(hours * HOURS)
        bed.ok("inspect", job)  # starts another
        bed.cli("kill", "--signal", "CONT", job)
        before = come_and_gone(bed, seen)
        wait_until(lambda: come_and_gone(bed, seen) > before, f"a checkpoint after {hours} hours", 30)  # noqa: B023
    bed.end_schedule(job)
    bed.expect_whole(job, log)


if __name__ == "__main__":
    main()
