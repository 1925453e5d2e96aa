#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A shim that has no descriptors left, a job that cannot be looked at, a record that cannot be written, a driver that
could not be initialised, and a shim that dies while nobody calls: no job is taken for ended, none stays held, and what
could not be done is done as soon as it can be, by itself."""

import errno
import os
import re
import resource
import signal

import faulty
from cases import EXIT_FAILED, EXIT_STILL_RUNNING, case, expect, main, process_start, read_text, run, wait_until

NOFILE = resource.RLIMIT_NOFILE


def open_files(pid):
    return sorted(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))


def leave_files(pid, n):
    """From now on the process may open n files more, by taking its soft limit down. It has no gaps."""
    held = open_files(pid)
    free = [fd for fd in range(held[-1] + n + 2) if fd not in held]
    _, hard = resource.prlimit(pid, NOFILE)
    resource.prlimit(pid, NOFILE, (free[n], hard))


def no_limit(pid):
    _, hard = resource.prlimit(pid, NOFILE)
    resource.prlimit(pid, NOFILE, (hard, hard))


def runs_by_itself(bed, job, log):
    """Without a command about it: only the record is read, and the job's output."""
    record = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    wait_until(lambda: '"state": "running"' in read_text(record), "the job to be running again", 40)
    log.goes_on()


@case
def too_few_descriptors_for_a_shim_are_told(bed):
    """The job is not there afterwards, and neither is the log of the shim that could not start."""
    for most in (16, 24, 32, 40):
        result = run([bed.brumate, "run", "--", "true"], env=bed.command_env(None),
                     preexec_fn=lambda most=most: resource.setrlimit(NOFILE, (most, most)))
        expect(result.code == EXIT_FAILED, result.why())
        expect(re.search(r"^brumate: job \w+: brumate-shim cannot start: .*: Too many open files$", result.err, re.M), result.why())
        expect(f"limit of {most} open files is too low" in result.err, result.why())
        expect(not bed.ok("ps", "-q").out, f"{most}: a job is left")


@case
def no_descriptors_in_a_suspend(bed):
    """They run out in the middle of it: it fails, and is taken back with what is in reserve."""
    for point in ("suspend.gate.end", "suspend.unmap.end", "suspend.gpu-checkpoint.end"):
        job, log = bed.counter(mib=32)
        pid, start = bed.pid(job), process_start(bed.pid(job))
        with bed.held_at(point, "suspend", job) as command:
            shim = bed.shim(job)
            leave_files(shim, 0)
            bed.fault("data.copy", "error:5")
        code, _, err = command.end()
        bed.disarm()
        expect(code in (0, 1, EXIT_STILL_RUNNING) and (code == 0 or err.strip()), f"{point}: exit {code}: {err}")
        if code == 0:
            no_limit(shim)
            bed.ok("resume", job)
        runs_by_itself(bed, job, log)
        no_limit(shim)
        expect(process_start(pid) == start and bed.shim(job) == shim, f"{point}: not the same processes")
        bed.ok("suspend", job)
        bed.ok("resume", job)
        bed.expect_whole(job, log)
        bed.end(job)


@case
def a_criu_that_cannot_be_looked_at(bed):
    """It runs, and waits for what it is to do: it ends, and what was asked fails."""
    job, log = bed.counter()
    bed.fault("criu.identify", "error:5")
    bed.refused(1, "CRIU: cannot tell its process id: Input/output error", "checkpoint", job)
    bed.expect_whole(job, log)
    bed.fault("criu.report", "error:24")
    bed.refused(1, "CRIU: cannot start it: Too many open files", "checkpoint", job)
    bed.expect_whole(job, log)
    bed.ok("checkpoint", job)
    bed.fault("criu.report", "error:24")
    bed.refused(1, "CRIU: cannot start it: Too many open files", "restore", job)
    bed.fault("criu.identify", "error:12")
    bed.refused(1, "CRIU: cannot tell its process id: Cannot allocate memory", "restore", job)
    bed.ok("restore", job)
    bed.expect_whole(job, log)
    expect(not bed.crius(), "CRIU is left")


