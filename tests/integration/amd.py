#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs on AMD's GPUs, which CRIU's own plugin saves: the real plugin, on a stand-in for the kernel's driver (amd_bed.py)."""

import os

from amd_bed import CALLS, FIRST_UNIQUE, GPUS, WORDS, on_amd, put, used
from cases import EXIT_FAILED, EXIT_STILL_RUNNING, EXIT_UNSUPPORTED, EXIT_USAGE, case, fault_points, main, shim_steps, wait_until
from harness import SOURCE, expect, run


@case
@on_amd
def checkpoint_and_restore(bed):
    job, log = bed.program_job()
    expect(bed.shown()[1:] == (1, 0, used()), bed.shown())
    bed.operation("checkpoint", job, "--name", "k")
    wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
    bed.expect_restorable("k", log)
    expect(bed.shown()[1:] == (1, 0, used()), bed.shown())


@case
@on_amd
def in_the_middle_of_a_kernel(bed):
    """The GPU is at a word in the middle, and goes on there: another start would add to the words before it once more."""
    job, log = bed.program_job()
    bed.gpu("hold", WORDS // 2)
    wait_until(lambda: bed.shown()[0] == GPUS, "both GPUs to rest in the middle")
    bed.operation("checkpoint", job, "--name", "k")
    bed.gpu("hold", 0)
    bed.expect_restorable("k", log)


@case
@on_amd
def leave_running(bed):
    """Also where CRIU's plugin leaves the process paused, as it does with one that has not opened all GPUs."""
    for gpus in (GPUS, 1):
        job, log = bed.program_job("--gpus", gpus)
        bed.operation("checkpoint", job, "--leave-running", "--name", f"k{gpus}")
        expect(bed.shown()[1:] == (1, 0, used(gpus)), bed.shown())
        bed.expect_whole(job, log)
        bed.ok("kill", job)
        wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
        bed.operation("restore", f"k{gpus}")
        bed.goes_on(log)
        bed.ok("kill", job)
        wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")


@case
@on_amd
def on_the_other_gpu(bed):
    """As it is told, also once more from where it is then; otherwise a GPU stays what it was, whatever CRIU's plugin tries first."""
    job, log = bed.program_job("--gpus", 1)
    uuids = bed.uuids()
    places = [used(1), used(1)[::-1]]
    for i, (options, place) in enumerate((
            (("--gpu-map", "0=1"), 1), ((), 1), (("--gpu-map", f"{uuids[1]}={uuids[0]}"), 0), ((), 0), (("--gpu-map", "0=1,1=0"), 1))):
        bed.operation("checkpoint", job, "--name", f"k{i}")
        bed.vram_at_the_end()
        bed.operation("restore", f"k{i}", *options)
        expect(bed.shown()[1:] == (1, 0, places[place]), f"{options}: {bed.shown()}")
        bed.expect_whole(job, log)
    bed.operation("checkpoint", job, "--name", "last")
    bed.vram_at_the_end()
    bed.refused(EXIT_USAGE, "no GPU 9", "restore", "last", "--gpu-map", "0=9")
    bed.refused(EXIT_USAGE, "the target of two", "restore", "last", "--gpu-map", "0=1,1=1")
    bed.expect_restorable("last", log)


@case
@on_amd
def on_another_machine(bed):
    """The kernel names its GPUs by other numbers, under which the program does not know them; and it is saved there, too."""
    job, log = bed.program_job("--gpus", 1)
    for i in range(3):
        bed.operation("checkpoint", job, "--name", f"k{i}")
        bed.vram_at_the_end()
        bed.renumber(2000 + 10 * i, 0x1234 + 10 * i)
        notes = bed.operation("restore", f"k{i}", *([] if i else ["--gpu-map", f"{bed.uuid(FIRST_UNIQUE)}={bed.uuid(0x1235)}"]))
        expect("is not here" in str(notes) or not i, notes)
        bed.expect_whole(job, log)
        expect(sum(bed.shown()[3]) == WORDS * 4 and (i or bed.shown()[3][1]), bed.shown())


@case
@on_amd
def two_processes(bed):
    job, log = bed.program_job("--children", 1)
    wait_until(lambda: "child 1 at" in log.text(), "the other process")
    bed.refused(EXIT_UNSUPPORTED, "may share device memory", "checkpoint", job)
    bed.operation("checkpoint", job, "--name", "k", "--force")
    before = log.text().count("child 1 at")
    bed.expect_restorable("k", log)
    wait_until(lambda: log.text().count("child 1 at") > before + 3, "the other process to go on")
    expect(bed.shown()[1:] == (2, 0, used(processes=2)), bed.shown())


@case
@on_amd
def what_cannot_be_saved_is_no_checkpoint(bed):
    """Whichever call fails, also those that CRIU's plugin takes for done; and the job goes on."""
    job, log = bed.program_job()
    for call in ("process-info", "checkpoint", "import", "submit", "fence"):
        bed.gpu("fail", CALLS.index(call))
        # CRIU's plugin reads what it did not make when it is not told of the process (4.2.1: free_e() of NULL).
        words = {"process-info": "killed by signal 11", "checkpoint": "amdgpu_plugin: ", "import": "amdgpu_plugin: "}
        bed.refused(EXIT_STILL_RUNNING, words.get(call, "the GPU's state was not saved"), "checkpoint", job)
        bed.gpu("fail", 0)
        expect(bed.shown()[1:] == (1, 0, used()), f"{call}: {bed.shown()}")
        bed.expect_whole(job, log)
        expect(not bed.checkpoints(), f"{call}: a checkpoint is there")


@case
@on_amd
def what_cannot_be_restored_does_not_run(bed):
    job, log = bed.program_job()
    bed.operation("checkpoint", job, "--name", "k")
    for call in ("restore", "resume", "import", "submit", "fence"):
        bed.gpu("fail", CALLS.index(call))
        bed.refused(EXIT_FAILED, "GPU|amdgpu_plugin", "restore", "k")
        bed.gpu("fail", 0)
        wait_until(lambda: bed.shown()[1] == 0, f"{call}: the driver to forget the process")
    bed.expect_restorable("k", log)


@case
@on_amd
def criu_dies(bed):
    """In the middle of a dump, while the driver has the process paused; and of a restore."""
    # The shim's own calls of the driver are the stand-in's, too.
    bed.own["LD_PRELOAD"] = bed.kernel
    job, log = bed.program_job()
    for call in ("process-info", "checkpoint", "import", "submit"):
        bed.gpu("kill", CALLS.index(call))
        failed = bed.spawn("checkpoint", job)
        code, _, err = failed.end()
        expect(code == EXIT_STILL_RUNNING and "killed by signal 9" in err, f"{call}: {code}: {err}")
        bed.gpu("kill", 0)
        bed.expect_whole(job, log)
        expect(bed.shown()[1:] == (1, 0, used()), f"{call}: {bed.shown()}")
    bed.operation("checkpoint", job, "--name", "k")
    for call in ("restore", "import", "submit"):
        bed.gpu("kill", CALLS.index(call))
        code, _, err = bed.spawn("restore", "k").end()
        expect(code == EXIT_FAILED, f"{call}: {code}: {err}")
        bed.gpu("kill", 0)
        wait_until(lambda: bed.shown()[1] == 0, f"{call}: the driver to forget the process")
    bed.expect_restorable("k", log)


@case
@on_amd
def every_so_often(bed):
    """Two processes, each time saved while they go on; the last one comes back after their end."""
    job, log = bed.program_job("--children", 1)
    wait_until(lambda: "child 1 at" in log.text(), "the other process")
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "2", "--force")
    seen = set()

    def three_came():
        seen.update(bed.checkpoints())
        return len(seen) >= 3

    wait_until(three_came, "three checkpoints", 60)
    bed.end_schedule(job)
    bed.expect_whole(job, log)
    expect(bed.shown()[1:] == (2, 0, used(processes=2)), bed.shown())
    wait_until(lambda: len(bed.checkpoints()) <= 2, "all but two are gone")
    bed.ok("kill", job)
    bed.vram_at_the_end()
    bed.operation("restore", bed.checkpoints()[-1])
    bed.goes_on(log)
    expect(bed.shown()[1:] == (2, 0, used(processes=2)), bed.shown())


