#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs that stand still rather than end: stopped by a signal, or frozen with their cgroup. Whoever waits for them is told in
time, and nobody else stands still for their sake."""

import os
import signal
import time
from contextlib import contextmanager

from cases import EXIT_FROZEN, Skipped, as_user, case, expect, main, read_text, wait_until
from harness import process_start
from users_jobs import children, status

SPARE_S = 2  # beyond a --timeout; where there is none, until somebody looks


@contextmanager
def stopped(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_until(lambda: status(pid, "State")[0] == "T", f"process {pid} to stop")  # pylint: disable=W0640
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def in_time(bed, limit_s, code, words, *args):
    """The command ends within the limit, with that code and these words. One that hangs fails by the limit of the call."""
    start = time.monotonic()
    result = bed.refused(code, words, *args, timeout=limit_s + 20)
    seconds = time.monotonic() - start
    expect(seconds < limit_s, f"{' '.join(map(str, args))} took {seconds:.1f} s: {result.err}")


@case
def a_shim_that_was_stopped(bed):
    job, log = bed.counter("train")
    shim = bed.shim(job)
    words = rf"brumate-shim \(process {shim}\) was stopped by a signal"
    with stopped(shim):
        in_time(bed, 2 + SPARE_S, EXIT_FROZEN, words, "doctor", "--job", job)
        for verb in ("suspend", "checkpoint"):
            in_time(bed, 1 + SPARE_S, 124, f"timed out after 1 s: {words}", verb, "--timeout", "1s", job)
        expect(bed.ok("ps").out.count("running") == 1, "ps does not show it")
    log.goes_on()
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def a_shim_that_was_stopped_with_its_job_suspended(bed):
    job, log = bed.counter("train")
    bed.ok("suspend", job)
    shim = bed.shim(job)
    with stopped(shim):
        in_time(bed, 1 + SPARE_S, 124, f"process {shim}.* was stopped by a signal", "resume", "--timeout", "1s", job)
    wait_until(lambda: bed.state(job) in ("suspended", "running"), "the end of what was begun")
    bed.cli("resume", job)
    bed.expect_whole(job, log)


@case
def a_job_ends_without_its_shim(bed):
    for signals in (["--signal", "KILL"], ["--grace", "5s"]):
        job, _ = bed.counter()
        pid, shim = bed.pid(job), bed.shim(job)
        with stopped(shim):
            bed.ok("kill", *signals, job)
            expect(process_start(pid) is None, f"{signals}: process {pid} runs")
        wait_until(lambda: bed.state(job) == "exited", "the shim to see it")  # pylint: disable=W0640


@case
def a_wait_is_for_the_job(bed):
    """However long the shim stands still meanwhile, as one does in the cgroup of a job that Slurm has suspended."""
    job, log = bed.counter()
    waiting, attached = bed.spawn("wait", job), bed.spawn("logs", "--follow", job)
    with stopped(bed.shim(job)):
        in_time(bed, 2 + SPARE_S, EXIT_FROZEN, "was stopped by a signal", "doctor", "--job", job)
        expect(waiting.process.poll() is None and attached.process.poll() is None, "it waited no longer than others do")
    log.goes_on()
    bed.ok("kill", "--signal", "KILL", job)
    for one in (waiting, attached):
        code, _, err = one.end()
        expect(code == 128 + signal.SIGKILL, f"exit {code}: {err}")


@case
def a_signal_without_a_shim(bed):
    job, log = bed.counter()
    with stopped(bed.shim(job)):
        bed.ok("kill", "--signal", "STOP", job)
        wait_until(lambda: status(bed.pid(job), "State")[0] == "T", "the signal")
    os.kill(bed.pid(job), signal.SIGCONT)
    log.goes_on()


def two_counters(bed):
    """A job of two processes that use a GPU by themselves: (job, log, pid of one)."""
    count = f"{bed.program('counter')} --mib 4 --chunk-mib 4 --interval-ms 25"
    job, log = bed.started(["sh", "-c", f"{count} & {count} & wait"])
    log.wait_until(lambda text: text.count("ready ") == 2, "both are ready")
    return job, log, next(pid for pid in children(bed.pid(job)) if status(pid, "Name") == ["counter"])


@case
def a_member_that_stops_in_the_middle(bed):
    """It cannot answer. The other one, whose gate has closed, goes on once the time is over, and not when that one does."""
    job, log, member = two_counters(bed)
    for verb in ("suspend", "checkpoint"):
        for step in ("gate", "park", "unmap"):
            start = time.monotonic()
            with bed.held_at(f"{verb}.{step}.begin", verb, job, "--timeout", "2s") as command:
                os.kill(member, signal.SIGSTOP)
            try:
                code, _, err = command.end()
                seconds = time.monotonic() - start
                expect(code == 124 and "timed out" in err or str(member) in err, f"{verb} {step}: exit {code}: {err}")
                expect(seconds < 2 + SPARE_S, f"{verb} {step}: {seconds:.1f} s")
                lines = log.text().count("step")
                wait_until(lambda: log.text().count("step") > lines + 3, f"{verb} {step}: the other to go on", 5)  # pylint: disable=W0640
            finally:
                os.kill(member, signal.SIGCONT)
            bed.wait_state(job, ("running",))
    bed.ok("suspend", job)
    bed.ok("resume", job)
    lines = log.text().count("step")
    wait_until(lambda: log.text().count("step") > lines + 8, "both to go on")
    expect("BAD" not in log.text(), f"wrong data: {log.tail()}")


def in_time_and_done(bed, limit_s, *args):
    result = bed.ok(*args, "--timeout", f"{limit_s}s")
    expect(result.seconds < limit_s, f"{' '.join(map(str, args))} took {result.seconds:.1f} s")


@case
def a_broker_that_was_stopped(bed):
    """It answers nobody, whatever job they are of: it is ended, and another one does what it was to do."""
    job, log = bed.counter("train")
    bed.doctor()  # starts it
    for verb in ("suspend", "resume", "checkpoint", "restore"):
        broker = bed.broker()
        os.kill(broker, signal.SIGSTOP)
        in_time_and_done(bed, 8, verb, job)
        expect(process_start(broker) is None and bed.broker() not in (None, broker), f"{verb}: broker {broker} is there")
    bed.expect_whole(job, log)


@case
@as_user
def programs_of_a_user_that_were_stopped(bed):
    """Without anything of root's."""
    job, log = bed.counter("train", mib=32)
    bed.doctor()
    for verb in ("suspend", "resume"):
        victims = [pid for pid in (bed.broker(), bed.keeper()) if pid]
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        in_time_and_done(bed, 8, verb, job)
        expect(not any(process_start(pid) for pid in victims), f"{verb}: one of {victims} is there")
    bed.expect_whole(job, log)


