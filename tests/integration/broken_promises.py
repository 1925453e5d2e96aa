#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The checker of the promises itself (tests/promises.py): each promise of docs/states.md is broken by hand, it is seen
to be broken, by its number, and nothing more is seen once it is mended."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

from cases import SOURCE, case, expect, main, process_start, promises, run, wait_until


def job_dir(bed, job):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job)


def expect_all_hold(bed):
    lines = promises.broken(bed.places())
    expect(not lines, "; ".join(lines))


def expect_broken(bed, number, pattern, **places):
    lines = promises.broken_now(dataclasses.replace(bed.places(), **places))
    expect(any(re.search(f"^promise {number}: .*{pattern}", line) for line in lines),
           f"promise {number} is broken ({pattern}), and that is not seen: {lines}")


@contextlib.contextmanager
def stopped(pid):
    """The process gets no more processor."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def record(bed, job, **changes):
    """The record says something else."""
    path = os.path.join(job_dir(bed, job), "job.json")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**json.loads(text), **changes}, file)
    try:
        yield
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


@contextlib.contextmanager
def moved(path, aside):
    os.rename(path, aside)
    try:
        yield
    finally:
        os.rename(aside, path)


@contextlib.contextmanager
def there(path, directory=False):
    if directory:
        os.makedirs(path)
    else:
        with open(path, "w", encoding="utf-8"):
            pass
    try:
        yield
    finally:
        (os.rmdir if directory else os.unlink)(path)


@case
def records_that_lie(bed):
    job, _ = bed.counter()
    for state in ("checkpointed", "exited", "lost"):
        with record(bed, job, state=state):
            expect_broken(bed, 1, "lives")
    with record(bed, job, root=None):
        expect_broken(bed, 1, "is not there")
    for state in promises.UNDER_WAY:
        with record(bed, job, state=state):
            expect_broken(bed, 3, f"{state}.*nothing is under way")
    expect_all_hold(bed)


@case
def a_copy_that_is_held_once(bed):
    job, log = bed.counter()
    for options in ((), ("--park",)):
        bed.ok("suspend", job, *options)
        expect_all_hold(bed)
        with stopped(bed.shim(job)):
            keeper = next(pid for pid, command in bed.processes() if command.startswith("brumate-keeper "))
            os.kill(keeper, signal.SIGKILL)
            wait_until(lambda: process_start(keeper) is None, "the end of the keeper")
            expect_broken(bed, 2, "it has 0 keepers")
        expect_all_hold(bed)
        table = os.path.join(job_dir(bed, job), "parked.json")
        if not options:
            with moved(table, os.path.join(bed.dir, "table")):
                expect_broken(bed, 7, "host copy that no table names")
        bed.ok("resume", job)
        log.goes_on()


@case
def processes_outside_a_tree(bed):
    bed.counter()
    with subprocess.Popen(["sleep", "60"], env=bed.program_env()) as stranger:
        expect_broken(bed, 4, f"process {stranger.pid} .*in no job's tree")
        stranger.kill()
    program = bed.start([bed.program("counter"), "--mib", 4, "--chunk-mib", 4])
    program.ready()
    expect_broken(bed, 5, "counter.* holds device memory", apart=())
    expect_all_hold(bed)


@case
def what_is_half_made(bed):
    job, _ = bed.counter()
    bed.ok("checkpoint", job, "--leave-running")
    for path, directory in ((os.path.join(job_dir(bed, job), "job.json.tmp.1.2"), False),
                            (os.path.join(bed.store(), ".x.partial"), True),
                            (os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents", "00000000"), True),
                            (job_dir(bed, "00000000"), True)):
        with there(path, directory):
            expect_broken(bed, 6, re.escape(path))
    expect_all_hold(bed)


@case
def programs_that_serve_nobody(bed):
    job, _ = bed.counter()
    bed.ok("suspend", job)
    with moved(job_dir(bed, job), os.path.join(bed.dir, "aside")):
        expect_broken(bed, 8, "brumate-shim.* serves a job that is gone")
        expect_broken(bed, 8, "brumate-keeper.* serves a job that is gone")
    expect_all_hold(bed)


@case
def as_a_program(bed):
    job, _ = bed.counter()
    checker = [sys.executable, os.path.join(SOURCE, "tests/promises.py"), "--patience", "0"]
    result = run(checker, env=bed.command_env())
    expect(result.code == 0 and "all promises hold" in result.out, result.why())
    with record(bed, job, state="lost"):
        result = run(checker, env=bed.command_env())
        expect(result.code == 1 and re.search(rf"^promise 1: job {job} .* lives$", result.out, re.MULTILINE), result.why())


main()
