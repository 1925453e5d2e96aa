#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Servers of `run --wake` that share a GPU which has not room for all of them: who is asked comes, and who was asked longest ago
leaves."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time

from cases import case, expect, main, wait_until
from harness import SOURCE
from servers import Connection, Server

GPU_MIB = 1024
ENV = {"BRUMATE_SIM_VRAM_MIB": str(GPU_MIB)}


def configure(bed, text="MinResident=300ms\n"):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Run]\n" + text)


def events(bed, kind):
    lines = [json.loads(line) for line in bed.cli("events", "--format", "json").out.splitlines()]
    return [e for e in lines if e["event"] == kind]


def start(bed, n, mib=384, **more):
    bed.own.update(ENV)
    return [Server(bed, f"model{i}", mib=mib, **more) for i in range(n)]


def in_threads(functions):
    """Calls all of them at once, and fails where one did."""
    failed = []

    def guarded(function):
        try:
            function()
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)
    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    expect(not failed, failed)
    expect(not any(t.is_alive() for t in threads), "a request hangs")


@case
def six_servers_on_a_gpu_for_two(bed):
    configure(bed)
    servers = start(bed, 6)
    expect(sum(s.state() == "running" for s in servers) <= 2, "they do not fit")
    chosen = random.Random(1).choices(servers, [1 / (k + 1) for k in range(6)], k=24)
    for s in chosen:
        s.ask()
    expect([s.steps for s in servers] == [chosen.count(s) for s in servers], "answers are lost")
    expect(events(bed, "leave") and events(bed, "wake"), "nobody left")
    expect(all(e["for"] for e in events(bed, "leave")), events(bed, "leave"))


@case
def all_are_asked_at_once(bed):
    configure(bed)
    servers = start(bed, 4)
    for _ in range(2):
        in_threads([s.ask for s in servers])
    expect(all(s.steps == 2 for s in servers), [s.steps for s in servers])


@case
def two_that_throw_each_other_out(bed):
    """Both go on being answered, and the events say that they do so."""
    configure(bed, "MinResident=50ms\n")
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "96"
    servers = [Server(bed, name, mib=48) for name in ("one", "other")]
    enough = threading.Event()

    def client(it):
        while not enough.is_set():
            it.ask()

    def look():
        try:
            wait_until(lambda: any(e["turns"] >= 3 for e in events(bed, "leave")), "them to take turns", 90)
        finally:
            enough.set()
    in_threads([lambda s=s: client(s) for s in servers] + [look])
    shown = [bed.job(s.job)["turns"] for s in servers]
    expect(max(shown, key=lambda n: n or 0) >= 3, shown)
    page = bed.cli("inspect", servers[shown.index(max(shown, key=lambda n: n or 0))].job).out
    expect(re.search(r"\(\d+ turns\)", bed.cli("ps").out) and "have thrown each other out" in page, page)
    last = [e for e in events(bed, "leave") if e["turns"] >= 3][-1]
    expect(f"thrown each other out {last['turns']} times in turn" in last["reason"], last)


@case
def the_one_asked_longest_ago_leaves(bed):
    configure(bed)
    first, second = start(bed, 2)
    for it in (first, second):  # what has a copy in host memory counts as idle for longer: both have one
        it.suspend()
        it.ask()
    for early, late in ((first, second), (second, first)):
        early.ask()
        wait_until(lambda it=early: (bed.job(it.job)["idle_ms"] or 0) >= 2100, "a time without a use, which is known to within a second")
        late.ask()
        wait_until(lambda: first.state() == second.state() == "running", "both to be there")
        third = Server(bed, f"third{late.name}", mib=384)
        third.ask()
        expect((early.state(), late.state()) == ("suspended", "running"), f"the wrong one left: {early.state()}, {late.state()}, {events(bed, 'leave')}")
        bed.end(third.job)


@case
def a_pinned_one_stays(bed):
    configure(bed)
    pinned = start(bed, 1, options=("--wake", "--label", "brumate.pin=yes"))[0]
    others = [Server(bed, f"other{i}", mib=384) for i in range(2)]
    for s in (*others, *others):
        s.ask()
    expect(pinned.state() == "running", "it left")
    pinned.ask()


