# SPDX-License-Identifier: MIT
"""The soak (tests/soak.py) on the machine's GPUs, as a case of tools/gpu-check."""

import os
import sys

from harness import SOURCE, Skipped, expect, run

EXIT_SKIPPED = 77


def soak(check):
    seconds = check.options.soak
    argv = [sys.executable, os.path.join(SOURCE, "tests", "soak.py"), "--seconds", seconds, "--build", check.options.build,
            "--gpu", "simulated" if check.options.simulated else "real", "--seed", check.options.seed * 1000]
    result = run(argv, timeout=seconds + 400)
    check.instance.note(result.out + result.err)
    if result.code == EXIT_SKIPPED:
        raise Skipped(result.out.strip())
    lines = result.out.strip().splitlines()
    print(lines[-1] if lines else result.err, flush=True)
    found = [line for line in lines if line.startswith(("lost: ", "wrong: ", "stuck: "))]
    expect(result.code == 0, "; ".join(found[:3]) or result.why())
    check.measured["soak"] = lines[-1]


def register(case):
    """Adds the case to gpu-check's list."""
    case("soak: random operations and faults")(soak)
