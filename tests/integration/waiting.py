#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a job waits for: timers, and system calls that last for a time. The programs look at them themselves
(tests/programs/timers.c, waits.c)."""

import os
import shutil
import signal

from cases import Skipped, as_user, case, expect, main, pids, read_text, wait_until
from users_jobs import status


def left_running_and_restored(bed, job, log):
    for _ in range(3):
        bed.operation("checkpoint", job, "--leave-running")
        bed.expect_whole(job, log)
    for name in ("one", "two"):
        bed.operation("checkpoint", job, "--name", name)
        bed.expect_restorable(name, log)
    bed.end(job)


def come_back(bed, program):
    job, log = bed.started([bed.program(program)])
    log.goes_on()
    left_running_and_restored(bed, job, log)


@case
def timers(bed):
    come_back(bed, "timers")


@case
@as_user
def timers_of_a_user(bed):
    come_back(bed, "timers")


@case
def calls(bed):
    come_back(bed, "waits")


@case
@as_user
def calls_of_a_user(bed):
    come_back(bed, "waits")


def members(bed, job):
    """The job's processes of the program."""
    session = read_text(f"/proc/{bed.pid(job)}/stat").rsplit(")", 1)[1].split()[3]
    return [pid for pid in pids() if read_text(f"/proc/{pid}/comm") == "waits\n" and
            read_text(f"/proc/{pid}/stat").rsplit(")", 1)[-1].split()[3:4] == [session]]


@case
def calls_that_a_stop_interrupted_before(bed):
    """They go on by restart_syscall(2), which does not say what for."""
    job, log = bed.started([bed.program("waits")])
    log.goes_on()
    for name in (None, "one"):
        found = members(bed, job)
        expect(len(found) == 5, f"{found} are of the job")
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):  # a stop that is not yet seen would be taken back
            for pid in found:
                os.kill(pid, number)
            wait_until(lambda s=state, of=found: all(status(pid, "State")[0] == s for pid in of), f"all to be in state {state}")
        bed.operation("checkpoint", job, *(["--name", name] if name else ["--leave-running"]))
        if name:
            bed.expect_restorable(name, log)
        else:
            bed.expect_whole(job, log)
    bed.end(job)


@case
def script_keeps_its_child(bed):
    """script(1) ends its child where its poll(2) fails."""
    if not shutil.which("script"):
        raise Skipped("there is no script(1)")
    counter = f"{bed.program('counter')} --mib 1 --chunk-mib 1 --interval-ms 25"
    job, log = bed.started(["script", "-q", "-c", counter, "/dev/null"])
    left_running_and_restored(bed, job, log)


if __name__ == "__main__":
    main()