@case
def a_keeper_that_was_stopped(bed):
    """What it holds its shim holds, too: it is ended, and another one holds it. One that may hold what nobody else does is
    waited for."""
    job, log = bed.counter("train", mib=32)
    bed.ok("suspend", job)
    keeper = bed.keeper()
    os.kill(keeper, signal.SIGSTOP)
    in_time_and_done(bed, 8, "resume", job)
    expect(process_start(keeper) is None, f"keeper {keeper} is there")
    log.goes_on()
    bed.ok("suspend", job)
    keeper = bed.keeper()
    with stopped(keeper):
        bed.kill_shim(job)
        in_time(bed, 1 + SPARE_S, 124, "timed out after 1 s", "resume", "--timeout", "1s", job)
        expect(process_start(keeper) is not None, "what it held is lost")
    wait_until(lambda: bed.state(job) in ("suspended", "running"), "the end of what was begun")
    bed.cli("resume", job)
    bed.expect_whole(job, log)


@case
def a_criu_that_was_stopped_before_it_ran(bed):
    """Nobody has its number yet but who forked it, who waits for its first word."""
    job, log = bed.counter("train")
    for verb in ("checkpoint", "restore"):
        bed.fault("criu.child", "stop")
        start = time.monotonic()
        result = bed.cli(verb, job, "--timeout", "2s", timeout=60)
        seconds = time.monotonic() - start
        expect(bed.has_fired() and result.code == 124 and seconds < 2 + SPARE_S, f"{seconds:.1f} s: {result.why()}")
        expect("timed out after 2 s" in result.err, result.why())
        pid = int(read_text(bed.fault_file + ".stopped"))
        wait_until(lambda: process_start(pid) is None, "its end")  # pylint: disable=W0640
        os.unlink(bed.fault_file + ".stopped")
        if verb == "checkpoint":
            bed.expect_whole(job, log)
            bed.ok("checkpoint", job)
    bed.ok("restore", job)
    log.goes_on()


