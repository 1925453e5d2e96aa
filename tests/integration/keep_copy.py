#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What need not be copied: a host copy that was kept while its job ran, memory that is all zero, and
what is checked of memory that came back."""

import mmap
import os
import signal

from bench_jobs import bench_job, change, check
from cases import MIB, case, expect, main, process_start, read_link, wait_until, with_env

SMALL_GPU_MIB = "72"  # no room for the memory of a job once more


def copied(summary):
    return summary["data_bytes"] - summary["zero_bytes"] - summary["unchanged_bytes"]


def keeper_is_there(bed):
    return any(command.startswith("brumate-keeper ") for _, command in bed.processes())


@case
def only_what_changed_is_copied(bed):
    job, log = bench_job(bed, "--change", "5")
    first = bed.operation("suspend", job)
    expect(first["unchanged_bytes"] == 0 and copied(first) >= 60 * MIB, f"{first}")
    bed.operation("resume", job, "--keep-copy")
    expect(bed.job(job)["kept_bytes"] >= 60 * MIB and keeper_is_there(bed), f"{bed.job(job)}")
    expect("copy kept" in bed.ok("ps").out, "ps does not tell of the copy")
    expect(any("--keep-copy" in f["text"] for f in bed.doctor("--job", job)["findings"]), "nor does doctor")
    check(bed, job, log)
    for again in range(3):
        if again:
            change(bed, job, log)
        second = bed.operation("suspend", job)
        most = 12 * MIB if again else 4 * MIB
        expect(copied(second) <= most and second["unchanged_bytes"] > 0, f"copied {copied(second)}: {second}")
        bed.operation("resume", job, "--keep-copy")
        check(bed, job, log)
    expect("unchanged" in bed.ok("suspend", "--stats", job).err, "the summary does not tell of it")
    bed.operation("resume", job)
    expect(bed.job(job)["kept_bytes"] == 0, f"{bed.job(job)}")
    wait_until(lambda: not keeper_is_there(bed), "the end of the keeper")
    expect(bed.operation("suspend", job)["unchanged_bytes"] == 0, "a copy that was let go was used")
    bed.operation("resume", job)
    check(bed, job, log)


# A copy that nobody asked to be kept, of a job that is large enough.

LARGE_MIB = 288


def configure(bed, text):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(text)


def kept(bed, job):
    return bed.job(job)["kept_bytes"]


@case
def a_copy_stays_while_nobody_needs_its_memory(bed):
    configure(bed, f"[Broker]\nMemory={LARGE_MIB + 128}M\n")
    job, log = bench_job(bed, "--change", "5", mib=LARGE_MIB)
    other, other_log = bench_job(bed, "--gpu", "1", mib=LARGE_MIB)
    for again in range(3):
        summary = bed.operation("suspend", job)
        expect(not again or copied(summary) <= 32 * MIB, f"copied {copied(summary)}: {summary}")
        bed.operation("resume", job)
        expect(kept(bed, job), "the copy was not kept")
        check(bed, job, log)
        change(bed, job, log)
    os.kill(bed.shim(job), signal.SIGKILL)
    wait_until(lambda: bed.shim(job) and bed.operation("suspend", job)["unchanged_bytes"], "the next shim to use the copy")
    bed.operation("resume", job)
    expect(kept(bed, job), "the copy was not kept")
    wait_until(lambda: bed.ask_broker("Info")["pool"]["memory_bytes"] >= LARGE_MIB * MIB, "the broker to know of the copy")
    summary = bed.operation("suspend", other)
    expect(summary["disk_bytes"] == 0, f"memory that was held for a running job was missed: {summary}")
    wait_until(lambda: not kept(bed, job), "the copy to be given back")
    bed.operation("resume", other)
    for which, its_log in ((job, log), (other, other_log)):
        check(bed, which, its_log)
    configure(bed, "[Operation]\nSpareCopy=no\n")
    bed.operation("suspend", other)
    bed.operation("resume", other)
    expect(not kept(bed, other), "a copy was kept all the same")
    bed.operation("suspend", job)
    bed.operation("resume", job)


@case
def a_copy_goes_with_the_broker_that_looks_after_it(bed):
    """As nobody would know who needs its memory."""
    job, log = bench_job(bed, mib=LARGE_MIB)
    bed.operation("suspend", job)
    bed.operation("resume", job)
    expect(kept(bed, job), "the copy was not kept")
    wait_until(lambda: bed.broker(), "a broker")
    broker = bed.broker()
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: not process_start(broker), "the end of the broker")
    check(bed, job, log)
    bed.operation("suspend", job)
    bed.operation("resume", job)
    check(bed, job, log)


@case
def checkpoints_of_what_changed(bed):
    """The host copy of one checkpoint is what the next is made from, and each is right by itself."""
    job, log = bench_job(bed, "--change", "10")
    for again in range(2):
        summary = bed.operation("checkpoint", job, "--leave-running", "--keep-copy", "--name", f"c{again}")
        expect((summary["unchanged_bytes"] > 0) == bool(again), f"{summary}")
        check(bed, job, log)
        change(bed, job, log)
    bed.ok("kill", "--grace", "5s", job)
    for again in range(2):
        job = bed.operation("restore", f"c{again}")["job"]
        check(bed, job, bed.log(job))
        bed.ok("kill", "--grace", "5s", job)


@case
def zeros_are_left_out(bed):
    job, log = bench_job(bed, "--zero", "50")
    for _ in range(2):
        summary = bed.operation("suspend", job)
        expect(summary["zero_bytes"] >= 28 * MIB, f"{summary}")
        bed.operation("resume", job)
        check(bed, job, log)


@case
def the_kept_copy_outlives_the_shim(bed):
    job, log = bench_job(bed)
    bed.operation("suspend", job)
    bed.operation("resume", job, "--keep-copy")
    shim = bed.shim(job)
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not process_start(shim), "the end of the shim")
    summary = bed.operation("suspend", job)
    expect(summary["unchanged_bytes"] > 0, f"{summary}")
    bed.operation("resume", job)
    check(bed, job, log)


@case
def several_processes_and_gpus(bed):
    """All of their memory changes all the time."""
    for kind in ("fork-before", "two-gpus"):
        job, log = bed.kind(kind, "--mib", "16")
        for _ in range(3):
            bed.operation("suspend", job, "--force")
            bed.operation("resume", job, "--keep-copy")
            log.goes_on()
        bed.end(job)


@case
def failures_leave_no_false_base(bed):
    job, log = bench_job(bed, "--change", "30")
    bed.operation("suspend", job)
    bed.operation("resume", job, "--keep-copy")
    for point, action in (("data.copy", "error:5"), ("data.copy", "kill"), ("data.digests", "error:5")):
        change(bed, job, log)
        bed.fault(point, action)
        bed.operation("suspend", job)
        expect(bed.has_fired(), f"{point} was not passed")
        bed.operation("resume", job, "--keep-copy")
        check(bed, job, log)


def segments(pid):
    """The host copy that a process holds, each segment mapped: pages of hugetlbfs take no write(2)."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if "brumate-segment" in read_link(path):
            fd = os.open(path, os.O_RDWR)
            found.append(mmap.mmap(fd, os.fstat(fd).st_size))
            os.close(fd)
    return found


