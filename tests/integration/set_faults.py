# SPDX-License-Identifier: MIT
"""A ring over nodes that is saved and restored as a set while something happens to one of those who take part, at each step: to the shim,
CRIU, the job, its keeper, its reaper and the broker of a node, to what speaks for it, its launcher, and the coordinator."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

from cases import Failed, expect, read_text, shim_steps, wait_until

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP")
ONLY = os.environ.get("BRUMATE_TEST_ONLY")
MEMBERS = int(os.environ.get("BRUMATE_TEST_MEMBERS", "2"))
SETTLES_S = 60
WITHIN = {
    "checkpoint": ("checkpoint.at-ready", "agent.gate", "checkpoint.at-idle", "agent.export", "checkpoint.frozen", "checkpoint.dumped",
                   "checkpoint.at-held", "store.write-manifest", "store.rename", "checkpoint.at-stored"),
    "restore": ("restore.at-ready", "restore.built", "restore.restored", "restore.at-built", "agent.hello", "agent.map", "agent.own",
                "restore.at-filled", "agent.open"),
}
OF_ALL = {"checkpoint": ("set.all-ready", "set.all-idle", "set.all-held", "set.all-stored", "set.committed", "set.done"),
          "restore": ("set.all-ready", "set.all-built", "set.all-filled", "set.committed", "set.done")}
# Whom the shim hits there. "": itself.
BY_SHIM = {"shim": "", "criu": ":criu", "job": ":job", "keeper": ":keeper", "reaper": ":reaper", "broker": ":broker"}
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
class Fault:
    """Of a victim on one node, at a point of its shim; or of the coordinator at one of its own."""

    victim: str
    verb: str
    point: str
    goes_on: bool = False  # the members, after a checkpoint

    action, done = "kill", "killed"

    def __str__(self):
        return f"{self.victim} {self.done} at {self.point} of {self.verb}{' -R' if self.goes_on else ''}"

    def ends_member(self):
        """A rank ends whose neighbour it is."""
        return self.victim in ("job", "reaper")


def all_faults(kind, by_test=BY_TEST):
    steps = shim_steps()
    found = []
    for verb in ("checkpoint", "restore"):
        points = [f"{step}.{side}" for step in steps if step.startswith(verb + ".") for side in ("begin", "end")]
        for goes_on in (False, True)[:2 if verb == "checkpoint" else 1]:
            found += [kind(victim, verb, point, goes_on) for point in (*points, *WITHIN[verb]) for victim in (*BY_SHIM, *by_test)
                      if victim != "criu" or HAVE_CRIU.match(point)]
            found += [kind("coordinator itself", verb, point, goes_on) for point in OF_ALL[verb]]
    return [fault for fault in found if not ONLY or re.search(ONLY, str(fault))]


class Set:
    """A ring, whose set "kept" is there while it is restored."""

    TIMEOUT_S, SPARE_S = 20, 15  # to give up takes the coordinator 10 s where somebody does not answer

    def __init__(self, bed, nodes):
        self.bed, self.nodes, self.number = bed, nodes, 0
        self.node, self.start_s = None, 0.0
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

    # The fault.
    def run(self, fault, argv):
        """(exit code, stderr), and whether it happened to anybody."""
        self.number += 1
        node = self.node = self.nodes.nodes[self.number % len(self.nodes.nodes)]
        self.start_s, happened = time.monotonic(), True
        itself = fault.victim == "coordinator itself"
        if itself:
            self.bed.fault(fault.point, fault.action)
        else:
            self.nodes.fault(node, fault.point, fault.action + BY_SHIM[fault.victim] if fault.victim in BY_SHIM else "hold")
        if fault.victim in LAUNCHERS:
            argv = [f"{self.nodes.dir}/{fault.victim} %n" if word == f"{self.nodes.on} %n" else word for word in argv]
        process = subprocess.Popen(argv, env=self.bed.command_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        if fault.victim in BY_TEST:
            happened = self.hit_held(fault, node, process)
        code, err = self.end_of(fault, process)
        return code, err, not (self.bed.disarm() if itself else self.disarm(node)) and happened

    def end_of(self, fault, process):  # pylint: disable=unused-argument
        """Of the command: (exit code, stderr)."""
        try:
            _, err = process.communicate(timeout=self.TIMEOUT_S + self.SPARE_S - (time.monotonic() - self.start_s))
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failed(f"the coordinator has not ended: {process.communicate()[1]}") from error
        return process.returncode, err

    def hit(self, pid):
        os.kill(pid, signal.SIGKILL)

    def hit_held(self, fault, node, process):
        """Whether the point was passed."""
        path = f"{self.nodes.dir}/{node.name}/fault"
        wait_until(lambda: (not os.path.exists(path) and os.path.exists(path + ".held")) or process.poll() is not None, "the point")
        if not os.path.exists(path + ".held"):
            return False
        if fault.victim == "coordinator":
            self.hit(process.pid)
        else:
            for pid in self.launchers(fault.victim, node, process) if fault.victim in LAUNCHERS else self.channels(node):
                self.hit(pid)
        with open(path + ".held", "wb"):
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

    def expect_saved(self, fault, code, decided):
        if not decided:
            expect(code, "exit 0, and there is no set")
            runs = self.expect_running(fault)
            wait_until(lambda: not self.nodes.left(), f"nothing to be left: {self.nodes.left()}", SETTLES_S)
            return runs
        if fault.goes_on:
            return self.expect_running(fault)
        self.settled("checkpointed")
        return False

    def expect_running(self, fault):
        """All run on; False where the job itself was hit, with whom a rank ends whose neighbour it is."""
        if not fault.ends_member():
            self.settled("running")
            self.nodes.go_on(2)
            return True
        try:
            expect(self.settled("running", "exited", "lost") == ["running"] * len(self.nodes.nodes), "one has ended")
            self.nodes.go_on(2)
            return True
        except Failed as failed:
            why = failed
        wait_until(lambda: self.states()[self.nodes.nodes.index(self.node)] in ("exited", "lost"), f"the end of the one that was hit: {why}")
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

    def save(self, fault):
        argv = self.nodes.set_argv("checkpoint", *(["-R"] if fault.goes_on else []), "--timeout", f"{self.TIMEOUT_S}s", "--name", "kept",
                                   *self.nodes.members())
        code, err, happened = self.run(fault, argv)
        try:
            decided = os.path.exists(f"{self.nodes.store}/.sets/kept")
            expect(decided or fault.victim != "shell", "nobody needs that shell, and there is no set")
            runs = self.expect_saved(fault, code, decided)
            if decided:
                self.restore()
                self.nodes.set_ok("rm", "kept")
            elif not runs:
                self.end_all()
                self.alive = False
        except Failed as failed:
            raise Failed(f"{failed} (said, {code}: {err.strip()[-300:]})") from failed
        return happened

    def bring_back(self, fault):
        self.nodes.set_ok("checkpoint", "--name", "kept", *self.nodes.members())
        code, err, happened = self.run(fault, self.nodes.set_argv("restore", "--timeout", f"{self.TIMEOUT_S}s", "kept"))
        try:
            states = self.settled("running", "checkpointed", *(("exited", "lost") if fault.ends_member() else ()))
            expect(code == 0 or fault.victim != "shell", "nobody needs that shell, and the set is not back")
            expect(len(set(states)) == 1 or fault.ends_member(), f"some are back: {states}")
            if states == ["running"] * len(states) and (code == 0 or not fault.ends_member()):
                self.nodes.go_on(2)
            else:
                expect(code or fault.ends_member(), f"exit 0, and they are {states}")
                self.restore()
            self.nodes.set_ok("rm", "kept")
            wait_until(lambda: not self.nodes.left() and not self.nodes.open_decisions(), f"nothing to be left: {self.nodes.left()}", SETTLES_S)
        except Failed as failed:
            raise Failed(f"{failed} (said, {code}: {err.strip()[-300:]})") from failed
        return happened

    def try_one(self, fault):
        """Whether it happened to anybody."""
        if not self.alive:
            self.start()
        try:
            return (self.save if fault.verb == "checkpoint" else self.bring_back)(fault)
        except Failed as failed:
            raise Failed(f"{fault}: {failed}") from failed

    def abandon(self):
        self.end_all()
        self.nodes.set("rm", "kept")
        self.alive = False
