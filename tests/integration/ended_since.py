#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processes that end as soon as CRIU has brought them back, before their GPU state is there: by a timer of their own, a
watchdog, whatever. They are members less, as if they had ended a moment later."""

import os
import re
import signal

from cases import Log, as_user, case, expect, main, read_text, wait_until

# Where they run and the driver has not been asked yet; and where it has, and their device memory is on its way.
POINTS = ("restore.gpu-restore.begin", "restore.gpu-restore.end", "restore.map-ahead.begin", "restore.map.begin")


def killed_at(bed, point, job, pid, number=signal.SIGALRM):
    with bed.held_at(point, "restore", job) as restore:
        os.kill(pid, number)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}/mem") or is_zombie(pid), f"process {pid} to end")
    return restore.end()


def is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def pid_of(log):
    return int(re.search(r"^ready pid (\d+)", log.text(), re.MULTILINE).group(1))


def the_only_one(bed):
    job, log = bed.counter(name="alone")
    bed.operation("checkpoint", job, "--name", "one")
    for _ in range(2):
        code, _, err = killed_at(bed, POINTS[0], job, pid_of(log))
        expect(code == 0, f"exit {code}: {err}")
        expect("has ended since it was restored" in err, f"nothing is said of it: {err!r}")
        bed.wait_state(job, ("exited",))
        expect(bed.job(job)["exit_code"] == 128 + signal.SIGALRM, bed.job(job))
        wait_until(lambda: not any(bed.vram()), "device memory to be free")
    bed.expect_restorable("one", log)
    bed.end(job)


@case
def the_only_one_with_gpu_state(bed):
    the_only_one(bed)


@case
@as_user
def the_only_one_of_a_user(bed):
    the_only_one(bed)


@case
def one_of_two(bed):
    """The other one goes on with its own device memory."""
    counter = f"{bed.program('counter')} --mib 16 --chunk-mib 16 --interval-ms 25"
    for n, point in enumerate(POINTS):
        out = os.path.join(bed.dir, f"second-{n}.out")
        job, log = bed.started(["sh", "-c", f"{counter} >{out} & exec {counter}"])
        wait_until(lambda path=out: re.search("^ready pid ", read_text(path)), "the second member to be ready")
        second = Log(out)
        second.goes_on()
        bed.operation("checkpoint", job)
        code, _, err = killed_at(bed, point, job, pid_of(second))
        expect(code == 0, f"{point}: exit {code}: {err}")
        bed.expect_whole(job, log)
        bed.end(job)


if __name__ == "__main__":
    main()
