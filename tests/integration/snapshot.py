#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints of a job that goes on before its memory is copied: what was parked is the snapshot, and goes to the
checkpoint behind the job."""

import contextlib
import json
import os
import re
import signal

from bench_jobs import bench_job, change, check
from cases import MIB, case, expect, main, read_text, wait_until


VRAM = 512 * MIB  # of each GPU of a bed


def seen(log, pattern):
    return [line for line in log.lines() if re.match(pattern, line)]


@contextlib.contextmanager
def draining(bed, job, log, name, *options, point="data.copy"):
    """A checkpoint of a job that goes on, held where the broker copies its memory, once the job does go on."""
    gaps = len(seen(log, "gap"))
    with bed.held_at(point, "checkpoint", job, "--leave-running", "--name", name, "--format", "json", *options) as saving:
        wait_until(lambda: len(seen(log, "gap")) > gaps, "the job to go on")
        yield saving


def in_use(bed):
    """With what the broker takes part in."""
    return bed.gpus()[0]["used_bytes"]


def done(background):
    """The summary of a command that ran in the background."""
    code, out, err = background.end()
    expect(code == 0, f"exit {code}: {err}")
    value = json.loads(out)
    return value.get("summary", value)


def phases(summary):
    return [phase["name"] for phase in summary["phases"]]


def expect_let_go(bed, job, used):
    wait_until(lambda: bed.vram() == used, "the snapshot to be let go", 10)
    table = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "parked.json")
    kept = bed.job(job)["kept_bytes"]
    expect(os.path.exists(table) == bool(kept), f"the table is {'not ' * bool(kept)}there, {kept} bytes of a copy are kept")


def expect_restored(bed, name):
    """The checkpoint comes back with what the memory held when it was made."""
    job = bed.operation("restore", name)["job"]
    check(bed, job, bed.log(job))
    bed.ok("kill", "--grace", "5s", job)


@case
def it_runs_before_its_memory_is_copied(bed):
    job, log = bench_job(bed, "--change", "50")
    used = bed.vram()
    with draining(bed, job, log, "copy") as saving:
        # All that it writes now is not to be in the checkpoint.
        change(bed, job, log)
        check(bed, job, log)
        bed.expect_state(job, "checkpointing")
        expect(in_use(bed) >= used[0] + 64 * MIB, f"in use {in_use(bed)}, before {used}: nothing is held beside the job")
        bed.refused(6, "a checkpoint is in progress", "suspend", job)
    summary = done(saving)
    expect("drain" in phases(summary) and summary["drain_s"] > 0, f"{summary}")
    expect(summary["downtime_s"] + summary["drain_s"] <= summary["seconds"], f"{summary}")
    expect_let_go(bed, job, used)
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


def seen_alive(bed, words):
    return [pid for pid, command in bed.processes() if words in command]


FUTEX = "202"  # the number of the call


def waits_for_memory(pid):
    return read_text(f"/proc/{pid}/syscall").split()[:1] == [FUTEX]


@case
def memory_it_asks_for_comes_first(bed):
    """There is room for the job and its snapshot, or for the job and more: it waits for that, and sees no error."""
    job, log = bench_job(bed, "--grow", 240, mib=160)
    used = bed.vram()
    expect(used[0] + 400 * MIB > VRAM, "there is room for everything")
    with draining(bed, job, log, "copy") as saving:
        os.kill(bed.pid(job), signal.SIGHUP)
        log.wait_for("^asks")
        wait_until(lambda: waits_for_memory(bed.pid(job)), "the program to ask for memory")
        expect(not seen(log, "grown|.*ERR"), log.text())
    done(saving)
    log.wait_for("^grown")
    free = int(seen(log, "asks")[0].split()[-1])
    expect(free >= VRAM - used[0] - 32 * MIB, f"{free} bytes were told to be free, {used} in use before")
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


@case
def memory_that_is_copied_and_not_free_yet(bed):
    """What waits for memory goes on waiting where the broker has copied all and not unmapped it."""
    job, log = bench_job(bed, "--grow", 240, mib=160)
    with draining(bed, job, log, "copy") as saving:
        os.kill(bed.pid(job), signal.SIGHUP)
        log.wait_for("^asks")
        wait_until(lambda: waits_for_memory(bed.pid(job)), "the program to ask for memory")
        bed.fault("data.unmap", "hold", "drain.let-go", "hold")
    with bed.holding("drain.let-go", saving):
        expect(not seen(log, "grown|.*ERR"), log.text())
    done(saving)
    log.wait_for("^grown")
    check(bed, job, log)


@case
def room_for_a_part(bed):
    """There is no room for all of it twice: what has none is copied before the job goes on, and let go of."""
    job, log = bench_job(bed, "--change", "50", mib=320)
    used = bed.vram()
    with draining(bed, job, log, "copy", point="checkpoint.drain.begin") as saving:
        change(bed, job, log)
        check(bed, job, log)
        expect(in_use(bed) <= VRAM, f"in use {in_use(bed)}")
    done(saving)
    expect_let_go(bed, job, used)
    check(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "copy")


@case
def faults_where_there_is_room_for_a_part(bed):
    """Some of the snapshot is let go of, and some of the job's memory is not its own yet."""
    job, log = bench_job(bed, "--change", "50", mib=320)
    used = bed.vram()
    for n, action in enumerate(("error:5", "kill", "kill:keeper", "kill:broker")):
        bed.fault("own.waited", action)
        result = bed.cli("checkpoint", job, "--leave-running", "--name", f"c{n}", timeout=60)
        expect(bed.has_fired(), f"{action}: own.waited was not passed")
        expect(result.code in (0, 1, 7), f"{action}: {result.why()}")
        bed.cli("kill", "--signal", "URG", job)
        bed.wait_state(job, ("running",))
        check(bed, job, log)
        expect((f"c{n}" in bed.checkpoints()) == (result.code == 0), f"{action}: {result.why()}, there are {bed.checkpoints()}")
        expect_let_go(bed, job, used)
        change(bed, job, log)
    bed.operation("checkpoint", job, "--leave-running", "--name", "last")
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "last")


