#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A suspended server of `run --wake` goes on accepting, and the first call that needs the GPU brings it back. Who only looks
wakes nobody."""

import json
import os
import time

from cases import as_user, case, expect, main, wait_until
from servers import Connection, Server


def events(bed, kind):
    lines = [json.loads(line) for line in bed.cli("events", "--format", "json").out.splitlines()]
    return [e for e in lines if e["event"] == kind]


def wakes(bed, n):
    """The events of so many, and no more: the last comes a moment after the job is back."""
    wait_until(lambda: len(events(bed, "wake")) >= n, f"{n} wakes to be told")
    found = events(bed, "wake")
    expect(len(found) == n, found)
    return found


@case
def a_request_wakes_it(bed):
    it = Server(bed, "model")
    it.ask()
    kept = Connection(it.port)
    it.steps = it.note(kept.ask())
    for _ in range(3):
        it.suspend()
        expect(it.state() == "suspended", "it is not suspended")
        it.health()
        expect(kept.ask("/health") == "alive\n", "the kept connection is not alive")
        expect(it.state() == "suspended", "a look at its health woke it")
        expect(not any(bed.vram()), "its memory is on the GPU")
        it.steps = it.note(kept.ask())
        wait_until(lambda: it.state() == "running", "it to have its GPU by its record, too")
        it.ask()
    kept.close()
    woken = wakes(bed, 3)
    expect(all(e["call"].startswith("cu") and e["pid"] for e in woken), woken)


@case
@as_user
def of_a_user(bed):
    it = Server(bed, "model")
    for _ in range(2):
        it.suspend()
        it.health()
        it.ask()


@case
def requests_in_flight_wake_it_again(bed):
    it = Server(bed, "model")
    connections = [Connection(it.port) for _ in range(20)]
    for _ in range(3):
        for c in connections:
            c.send()
        it.suspend()
        for c in connections:
            it.steps += 1
            expect(it.note(c.answer()) == it.steps, "an answer is lost")
        it.ask()  # all may have been answered before the gate closed
        it.settle()
    for c in connections:
        c.close()


@case
def threads_that_look_wake_nobody(bed):
    it = Server(bed, "model", watch=True)
    it.ask()
    it.suspend()
    for _ in range(30):  # the thread looks some 200 times a second
        it.health()
        expect(it.state() == "suspended", f"woken for nothing: {events(bed, 'wake')}")
        time.sleep(0.1)
    it.ask()
    it.suspend()
    it.ask()
    it.settle()
    wakes(bed, 2)


@case
def without_the_option_it_stays(bed):
    it = Server(bed, "model", options=())
    it.suspend("--cpu-runs")
    c = Connection(it.port)
    c.send()
    time.sleep(2.5)
    expect(it.state() == "suspended", "it was woken")
    bed.operation("resume", it.job)
    it.steps = it.note(c.answer())
    c.close()
    it.ask()


@case
def a_thousand_connections(bed):
    it = Server(bed, "model", mib=4)
    it.suspend()
    connections = [Connection(it.port) for _ in range(1200)]
    it.health()
    expect(it.state() == "suspended", "to connect woke it")
    for c in connections:
        c.send()
    steps = sorted(it.note(c.answer()) for c in connections)
    expect(steps == list(range(1, 1201)), "answers are lost or doubled")
    for c in connections:
        c.close()


@case
def a_shim_that_dies_is_replaced(bed):
    it = Server(bed, "model")
    it.suspend()
    bed.kill_shim(it.job)
    it.ask()  # the keeper has started another, and the call that waits asks again
    it.suspend()
    bed.fault("resume.copy.end", "kill:shim")
    it.ask()
    expect(bed.has_fired(), "the shim was not killed")
    it.suspend()
    it.ask()


@case
def without_room_it_waits(bed):
    it = Server(bed, "model", mib=256)
    it.suspend()
    hog, log = bed.counter("hog", mib=384)
    c = Connection(it.port)
    c.send()
    wait_until(lambda: "waits for the GPU" in (bed.job(it.job)["message"] or ""), "the reason to be said")
    failed = [e for e in events(bed, "failed") if e["operation"].startswith("wake")]
    expect(failed and "free" in failed[0]["reason"], failed)
    expect(it.state() == "suspended", "it has no room")
    log.goes_on()
    bed.end(hog)
    it.steps = it.note(c.answer())
    c.close()
    it.settle()
    expect(not bed.job(it.job)["message"], "the failure is still said")


@case
def for_too_long_it_is_stuck(bed):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Run]\nWakeWait=1s\n")
    it = Server(bed, "model", mib=256)
    it.suspend()
    hog, _ = bed.counter("hog", mib=384)
    c = Connection(it.port)
    c.send()
    wait_until(lambda: (bed.job(it.job)["message"] or "").startswith("stuck: "), "it to be called stuck")
    bed.end(hog)
    it.steps = it.note(c.answer())
    c.close()


@case
def a_resume_that_fails_is_tried_again(bed):
    """The call waits on, and the failure is said, in the events too; beyond WakeWait= it is stuck, of which a hook is told."""
    told = os.path.join(bed.dir, "told")
    hook = os.path.join(bed.dir, "hook")
    with open(hook, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\necho "$BRUMATE_OPERATION: $BRUMATE_REASON" >> {told}\n')
    os.chmod(hook, 0o755)

    def configure(wait):
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write(f"[Run]\nWakeWait={wait}\n[Hooks]\nOnFailure={hook}\n")
    configure("1h")
    it = Server(bed, "model")
    it.ask()
    it.suspend()
    c = Connection(it.port)
    bed.fault(*("resume.gpu-restore.begin", "error:5") * 30)
    c.send()
    wait_until(lambda: (bed.job(it.job)["message"] or "").startswith("wake: "), "the failure to be said")
    configure("1ms")
    wait_until(lambda: (bed.job(it.job)["message"] or "").startswith("stuck: "), "it to be called stuck")
    expect(it.state() == "suspended" and bed.disarm(), "it is not tried again")
    it.steps = it.note(c.answer())
    c.close()
    it.settle()
    expect(not bed.job(it.job)["message"], "the failure is still said")
    failed = [e["operation"] for e in events(bed, "failed")]
    expect("wake" in failed and "wake, which is stuck" in failed, failed)
    with open(told, encoding="utf-8") as file:
        lines = file.read().splitlines()
    expect(any(line.startswith("wake: ") for line in lines) and any(line.startswith("wake, which is stuck: ") for line in lines), lines)


@case
def who_asked_may_end(bed):
    """A process of the job that is killed while it waits is not waited for."""
    it = Server(bed, "model", mib=256)
    it.suspend()
    hog, _ = bed.counter("hog", mib=384)
    c = Connection(it.port)
    c.send()
    wait_until(lambda: "waits for the GPU" in (bed.job(it.job)["message"] or ""), "it to wait")
    bed.cli("kill", "--signal", "KILL", it.job)
    it.wait_state("exited")
    c.close()
    bed.end(hog)


@case
def saved_and_restored_it_still_wakes(bed):
    it = Server(bed, "model")
    it.ask()
    kept = bed.operation("checkpoint", it.job)["checkpoint"]
    bed.operation("restore", kept)
    it.ask()
    it.suspend()
    it.ask()
    it.suspend()
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.ask()
    it.suspend()
    it.ask()


@case
def when_it_was_last_used(bed):
    it = Server(bed, "model", watch=True)
    it.ask()
    first = bed.job(it.job)["idle_ms"]
    expect(first < 5000, f"{first} ms ago, and it has just answered")
    wait_until(lambda: bed.job(it.job)["idle_ms"] >= first + 2400, "time without a use, though a thread looks", 30)
    wait_until(lambda: it.ask() and bed.job(it.job)["idle_ms"] < 2000, "its use to be noted")
    expect("GPU used" in bed.cli("inspect", it.job).out, "the page does not say so")
    it.suspend()
    expect(bed.job(it.job)["idle_ms"] is None, "it is not on a GPU")


if __name__ == "__main__":
    main()
