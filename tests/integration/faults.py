#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A fault at every step of every plan: an error, and the sudden end of the shim, of the broker, of the keeper,
of CRIU and of the job. Whatever happens: a job that was not to end goes on with right data (or is suspended and
can be resumed, or its image can be restored), the exit code says which, the next command carries on, and
nothing is left behind."""

import json
import os
import random
import re
import signal
import subprocess
import sys

from cases import Failed, Log, case, expect, fault_points, main, process_start, read_text, shim_steps, wait_until, with_env

PLANS = {}
for step in shim_steps():
    PLANS.setdefault(step.split(".")[0], []).append(step)

# Where CRIU holds the job: its two events, and every point of the commit.
HELD = ["checkpoint.frozen", "checkpoint.dumped", "store.sync-file", "store.sync-dir", "store.write-manifest",
        "store.rename", "store.sync-store"]
ALL = ["error:5", "kill", "kill:broker", "kill:keeper", "kill:job"]


class LaterLog(Log):
    """A log from some place on."""

    skip = 0

    def text_of_all(self):
        return super().text()

    def text(self):
        return super().text()[self.skip:]


class Subject:
    """A job that is taken through many faults, and brought back to where the next one begins."""

    def __init__(self, bed, mib=4):
        self.bed = bed
        self.mib = mib
        self.start()

    def start(self):
        self.job, log = self.bed.counter(mib=self.mib, chunk_mib=2)
        self.log = LaterLog(log.path)
        self.used = self.bed.vram()
        self.checkpoint = None

    def forget_steps(self):
        """What comes now follows the checkpoint, not the last line of the log."""
        self.log.skip = len(self.log.text_of_all())
        if self.bed.state(self.job) in ("exited", "lost"):
            self.bed.ok("restore", self.checkpoint)

    def running(self):
        """Brings it to where it runs, whatever state it is in; checks that it does, with right data."""
        state = self.bed.state(self.job)
        if state in ("exited", "lost"):
            self.bed.ok("rm", self.job)
            self.bed.jobs.remove(self.job)
            self.start()
        elif state == "checkpointed":
            self.bed.ok("restore", self.job)
        elif state == "suspended":
            self.bed.ok("resume", self.job)
        self.bed.expect_whole(self.job, self.log)

    def before(self, verb):
        self.running()
        if verb == "resume":
            self.bed.ok("suspend", self.job)
        if verb == "restore":
            for old in self.bed.checkpoints():
                self.bed.ok("rm", "--checkpoint", old)
            self.checkpoint = self.bed.operation("checkpoint", self.job)["checkpoint"]

    def shims(self):
        shims = self.bed.named("brumate-shim")
        return [pid for pid, command in self.bed.processes() if pid in shims and command.endswith(self.job)]

    def state_that_fits_the_gpu(self):
        state = self.bed.state(self.job)
        return state if self.bed.vram() == (self.used if state == "running" else [0, 0]) else None

    def expect_nothing_left(self):
        bed = self.bed
        wait_until(lambda: not bed.crius(), "the end of CRIU")
        expect(not bed.partials(), f"half a checkpoint is left: {bed.partials()}")
        # The broker ends a copy that was given up when it next looks, and a job that was killed may not be known to have
        # ended yet.
        try:
            state = wait_until(self.state_that_fits_the_gpu, "device memory in use as the job's state has it", 60)
        except Failed as failed:
            raise Failed(f"{failed}: the job is {bed.state(self.job)}, in use are {bed.vram()}") from failed
        wait_until(lambda: len(self.shims()) <= 1, "the end of a second shim", 60)
        for listed in bed.list("ls", "checkpoints"):
            expect(not listed.get("error"), f"a damaged checkpoint is left: {listed}")
        processes = [p for p in bed.processes() if "counter" in p[1]]
        expect(len(processes) == (1 if state in ("running", "suspended") else 0), f"{state}, but there are {processes}")


def settled(bed, job):
    """The state once nothing is under way: the next command puts right what a dead shim left."""
    state = bed.state(job)
    if state.endswith("ing") and state != "running":
        # Any operation will do; one that the state does not allow changes nothing.
        bed.cli("kill", "--signal", "URG", job)
        state = bed.wait_state(job, ("running", "suspended", "checkpointed", "exited", "lost"), 30)
    return state


# States a fault may end in. "done" is what the operation was to reach.
DONE = {"suspend": "suspended", "resume": "running", "checkpoint": "checkpointed", "restore": "running"}
UNDONE = {"suspend": ("running",), "resume": ("suspended",), "checkpoint": ("running",), "restore": ("checkpointed",)}
# Recovery of a resume goes forward; an image that was complete when the shim died stands.
AFTER_SHIM = {"suspend": ("running", "suspended"), "resume": ("running",), "checkpoint": ("running", "checkpointed"),
              "restore": ("checkpointed", "running")}
# What the documented exit codes are where the job is as it was: 1 untouched, 7 touched and going on.
FAILED = {"suspend": (1, 7), "resume": (1, 7), "checkpoint": (1, 7), "restore": (1,)}


def expect_outcome(verb, action, code, state, exit_code):
    """Whether exit code, state and what happened fit together."""
    if action == "kill":
        expect(code in (0, 1, 7) and state in AFTER_SHIM[verb], f"exit {code}, the job is {state}")
    elif action == "kill:job":
        ended = state == "exited" and exit_code == 137
        saved = state == "checkpointed" and (verb == "restore" or code == 0)
        early = verb == "restore" and state == "running" and code == 0  # there was no job yet
        expect(ended or saved or early, f"exit {code}, the job is {state} ({exit_code})")
        expect(code in (0, 3) or verb == "restore", f"the job ended, exit {code}")
    elif code == 0:
        expect(state == DONE[verb], f"exit 0, but the job is {state}")
    else:
        expect(code in FAILED[verb], f"exit {code}, expected one of {FAILED[verb]}")
        expect(state in UNDONE[verb], f"exit {code}, the job is {state}")
    if action.startswith("error"):
        expect(code != 0 or verb == "checkpoint", "an error was injected, yet it succeeds")


def one_fault(subject, verb, point, action, *options):
    bed = subject.bed
    subject.before(verb)
    bed.fault(point, action)
    what = f"{verb} {' '.join(options)} with {action} at {point}"
    result = bed.cli(verb, subject.checkpoint if verb == "restore" else subject.job, *options, timeout=60)
    expect(not bed.disarm(), f"{what}: the point was not passed: {result.why()}")
    if result.code:
        lines = [line for line in result.err.splitlines() if line.startswith("brumate: ")]
        expect(len(lines) == 1, f"{what}: expected one error line, have {result.err!r}")
    try:
        if action == "kill:job" and not (verb == "restore" and result.code == 0):
            bed.wait_state(subject.job, ("exited", "lost", "checkpointed"), 10)
        state = settled(bed, subject.job)
        entry = bed.job(subject.job)
        if "--leave-running" in options and result.code == 0 and action != "kill:job":
            expect(state == "running", f"the job is {state}")
        else:
            expect_outcome(verb, action, result.code, state, entry["exit_code"])
        subject.expect_nothing_left()
        if verb == "restore" and state != "running":
            subject.forget_steps()  # it may have run a little before it was taken down
        subject.running()
        if verb == "restore" or (verb == "checkpoint" and result.code == 0):
            expect(bed.checkpoints(), "the checkpoint is gone")
    except Exception as error:
        raise type(error)(f"{what}: {error} (said: {result.code} {result.err.strip()[-300:]})") from error


def register(verb, action, points, *options, name=None, mib=4, vram_mib=512):
    @with_env(BRUMATE_SIM_VRAM_MIB=str(vram_mib))
    def function(bed):
        subject = Subject(bed, mib)
        for point in points:
            one_fault(subject, verb, point, action, *options)

    function.__name__ = name or f"{verb}_{action.replace(':', '_')}"
    case(function)


for plan in ("suspend", "resume", "checkpoint", "restore"):
    for fault in ALL:
        register(plan, fault, fault_points(PLANS[plan], fault))
for fault in ALL:
    # An error in the live copy itself is none of the checkpoint: keep_copy.py.
    register("checkpoint", fault, [*(() if fault.startswith("error") else ("live.copy",)), "checkpoint.live.end",
                                   "checkpoint.let-go.begin"],
             "--leave-running", name=f"live_checkpoint_{fault.replace(':', '_')}", mib=32, vram_mib=72)
for fault in ("error:28", "kill", "kill:criu", "kill:keeper", "kill:broker", "kill:job"):
    # Files are synced while CRIU writes others, and runs code of its own in the job. A CRIU that is killed then may take the job along.
    register("checkpoint", fault, [p for p in HELD if (p, fault) != ("store.sync-file", "kill:criu")],
             name=f"held_checkpoint_{fault.replace(':', '_')}")
for fault in ("error:5", "kill", "kill:criu", "kill:broker", "kill:job"):
    register("restore", fault, ["restore.built", "restore.restored"], name=f"held_restore_{fault.replace(':', '_')}")
    register("checkpoint", fault, (HELD[:2] if fault == "kill:criu" else
             fault_points([s for s in PLANS["checkpoint"] if s.split(".")[1] in ("criu", "let-go", "drain", "commit")], fault)
             + ["drain.let-go", "drain.copied"]),
             "--leave-running", name=f"leave_running_{fault.replace(':', '_')}")
register("checkpoint", "kill:keeper", [*fault_points(["checkpoint.let-go", "checkpoint.drain"], "kill:keeper"), "drain.let-go", "drain.copied"],
         "--leave-running", name="leave_running_kill_keeper")


# Phases that are parts of a step.
PARTS = ("export", "hold", "live-first", "own")


@case
def every_step_is_known(bed):
    """The plans are those of the documentation, so that a new step cannot go untested."""
    expect(set(PLANS) == set(DONE), f"plans {sorted(PLANS)}")
    job, _ = bed.counter()
    for verb in ("suspend", "resume"):
        summary = bed.operation(verb, job)
        passed = [f"{verb}.{p['name']}" for p in summary["phases"] if p["name"] not in PARTS]
        expect(passed == [step for step in PLANS[verb] if step in passed] and len(passed) >= 4, f"{verb} passed {passed}")


# At any moment.

def victims(bed, job):
    found = {"shim": bed.shim(job), "broker": bed.broker()}
    crius = bed.crius()
    if crius:
        found["criu"] = crius[0]
    return {who: pid for who, pid in found.items() if pid}


@case
def sudden_ends_at_random_moments(bed):
    rng = random.Random(int(os.environ.get("BRUMATE_TEST_SEED", "1")))
    subject = Subject(bed)
    killed = {"shim": 0, "broker": 0, "criu": 0}
    ended = 0
    for n in range(20):
        verb = rng.choice(("suspend", "resume", "checkpoint", "checkpoint", "restore", "restore"))
        who = rng.choice(("shim", "broker", "criu") if verb in ("checkpoint", "restore") else ("shim", "broker"))
        subject.before(verb)
        command = bed.spawn(verb, subject.checkpoint if verb == "restore" else subject.job)
        moment = rng.random() * (0.2 if verb in ("checkpoint", "restore") else 0.05)
        if who == "criu":
            wait_until(lambda: bed.crius() or command.process.poll() is not None, "CRIU")
            moment /= 4
        try:
            command.process.wait(moment)
        except subprocess.TimeoutExpired:
            pass
        victim = victims(bed, subject.job).get(who)
        if victim:
            try:
                os.kill(victim, signal.SIGKILL)
                killed[who] += 1
            except ProcessLookupError:
                pass  # it has just ended by itself
        code, _, err = command.end()
        what = f"round {n}: {verb}, {who} killed after {moment:.3f} s: exit {code} {err.strip()[-300:]}"
        state = settled(bed, subject.job)
        expect(code == 0 or err.strip(), f"{what}: no word")
        if who == "criu" and verb == "checkpoint" and state == "exited":
            # Killed while its code stood in place of the job's (src/criu/criu.c): nobody can help then.
            expect(code == 3, what)
            print(f"   {what}")
            ended += 1
        else:
            expect(state in ("running", "suspended", "checkpointed"), f"{what}: the job is {state}")
            expect(code in (0, 1, 7), what)
        subject.expect_nothing_left()
        if verb == "restore" and state == "checkpointed":
            subject.forget_steps()
        subject.running()
    expect(ended <= 1, f"CRIU took the job with it {ended} times")
    expect(all(killed.values()), f"this test proves little: killed {killed}")


@case
def the_root_ends_while_it_is_restored(bed):
    """The process below it becomes the shim's child: it is the job from then on, or ends with a restore that fails."""
    subject = Subject(bed)
    for point in ("restore.restored", "restore.gpu-restore.begin"):
        subject.before("restore")
        with bed.held_at(point, "restore", subject.checkpoint) as restore:
            with open(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", subject.job, "job.json"), encoding="utf-8") as file:
                os.kill(json.load(file)["root"]["pid"], signal.SIGKILL)
        code, _, err = restore.end()
        state = settled(bed, subject.job)
        expect((code, state) in ((0, "running"), (1, "checkpointed")), f"{point}: exit {code}, the job is {state}: {err}")
        subject.expect_nothing_left()
        if state == "checkpointed":
            subject.forget_steps()
        subject.running()


@case
def shim_and_criu_end_in_a_restore(bed):
    """Nobody has what CRIU was building as a child that knows of it. The next shim ends it, without the driver, which would
    wait for processes that cannot answer."""
    subject = Subject(bed)
    for point in ("restore.built", "restore.restored"):
        subject.before("restore")
        with bed.held_at(point, "restore", subject.checkpoint) as restore:
            expect([pid for pid, command in bed.processes() if "counter" in command], "nothing is built yet")
            for pid in (*bed.crius(), bed.shim(subject.job)):
                os.kill(pid, signal.SIGKILL)
            nobody_waits = os.open(bed.fault_file + ".held", os.O_RDWR)
        os.close(nobody_waits)
        os.unlink(bed.fault_file + ".held")
        restore.end()
        expect(settled(bed, subject.job) == "checkpointed", f"{point}: the job is {bed.state(subject.job)}")
        subject.expect_nothing_left()
        subject.forget_steps()
        subject.running()


BUSY = """
import os
print("ready to go", flush=True)
n = 0
while True:
    n += 1
    os.write(1, b"step %d OK\\n" % n)
"""


@case
def criu_ends_before_it_lets_the_job_run(bed):
    """What it has restored ends with it, and has done nothing: no line of the log is there twice."""
    job, log = bed.started([sys.executable, "-u", "-c", BUSY])
    log.goes_on()
    bed.operation("checkpoint", job, timeout=60)
    for _ in range(3):
        saved = len(log.text())
        bed.fault("restore.about-to-run", "kill:criu")
        bed.fails(1, "restore", job)
        expect(not bed.disarm(), "the point was not passed")
        bed.expect_state(job, "checkpointed")
        expect(len(log.text()) == saved, f"the log has {log.text()[saved:saved + 100]!r} more")
    bed.operation("restore", job)
    log.goes_on()
    bed.end(job)


@case
def the_shim_ends_and_criu_does_not(bed):
    """What it was restoring will be taken down in any case: nobody waits for it as long as for a dump."""
    subject = Subject(bed)
    subject.before("restore")
    with bed.held_at("restore.built", "restore", subject.checkpoint) as restore:
        for pid in bed.crius():
            os.kill(pid, signal.SIGSTOP)
        os.kill(bed.shim(subject.job), signal.SIGKILL)
        nobody_waits = os.open(bed.fault_file + ".held", os.O_RDWR)
    os.close(nobody_waits)
    os.unlink(bed.fault_file + ".held")
    code, _, err = restore.end()
    expect(code == 1 and "it is checkpointed" in err, f"exit {code}: {err}")
    subject.expect_nothing_left()
    subject.forget_steps()
    subject.running()


@case
def killed_while_it_writes(bed):
    """Of a file that a shim was about to rename nothing is left."""
    job, log = bed.counter(mib=16)
    writer = subprocess.Popen(["true"])
    writer.wait()
    left = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, f"parked.json.tmp.{writer.pid}.{writer.pid}")
    with open(left, "wb"):
        pass
    bed.kill_shim(job)
    bed.ok("suspend", job)
    expect(not os.path.exists(left), f"{left} is left")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


