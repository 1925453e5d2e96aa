#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The data path: device memory that leaves a job by the fds of its agents and comes back, moved by the
broker. Which way bytes go, what is held by whom, and that no failure of an agent, of the keeper, of the
broker or of the pool costs the job a byte. What every operation does on this path by default is tested
by the other files too; here the driver's path stands beside it."""

import contextlib
import glob
import json
import os
import re
import signal
import shlex
import stat

from cases import EXIT_BUSY, EXIT_NO_ROOM, MIB, NOBODY, case, expect, main, process_start, read_link, read_text, run, wait_until
from harness import Failed
from checkpoints import flip
import varlink_client


def job_dir(bed, job):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job)


def agent_dir(bed, job):
    return os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents", job)


def keeper(bed):
    return bed.keeper()


def copy_held_by(pid):
    """How many files of the host copy it has open: segments, and their digests."""
    try:
        links = [read_link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except FileNotFoundError:
        return 0
    return sum(link.startswith(("/memfd:brumate-segment", "/memfd:brumate-digests")) for link in links)


def phases(summary):
    return [phase["name"] for phase in summary["phases"]]


def expect_nothing_held(bed, job):
    wait_until(lambda: not keeper(bed), "the end of the keeper")
    expect(not os.path.exists(os.path.join(job_dir(bed, job), "parked.json")), "the table is left")


# Which way.

@case
def by_the_driver_alone(bed):
    """--data-path driver: no agent, no keeper, and every operation as it was without them."""
    job, log = bed.started([bed.program("counter"), "--mib", 32, "--chunk-mib", 16, "--interval-ms", 25],
                           options=("--data-path", "driver"))
    expect(bed.job(job)["data_path"] == "driver", f"{bed.job(job)}")
    expect("libbrumate-cuda" not in read_text(f"/proc/{bed.pid(job)}/maps"), "our library is loaded")
    for verbs in (("suspend", "resume"), ("checkpoint", "restore")):
        for verb in verbs:
            summary = bed.operation(verb, job)
            expect(summary["data_bytes"] == 0 and summary["driver_bytes"] >= 32 * MIB, f"{verb}: {summary}")
            expect(not {"park", "data-out", "data-in"} & set(phases(summary)), f"{verb} passed {phases(summary)}")
            wait_until(lambda: not keeper(bed), "the end of the keeper")
        log.goes_on()
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Run]\nDataPath=driver\n")
    expect(bed.job(bed.counter()[0])["data_path"] == "driver", "the configuration does not count")
    bed.refused(2, "data-path", "run", "--data-path", "none", "--", "true")


@case
def by_the_broker(bed):
    job, log = bed.counter(mib=64)
    log.goes_on()
    expect(bed.job(job)["data_path"] == "broker", f"{bed.job(job)}")
    memory = bed.ok("inspect", job, "--format", "json").json()["memory"]
    expect([m["pid"] for m in memory] == [bed.pid(job)] and memory[0]["data_bytes"] >= 64 * MIB
           and memory[0]["driver_bytes"] == 0, f"inspect says {memory}")
    found = [f for f in bed.doctor("--job", job)["findings"] if f["key"] == "memory"]
    expect(len(found) == 1 and "data path" in found[0]["text"], f"doctor says {found}")
    for verb, phase in (("suspend", "data-out"), ("resume", "data-in"), ("checkpoint", "data-out"), ("restore", "data-in")):
        summary = bed.operation(verb, job)
        expect(summary["data_bytes"] >= 64 * MIB and summary["data_gbps"] > 0, f"{verb}: {summary}")
        expect(summary["driver_bytes"] < 32 * MIB and phase in phases(summary), f"{verb}: {summary}")
        if verb == "suspend":
            expect(keeper(bed), "nobody holds the copy beside the shim")
        else:
            expect_nothing_held(bed, job)
        if verb in ("resume", "restore"):
            log.goes_on()


@case
def sockets_of_the_dead_go(bed):
    counter = [bed.program("counter"), "--mib", "4", "--chunk-mib", "4", "--interval-ms", "25"]
    line = shlex.join(map(str, counter))
    job, log = bed.started(["sh", "-c", f"{line} --steps 1 >/dev/null; {line} --steps 1 >/dev/null; {line} & wait"])
    log.goes_on()
    path = agent_dir(bed, job)
    expect(len(os.listdir(path)) == 3, f"agents' sockets: {os.listdir(path)}")
    summary = bed.operation("suspend", job)
    expect(summary["data_bytes"] >= 4 * MIB, f"{summary}")
    left = [name for name in os.listdir(path) if name != "hold"]
    expect(len(left) == 1 and process_start(int(left[0])), f"agents' sockets: {left}")
    bed.operation("resume", job)
    log.goes_on()


