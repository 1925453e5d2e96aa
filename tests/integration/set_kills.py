#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SIGKILL to whoever takes part in a set that is saved or restored, at each step: the shim, CRIU, the job, its keeper, its reaper and the
broker of a node, what speaks for it, its launcher, and the coordinator. One rule for all: the command ends in its time; the set is decided or it is not,
for all members alike; and whatever data passes between them afterwards is right, so no connection is still held.

A slice of them fits into make check. All of them, or every N-th from the K-th on, with so many members:

	BRUMATE_TEST_SWEEP=1 python3 tests/integration/set_kills.py
	BRUMATE_TEST_SWEEP=K/N BRUMATE_TEST_MEMBERS=3 python3 tests/integration/set_kills.py
	BRUMATE_TEST_ONLY='keeper .*restore' python3 tests/integration/set_kills.py"""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

from cases import Failed, case, expect, main, read_text, run, shim_steps, wait_until
from nodes import Nodes

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP")
ONLY = os.environ.get("BRUMATE_TEST_ONLY")
MEMBERS = int(os.environ.get("BRUMATE_TEST_MEMBERS", "2"))
SLICE, ALWAYS = "5/46", re.compile(r"channel killed at restore\.open\.begin ")
TIMEOUT_S, SPARE_S, SETTLES_S = 20, 15, 60  # to give up takes the coordinator 10 s where somebody does not answer
WITHIN = {
    "checkpoint": ("checkpoint.at-ready", "agent.gate", "checkpoint.at-idle", "agent.export", "checkpoint.frozen", "checkpoint.dumped",
                   "checkpoint.at-held", "store.write-manifest", "store.rename", "checkpoint.at-stored"),
    "restore": ("restore.at-ready", "restore.built", "restore.restored", "restore.at-built", "agent.hello", "agent.map", "agent.own",
                "restore.at-filled", "agent.open"),
}
OF_ALL = {"checkpoint": ("set.all-ready", "set.all-idle", "set.all-held", "set.all-stored", "set.committed", "set.done"),
          "restore": ("set.all-ready", "set.all-built", "set.all-filled", "set.committed", "set.done")}
BY_SHIM = {"shim": "kill", "criu": "kill:criu", "job": "kill:job", "keeper": "kill:keeper", "reaper": "kill:reaper", "broker": "kill:broker"}
BY_TEST = ("channel", "coordinator", "relay", "shell")
HAVE_CRIU = re.compile(r"checkpoint\.(criu-start\.end|meet|gate|park|copy|unmap|gpu|criu|frozen|dumped|at-idle|at-held)|"
                       r"restore\.(criu|built|restored)|agent\.(gate|export)")


# One that passes on what is said, as ssh and srun do, and one that only waits, as the shell of `sh -c "...; ..."`.
LAUNCHERS = {
    "relay": """#!{python}
