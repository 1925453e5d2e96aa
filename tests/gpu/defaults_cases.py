# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check that measure what a user gets who changes no setting: a language model of 36 GiB that
decodes, images on tmpfs; and beside it what the driver and CRIU take by hand. Each time is the command's own, and until
the program has computed a step again; each answer of the model is compared with its first."""

import os
import re
import shutil
import tempfile
import threading
import time

from bench_cases import Alone
from harness import SOURCE, Failed, expect

SCRIPT = os.path.join(SOURCE, "tests", "gpu", "llm.py")
RUNS_S, OPERATION_S = 60, 300
SUSPENDED_S = 2  # right after a suspend the driver clears the memory that was let go, and a resume waits for it


def command(check):
    """What runs the model; without a GPU there is no PyTorch, either."""
    if check.options.simulated:
        return [check.program("counter"), "--mib", 320, "--chunk-mib", 64, "--interval-ms", 20]
    return ["env", "PYTHONUNBUFFERED=1", check.options.python, SCRIPT, "--gib", check.options.llm_gib]


def wait_answers(log, simulated, n=2):
    """Waits for whole answers, all of them right."""
    if simulated:
        log.goes_on()
        return
    seen = len(re.findall("answer OK", log.text()))
    log.wait_until(lambda text: len(re.findall("answer OK", text)) >= seen + n or "BAD" in text, "an answer", 120)
    expect("BAD" not in log.text(), "an answer is not what it was")


class Model:
    """The job, and the times that its operations took."""

    def __init__(self, check):
        self.check = check
        self.simulated = check.options.simulated
        self.id, self.log = check.job_started(command(check), "llm")
        self.log.goes_on(steps=64)

    def do(self, what, verb, *args):
        """An operation: its summary, and the seconds until the program has computed a step after it."""
        steps = self.log.last_step()
        begin = time.monotonic()
        summary = self.check.instance.operation(verb, *args, timeout=OPERATION_S)
        answered = time.monotonic() - begin
        self.check.operations.append({**summary, "what": what})
        computes = None
        if verb in ("resume", "restore"):
            self.log.wait_until(lambda _: self.log.last_step() > steps, "a step", OPERATION_S)
            computes = time.monotonic() - begin
        self.tell(what, summary, answered, computes)
        return summary

    def tell(self, what, summary, answered, computes):
        measured = self.check.measured
        measured[f"defaults: {what}, answered, s"] = round(answered, 3)
        measured[f"defaults: {what}, s"] = round(summary["seconds"], 3)
        if computes is not None:
            measured[f"defaults: {what}, until it computes, s"] = round(computes, 3)
        if summary.get("downtime_s"):
            measured[f"defaults: {what}, downtime, s"] = round(summary["downtime_s"], 3)
        for phase in summary["phases"]:
            measured[f"defaults: {what}: phase {phase['name']}"] = (
                f"{phase['start']:.3f} + {phase['seconds']:.3f} s")

    def answers(self, n=2):
        wait_answers(self.log, self.simulated, n)

    def steps_within(self, seconds):
        """Steps a second, over so long."""
        begin, first = time.monotonic(), self.log.last_step()
        self.log.wait_until(lambda _: time.monotonic() - begin > seconds, "time", seconds + 60)
        return (self.log.last_step() - first) / (time.monotonic() - begin)


class Pace(threading.Thread):
    """Looks how many steps a program has made, a hundred times a second."""

    LOOKS = 100

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.seen, self.ends = path, [], threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join()

    def run(self):
        steps = 0
        with open(self.path, "rb") as file:
            file.seek(0, os.SEEK_END)
            while not self.ends.wait(1 / self.LOOKS):
                steps += file.read().count(b"\n")
                self.seen.append((time.monotonic(), steps))

    def within(self, begin, phase):
        """Steps a second in a phase of an operation that began then; None: it was too short to tell."""
        begin += phase["start"]
        seen = [at for at in self.seen if begin <= at[0] <= begin + phase["seconds"]]
        if len(seen) < self.LOOKS / 4:
            return None
        return round((seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]), 1)


def suspended(check, model):
    model.steps_within(2 if model.simulated else RUNS_S)
    for i in range(4):
        which = "first" if i == 0 else f"later {i}"
        model.do(f"suspend, {which}", "suspend", model.id)
        if i < 3:
            time.sleep(SUSPENDED_S)
        model.do(f"resume, {which}" if i < 3 else "resume, at once", "resume", model.id)
        model.answers()


def left_running(check, model, folder):
    check.measured["defaults: steps/s, undisturbed"] = round(model.steps_within(5), 1)
    for i in range(2):
        options = ("--leave-running", "--dir", folder, "--name", f"running-{i}")
        with Pace(model.log.path) as pace:
            begin = time.monotonic()
            summary = model.do(f"checkpoint --leave-running {i}", "checkpoint", model.id, *options)
        for phase in summary["phases"]:
            if phase["name"] in ("live", "store"):
                check.measured[f"defaults: checkpoint --leave-running {i}, steps/s beside {phase['name']}"] = pace.within(begin, phase)
        model.answers(1)
        check.instance.ok("rm", "--dir", folder, f"running-{i}")


def saved_and_restored(model, folder):
    for i in range(2):
        model.do(f"checkpoint {i}", "checkpoint", model.id, "--dir", folder, "--name", f"saved-{i}")
        model.do(f"restore {i}", "restore", "--dir", folder, f"saved-{i}")
        model.answers()
        model.check.instance.ok("rm", "--dir", folder, "--checkpoint", f"saved-{i}")


def tmpfs(check):
    """A directory on tmpfs."""
    if not os.path.isdir("/dev/shm"):
        raise Failed("no /dev/shm")
    return tempfile.mkdtemp(prefix="brumate-defaults-", dir="/dev/shm")


def defaults(check):
    folder = tmpfs(check)
    try:
        model = Model(check)
        suspended(check, model)
        saved_and_restored(model, folder)
        left_running(check, model, folder)
        check.instance.end(model.id)
        model.log.is_right()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def by_hand(check):
    """The same program without brumate: the driver's calls one by one, and CRIU."""
    folder = tmpfs(check)
    program = None
    try:
        program = Alone(check, folder, command(check))
        wait_answers(program.log, check.options.simulated)
        seconds = {"suspend": program.driver("lock", "checkpoint"), "resume": program.driver("restore", "unlock")}
        wait_answers(program.log, check.options.simulated)
        for verb, do in (("checkpoint", program.put_away), ("restore", program.bring_back)):
            driver, criu = do()
            seconds[verb] = driver + criu
            check.measured[f"by hand: {verb}, driver / CRIU, s"] = f"{driver:.3f} / {criu:.3f}"
        wait_answers(program.log, check.options.simulated)
    finally:
        if program:
            program.end()
        shutil.rmtree(folder, ignore_errors=True)
    for verb, took in seconds.items():
        check.measured[f"by hand: {verb}, s"] = round(took, 3)


def register(case):
    """Adds the cases to gpu-check's list."""
    case("defaults: a language model of 36 GiB")(defaults)
    case("defaults: the same model, by the driver and CRIU alone")(by_hand)
