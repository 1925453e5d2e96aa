# SPDX-License-Identifier: MIT
"""In which order tools/gpu-check runs its cases when time is short, which of them want the machine for
themselves, and running the others side by side."""

import concurrent.futures
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    pattern: str  # searched for in a case's name
    rank: int  # the lowest runs first
    alone: bool = False  # measures time, or how much memory of the card is in use
    seconds: int = 15  # about


# The first row that matches counts: what is claimed first, then right before much, rare cases last.
ROWS = (
    Row(r"^bench: 32 GiB", 10, alone=True, seconds=60),
    Row(r"^bench: a mostly-zero", 10, alone=True, seconds=150),
    Row(r"^defaults: ", 10, alone=True, seconds=180),
    Row(r"^engine: ", 11, alone=True, seconds=150),
    Row(r"^wake: ", 11, alone=True, seconds=90),
    Row(r"^two GPUs: both at once", 11, alone=True, seconds=60),
    Row(r"^steady state: ", 12, alone=True, seconds=60),
    Row(r"^cost of calls: launches", 13, alone=True, seconds=30),
    Row(r"^cost of calls", 13, alone=True, seconds=50),
    Row(r"^bench: clients of servers", 14, alone=True, seconds=60),
    Row(r"^bench: ten thousand", 14, alone=True, seconds=20),
    Row(r"^bench: checkpoint of 16 GiB", 15, alone=True, seconds=150),
    Row(r"^downtime: ", 16, alone=True, seconds=25),
    Row(r"^second checkpoint", 17, alone=True, seconds=40),
    Row(r"^bench: 16 GiB without", 18, alone=True, seconds=60),
    Row(r"^ranks: steady state", 12, alone=True, seconds=60),
    Row(r"^ranks: many operations", 16, alone=True, seconds=240),
    Row(r"^several nodes: ring", 16, alone=True, seconds=120),
    Row(r"^several nodes: ", 16, alone=True, seconds=240),
    Row(r"^ranks: suspended while", 18, alone=True, seconds=60),
    Row(r"^ranks: drain", 17, alone=True, seconds=150),
    Row(r"^conform: objects", 20, seconds=25),
    Row(r"^conform: ", 20, alone=True, seconds=25),  # fills the card, and asks how much is left
    Row(r"^two GPUs: |^legacy IPC through", 21, seconds=25),
    Row(r"^framework, measured: JAX, all defaults", 90, alone=True, seconds=90),
    Row(r"^framework, measured: ", 35, seconds=30),
    Row(r"^samples: ", 23, alone=True, seconds=120),
    Row(r"^soak: ", 24, alone=True, seconds=120),
    Row(r"^trees: ", 22, alone=True, seconds=60),
    Row(r"^users: ", 22, alone=True, seconds=90),
    Row(r"^containers: .* 8 GiB", 22, alone=True, seconds=90),
    Row(r"^containers: ", 22, alone=True, seconds=40),
    # Kernels that wait for others fail where they share a GPU with a job that was restored.
    Row(r"^framework: .*two ranks", 24, alone=True, seconds=50),
    Row(r"^framework: ", 25, seconds=30),
    Row(r"^same output: .*two ranks", 30, alone=True, seconds=40),
    Row(r"^same output: ", 30, seconds=15),
    Row(r"^examples: ", 26, seconds=45),
    Row(r"^PyTorch .* as a job", 26, seconds=30),
    Row(r"^bench: 120 GiB", 40, alone=True, seconds=120),
    Row(r"^bench: 40 GiB to tmpfs", 41, alone=True, seconds=150),
    Row(r"^bench: 40 GiB to disk", 42, alone=True, seconds=270),
    Row(r"^bench: 90 GiB", 43, alone=True, seconds=120),
    Row(r"^bench: CPU memory", 19, alone=True, seconds=40),
    Row(r"^bench: ", 44, alone=True, seconds=60),
    Row(r"^counter, 16 GiB", 62, alone=True, seconds=75),
    Row(r"^counter ", 45, alone=True, seconds=35),
    Row(r"^restored onto the other GPU", 46, alone=True),
    Row(r"^PyTorch .* by --pid", 61, seconds=30),
    Row(r"by --pid$", 60),
    Row(r"", 50),
)


def row_of(name):
    return next(row for row in ROWS if re.search(row.pattern, name))


def ordered(cases):
    """[(name, function, row)] of [(name, function)], the most important first."""
    rows = [(name, function, row_of(name)) for name, function in cases]
    return sorted(rows, key=lambda entry: entry[2].rank)


def describe(cases, parallel, limit):
    """Lines that say what would run, and about when each case would start."""
    lines, at, beside = [], 0.0, 0.0
    for name, _, row in ordered(cases):
        if row.alone:
            at, beside = at + beside / parallel, 0.0
        begin = at + beside / parallel
        late = "  (past --limit)" if begin > limit else ""
        lines.append(f"{begin:5.0f} s  {'alone' if row.alone else '     '}  {name}{late}")
        if row.alone:
            at += row.seconds
        else:
            beside += row.seconds
    return [*lines, f"{at + beside / parallel:5.0f} s  the end, about"]


def run(cases, parallel, run_one):
    """Calls run_one(name, function, alone) for each, up to @parallel at a time of those that are not
    alone. What it raises ends the run."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=parallel) as pool:
        under_way = []
        for name, function, row in ordered(cases):
            if row.alone or parallel == 1:
                for future in under_way:
                    future.result()
                under_way = []
                run_one(name, function, True)
            else:
                under_way.append(pool.submit(run_one, name, function, False))
        for future in under_way:
            future.result()
