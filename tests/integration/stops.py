#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SIGSTOP as a kind of death: one of our programs, or a member of the job, is stopped at a point of an operation that has
a --timeout. One rule for all of them: the command ends no later than SPARE_S after its time; exit 124 says what it
waited for and what becomes of the job; no other job stands still for it; and once the stopped one goes on, or was
killed, nothing is lost.

All points, victims and ends are some hundreds, an hour and more; a few taken at random fit into make check.
BRUMATE_TEST_SEED names the seed, which is printed. All of them, or every N-th from the K-th on:

	BRUMATE_TEST_SWEEP=1 python3 tests/integration/stops.py
	BRUMATE_TEST_SWEEP=K/N python3 tests/integration/stops.py
	BRUMATE_TEST_ONLY='broker .*resume' python3 tests/integration/stops.py"""

import contextlib
import dataclasses
import os
import random
import re
import signal
import time

from cases import Failed, LaterLog, case, expect, main, process_start, read_text, shim_steps, wait_until

SECONDS = float(os.environ.get("BRUMATE_TEST_SECONDS", "36"))
SEED = int(os.environ.get("BRUMATE_TEST_SEED", "0")) or int(time.time())
SWEEP = os.environ.get("BRUMATE_TEST_SWEEP")
ONLY = os.environ.get("BRUMATE_TEST_ONLY")
TIMEOUT_S, SPARE_S = 1, 2
VERBS = ("suspend", "resume", "checkpoint", "restore")
SETTLES_S = 6  # after that the job goes on without the one that stands still
NOT_NEEDED = ("broker", "broker itself", "keeper", "criu", "client")
TO_SETTLE = ("running", "suspended", "checkpointed", "exited", "lost")

# Points in the middle of steps, with who passes them.
WITHIN = {
    "suspend": ("agent.hello", "agent.gate", "agent.list", "agent.export", "agent.unmap", "agent.detach"),
    "resume": ("agent.hello", "agent.list", "agent.map", "agent.own", "agent.open"),
    "checkpoint": ("agent.gate", "agent.export", "agent.unmap", "checkpoint.frozen", "checkpoint.dumped", "store.sync-file",
                   "store.write-manifest", "store.rename", "store.sync-store"),
    "restore": ("restore.built", "restore.restored", "agent.hello", "agent.map", "agent.own", "agent.open", "data.feed"),
}
BY_BROKER = {
    "suspend": ("data.alloc", "data.import", "data.copy"),
    "resume": ("data.export", "data.copy", "data.filled"),
    "checkpoint": ("data.alloc", "data.import", "data.copy"),
    "restore": ("data.export", "data.copy", "data.filled"),
}
# Whom the shim stops there. "": itself.
VICTIMS = {"shim": "", "broker": ":broker", "keeper": ":keeper", "member": ":job", "reaper": ":reaper", "criu": ":criu"}
HAVE_CRIU = re.compile(r"checkpoint\.(criu-start\.end|gate|park|copy|unmap|gpu|criu|frozen|dumped)|restore\.(built|restored)|"
                       r"agent\.(gate|export|unmap)")


@dataclasses.dataclass(frozen=True)
class Stop:
    """A victim that is stopped at a point of an operation, and how it ends there."""

    victim: str
    verb: str
    point: str
    end: str

    def __str__(self):
        return f"{self.victim} stopped at {self.point} of {self.verb}, then {self.end}"

    def action(self):
        return "stop" + VICTIMS.get(self.victim, "")


def can_be(victim, verb, point, end):
    """What descends from a reaper that is killed outlives the job where the job's first shim is gone."""
    if victim == "criu":
        return verb in ("checkpoint", "restore") and HAVE_CRIU.match(point)
    return victim != "reaper" or end == "CONT"


def all_stops():
    found = []
    for verb in VERBS:
        points = [f"{step}.{side}" for step in shim_steps() if step.startswith(verb + ".") for side in ("begin", "end")]
        for end in ("CONT", "KILL"):
            found += [Stop(victim, verb, point, end) for point in (*points, *WITHIN[verb]) for victim in VICTIMS
                      if can_be(victim, verb, point, end)]
            found += [Stop("broker itself", verb, point, end) for point in BY_BROKER[verb]]
            found += [Stop("client", verb, point, end) for point in points[::4]]
    return [stop for stop in found if not ONLY or re.search(ONLY, str(stop))]


