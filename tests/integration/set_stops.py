#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""SIGSTOP to whoever takes part in a set that is saved or restored, at each step: the shim, CRIU, the job, its keeper, its reaper and the
broker of a node, what speaks for it, its launcher, and the coordinator. One rule for all: the command ends no later than SPARE_S after its
--timeout, and says with exit 124 who was late; no job of another node stands still any longer; and once the stopped one goes on, the set is
decided or it is not, for all members alike, and whatever data passes between them is right.

A few of them fit into make check. All of them, or every N-th from the K-th on, with so many members:

	BRUMATE_TEST_SWEEP=1 python3 tests/integration/set_stops.py
	BRUMATE_TEST_SWEEP=K/N BRUMATE_TEST_MEMBERS=3 python3 tests/integration/set_stops.py
	BRUMATE_TEST_ONLY='channel .*restore' python3 tests/integration/set_stops.py"""

import contextlib
import os
import re
import signal
import subprocess
import time

from cases import EXIT_TIMEOUT, Failed, case, expect, main, read_text, wait_until
from nodes import Nodes
from set_faults import MEMBERS, ONLY, SWEEP, Fault, Set, all_faults

FEW = re.compile(r"channel stopped at checkpoint\.criu\.begin of checkpoint$|relay stopped at restore\.map\.begin ")
BY_TEST = ("channel", "coordinator", "relay")
UNDONE_S = 6  # what was begun is taken back by then


class Stop(Fault):
    action, done = "stop", "stopped"

    def ends_member(self):
        return False


class Subject(Set):
    TIMEOUT_S = 5
    SPARE_S = 2 if SWEEP or ONLY else 6  # in `make check` two processors start dozens of others beside it

    def __init__(self, bed, nodes):
        super().__init__(bed, nodes)
        self.by_test = []

    def hit(self, pid):
        self.by_test.append(pid)
        os.kill(pid, signal.SIGSTOP)

    def lists(self):
        return [self.bed.fault_file + ".stopped", *(f"{self.nodes.dir}/{node.name}/fault.stopped" for node in self.nodes)]

    def stopped(self):
        return self.by_test + [int(word) for path in self.lists() for word in read_text(path).split()]

    def let_all_continue(self):
        for pid in self.stopped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for path in self.lists():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self.by_test.clear()

    def end_of(self, fault, process):
        leads = fault.victim.startswith("coordinator")
        try:
            if leads:
                wait_until(lambda: self.stopped() or process.poll() is not None, "it to be stopped")
            else:
                code, err = self.expect_end(process)
            if self.stopped():
                self.expect_others_free(fault)
        finally:
            self.let_all_continue()
            if process.poll() is None and not leads:
                process.kill()
        if leads:
            code, err = self.end_at_last(process)
        return code, err

    def expect_end(self, process):
        """In time, and with words."""
        code, err = super().end_of(None, process)
        seconds = time.monotonic() - self.start_s
        expect(seconds < self.TIMEOUT_S + self.SPARE_S, f"took {seconds:.1f} s: exit {code}: {err}")
        if code == EXIT_TIMEOUT:
            expect(re.search(r"member node\d:\S+", err) and re.search(r"in time|timed out", err), f"exit 124 does not say who was late: {err}")
        elif code:
            expect(err.strip(), f"exit {code} without a word")
        return code, err

    def end_at_last(self, process):
        """The coordinator's own, once it goes on: there is nothing any more that it could wait for."""
        self.start_s = time.monotonic()
        try:
            _, err = process.communicate(timeout=self.TIMEOUT_S + self.SPARE_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failed(f"the coordinator goes on, and has not ended: {process.communicate()[1]}") from error
        return process.returncode, err

    def expect_others_free(self, fault):
        """The jobs of the other nodes; where the coordinator is stopped, of all."""
        leads = fault.victim.startswith("coordinator")
        until = self.start_s + self.TIMEOUT_S + self.SPARE_S + UNDONE_S
        for node in self.nodes:
            if node is self.node and not leads:
                continue
            wait_until(lambda n=node: n.jobs("--all")[0]["state"] in ("running", "checkpointed"), f"the job of {node.name} to stand still no more",
                       max(until - time.monotonic(), 1))


def wanted():
    found = all_faults(Stop, BY_TEST)
    if not (SWEEP or ONLY):
        return [stop for stop in found if FEW.match(str(stop))]
    first, step = map(int, (SWEEP if SWEEP and "/" in SWEEP else "1/1").split("/"))
    return found[first - 1::step]


@case
def whoever_is_stopped(bed):
    """A sweep goes on after a failure, with a new ring, and tells of all of them in the end."""
    mine, stopped, failures = wanted(), 0, []
    with Nodes(bed, MEMBERS) as nodes:
        subject = Subject(bed, nodes)
        subject.start()
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
    print(f"   {len(mine)} tried, {stopped} stopped somebody, {len(failures)} failed")
    expect(stopped > len(mine) / 4, "hardly anybody was stopped: this test proves nothing")
    expect(not failures, f"{len(failures)} of {len(mine)} failed")


@case
def who_interrupts_twice(bed):
    """The first time all give up, which one that is stopped does not say; the second time nobody waits for that."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring(mib=4, interval_ms=10)
        subject = Subject(bed, nodes)
        with bed.held_at("set.all-idle", *nodes.set_argv("checkpoint", "--timeout", "0", "--name", "never", *nodes.members())[1:]) as command:
            for pid in subject.channels(nodes[1]):
                subject.hit(pid)
        command.signal(signal.SIGINT)
        wait_until(lambda: len(subject.channels(nodes[0])) == 0, "the other one to give up")
        expect(command.process.poll() is None, "it has not waited for the one that is stopped")
        command.signal(signal.SIGINT)
        code, _, err = command.end(20)
        expect(code and "cancelled" in err and "member node1:" in err and "has not said yet" in err, f"{code}: {err}")
        wait_until(lambda: subject.states() == ["running"] * 2, "both jobs to run on")
        nodes.go_on()
        wait_until(lambda: not nodes.left(), f"nothing to be left: {nodes.left()}")


if __name__ == "__main__":
    main()
