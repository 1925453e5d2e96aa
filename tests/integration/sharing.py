#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs whose processes share device memory: by descriptors and by legacy IPC handles. What is saved is saved once,
and comes back shared, at the same addresses."""

import functools
import os
import re
import signal
import time

from cases import all_go_on, case, expect, main, numbered_steps, read_text, wait_until, with_env

MIB = 16
AWHILE_S = 0.5  # in which a job that runs would take some steps


def partners(bed, way, count=2, *options, mib=MIB):
    job, log = bed.started([bed.program("partners"), way, "--port", count, "--mib", mib, *options])
    wait_until(lambda: len(steps(log)) == count, "first steps of all", 60)
    return job, log


steps = functools.partial(numbered_steps, word="member")
go_on = functools.partial(all_go_on, word="member")


def suspends(bed, way, *options, times=2, **kinds):
    job, log = partners(bed, way, *options, **kinds)
    used = bed.vram()
    for _ in range(times):
        bed.operation("suspend", job)
        expect(not any(bed.vram()), f"device memory is left: {bed.vram()}")
        bed.operation("resume", job)
        go_on(log)
        wait_until(lambda: bed.vram() == used, f"device memory as before: {used}", 30)
    return job, log


def restores(bed, way, *options, times=2, **kinds):
    job, log = partners(bed, way, *options, **kinds)
    for _ in range(times):
        saved = bed.operation("checkpoint", job)
        bed.operation("restore", saved["checkpoint"])
        go_on(log)
    return job, log


def comes_back(bed, job, log, *options):
    """From disk."""
    saved = bed.operation("checkpoint", job)
    bed.operation("restore", saved["checkpoint"], *options)
    go_on(log)


@case
def suspend_fd(bed):
    suspends(bed, "fd")


@case
def suspend_pidfd(bed):
    suspends(bed, "pidfd")


@case
def suspend_ipc(bed):
    suspends(bed, "ipc")


@case
def suspend_small_ipc(bed):
    suspends(bed, "small")


@case
def lent_while_streams_are_captured(bed):
    """Each step captures a graph anew, into which memory goes that a thread of the other member opens meanwhile."""
    job, log = suspends(bed, "captured", 2, "--interval-ms", 0)
    comes_back(bed, job, log, "--gpu-map", "0=1,1=0")


@case
def restore_fd(bed):
    restores(bed, "fd")


@case
def restore_pidfd(bed):
    restores(bed, "pidfd")


@case
def restore_ipc(bed):
    restores(bed, "ipc")


@case
def between_four(bed):
    suspends(bed, "ipc", 4, times=1)
    restores(bed, "fd", 4, times=1)


@with_env(BRUMATE_SIM_GPUS="1")
@case
def on_one_gpu(bed):
    suspends(bed, "fd", 3)
    restores(bed, "small", times=1)


@case
def is_saved_once(bed):
    """What the checkpoint has of device memory is what the owners have."""
    job, log = partners(bed, "fd", mib=64)
    saved = bed.operation("checkpoint", job, "--leave-running")
    go_on(log)
    expect(2 << 26 <= saved["data_bytes"] < 2.4 * (1 << 26), f"not two memories of 64 MiB: {saved}")


@case
def on_exchanged_gpus(bed):
    job, log = partners(bed, "fd")
    bed.operation("suspend", job)
    bed.operation("resume", job, "--gpu-map", "0=1,1=0")
    go_on(log)
    comes_back(bed, job, log, "--gpu-map", "0=1,1=0")


@case
def again_and_again(bed):
    """By what changed, on to disk while the job runs, and from the last of these checkpoints."""
    job, log = partners(bed, "pidfd")
    bed.operation("checkpoint", job, "--leave-running", "--keep-copy")
    go_on(log)
    bed.operation("checkpoint", job, "--leave-running", "--keep-copy")
    go_on(log)
    bed.operation("suspend", job)
    bed.operation("resume", job, "--keep-copy")
    go_on(log)
    comes_back(bed, job, log)


@case
def given_at_every_moment(bed):
    """Members ask each other for memory all the while: none waits for long, and none gets what was there before."""
    job, log = partners(bed, "anew", 3, "--interval-ms", 0, mib=4)
    for _ in range(6):
        bed.operation("suspend", job)
        bed.operation("resume", job)
        go_on(log)
    comes_back(bed, job, log)


@case
def host_memory(bed):
    job, log = suspends(bed, "host")
    comes_back(bed, job, log)


@case
def host_memory_in_dev_shm(bed):
    """As NCCL shares host memory once it may not share the driver's."""
    job, log = suspends(bed, "shm")
    comes_back(bed, job, log)


@case
def events(bed):
    """What is given away is no obstacle, and the handle of before opens what is there after; nor is one that stays open."""
    for way in ("event", "event-kept"):
        job, log = partners(bed, way)
        for _ in range(2):
            bed.operation("suspend", job)
            bed.operation("resume", job)
            go_on(log)
        bed.operation("checkpoint", job, "--leave-running")
        go_on(log)
        for options in ((), ("--gpu-map", "0=1,1=0")):
            bed.operation("checkpoint", job)
            bed.operation("restore", job, *options)
            go_on(log)
        bed.end(job)


def member(log, which):
    return int(re.search(rf"^member {which} pid (\d+)$", log.text(), re.M).group(1))


def ends(bed, job):
    bed.wait_state(job, ("exited", "lost"))
    wait_until(lambda: not any(bed.vram()), "no device memory in use", 30)


