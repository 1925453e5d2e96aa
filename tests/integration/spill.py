#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs whose device memory does not fit into host memory: it goes to a disk and comes back, through
every operation and every failure, and what fits nowhere is refused before the job is touched."""

import os
import signal
import tempfile

from bench_jobs import change
from cases import MIB, Skipped, case, expect, main, read_link, wait_until


def spill_dir(bed):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "spill")


def configure(bed, memory, directory=None):
    """Before the first broker of this bed."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Broker]\nPool=64M\nMemory={memory}\n")
        if directory:
            file.write(f"SpillDirectory={directory}\n")
    found = [f for f in bed.doctor()["findings"] if f["key"] == "spill"]
    expect(len(found) == 1, f"doctor says {found}")
    if not directory and found[0]["level"] != "ok":
        raise Skipped("the test's directory is in memory")
    return found[0]


def open_files(pid):
    """What its descriptors are of. One that is closed meanwhile is no more, the others are."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    return [link for link in (read_link(f"/proc/{pid}/fd/{name}") for name in names) if link]


def holders(bed):
    """Open files of the spill directory, by pid."""
    found = {}
    for pid, _ in bed.processes():
        count = sum(link.startswith(spill_dir(bed) + "/") for link in open_files(pid))
        if count:
            found[pid] = count
    return found


def expect_nothing_left(bed):
    wait_until(lambda: not holders(bed), "the end of what was on the disk")
    expect(os.listdir(spill_dir(bed)) == [], "files are left on the disk")


def end_broker(bed):
    """The next one reads the configuration anew."""
    bed.ask_broker("Quit")
    wait_until(lambda: not bed.broker(), "the end of the broker")


@case
def every_operation(bed):
    """All on the disk, then a part of it."""
    for memory, least in (("1M", 64 * MIB), ("32M", 16 * MIB)):
        found = configure(bed, memory)
        expect(spill_dir(bed) in found["text"] and "encrypted" in found["text"], f"doctor says {found}")
        job, log = bed.counter(mib=64)
        for verb in ("suspend", "resume", "checkpoint", "restore"):
            summary = bed.operation(verb, job)
            expect(summary["data_bytes"] >= 64 * MIB, f"{verb}: {summary}")
            if verb == "restore":  # it needs no copy in host memory
                least_here, most = 0, 0
            else:
                least_here, most = least, 1 << 40
            expect(least_here <= summary["disk_bytes"] <= most, f"{verb}: {summary}")
            expect(memory == "1M" or summary["disk_bytes"] < summary["data_bytes"], f"{verb}: {summary}")
            if verb == "suspend":
                expect(len(holders(bed)) >= 2, f"held by {holders(bed)}")
            if verb in ("resume", "restore"):
                log.goes_on()
                expect_nothing_left(bed)
        told = bed.ok("suspend", "--stats", job)
        expect("spilled to disk" in told.err, f"suspend says {told.err!r}")
        bed.end(job)
        expect_nothing_left(bed)
        end_broker(bed)


@case
def checkpoints_of_it(bed):
    """Suspended to the disk, or going on: what the store reads is on the disk."""
    configure(bed, "1M")
    job, log = bed.counter(mib=32)
    bed.ok("checkpoint", job, "--leave-running", "--name", "of-running")
    log.goes_on()
    expect_nothing_left(bed)
    bed.ok("suspend", job)
    bed.ok("checkpoint", job, "--name", "of-suspended")
    expect_nothing_left(bed)
    for name in ("of-running", "of-suspended"):
        bed.ok("verify", name)
    bed.end(bed.expect_restorable("of-suspended", log))
    expect_nothing_left(bed)


@case
def whoever_dies(bed):
    configure(bed, "1M")
    job, log = bed.counter(mib=32)
    for verb, points in (("suspend", ("data.spill-open", "data.spill-write")), ("resume", ("data.spill-read",))):
        for point in points:
            if verb == "resume":
                bed.ok("suspend", job)
            bed.fault(point, "kill")
            bed.operation(verb, job)
            expect(bed.has_fired(), f"{verb}: {point} was not passed")
            if verb == "suspend":
                bed.ok("resume", job)
            log.goes_on()
            expect_nothing_left(bed)
    bed.ok("suspend", job)
    bed.kill_shim(job)
    bed.ok("resume", job)
    log.goes_on()
    expect_nothing_left(bed)


@case
def what_cannot_be_read_stays(bed):
    configure(bed, "1M")
    job, log = bed.counter(mib=32)
    bed.ok("suspend", job)
    bed.fault("data.spill-read", "error:5")
    bed.refused(1, "data-in", "resume", job)
    bed.expect_state(job, "suspended")
    bed.ok("resume", job)
    log.goes_on()


def reserving(bed, *options):
    """A job whose memory is zero but for a few MiB: its id and its log."""
    argv = [bed.program("bench-job"), "--mib", 4, "--piece-kib", 2048, "--zero-mib", 160, *options]
    job = bed.run(argv)
    log = bed.log(job)
    log.wait_for("^ready ")
    return job, log


def expect_right(bed, job, log):
    seen = log.text().count("check ")
    os.kill(bed.job(job)["pid"], signal.SIGUSR1)
    log.wait_until(lambda text: text.count("check ") > seen, "the check of the data", 30)
    expect("check BAD" not in log.text(), "the data is wrong")


@case
def what_is_reserved_does_not_count(bed):
    """Zeros take neither memory nor disk, in no operation."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        configure(bed, "32M", directory)
        job, log = reserving(bed)
        for verb, options in (("suspend", ()), ("resume", ()), ("checkpoint", ("--leave-running",)),
                              ("suspend", ("--park",)), ("resume", ()),
                              ("suspend", ()), ("checkpoint", ()), ("restore", ())):
            summary = bed.operation(verb, job, *options)
            expect(summary["disk_bytes"] == 0, f"{verb}: {summary}")
            if bed.state(job) == "running":
                expect_right(bed, job, log)
        os.kill(bed.job(job)["pid"], signal.SIGKILL)
        bed.wait_state(job, ("exited", "failed"))