@case
def agents_are_the_users_alone(bed):
    bed.daemon()
    job, error = bed.run_as_nobody(bed.program("counter"), "--mib", "16", "--chunk-mib", "16", "--interval-ms", "25")
    expect(job, f"{error}")
    log = bed.log(job)
    log.goes_on()
    path = agent_dir(bed, job)
    found = os.stat(path)
    expect(found.st_uid == NOBODY and stat.S_IMODE(found.st_mode) == 0o700, f"{path}: {found}")
    verbs = ["suspend", "resume"]
    # CRIU needs CAP_SYS_RESOURCE for the processes of others, which some containers lack.
    if not any(f["key"] == "capabilities" and f["level"] != "ok" for f in bed.doctor()["findings"]):
        verbs += ["checkpoint", "restore"]
    for verb in verbs:
        result = bed.cli(verb, job, "--format", "json")
        expect(result.code == 0 and result.json()["summary"]["data_bytes"] >= 16 * MIB, result.why())
    log.goes_on()
    found = os.stat(path)
    expect(found.st_uid == NOBODY and stat.S_IMODE(found.st_mode) == 0o700, f"{path} after the restore: {found}")
    bed.end(job)
    bed.ok("rm", job)
    expect(not os.path.exists(path), "the agents' directory is left")


@case
def two_processes(bed):
    job, log = bed.kind("fork-before", "--mib", "16")
    used = bed.vram()
    for verb in ("suspend", "resume", "checkpoint", "restore"):
        force = ("--force",) if verb in ("suspend", "checkpoint") else ()
        summary = bed.operation(verb, job, *force)
        expect(summary["data_bytes"] >= 32 * MIB, f"{verb}: {summary}")
        if verb in ("resume", "restore"):
            log.goes_on()
            wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)


@case
def addresses_that_are_kept(bed):
    """What a program freed leaves its addresses behind: they are there after every operation, for what follows."""
    job, log = bed.kind("churn")
    for verb in ("suspend", "resume", "checkpoint", "restore", "suspend", "resume"):
        summary = bed.operation(verb, job)
        # One block of four is there at any moment, the smallest of 4 MiB.
        expect(summary["data_bytes"] >= 4 * MIB, f"{verb}: {summary}")
        if verb in ("resume", "restore"):
            log.goes_on()


@case
def two_gpus(bed):
    job, log = bed.kind("two-gpus", "--mib", "16")
    used = bed.vram()
    expect(all(used), f"in use {used}")
    for verb, options in (("suspend", ("--force",)), ("resume", ("--gpu-map", "0=1,1=0")),
                          ("checkpoint", ("--force",)), ("restore", ("--gpu-map", "0=1,1=0"))):
        summary = bed.operation(verb, job, *options)
        expect(summary["data_bytes"] >= 32 * MIB, f"{verb}: {summary}")
        if verb in ("resume", "restore"):
            log.goes_on()
            wait_until(lambda: sum(bed.vram()) == sum(used), "device memory in use as it should be", 10)


@case
def room_for_owning_is_short(bed):
    """What came back is copied beside itself: where that has no room at once, it is done in parts."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Operation]\nSpareCopy=no\n")  # which would be held for the next copy
    job, log = bed.counter(mib=400)
    used = bed.vram()
    for options in ((), ("--park",)):
        bed.ok("suspend", job, *options)
        bed.ok("resume", job)
        log.goes_on()
        wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)
        expect_nothing_held(bed, job)


@case
def limits_are_the_callers(bed):
    result = bed.cli("run", "--attach", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn")
    want = run(["sh", "-c", "ulimit -Sn; ulimit -Hn"]).out
    expect(result.out == want, f"the job has {result.out!r}, its caller {want!r}")


def copy_pages(bed, job):
    """Bytes of memory that the host copy of a suspended job takes."""
    shim = bed.shim(job)
    fds = [f"/proc/{shim}/fd/{fd}" for fd in os.listdir(f"/proc/{shim}/fd")]
    found = [os.stat(fd).st_blocks * 512 for fd in fds if "brumate-segment" in read_link(fd)]
    expect(found, "the shim holds no host copy")
    return sum(found)


@case
def zeros_take_no_memory(bed):
    """Neither on fresh memory of the pool nor on such as another job's bytes were in."""
    for _ in range(2):
        job, log = bed.started([bed.program("bench-job"), "--mib", 128, "--piece-kib", "4096", "--zero", "90"])
        log.wait_for("^ready")

        def check(job, log):
            seen = len(log.lines())
            os.kill(bed.pid(job), signal.SIGUSR1)
            log.wait_until(lambda text: any(line.startswith("check ") for line in text.splitlines()[seen:]), "a check")
            expect("check BAD" not in log.text(), "the job's memory is wrong")

        for options in ((), ("--keep-copy",), ()):
            summary = bed.operation("suspend", job)
            expect(summary["zero_bytes"] + summary["unchanged_bytes"] >= 108 * MIB, f"{summary}")
            pages = copy_pages(bed, job)
            expect(pages <= 48 * MIB, f"the copy takes {pages}")
            bed.operation("resume", job, *options)
            check(job, log)
        bed.operation("checkpoint", job)
        bed.operation("restore", job)
        check(job, log)
        bed.end(job)
        other, _ = bed.counter(mib=128)  # leaves its bytes in the pool
        bed.ok("suspend", other)
        bed.end(other)


