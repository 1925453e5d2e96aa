#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs whose processes share device memory: by descriptors and by legacy IPC handles. What is saved is saved once,
and comes back shared, at the same addresses."""

import re

from cases import case, expect, main, wait_until

MIB = 16


def partners(bed, way, count=2, *options, mib=MIB):
    job, log = bed.started([bed.program("partners"), way, "--port", count, "--mib", mib, *options])
    wait_until(lambda: len(steps(log)) == count, "first steps of all", 60)
    return job, log


def steps(log):
    """The last step of each member; checks that none is wrong, missing or doubled."""
    last = {}
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    for member, step in re.findall(r"^member (\d+) step (\d+) OK$", text, re.M):
        expect(int(step) == last.get(member, 0) + 1, f"member {member}: step {step} after {last.get(member, 0)}")
        last[member] = int(step)
    return last


def go_on(log):
    before = steps(log)
    wait_until(lambda: all(steps(log)[member] >= before[member] + 2 for member in before), "all members go on", 60)


def suspends(bed, way, *options, times=2, **kinds):
    job, log = partners(bed, way, *options, **kinds)
    used = bed.vram()
    for _ in range(times):
        bed.operation("suspend", job)
        expect(not any(bed.vram()), f"device memory is left: {bed.vram()}")
        bed.operation("resume", job)
        go_on(log)
        wait_until(lambda: bed.vram() == used, f"device memory as before: {used}", 30)
    return job, log


def restores(bed, way, *options, times=2, **kinds):
    job, log = partners(bed, way, *options, **kinds)
    for _ in range(times):
        saved = bed.operation("checkpoint", job)
        bed.operation("restore", saved["checkpoint"])
        go_on(log)
    return job, log


@case
def suspend_fd(bed):
    suspends(bed, "fd")


@case
def suspend_pidfd(bed):
    suspends(bed, "pidfd")


@case
def suspend_ipc(bed):
    suspends(bed, "ipc")


@case
def suspend_small_ipc(bed):
    suspends(bed, "small")


@case
def restore_fd(bed):
    restores(bed, "fd")


@case
def restore_pidfd(bed):
    restores(bed, "pidfd")


@case
def restore_ipc(bed):
    restores(bed, "ipc")


main()