@case
def an_agent_that_cannot_be_asked(bed):
    """Whatever of asking there is no memory for, it is not taken for gone, and its memory is not left to the driver."""
    calls = faulty.Faulty(bed.build, bed.dir)
    bed.own.update(calls.environment)
    job, log = bed.counter(mib=16)
    said, nth = "", 0
    while "park: " not in said:
        nth += 1
        calls.arm(0, "brumate-shim", "socket", nth, errno.ENOMEM)
        result = bed.cli("suspend", job, "--format", "json")
        expect(calls.disarm()[0][1], "a suspend makes no more calls, and none failed after the gate had closed")
        said = result.err if result.code else str(result.json()["summary"]["notes"])
        expect(not re.search(r"process \d+.*(gone|by the driver)", said), f"with call {nth} failing: {said}")
        if bed.wait_state(job, ("running", "suspended"), 60) == "suspended":
            bed.ok("resume", job)
        bed.expect_whole(job, log)


@case
def a_keeper_that_is_not_told(bed):
    """What it is to let go of does not come to it, and once more not: it holds nothing for a job that runs, and ends."""
    calls = faulty.Faulty(bed.build, bed.dir)
    bed.own.update(calls.environment)
    job, log = bed.counter(mib=16)
    nth, failed = 0, 2
    while failed == 2:
        nth += 1
        calls.arm(0, "brumate-keeper", "socket", nth, errno.ENOBUFS)
        calls.arm(1, "brumate-keeper", "socket", nth + 2, errno.EMFILE)
        result = bed.cli("suspend", job)
        expect(result.code in (0, 1, EXIT_STILL_RUNNING), result.why())
        if bed.wait_state(job, ("running", "suspended"), 60) == "suspended":
            bed.ok("resume", job)
        failed = sum(hits for _, hits in calls.disarm())
        bed.expect_whole(job, log)
        wait_until(lambda: not keeper(bed, job), f"the end of the keeper, of which calls {nth} and {nth + 2} failed")
    expect(nth > 5, f"only {nth} calls: this proves nothing")


@case
def no_descriptors_at_all(bed):
    """Not even those in reserve: the job is held, and said to be, until there are some; then it runs by itself."""
    job, log = bed.counter(mib=32)
    shim = bed.shim(job)
    with bed.held_at("suspend.unmap.end", "suspend", job) as command:
        _, hard = resource.prlimit(shim, NOFILE)
        resource.prlimit(shim, NOFILE, (3, hard))
    code, _, err = command.end()
    expect(code in (1, EXIT_STILL_RUNNING), f"exit {code}: {err}")
    entry = bed.job(job)
    expect(entry["state"] == "suspending" and entry["pid"], f"{entry}")
    no_limit(shim)
    runs_by_itself(bed, job, log)
    expect(bed.shim(job) == shim, "it is another shim")


