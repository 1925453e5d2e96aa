#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate share`: jobs that take turns on the GPUs that they share, each as a whole; servers come before them."""

import json
import os
import signal
import subprocess

from cases import as_user, case, expect, main, wait_until
from harness import SOURCE
from servers import Server

SLICE = ("share", "--slice", "1s")
MIB = 80  # of 128: one at a time


def decided(bed):
    lines = [json.loads(line) for line in bed.cli("events", "--format", "json").out.splitlines()]
    return [e for e in lines if e["event"] == "decided" and e["by"] == "share"]


def comers(bed):
    return [e["job"] for e in decided(bed) if e["what"] == "resume"]


def start(bed, *names, gpu=0):
    """Each is suspended when the next one starts; the last one runs."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "128"
    jobs = []
    for name in names:
        if jobs:
            bed.operation("suspend", jobs[-1][0])
        jobs.append(bed.counter(name, mib=MIB, gpu=gpu))
    return jobs


def come_in_turn(bed, jobs, times):
    wait_until(lambda: all(comers(bed).count(job) >= times for job, _ in jobs), f"each to come {times} times", 90)


def states(bed, jobs):
    return [bed.state(job) for job, _ in jobs]


def all_go_on(bed, jobs, share):
    """Stopped for good it leaves one there. All are whole, and end."""
    share.signal(signal.SIGTERM)
    code, out, err = share.end()
    expect(code == 0 and not out, f"{code} {out!r} {err!r}")
    wait_until(lambda: sorted(states(bed, jobs)) == ["running"] + (len(jobs) - 1) * ["suspended"], "one to be there")
    there = states(bed, jobs).index("running")
    jobs = jobs[there:] + jobs[:there]
    for job, log in jobs:
        if bed.state(job) == "suspended":
            bed.operation("resume", job)
        bed.expect_whole(job, log)
        bed.end(job)


def stay_in_turn(bed, jobs):
    """Of three, nobody comes again before both others have."""
    order = comers(bed)
    expect(all(len(set(order[i:i + len(jobs)])) == len(jobs) for i in range(len(order) - len(jobs) + 1)), order)


@case
def in_turn(bed):
    jobs = start(bed, "a", "b", "c")
    share = bed.spawn(*SLICE, *(job for job, _ in jobs))
    come_in_turn(bed, jobs, 2)
    stay_in_turn(bed, jobs)
    found = decided(bed)
    expect(all("has had its slice of 1.0 s" in e["reason"] for e in found), found)
    all_go_on(bed, jobs, share)


@case
def one_that_does_not_answer(bed):
    """Its shim stands still: those on another GPU take their turns, and once it answers so do all."""
    jobs = start(bed, "a", "b")
    bed.operation("suspend", jobs[1][0])
    others = start(bed, "c", "d", gpu=1)
    bed.operation("resume", jobs[1][0])
    share = bed.spawn(*SLICE, *(job for job, _ in jobs + others))
    come_in_turn(bed, jobs + others, 1)
    shim = bed.shim(jobs[0][0])
    os.kill(shim, signal.SIGSTOP)
    try:
        came = len(comers(bed))
        wait_until(lambda: all(comers(bed)[came:].count(job) >= 1 for job, _ in others), "the others to come", 120)
    finally:
        os.kill(shim, signal.SIGCONT)
    came = len(comers(bed))
    wait_until(lambda: all(comers(bed)[came:].count(job) >= 1 for job, _ in jobs), "these to come", 120)
    share.signal(signal.SIGTERM)
    expect(share.end()[0] == 0, "it was not stopped")
    for pair in (jobs, others):
        for job, log in sorted(pair, key=lambda it: bed.state(it[0])):
            if bed.state(job) == "suspended":
                bed.operation("resume", job)
            bed.expect_whole(job, log)
            bed.end(job)


@case
@as_user
def of_a_user(bed):
    jobs = start(bed, "a", "b")
    share = bed.spawn(*SLICE, "a", "b")
    come_in_turn(bed, jobs, 2)
    all_go_on(bed, jobs, share)


@case
def a_job_over_two_gpus_moves_as_a_whole(bed):
    """Those that have one of them each run side by side, and are both gone while it is there."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "128"
    one, other = bed.counter("one", mib=MIB), bed.counter("other", mib=MIB, gpu=1)
    for job, _ in (one, other):
        bed.operation("suspend", job)
    both = bed.kind("two-gpus", name="both", mib=MIB)
    jobs = [both, one, other]
    share = bed.spawn(*SLICE, *(job for job, _ in jobs))
    come_in_turn(bed, jobs, 3)
    share.signal(signal.SIGTERM)
    expect(share.end()[0] == 0, "it was not stopped")
    wait_until(lambda: states(bed, jobs) in (["running", "suspended", "suspended"], ["suspended", "running", "running"],
                                             ["suspended", "running", "suspended"], ["suspended", "suspended", "running"]), "a whole turn")
    for job, log in sorted(jobs, key=lambda it: bed.state(it[0])):
        if bed.state(job) == "suspended":
            bed.operation("resume", job)
        bed.expect_whole(job, log)
        bed.end(job)