@case
def priority_comes_first(bed):
    """Those of lower priority neither have a higher one leave, nor come before it."""
    configure(bed, "MinResident=100ms\nWakeWait=1s\n")
    low = start(bed, 1, mib=640, options=("--wake", "--priority=-5"))[0]
    high = Server(bed, "high", mib=640, options=("--wake", "--priority=5"))
    expect((low.state(), high.state()) == ("suspended", "running"), "the high one did not get room")
    c = Connection(low.port)
    c.send()
    wait_until(lambda: (bed.job(low.job)["message"] or "").startswith("stuck"), "the low one to wait")
    high.ask()
    expect(high.state() == "running", "it left for one of lower priority")
    bed.operation("suspend", high.job)
    low.steps = low.note(c.answer())
    c.close()
    high.ask()


@case
def one_of_lower_priority_comes_in_the_end(bed):
    """However much the higher one is asked: each 30 s of waiting count as one more."""
    configure(bed, "MinResident=100ms\n")
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "96"
    low, high = (Server(bed, f"of{n}", mib=48, options=("--wake", f"--priority={n}")) for n in (0, 1))
    answered = threading.Event()

    def keep_asking():
        while not answered.is_set():
            high.ask()

    def wait():
        try:
            began = time.monotonic()
            connection = Connection(low.port, 110)
            low.steps = low.note(connection.ask())
            connection.close()
            expect(time.monotonic() - began > 20, "priority did not count")
        finally:
            answered.set()
    in_threads([keep_asking, wait])


@case
def a_resume_that_waits_has_another_leave(bed):
    configure(bed)
    it = start(bed, 1, mib=640)[0]
    bed.own.update(ENV)
    other = Server(bed, "other", mib=640)
    expect(it.state() == "suspended", "it did not leave for a job that starts")
    bed.refused(10, "free", "resume", it.job)
    bed.operation("resume", it.job, "--wait", "60s")
    expect((it.state(), other.state()) == ("running", "suspended"), "the other did not leave")
    it.ask()
    other.ask()


@case
def a_server_that_cannot_have_room_is_out_of_memory(bed):
    """Those who share leave; then it is as without brumate."""
    configure(bed, "MinResident=100ms\nWakeWait=1s\n")
    it = start(bed, 1)[0]
    it.ask()
    job = bed.run([bed.program("counter"), "--mib", GPU_MIB, "--chunk-mib", 64], name="greedy", options=("--wake",))
    wait_until(lambda: bed.state(job) == "exited", "it to end")
    expect("OUT_OF_MEMORY" in bed.log(job).text(), bed.log(job).tail())
    it.ask()


@case
def a_shim_that_dies_while_it_waits(bed):
    configure(bed)
    first, second, third = start(bed, 3)
    asleep = next(s for s in (first, second, third) if s.state() == "suspended")
    bed.fault("suspend.park.begin", "kill:shim")  # of the one that is asked to leave
    asleep.ask()
    for s in (first, second, third):
        s.ask()
    asleep = next(s for s in (first, second, third) if s.state() == "suspended")
    shim = bed.shim(asleep.job)
    c = Connection(asleep.port)
    c.send()
    os.kill(shim, signal.SIGKILL)
    asleep.steps = asleep.note(c.answer())
    c.close()
    expect(not os.listdir(os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "turns")) or
           wait_until(lambda: not os.listdir(os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "turns")), "turns to end"), "a turn is left")


@case
def by_a_program_that_starts_and_stops_commands(bed):
    """The example for llama-swap."""
    configure(bed)
    first, second = start(bed, 2, mib=640)
    for it, other in ((first, second), (second, first), (first, second)):
        env = {**bed.command_env(), "PATH": os.path.dirname(bed.brumate) + ":" + os.environ["PATH"]}
        with subprocess.Popen([os.path.join(SOURCE, "examples", "stay-awake"), it.job], env=env, stdout=subprocess.DEVNULL) as command:
            it.wait_state("running", 60)
            it.ask()
            expect(other.state() == "suspended", "both are awake")
            command.terminate()
            expect(command.wait(60) == 0, f"stay-awake ends with {command.returncode}")
        expect(it.state() == "suspended", "it is not suspended")


if __name__ == "__main__":
    main()