# A shim on its way out, which has closed some of what it had open and not yet the rest.
DYING_SHIM = """
import fcntl, os, socket, sys
directory, holds_lock = sys.argv[1], sys.argv[2] == "locked"
lock = open(directory + "/shim.lock")
if holds_lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
os.unlink(directory + "/shim.sock")
door = socket.socket(socket.AF_UNIX)
door.bind(directory + "/shim.sock")
door.listen()
print("dying", flush=True)
caller = door.accept()[0]
if holds_lock:
    caller.recv(1 << 20)
caller.close()
door.settimeout(1)
try:
    door.accept()
except TimeoutError:
    pass
"""


@case
def shims_that_are_long_in_dying(bed):
    job, log = bed.counter(mib=16)
    directory = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job)
    for lock in ("locked", "free"):
        bed.kill_shim(job)
        argv = [sys.executable, "-c", DYING_SHIM, directory, lock]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as shim:
            expect(shim.stdout.readline() == "dying\n", "it did not come up")
            if lock == "locked":
                result = bed.refused(7, "the shim of job .* ended", "suspend", job)
                expect("another one has taken the job over: it is running" in result.err, result.err)
            else:
                bed.ok("suspend", job)
                bed.ok("resume", job)
        bed.expect_whole(job, log)


@case
def callers_of_a_shim_that_leaves(bed):
    """Somebody calls it after it has looked for the last time: another shim does what was asked, for once."""
    job, log = bed.counter(mib=16)
    socket = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")
    fifo = bed.fault_file + ".held"

    def ends_of_socket():
        return sum(line.split()[-1] == socket for line in read_text("/proc/net/unix").splitlines()[1:])

    bed.ok("checkpoint", job, "--name", "kept")
    bed.fault("shim.leave", "hold")
    wait_until(lambda: os.path.exists(fifo), "an idle shim to leave")
    before = ends_of_socket()
    command = bed.spawn("restore", "kept")
    wait_until(lambda: ends_of_socket() > before or command.process.poll() is not None, "somebody in its queue")
    with open(fifo, "wb"):
        pass
    code, _, err = command.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.expect_whole(job, log)


