#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate bench` that is interrupted, or killed: nothing of its job is left, neither processes nor memory nor records
nor checkpoints."""

import os
import signal

from cases import case, expect, main, wait_until

SMALL = ("bench", "--size", "16M", "--pieces", "4M", "--data-path", "broker", "--rounds", "50")


def expect_nothing(bed, store=None):
    wait_until(lambda: not bed.list("ps", "jobs"), "the end of the job's record", 60)
    logs = [name for name in os.listdir(bed.own["BRUMATE_LOG_DIR"]) if name != "broker.log"]
    expect(not logs, f"logs are left: {logs}")
    expect(not store or not os.listdir(store), f"checkpoints are left: {store and os.listdir(store)}")
    wait_until(lambda: not bed.named("brumate-shim"), "the end of shim and keeper", 20)


@case
def a_signal_ends_the_job_first(bed):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with bed.held_at("resume.copy.begin", *SMALL) as bench:
            bench.signal(number)
        code, _, err = bench.end()
        expect(code == 1 and "bench: interrupted" in err, f"{number}: {code}: {err}")
        expect(not bed.list("ps", "jobs"), f"{number}: {bed.list('ps', 'jobs')}")
        expect_nothing(bed)


@case
def a_signal_removes_its_checkpoint(bed):
    store = os.path.join(bed.dir, "store")
    with bed.held_at("checkpoint.end.begin", *SMALL[:-1], "1", "--dir", store) as bench:
        bench.signal(signal.SIGINT)
    code, _, err = bench.end()
    expect(code == 1 and "bench: interrupted" in err, f"{code}: {err}")
    expect_nothing(bed, store)


@case
def killed_while_its_job_is_suspended(bed):
    for point in ("suspend.gpu-checkpoint.begin", "resume.copy.begin"):
        with bed.held_at(point, *SMALL) as bench:
            bench.signal(signal.SIGKILL)
            bench.process.wait()
        expect_nothing(bed)


@case
def killed_while_its_job_is_on_disk(bed):
    store = os.path.join(bed.dir, "store")
    with bed.held_at("restore.criu.begin", *SMALL[:-1], "1", "--dir", store) as bench:
        bench.signal(signal.SIGKILL)
        bench.process.wait()
    expect_nothing(bed, store)


@case
def killed_with_its_shim(bed):
    """What is left the next gc, and the next benchmark, end."""
    for cleaner in (("gc",), (*SMALL[:-1], "1")):
        bench = bed.spawn(*SMALL)
        wait_until(lambda: any(job["state"] == "suspended" for job in bed.list("ps", "jobs")) or
                   bench.process.poll() is not None, "a suspended job", 60)  # noqa: B023
        expect(bench.process.poll() is None, "the benchmark has ended")
        bench.signal(signal.SIGSTOP)
        for pid in bed.named("brumate-shim"):
            os.kill(pid, signal.SIGKILL)
        bench.signal(signal.SIGKILL)
        bench.process.wait()
        bed.ok(*cleaner)
        expect_nothing(bed)


@case
def to_its_end(bed):
    store = os.path.join(bed.dir, "store")
    result = bed.ok(*SMALL[:-1], "1", "--dir", store, "--format", "json", timeout=200).json()
    expect([r["operation"] for r in result["results"]] == ["suspend", "resume", "checkpoint", "restore"], f"{result}")
    expect_nothing(bed, store)


if __name__ == "__main__":
    main()