@case
def an_undo_that_fails_is_tried_again(bed):
    """Three times, for no other reason than a fault; nobody calls."""
    job, log = bed.counter(mib=32)
    bed.fault("suspend.gpu-lock.end", "error:5", "undo.begin", "error:24", "recover.begin", "error:12", "recover.begin",
              "error:5")
    bed.refused(EXIT_STILL_RUNNING, "is held until this is taken back", "suspend", job)
    runs_by_itself(bed, job, log)
    expect(bed.has_fired(), "not every fault was reached")
    expect("injected" in bed.job(job)["message"], f"{bed.job(job)['message']}")
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def a_driver_that_could_not_be_initialised(bed):
    """It may lack for a moment what it takes. Who calls then is told so, and who calls after that has it tried again."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as conf:
        conf.write("[Broker]\nPrepare=no\n")  # the shim would call, too
    job, log = bed.counter(mib=16)
    broker = bed.broker()
    if broker:
        os.kill(broker, signal.SIGTERM)
        wait_until(lambda: process_start(broker) is None, "the end of the broker")
    bed.fault("device.open", "error:12")
    bed.refused(EXIT_FAILED, "device.open: Cannot allocate memory", "suspend", job)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def the_end_of_a_job_that_cannot_be_seen(bed):
    """It ends while its shim has nothing left to look with: how it ended is known once there is."""
    job, _ = bed.counter(mib=16)
    pid, shim = bed.pid(job), bed.shim(job)
    _, hard = resource.prlimit(shim, NOFILE)
    resource.prlimit(shim, NOFILE, (3, hard))
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: process_start(pid) is None, "the end of the job")
    record = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    expect('"state": "lost"' not in read_text(record), "it is given up")
    no_limit(shim)
    wait_until(lambda: '"state": "exited"' in read_text(record), "the end to be recorded")
    expect(bed.job(job)["exit_code"] == 143, f"{bed.job(job)}")


# Nobody calls.

def keeper(bed, job):
    directory = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job)
    found = [pid for pid, command in bed.processes() if command.startswith("brumate-keeper ") and command.endswith(directory)]
    return found[0] if found else None


def shims(bed, job):
    """What bed.shim() tells, without a command."""
    directory = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job)
    own = bed.named("brumate-shim")
    return [pid for pid, command in bed.processes() if pid in own and command.endswith(directory)]


def shim_with_lock(bed, job):
    """The one of them that stays: one that finds the lock taken leaves."""
    inode = os.stat(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.lock")).st_ino
    holders = [int(words[4]) for words in map(str.split, open("/proc/locks", encoding="ascii"))
               if words[1] == "FLOCK" and words[5].endswith(f":{inode}")]
    return next((pid for pid in shims(bed, job) if pid in holders), None)


def kill_and_await_another(bed, job, shim):
    """Returns the other's pid."""
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: shim_with_lock(bed, job) not in (None, shim), "another shim, which nobody called for")
    return shim_with_lock(bed, job)


@case
def the_next_shim_comes_by_itself(bed):
    """While something is held, and in the middle of an operation, whichever way device memory goes."""
    for options in ((), ("--data-path", "driver")):
        job, log = bed.started([bed.program("counter"), "--mib", 32, "--chunk-mib", 16, "--interval-ms", 25], options=options)
        shim = bed.shim(job)
        bed.fault("suspend.gpu-lock.end", "hold")
        command = bed.spawn("suspend", job)
        fifo = bed.fault_file + ".held"
        wait_until(lambda: os.path.exists(fifo), "the middle of a suspend")
        expect(keeper(bed, job), "nobody would start another shim")
        command.signal(signal.SIGKILL)
        command.end()
        kill_and_await_another(bed, job, shim)
        os.unlink(fifo)
        runs_by_itself(bed, job, log)
        bed.ok("suspend", job)
        if not options:
            shim = bed.shim(job)
            for _ in range(3):
                shim = kill_and_await_another(bed, job, shim)
            bed.expect_state(job, "suspended")
        bed.ok("resume", job)
        bed.expect_whole(job, log)
        wait_until(lambda: not keeper(bed, job), "the end of the keeper")
        bed.end(job)


@case
def a_schedule_outlives_its_shim(bed):
    job, log = bed.counter(mib=16)
    bed.ok("checkpoint", "--every", "1s", "--keep-last", "2", job)
    wait_until(lambda: keeper(bed, job), "somebody who starts another shim")
    shim = bed.shim(job)
    kill_and_await_another(bed, job, shim)
    store = bed.store()
    before = set(os.listdir(store)) if os.path.isdir(store) else set()
    wait_until(lambda: os.path.isdir(store) and {n for n in os.listdir(store) if n[0] != "."} - before, "another checkpoint")
    bed.end_schedule(job)
    wait_until(lambda: not keeper(bed, job), "the end of the keeper")
    bed.expect_whole(job, log)