@case
def those_that_are_there_at_once(bed):
    """The first one stays, and those on another GPU do."""
    jobs = [bed.counter(name, mib=16) for name in ("a", "b")]
    apart = bed.counter("apart", mib=16, gpu=1)
    share = bed.spawn("share", "--slice", "1h", "a", "b", "apart")
    wait_until(lambda: states(bed, jobs) == ["running", "suspended"], "one to leave")
    bed.expect_whole(*apart)
    expect([(e["what"], e["reason"]) for e in decided(bed)] == [("suspend", "it is the turn of a on the same GPU")], decided(bed))
    all_go_on(bed, jobs, share)


@case
def servers_come_first(bed):
    """A job leaves for one that waits for room, and is back when `serve` has seen that nobody asks it."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "128"
    it = Server(bed, "llama", mib=MIB)
    it.ask()
    it.suspend()
    jobs = start(bed, "a", "b")
    share = bed.spawn(*SLICE, "a", "b")
    come_in_turn(bed, jobs, 1)
    it.ask()
    it.settle()
    wait_until(lambda: states(bed, jobs) == ["suspended", "suspended"], "both to have left")
    left = [e for e in decided(bed) if e["reason"] == "server llama waits for room"]
    expect(len(left) == 1 and left[0]["what"] == "suspend", decided(bed))
    before = len(comers(bed))
    serve = bed.spawn("serve", "--idle-after", "2s")
    it.wait_state("suspended")
    wait_until(lambda: len(comers(bed)) >= before + 3, "turns to go on", 60)
    serve.signal(signal.SIGTERM)
    serve.end()
    it.ask()
    it.settle()
    it.suspend()
    wait_until(lambda: "running" in states(bed, jobs), "one to be back", 60)
    all_go_on(bed, jobs, share)


@case
def it_is_killed(bed):
    """At any moment: another one goes on, and no job is lost."""
    jobs = start(bed, "a", "b")
    points = ("group.forward.begin", "group.step.end", "group.commit.begin", "suspend.park.begin", "resume.map.begin")
    for point in points:
        bed.fault(point, "kill" if point.startswith("group") else "hold")
        share = bed.spawn(*SLICE, "a", "b")
        if point.startswith("group"):
            wait_until(bed.has_fired, f"{point} to be reached")
        else:
            with bed.holding(point, share):
                os.kill(share.process.pid, signal.SIGKILL)
        expect(share.end()[0] == -signal.SIGKILL, point)
        before = len(comers(bed))
        other = bed.spawn(*SLICE, "a", "b")
        wait_until(lambda: len(comers(bed)) >= before + 2, "turns to go on", 60)
        if point != points[-1]:
            other.signal(signal.SIGTERM)
            expect(other.end()[0] == 0, "it was not stopped")
    all_go_on(bed, jobs, other)


@case
def one_is_killed_while_it_waits(bed):
    jobs = start(bed, "a", "b", "c")
    share = bed.spawn(*SLICE, "a", "b", "c")
    come_in_turn(bed, jobs, 1)
    job = next(job for job, _ in jobs if bed.state(job) == "suspended")
    bed.end(job)
    jobs = [it for it in jobs if it[0] != job]
    come_in_turn(bed, jobs, 1 + max(comers(bed).count(job) for job, _ in jobs))
    all_go_on(bed, jobs, share)


@case
def what_fails_is_tried_again(bed):
    jobs = start(bed, "a", "b")
    bed.fault("resume.map.begin", "error:5")
    share = bed.spawn(*SLICE, "a", "b")
    wait_until(bed.has_fired, "it to fail")
    come_in_turn(bed, jobs, 3)
    all_go_on(bed, jobs, share)


@case
def it_ends_with_them(bed):
    """And who is meant by a label, and by the configuration."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Serve]\nSlice=1s\n[Serve pinned]\nPin=yes\n")
    jobs = [bed.counter(name, mib=16, options=("--label", "queue=night")) for name in ("pinned", "a")]
    other = bed.counter("other", mib=16)
    share = bed.spawn("share", "--label", "queue=night")
    wait_until(lambda: states(bed, jobs) == ["running", "suspended"], "one to leave")
    bed.end(jobs[0][0])
    wait_until(lambda: bed.state(jobs[1][0]) == "running", "the other one to come")
    bed.expect_whole(*other)
    bed.expect_whole(*jobs[1])
    bed.end(jobs[1][0])
    code, out, err = share.end()
    expect(code == 0 and not out and "no job is on its GPUs" in err, f"{code} {out!r} {err!r}")