import os, subprocess, sys, threading
there = subprocess.Popen(["{on}", *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
def pass_on(source, to):
    while said := os.read(source, 65536):
        os.write(to, said)
    os.close(to)
threading.Thread(target=pass_on, args=(0, there.stdin.fileno()), daemon=True).start()
pass_on(there.stdout.fileno(), 1)
sys.exit(there.wait())
""",
    "shell": """#!/bin/sh
"{on}" "$@"
exit $?
""",
}


@dataclasses.dataclass(frozen=True)
class Kill:
    """Of a victim on one node, at a point of its shim; or of the coordinator at one of its own."""

    victim: str
    verb: str
    point: str
    goes_on: bool = False  # the members, after a checkpoint

    def __str__(self):
        return f"{self.victim} killed at {self.point} of {self.verb}{' -R' if self.goes_on else ''}"


def all_kills():
    steps = shim_steps()
    found = []
    for verb in ("checkpoint", "restore"):
        points = [f"{step}.{side}" for step in steps if step.startswith(verb + ".") for side in ("begin", "end")]
        for goes_on in (False, True)[:2 if verb == "checkpoint" else 1]:
            found += [Kill(victim, verb, point, goes_on) for point in (*points, *WITHIN[verb]) for victim in (*BY_SHIM, *BY_TEST)
                      if victim != "criu" or HAVE_CRIU.match(point)]
            found += [Kill("coordinator itself", verb, point, goes_on) for point in OF_ALL[verb]]
    return [kill for kill in found if not ONLY or re.search(ONLY, str(kill))]


class Set:
    """A ring, whose set "kept" is there while it is restored."""

    def __init__(self, bed, nodes):
        self.bed, self.nodes, self.number = bed, nodes, 0
        for name, text in LAUNCHERS.items():
            with open(f"{nodes.dir}/{name}", "w", encoding="utf-8") as file:
                file.write(text.format(python=sys.executable, on=nodes.on))
            os.chmod(f"{nodes.dir}/{name}", 0o700)

    def start(self):
        for node in self.nodes:
            for job in node.jobs("--all"):
                node.ok("rm", job["id"])
        self.forget_logs()
        self.nodes.start_ring(mib=4, interval_ms=10)
        self.alive = True

    @staticmethod
    def log_of(node):
        return f"{node.nodes.dir}/{node.name}/log/ring.log"

    def states(self):
        """Of the last job of each node."""
        return [node.jobs("--all")[0]["state"] for node in self.nodes]

    # The kill.
    def run(self, kill, argv):
        """(exit code, stderr), and whether anybody was killed."""
        self.number += 1
        node = self.nodes[self.number % len(self.nodes.nodes)]
        self.node, start = node, time.monotonic()
        if kill.victim == "coordinator itself":
            self.bed.fault(kill.point, "kill")
            done = run(argv, env=self.bed.command_env(), timeout=TIMEOUT_S + SPARE_S)
            return done.code, done.err, not self.bed.disarm()
        if kill.victim in LAUNCHERS:
            argv = [f"{self.nodes.dir}/{kill.victim} %n" if word == f"{self.nodes.on} %n" else word for word in argv]
        self.nodes.fault(node, kill.point, BY_SHIM.get(kill.victim, "hold"))
        process = subprocess.Popen(argv, env=self.bed.command_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        killed = True
        if kill.victim in BY_TEST:
            killed = self.kill_held(kill, node, process)
        try:
            _, err = process.communicate(timeout=TIMEOUT_S + SPARE_S - (time.monotonic() - start))
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failed(f"the coordinator has not ended: {process.communicate()[1]}") from error
        return process.returncode, err, not self.disarm(node) and killed

    def kill_held(self, kill, node, process):
        """Whether the point was passed."""
        fault = f"{self.nodes.dir}/{node.name}/fault"
        wait_until(lambda: (not os.path.exists(fault) and os.path.exists(fault + ".held")) or process.poll() is not None, "the point")
        if not os.path.exists(fault + ".held"):
            return False
        if kill.victim == "coordinator":
            process.kill()
        else:
            for pid in self.launchers(kill.victim, node, process) if kill.victim in LAUNCHERS else self.channels(node):
                os.kill(pid, signal.SIGKILL)
        with open(fault + ".held", "wb"):
            pass
        return True

    def channels(self, node):
        here = os.readlink(f"/proc/{node.holder.pid}/ns/mnt")
        found = []
        for pid in self.nodes.processes():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/ns/mnt") == here and read_text(f"/proc/{pid}/cmdline").split("\0")[1:3] == ["set", "member"]:
                    found.append(pid)
        return found

    def launchers(self, name, node, process):
        children = read_text(f"/proc/{process.pid}/task/{process.pid}/children").split()
        found = [int(pid) for pid in children if {f"{self.nodes.dir}/{name}", node.name} <= set(read_text(f"/proc/{pid}/cmdline").split("\0"))]
        expect(len(found) == 1, f"launchers of {node.name}: {found}")
        return found

    def disarm(self, node):
        try:
            os.unlink(f"{self.nodes.dir}/{node.name}/fault")
            return True
        except FileNotFoundError:
            return False

    # What came of it.
    def settled(self, *states):
        """All members are in one of these: a dead shim is replaced by the command that asks."""
        wait_until(lambda: all(s in states for s in self.states()), f"all members to be {' or '.join(states)}: {self.states()}", SETTLES_S)
        return self.states()

    def expect_saved(self, kill, code, decided):
        if not decided:
            expect(code, "exit 0, and there is no set")
            runs = self.expect_running(kill)
            wait_until(lambda: not self.nodes.left(), f"nothing to be left: {self.nodes.left()}", SETTLES_S)
            return runs
        if kill.goes_on:
            return self.expect_running(kill)
        self.settled("checkpointed")
        return False

    def expect_running(self, kill):
        """All run on; False where the job itself was killed, with whom a rank ends whose neighbour it is."""
        if kill.victim not in ("job", "reaper"):
            self.settled("running")
            self.nodes.go_on(2)
            return True
        try:
            expect(self.settled("running", "exited", "lost") == ["running"] * len(self.nodes.nodes), "one has ended")
            self.nodes.go_on(2)
            return True
        except Failed as failed:
            why = failed
        wait_until(lambda: self.states()[self.nodes.nodes.index(self.node)] in ("exited", "lost"), f"the end of the killed one: {why}")
        return False

    def end_all(self):
        for node in self.nodes:
            for job in node.jobs("--all"):
                if job["state"] not in ("exited", "lost", "checkpointed"):
                    node.cli("kill", "--grace", "0", job["id"])
                    wait_until(lambda n=node, j=job: n.state_of(j["id"]) in ("exited", "lost"), "the end of a job")

    def forget_logs(self):
        for node in self.nodes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.log_of(node))

    def restore(self):
        """Of what was decided; what is written since comes again."""
        self.end_all()
        self.forget_logs()
        self.nodes.set_ok("restore", "kept")
        self.nodes.go_on(2)

    def save(self, kill):
        argv = self.nodes.set_argv("checkpoint", *(["-R"] if kill.goes_on else []), "--timeout", f"{TIMEOUT_S}s", "--name", "kept",
                                   *self.nodes.members())
        code, err, killed = self.run(kill, argv)
        try:
            decided = os.path.exists(f"{self.nodes.store}/.sets/kept")
            expect(decided or kill.victim != "shell", "nobody needs that shell, and there is no set")
            runs = self.expect_saved(kill, code, decided)
            if decided:
                self.restore()
                self.nodes.set_ok("rm", "kept")
            elif not runs:
                self.end_all()
                self.alive = False
        except Failed as failed:
            raise Failed(f"{failed} (said, {code}: {err.strip()[-300:]})") from failed
        return killed

    def bring_back(self, kill):
        self.nodes.set_ok("checkpoint", "--name", "kept", *self.nodes.members())
        code, err, killed = self.run(kill, self.nodes.set_argv("restore", "--timeout", f"{TIMEOUT_S}s", "kept"))
        try:
            states = self.settled("running", "checkpointed", *(("exited", "lost") if kill.victim in ("job", "reaper") else ()))
            expect(code == 0 or kill.victim != "shell", "nobody needs that shell, and the set is not back")
            expect(len(set(states)) == 1 or kill.victim in ("job", "reaper"), f"some are back: {states}")
            if states == ["running"] * len(states) and (code == 0 or kill.victim not in ("job", "reaper")):
                self.nodes.go_on(2)
            else:
                expect(code or kill.victim in ("job", "reaper"), f"exit 0, and they are {states}")
                self.restore()
            self.nodes.set_ok("rm", "kept")
            wait_until(lambda: not self.nodes.left() and not self.nodes.open_decisions(), f"nothing to be left: {self.nodes.left()}", SETTLES_S)
        except Failed as failed:
            raise Failed(f"{failed} (said, {code}: {err.strip()[-300:]})") from failed
        return killed

    def try_one(self, kill):
        """Whether anybody was killed."""
        if not self.alive:
            self.start()
        try:
            return (self.save if kill.verb == "checkpoint" else self.bring_back)(kill)
        except Failed as failed:
            raise Failed(f"{kill}: {failed}") from failed

    def abandon(self):
        self.end_all()
        self.nodes.set("rm", "kept")
        self.alive = False


def wanted():
    first, step = map(int, (SWEEP if SWEEP and "/" in SWEEP else "1/1" if SWEEP or ONLY else SLICE).split("/"))
    found = all_kills()
    return [kill for n, kill in enumerate(found) if n % step == first - 1 or (step > 16 and ALWAYS.match(str(kill)))]


@case
def whoever_is_killed(bed):
    """A sweep goes on after a failure, with a new ring, and tells of all of them in the end."""
    mine, killed, failures = wanted(), 0, []
    with Nodes(bed, MEMBERS) as nodes:
        subject = Set(bed, nodes)
        subject.start()
        for number, kill in enumerate(mine, 1):
            try:
                killed += subject.try_one(kill)
            except Failed as failed:
                if not (SWEEP or ONLY):
                    raise
                failures.append(str(failed))
                print(f"   FAILED {failed}", flush=True)
                subject.abandon()
            if (SWEEP or ONLY) and number % 20 == 0:
                print(f"   {number} of {len(mine)}, {killed} killed, {len(failures)} failed", flush=True)
    print(f"   {len(mine)} tried, {killed} killed somebody, {len(failures)} failed")
    expect(killed > len(mine) / 4, "hardly anybody was killed: this test proves nothing")
    expect(not failures, f"{len(failures)} of {len(mine)} failed")


if __name__ == "__main__":
    main()