@case
def a_job_without_its_memory_is_lost(bed):
    """Both who held it were killed at a time: that is said by whoever looks, and what is left of the job is ended."""
    job, _ = bed.counter(mib=32)
    bed.ok("suspend", job)
    pid = bed.pid(job)
    both = [keeper(bed, job), bed.shim(job)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in both:
            os.kill(one, number)
    # Not by their command lines: those are gone before their locks are.
    wait_until(lambda: not any(process_start(one) for one in both), "the end of both")
    entry = bed.job(job)
    expect(entry["state"] == "lost" and entry["pid"] is None, f"ps says {entry}")
    found = [f for f in bed.doctor()["findings"] if f["key"] == "job"]
    expect(any("lost" in f["text"] for f in found), f"doctor says {found}")
    result = bed.cli("wait", job, timeout=60)
    expect(result.code != 0 and process_start(pid) is None, f"{result.why()}; process {pid}")
    entry = bed.job(job)
    expect(entry["state"] == "lost" and "only copy" in entry["message"], f"{entry}")


@case
def a_suspended_job_without_its_memory_is_lost_in_its_checkpoint(bed):
    """First its keeper is killed, which is not missed before the operation ends, and then its shim."""
    job, _ = bed.counter(mib=32)
    bed.ok("suspend", job)
    bed.fault("checkpoint.image.begin", "hold", "checkpoint.image.end", "kill")
    checkpoint, fifo = bed.spawn("checkpoint", job), bed.fault_file + ".held"
    wait_until(lambda: os.path.exists(fifo), "the checkpoint to begin")
    held_by = keeper(bed, job)
    os.kill(held_by, signal.SIGKILL)
    wait_until(lambda: process_start(held_by) is None, "the end of the keeper")
    with open(fifo, "wb"):
        pass
    code, _, err = checkpoint.end()
    expect(code == 8 and "it is lost" in err, f"exit {code}: {err}")
    entry = bed.job(job)
    expect(entry["state"] == "lost" and "only copy" in entry["message"], f"{entry}")


@case
def a_record_that_cannot_be_written(bed):
    """At the end of a checkpoint: that is done, everybody is told so, and the record is written once it can be."""
    job, log = bed.counter(mib=16)
    record = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    bed.fault("checkpoint.end.end", "delay:1", *(["job.save", "error:28"] * 6))
    result = bed.ok("checkpoint", job, "--name", "kept")
    expect("No space left" in result.out + result.err, f"nobody is told: {result.out} {result.err}")
    wait_until(lambda: '"state": "checkpointed"' in read_text(record), "the record to be written")
    expect(bed.has_fired() and bed.state(job) == "checkpointed", f"{bed.job(job)}")
    bed.expect_restorable("kept", log)


def fill(path):
    """Takes what is left of a file system, to the last byte."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                expect(error.errno == errno.ENOSPC, f"{error}")


@case
def a_program_with_next_to_no_descriptors(bed):
    """What could be suspended can be resumed; what cannot says why, and goes on."""
    suspended = 0
    for spare in (1, 4, 8, 12, 16, 32):
        job, log = bed.counter(f"spare-{spare}", mib=96)
        pid = bed.pid(job)
        used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) < 400) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + spare, 4096))
        result = bed.cli("suspend", job)
        if result.code == 0:
            suspended += 1
            bed.ok("resume", job)
        else:
            expect("descriptors are left of its limit" in result.err and "prlimit --pid" in result.err, result.why())
        bed.expect_whole(job, log)
        bed.end(job)
    expect(suspended, "none could be suspended")


@case
def a_record_on_a_full_disk(bed):
    """The disk with state and store runs full at any point, and stays so: the record says what is so all the same."""
    mount = bed.tmpfs("96m")
    bed.own["BRUMATE_STATE_DIR"] = os.path.join(mount, "state")
    os.mkdir(bed.own["BRUMATE_STATE_DIR"], 0o700)
    filler = os.path.join(mount, "filler")
    for verb, point, states in (("checkpoint", "checkpoint.identify.end", ("running",)),
                                ("checkpoint", "checkpoint.gate.end", ("running", "checkpointed")),
                                ("checkpoint", "checkpoint.end.end", ("checkpointed",)),
                                ("suspend", "suspend.settle.end", ("suspended",)),
                                ("restore", "restore.open.end", ("running",))):
        job, log = bed.counter(mib=4)
        record = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
        if verb == "restore":
            bed.ok("checkpoint", job)
        with bed.held_at(point, verb, job) as command:
            fill(filler)
        code, _, err = command.end()
        expect(code == 0 or err.strip(), f"{point}: exit {code}, and not a word")
        wait_until(lambda r=record, s=states: any(f'"state": "{state}"' in read_text(r) for state in s),
                   f"{point}: the record to say one of {states}, not {read_text(record)}", 60)
        os.unlink(filler)
        state = bed.state(job)
        expect(state in states, f"{point}: {state}")
        if state != "running":
            bed.ok("resume" if state == "suspended" else "restore", job)
        bed.expect_whole(job, log)
        bed.ok("kill", job)
        bed.ok("rm", job)


@case
def a_record_that_stays_unwritten(bed):
    """As long as the record cannot be written, everybody is told so who looks at the job."""
    job, log = bed.counter(mib=16)
    record = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    bed.fault("checkpoint.end.end", "delay:1", *(["job.save", "error:28"] * 8), "job.save", "hold")
    bed.ok("checkpoint", job, "--name", "kept")
    wait_until(lambda: "cannot be written" in (bed.job(job)["message"] or ""), "ps to say so")
    entry = bed.job(job)
    expect(entry["state"] == "checkpointed" and '"state": "checkpointing"' in read_text(record), f"{entry}")
    expect("No space left" in entry["message"], f"{entry}")
    wait_until(lambda: os.path.exists(bed.fault_file + ".held"), "another try", 60)
    entry = bed.job(job)
    with open(bed.fault_file + ".held", "wb"):
        expect("No space left" in (entry["message"] or ""), f"while it is tried again: {entry}")
    wait_until(lambda: '"state": "checkpointed"' in read_text(record), "the record to be written", 60)
    expect(not bed.job(job)["message"], f"{bed.job(job)}")
    bed.expect_restorable("kept", log)


@case
def no_thread_for_a_caller(bed):
    """A shim that can start none turns its caller away, who asks again for a while and is told at once then."""
    calls = faulty.Faulty(bed.build, bed.dir)
    bed.own.update(calls.environment)
    job, log = bed.counter(mib=16)
    for threads in (4, 5):
        for number in range(threads):
            calls.arm(number, "brumate-shim", "start", 1, errno.EAGAIN)
        if threads == 5:
            bed.refused(6, "turns callers away", "kill", "--signal", "URG", job)
        else:
            bed.ok("kill", "--signal", "URG", job)
        failed = sum(failed for _, failed in calls.disarm())
        expect(failed == threads, f"{failed} threads were missing, not {threads}")
    bed.ok("kill", "--signal", "URG", job)
    log.goes_on()


def ours_are_spared(bed, options, holders):
    soft, hard = resource.getrlimit(NOFILE)
    score = read_text("/proc/self/oom_score_adj").strip()
    wanted = min(hard, 777)
    try:
        resource.setrlimit(NOFILE, (wanted, hard))
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("500")
        job, _ = bed.counter(mib=8, options=options)
    finally:
        resource.setrlimit(NOFILE, (soft, hard))
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(score)
    pid, shim = bed.pid(job), bed.shim(job)
    expect(resource.prlimit(pid, NOFILE) == (wanted, hard), f"the job has {resource.prlimit(pid, NOFILE)}")
    expect(resource.prlimit(shim, NOFILE) == (hard, hard), f"the shim has {resource.prlimit(shim, NOFILE)}")
    expect(read_text(f"/proc/{pid}/oom_score_adj").strip() == "500", "the job's score is not its caller's")
    bed.ok("suspend", job)
    for who in holders:
        expect(int(read_text(f"/proc/{who(bed, job)}/oom_score_adj")) <= 0, f"the {who.__name__} is not spared")
    expect(read_text(f"/proc/{pid}/oom_score_adj").strip() == "500", "the suspended job's score is not its caller's")
    bed.ok("resume", job)
    bed.ok("kill", job)


@case
def limits_are_for_our_own_programs(bed):
    """Ours may open as many files as the kernel allows, and are spared where memory runs out. A job has what its
    caller had, be its memory in it while it is suspended or with us."""
    ours_are_spared(bed, (), (type(bed).shim, keeper))
    ours_are_spared(bed, ("--data-path", "driver"), (type(bed).shim,))


main()