@case
def owner_killed_while_suspended(bed):
    """The other has memory of it, and gets it back; it ends as it would have without brumate. Where it waits for a word of the
    owner, not for the driver, it ends at once."""
    for way in ("fd", "ipc"):
        job, log = partners(bed, way)
        bed.operation("suspend", job)
        os.kill(member(log, 0), signal.SIGKILL)
        resumed = bed.cli("resume", job)
        expect(resumed.code == 0 or (resumed.code in (3, 6) and re.search("has (exited|ended)", resumed.err)), resumed.why())
        ends(bed, job)


@case
def owners_that_have_ended(bed):
    """Nobody exports their memory any more: a member that has it mapped makes a copy, which all get."""
    job, log = suspends(bed, "left", 3, times=1)
    comes_back(bed, job, log, "--gpu-map", "0=1,1=0")
    bed.operation("suspend", job)
    bed.operation("resume", job)
    go_on(log)


@case
def owners_that_have_ended_while_the_job_goes_on(bed):
    """What is saved is of one moment, though those who have it mapped run again."""
    job, log = partners(bed, "left", mib=64)
    with bed.held_at("data.copy", "checkpoint", job, "--leave-running", "--name", "left") as saving:
        before = steps(log)
        time.sleep(AWHILE_S)
        expect(steps(log) == before, "it runs while its memory is copied")
    expect(saving.end()[0] == 0, "the checkpoint failed")
    go_on(log)
    bed.end(job)
    length = len(log.text())
    bed.operation("restore", "left")
    wait_until(lambda: log.text()[length:].count(" OK") >= 6, "more steps", 60)
    expect("BAD" not in log.text(), f"wrong data: {log.tail()}")


@case
def owners_that_have_ended_and_no_room_for_a_copy(bed):
    job, log = partners(bed, "left", mib=64)
    hog, _ = bed.started([bed.program("hog"), "--gpu", 0, "--leave-mib", 16])
    refused = bed.cli("suspend", job)
    expect(refused.code and "which has ended, cannot be copied" in refused.err, refused.why())
    bed.expect_state(job, "running")
    go_on(log)
    bed.ok("kill", hog)
    bed.wait_state(hog, ("exited",))
    bed.operation("suspend", job)
    bed.operation("resume", job)
    go_on(log)


@case
def owner_killed_before(bed):
    """Who has memory of it goes on with it, suspended and restored."""
    handle = f"{bed.dir}/handle"
    kinds = f"{bed.program('kinds')} %s --mib 8 --interval-ms 10 --path {handle}"
    job, log = bed.started(["sh", "-c", f"{kinds % 'ipc-export'} & echo owner $!; until [ -e {handle} ]; do :; done; "
                                        f"{kinds % 'ipc-import'} & wait $!; wait"])
    log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    owner = int(re.search(r"^owner (\d+)$", log.text(), re.M).group(1))
    os.kill(owner, signal.SIGKILL)
    wait_until(lambda: owner not in [int(p) for p in os.listdir("/proc") if p.isdigit()]
               or read_text(f"/proc/{owner}/stat").split(") ")[1][0] == "Z", "the owner to end")

    def more():
        lines = len(log.lines())
        wait_until(lambda: len(log.lines()) > lines + 3, "more steps")
        expect("BAD" not in log.text(), "wrong data")

    bed.operation("suspend", job)
    bed.operation("resume", job)
    more()
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    more()
    bed.operation("suspend", job)
    bed.operation("resume", job)
    more()


@case
def shim_killed_on_the_way_out(bed):
    killed(bed, "ipc", "suspend", ("suspend.gate.end", "suspend.park.end", "suspend.unmap.end", "suspend.settle.begin"))


@case
def shim_killed_where_owners_have_ended(bed):
    killed(bed, "left", "suspend", ("suspend.park.end", "agent.unmap", "suspend.unmap.end"))
    killed(bed, "left", "resume", ("resume.map.begin", "share.owned", "resume.map.end"))


@case
def one_member_is_left_where_owners_have_ended(bed):
    """Its memory is what the other's was copied from: it waits for that one, whoever dies."""
    job, log = partners(bed, "left")
    for more in ((), ("agent.aliases", "kill")):
        bed.fault("agent.unmap", "error:5", *more)
        result = bed.cli("suspend", job)
        expect(not bed.disarm(), f"{more} was not passed: {result.why()}")
        bed.wait_state(job, ("running", "suspended"))
        if bed.state(job) == "suspended":
            bed.operation("resume", job)
        go_on(log)


@case
def shim_killed_on_the_way_back(bed):
    killed(bed, "fd", "resume", ("resume.gpu-unlock.end", "resume.map.begin", "share.owned", "resume.map.end",
                                 "resume.open.end"))


def killed(bed, way, verb, points):
    job, log = partners(bed, way)
    for point in points:
        if verb == "resume":
            bed.operation("suspend", job)
        bed.fault(point, "kill")
        bed.cli(verb, job)
        expect(not bed.disarm(), f"{point} was not passed")
        bed.wait_state(job, ("running", "suspended"))
        if bed.state(job) == "suspended":
            bed.operation("resume", job)
        go_on(log)


@case
def copies_fail(bed):
    """What cannot be mapped again is taken back, and tried anew."""
    job, log = partners(bed, "pidfd")
    for point in ("share.owned", "agent.aliases", "agent.export"):
        bed.operation("suspend", job)
        bed.fault(point, "error:5")
        bed.cli("resume", job)
        expect(not bed.disarm(), f"{point} was not passed")
        bed.wait_state(job, ("running", "suspended"))
        if bed.state(job) == "suspended":
            bed.operation("resume", job)
        go_on(log)


main()