@case
def a_kept_copy_that_outgrows_memory(bed):
    """What was zero is used by now: another copy is made, on the disk in part, or the job goes on."""
    configure(bed, "32M")
    job, log = reserving(bed, "--change", 100)
    for room in (True, False):
        bed.operation("suspend", job)
        bed.operation("resume", job, "--keep-copy")
        expect(bed.job(job)["kept_bytes"], "the copy was not kept")
        change(bed, job, log)
        if not room:
            bed.fault("data.spill-open", "error:28")
            result = bed.cli("suspend", job)
            expect(result.code and "No space left" in result.err, result.why())
            bed.expect_state(job, "running")
        else:
            summary = bed.operation("suspend", job)
            expect(summary["disk_bytes"] > 64 * MIB, f"not on the disk: {summary}")
            bed.operation("resume", job)
        expect_right(bed, job, log)
        expect(not bed.job(job)["kept_bytes"], "what is not right any more is kept")
        os.kill(bed.job(job)["pid"], signal.SIGKILL)
        bed.wait_state(job, ("exited", "failed"))
        job, log = reserving(bed, "--change", 100)


@case
def a_store_with_room_for_the_data(bed):
    """Of a job that runs, and of one that is suspended or parked, whose memory nobody has to count twice."""
    job, log = reserving(bed)
    directory = bed.tmpfs("64m")
    bed.operation("checkpoint", job, "--leave-running", "--dir", directory, "--name", "running")
    bed.ok("rm", "--dir", directory, "running")
    for options in ((), ("--park",)):
        bed.ok("suspend", job, *options)
        bed.operation("checkpoint", job, "--leave-running", "--dir", directory, "--name", "suspended")
        bed.ok("rm", "--dir", directory, "suspended")
        bed.ok("resume", job)
        expect_right(bed, job, log)
    # Most of it is there already, and some of it is the same.
    full = bed.run([bed.program("bench-job"), "--mib", 32, "--piece-kib", 2048, "--same-mib", 64])
    bed.log(full).wait_for("^ready ")
    directory = bed.tmpfs("96m")
    for name in ("first", "second"):
        bed.operation("checkpoint", full, "--leave-running", "--dir", directory, "--name", name)
    bed.ok("suspend", full)
    bed.operation("checkpoint", full, "--leave-running", "--dir", directory, "--name", "third")
    bed.ok("kill", "--grace", "5s", full)
    directory = bed.tmpfs("4m")
    for state in ("running", "suspended"):
        bed.refused(1, "checkpoint needs about", "checkpoint", job, "--dir", directory)
        bed.expect_state(job, state)
        if state == "running":
            bed.ok("suspend", job)
    bed.ok("resume", job)
    expect_right(bed, job, log)


@case
def no_room_anywhere(bed):
    """Found before the job is touched; and where the room is gone only then, the job goes on."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        found = configure(bed, "1M", directory)
        expect(found["level"] == "note" and "SpillDirectory=" in found["hint"], f"doctor says {found}")
        job, log = bed.counter(mib=32)
        for verb in ("suspend", "checkpoint"):
            bed.refused(1, f"do not fit.*{directory}", verb, job)
            bed.expect_whole(job, log)
        expect(not bed.checkpoints() and not bed.partials(), "left in the store")
    end_broker(bed)
    configure(bed, "1M")
    bed.fault("data.spill-open", "error:28")
    result = bed.cli("suspend", job)
    expect(result.code and "No space left" in result.err, result.why())
    bed.expect_whole(job, log)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    log.goes_on()


main()