STEPS = [step for step in shim_steps() if step.startswith(("checkpoint.", "restore."))]
HELD = {"checkpoint": ["checkpoint.frozen", "checkpoint.dumped"], "restore": ["restore.built", "restore.restored"]}


class Subject:
    """A job that is taken through faults, whatever becomes of it."""

    def __init__(self, bed):
        # The shim's own calls of the driver are the stand-in's, too.
        bed.own["LD_PRELOAD"] = bed.kernel
        self.bed, self.job, self.log = bed, None, None

    def state(self):
        """Once nothing is under way: the next command puts right what a dead shim left."""
        state = self.bed.state(self.job)
        if state.endswith("ing") and state != "running":
            self.bed.cli("kill", "--signal", "URG", self.job)
            state = self.bed.wait_state(self.job, ("running", "checkpointed", "exited", "lost"), 30)
        return state

    def before(self, verb):
        """The job, for a checkpoint, or a checkpoint of it, for a restore."""
        if not self.job or self.bed.state(self.job) in ("exited", "lost"):
            self.job, self.log = self.bed.program_job()
        if self.bed.state(self.job) == "running" and verb == "restore":
            self.bed.operation("checkpoint", self.job)
        elif self.bed.state(self.job) == "checkpointed" and verb == "checkpoint":
            self.bed.operation("restore", self.job)
        return self.job

    def is_on_the_gpus(self, state):
        return self.bed.shown()[1:] == ((1, 0, used()) if state == "running" else (0, 0, used(0)))


