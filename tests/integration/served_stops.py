#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SIGSTOP to whoever takes part where nobody typed the command: in the restore of a server that is on disk and that a connection wakes, in
`checkpoint --wake`, in calls by `brumate http`, and beside `brumate serve`. One rule for all: what is asked of them meanwhile ends no later
than SPARE_S after its time, and other servers answer; once the stopped one goes on, or was killed, who waits is answered or reset, the next one is
answered, and no answer is lost or wrong.

A few of them fit into make check. All of them, or every N-th from the K-th on:

	BRUMATE_TEST_SWEEP=1 python3 tests/integration/served_stops.py
	BRUMATE_TEST_SWEEP=K/N python3 tests/integration/served_stops.py
	BRUMATE_TEST_ONLY='criu .*by connection' python3 tests/integration/served_stops.py"""

import contextlib
import dataclasses
import os
import re
import signal
import time

from cases import Failed, case, expect, main, process_start, read_text, shim_steps, wait_until
from http_client import Face
from servers import Connection, Server

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP")
ONLY = os.environ.get("BRUMATE_TEST_ONLY")
TIMEOUT_S = 1
SPARE_S = 2 if SWEEP or ONLY else 6  # in `make check` two processors start dozens of others beside it
ANSWERED_S = 30
VICTIMS = {"shim": "", "broker": ":broker", "keeper": ":keeper", "job": ":job", "reaper": ":reaper", "criu": ":criu"}
HAVE_CRIU = re.compile(r"checkpoint\.(criu-start\.end|gate|park|copy|unmap|gpu|criu|frozen|dumped)|restore\.(built|restored)")
WITHIN = {"restore": ("restore.spawned", "restore.built", "restore.restored", "agent.hello", "agent.map", "agent.open"),
          "checkpoint": ("checkpoint.frozen", "checkpoint.dumped", "store.write-manifest"), "suspend": ("agent.gate", "agent.export"),
          "resume": ("agent.map", "agent.open")}
FEW = re.compile(r"http stopped at suspend\.gate\.begin of suspend by http, then CONT")


@dataclasses.dataclass(frozen=True)
class Stop:
    """A victim that is stopped at a point of an operation, by whom that was asked for, and how it ends there."""

    victim: str
    verb: str
    point: str
    by: str
    end: str

    def __str__(self):
        return f"{self.victim} stopped at {self.point} of {self.verb} by {self.by}, then {self.end}"


def all_stops():
    found = []
    for by, verbs in (("connection", ("restore",)), ("wake", ("checkpoint",)), ("http", ("suspend", "resume", "checkpoint", "restore"))):
        for verb in verbs:
            points = [f"{step}.{side}" for step in shim_steps() if step.startswith(verb + ".") for side in ("begin", "end")]
            found += [Stop(victim, verb, point, by, end) for end in ("CONT", "KILL") for point in (*points, *WITHIN[verb]) for victim in VICTIMS
                      if (victim != "criu" or HAVE_CRIU.match(point)) and (victim != "reaper" or end == "CONT")]
            if by == "http":
                found += [Stop("http", verb, point, by, end) for end in ("CONT", "KILL") for point in points[::4]]
    return [stop for stop in found if not ONLY or re.search(ONLY, str(stop))]


class Subject:
    """A server that stops happen to, and another that they are not to matter to."""

    def __init__(self, bed):
        self.bed, self.list = bed, bed.fault_file + ".stopped"
        self.other, self.number = Server(bed, "other", mib=8), 0
        self.face = Face(bed)
        self.start()

    def start(self):
        self.number += 1
        self.it = Server(self.bed, f"model{self.number}", mib=8)
        self.it.ask()

    # Before.
    def prepare(self, stop):
        bed, it = self.bed, self.it
        it.settle()
        if stop.verb == "resume" or stop.by == "wake":
            it.suspend()
        elif stop.by == "connection":
            it.suspend()
            bed.operation("checkpoint", it.job, "--wake")
        elif stop.verb == "restore":
            bed.operation("checkpoint", it.job)

    # Meanwhile.
    def stopped(self):
        with contextlib.suppress(FileNotFoundError):
            return [int(word) for word in read_text(self.list).split()]
        return []

    def pass_it(self, stop):
        """The connection that waits, or None; and whether anybody was stopped."""
        bed, it, waiting = self.bed, self.it, None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.list)
        if stop.victim == "http":
            return None, self.stop_face(stop)
        bed.fault(stop.point, "stop" + VICTIMS[stop.victim])
        if stop.by == "connection":
            waiting = Connection(it.port, ANSWERED_S)
            waiting.send()
            wait_until(lambda: self.stopped() or it.state() == "running", f"{stop.point} to be reached")
            if self.stopped():
                self.expect_in_time(*self.timed("cli", "restore"))
        else:
            self.expect_in_time(*self.timed("http" if stop.by == "http" else "cli", stop.verb, wake=stop.by == "wake"))
        return waiting, not bed.disarm() and bool(self.stopped())

    def timed(self, how, verb, wake=False):
        """(exit code, what is said, seconds) of an operation with a time."""
        start = time.monotonic()
        if how == "cli":
            options = ["--wake"] if wake else []
            done = self.bed.cli(verb, *options, "--timeout", f"{TIMEOUT_S}s", self.it.job, timeout=60)
            return done.code, done.err, time.monotonic() - start
        _, reply = self.face.call(verb.capitalize(), **({"checkpoint": self.it.job} if verb == "restore" else {"job": self.it.job}),
                                  timeout_ms=TIMEOUT_S * 1000)
        error = reply.get("error", {"exit": 0, "text": "", "hint": ""})
        return error["exit"], f"{error['text']} {error.get('hint')}", time.monotonic() - start

    def expect_in_time(self, code, said, seconds):
        expect(seconds < TIMEOUT_S + SPARE_S, f"took {seconds:.1f} s: exit {code}: {said}")
        if code == 124:
            expect(re.search(r"waited for|waiting for|process \d+|does not answer|did not answer|stopped by a signal", said),
                   f"it does not say what it waited for: {said}")
        elif code:
            expect(said.strip(), f"exit {code} without a word")

    def stop_face(self, stop):
        """Whose client has its own time, and hangs up; jobs go on without it."""
        bed, face = self.bed, self.face
        bed.fault(stop.point, "hold")
        waiting = face.begin(stop.verb.capitalize(), **({"checkpoint": self.it.job} if stop.verb == "restore" else {"job": self.it.job}))
        with bed.holding(stop.point, face.server):
            os.kill(face.server.process.pid, signal.SIGSTOP)
            with open(self.list, "w", encoding="ascii") as file:
                file.write(f"{face.server.process.pid}\n")
        waiting.close()
        start = time.monotonic()
        listed = bed.cli("ps", timeout=60)
        expect(listed.code == 0 and time.monotonic() - start < SPARE_S, f"ps: {listed.why()}")
        return True

    def expect_others_work(self, stop):
        """What needs the broker waits for one that is stopped; and the simulated driver's ledger may be locked by a process in a call."""
        if stop.victim in ("broker", "job"):
            return
        self.other.ask()

    # Afterwards.
    def end(self, stop):
        for pid in self.stopped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if stop.end == "KILL" else signal.SIGCONT)
            if stop.end == "KILL" and stop.victim != "http":
                wait_until(lambda: process_start(pid) is None, f"the end of {pid}")  # pylint: disable=W0640
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.list)
        if stop.victim != "http":
            return
        if stop.end == "KILL":
            self.face.server.end()
            self.face = Face(self.bed)
        expect(self.face.call("List")[0] == 200, "http does not go on")

    def take_answer(self, waiting):
        """Of who waits: it is answered, or reset, which says that it is to ask again."""
        try:
            self.it.steps = max(self.it.steps, self.it.note(waiting.answer()))
        except (ConnectionError, Failed) as error:
            expect(isinstance(error, ConnectionError) or "hung up" in str(error), str(error))
        except TimeoutError as error:
            raise Failed(f"who waits is neither answered nor reset: {self.bed.job(self.it.job)}") from error
        finally:
            waiting.close()

    def expect_nothing_lost(self, stop, waiting):
        bed, it = self.bed, self.it
        bed.ok("ps")  # has another shim take over from one that was killed
        if waiting:
            self.take_answer(waiting)
        state = bed.wait_state(it.job, ("running", "suspended", "checkpointed", "exited", "lost"), 60)
        if state in ("exited", "lost"):
            expect(stop.end == "KILL" and stop.victim in ("job", "criu"), f"it is {state}: {bed.job(it.job)['message']}")
            bed.ok("rm", it.job)
            bed.jobs.remove(it.job)
            self.start()
            return
        if state == "checkpointed" and not bed.job(it.job)["ports"]:
            bed.cli("restore", it.job)
        self.ask_again()
        it.settle()
        for checkpoint in bed.checkpoints():
            bed.ok("rm", "--checkpoint", checkpoint)

    def ask_again(self):
        """One that was answered by a process that was taken down in the middle of its restore is so again: what it counted is from then."""
        connection = Connection(self.it.port, 60)
        step = self.it.note(connection.ask())
        connection.end()
        expect(step in (self.it.steps, self.it.steps + 1, self.it.steps + 2), f"answer {step} after {self.it.steps}")
        self.it.steps = step

    def try_one(self, stop):
        """Whether anybody was stopped."""
        done = False
        waiting = None
        self.prepare(stop)
        try:
            waiting, done = self.pass_it(stop)
            if done:
                self.expect_others_work(stop)
            self.end(stop)
            self.expect_nothing_lost(stop, waiting)
        except Exception as error:
            self.end(dataclasses.replace(stop, end="CONT"))
            raise Failed(f"{stop}: {error!r}") from error
        return done

    def abandon(self):
        self.bed.disarm()
        self.bed.cli("kill", "--grace", "0", self.it.job)
        self.bed.cli("rm", self.it.job)
        self.start()


