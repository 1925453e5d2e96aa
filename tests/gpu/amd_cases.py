# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check --vendor amd, for machines with AMD's GPUs, which CRIU's plugin saves: a program is taken through what
brumate does with such jobs, and has to compute what it computes without. The report is what somebody who has such a machine sends
us: nothing of AMD was run on hardware by us."""

import os
import re
import shlex

from harness import SOURCE, Skipped, expect

ROUNDS, READY_S = 3, 180
EXIT_UNSUPPORTED = 4


def facts(instance):
    """What the report says of the machine."""
    found = instance.cli("doctor", "--format", "json").json()
    wanted = ("driver", "driver-checkpoint", "gpu", "gpu-plugin", "criu", "kernel", "unproven")
    return {"gpus": found["facts"].get("gpus"), "driver": found["facts"].get("driver"),
            "doctor": [f["text"] for f in found["findings"] if f["key"] in wanted]}


def command(check):
    """The program: PyTorch's, unless another one was named, which says "ready ..." and then "step N ..." lines."""
    if check.options.program:
        return shlex.split(check.options.program)
    return [check.options.python, os.path.join(SOURCE, "tests", "gpu", "torch_conv.py"), "--steps", "1000000", "--interval-ms", "20"]


def started(check, name):
    job = check.instance.run(command(check), name=name)
    log = check.instance.log(job)
    log.wait_until(lambda text: re.search(r"^(ready|SKIP)", text, re.MULTILINE), "ready", READY_S)
    skipped = re.search(r"^SKIP: (.*)$", log.text(), re.MULTILINE)
    if skipped:
        raise Skipped(skipped[1])
    log.goes_on()
    return job, log


def lines_of(log):
    return dict(re.findall(r"^step (\d+) (.*)\n", log.text(), re.MULTILINE))


def expect_same(check, log):
    """Steps have the results that they have in a run with which nothing was done."""
    job, other = started(check, "undisturbed")
    last = log.last_step()
    other.wait_until(lambda _: other.last_step() >= last, f"step {last}, undisturbed", 600)
    check.instance.ok("kill", job)
    alone, ours = lines_of(other), lines_of(log)
    wrong = [n for n in ours if n in alone and ours[n] != alone[n]]
    expect(not wrong, f"step {wrong[:1]}: {ours.get(wrong[0]) if wrong else ''}, undisturbed {alone.get(wrong[0]) if wrong else ''}")


def in_and_out(check):
    """Checkpoints end the job, and restores bring it back, again and again."""
    job, log = started(check, "in-and-out")
    for n in range(ROUNDS):
        check.do("checkpoint", job, "--name", f"round-{n}")
        check.do("restore", f"round-{n}")
        log.goes_on()
    check.instance.ok("kill", job)
    expect_same(check, log)


def goes_on(check):
    """A job that goes on after checkpoints has its queues back."""
    job, log = started(check, "goes-on")
    for n in range(ROUNDS):
        check.do("checkpoint", job, "--leave-running", "--name", f"copy-{n}")
        log.goes_on()
    check.instance.ok("kill", job)
    expect_same(check, log)


def refused(check):
    """A suspend keeps the process, which cannot be: it is refused, and the job goes on."""
    job, log = started(check, "refused")
    result = check.instance.cli("suspend", job)
    expect(result.code == EXIT_UNSUPPORTED and "can be saved to a disk only" in result.err, result.why())
    log.goes_on()
    check.instance.ok("kill", job)


CASES = [("amd: checkpoint and restore", True, in_and_out), ("amd: a copy, and the job goes on", True, goes_on),
         ("amd: a suspend is refused", True, refused)]


def write_report(path, machine, results, table):
    """The form: what to send, whole."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("# brumate on AMD's GPUs\n\nSend this file whole, as an issue of the project. What you add yourself: where the CRIU "
                   "and the plugin are from, and what else ran on the GPUs.\n\n")
        file.writelines(f"- {key}: {value}\n" for key, value in machine.items())
        file.write("\n" + table + "\n")
        file.writelines(f"- {entry['name']}: {entry['why']}\n" for entry in results if entry["why"])
