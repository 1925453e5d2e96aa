#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate swap`: one job leaves its GPU while another comes back to it, or neither; whoever is killed meanwhile."""

import contextlib
import json
import os
import signal

from cases import EXIT_FROZEN, as_user, case, expect, main, read_text, wait_until
from servers import Connection, Server

GPU_MIB = 256
POINTS = [
    "group.forward.begin",
    "group.step.end",
    "group.forward.end",
    "group.commit.begin",
]


def start(bed, mib=160, first_mib=160):
    """Two that do not fit at once; the first is there."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = str(GPU_MIB)
    second = Server(bed, "second", mib=mib)
    second.ask()
    second.suspend()
    first = Server(bed, "first", mib=first_mib)
    first.ask()
    return first, second


def groups(bed):
    path = os.path.join(bed.own["BRUMATE_STATE_DIR"], "groups")
    return os.listdir(path) if os.path.isdir(path) else []


def expect_states(first, second, states):
    expect((first.state(), second.state()) == states, f"{first.state()}, {second.state()}, expected {states}")


def swap(bed, leaves, comes):
    result = bed.cli("swap", leaves.job, comes.job)
    expect(result.code == 0, result.why())


def both_answer(*servers):
    for s in servers:
        s.ask()
        s.wait_state("running")


@case
def there_and_back(bed):
    first, second = start(bed)
    for out, come in ((first, second), (second, first), (first, second)):
        swap(bed, out, come)
        expect_states(out, come, ("suspended", "running"))
        come.ask()
    expect(not groups(bed), "a record is left")
    again = bed.cli("swap", first.name, second.name, "--format", "json")
    answer = json.loads(again.out)
    expect(answer["gone"] is None and answer["come"] is None, answer)
    both_answer(first, second)


@case
@as_user
def of_a_user(bed):
    first, second = start(bed)
    swap(bed, first, second)
    expect_states(first, second, ("suspended", "running"))
    both_answer(first, second)


@case
def what_cannot_be_swapped(bed):
    first, second = start(bed)
    bed.refused(2, "itself", "swap", first.job, first.name)
    bed.refused(3, "no job", "swap", first.job, "nobody")
    third = bed.run([bed.program("counter"), "--mib", 8, "--chunk-mib", 8], name="third")
    bed.cli("kill", third)
    wait_until(lambda: bed.state(third) == "exited", "it to end")
    bed.refused(3, "exited", "swap", first.job, third)
    expect_states(first, second, ("running", "suspended"))
    expect(not groups(bed), "a record is left")


@case
def who_cannot_come_has_the_other_back(bed):
    """Another program has taken the memory."""
    first, second = start(bed, first_mib=48)
    third = Server(bed, "third", mib=112)
    third.ask()
    expect(first.state() == "running", "the third did not fit beside it")
    bed.refused(10, "free", "swap", first.job, second.job)
    expect_states(first, second, ("running", "suspended"))
    expect(third.state() == "running", "one that is not of the swap had to leave")
    expect(not groups(bed), "a record is left")
    both_answer(first, second, third)


@case
def steps_that_fail(bed):
    """Of each of both."""
    first, second = start(bed)
    for point in ("suspend.park.begin", "suspend.data-out.end", "resume.gpu-restore.begin", "resume.data-in.end"):
        bed.fault(point, "error:5")
        result = bed.cli("swap", first.job, second.job)
        expect(bed.has_fired() and result.code, f"{point}: {result.code} {result.err}")
        expect_states(first, second, ("running", "suspended"))
        expect(not groups(bed), f"{point}: a record is left")
        first.ask()
    swap(bed, first, second)
    both_answer(second, first)


@case
def its_command_is_killed(bed):
    """At each step: what the record says is done by the next command."""
    first, second = start(bed)
    for point in POINTS:
        bed.fault(point, "kill")
        result = bed.cli("swap", first.job, second.job)
        expect(result.code and bed.has_fired(), f"{point}: {result.code}")
        expect(groups(bed), f"{point}: no record is left")
        bed.cli("ps")
        expect_states(first, second, ("running", "suspended"))
        expect(not groups(bed), f"{point}: the record stays")
        first.ask()
    swap(bed, first, second)
    both_answer(second, first)


@case
def its_command_is_killed_on_the_way_back(bed):
    first, second = start(bed)
    for point in ("group.back.begin", "group.step.end", "group.back.end"):
        bed.fault("resume.data-in.begin", "error:5", f"{point} kill")
        result = bed.cli("swap", first.job, second.job)
        expect(result.code and bed.has_fired(), f"{point}: {result.code}")
        bed.cli("ps")
        expect_states(first, second, ("running", "suspended"))
        expect(not groups(bed), f"{point}: the record stays")
        first.ask()
    both_answer(second, first)


@case
def shims_that_are_killed(bed):
    first, second = start(bed)
    for point in ("suspend.settle.begin", "resume.copy.end"):
        bed.fault(point, "kill:shim")
        swap(bed, first, second)
        expect(bed.has_fired(), point)
        bed.cli("ps")
        states = first.state(), second.state()
        expect(states in (("running", "suspended"), ("suspended", "running")), f"{point}: {states}")
        expect(not groups(bed), f"{point}: the record stays")
        both_answer(first, second)
        swap(bed, second, first)


def undone(bed):
    """Whether a command has nothing to put right any more."""
    bed.cli("ps", timeout=60)
    return not groups(bed)


@contextlib.contextmanager
def stopped_in_a_swap(bed, point, leaves, comes):
    """A shim is stopped there, the swap fails because of that and is not undone yet. At the end the shim goes on, and so does that."""
    bed.fault(point, "stop")
    result = bed.cli("swap", leaves.job, comes.job, timeout=60)
    shim = int(read_text(bed.fault_file + ".stopped"))
    try:
        expect(result.code == EXIT_FROZEN and "was stopped by a signal" in result.err, result.why())
        expect(groups(bed), "what cannot be undone yet is forgotten")
        yield
    finally:
        os.kill(shim, signal.SIGCONT)
    wait_until(lambda: undone(bed), "the swap to be undone")


@case
def a_shim_that_is_stopped(bed):
    """Half back: the other one cannot come back beside it and waits for it, but not without end."""
    first, second = start(bed)
    with stopped_in_a_swap(bed, "resume.data-in.begin", first, second):
        expect_states(first, second, ("suspended", "resuming"))
        expect(not undone(bed), "what cannot be undone yet is forgotten")
    expect_states(first, second, ("running", "suspended"))
    both_answer(second, first)


@case
def a_step_back_that_fails(bed):
    """The other one cannot come back then, and does not wait; the next command goes on."""
    first, second = start(bed)
    bed.fault("group.forward.end", "kill", "suspend.park.begin", "error:5")
    result = bed.cli("swap", first.job, second.job)
    expect(result.code and groups(bed), f"{result.code}")
    expect(bed.cli("ps", timeout=60).code == 0 and bed.has_fired(), "the step back did not fail")
    expect(groups(bed), "what could not be undone is forgotten")
    wait_until(lambda: undone(bed), "the swap to be undone")
    expect_states(first, second, ("running", "suspended"))
    both_answer(first, second)


@case
def a_shim_that_is_stopped_at_once(bed):
    """Before it has taken memory: the other one is back soon, but the swap is undone once both are where they were."""
    first, second = start(bed)
    with stopped_in_a_swap(bed, "resume.identify.begin", first, second):
        expect(not undone(bed), "what cannot be undone yet is forgotten")
    expect_states(first, second, ("running", "suspended"))
    both_answer(first, second)


@case
def who_is_back_meanwhile_stays(bed):
    """One that comes by a call of its own, when half of the swap is undone, is not waited for."""
    first, second = start(bed)
    with stopped_in_a_swap(bed, "suspend.stop.begin", first, second):
        bed.ok("resume", second.job, timeout=60)
    expect(second.state() == "running", f"it is {second.state()}")
    both_answer(second, first)


@case
def interrupted(bed):
    first, second = start(bed)
    with bed.held_at("resume.copy.begin", "swap", first.job, second.job) as background:
        background.signal(signal.SIGINT)
    code, _, err = background.end()
    expect(code not in (0, None), err)
    expect_states(first, second, ("running", "suspended"))
    both_answer(first, second)


def waits_for_room(bed, server):
    """Whether it has taken its turn (src/engine/turn.h)."""
    return any(name.endswith(server.job) for name in os.listdir(os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "turns")))


@case
def asked_meanwhile(bed):
    """A request to the one that leaves does not take the room away from the one that comes."""
    first, second = start(bed)
    c = Connection(first.port)
    with bed.held_at("resume.copy.begin", "swap", first.job, second.job) as background:
        c.send()
        wait_until(lambda: waits_for_room(bed, first), "it to wait for room")
    code, _, err = background.end()
    expect(code == 0, err)
    second.ask()
    first.steps = first.note(c.answer())
    c.close()
    both_answer(first, second)


if __name__ == "__main__":
    main()