# Stacks of kernels, which are small while their job is away.

# MiB at the limit of 1024 bytes; the program asks for 4096.
STACKS = {"BRUMATE_SIM_STACKS_MIB": "8"}


@case
def stack_limits_are_as_before(bed):
    job, log = bed.kind("stacks", "--mib", "16", env=STACKS)
    used = bed.vram()
    expect(used[0] >= 48 * MIB, f"in use {used}")
    for verbs in (("suspend", "resume"), ("checkpoint", "restore")):
        for verb in verbs:
            bed.operation(verb, job)
        log.goes_on()
        wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)
    bed.operation("suspend", job, "--park")
    bed.operation("resume", job)
    log.goes_on()
    wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)
    bed.operation("checkpoint", job, "--leave-running")
    log.goes_on()


@case
def no_memory_for_stacks(bed):
    """The program sets its limit, a suspend lowers it, a resume cannot set it back, and the next one can."""
    job, log = bed.kind("stacks", "--mib", "16", env={**STACKS, "BRUMATE_SIM_FAULT": "cuCtxSetLimit:3:error=2"})
    used = bed.vram()
    bed.ok("suspend", job)
    bed.refused(1, "not enough free device memory for the stacks", "resume", job)
    bed.expect_state(job, "suspended")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.ok("resume", job)
    log.goes_on()
    wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)


@case
def no_memory_for_stacks_of_a_suspend_that_fails(bed):
    """Neither away nor as before: the driver's part runs, the program's memory is held. The shim does the rest by itself."""
    failures = ",".join(f"cuCtxSetLimit:{call}:error=2" for call in range(3, 7))
    job, log = bed.kind("stacks", "--mib", "16", env={**STACKS, "BRUMATE_SIM_FAULT": failures})
    used = bed.vram()
    bed.fault("data.copy", "error:5")
    bed.refused(7, "not enough free device memory for the stacks", "suspend", job)
    bed.wait_state(job, ("running",))
    log.goes_on()
    wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)


# Parked.

@case
def parked(bed):
    job, log = bed.counter(mib=64)
    used = bed.vram()
    summary = bed.operation("suspend", job, "--park")
    expect("data-out" not in phases(summary), f"passed {phases(summary)}")
    entry = bed.job(job)
    expect(entry["state"] == "suspended" and entry["parked"], f"{entry}")
    expect("suspended (parked)" in bed.ok("ps").out, "ps does not say so")
    expect(64 * MIB <= bed.vram()[0] < used[0], f"in use {bed.vram()}, before {used}")
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 40])
    bed.kill_shim(job)
    summary = bed.operation("resume", job)
    expect("data-in" not in phases(summary), f"passed {phases(summary)}")
    log.goes_on()
    expect(not bed.job(job)["parked"], "it is still said to be parked")
    bed.end(hog)
    bed.ok("suspend", job, "--park")
    bed.ok("checkpoint", job, "--leave-running", "--name", "kept")
    expect(bed.job(job)["parked"], "not parked after the checkpoint")
    bed.ok("resume", job)
    log.goes_on()
    bed.ok("suspend", job, "--park")
    bed.ok("checkpoint", job, "--name", "ended")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.expect_restorable("ended", log)
    bed.ok("suspend", job, "--park")
    bed.end(job)
    expect_nothing_held(bed, job)
    wait_until(lambda: bed.vram() == [0, 0], "parked memory of a killed job to be free")