class Subject:
    """A job that stops happen to, and another that they are not to matter to."""

    def __init__(self, bed):
        self.bed = bed
        self.list = bed.fault_file + ".stopped"
        self.other, self.other_log = bed.counter(mib=4, chunk_mib=2)
        self.start()

    def start(self):
        self.job, log = self.bed.counter(mib=8, chunk_mib=2)
        self.log = LaterLog(log.path)
        self.checkpoint = None

    def abandon(self):
        """Whatever state it is in."""
        with contextlib.suppress(ProcessLookupError, TypeError):  # none where the job is saved
            os.kill(self.bed.pid(self.job), signal.SIGKILL)
        self.bed.cli("kill", "--grace", "0", self.job)
        self.bed.cli("rm", self.job)

    # Before.
    def prepare(self, verb):
        bed = self.bed
        self.running()
        if verb == "resume":
            bed.ok("suspend", self.job)
        if verb == "restore":
            self.checkpoint = bed.operation("checkpoint", self.job)["checkpoint"]

    def running(self):
        """Brings it to where it runs, now or after the one command that its state asks for, with right data."""
        bed = self.bed
        if bed.shim(self.job) is None:
            bed.cli("kill", "--signal", "URG", self.job)
        state = bed.wait_state(self.job, TO_SETTLE, 60)
        pid = bed.job(self.job)["pid"]
        if state in ("running", "suspended") and (pid is None or process_start(pid) is None):
            state = bed.wait_state(self.job, ("exited", "lost"), 60)  # its shim is about to see it
        if state == "suspended":
            bed.ok("resume", self.job)
        if state == "checkpointed":
            self.log.begin_here()
            bed.ok("restore", self.job)
        if state in ("exited", "lost"):
            return False
        bed.expect_state(self.job, "running")
        self.log.goes_on()
        return True

    # Meanwhile.
    def stopped(self):
        with contextlib.suppress(FileNotFoundError):
            return [int(word) for word in read_text(self.list).split()]
        return []

    def pass_it(self, stop):
        """Runs the operation with the stop armed. (exit code, stderr, seconds); None: the point was not passed."""
        bed = self.bed
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.list)
        start = time.monotonic()
        if stop.victim == "client":
            return self.stop_client(stop)
        bed.fault(stop.point, stop.action())
        result = bed.cli(stop.verb, self.job, "--timeout", f"{TIMEOUT_S}s", timeout=60)
        seconds = time.monotonic() - start
        if bed.disarm() or not self.stopped():
            expect(result.code in (0, 124), f"nobody was stopped: {result.why()}")
            return None
        return result.code, result.err, seconds

    def stop_client(self, stop):
        """It is somebody else's: nobody waits for it but who started it, and the operation goes on to its end."""
        with self.bed.held_at(stop.point, stop.verb, self.job, "--timeout", f"{TIMEOUT_S}s") as command:
            os.kill(command.process.pid, signal.SIGSTOP)
            with open(self.list, "w", encoding="ascii") as file:
                file.write(f"{command.process.pid}\n")
        self.bed.wait_state(self.job, TO_SETTLE, TIMEOUT_S + SPARE_S)
        return 0, "", 0

    def expect_in_time(self, stop, code, err, seconds):
        expect(seconds < TIMEOUT_S + SPARE_S, f"took {seconds:.1f} s: exit {code}: {err}")
        if code == 124:
            expect("timed out" in err, f"exit 124 does not say that the time is over: {err}")
            expect(re.search(r"goes on|stays (suspended|checkpointed|exited|lost)|is held until|ps` says", err), f"exit 124 does not say what becomes of the job: {err}")
            expect(re.search(r"waited for|waiting for|process \d+|does not answer|did not answer|stopped by a signal", err),
                   f"exit 124 does not say what it waited for: {err}")
        elif code:
            expect(err.strip(), f"exit {code} without a word")
        if code and stop.victim in NOT_NEEDED and stop.verb in ("suspend", "checkpoint"):
            self.log.goes_on(2, SETTLES_S)

    def has_a_ledger(self):
        """The simulated driver's ledger of a GPU (sim/vram.c) is locked by a process in the middle of a call: all others wait
        for one that was stopped there, as they would not for the driver's kernel."""
        holders = re.findall(r"FLOCK\s+ADVISORY\s+WRITE\s+(\d+)", read_text("/proc/locks"))
        return any(str(pid) in holders for pid in self.stopped())

    def expect_others_work(self, stop):
        """What is asked of the broker cannot be answered while that is stopped; but in time it is said so."""
        bed = self.bed
        if stop.victim == "member" and self.has_a_ledger():
            return
        self.other_log.goes_on(2, 5)
        for verb in ("suspend", "resume"):
            start = time.monotonic()
            result = bed.cli(verb, self.other, "--timeout", "5s", timeout=60)
            seconds = time.monotonic() - start
            expect(seconds < 5 + SPARE_S, f"{verb} of another job took {seconds:.1f} s: {result.why()}")
            if not stop.victim.startswith("broker"):
                expect(result.code == 0, f"another job: {result.why()}")
            elif result.code:
                self.other_log.goes_on(2, 5)
                break

    # Afterwards.
    def end(self, stop):
        for pid in self.stopped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if stop.end == "KILL" else signal.SIGCONT)
            if stop.end == "KILL":
                wait_until(lambda: process_start(pid) is None, f"the end of {pid}")  # pylint: disable=W0640
        for background in self.bed.background:
            background.end()
        self.bed.background.clear()

    def expect_nothing_lost(self, stop):
        bed = self.bed
        alive = self.running()
        if not alive and stop.end == "KILL" and stop.victim in ("member", "criu"):
            if self.checkpoint in bed.checkpoints():
                self.log.begin_here()
                bed.ok("restore", self.job)
                self.log.goes_on()
            else:
                bed.ok("rm", self.job)
                bed.jobs.remove(self.job)
                self.start()
        else:
            expect(alive, f"the job is {bed.state(self.job)}: {bed.job(self.job)['message']}: {self.log.tail()}")
        bed.ok("prune", "--leftovers")
        bed.keeps_promises(30)
        for checkpoint in bed.checkpoints():
            bed.ok("verify", checkpoint)
            bed.ok("rm", "--checkpoint", checkpoint)

    def try_one(self, stop):
        """Whether anybody was stopped."""
        said = None
        self.prepare(stop.verb)
        try:
            said = self.pass_it(stop)
            if said:
                self.expect_in_time(stop, *said)
                self.expect_others_work(stop)
            self.end(stop)
            self.expect_nothing_lost(stop)
        except Exception as error:
            self.end(dataclasses.replace(stop, end="CONT"))
            raise type(error)(f"{stop}: {error} (said: {said}; seed {SEED})") from error
        return said is not None


