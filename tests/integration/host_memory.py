#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Large host memory, saved beside CRIU's images and filled again. The job looks at every byte of its memory
in each step; nothing brumate says of itself counts."""

import json
import os
import shutil
import signal

from cases import MIB, case, expect, main, process_start, wait_until
from checkpoints import back_and_forth, flip, image


def started(bed, *words, mib=12):
    return bed.started([bed.program("memory"), *words, "--mib", mib])


def pages_bytes(bed, name):
    """What CRIU wrote of the job's memory."""
    folder = os.path.join(image(bed, name), "criu")
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.startswith("pages-"))


def host_bytes(bed, name):
    with open(os.path.join(image(bed, name), "manifest.json"), encoding="utf-8") as file:
        memory = json.load(file)["memory"]
    return sum(r["len_bytes"] for r in memory["regions"] if r["kind"] == "host")


def chunk_file(bed, name):
    folder = os.path.join(image(bed, name), "memory")
    packs = [os.path.join(folder, f) for f in os.listdir(folder) if f != "chunks"]
    return max(packs, key=os.path.getsize)


def tracer_of(pid):
    """The process that traces the job: CRIU, while it holds it. 0: none."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return [int(line.split()[1]) for line in file if line.startswith("TracerPid")][0]


def settled(bed, job):
    """The state once nothing is under way: the next command puts right what a dead shim left."""
    bed.cli("kill", "--signal", "URG", job)
    return bed.wait_state(job, ("running", "checkpointed", "exited", "lost"))


@case
def saved_many_times_and_restored(bed):
    for words in (["alone"], ["threads"], []):
        job, log = started(bed, *words)
        for name in ("one", "two"):
            summary = bed.operation("checkpoint", job, "--leave-running", "--name", name)
            expect("host-memory" in [p["name"] for p in summary["phases"]], f"phases {summary['phases']}")
            bed.expect_whole(job, log)
        bed.operation("checkpoint", job, "--name", "last")
        expect(host_bytes(bed, "last") >= 60 * MIB, f"{host_bytes(bed, 'last')} bytes are beside CRIU's")
        limit = 40 * MIB if words else 80 * MIB  # what a child shares stays with CRIU
        expect(pages_bytes(bed, "last") < limit, f"CRIU wrote {pages_bytes(bed, 'last')} bytes")
        summary = bed.operation("restore", "last")
        expect("host-memory" in [p["name"] for p in summary["phases"]], f"phases {summary['phases']}")
        bed.expect_whole(job, log)
        bed.operation("checkpoint", job, "--name", "again")
        for name in ("one", "two", "last"):
            bed.ok("rm", name)
        bed.operation("restore", "again")
        bed.ok("rm", "again")  # nothing the job needs is in it
        bed.expect_whole(job, log)
        bed.end(job)


@case
def what_the_driver_saved_is_there_too(bed):
    """Device memory that the driver put into the process, of a suspended job and of a running one."""
    argv = [bed.program("counter"), "--mib", 64, "--chunk-mib", 16, "--interval-ms", 25]
    job, log = bed.started(argv, options=("--data-path", "driver"))
    log.goes_on()
    bed.ok("suspend", job)
    bed.ok("checkpoint", job, "--leave-running", "--name", "kept")
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    bed.ok("checkpoint", job, "--name", "last")
    for name in ("kept", "last"):
        expect(host_bytes(bed, name) >= 60 * MIB, f"{host_bytes(bed, name)} bytes of {name} are beside CRIU's")
    bed.operation("restore", "last")
    bed.expect_whole(job, log)


@case
def shared_memory_stays_shared(bed):
    """A memfd of two processes, anonymous shared memory and a private view of the memfd."""
    back_and_forth(bed, *bed.started([bed.program("shared"), "--mib", 64]))


@case
def in_a_namespace_of_its_own(bed):
    """There the job's pids are others than ours: each process gets its own memory all the same."""
    job, log = started(bed)
    pid = bed.pid(job)
    bed.operation("checkpoint", job, "--name", "first")
    wait_until(lambda: process_start(pid) is None, "the end of the job")
    bed.take_pid(pid)
    bed.operation("restore", "first")
    bed.expect_whole(job, log)
    expect(bed.job(job)["pid_namespace"], "it is in no namespace")
    bed.operation("checkpoint", job, "--leave-running", "--name", "second")
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job, "--name", "third")
    expect(host_bytes(bed, "third") >= 60 * MIB, f"{host_bytes(bed, 'third')} bytes are beside CRIU's")
    bed.operation("restore", "third")
    bed.expect_whole(job, log)


