#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the cgroup of a job leaves of memory. Its files are told by a file system in the place of the kernel's, in
a mount namespace of this test's own: brumate reads them as it would the kernel's, and nobody enforces them."""

import os
import re
import subprocess

from cases import MIB, Skipped, case, expect, main, read_text
from harness import own_mounts

ROOT = "/sys/fs/cgroup"


def own_folder():
    found = re.search(r"^0::(/.*)$", read_text("/proc/self/cgroup"), re.MULTILINE)
    if not found:
        raise Skipped("no cgroups of version 2")
    return os.path.join(ROOT, found[1].lstrip("/"))


def say(name, value):
    with open(os.path.join(own_folder(), name), "w", encoding="ascii") as file:
        file.write(f"{value}\n")


def leave(n_bytes):
    """To this process and all that it starts from now on."""
    if not os.path.exists(f"{ROOT}/ours"):
        own_mounts()
        subprocess.run(["mount", "-t", "tmpfs", "limits", ROOT], check=True)
        os.mkdir(f"{ROOT}/ours")
        os.makedirs(own_folder(), exist_ok=True)
    say("memory.current", 16 * MIB)
    say("memory.max", 16 * MIB + n_bytes)


@case
def what_the_driver_saves(bed):
    """It is kept in the job's own memory, where the kernel would end the job."""
    leave(1024 * MIB)
    job, log = bed.started([bed.program("counter"), "--mib", 64, "--interval-ms", 25], options=("--data-path", "driver"))
    leave(32 * MIB)
    for verb in ("suspend", "checkpoint"):
        bed.refused(1, r"[\d.]+ MiB of device memory do not fit into the [\d.]+ [KM]?i?B of memory that cgroup \S+ has left", verb, job)
        bed.expect_whole(job, log)
    leave(96 * MIB)
    bed.ok("suspend", job)
    leave(0)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def what_the_broker_copies(bed):
    """It goes to a disk; and what it cannot copy does not go by the driver, if that has no room."""
    leave(1024 * MIB)
    job, log = bed.counter(mib=64)
    leave(32 * MIB)
    summary = bed.operation("suspend", job)
    expect(summary["disk_bytes"] >= 64 * MIB, f"not on the disk: {summary}")
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    bed.fault("data.copy", "error:5")
    bed.refused(7, r"and by the driver: .* do not fit into the [\d.]+ [KM]?i?B of memory that cgroup", "suspend", job)
    bed.expect_whole(job, log)
    leave(1024 * MIB)
    bed.fault("data.copy", "error:5")
    summary = bed.operation("suspend", job)
    expect("the driver alone moves" in summary["notes"][0], f"no fault: {summary}")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def copy_of_the_memory_of_a_job_that_goes_on(bed):
    leave(4096 * MIB)
    job, log = bed.started([bed.program("memory"), "alone", "--mib", 12])
    for room, notes in ((32, 1), (4096, 0)):
        leave(room * MIB)
        summary = bed.operation("checkpoint", job, "--leave-running", "--name", f"room-{room}")
        expect(len([n for n in summary["notes"] if "for lack of free memory" in n]) == notes, f"{summary['notes']}")
        bed.expect_whole(job, log)


main()