def at_each_point(bed, verb, action, points):
    """Who dies where: the job runs on with right data, or its checkpoint comes back, and the driver has neither a process that is
    paused nor one too many."""
    subject, passed = Subject(bed), []
    for point in points:
        subject.before(verb)
        bed.fault(point, action)
        done = bed.cli(verb, subject.job, timeout=60)
        passed += [] if bed.disarm() else [point]
        what = f"{verb} with {action} at {point}: exit {done.code} {done.err.strip()[-200:]}"
        if action == "kill:job" and not (verb == "restore" and done.code == 0):
            bed.wait_state(subject.job, ("exited", "lost", "checkpointed"), 10)
        state = subject.state()
        ended = ("exited",) if action == "kill:job" else ()
        expect(state in ("running", "checkpointed", *ended), f"{what}: the job is {state}")
        wait_until(lambda at=state: subject.is_on_the_gpus(at), f"{what}: the job is {state}, the GPUs {bed.shown()}")
        if state != "exited":
            subject.before("checkpoint")  # it runs
            bed.goes_on(subject.log)
    return passed


def register(verb, action, points, fewest):
    @on_amd
    def function(bed):
        passed = at_each_point(bed, verb, action, points)
        expect(len(passed) >= fewest, f"this test proves little: {passed}")

    function.__name__ = f"{verb}_{action.replace(':', '_')}"
    case(function)


for one in ("checkpoint", "restore"):
    plan = [step for step in STEPS if step.startswith(one)]
    for fault in ("error:5", "kill", "kill:broker", "kill:job"):
        register(one, fault, fault_points(plan, fault), len(plan) // 2)
    register(one, "kill:criu", HELD[one], 2)


@case
@on_amd
def the_report(bed):
    """What a stranger with such GPUs runs, and sends."""
    out = os.path.join(bed.dir, "report")
    done = run([os.path.join(SOURCE, "tools", "gpu-check"), "--vendor", "amd", "--build", bed.build.path, "--out", out,
                "--program", f"env LD_PRELOAD={bed.kernel} {bed.amd('amd-program')}"], env=bed.command_env(), timeout=200)
    expect(done.code == 0 and "3 passed, 0 failed, 0 skipped" in done.out, done.why())
    with open(os.path.join(out, "report.md"), encoding="utf-8") as file:
        text = file.read()
    expect("not run on hardware by us" in text and "| amd: checkpoint and restore | PASS |" in text, text)


@case
@on_amd
def of_another_criu(bed):
    """A plugin that says that it is of another release than the CRIU is refused before anything stands still."""
    version = os.path.join(bed.build.path, "src", "criu-plugin", "amd", "VERSION")
    with open(version, encoding="utf-8") as file:
        own = file.read()
    job, log = bed.program_job()
    bed.operation("checkpoint", job, "--leave-running", "--name", "k")
    try:
        put(version, "3.19 (debian testing)\n")
        bed.refused(EXIT_UNSUPPORTED, "is of CRIU 3.19, .* is 4", "checkpoint", job)
        found = {f["key"]: f for f in bed.cli("doctor", "--format", "json").json()["findings"]}
        expect("is of CRIU 3.19" in found["gpu-plugin"]["text"] and found["gpu-plugin"]["level"] == "fail", found["gpu-plugin"])
        bed.expect_whole(job, log)
        bed.ok("kill", job)
        bed.vram_at_the_end()
        bed.refused(EXIT_UNSUPPORTED, "is of CRIU 3.19", "restore", "k")
        os.unlink(version)  # then nobody knows
        bed.operation("restore", "k")
        bed.goes_on(log)
    finally:
        put(version, own)


@case
@on_amd
def what_cannot_be_done(bed):
    job, log = bed.program_job()
    bed.refused(EXIT_UNSUPPORTED, "can be saved to a disk only", "suspend", job)
    bed.refused(EXIT_UNSUPPORTED, "cannot be rehearsed", "checkpoint", job, "--leave-running", "--rehearse")
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job, "--leave-running", "--name", "k")
    bed.refused(EXIT_UNSUPPORTED, "cannot be rehearsed", "rehearse", "k")
    expect(bed.shown()[1:] == (1, 0, used()), bed.shown())
    bed.expect_whole(job, log)


if __name__ == "__main__":
    main()