def wanted():
    found = all_stops()
    if not SWEEP:
        rng = random.Random(SEED)
        rng.shuffle(found)
        return found
    first, step = map(int, (SWEEP if "/" in SWEEP else "1/1").split("/"))
    return found[first - 1::step]


@case
def whoever_is_stopped(bed):
    """A sweep goes on after a failure, with a new job, and tells of all of them in the end."""
    end, tried, stopped, failures = time.monotonic() + SECONDS, 0, 0, []
    subject, mine = Subject(bed), wanted()
    for number, stop in enumerate(mine, 1):
        if not (SWEEP or ONLY) and time.monotonic() > end:
            break
        try:
            stopped += subject.try_one(stop)
        except Failed as failed:
            if not (SWEEP or ONLY):
                raise
            failures.append(str(failed))
            print(f"   FAILED {failed}", flush=True)
            subject.abandon()
            subject.start()
        tried = number
        if (SWEEP or ONLY) and number % 20 == 0:
            print(f"   {number} of {len(mine)}, {stopped} stopped, {len(failures)} failed", flush=True)
    print(f"   {tried} of {len(mine)} tried, {stopped} stopped somebody, {len(failures)} failed; seed {SEED}")
    expect(stopped > tried / 4, "hardly anybody was stopped: this test proves nothing")
    expect(not failures, f"{len(failures)} of {tried} failed")


main()
