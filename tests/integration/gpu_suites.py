#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The suites for hardware (tools/gpu-check), as far as the simulated driver goes: where there is a GPU they are run
seldom, and what breaks them should be seen before."""

import os
import sys
import time
import types

from cases import case, expect, main
from harness import SOURCE, run

sys.path.insert(0, os.path.join(SOURCE, "tests", "gpu"))

import sample_cases  # noqa: E402

CASES = ("no framework", "peer access through the library", "swapped by --gpu-map", "samples: ", "users: ", "containers: ", "several nodes: ")


@case
def suites_for_hardware(bed):
    folder = os.path.join(bed.dir, "gpu-check")
    only = [word for name in CASES for word in ("--only", name)]
    result = run([os.path.join(SOURCE, "tools", "gpu-check"), "--simulated", "--no-contract", "--build", bed.build.path,
                  "--rounds", "30", "--rank-rounds", "2", "--out", folder, *only], timeout=240)
    expect(result.code == 0, f"{result.why()}\n{result.out}")
    expect(os.path.exists(os.path.join(folder, "results.json")), f"no results: {result.out}")


def round_that_ends_as(rounds, sample, have):
    """What a round is counted as whose program, suspended after its second line, ended so."""
    rounds.count.clear()
    rounds.disturb = lambda *_: ("suspended", "", 2, have)
    rounds.round(1)
    return {what for what in ("right", "driver", "wrong") if rounds.count[what]}


@case
def what_the_driver_does_by_itself(bed):
    options = types.SimpleNamespace(seed=1)
    check = types.SimpleNamespace(instance=bed, clock=time.monotonic, options=options)
    sample = sample_cases.Sample("short plain", (bed.program("short"), "plain"))
    rounds = sample_cases.Rounds(check, [sample])
    right, other = rounds.alone.of(sample)[0], (1, "step 1 OK\nsomething else\n")
    expect(rounds.alone.by_driver(sample, 2) == right, "a program that the driver alone took through its calls ended otherwise")
    expect(round_that_ends_as(rounds, sample, right) == {"right"}, "an undisturbed end is not taken for one")
    expect(round_that_ends_as(rounds, sample, other) == {"wrong"}, "what the driver does not do alone is put down to it")
    rounds.alone.by_driver = lambda *_: other
    expect(round_that_ends_as(rounds, sample, other) == {"driver"}, "what the driver does alone is not put down to it")


@case
def a_soak_that_is_told_to_end(bed):
    argv = [sys.executable, os.path.join(SOURCE, "tests", "soak.py"), "--seconds", "3600", "--seed", "1", "--build", bed.build.path]
    soak = bed.start(argv, "soak")
    soak.log.wait_for("^soak: seed 1$", 30)
    soak.process.terminate()
    code = soak.wait(120)
    expect(code == 0 and " 1 rounds, " in soak.log.tail(1), f"exit {code} without its counts: {soak.log.tail(4)}")


main()
