#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What brumate adds to the driver's own calls, measured, and that the driver is initialised once per
broker. The aim is 20 ms; the bound of the test is loose, for machines that are busy with other things."""

import os
import select
import statistics

from cases import case, expect, main, process_start

ROUNDS = 20
OWN_MS_MAX = 100
DRIVERS_OWN = {"suspend": ("gpu-lock", "gpu-checkpoint"), "resume": ("gpu-restore", "gpu-unlock")}


@case
def suspend_and_resume_add_little(bed):
    argv = [bed.program("counter"), "--mib", 16, "--chunk-mib", 16, "--interval-ms", 10]
    job, log = bed.started(argv, options=("--data-path", "driver"))
    own = {"suspend": [], "resume": []}
    outside = {"suspend": [], "resume": []}
    for _ in range(ROUNDS):
        for verb, phases in DRIVERS_OWN.items():
            result = bed.ok(verb, job, "--format", "json")
            summary = result.json()["summary"]
            driver = sum(p["seconds"] for p in summary["phases"] if p["name"] in phases)
            own[verb].append((summary["seconds"] - driver) * 1000)
            outside[verb].append((result.seconds - driver) * 1000)
    for verb, values in own.items():
        print(f"   {verb}: brumate adds {statistics.median(values):.1f} ms to the driver's calls, "
              f"{statistics.median(outside[verb]):.1f} ms with the start of the command (medians of {ROUNDS})")
        expect(statistics.median(values) < OWN_MS_MAX, f"{verb} adds {statistics.median(values):.0f} ms")
    log.goes_on()


@case
def driver_is_initialised_once(bed):
    """A delay in cuInit is paid by the first command, and by no other."""
    bed.own["BRUMATE_SIM_FAULT"] = "cuInit:*:delay=1000"
    first = bed.cli("doctor")
    expect(first.seconds >= 1, f"the first command took {first.seconds:.2f} s, expected at least the second of cuInit")
    broker = bed.broker()
    start = process_start(broker)
    job, log = bed.counter()
    seconds = []
    for _ in range(5):
        seconds += [bed.ok("suspend", job).seconds, bed.ok("resume", job).seconds]
    expect(max(seconds) < 1, f"a later command took {max(seconds):.2f} s: it paid for cuInit again")
    expect(bed.broker() == broker and process_start(broker) == start, "it is another broker")
    facts = bed.doctor()["facts"]
    expect(facts["driver"]["init_seconds"] >= 1, f"doctor says {facts['driver']}")
    log.goes_on()


@case
def an_idle_broker_ends(bed):
    """An idle node has no driver state: the broker goes, and comes back when it is needed."""
    bed.own["BRUMATE_BROKER_IDLE_S"] = "0.3"
    job, log = bed.counter()
    bed.ok("suspend", job)
    broker = bed.broker()
    if broker:
        descriptor = os.pidfd_open(broker)
        expect(select.select([descriptor], [], [], 10)[0], "the idle broker did not end within 10 s")
        os.close(descriptor)
    bed.ok("resume", job)
    log.goes_on()


main()
