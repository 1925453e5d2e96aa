# SPDX-License-Identifier: MIT
"""Jobs that know what their device memory has to hold."""

import os
import signal

from cases import expect


def bench_job(bed, *options, mib=64):
    """A job that beats, changes a share of its memory at SIGUSR2 and checks all of it at SIGUSR1."""
    job, log = bed.started([bed.program("bench-job"), "--mib", mib, "--piece-kib", "4096", *options])
    log.wait_for("^ready")
    return job, log


def told(bed, job, log, sig, pattern):
    seen = len(log.lines())
    os.kill(bed.pid(job), sig)
    log.wait_until(lambda text: any(line.startswith(pattern) for line in text.splitlines()[seen:]), pattern)


def check(bed, job, log):
    told(bed, job, log, signal.SIGUSR1, "check ")
    expect("check BAD" not in log.text(), "the job's memory is wrong")


def change(bed, job, log):
    told(bed, job, log, signal.SIGUSR2, "changed ")
