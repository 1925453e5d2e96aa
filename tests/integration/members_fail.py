#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs whose processes share device memory, and something happens to one of them at a step of an operation: it is killed,
it is stuck in a kernel, a copy fails, there is no device memory. All members end in the same state: the job goes
on, or is suspended and can be resumed, or it ends as it would have ended without brumate."""

import functools
import os
import re
import signal

from cases import EXIT_NO_ROOM, Failed, all_go_on, case, expect, main, numbered_steps, process_start, shim_steps, wait_until

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP") == "1"
PLANS = {}
for step in shim_steps():
    PLANS.setdefault(step.split(".")[0], []).append(step)

MEMBERS = 2
steps = functools.partial(numbered_steps, word="member")
go_on = functools.partial(all_go_on, word="member")


# Where the state of a job of several members differs from one point to the next; a sweep takes all.
CHOSEN = {
    "suspend": ("gate.end", "park.end", "unmap.end", "settle.end"),
    "resume": ("copy.begin", "gpu-unlock.end", "map.begin", "open.begin"),
    "checkpoint": ("gate.end", "park.end", "criu.begin", "commit.end"),
    "restore": ("gpu-restore.end", "map.end"),
}


def points(verb):
    if not SWEEP:
        return [f"{verb}.{point}" for point in CHOSEN[verb]]
    return [f"{step}.{side}" for step in PLANS[verb] for side in ("begin", "end")]


class Ranks:
    """A job of members that share memory, started anew whenever it has ended."""

    def __init__(self, bed, way):
        self.bed, self.way, self.job = bed, way, None

    def running(self):
        """Until it is at work, from whatever state; checks that all members are."""
        bed, state = self.bed, self.state()
        if state == "suspended":
            bed.operation("resume", self.job)
        elif state == "checkpointed":
            bed.operation("restore", self.job)
        elif state != "running":
            if self.job:
                bed.ok("rm", self.job)
                bed.jobs.remove(self.job)
            self.job, self.log = bed.started([bed.program("partners"), self.way, "--port", MEMBERS, "--mib", 4])
            wait_until(lambda: len(steps(self.log)) == MEMBERS, "first steps of all", 60)
        go_on(self.log)

    def state(self):
        return self.bed.state(self.job) if self.job else "none"

    def before(self, verb):
        self.running()
        if verb == "resume":
            self.bed.operation("suspend", self.job)
        elif verb == "restore":
            for old in self.bed.checkpoints():
                self.bed.ok("rm", "--checkpoint", old)
            self.bed.operation("checkpoint", self.job)

    def pid(self, which):
        """Of the member as it is now: restored processes have the pids that they had."""
        return int(re.findall(rf"^member {which} pid (\d+)$", self.log.text(), re.M)[-1])

    def settled(self):
        """The state once nothing is under way."""
        self.bed.cli("kill", "--signal", "URG", self.job)
        return self.bed.wait_state(self.job, ("running", "suspended", "checkpointed", "exited", "lost"), 60)

    def expect_ended(self):
        """As it would have without brumate: a member that misses another ends."""
        bed = self.bed
        if self.settled() == "suspended":
            result = bed.cli("resume", self.job)
            expect(result.code in (0, 3), result.why())
        bed.wait_state(self.job, ("exited", "lost"), 30)
        wait_until(lambda: not any(bed.vram()), "device memory to be free", 30)
        left = [p for p in bed.processes() if "partners" in p[1]]
        expect(not left, f"processes are left: {left}")


def kill_member(ranks, verb, point, which):
    """A member is killed while the operation is at that point. What was to end with the job is dumped already, or not."""
    bed = ranks.bed
    ranks.before(verb)
    pid = ranks.pid(which)
    there = None
    try:
        with bed.held_at(point, verb, ranks.job) as command:
            there = process_start(pid)
            if there is not None:
                os.kill(pid, signal.SIGKILL)
    except Failed as failed:
        expect("was not reached: (0," in str(failed), str(failed))
        bed.disarm()  # a step that this job does not take
        return
    code, _, err = command.end()
    expect(code in (0, 1, 3, 7, 8), f"exit {code}: {err}")
    state = ranks.settled()
    if state == "checkpointed":
        bed.cli("restore", ranks.job)
        state = ranks.settled()
    if there is None or (state == "running" and process_start(pid) is not None):
        ranks.running()  # it was not there to be killed, or has come back from the checkpoint
    else:
        ranks.expect_ended()


def inject(ranks, verb, point, action):
    """No member is to end by it."""
    bed = ranks.bed
    ranks.before(verb)
    bed.fault(point, action)
    result = bed.cli(verb, ranks.job, timeout=60)
    if bed.disarm():
        expect(result.code == 0, result.why())  # a step that this job does not take
    expect(result.code in (0, 1, 7), result.why())
    state = ranks.settled()
    expect(state in ("running", "suspended", "checkpointed"), f"{state}: {result.why()}")
    ranks.running()


def at_each(bed, way, verb, act):
    ranks = Ranks(bed, way)
    for n, point in enumerate(points(verb)):
        try:
            act(ranks, verb, point, n)
        except Exception as error:
            raise type(error)(f"{verb}, {point}: {error}") from error


def register(verb, way):
    def killed(bed):
        at_each(bed, way, verb, lambda ranks, verb, point, n: kill_member(ranks, verb, point, n % MEMBERS))

    killed.__name__ = f"killed_in_{verb}"
    case(killed)


for way, plan in (("fd", "suspend"), ("ipc", "resume"), ("ipc", "checkpoint"), ("fd", "restore")):
    register(plan, way)


@case
def faults_on_the_way_out(bed):
    actions = ("error:5", "kill:broker", "kill", "kill:keeper")
    at_each(bed, "fd", "suspend", lambda ranks, verb, point, n: inject(ranks, verb, point, actions[n % len(actions)]))


@case
def faults_on_the_way_back(bed):
    actions = ("kill:broker", "error:5", "kill", "kill:keeper")
    at_each(bed, "ipc", "resume", lambda ranks, verb, point, n: inject(ranks, verb, point, actions[n % len(actions)]))


def no_room(bed, verb, code):
    """Somebody else has the device memory of one of two GPUs: no member is brought back before all can be."""
    ranks = Ranks(bed, "fd")
    ranks.before(verb)
    hog, _ = bed.started([bed.program("hog"), "--gpu", 1, "--leave-mib", 6])
    used, state = bed.vram(), ranks.state()
    bed.refused(code, "free", verb, ranks.job)
    expect(bed.vram() == used and ranks.state() == state, f"it is {ranks.state()}, {bed.vram()} of {used}")
    bed.ok("kill", hog)
    bed.wait_state(hog, ("exited",))
    ranks.running()


@case
def no_room_to_resume(bed):
    no_room(bed, "resume", EXIT_NO_ROOM)


@case
def no_room_to_restore(bed):
    no_room(bed, "restore", EXIT_NO_ROOM)


@case
def owner_killed_then_saved(bed):
    """Memory of a member that was killed while it was away belongs to who has it mapped, through a checkpoint, too."""
    ranks = Ranks(bed, "fd")
    saved = False
    for _ in range(10):
        ranks.before("resume")
        os.kill(ranks.pid(0), signal.SIGKILL)
        result = bed.cli("checkpoint", ranks.job)
        saved = result.code == 0
        if saved:
            break
        # Where they waited for its word, and not in the gate, the others miss it at once, and end.
        expect(result.code == 3 and ranks.settled() == "exited", result.why())
    expect(saved, "it ended each time before it was saved")
    bed.operation("restore", ranks.job)
    ranks.expect_ended()


@case
def stuck_in_a_kernel(bed):
    """The others, whose gates close at once, go on with the one that does not become idle."""
    busy = f"{bed.program('kinds')} busy --busy-ms 4000 --mib 4"
    count = f"{bed.program('counter')} --mib 4 --chunk-mib 4 --interval-ms 25"
    job, log = bed.started(["sh", "-c", f"{count} & {busy} & echo busy $!; wait"])
    log.wait_until(lambda text: text.count("ready ") == 2, "both are ready")
    os.kill(int(re.search(r"^busy (\d+)$", log.text(), re.M).group(1)), signal.SIGUSR1)
    log.wait_for("^started")
    refused = bed.fails(124, "suspend", job, "--timeout", "0.5")
    expect("process" in refused.err, refused.err)
    bed.expect_state(job, "running")
    lines = log.text().count("step")
    wait_until(lambda: log.text().count("step") > lines + 3, "the other goes on")
    bed.end(job)


main()