# Holders.

def next_shim(bed, job, held):
    """Kills the job's shim. Returns once there is another, which nobody called for and which has taken all back."""
    shim = bed.shim(job)
    bed.kill_shim(job)
    wait_until(lambda: bed.shim(job) not in (None, shim), "another shim, which nobody called for")
    wait_until(lambda: copy_held_by(bed.shim(job)) == held, "the next shim to hold as much")


@case
def one_holder_at_a_time_may_die(bed):
    job, log = bed.counter(mib=32)
    bed.ok("suspend", job)
    held = copy_held_by(keeper(bed))
    expect(held, "the keeper holds no copy")
    for _ in range(2):
        first = keeper(bed)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: process_start(first) is None, "the keeper's end")
        wait_until(lambda: keeper(bed) not in (None, first) and copy_held_by(keeper(bed)) == held, "another keeper that holds as much")
        if bed.broker():
            os.kill(bed.broker(), signal.SIGKILL)
        next_shim(bed, job, held)
    bed.operation("resume", job)
    log.goes_on()
    expect_nothing_held(bed, job)
    bed.ok("suspend", job)
    bed.kill_shim(job)
    os.kill(bed.pid(job), signal.SIGKILL)
    wait_until(lambda: not keeper(bed), "the end of the keeper with its job")
    bed.cli("kill", job)


def is_replaced_in_the_next_turn(bed, job):
    """Kills the keeper, which is no child of the shim, in the middle of a turn of the shim's. Whether the next turn has
    another one started, and not a later one, for which something else would have to wake the shim."""
    first, held, fifo = keeper(bed), copy_held_by(keeper(bed)), bed.fault_file + ".held"
    next_shim(bed, job, held)
    bed.ok("inspect", job)  # somebody has been served
    bed.fault("shim.turn", "hold", "shim.turn", "hold")
    with varlink_client.Client(os.path.join(job_dir(bed, job), "shim.sock")):
        wait_until(lambda: os.path.exists(fifo), "a turn")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: process_start(first) is None, "the keeper's end")
        os.close(os.open(fifo, os.O_WRONLY))
        wait_until(lambda: bed.has_fired() and os.path.exists(fifo), "the next turn")
        with contextlib.suppress(Failed):
            wait_until(lambda: keeper(bed), "another keeper", 5)
        replaced = keeper(bed)
        os.close(os.open(fifo, os.O_WRONLY))
    wait_until(lambda: keeper(bed) and copy_held_by(keeper(bed)) == held, "another keeper that holds as much")
    return replaced


@case
def a_keeper_is_replaced_at_once(bed):
    job, log = bed.counter(mib=16)
    bed.ok("suspend", job)
    # The next turn may be another's: the shim looks at the job's log now and then.
    expect(any(is_replaced_in_the_next_turn(bed, job) for _ in range(3)), "the shim waits until something else wakes it")
    bed.ok("resume", job)
    log.goes_on()


@case
def holders_die_one_after_the_other_in_a_resume(bed):
    """The next keeper comes while the operation goes on, so that its shim may die, too."""
    job, log = bed.counter(mib=32)
    bed.ok("suspend", job)
    shim = bed.shim(job)
    bed.fault("resume.copy.begin", "kill:keeper", "resume.data-in.begin", "kill")
    expect(bed.cli("resume", job).code and bed.has_fired(), "its shim was not killed")
    wait_until(lambda: bed.shim(job) not in (None, shim), "another shim, which nobody called for")
    bed.wait_state(job, ("running",), 60)
    log.goes_on()
    bed.end(job)


@case
def a_table_that_is_damaged_is_said_to_be(bed):
    job, _ = bed.counter(mib=16)
    bed.ok("suspend", job)
    table = os.path.join(job_dir(bed, job), "parked.json")
    text = read_text(table)
    value = json.loads(text)
    expect(len(value["pieces"]) >= 1 and value["copy"]["total"] >= 16 * MIB, f"the table says {text}")
    with open(table, "w", encoding="utf-8") as file:
        file.write(text[:-20])
    bed.kill_shim(job)
    for verb in ("resume", "checkpoint"):  # neither takes the job for one that has nothing on a GPU
        bed.refused(EXIT_BUSY, r"its saved memory cannot be fetched yet: \S+parked.json: ", verb, job)
        bed.expect_state(job, "suspended")
    expect(not bed.checkpoints() and not bed.partials(), "something was saved")
    with open(table, "w", encoding="utf-8") as file:
        file.write(text)
    bed.kill_shim(job)
    bed.ok("resume", job)
    bed.log(job).goes_on()
    bed.ok("suspend", job)
    with open(table, "w", encoding="utf-8") as file:
        file.write(text[:-20])
    bed.kill_shim(job)
    bed.ok("kill", job)
    bed.expect_state(job, "exited")


