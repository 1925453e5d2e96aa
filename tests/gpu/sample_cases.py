# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about programs that are short: they start, use the GPU for a moment and end, as
NVIDIA's samples do. Each is suspended and resumed at a random moment of its life, be it in the middle of
initialising the driver or of its end, and must print what it prints undisturbed, and end as it does then."""

import collections
import concurrent.futures
import contextlib
import itertools
import os
import random
import re
import subprocess
import sys
import threading
from dataclasses import dataclass

from harness import Failed, Log, Skipped, expect
from library_cases import compiled

ENDED, UNSUPPORTED, JOB_LOST = 3, 4, 8  # exit codes of brumate
ALONE_S, OPERATION_S, END_S = 60, 120, 90
DRIVER_TRIES = 3  # its calls have to come at the same moment of the program's life as brumate's did, to the millisecond
WAIVED = 2  # the exit code of a sample that cannot run here
SHORT = ("plain", "idle", "contexts", "primary", "modules", "streams", "graphs", "churn", "async", "managed", "threads",
         "workers", "fork", "exec", "handler", "late-handler", "exit-thread", "quick", "abort", "sticky", "blind")
RUNTIME = ("plain", "streams", "graphs", "cooperative", "printf", "assert", "assert-reset", "texture", "managed", "resets",
           "async", "pinned", "globals", "threads", "handler")
DISTURB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "driver_cycle.py")
NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d[\d.,:]*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Sample:
    name: str
    argv: tuple
    has_times: bool = False  # prints numbers that are never the same

    def result(self, code, text):
        """What counts of a run."""
        return code if code >= 0 else 128 - code, NUMBER.sub("#", text) if self.has_times else text


def own_samples(check):
    yield from (Sample(f"short {kind}", (check.program("short"), kind)) for kind in SHORT)
    with contextlib.suppress(Skipped):
        program = runtime_program(check)
        yield from (Sample(f"short-runtime {kind}", (program, kind)) for kind in RUNTIME)


def runtime_program(check):
    if check.options.simulated:
        raise Skipped("the CUDA runtime needs a real GPU")
    try:
        return check.program("short-runtime")
    except Failed:
        return compiled(check, "short-runtime")


def is_program(path):
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF" and ".so" not in os.path.basename(path)


def nvidias_samples(folder):
    for base, dirs, files in os.walk(folder):
        dirs[:] = [d for d in dirs if d != "CMakeFiles"]
        for path in (os.path.join(base, name) for name in sorted(files)):
            if is_program(path):
                yield Sample(os.path.relpath(path, folder), ("env", f"--chdir={base}", path), has_times=True)


class Alone:
    """How programs end undisturbed, each run once when it is first asked for."""

    def __init__(self, check):
        self.check = check
        self.known = {}
        self.number = itertools.count()
        self.locks = collections.defaultdict(threading.Lock)

    def run(self, sample):
        """((exit code, output), seconds)"""
        start = self.check.clock()
        name = re.sub(r"\W+", "-", sample.name)  # of a log of its own, whoever else starts one meanwhile
        program = self.check.instance.start(sample.argv, f"alone-{name}-{next(self.number)}")
        code = program.wait(ALONE_S)
        return sample.result(code, program.log.text()), self.check.clock() - start

    def by_driver(self, sample, lines):
        """The exit code and output of the program that the driver alone, and nothing of brumate's, locks, checkpoints, restores
        and unlocks once it has printed so many lines, and at least one: before, it may not have come to the driver."""
        name, instance = re.sub(r"\W+", "-", sample.name), self.check.instance
        cycle = instance.start([sys.executable, DISTURB], f"cycle-{name}-{next(self.number)}", stdin=subprocess.PIPE).ready(ALONE_S)
        program = instance.start(sample.argv, f"driver-{name}-{next(self.number)}")
        program.log.wait_until(lambda text: text.count("\n") >= max(lines, 1) or program.process.poll() is not None,
                               "its output", ALONE_S)
        cycle.process.communicate(f"{program.pid}\n".encode(), timeout=OPERATION_S)
        expect(cycle.wait() == 0 or program.process.poll() is not None, f"the driver alone: {cycle.log.tail(2)}")
        return sample.result(program.wait(ALONE_S), program.log.text())

    def of(self, sample):
        """As run(); None where the program cannot be used here."""
        with self.locks[sample.name]:
            if sample.name not in self.known:
                try:
                    self.known[sample.name] = self.run(sample)
                    usable = self.known[sample.name][0][0] != WAIVED
                except Failed:
                    usable = False
                if not usable:
                    self.known[sample.name] = None
        return self.known[sample.name]


def moment(rng):
    """A part of a life: everywhere, and more often near its beginning and its end."""
    return rng.choice((rng.uniform(0, 1.05), rng.betavariate(1, 4), 1.05 - rng.betavariate(1, 4)))


class Rounds:
    """Counts what came of the rounds."""

    def __init__(self, check, samples):
        self.check = check
        self.samples = samples
        self.alone = Alone(check)
        self.lock = threading.Lock()
        self.count = collections.Counter()
        self.reasons = collections.Counter()
        self.wrong, self.drivers = [], []

    def note(self, what, text=None):
        with self.lock:
            self.count[what] += 1
            if what == "refused":
                self.reasons[f"refused: {NUMBER.sub('#', text)}"] += 1
            elif what == "unusable":
                self.reasons[f"not used: {text}"] += 1
            elif what == "wrong":
                self.wrong.append(text)
                print(f"WRONG: {text}", flush=True)
            elif what == "driver":
                self.drivers.append(text)

    def suspend(self, job):
        """What came of it: "suspended", "ended", or "refused" and the reason."""
        instance = self.check.instance
        result = instance.cli("suspend", job, timeout=OPERATION_S)
        if result.code == UNSUPPORTED and "--force" in result.err:
            result = instance.cli("suspend", job, "--force", timeout=OPERATION_S)
        expect(result.code != JOB_LOST, result.why())
        if result.code == 0:
            return "suspended", ""
        reason = (result.err.strip() or f"exit {result.code}").splitlines()[0]
        over = result.code == ENDED or reason.endswith(" has exited")
        return "ended" if over else "refused", reason

    def disturb(self, rng, sample, seconds):
        """What came of it, why, how many lines the program had printed by then, and its exit code and output."""
        instance = self.check.instance
        job = instance.run(sample.argv)
        log = Log(instance.job(job)["log"])
        threading.Event().wait(moment(rng) * seconds)
        what, reason = self.suspend(job)
        lines = log.text().count("\n")
        if what == "suspended":
            threading.Event().wait(rng.choice((0, 0.2)))
            result = instance.cli("resume", job, timeout=OPERATION_S)
            expect(result.code in (0, ENDED), result.why())
        ended = instance.cli("wait", job, timeout=END_S)
        instance.jobs.remove(job)
        return what, reason, lines, sample.result(ended.code, log.text())

    def round(self, number):
        """One round; what it does follows from the seed and its number."""
        rng = random.Random(f"{self.check.options.seed}/{number}")
        sample = rng.choice(self.samples)
        alone = self.alone.of(sample)
        if not alone:
            self.note("unusable", f"{sample.name} does not run here")
            return
        (want, seconds), who = alone, f"round {number}, {sample.name}"
        try:
            what, reason, lines, have = self.disturb(rng, sample, seconds)
        except Failed as failed:
            self.note("wrong", f"{who}: {failed}")
            return
        if have != want and self.alone.run(sample)[0] != want:
            self.note("unusable", f"{sample.name} ends in another way each time by itself")
            return
        self.note(what, reason)
        if have == want:
            self.note("right")
            return
        how = f"{who}, {what} {reason}: {difference(want, have)}"
        self.note("driver" if what == "suspended" and self.is_the_drivers(sample, lines, have) else "wrong", how)

    def is_the_drivers(self, sample, lines, have):
        """Whether the program ends just so if brumate has no part in it."""
        with contextlib.suppress(Failed):  # then it is not known
            return any(self.alone.by_driver(sample, at) == have for at in (lines, lines // 2, 1) * DRIVER_TRIES)
        return False


def difference(want, have):
    if want[0] != have[0]:
        return f"ended with {have[0]}, undisturbed {want[0]}; its output ends: {' / '.join(have[1].splitlines()[-3:])}"
    lines = zip(want[1].splitlines() + ["(end)"], have[1].splitlines() + ["(end)"])
    return next(f"line {n} is {b!r}, undisturbed {a!r}" for n, (a, b) in enumerate(lines, 1) if a != b)


def tell(check, rounds):
    count = rounds.count
    done = count["right"] + count["driver"] + count["wrong"]
    total = f"{count['right']} of {done} ended as undisturbed, {count['driver']} as the driver's calls alone make them end"
    print(f"samples, seed {check.options.seed}: {total}, {count['wrong']} otherwise; {count['suspended']} suspended, "
          f"{count['refused']} refused, {count['ended']} had ended, {count['unusable']} could not be used", flush=True)
    for reason, times in rounds.reasons.most_common():
        print(f"  {times} times {reason}", flush=True)
    for text in rounds.drivers:
        print(f"  as by the driver alone: {text}", flush=True)
    check.measured["samples: ended as undisturbed"] = total
    check.measured["samples: suspended"] = count["suspended"]
    check.measured["samples: refused"] = count["refused"]
    return done


def random_moments(check):
    samples = [*own_samples(check), *(nvidias_samples(check.options.samples) if check.options.samples else ())]
    rounds = Rounds(check, samples)
    print(f"samples: {len(samples)} programs, {check.options.rounds} rounds, seed {check.options.seed}", flush=True)
    deadline = check.clock() + check.options.limit

    def one(number):
        if check.clock() < deadline:
            rounds.round(number)

    with concurrent.futures.ThreadPoolExecutor(max_workers=check.options.parallel) as pool:
        for future in [pool.submit(one, number) for number in range(1, check.options.rounds + 1)]:
            future.result()
    done = tell(check, rounds)
    if rounds.wrong:
        raise Failed(f"{len(rounds.wrong)} of {done} rounds (seed {check.options.seed}): {rounds.wrong[0]}")
    expect(rounds.count["suspended"], "nothing was suspended")


def register(case):
    """Adds the case to gpu-check's list."""
    case("samples: suspended at random moments")(random_moments)