def wanted():
    found = all_stops()
    if not (SWEEP or ONLY):
        return [stop for stop in found if FEW.match(str(stop))]
    first, step = map(int, (SWEEP if SWEEP and "/" in SWEEP else "1/1").split("/"))
    return found[first - 1::step]


@case
def whoever_is_stopped(bed):
    """A sweep goes on after a failure, with a new server, and tells of all of them in the end."""
    mine, stopped, failures = wanted(), 0, []
    subject = Subject(bed)
    for number, stop in enumerate(mine, 1):
        try:
            stopped += subject.try_one(stop)
        except Failed as failed:
            if not (SWEEP or ONLY):
                raise
            failures.append(str(failed))
            print(f"   FAILED {failed}", flush=True)
            subject.abandon()
        if (SWEEP or ONLY) and number % 20 == 0:
            print(f"   {number} of {len(mine)}, {stopped} stopped, {len(failures)} failed", flush=True)
    subject.face.stop()
    print(f"   {len(mine)} tried, {stopped} stopped somebody, {len(failures)} failed")
    expect(stopped > len(mine) / 4, "hardly anybody was stopped: this test proves nothing")
    expect(not failures, f"{len(failures)} of {len(mine)} failed")


def beside_serve(bed):
    """A server whose shim is stopped leaves no other one on its GPU; and what `serve` has begun ends without it, and goes on with it."""
    one, other = (Server(bed, name, mib=8) for name in ("one", "other"))
    shim = bed.shim(one.job)
    os.kill(shim, signal.SIGSTOP)
    try:
        serve = bed.spawn("serve", "--idle-after", "2s")
        other.wait_state("suspended", 60)
    finally:
        os.kill(shim, signal.SIGCONT)
    one.wait_state("suspended", 60)
    for it in (one, other):
        it.ask()
        it.settle()
    bed.fault("suspend.park.begin", "hold")
    with bed.holding("suspend.park.begin", serve):
        serve.signal(signal.SIGSTOP)
    wait_until(lambda: "suspended" in (one.state(), other.state()), "what it had begun to end")
    for it in (one, other):
        it.ask()
    serve.signal(signal.SIGCONT)
    for it in (one, other):
        it.wait_state("suspended", 60)
    serve.signal(signal.SIGTERM)
    expect(serve.end()[0] == 0, "it did not end well")


if SWEEP:
    case(beside_serve)

if __name__ == "__main__":
    main()