# What is restored is compared.

REREAD = "device memory is read again from the checkpoint"


def shim_log(bed, job):
    return read_text(os.path.join(job_dir(bed, job), "shim.log"))


@case
def a_flipped_bit_of_device_memory_is_named(bed):
    """The GPU finds that it is not right, and a second look which chunk it is."""
    job, log = bed.counter(mib=64)
    saved = bed.operation("checkpoint", job, "--compress", "none")
    packs = [pack for pack in glob.glob(os.path.join(saved["path"], "memory", "*")) if os.path.getsize(pack) > 8 * MIB]
    expect(packs, "no large packs")
    for pack in packs:
        for offset in (5, os.path.getsize(pack) // 2):
            flip(pack, offset)
            result = bed.refused(9, "its digest does not match", "restore", saved["checkpoint"])
            name = re.escape(os.path.basename(pack))
            expect(re.search(rf"{name}: chunk \d+ \(bytes \d+-\d+\): .*it holds 0x[0-9a-f]+-0x[0-9a-f]+ of process \d+",
                             result.err), result.why())
            wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
            flip(pack, offset)
    expect(shim_log(bed, job).count(REREAD) == 2 * len(packs), shim_log(bed, job))
    log = type(log)(log.path)
    bed.ok("restore", job)
    log.goes_on()
    expect(shim_log(bed, job).count(REREAD) == 2 * len(packs), "what is sound is read again")


@case
def what_the_gpu_does_not_compare_is_compared(bed):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nDigests=no\n")
    job, log = bed.counter(mib=64)
    saved = bed.operation("checkpoint", job, "--compress", "none")
    pack = max(glob.glob(os.path.join(saved["path"], "memory", "*")), key=os.path.getsize)
    flip(pack, 5)
    bed.refused(9, "its digest does not match", "restore", saved["checkpoint"])
    flip(pack, 5)
    log = type(log)(log.path)
    bed.ok("restore", job)
    log.goes_on()
    expect(shim_log(bed, job).count(REREAD) == 2, shim_log(bed, job))


# Failures.

@case
def what_the_broker_cannot_copy_the_driver_moves(bed):
    job, log = bed.counter(mib=16)
    for point, action in (("data.alloc", "error:12"), ("data.import", "error:5"), ("data.copy", "error:5")):
        bed.fault(point, action)
        summary = bed.operation("suspend", job)
        expect(bed.has_fired(), f"{point} was not passed")
        expect(summary["data_bytes"] == 0 and any("driver alone" in note for note in summary["notes"]), f"{point}: {summary}")
        bed.expect_state(job, "suspended")
        wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
        wait_until(lambda: not keeper(bed), f"{point}: the end of the keeper")
        bed.ok("resume", job)
        log.goes_on()
        bed.fault(point, action)
        bed.refused(7, "commit: ", "checkpoint", job)
        bed.expect_whole(job, log)
        expect(not bed.checkpoints() and not bed.partials(), "left in the store")


@case
def an_agent_that_did_not_answer_answers_later(bed):
    """What the driver saved of a process is not missed by its agent, which is there after the restore."""
    job, log = bed.counter(mib=16)
    for verbs in (("suspend", "resume"), ("checkpoint", "restore")):
        bed.fault(*("agent.hello", "error:32") * 100)
        summary = bed.operation(verbs[0], job)
        bed.disarm()
        expect(summary["data_bytes"] == 0 and any("driver alone" in note for note in summary["notes"]), f"{summary}")
        bed.ok(verbs[1], job)
        log.goes_on()
        summary = bed.operation(verbs[0], job)
        expect(summary["data_bytes"] >= 16 * MIB, f"its agent is of no use any more: {summary}")
        bed.ok(verbs[1], job)
        log.goes_on()


@case
def who_cannot_ask_an_agent_says_so(bed):
    job, log = bed.counter(mib=16)
    for verb in ("suspend", "checkpoint"):
        for error in (12, 24, 105):
            bed.fault("agent.hello", f"error:{error}")
            bed.refused(1, "agent.hello", verb, job)
            bed.expect_whole(job, log)


@case
def a_broker_that_dies_while_it_copies_is_replaced(bed):
    job, log = bed.counter(mib=16)
    for verb, points in (("suspend", ("data.alloc", "data.import", "data.copy")),
                         ("resume", ("data.export", "data.copy"))):
        for point in points:
            if verb == "resume":
                bed.ok("suspend", job)
            bed.fault(point, "kill")
            bed.operation(verb, job)
            expect(bed.has_fired(), f"{verb}: {point} was not passed")
            if verb == "suspend":
                bed.ok("resume", job)
            log.goes_on()
            expect_nothing_held(bed, job)


@case
def a_checkpoint_goes_on_where_the_broker_died(bed):
    """What it had handed out went to the store already; the rest comes from the next one."""
    job, log = bed.counter(mib=240)
    bed.fault(*["data.copy", "delay:30"] * 20, "data.copy", "kill")
    saved = bed.operation("checkpoint", job)
    expect(bed.has_fired(), "data.copy was not passed as often")
    expect(saved["data_bytes"] >= 240 * MIB, f"{saved}")
    bed.ok("verify", saved["checkpoint"])
    log = type(log)(log.path)
    bed.ok("restore", job)
    log.goes_on()


@case
def a_resume_that_fails_leaves_it_suspended(bed):
    job, log = bed.counter(mib=64)
    bed.ok("suspend", job)
    for point in ("data.export", "data.copy"):
        bed.fault(point, "error:5")
        bed.refused(1, "data-in", "resume", job)
        bed.expect_state(job, "suspended")
        wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 40])
    bed.refused(EXIT_NO_ROOM, "free", "resume", job)
    bed.expect_state(job, "suspended")
    bed.end(hog)
    bed.ok("resume", job)
    log.goes_on()


