#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SIGKILL to whoever takes part in a set that is saved or restored, at each step: the shim, CRIU, the job, its keeper, its reaper and the
broker of a node, what speaks for it, its launcher, and the coordinator. One rule for all: the command ends in its time; the set is decided or it is not,
for all members alike; and whatever data passes between them afterwards is right, so no connection is still held.

A slice of them fits into make check. All of them, or every N-th from the K-th on, with so many members:

	BRUMATE_TEST_SWEEP=1 python3 tests/integration/set_kills.py
	BRUMATE_TEST_SWEEP=K/N BRUMATE_TEST_MEMBERS=3 python3 tests/integration/set_kills.py
	BRUMATE_TEST_ONLY='keeper .*restore' python3 tests/integration/set_kills.py"""

import re

from cases import Failed, case, expect, main
from nodes import Nodes
from set_faults import MEMBERS, ONLY, SWEEP, Fault, Set, all_faults

SLICE, ALWAYS = "5/46", re.compile(r"channel killed at restore\.open\.begin ")


def wanted():
    first, step = map(int, (SWEEP if SWEEP and "/" in SWEEP else "1/1" if SWEEP or ONLY else SLICE).split("/"))
    found = all_faults(Fault)
    return [kill for n, kill in enumerate(found) if n % step == first - 1 or (step > 16 and ALWAYS.match(str(kill)))]


@case
def whoever_is_killed(bed):
    """A sweep goes on after a failure, with a new ring, and tells of all of them in the end."""
    mine, killed, failures = wanted(), 0, []
    with Nodes(bed, MEMBERS) as nodes:
        subject = Set(bed, nodes)
        subject.start()
        for number, kill in enumerate(mine, 1):
            try:
                killed += subject.try_one(kill)
            except Failed as failed:
                if not (SWEEP or ONLY):
                    raise
                failures.append(str(failed))
                print(f"   FAILED {failed}", flush=True)
                subject.abandon()
            if (SWEEP or ONLY) and number % 20 == 0:
                print(f"   {number} of {len(mine)}, {killed} killed, {len(failures)} failed", flush=True)
    print(f"   {len(mine)} tried, {killed} killed somebody, {len(failures)} failed")
    expect(killed > len(mine) / 4, "hardly anybody was killed: this test proves nothing")
    expect(not failures, f"{len(failures)} of {len(mine)} failed")


if __name__ == "__main__":
    main()
