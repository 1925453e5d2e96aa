#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lists of many jobs and checkpoints: what lives comes first, what ended long ago is folded, and who looks says what of it
is shown."""

import json
import os
import re
import resource
import shutil
import time

from cases import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, MIB, at_terminal, case, expect, main
from checkpoints import saved

HOUR_S = 3600


def record(bed, job):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")


def ended(bed, name, hours=0, code=0):
    """A job that has ended, so many hours ago."""
    job = bed.run(["sh", "-c", f"exit {code}"], name=name)
    bed.cli("wait", job)
    then = time.time() - hours * HOUR_S
    os.utime(record(bed, job), (then, then))
    return job


def multiplied(bed, job, count):
    """Records like that of an ended job, and as old."""
    with open(record(bed, job), encoding="utf-8") as file:
        one = json.load(file)
    when = os.stat(record(bed, job)).st_mtime
    for i in range(count):
        folder = os.path.join(os.path.dirname(os.path.dirname(record(bed, job))), f"{i:08x}")
        os.mkdir(folder, 0o700)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump(one | {"id": f"{i:08x}", "name": f"old-{i}"}, file)
        os.utime(os.path.join(folder, "job.json"), (when, when))


def shown(bed, *options):
    return bed.ok("ps", "-q", *options).out.split()


@case
def what_lives_comes_first(bed):
    old, new = ended(bed, "old", hours=2), ended(bed, "new")
    live, _ = bed.counter(name="live", mib=16)
    expect(shown(bed) == [live, new], f"{shown(bed)}")
    expect(shown(bed, "-a") == [live, old, new], f"{shown(bed, '-a')}")
    expect([job["id"] for job in bed.ok("ps", "--format", "json").json()["jobs"]] == [live, new], "JSON")
    listed = bed.ok("ps", "--all", "--format", "json").json()["jobs"]
    age_s = time.time() - time.mktime(time.strptime(listed[1]["ended"][:19], "%Y-%m-%dT%H:%M:%S")) + time.timezone
    expect(listed[0]["ended"] is None and abs(age_s - 2 * HOUR_S) < 120, f"{listed}")
    expect(shown(bed, "--filter", "state=exited") == [old, new], "a filter is a question of its own")
    code, text = at_terminal(bed, None, "ps")
    expect(code == 0 and "1 job that ended more than an hour ago: `brumate ps -a`" in text, text)
    code, text = at_terminal(bed, None, "ps", "-a")
    expect(code == 0 and "more than an hour" not in text, text)


@case
def columns_of_choice(bed):
    job, _ = bed.counter(name="train", mib=16)
    expect(bed.ok("ps", "--columns", "name,state").out.split() == ["NAME", "STATE", "train", "running"], bed.ok("ps", "--columns", "name,state").out)
    expect(bed.ok("ps", "--no-headers", "--columns", "GPU-MEM,id").out.split()[-1] == job, "in their order")
    refused = bed.refused(EXIT_USAGE, 'ps: --columns: "colour" is no column', "ps", "--columns", "name,colour")
    expect("columns are id, name, state, pid, procs, gpu, gpu-mem, host-mem" in refused.err, refused.why())
    bed.refused(EXIT_USAGE, 'ps: --columns: "" is no column', "ps", "--columns", "name,,id")
    for columns in (40, 80):
        _, text = at_terminal(bed, None, "ps", "--columns", "name,state,gpu,host-mem", columns=columns)
        expect("HOST-MEM" in text, f"{columns}: what is asked for is dropped: {text!r}")


@case
def orders(bed):
    small, _ = bed.counter(name="b-small", mib=16)
    large, _ = bed.counter(name="a-large", mib=64)
    expect(shown(bed) == [small, large], "by age")
    bed.gpus()  # from here on there is a broker, which knows
    expect(shown(bed, "--sort", "name") == [large, small], "by name")
    expect(shown(bed, "--sort", "gpu-mem") == [large, small], "by memory")
    expect(shown(bed, "--sort", "host-mem") in ([large, small], [small, large]), "by host memory")
    bed.refused(EXIT_USAGE, '--sort: "size": expected age, name, state, gpu-mem or host-mem', "ps", "--sort", "size")


@case
def host_memory_of_a_suspended_job(bed):
    """Its copy takes it, not its processes."""
    job, _ = bed.counter(name="train", mib=64)
    before = bed.job(job)
    expect(before["copy_bytes"] == 0, f"{before}")
    summary = bed.operation("suspend", job)
    after = bed.job(job)
    expect(after["copy_bytes"] == summary["data_bytes"] - summary["zero_bytes"] - summary["disk_bytes"] >= 60 * MIB, f"{after} {summary}")
    expect(after["host_bytes"] >= after["copy_bytes"] + MIB, f"{after}")
    found = re.search(rf'brumate_job_host_copy_bytes{{job="{job}"[^}}]*}} (\d+)', bed.ok("metrics").out)
    expect(found and int(found[1]) == after["copy_bytes"], "the metrics say something else")
    bed.operation("resume", job)
    expect(bed.job(job)["copy_bytes"] == bed.job(job)["kept_bytes"], "a copy is left")
    bed.ok("suspend", "--park", job)
    expect(bed.job(job)["copy_bytes"] == 0, "a parked job has none")
    bed.ok("resume", job)


@case
def what_has_ended_is_forgotten_at_once(bed):
    gone = [ended(bed, "one"), ended(bed, "two", hours=3, code=3)]
    kept, _ = saved(bed, "first")
    live, _ = bed.counter(name="live", mib=16)
    code, text = at_terminal(bed, "n", "rm", "--ended")
    expect(code == EXIT_FAILED and "forget these 2 jobs, with their logs? [y/N]" in text, f"{code} {text!r}")
    expect(len(shown(bed, "-a")) == 4, "some are gone")
    for line in (("rm", "--ended", "one"), ("rm", "--ended", "--checkpoint"), ("rm", "--ended", "--dir", "/tmp")):
        bed.refused(EXIT_USAGE, "rm: --ended cannot be combined with", *line)
    bed.refused(EXIT_USAGE, "rm: missing operand, expected JOB...[|]CHECKPOINT... or --ended", "rm")
    expect(sorted(bed.ok("rm", "--ended").out.split()) == sorted(gone), "not those that have ended")
    expect(set(shown(bed, "-a")) == {kept, live}, f"{shown(bed, '-a')}")
    done = bed.ok("rm", "--ended")
    expect(not done.out and "no job is exited or lost" in done.err, done.why())
    bed.jobs = [job for job in bed.jobs if job not in gone]


@case
def checkpoints_of_a_job(bed):
    for name, mib in (("b-small", 16), ("a-large", 64)):
        bed.counter(name=name, mib=mib)
        bed.ok("checkpoint", name, "--leave-running", "--name", f"of-{name}")

    def listed(*options):
        return bed.ok("ls", "-q", *options).out.split()

    expect(listed() == ["of-b-small", "of-a-large"], f"{listed()}")
    expect(listed("--job", "a-large") == ["of-a-large"], "by name")
    expect(listed("--job", bed.job("b-small")["id"]) == ["of-b-small"], "by id")
    bed.refused(EXIT_NOT_FOUND, "ls: there is no checkpoint of a job nosuch", "ls", "--job", "nosuch")
    for sort in ("size", "disk", "job"):
        expect(listed("--sort", sort) == ["of-a-large", "of-b-small"], f"by {sort}: {listed('--sort', sort)}")
    _, text = at_terminal(bed, None, "ls")
    expect(re.search(rf"^2 checkpoints, \S+ MiB, \S+ [MK]iB on disk, in {bed.store()}", text, re.M), text)
    expect("checkpoints," not in bed.ok("ls").out, "totals in a pipe")
    expect(bed.ok("ls", "--format", "json").json()["dir"] == bed.store(), "the store in JSON")


@case
def a_thousand_jobs(bed):
    """The list is there before anybody waits; what counts is the processor's time, as others use it, too."""
    multiplied(bed, ended(bed, "old", hours=5), 960)
    live = [bed.counter(name=f"live-{i}", mib=8)[0] for i in range(3)]
    expect(shown(bed) == live, "not those that live")
    took = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        bed.ok("ps")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    expect(min(took) < 0.1, f"ps takes {min(took):.3f} s")
    print(f"    ps of 960 ended jobs and 3 that live: {1000 * min(took):.0f} ms of a processor")
    shutil.rmtree(os.path.dirname(record(bed, "00000000")))


main()