@case
def a_criu_that_was_stopped_when_all_is_saved(bed):
    """The checkpoint is there and cannot be taken back: what is left, the end of the processes, is done without it."""
    job, log = bed.counter("train")
    bed.fault("checkpoint.dumped", "stop:criu")
    start = time.monotonic()
    result = bed.cli("checkpoint", job, "--timeout", "4s", timeout=60)
    seconds = time.monotonic() - start
    expect(bed.has_fired() and result.code == 0 and seconds < 4 + SPARE_S, f"{seconds:.1f} s: {result.why()}")
    pid = int(read_text(bed.fault_file + ".stopped"))
    wait_until(lambda: process_start(pid) is None, "its end")
    bed.expect_state(job, "checkpointed")
    bed.ok("restore", job)
    log.goes_on()


@case
def a_process_that_was_stopped_while_it_was_saved(bed):
    """It was found running, and its device memory is put away already. It runs on, as it could not take that back otherwise."""
    job, log = bed.counter("train")
    with bed.held_at("checkpoint.criu.begin", "checkpoint", job):
        member = bed.job(job)["pid"]
        os.kill(member, signal.SIGSTOP)
        wait_until(lambda: status(member, "State")[0] == "T", "it to stop")
    bed.wait_state(job, ("checkpointed",), 30)
    result = bed.ok("restore", job)
    expect(f"process {member} (counter) had been stopped by a signal while it was saved: it runs on" in result.err + result.out,
           f"the restore says nothing of it: {result.why()}")
    log.goes_on()


@case
def a_restored_process_that_was_stopped(bed):
    """CRIU has built the whole tree by then, and waits for each of its processes."""
    job, log = bed.counter("train")
    bed.operation("checkpoint", job)
    for victim in ("reaper", "job"):
        bed.fault("restore.restored", f"stop:{victim}")
        # On a busy machine CRIU takes a while to get there.
        words = r"timed out after 5 s: .*process \d+ .*being restored, was stopped by a signal"
        in_time(bed, 5 + SPARE_S, 124, words, "restore", "--timeout", "5s", job)
        bed.disarm()
        bed.expect_state(job, "checkpointed")
    bed.ok("restore", job)
    log.goes_on()


@case
def a_reaper_that_was_stopped_while_its_job_was_saved(bed):
    """It comes back as it was saved; but it runs on, or the end of the job would be seen by nobody."""
    job, log = bed.counter("train")
    with bed.held_at("checkpoint.live.end", "checkpoint", job):
        reaper = int(status(bed.job(job)["pid"], "PPid")[0])
        os.kill(reaper, signal.SIGSTOP)
        wait_until(lambda: status(reaper, "State")[0] == "T", "it to stop")
    bed.wait_state(job, ("checkpointed",), 30)
    bed.operation("restore", job)
    log.goes_on()
    os.kill(bed.job(job)["pid"], signal.SIGKILL)
    bed.wait_state(job, ("exited",), 30)