# Pieces are full one after the other, each by so many copies.
PIECE_MIB, TURN_MIB = 32, 8
FIRST_IS_FULL = (*("data.filled", "delay:0") * (PIECE_MIB // TURN_MIB - 1), "data.filled", "hold")


def in_large_pieces(bed):
    return bed.counter(mib=5 * PIECE_MIB, chunk_mib=PIECE_MIB)


def is_passed(bed, point, seconds):
    try:
        wait_until(lambda: point not in read_text(bed.fault_file), point, seconds)
        return True
    except Failed:
        return False


def resume_ahead(bed, job, point, *faults):
    """Resumes the job; from the first piece on the copy waits until the agent's @point has been passed. Once more where the agent
    passed it before it counted."""
    fifo = bed.fault_file + ".held"
    for _ in range(6):
        bed.fault(*FIRST_IS_FULL, point, *faults)
        resume = bed.spawn("resume", job)
        wait_until(lambda: os.path.exists(fifo), "a piece to be full")
        passed = is_passed(bed, point, 3)
        if not passed:
            bed.disarm()
        os.close(os.open(fifo, os.O_RDWR))  # maybe nobody waits any more
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fifo)
        code, out, err = resume.end()
        if passed:
            return code, out, err
        expect(code == 0, f"{point} does not count: exit {code}: {err}")
        bed.ok("suspend", job)
    raise Failed(f"{point} was not passed after the first piece was full")


def resumes_ahead(bed, job, log, point):
    """Resumes the job with an agent's @point reached before all is filled; whatever happens then, no job runs with memory
    that is not whole."""
    used = bed.vram()
    for action in ("delay:0", "error:5", "kill:broker"):
        bed.ok("suspend", job)
        code, _, err = resume_ahead(bed, job, point, action)
        expect(code == 0, f"{action}: exit {code}: {err}")
        log.goes_on()
        expect_nothing_held(bed, job)
        wait_until(lambda: bed.vram() == used, f"device memory in use after {action}: {bed.vram()}", 10)
    bed.ok("suspend", job)
    code, _, err = resume_ahead(bed, job, point, "delay:0", "data.filled", "error:5")
    expect(code == 1 and "data-in" in err, f"the copy did not fail after {point}: exit {code}: {err}")
    bed.expect_state(job, "suspended")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    code, _, err = resume_ahead(bed, job, point, "kill")
    expect(code, f"the shim was not killed: {err}")
    bed.wait_state(job, ("running",))  # another shim takes it up
    log.goes_on()
    expect_nothing_held(bed, job)


@case
def pieces_are_mapped_before_all_are_filled(bed):
    job, log = in_large_pieces(bed)
    resumes_ahead(bed, job, log, "ahead.mapped")


@case
def pieces_become_its_own_before_all_are_filled(bed):
    """Where there is room."""
    job, log = in_large_pieces(bed)
    resumes_ahead(bed, job, log, "ahead.owned")
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 100])
    bed.ok("suspend", job)
    bed.fault("ahead.owned", "delay:0")
    bed.operation("resume", job)
    expect(bed.disarm(), "memory was taken that others may ask for")
    bed.end(hog)
    log.goes_on()