# Ctrl-C.

@case
def interrupted_suspend(bed):
    job, log = bed.kind("busy", "--busy-ms", "2500")
    os.kill(bed.pid(job), signal.SIGUSR1)
    log.wait_for("^started")
    command = bed.spawn("suspend", job)
    bed.wait_state(job, ("suspending",))
    command.signal(signal.SIGINT)
    code, out, err = command.end(20)
    expect(code == 7 and not out and re.search("cancelled; job .* is running", err), f"exit {code}: {out!r} {err!r}")
    bed.expect_whole(job, log)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def interrupted_checkpoint(bed):
    job, log = bed.counter(mib=16)
    pid, start = bed.pid(job), process_start(bed.pid(job))
    for point in ("checkpoint.image.begin", "checkpoint.criu.begin", "store.write-manifest"):
        bed.fault(point, "delay:1500")
        command = bed.spawn("checkpoint", job, "--name", "never")
        bed.wait_fired(command, point)
        command.signal(signal.SIGINT)
        code, out, err = command.end(20)
        if point == "store.write-manifest":  # too late: the image was complete
            expect(code == 0 or (code == 1 and "is checkpointed" in err), f"{point}: exit {code}: {err!r}")
            bed.expect_restorable("never", log)
            continue
        expect(code == 7 and not out and re.search("cancelled; job .* is running", err), f"{point}: exit {code}: {err!r}")
        bed.expect_whole(job, log)
        expect(process_start(pid) == start, f"{point}: it is another process")
        expect(not bed.checkpoints() and not bed.partials(), f"{point}: left in the store: {bed.checkpoints()}")