@case
def no_room(bed):
    job, log = bench_job(bed, mib=160)
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 24])
    used = bed.vram()
    for name in ("one", "two"):
        bed.operation("checkpoint", job, "--leave-running", "--name", name)
        check(bed, job, log)
        wait_until(lambda: bed.vram() == used, "device memory in use as before", 10)
    bed.end(hog)
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "two")


@case
def it_ends_while_its_snapshot_drains(bed):
    """The checkpoint is completed all the same, however it ends."""
    for signum, name in ((signal.SIGTERM, "ended"), (signal.SIGKILL, "killed")):
        job, log = bench_job(bed)
        with draining(bed, job, log, name) as saving:
            os.kill(bed.pid(job), signum)
            wait_until(lambda: not seen_alive(bed, "bench-job"), "the end of the program")
        summary = done(saving)
        expect(summary["checkpoint"] == name, f"{summary}")
        bed.wait_state(job, ("exited",))
        wait_until(lambda: bed.vram() == [0, 0], "the snapshot to be let go", 10)
        expect_restored(bed, name)


@case
def brumate_kill_while_its_snapshot_drains(bed):
    job, log = bench_job(bed)
    with draining(bed, job, log, "copy") as saving:
        killing = bed.spawn("kill", job)
        wait_until(lambda: not seen_alive(bed, "bench-job"), "the end of the program")
    done(saving)
    code, _, err = killing.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.wait_state(job, ("exited",))
    bed.ok("rm", job)
    expect_restored(bed, "copy")


@case
def its_shim_ends_while_the_snapshot_drains(bed):
    """Then there is no checkpoint. The job goes on, its memory is let go of, and whoever waits for some gets it."""
    job, log = bench_job(bed, "--change", "50", "--grow", 240, mib=160)
    with draining(bed, job, log, "copy") as saving:
        os.kill(bed.pid(job), signal.SIGHUP)
        log.wait_for("^asks")
        wait_until(lambda: waits_for_memory(bed.pid(job)), "the program to ask for memory")
        os.kill(bed.shim(job), signal.SIGKILL)
        code, _, err = saving.end()
        expect(code, "a checkpoint without its shim")
    log.wait_for("^grown")
    bed.cli("kill", "--signal", "URG", job)
    bed.wait_state(job, ("running",))
    check(bed, job, log)
    expect(not bed.checkpoints() and not bed.partials(), f"left: {bed.checkpoints()} {bed.partials()}")
    change(bed, job, log)
    bed.operation("checkpoint", job, "--leave-running", "--name", "next")
    bed.ok("kill", "--grace", "5s", job)
    expect_restored(bed, "next")


@case
def a_drain_that_fails(bed):
    """The checkpoint fails, and the job goes on without having noticed."""
    job, log = bench_job(bed, "--change", "50")
    used = bed.vram()
    for point, action in (("data.copy", "error:5"), ("drain.let-go", "error:5"), ("store.write-manifest", "error:28")):
        bed.fault(point, action)
        bed.refused(7, "", "checkpoint", job, "--leave-running")
        expect(bed.has_fired(), f"{point} was not passed")
        bed.expect_state(job, "running")
        expect_let_go(bed, job, used)
        change(bed, job, log)
        check(bed, job, log)
        expect(not bed.checkpoints() and not bed.partials(), f"left: {bed.checkpoints()} {bed.partials()}")


@case
def a_stopped_job_is_drained(bed):
    job, log = bench_job(bed)
    used = bed.vram()
    with draining(bed, job, log, "copy") as saving:
        os.kill(bed.pid(job), signal.SIGSTOP)
    done(saving)
    expect_let_go(bed, job, used)
    os.kill(bed.pid(job), signal.SIGCONT)
    check(bed, job, log)


@case
def several_members_and_gpus(bed):
    for kind in ("fork-before", "two-gpus"):
        job, log = bed.kind(kind, "--mib", "16")
        used = bed.vram()
        bed.operation("checkpoint", job, "--leave-running", "--name", kind, "--force")
        log.goes_on()
        wait_until(lambda: bed.vram() == used, "the snapshot to be let go", 10)
        bed.end(job)


if __name__ == "__main__":
    main()