@case
def damage_is_found_before_the_job_runs(bed):
    job, log = started(bed, "alone")
    bed.operation("checkpoint", job, "--name", "first")
    copy = image(bed, "first") + ".kept"
    shutil.copytree(image(bed, "first"), copy)
    path = chunk_file(bed, "first")
    flip(path, os.path.getsize(path) // 2)
    bed.refused(9, os.path.basename(path), "restore", "first")
    bed.expect_state(job, "checkpointed")
    shutil.rmtree(image(bed, "first"))
    os.rename(copy, image(bed, "first"))
    bed.operation("restore", "first")
    bed.expect_whole(job, log)


@case
def faults_leave_the_job_as_it_was(bed):
    job, log = started(bed)
    for options in (["--leave-running"], []):
        # A CRIU that dies once its images are whole does not keep a job that ends from being saved.
        for action in ("error:28", "kill:criu", "kill") if options else ("error:28", "kill"):
            with open(bed.fault_file, "w", encoding="utf-8") as file:
                file.write(f"checkpoint.host-memory {action}\n")
            result = bed.cli("checkpoint", job, "--name", "failed", *options)
            expect(result.code != 0, result.why())
            expect(not os.path.exists(bed.fault_file), f"{action}: the point was not passed")
            expect(settled(bed, job) == "running", f"{action}: {bed.state(job)}")
            bed.expect_whole(job, log)
            expect("failed" not in bed.checkpoints(), "a failed checkpoint is listed")
    bed.operation("checkpoint", job, "--name", "good")
    for action in ("error:5", "kill:criu", "kill"):
        with open(bed.fault_file, "w", encoding="utf-8") as file:
            file.write(f"restore.host-memory {action}\n")
        result = bed.cli("restore", "good")
        expect(result.code != 0, result.why())
        expect(settled(bed, job) == "checkpointed", f"{action}: {bed.state(job)}")
    bed.operation("restore", "good")
    bed.expect_whole(job, log)


@case
def killed_at_any_moment(bed):
    """CRIU and the shim, while memory is copied."""
    job, log = started(bed, mib=64)
    for victim in ("criu", "brumate-shim"):
        pid, start = bed.pid(job), process_start(bed.pid(job))
        command = bed.spawn("checkpoint", job, "--leave-running", "--name", "cut")
        tracer = wait_until(lambda: tracer_of(pid), "CRIU")
        os.kill(tracer if victim == "criu" else bed.shim(job), signal.SIGKILL)
        command.end()
        expect(process_start(pid) == start, "the job is gone")
        expect(settled(bed, job) == "running", f"{victim}: {bed.state(job)}")
        bed.expect_whole(job, log)


def expect_managed_goes_everywhere(bed, job, log):
    bed.operation("suspend", job)
    bed.operation("resume", job)
    log.goes_on()
    bed.operation("checkpoint", job, "--leave-running", "--keep-copy")
    log.goes_on()
    for gpu_map in ((), ("--gpu-map", "0=1")):
        saved = bed.operation("checkpoint", job)
        bed.operation("restore", saved["checkpoint"], *gpu_map)
        log.goes_on()


@case
def managed_memory_on_the_host(bed):
    """It is saved with the rest, and comes back for any GPU."""
    job, log = bed.kind("managed", mib=32, run_options=("--managed", "host"))
    expect_managed_goes_everywhere(bed, job, log)
    findings = bed.doctor("--job", job)["findings"]
    expect(not any(f["key"] == "managed-memory" for f in findings), f"doctor: {findings}")
    bed.end(job)


@case
def managed_memory_of_the_driver_is_told(bed):
    """With the way that does save it; the option is for a library, and takes two words."""
    job, log = bed.kind("managed", run_options=("--managed", "driver"))
    refused = bed.refused(4, "managed", "suspend", job)
    expect("--managed host" in refused.err, refused.err)
    bed.expect_whole(job, log)
    bed.refused(2, "--managed: .gpu.: expected driver or host", "run", "--managed", "gpu", "--", "true")
    bed.refused(2, "--managed host needs the library", "run", "--managed", "host", "--data-path", "driver", "--", "true")


@case
def doctor_says_how_many_jobs_fit(bed):
    def fact():
        found = bed.cli("doctor", "--format", "json").json()
        return found["facts"]["jobs_on_gpus"], found["facts"]["jobs_that_fit"], [f for f in found["findings"] if f["key"] == "suspend-all"]
    expect(fact() == (0, 0, []), f"{fact()}")
    jobs = [bed.counter(mib=mib)[0] for mib in (16, 32)]
    n, fit, findings = fact()
    expect((n, fit) == (2, 2) and findings[0]["level"] == "ok" and "all 2 jobs" in findings[0]["text"], f"{n} {fit} {findings}")
    bed.ok("suspend", jobs[0])
    expect(fact()[:2] == (1, 1), "one that is suspended counts")


@case
def doctor_says_what_copies_take(bed):
    def told():
        found = bed.doctor()
        return found["facts"], next(f["text"] for f in found["findings"] if f["key"] == "host-memory")

    job, _ = bed.counter(mib=16)
    facts, text = told()
    expect(facts["copies_bytes"] == 0 and text.startswith("host memory: 0 B in copies of 0 jobs, "), f"{facts} {text}")
    bed.ok("suspend", job)
    facts, text = told()
    expect(facts["copies_bytes"] >= 16 << 20 and facts["copies_jobs"] == 1 and "MiB in copies of 1 job, " in text, f"{facts} {text}")
    expect(facts["copies_bytes"] == bed.job(job)["copy_bytes"], f"{facts} {bed.job(job)}")
    bed.ok("resume", job)
    expect(told()[0]["copies_jobs"] == 0, "a job that runs counts")


main()