def child_of(pid):
    """One of a job's processes that is not the one brumate names."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return int(file.read().split()[0])


@case
def by_an_agent_that_knows_cuda_checkpoint(bed):
    """The example for llm-d: the agent's own commands, as its backend for CUDA runs them."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "128"
    script = [os.path.join(SOURCE, "examples", "cuda-checkpoint")]
    env = {**bed.command_env(), "PATH": os.path.dirname(bed.brumate) + ":" + os.environ["PATH"], "CUDA_CHECKPOINT_WAIT": "20s"}

    def agent(*args):
        done = subprocess.run([*script, *map(str, args)], env=env, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stderr

    def snapshot(*pids):
        words = [word for pid in pids for word in ("--pid", pid)]
        return agent("--action", "lock", *words)[0] or agent("--action", "checkpoint", *words)[0]

    first, log = bed.counter("first", mib=MIB)
    pid = bed.pid(first)
    expect(agent("--action", "lock", "--pid", pid) == (0, "") and bed.state(first) == "running", "a lock alone did something")
    expect(snapshot(pid) == 0 and bed.state(first) == "suspended", bed.state(first))
    expect(snapshot(pid) == 0, "what is off the GPU is not so")
    shell = f"{bed.program('counter')} --mib {MIB} --chunk-mib 16 --interval-ms {2 * MIB}; exit $?"
    second, other = bed.started(["sh", "-c", shell], "second")
    inner = child_of(bed.pid(second))
    code, said = agent("--toggle", "--pid", pid)
    expect(code == 10 and "free" in said, f"{code} {said}")
    expect(snapshot(inner, bed.pid(second)) == 0 and bed.state(second) == "suspended", bed.state(second))
    expect(agent("--toggle", "--pid", pid)[0] == 0, "it does not come back")
    bed.expect_whole(first, log)
    expect(snapshot(pid) == 0 and agent("--toggle", "--pid", inner)[0] == 0, "they do not take turns")
    bed.expect_whole(second, other)
    for words, reason in ((("--action", "lock", "--pid", os.getpid()), "of no job of brumate"), (("--toggle",), "no process is given"),
                          (("--action", "x", "--pid", pid), "is not known"), (("--get-state", "--pid", pid), "is not known")):
        code, said = agent(*words)
        expect(code == 1 and reason in said, f"{words}: {code} {said}")


@case
def what_it_would_do(bed):
    jobs = start(bed, "a", "b")
    shown = wait_until(lambda: bed.cli(*SLICE, "a", "b", "--dry-run").out, "a turn to be over")
    reason = "b has had its slice of 1.0 s, and a is next"
    expect(shown == f"b\tsuspend\t{reason}\na\tresume\t{reason}\n", shown)
    expect(states(bed, jobs) == ["suspended", "running"] and not decided(bed), "something was done")
    bed.refused(2, "which jobs", "share")
    bed.refused(2, "which jobs", "share", "a", "--label", "queue=night")
    bed.refused(2, "1 s or more", "share", "--slice", "10ms", "a")
    bed.refused(3, "no job", "share", "a", "nobody")
    Server(bed, "llama", mib=16)
    bed.refused(2, "takes no turns: it was started with --wake", "share", "a", "llama")


if __name__ == "__main__":
    main()
