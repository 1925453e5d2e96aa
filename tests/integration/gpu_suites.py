#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The suites for hardware (tools/gpu-check), as far as the simulated driver goes: where there is a GPU they are run
seldom, and what breaks them should be seen before."""

import os

from cases import case, expect, main
from harness import SOURCE, run

CASES = ("no framework", "peer access through the library", "swapped by --gpu-map", "samples: ", "users: ", "containers: ")


@case
def suites_for_hardware(bed):
    folder = os.path.join(bed.dir, "gpu-check")
    only = [word for name in CASES for word in ("--only", name)]
    result = run([os.path.join(SOURCE, "tools", "gpu-check"), "--simulated", "--no-contract", "--build", bed.build.path,
                  "--rounds", "30", "--out", folder, *only], timeout=240)
    expect(result.code == 0, f"{result.why()}\n{result.out}")
    expect(os.path.exists(os.path.join(folder, "results.json")), f"no results: {result.out}")


main()