@case
def restored_pieces_are_mapped_before_all_are_filled(bed):
    job, log = in_large_pieces(bed)
    for action in ("delay:0", "kill:broker"):
        log.goes_on()
        saved = bed.operation("checkpoint", job)
        bed.fault("data.filled", "delay:1500", "ahead.mapped", action)
        bed.operation("restore", saved["checkpoint"])
        expect(bed.has_fired(), f"nothing was mapped ahead: {action}")
        log.goes_on()
        expect_nothing_held(bed, job)


# Device memory of a restore goes to the GPU as it is read.

def small_ring(bed):
    """Four slots, so that nobody reads far ahead of the GPU."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nPool=32M\n")


@case
def a_restore_copies_what_it_has_read(bed):
    small_ring(bed)
    job, log = in_large_pieces(bed)
    saved = bed.operation("checkpoint", job)
    bed.fault("data.filled", "delay:0", "data.feed", "delay:0")
    bed.operation("restore", saved["checkpoint"])
    expect(bed.has_fired(), "all was read before the first of it was copied")
    log.goes_on()
    saved = bed.operation("checkpoint", job)
    bed.fault("data.ring", "error:12")
    result = bed.cli("restore", saved["checkpoint"])
    expect(bed.has_fired() and result.code and "no memory for a ring" in result.err, result.why())
    bed.wait_state(job, ("checkpointed",))
    bed.ok("restore", saved["checkpoint"])
    log.goes_on()
    expect_nothing_held(bed, job)


@case
def a_restore_copies_at_once_what_repeats(bed):
    """Memory that is the same everywhere is not gathered in host memory first."""
    small_ring(bed)
    argv = [bed.program("bench-job"), "--mib", 4, "--piece-kib", 2048, "--same-mib", 64, "--zero-mib", 64]
    job = bed.run(argv, name="repeats")
    log = bed.log(job)
    log.wait_for("^ready ")
    saved = bed.operation("checkpoint", job)
    bed.fault("data.filled", "delay:0", "data.feed", "delay:0")
    bed.operation("restore", saved["checkpoint"])
    expect(bed.has_fired(), "all was read before the first of it was copied")
    os.kill(bed.job(job)["pid"], signal.SIGUSR1)
    log.wait_for("^check OK$")


@case
def a_restore_is_cut_off_while_it_copies(bed):
    """In the middle of it: whatever ends is begun anew, or the checkpoint is there for another restore."""
    small_ring(bed)
    job, log = bed.counter(mib=96)
    middle = ("data.feed", "delay:0") * 8
    for point, action, code in (("data.filled", "kill", 0), ("data.copy", "kill", 0), ("data.feed", "kill:broker", 0),
                                ("data.feed", "error:5", 0), ("data.copy", "error:5", 1), ("data.filled", "error:5", 1),
                                ("store.io-read", "error:5", 9), ("data.feed", "kill", None)):
        what = f"{point} {action}"
        saved = bed.operation("checkpoint", job)
        bed.fault(*middle, point, action)
        result = bed.cli("restore", saved["checkpoint"])
        expect(bed.has_fired(), f"{what}: not passed")
        if code is None:
            expect(result.code, f"{what}: {result.why()}")
        else:
            expect(result.code == code, f"{what}: {result.why()}")
        if code == 9:
            expect(re.search(r"memory/\S+: chunk \d+ \(bytes \d+-\d+\): Input/output error", result.err), result.why())
        if result.code:
            bed.wait_state(job, ("checkpointed",))
            wait_until(lambda: bed.vram() == [0, 0], f"{what}: device memory in use: {bed.vram()}", 10)
            log = type(log)(log.path)
            bed.ok("restore", job)
        log.goes_on()
        expect_nothing_held(bed, job)
        bed.ok("rm", saved["checkpoint"])


@case
def a_restore_is_cancelled_while_it_copies(bed):
    small_ring(bed)
    job, log = bed.counter(mib=96)
    saved = bed.operation("checkpoint", job)
    for point in ("data.feed", "data.filled"):
        with bed.held_at(point, "restore", saved["checkpoint"]) as command:
            command.signal(signal.SIGINT)
        code, out, err = command.end(20)
        expect(code == 1 and not out and "cancelled" in err, f"{point}: exit {code}: {err!r}")
        bed.wait_state(job, ("checkpointed",))
        wait_until(lambda: bed.vram() == [0, 0], f"{point}: device memory in use: {bed.vram()}", 10)
    bed.expect_restorable(saved["checkpoint"], log)


AGENT = ("hello", "gate", "list", "export", "unmap", "map", "own", "open", "detach")


@case
def connections_to_agents_break(bed):
    """At every request of every operation: the job is where it was or where it was to be, data right."""
    job, log = bed.kind("stacks", "--mib", "16", env=STACKS)
    for verb, options in (("suspend", ()), ("resume", ()), ("checkpoint", ("--leave-running",))):
        for request in AGENT:
            if verb == "resume":
                bed.ok("suspend", job)
            bed.fault(f"agent.{request}", "error:32")
            result = bed.cli(verb, job, *options)
            fired = not bed.disarm()
            state = bed.state(job)
            what = f"{verb} with agent.{request}: {result.why()}: {state}"
            expect(result.code in ((0,) if not fired else (0, 1, 7)), what)
            expect(state == ("suspended" if (verb == "suspend") == (result.code == 0) and verb != "checkpoint"
                             else "running"), what)
            if state == "suspended":
                bed.ok("resume", job)
            bed.expect_whole(job, log)
            expect_nothing_held(bed, job)


@case
def connections_to_restored_agents_break(bed):
    job, log = bed.counter(mib=16)
    for request in ("hello", "list", "map", "own", "open"):
        bed.operation("checkpoint", job)
        bed.fault(f"agent.{request}", "error:32")
        result = bed.cli("restore", job)
        expect(not bed.disarm(), f"agent.{request} was not passed")
        if result.code:
            expect(result.code == 1 and bed.state(job) == "checkpointed", f"agent.{request}: {result.why()}")
            wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
            log = type(log)(log.path)
            bed.ok("restore", job)
        wait_until(lambda: not re.search("BAD|ERR", log.text()), "right data")
        start = process_start(bed.pid(job))
        lines = len(log.lines())
        wait_until(lambda: len(log.lines()) > lines + 3, "more steps")
        expect(process_start(bed.pid(job)) == start, "it is another process")
        expect(not re.search("BAD|ERR", log.text()), f"agent.{request}: wrong data")
        expect_nothing_held(bed, job)

@case
def shared_memory_is_told_before_it_is_lost(bed):
    """Each of the two has memory of the other's: neither can be taken away alone."""
    handle = os.path.join(bed.dir, "handle")
    both = [bed.kind("ipc-export", "--path", handle), bed.kind("ipc-import", "--path", handle)]
    for job, log in both:
        for verb in ("suspend", "checkpoint"):
            result = bed.cli(verb, job)
            expect(result.code in (4, 7) and re.search("share|device memory of process", result.err), result.why())
            bed.expect_whole(job, log)
    told = [f for f in bed.doctor("--job", both[0][0])["findings"] if f["key"] == "shared-memory"]
    expect(told and told[0]["level"] == "warn", "doctor does not tell it before")
    bed.refused(4, "shares device memory", "suspend", both[0][0])


@case
def gpus_that_do_not_reach_each_other(bed):
    """What a process on both copies from one to the other, before and after they are exchanged."""
    apart = {"BRUMATE_SIM_PEERS": "0"}
    refused = bed.run([bed.program("kinds"), "peer"], env=apart)
    expect(bed.cli("wait", refused).code != 0, "the driver gave access where there is none")
    expect("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" in bed.log(refused).text(), bed.log(refused).tail())
    job, log = bed.kind("across", "--mib", "16", env=apart)
    for verb, options in (("suspend", ()), ("resume", ("--gpu-map", "0=1,1=0")), ("checkpoint", ()),
                          ("restore", ("--gpu-map", "0=1,1=0"))):
        bed.ok(verb, job, *options)
        if verb in ("resume", "restore"):
            log.goes_on()
    bed.expect_whole(job, log)


@case
def peer_access_comes_back(bed):
    """What the driver cannot restore, and so loses, is the library's own on the data path."""
    job, log = bed.kind("peer")
    bed.ok("suspend", job, "--force")
    bed.ok("resume", job)
    log.goes_on()
    saved = bed.operation("checkpoint", job, "--force")
    bed.ok("restore", saved["checkpoint"])
    log.goes_on()
    log.is_right()



main()
