#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""--dry-run of suspend and checkpoint: what they would come to, or the refusal that they would be, with nothing touched."""

import json
import os
import re

from cases import EXIT_NOT_FOUND, EXIT_UNSUPPORTED, EXIT_USAGE, as_user, case, expect, main


def record(bed, job):
    with open(os.path.join(bed.own['BRUMATE_STATE_DIR'], 'jobs', job, 'job.json')) as f:
        return f.read()


def events(bed):
    return [(e["event"], e["job"]) for e in map(json.loads, bed.ok("events", "--format", "json").out.splitlines())]


def untouched(bed, job, command, *args, code=0, words=""):
    """What it does leaves record, events, processes and store as they were."""
    before = record(bed, job), events(bed), bed.checkpoints(), bed.partials(), bed.gpu_state(bed.pid(job))
    done = bed.cli(command, *args)
    expect(done.code == code and words in done.err, f"expected {code}: {done.why()}")
    after = record(bed, job), events(bed), bed.checkpoints(), bed.partials(), bed.gpu_state(bed.pid(job))
    expect(before == after, f"{command} {args} changed something: {before} {after}")
    return done


def foreseen(bed, job, command, *args):
    return untouched(bed, job, command, job, "--dry-run", "--format", "json", *args).json()["foreseen"]


@case
def what_it_would_come_to(bed):
    job, log = bed.counter(name="train", mib=64)
    done = untouched(bed, job, "suspend", "train", "--dry-run", words="job train would be suspended: at most 74.0 MiB of ")
    expect(done.out.strip() == job and "not known: there was no such suspend" in done.err, done.why())
    o = foreseen(bed, job, "checkpoint")
    expect(o["operation"] == "checkpoint" and o["bytes"] >= o["gpu_bytes"] >= 64 << 20 and o["dir"] == bed.store()
           and o["room_bytes"] > 0 and "seconds" not in o, f"{o}")
    bed.ok("suspend", "train")
    bed.ok("resume", "train")
    bed.ok("checkpoint", "train", "--leave-running")
    took = [json.loads(line) for line in bed.ok("events", "--format", "json").out.splitlines()]
    suspend = next(e for e in took if e["event"] == "suspend")
    o = foreseen(bed, job, "suspend")
    expect(o["like_time"] == suspend["time"] and o["like_bytes"] == suspend["gpu_bytes"] and abs(o["seconds"] - suspend["seconds"]) < 1e-5,
           f"{o} {suspend}")
    o = foreseen(bed, job, "checkpoint", "--leave-running")
    expect(o["seconds"] > 0 and 0 < o["downtime_s"] <= o["seconds"], f"{o}")
    o = foreseen(bed, job, "checkpoint")
    expect("seconds" not in o, f"of one that ends the job nothing is known: {o}")
    shown = bed.ok("inspect", "train").out
    expect("What it would come to" in shown and "checkpoint" in shown and "about " in shown, shown)
    both = bed.ok("inspect", "train", "--format", "json").json()["foreseen"]
    expect([o["operation"] for o in both] == ["suspend", "checkpoint"] and all(o["bytes"] for o in both), f"{both}")
    bed.expect_whole(job, log)


@case
def larger_takes_longer(bed):
    small, _ = bed.counter(name="small", mib=16)
    large, _ = bed.counter(name="large", mib=160)
    bed.ok("suspend", small)
    bed.ok("resume", small)
    of_small, of_large = (foreseen(bed, job, "suspend") for job in (small, large))
    factor = of_large["bytes"] / of_small["bytes"]
    expect(factor > 5 and abs(of_large["seconds"] / of_small["seconds"] - factor) < 0.01, f"{of_small} {of_large}")
    bed.ok("suspend", large)
    bed.ok("resume", large)
    expect(foreseen(bed, large, "suspend")["like_bytes"] >= 160 << 20 > foreseen(bed, small, "suspend")["like_bytes"], "not the nearest")


def without_size(text):
    """How much a checkpoint needs is of that moment: the job runs, and its memory grows."""
    return re.sub(r"needs about [\d.]+ \w+", "needs about so much", text)


@case
def what_would_be_refused(bed):
    job, log = bed.counter(name="train", mib=16)
    bed.ok("checkpoint", "train", "--leave-running", "--name", "taken")
    for args in (("--name", "taken"), ("--rehearse",), ("--dir", "/proc/nowhere/at/all"), ("--dir", bed.tmpfs("1m"))):
        act = bed.cli("checkpoint", "train", *args)
        if act.code == 0:
            raise AssertionError(f"the checkpoint with {args} succeeds")
        seen = untouched(bed, job, "checkpoint", "train", "--dry-run", *args, code=act.code)
        expect(without_size(seen.err) == without_size(act.err), f"{args}: {act.err!r} {seen.err!r}")
    for args, words in ((("--every", "1h"), "--dry-run cannot be combined with --every"), (("--self",), "--self")):
        untouched(bed, job, "checkpoint", *([] if "--self" in args else ["train"]), "--dry-run", *args, code=EXIT_USAGE, words=words)
    bed.refused(EXIT_NOT_FOUND, "no job nosuch", "suspend", "nosuch", "--dry-run")
    bed.expect_whole(job, log)


@case
def a_job_without_a_gpu(bed):
    job = bed.run(["sleep", "1000"], name="idle")
    act = bed.cli("suspend", "idle")
    expect(act.code == EXIT_UNSUPPORTED, act.why())
    seen = untouched(bed, job, "suspend", "idle", "--dry-run", code=EXIT_UNSUPPORTED)
    expect(seen.err == act.err, f"{act.err} {seen.err}")


@case
def a_store_that_is_not_there_is_not_made(bed):
    job, _ = bed.counter(name="train", mib=16)
    there = os.path.join(bed.dir, "later")
    o = foreseen(bed, job, "checkpoint", "--dir", there, "--name", "one")
    expect(o["dir"] == there and not os.path.exists(there), "the directory was made")


@case
def suspended_already(bed):
    job, _ = bed.counter(name="train", mib=16)
    bed.ok("suspend", "train")
    untouched(bed, job, "suspend", "train", "--dry-run", words="suspended already")
    o = foreseen(bed, job, "checkpoint")
    expect(o["bytes"] >= 16 << 20, f"{o}")


@case
def a_process_that_is_no_job(bed):
    """It is given back, and runs on."""
    program = bed.start([bed.program("counter"), "--mib", "16", "--chunk-mib", "16"])
    program.ready()
    done = bed.ok("suspend", "--pid", str(program.pid), "--dry-run")
    expect("would be suspended" in done.err and bed.list("ps", "jobs", "-a") == [], done.why())


@case
@as_user
def by_a_user(bed):
    job, log = bed.counter(name="train", mib=16)
    o = foreseen(bed, job, "checkpoint", "--leave-running")
    expect(o["bytes"] >= 16 << 20, f"{o}")
    bed.expect_whole(job, log)


if __name__ == "__main__":
    main()