@case
def damage_is_found_before_the_job_sees_it(bed):
    job, log = bench_job(bed, mib=16)
    bed.operation("suspend", job)
    held = segments(bed.shim(job))
    expect(held, "the shim holds no host copy")
    held[0][5 * MIB + 77] ^= 4
    bed.refused(9, "piece .* are not those that were saved", "resume", job)
    bed.expect_state(job, "suspended")
    expect(bed.vram() == [0, 0], f"in use {bed.vram()}")
    held[0][5 * MIB + 77] ^= 4
    for segment in held:
        segment.close()
    bed.ok("resume", job)
    check(bed, job, log)
    # Without digests nothing is compared, and nothing is spared.
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nDigests=no\n")
    broker = bed.broker()
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: not process_start(broker), "the end of the broker")
    bed.operation("suspend", job)
    summary = bed.operation("resume", job, "--keep-copy")
    expect(any("is not kept" in note for note in summary["notes"]), f"{summary}")
    summary = bed.operation("suspend", job)
    expect(not summary["zero_bytes"] and not summary["unchanged_bytes"], f"{summary}")
    bed.operation("resume", job)
    check(bed, job, log)


def copies_live(summary):
    return "live" in [phase["name"] for phase in summary["phases"]]


@case
@with_env(BRUMATE_SIM_VRAM_MIB=SMALL_GPU_MIB)
def live_copies_are_right(bed):
    """Memory that stays, that changes, that changes all the time and back again, on a GPU without room for a snapshot."""
    for options, still in (((), True), (("--change", "20"), True), (("--flip",), False)):
        job, log = bench_job(bed, *options, mib=32)
        for again in range(3):
            summary = bed.operation("checkpoint", job, "--leave-running", "--name", f"{job}-{again}")
            expect(copies_live(summary) and not summary["notes"], f"{summary}")
            expect(not still or copied(summary) <= 4 * MIB, f"{options}: copied {copied(summary)}: {summary}")
            expect(bed.job(job)["kept_bytes"] == 0, "a live copy was kept")
            check(bed, job, log)
            change(bed, job, log)
        bed.ok("kill", "--grace", "5s", job)
        for again in range(3):
            restored = bed.operation("restore", f"{job}-{again}")["job"]
            check(bed, restored, bed.log(restored))
            bed.ok("kill", "--grace", "5s", restored)


@case
def where_there_is_room_nothing_is_copied_live(bed):
    job, log = bench_job(bed, mib=32)
    expect(not copies_live(bed.operation("checkpoint", job, "--leave-running")), "copied live, though there is room")
    expect(not copies_live(bed.operation("checkpoint", job)), "copied live for a job that ends")
    bed.refused(2, "unknown option --live", "suspend", job, "--live")


@case
@with_env(BRUMATE_SIM_VRAM_MIB=SMALL_GPU_MIB)
def live_copies_that_fail_cost_nothing(bed):
    job, log = bench_job(bed, "--flip", mib=32)
    for point, action in (("live.copy", "error:5"), ("data.live", "error:5"), ("data.live", "kill"),
                          ("agent.export", "error:32")):
        bed.fault(point, action)
        bed.operation("checkpoint", job, "--leave-running")
        expect(bed.has_fired(), f"{point} was not passed")
        check(bed, job, log)
    # A checkpoint that fails after its live copy keeps nothing.
    bed.fault("checkpoint.park.end", "error:5")
    expect(bed.cli("checkpoint", "--leave-running", job).code, "the fault did not count")
    expect(bed.job(job)["kept_bytes"] == 0, "a live copy is left")
    wait_until(lambda: not keeper_is_there(bed), "the end of the keeper")
    check(bed, job, log)


main()