@case
def interrupted_restore(bed):
    job, log = bed.counter(mib=16)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    for point in ("restore.verify.begin", "restore.criu.begin", "restore.gpu-restore.begin"):
        bed.fault(point, "delay:1500")
        command = bed.spawn("restore", checkpoint)
        bed.wait_fired(command, point)
        command.signal(signal.SIGINT)
        code, out, err = command.end(20)
        expect(code == 1 and not out and "cancelled" in err, f"{point}: exit {code}: {err!r}")
        bed.wait_state(job, ("checkpointed",))
        expect(bed.vram() == [0, 0], f"{point}: device memory is in use")
    bed.expect_restorable(checkpoint, log)


@case
def nobody_is_left_of_a_restore(bed):
    """The command has died with the shim: to look is enough to have another one put right what is half done."""
    job, log = bed.counter(mib=16)
    log = LaterLog(log.path)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    for point in ("restore.gpu-restore.begin", "restore.continue-others.begin"):
        bed.fault(point, "stop")
        command = bed.spawn("restore", checkpoint)
        shim = int(wait_until(lambda: read_text(bed.fault_file + ".stopped"), f"{point} to be reached"))
        command.process.kill()
        command.end()
        os.kill(shim, signal.SIGKILL)
        wait_until(lambda: process_start(shim) is None, "the end of the shim")  # pylint: disable=W0640
        os.unlink(bed.fault_file + ".stopped")
        bed.wait_state(job, ("checkpointed",), 30)  # by `ps` alone
        wait_until(lambda: bed.vram() == [0, 0], f"{point}: device memory to be free")
    log.skip = len(log.text_of_all())  # what was restored may have written a step each time
    bed.expect_restorable(checkpoint, log)


