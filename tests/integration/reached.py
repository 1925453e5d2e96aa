#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Suspend and resume as states to be reached: where the job is there already, nothing is done and nothing has failed; what is
in the way for now, another operation or memory of somebody else's, can be waited for."""

import contextlib
import os
import signal
import time

from cases import EXIT_BUSY, EXIT_NO_ROOM, EXIT_TIMEOUT, as_user, case, expect, main, wait_until


def events_of(bed, job):
    return [line for line in bed.ok("events").out.splitlines() if job in line]


@case
def nothing_is_done_twice(bed):
    job, log = bed.counter(mib=16)
    bed.ok("suspend", job)
    events, counts = events_of(bed, job), bed.ok("metrics").out
    for options in ((), ("--wait", "10s")):
        again = bed.ok("suspend", job, *options)
        expect(again.err.startswith("note: job ") and again.err.endswith(" is suspended already\n") and again.out == f"{job}\n", again.why())
    summary = bed.operation("suspend", job)
    expect(summary["already"] and summary["operation"] == "suspend" and not summary["phases"], f"{summary}")
    expect(events_of(bed, job) == events, "an event tells of what was not done")
    expect([line for line in bed.ok("metrics").out.splitlines() if "suspend" in line and "total" in line] ==
           [line for line in counts.splitlines() if "suspend" in line and "total" in line], "it is counted")
    bed.refused(EXIT_BUSY, f"job {job} is suspended$", "suspend", "--park", job)
    bed.ok("resume", job)
    again = bed.ok("resume", job)
    expect(again.err.startswith("note: job ") and again.err.endswith(" is running already\n") and again.out == f"{job}\n", again.why())
    bed.refused(EXIT_BUSY, f"job {job} is running$", "resume", job, "--gpu-map", "0=1,1=0")
    bed.ok("suspend", "--park", job)
    bed.refused(EXIT_BUSY, f"job {job} is suspended$", "suspend", job)
    expect(bed.operation("suspend", "--park", job)["already"], "parked, it is not parked")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def another_operation_is_waited_for(bed):
    job, log = bed.counter(mib=16)
    for verb, state in (("suspend", "suspended"), ("resume", "running")):
        with bed.held_at(f"{verb}.identify.begin", verb, job) as first:
            bed.refused(EXIT_BUSY, f"a {verb} is in progress", verb, job)
            bed.refused(EXIT_BUSY, f"a {verb} is in progress", verb, job, "--wait", "1s")
            second = bed.spawn(verb, job, "--wait", "60s")
            late = bed.cli(verb, job, "--wait", "60s", "--timeout", "1s")
            expect(late.code == EXIT_TIMEOUT, late.why())
            expect(second.process.poll() is None, "it did not wait")
        expect(first.end()[0] == 0, f"the first {verb} failed")
        code, _, err = second.end()
        expect(code == 0 and "already" in err, f"exit {code}: {err}")
        bed.expect_state(job, state)
    with bed.held_at("checkpoint.image.begin", "checkpoint", job, "-R") as first:
        tasks = f"/proc/{bed.shim(job)}/task"
        before = len(os.listdir(tasks))
        second = bed.spawn("suspend", job, "--wait", "60s")
        third = bed.spawn("suspend", job, "--wait", "60s")
        wait_until(lambda: len(os.listdir(tasks)) >= before + 2, "both to wait")
        third.signal(signal.SIGINT)
    code, _, err = third.end()
    expect(code in (1, 7) and "cancelled" in err, f"exit {code}: {err}")
    expect(first.end()[0] == 0 and second.end()[0] == 0, "one of both failed")
    bed.expect_state(job, "suspended")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@contextlib.contextmanager
def taken(bed):
    """Somebody has nearly all of GPU 0; the job that has it."""
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 6])
    try:
        yield hog
    finally:
        if bed.state(hog) == "running":
            bed.end(hog)


def waits(bed, *command):
    """Such a command, that is waiting for room."""
    waiter = bed.spawn(*command)
    wait_until(lambda: "free device memory" in str([entry.get("operation") for entry in bed.list("ps", "jobs")]), "it to wait for room")
    return waiter


@case
def room_is_waited_for(bed):
    job, log = bed.counter(mib=64)
    bed.ok("suspend", job)
    with taken(bed) as hog:
        bed.refused(EXIT_NO_ROOM, "MiB free, the job needs", "resume", job)
        start = time.monotonic()
        bed.refused(EXIT_NO_ROOM, "after 1 s: GPU .* MiB free, the job needs", "resume", job, "--wait", "1s")
        expect(1 <= time.monotonic() - start < 5, "it waited for another time")
        bed.expect_state(job, "suspended")
        waiter = waits(bed, "resume", job, "--wait", "60s")
        bed.end(hog)
    code, _, err = waiter.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.expect_whole(job, log)


@case
@as_user
def a_restore_waits_for_room(bed):
    job, log = bed.counter(mib=64)
    bed.ok("checkpoint", job, "--name", "image")
    with taken(bed) as hog:
        bed.refused(EXIT_NO_ROOM, "MiB free, the job needs", "restore", "image")
        waiter = waits(bed, "restore", "image", "--wait", "60s")
        bed.end(hog)
    code, _, err = waiter.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.expect_whole(job, log)


@case
def who_waits_can_be_ended(bed):
    """By its user, and with its shim; the job is as before, and comes back once there is room."""
    job, log = bed.counter(mib=64)
    bed.ok("suspend", job)
    with taken(bed):
        waiter = waits(bed, "resume", job, "--wait", "60s")
        waiter.signal(signal.SIGINT)
        code, _, err = waiter.end()
        expect(code == 1 and f"cancelled; job {job} is suspended" in err, f"exit {code}: {err}")
        waiter = waits(bed, "resume", job, "--wait", "60s")
        os.kill(bed.shim(job), signal.SIGKILL)
        expect(waiter.end()[0] != 0, "its shim died, and it succeeded")
        bed.wait_state(job, ("suspended",))
        waiter = waits(bed, "resume", job, "--wait", "60s")
        bed.ok("kill", "--grace", "1s", job)
        expect(waiter.end()[0] != 0, "its job ended, and it succeeded")
    expect(log.last_step() > 0 and bed.state(job) == "exited", f"it is {bed.state(job)}")


main()
