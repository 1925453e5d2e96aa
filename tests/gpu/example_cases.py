# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about the programs in examples/: SIGTERM has each save its whole job, and once restored it
must print the losses of a run that nobody disturbed."""

import os
import re
import signal
from dataclasses import dataclass

from harness import SOURCE, Skipped, expect, process_start, run

EXAMPLES, PACKAGE = os.path.join(SOURCE, "examples"), os.path.join(SOURCE, "python")
ROUNDS, LINES_BETWEEN = 2, 2
BEGIN_S, OPERATION_S, END_S = 180, 120, 180


@dataclass(frozen=True)
class Example:
    """A program of examples/, and what it needs and prints."""

    script: str
    packages: str
    losses: str  # a line with a loss
    steps: int
    simulated_steps: int  # without a GPU PyTorch computes on the CPU


PYTORCH = Example("pytorch_sigterm.py", "torch", r"^step \d+ loss .*$", 20000, 1000)
TRAINER = Example("trainer_sigterm.py", "torch, transformers, accelerate", r"^\{.*'loss':.*\}$|^trained .*$", 1200, 500)


def need_packages(check, example):
    found = run([check.options.python, "-c", f"import {example.packages}"], timeout=BEGIN_S)
    if found.code:
        raise Skipped((found.err.strip() or f"{check.options.python}: exit {found.code}").splitlines()[-1])


def argv_of(check, example):
    """The example on one GPU: with several, the Trainer would spread itself over them."""
    paths = ":".join(filter(None, (PACKAGE, os.environ.get("PYTHONPATH"))))
    steps = example.simulated_steps if check.options.simulated else example.steps
    return ["env", f"--chdir={check.instance.dir}", "PYTHONUNBUFFERED=1", "CUDA_VISIBLE_DEVICES=0", f"PYTHONPATH={paths}",
            "PYTHONDONTWRITEBYTECODE=1", f"BRUMATE_COMMAND={check.instance.brumate}", check.options.python,
            os.path.join(EXAMPLES, example.script), "--steps", steps]


def losses_of(example, text):
    return re.findall(example.losses, text, re.MULTILINE)


def wait_losses(example, log, count):
    log.wait_until(lambda text: len(losses_of(example, text)) >= count, f"loss {count}", BEGIN_S)


def saved_on_sigterm(check, job):
    """The program asks for the checkpoint itself, and ends with it."""
    pid = check.instance.job(job)["pid"]
    start = process_start(pid)
    os.kill(pid, signal.SIGTERM)
    state = check.instance.wait_state(job, ("checkpointed", "exited", "lost"), OPERATION_S)
    expect(state == "checkpointed", f"on SIGTERM the job became {state}: {check.instance.log(job).tail(8)}")
    expect(process_start(pid) != start, f"process {pid} is still there after the checkpoint")


def round_trip(check, example, job, log, nth):
    saved_on_sigterm(check, job)
    before = len(losses_of(example, log.text()))
    check.do("restore", "--job", job)
    log.wait_until(lambda text: len(re.findall("^restored", text, re.MULTILINE)) == nth, "the word that it was restored",
                   OPERATION_S)
    wait_losses(example, log, before + LINES_BETWEEN)


def saves_itself(check, example):
    need_packages(check, example)
    argv = argv_of(check, example)
    plain = check.instance.start(argv, "plain")
    job = check.instance.run(argv, name="example")
    log = check.instance.log(job)
    wait_losses(example, log, LINES_BETWEEN)
    for nth in range(1, ROUNDS + 1):
        round_trip(check, example, job, log, nth)
    ended = check.instance.cli("wait", job, timeout=END_S)
    expect(ended.code == 0, f"{ended.why()}; the log ends: {log.tail(8)}")
    expect(plain.wait(END_S) == 0, f"undisturbed, it failed: {plain.log.tail(8)}")
    have, want = (losses_of(example, text) for text in (log.text(), plain.log.text()))
    expect(want, f"undisturbed, it printed no loss: {plain.log.tail(8)}")
    differ = [pair for pair in zip(have, want) if pair[0] != pair[1]]
    expect(not differ, f"it printed {differ and differ[0][0]!r}, undisturbed {differ and differ[0][1]!r}")
    expect(len(have) == len(want), f"{len(have)} losses, undisturbed {len(want)}")


def register(case):
    """Adds these cases to gpu-check's list."""
    case("examples: PyTorch, saved on SIGTERM")(lambda check: saves_itself(check, PYTORCH))
    case("examples: Trainer of transformers, saved on SIGTERM")(lambda check: saves_itself(check, TRAINER))