def freezer(name):
    """A new cgroup whose processes can be frozen, and the file and the words that do so."""
    for root, file, words in (("/sys/fs/cgroup", "cgroup.freeze", ("1", "0")),
                              ("/sys/fs/cgroup/freezer", "freezer.state", ("FROZEN", "THAWED"))):
        path = os.path.join(root, name)
        try:
            os.mkdir(path)
        except OSError:
            continue
        if os.path.exists(os.path.join(path, file)):
            return path, os.path.join(path, file), words
        os.rmdir(path)
    raise Skipped("no cgroup can be made here that freezes its processes")


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{text}\n")


def leave(path):
    """What is in the cgroup goes back to the one around it."""
    procs = os.path.join(path, "cgroup.procs")
    for pid in read_text(procs).split():
        write(os.path.join(os.path.dirname(path), "cgroup.procs"), pid)
    wait_until(lambda: not read_text(procs).strip(), "an empty cgroup")
    os.rmdir(path)


@case
def a_shim_whose_cgroup_is_frozen(bed):
    path, file, (freeze, thaw) = freezer(f"brumate-test-{os.getpid()}")
    try:
        job, log = bed.counter("train")
        shim = bed.shim(job)
        write(os.path.join(path, "cgroup.procs"), shim)
        write(file, freeze)
        try:
            in_time(bed, 2 + SPARE_S, EXIT_FROZEN, rf"\(process {shim}\) is frozen with its cgroup", "doctor", "--job", job)
            in_time(bed, 1 + SPARE_S, 124, "is frozen with its cgroup", "suspend", "--timeout", "1s", job)
        finally:
            write(file, thaw)
        bed.expect_whole(job, log)
    finally:
        leave(path)


@contextmanager
def frozen(*pids):
    """These processes, in a cgroup of their own that is frozen; its path."""
    path, file, (freeze, thaw) = freezer(f"brumate-test-{os.getpid()}")
    try:
        for pid in pids:
            write(os.path.join(path, "cgroup.procs"), pid)
        write(file, freeze)
        wait_until(lambda: read_text(os.path.join(path, "freezer.state")).strip() == "FROZEN" or
                   "frozen 1" in read_text(os.path.join(path, "cgroup.events")), "the cgroup to freeze")
        try:
            yield path
        finally:
            write(file, thaw)
    finally:
        leave(path)


@case
def a_job_that_is_frozen(bed):
    """It is told who has frozen it, at once, and not touched; others are listed as fast as ever."""
    job, log = bed.counter("train")
    other, _ = bed.counter("other")
    bed.doctor()  # starts a broker
    with frozen(bed.pid(job)) as path:
        name = os.path.basename(path)
        for verb in ("suspend", "checkpoint"):
            in_time(bed, SPARE_S, EXIT_FROZEN, rf"job {job}: process \d+ \(counter\) is frozen with its cgroup \S*/{name}$", verb, job)
        listed = {entry["id"]: entry for entry in bed.list("ps", "jobs")}
        expect(listed[job]["frozen"].endswith(f"/{name}") and listed[job]["gpus"] is None, f"{listed[job]}")
        expect(listed[other]["frozen"] is None and listed[other]["gpus"][0]["bytes"], f"{listed[other]}")
        expect(bed.ok("ps").out.count("running (frozen)") == 1, "ps does not show it")
        fastest = min(bed.ok("ps").seconds for _ in range(3))
        expect(fastest < 1, f"ps takes {fastest:.1f} s")
        bed.expect_state(job, "running")
    bed.expect_whole(job, log)
    bed.ok("suspend", job)
    with frozen(bed.pid(job)):
        in_time(bed, SPARE_S, EXIT_FROZEN, "is frozen with its cgroup", "resume", job)
        bed.expect_state(job, "suspended")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def a_broker_that_is_frozen(bed):
    """As one is in the cgroup of a job that a scheduler has suspended."""
    job, log = bed.counter("train")
    bed.doctor()  # starts it
    with frozen(bed.broker()):
        fastest = min(bed.ok("ps").seconds for _ in range(3))
        expect(fastest < 1, f"ps takes {fastest:.1f} s")
        expect(bed.job(job)["gpus"] is None, "its GPUs are known without a broker")
    in_time_and_done(bed, 8, "suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


main()
