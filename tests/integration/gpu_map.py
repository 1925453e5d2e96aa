#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of several processes that come back on other GPUs: each member goes where --gpu-map says, whichever GPUs it sees and
in whatever order."""

import re

from cases import case, expect, main, wait_until

MEMBERS = {  # what each sees, and its device among these
    "both": (None, 1),
    "other order": ("1,0", 0),
    "one": ("0", 0),
}


def uuid_index(bed, uuid):
    return next(i for i, known in enumerate(bed.uuids()) if known.startswith(uuid.rstrip("…")))


def members(bed, *kinds, options=()):
    """A job of a counter for each of the kinds."""
    commands = []
    for kind in kinds:
        sees, gpu = MEMBERS[kind]
        commands.append((f"CUDA_VISIBLE_DEVICES={sees} " if sees else "") +
                        f"{bed.program('counter')} --mib 16 --chunk-mib 8 --interval-ms 40 --gpu {gpu}")
    job, log = bed.started(["sh", "-c", " & ".join(commands) + " & wait"], options=options)
    wait_until(lambda: len(where(bed, log)) == len(kinds), "steps of all members", 60)
    return job, log


def steps(log):
    """{pid: (step, GPU)} of the last line of each."""
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    return {pid: (int(step), gpu) for pid, gpu, step in re.findall(r"^pid (\d+) gpu (\S+) step (\d+) OK$", text, re.M)}


def where(bed, log):
    """{pid: the number of its GPU on the machine}"""
    return {pid: uuid_index(bed, gpu) for pid, (_, gpu) in steps(log).items()}


def go_on(log):
    before = steps(log)
    wait_until(lambda: all(steps(log)[pid][0] >= before[pid][0] + 3 for pid in before), "all go on", 60)


def exchanged(bed, job, log, verb, word, gpu_map):
    before = where(bed, log)
    bed.operation("suspend" if verb == "resume" else "checkpoint", job)
    bed.operation(verb, word, "--gpu-map", gpu_map)
    go_on(log)
    after = where(bed, log)
    expect(after == {pid: 1 - gpu for pid, gpu in before.items()}, f"{verb} --gpu-map {gpu_map}: {before}, then {after}")


def exchange_all(bed, *kinds, options=()):
    job, log = members(bed, *kinds, options=options)
    old, new = bed.uuids()
    exchanged(bed, job, log, "resume", job, "0=1,1=0")
    exchanged(bed, job, log, "restore", job, f"{old}={new},{new}={old}")
    bed.end(job)


@case
def all_members(bed):
    exchange_all(bed, "both", "both")


@case
def members_that_see_them_in_another_order(bed):
    exchange_all(bed, "both", "other order")


@case
def members_that_see_one_of_them(bed):
    exchange_all(bed, "one", "both")


@case
def by_the_driver_alone(bed):
    exchange_all(bed, "other order", options=("--data-path", "driver"))


@case
def half_a_map_is_completed(bed):
    """Who is in the place of one that is told to come goes where that was."""
    job, log = members(bed, "both", "one")
    exchanged(bed, job, log, "resume", job, "0=1")
    exchanged(bed, job, log, "restore", job, "1=0")
    bed.end(job)


@case
def a_map_that_cannot_be_is_refused(bed):
    job, log = members(bed, "both", "one")
    before = where(bed, log)
    bed.operation("suspend", job)
    for gpu_map in ("0=1,1=1", "0=7", "0=1,0=0"):
        result = bed.cli("resume", job, "--gpu-map", gpu_map)
        expect(result.code == 2, f"--gpu-map {gpu_map}: {result.why()}")
        bed.expect_state(job, "suspended")
    bed.operation("resume", job)
    go_on(log)
    expect(where(bed, log) == before, "they are elsewhere")
    bed.end(job)


main()
