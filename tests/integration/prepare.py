#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Host memory for a copy of a job's device memory, ready before the copy is wanted."""

import contextlib
import os
import signal

from bench_jobs import bench_job, check, told
from cases import MIB, Failed, Skipped, case, expect, main, read_text, wait_until

JOB_MIB = 320
CONTEXT_MIB = 64
SMALL_GPU = {"BRUMATE_SIM_VRAM_MIB": "768", "BRUMATE_SIM_CTX_MIB": str(CONTEXT_MIB)}


@contextlib.contextmanager
def unless_memory_is_short(bed):
    """Once the kernel says that tasks wait for memory, the broker gives back what is kept, and makes nothing ready for half a minute or more."""
    try:
        yield
    except Failed as e:
        if "memory is short" in read_text(os.path.join(bed.own["BRUMATE_LOG_DIR"], "broker.log")):
            raise Skipped("this machine's memory is short: tasks wait for it") from e
        raise


def wait_ready(bed):
    with unless_memory_is_short(bed):
        wait_until(lambda: bed.ready_bytes() >= JOB_MIB * MIB, "memory for the job's copy is ready", seconds=90)


@case
def as_soon_as_a_job_has_run_for_a_while(bed):
    job, log = bed.counter(mib=JOB_MIB)
    wait_ready(bed)
    pid = bed.broker()
    bed.operation("suspend", job)
    expect(bed.ready_bytes() < 128 * MIB, "a suspended job's copy is not in what was ready")
    bed.operation("resume", job)
    log.goes_on()
    with unless_memory_is_short(bed):
        kept = bed.job(job)["kept_bytes"]
        expect(kept >= JOB_MIB * MIB, f"of the copy {kept} bytes are kept for the next")
    step = log.last_step()
    log.wait_until(lambda _: log.last_step() > step + 20, "the job runs on", seconds=120)
    expect(bed.broker() == pid, "the broker stays while a copy is kept that it looks after")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bed.broker() not in (None, pid), "another broker", seconds=90)
    wait_ready(bed)
    bed.operation("suspend", job)
    bed.operation("resume", job)
    log.goes_on()
    bed.end(job)


@case
def not_where_it_is_switched_off(bed):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nPrepare=no\nIdleTimeout=1s\n")
    job, log = bed.counter(mib=JOB_MIB, interval_ms=500)
    wait_until(lambda: not bed.broker(), "the end of a broker that nobody needs")
    step = log.last_step()
    log.wait_until(lambda _: log.last_step() > step + 30, "the job runs for 15 s more", seconds=120)
    expect(not bed.broker(), "a broker runs, and nobody needs it")
    bed.end(job)


def agent_file(bed, job, name):
    return os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents", job, name)


def is_open(bed, job):
    """Whether the job's processes are told that the broker has their GPU open."""
    return os.path.exists(agent_file(bed, job, "room-held"))


def wait_open(bed, job):
    wait_until(lambda: is_open(bed, job), "the GPU to be open for the job", seconds=90)


@case
def the_gpu_is_open_before_the_copy_begins(bed):
    bed.own.update(SMALL_GPU, BRUMATE_LOG_LEVEL="debug")
    job, log = bench_job(bed, mib=JOB_MIB)
    wait_open(bed, job)
    wait_ready(bed)
    wait_until(bed.all_is_pinned, "what is ready to be pinned", seconds=30)
    times = bed.gpus_opened()
    bed.operation("suspend", job)
    expect(bed.gpus_opened() == times, "a copy waited for the GPU to be opened")
    wait_until(lambda: not is_open(bed, job), "a suspended job to be told of nothing any more")
    wait_until(lambda: not bed.brokers_mib(), "the GPU to be closed after the suspend", seconds=30)
    bed.operation("resume", job)
    wait_open(bed, job)
    check(bed, job, log)
    bed.end(job)
    wait_until(lambda: not bed.brokers_mib(), "the GPU to be closed after the job", seconds=30)


@case
def the_job_misses_no_memory(bed):
    """It asks for all that it is told is free: the broker's part comes first, and is not taken again at once."""
    bed.own.update(SMALL_GPU)
    job, log = bench_job(bed, "--grow", 768 - CONTEXT_MIB - JOB_MIB - 16, mib=JOB_MIB)
    wait_open(bed, job)
    expect(bed.brokers_mib() >= CONTEXT_MIB, "the GPU is not open")
    told(bed, job, log, signal.SIGHUP, "grown")
    free = int(next(line for line in log.lines() if line.startswith("asks")).split()[-1])
    expect(free >= (768 - CONTEXT_MIB - JOB_MIB - 8) * MIB, f"{free} bytes were told to be free")
    expect("ERR" not in log.text(), log.text())
    expect(not bed.brokers_mib() and not is_open(bed, job), "the GPU is open still")
    check(bed, job, log)
    bed.end(job)


@case
def whoever_is_killed_the_job_misses_none(bed):
    bed.own.update(SMALL_GPU)
    for victim in ("broker", "shim"):
        job, log = bench_job(bed, "--grow", 768 - CONTEXT_MIB - JOB_MIB - 16, mib=JOB_MIB)
        wait_open(bed, job)
        pid = bed.broker() if victim == "broker" else bed.shim(job)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bed.brokers_mib() < CONTEXT_MIB, f"the end of what the {victim} had open")
        told(bed, job, log, signal.SIGHUP, "grown")
        expect("ERR" not in log.text(), log.text())
        check(bed, job, log)
        bed.end(job)


@case
def not_while_the_gpu_is_nearly_full(bed):
    bed.own.update(SMALL_GPU)
    job, log = bench_job(bed, mib=768 - CONTEXT_MIB - 32)
    wait_ready(bed)
    expect(not is_open(bed, job) and not bed.brokers_mib(), "a GPU that is nearly full was opened")
    bed.end(job)


@case
def memory_alone_where_gpus_are_not_to_be_open(bed):
    bed.own.update(SMALL_GPU)
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nPrepareGpu=no\n")
    job, log = bench_job(bed, mib=JOB_MIB)
    wait_ready(bed)
    expect(not is_open(bed, job) and not bed.brokers_mib(), "a GPU is open")
    bed.end(job)


@case
def doctor_says_how_much_may_be_pinned(bed):
    said = bed.doctor()["facts"]["pool_bytes"]
    limit = bed.ask_broker("Info")["pool"]["limit_bytes"]
    expect(said == limit, f"doctor says {said}, the broker has {limit}")


main()