@case
def the_next_one_waits_for_what_is_cancelled(bed):
    """Who interrupts an operation and calls for another at once is not told that the first is under way."""
    job, log = bed.counter(mib=16)
    bed.fault("checkpoint.criu.begin", "delay:500", "undo.begin", "delay:1500")
    command = bed.spawn("checkpoint", job)
    wait_until(lambda: "criu" not in read_text(bed.fault_file), "the dump")
    command.signal(signal.SIGKILL)
    command.end()
    bed.ok("suspend", job)
    expect(bed.has_fired(), "nothing was undone")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def nobody_takes_the_answer(bed):
    """The caller has gone by the time of the answer, and the next operation has begun: it stays alone with the job."""
    job, log = bed.counter(mib=16)
    tasks = f"/proc/{bed.shim(job)}/task"
    commands, fifos = [], []
    for point, verb in (("shim.answer", "suspend"), ("resume.data-in.begin", "resume")):
        fifos.append(f"{bed.fault_file}.{verb}")
        bed.fault(point, "hold")
        commands.append(bed.spawn(verb, job))
        wait_until(lambda: os.path.exists(bed.fault_file + ".held"), point)
        os.rename(bed.fault_file + ".held", fifos[-1])
        if verb == "suspend":
            commands[0].signal(signal.SIGKILL)
            commands[0].end()
    threads = len(os.listdir(tasks))
    with open(fifos[0], "wb"):
        wait_until(lambda: len(os.listdir(tasks)) < threads, "the end of the first call")
    bed.refused(6, "a resume is in progress|is resuming", "resume", job)
    with open(fifos[1], "wb"):
        expect(commands[1].end()[0] == 0, "the resume failed")
    bed.expect_whole(job, log)


@case
def terminal_gone(bed):
    """The one who asked hangs up (SIGKILL to the command): the operation is cancelled all the same."""
    job, log = bed.counter(mib=16)
    bed.fault("checkpoint.criu.begin", "delay:1500")
    command = bed.spawn("checkpoint", job, "--name", "never")
    bed.wait_fired(command, "the dump")
    command.signal(signal.SIGKILL)
    command.end()
    bed.wait_state(job, ("running",))
    bed.expect_whole(job, log)
    expect(not bed.checkpoints() and not bed.partials(), "left in the store")


main()
