#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Registers that CRIU does not save: tiles (AMX), which the processors beside H100s and H200s have. Elsewhere all of it is
skipped; what can be seen without tiles is in the unit test criu-plugin-registers."""

from cases import EXIT_STILL_RUNNING, Failed, Skipped, as_user, case, expect, main, read_text


def started(bed, *words):
    if " amx_int8 " not in read_text("/proc/cpuinfo"):
        raise Skipped("this processor has no tiles (AMX)")
    job, log = bed.started([bed.program("tiles"), *words])
    log.goes_on()
    return job, log


def checkpoint(bed, *args):
    """The program uses tiles nearly all the time: a checkpoint that meets no pause of a thread fails, and says to try again."""
    for _ in range(20):
        done = bed.cli("checkpoint", *args)
        if done.code == 0:
            return
        expect(done.code == EXIT_STILL_RUNNING and "has tile registers (AMX) in use" in done.err and "try again" in done.err, done.why())
    raise Failed("no pause in 20 tries")


def saved_many_times(bed):
    job, log = started(bed)
    for _ in range(25):
        checkpoint(bed, job, "--leave-running")
        bed.expect_whole(job, log)
        bed.ok("prune", "--keep-last", "1")
    for n in range(5):
        checkpoint(bed, job, "--name", f"n{n}")
        bed.expect_restorable(f"n{n}", log)
    bed.end(job)


@case
def tiles(bed):
    saved_many_times(bed)


@case
@as_user
def tiles_of_a_user(bed):
    saved_many_times(bed)


@case
def tiles_that_are_held(bed):
    job, log = started(bed, "hold")
    for options in (["--leave-running"], []):
        bed.refused(EXIT_STILL_RUNNING, r"thread \d+ has tile registers \(AMX\) in use", "checkpoint", job, *options)
        bed.expect_whole(job, log)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    bed.end(job)


if __name__ == "__main__":
    main()
