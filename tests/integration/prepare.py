#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Host memory for a copy of a job's device memory, ready before the copy is wanted."""

import os
import signal

from cases import MIB, case, expect, main, wait_until

JOB_MIB = 320


def ready_bytes(bed):
    """Of the broker that there is: to ask must not start one."""
    return bed.ask_broker("Info")["pool"]["free_bytes"] if bed.broker() else 0


def wait_ready(bed):
    wait_until(lambda: ready_bytes(bed) >= JOB_MIB * MIB, "memory for the job's copy is ready", seconds=90)


@case
def as_soon_as_a_job_has_run_for_a_while(bed):
    job, log = bed.counter(mib=JOB_MIB)
    wait_ready(bed)
    pid = bed.broker()
    bed.operation("suspend", job)
    expect(ready_bytes(bed) < 128 * MIB, "a suspended job's copy is not in what was ready")
    bed.operation("resume", job)
    log.goes_on()
    wait_ready(bed)
    expect(bed.broker() == pid, "the broker stays while it has memory ready")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bed.broker() not in (None, pid), "another broker", seconds=90)
    wait_ready(bed)
    bed.operation("suspend", job)
    bed.operation("resume", job)
    log.goes_on()
    bed.end(job)


@case
def not_where_it_is_switched_off(bed):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nPrepare=no\nIdleTimeout=1s\n")
    job, log = bed.counter(mib=JOB_MIB, interval_ms=500)
    wait_until(lambda: not bed.broker(), "the end of a broker that nobody needs")
    step = log.last_step()
    log.wait_until(lambda _: log.last_step() > step + 30, "the job runs for 15 s more", seconds=120)
    expect(not bed.broker(), "a broker runs, and nobody needs it")
    bed.end(job)


@case
def doctor_says_how_much_may_be_pinned(bed):
    said = bed.doctor()["facts"]["pool_bytes"]
    limit = bed.ask_broker("Info")["pool"]["limit_bytes"]
    expect(said == limit, f"doctor says {said}, the broker has {limit}")


main()
