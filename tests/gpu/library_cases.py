# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about brumate's library in a program: programs see no difference, pay
nothing, and live through operations with objects of every kind."""

import os
import re
import shutil
import signal
import statistics
import threading

from harness import Skipped, expect, run
from library import Library

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILER = threading.Lock()  # a program is compiled once, also by cases that run side by side


def compiled(check, name, *flags):
    """Builds tests/gpu/NAME.cu with the machine's nvcc, once for all cases."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if check.options.simulated or not os.path.exists(nvcc):
        raise Skipped("needs a real GPU and nvcc")
    # No "=" in its name: env(1), which starts it, would take it for a variable.
    program = os.path.join(check.options.out, "".join((name, *flags)).replace("=", "-"))
    with COMPILER:
        if not os.path.exists(program):
            result = run([nvcc, "-std=c++17", "-arch=native", *flags, "-o", program,
                          os.path.join(HERE, f"{name}.cu"), "-lcuda"], timeout=240)
            expect(result.code == 0, result.why())
    return program


def same(one, other, what):
    for n, (a, b) in enumerate(zip(one, other)):
        expect(a == b, f"{what}: line {n + 1} is {b!r}, without the library {a!r}")
    expect(len(one) == len(other), f"{what}: {len(other)} lines, without the library {len(one)}")


def conform(check, *flags):
    program = compiled(check, "conform", *flags)
    plain = check.instance.start([program], "plain")
    expect(plain.wait(120) == 0, f"it failed without the library: {plain.log.tail(8)}")
    library = Library(check)
    read, until = os.pipe()  # it ends when that is closed
    ours = check.instance.start([*library.words(), program], "ours", stdin=read)
    os.close(read)
    try:
        ours.ready()
        library.wait_managing(ours)
    finally:
        os.close(until)
    expect(ours.wait(120) == 0, f"it failed with the library: {ours.log.tail(8)}")
    same(plain.log.lines(), ours.log.lines(), "output")


def used(log):
    """All but the lines that say when the program waits."""
    return [line for line in log.lines() if not line.startswith("ready ")]


def use_again(check, job, log, n):
    os.kill(check.instance.job(job)["pid"], signal.SIGUSR1)
    log.wait_until(lambda text: len(re.findall(r"^ready ", text, re.MULTILINE)) > n, f"use {n}", 60)


def objects_survive(check):
    program = compiled(check, "conform")
    plain = check.instance.start([program, "--hold"], "plain").ready(120)
    job, log = check.job_started([program, "--hold"], "conform")
    for n, verbs in enumerate((("suspend", "resume"), ("checkpoint", "restore"), ("suspend", "resume")), 1):
        what = job
        for verb in verbs:
            what = check.do(verb, what).get("checkpoint") if verb == "checkpoint" else check.do(verb, what) and job
        use_again(check, job, log, n)
        os.kill(plain.pid, signal.SIGUSR1)
        plain.log.wait_until(lambda text, n=n: len(re.findall(r"^ready ", text, re.MULTILINE)) > n, f"use {n}", 60)
    same(used(plain.log), used(log), "after the operations")
    plain.end()
    check.instance.end(job)


CALL_RUNS = 9  # the median of as many is between the second and the last but one 96 times of 100


def call_costs(check, kind, library=None):
    """What tests/programs/call-cost.c tells: {name: (plain, ours, low, high)} in µs a call."""
    words = library.words() if library else []
    program = check.instance.start([*words, check.program("call-cost"), kind], "calls")
    expect(program.wait(120) == 0, f"it failed: {program.log.tail()}")
    text = program.log.text()
    for what in re.findall(r"^(?:entry|memory) (.+)$", text, re.MULTILINE):
        expect((what == "library") == bool(library), f"its calls went elsewhere: {program.log.tail(8)}")
    found = {m[1]: tuple(float(x) for x in m.groups()[1:])
             for m in re.finditer(r"^cost (\S+) (\S+) (\S+) (\S+) (\S+)$", text, re.MULTILINE)}
    expect(found, f"it tells of no call: {program.log.tail()}")
    for name, (plain, ours, low, high) in found.items():
        expect(plain > 0 and low <= ours <= high, f"{name}: {plain} {ours} {low} {high}")
    return found


def cost_of_calls(check, kind):
    """The same call by turns through the library and past it, in one process. Of some processes, which differ by
    more than the pairs of one do, the median counts. What a process without the library tells is the error of
    all this, or of allocations what the driver's own take beside its virtual memory calls."""
    itself = call_costs(check, kind)
    runs = [call_costs(check, kind, Library(check)) for _ in range(CALL_RUNS)]
    for name, (without, alone, low, high) in itself.items():
        plain = statistics.median(run[name][0] for run in runs)
        slower = sorted((run[name][1] / run[name][0] - 1) * 100 for run in runs)
        ours = statistics.median(slower)
        check.measured[f"cost of calls: {name}, plain, µs"] = round(plain, 4)
        check.measured[f"cost of calls: {name}, with the library, µs"] = round(plain * (1 + ours / 100), 4)
        check.measured[f"cost of calls: {name}, slower by, %"] = round(ours, 3)
        check.measured[f"cost of calls: {name}, at least, %"] = round(slower[1], 3)
        check.measured[f"cost of calls: {name}, at most, %"] = round(slower[-2], 3)
        check.measured[f"cost of calls: {name}, without it, µs"] = round(alone, 4)
        check.measured[f"cost of calls: {name}, without it, %"] = (
            f"{(low / without - 1) * 100:.2f} to {(high / without - 1) * 100:.2f}")


def register(case):
    """Adds the cases to gpu-check's list."""
    case("conform: the same with the library")(conform)
    case("conform: per-thread default streams")(lambda check: conform(check, "--default-stream=per-thread"))
    case("conform: objects survive")(objects_survive)
    case("cost of calls: launches")(lambda check: cost_of_calls(check, "launches"))
    case("cost of calls: allocations")(lambda check: cost_of_calls(check, "allocations"))
