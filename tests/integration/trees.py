#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of many processes: some have lost their parents, some end in the middle of an operation, some begin."""

import re

from cases import EXIT_UNSUPPORTED, case, expect, main, pids, read_text, wait_until


def counter(bed, *options):
    return " ".join(map(str, (bed.program("counter"), "--mib", 8, "--chunk-mib", 8, "--interval-ms", 10, *options)))


def steps(log):
    """The last step of each process; none is wrong."""
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    return {pid: int(step) for pid, step in re.findall(r"^pid (\d+) gpu \S+ step (\d+) OK$", text, re.M)}


def of_job(bed):
    """Processes of the bed's jobs, by their directory of agents."""
    mark = f"BRUMATE_AGENT_DIR={bed.own['BRUMATE_RUNTIME_DIR']}/"
    return [pid for pid in pids() if mark in read_text(f"/proc/{pid}/environ")]


def stand_still(bed, log, job, *options):
    bed.operation("suspend", job, *options)
    before = steps(log)
    expect(bed.job(job)["state"] == "suspended", "not suspended")
    bed.operation("resume", job)
    return before


def go_on(log, before):
    wait_until(lambda: all(steps(log).get(pid, 0) > step for pid, step in before.items()), "all go on", 60)


@case
def an_orphan_is_a_member(bed):
    job, log = bed.started(["sh", "-c", f"({counter(bed)} &); exec {counter(bed)}"])
    wait_until(lambda: len(steps(log)) == 2, "both work")
    expect(bed.job(job)["processes"] == 2, f"{bed.job(job)}")
    expect(bed.job(job)["gpu_processes"] == 2, f"{bed.job(job)}")
    for _ in range(3):
        before = stand_still(bed, log, job)
        expect(len(before) == 2, f"{before}")
        go_on(log, before)
    refused = bed.fails(EXIT_UNSUPPORTED, "checkpoint", job)
    expect("its parent has ended" in refused.err, refused.err)
    expect(any("its parent has ended" in f["text"] for f in bed.doctor("--job", job)["findings"]), "doctor is silent")
    go_on(log, steps(log))
    bed.ok("kill", job)
    wait_until(lambda: not of_job(bed), "nothing is left", 10)


@case
def a_daemon_is_the_job_when_its_command_has_ended(bed):
    job, log = bed.started(["sh", "-c", f"setsid {counter(bed)} & exit 3"])
    log.wait_for("step 3 OK")
    entry = bed.job(job)
    expect(entry["state"] == "running" and entry["processes"] == 1, f"{entry}")
    go_on(log, stand_still(bed, log, job))
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    expect(not of_job(bed), "a process is left behind")
    bed.operation("restore", checkpoint)
    go_on(log, steps(log))
    bed.ok("kill", job)
    wait_until(lambda: not of_job(bed), "nothing is left", 10)


@case
def the_command_s_exit_status_is_the_job_s(bed):
    job = bed.run(["sh", "-c", f"{counter(bed, '--steps', 30)} & exit 3"])
    ended = bed.cli("wait", job)
    log = bed.log(job)
    expect(ended.code == 3, ended.why())
    expect(max(steps(log).values()) == 30, f"wait did not wait: {log.tail()}")
    expect(bed.job(job)["exit_code"] == 3, f"{bed.job(job)}")


@case
def kill_leaves_nobody_behind(bed):
    one = "sleep 1000 & (sleep 1000 &) ; (setsid sh -c 'sleep 1000 & (sleep 1000 &) ; wait' &) ; "
    job, _ = bed.started(["sh", "-c", f"{one} {one} exec {counter(bed)}"])
    wait_until(lambda: bed.job(job)["processes"] == 11, f"all are there: {bed.job(job)['processes']}")
    bed.ok("kill", job, "--signal", "KILL")
    expect(not of_job(bed), f"left: {[read_text(f'/proc/{pid}/cmdline') for pid in of_job(bed)]}")
    bed.ok("rm", job)


@case
def a_pool_whose_workers_come_and_go(bed):
    """Each worker lives for a moment; whichever ends in the middle is a member less."""
    worker = f"while :; do {counter(bed, '--steps', 25)} || exit 1; done"
    job, log = bed.started(["sh", "-c", f"{counter(bed)} & ({worker}) & ({worker}) & ({worker}) & wait"])
    wait_until(lambda: len(steps(log)) >= 4, "the pool works")
    lasting = re.findall(r"^pid (\d+) ", log.text(), re.M)
    for _ in range(10):
        stand_still(bed, log, job)
        n = len(steps(log))
        wait_until(lambda: len(steps(log)) >= n + 2, "workers come and go", 60)
    expect(lasting, "nobody")
    bed.end(job)


main()
