# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about jobs of many processes that share nothing: a pool of eight on one GPU, and one
whose members start and end all the while. How long the pool stands still is told beside its slowest member alone."""

import os
import re
import sys
import time

from harness import expect

MEMBERS, ROUNDS, PATIENCE_S = 8, 3, 120
# It says once that all are at work, and leaves them behind: they are members without it.
LAUNCHER = """
import os, subprocess, sys, time
directory, count, stay, *command = sys.argv[1:]
paths = [os.path.join(directory, f"member-{i}.log") for i in range(int(count))]
for path in paths:
    subprocess.Popen(command, stdout=open(path, "w"), stderr=subprocess.STDOUT)
while not all("step 3 OK" in open(path).read() for path in paths):
    time.sleep(0.05)
print("ready pool", flush=True)
while stay == "churn":
    subprocess.run(command + ["--steps", "20"], stdout=subprocess.DEVNULL, check=True)
    print("another has ended", flush=True)
"""


class Pool:
    """Members that are at work, each with a log of its own."""

    def __init__(self, check, count, stay="leave"):
        self.check = check
        mib = 16 if check.options.simulated else 512
        directory = os.path.join(check.instance.dir, f"pool-{count}-{stay}")
        os.mkdir(directory)
        self.paths = [os.path.join(directory, f"member-{i}.log") for i in range(count)]
        counter = [check.program("counter"), "--mib", mib, "--chunk-mib", "16", "--interval-ms", "50"]
        self.id, self.log = check.job_started([sys.executable, "-u", "-c", LAUNCHER, directory, count, stay, *counter],
                                              f"pool-{count}-{stay}")

    def steps(self):
        """The last step of each member; none is wrong, missing or doubled."""
        last = []
        for path in self.paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            expect("BAD" not in text and "ERR" not in text, f"{path}: wrong data: {text[-300:]}")
            numbers = [int(n) for n in re.findall(r"step (\d+) OK$", text, re.MULTILINE)]
            expect(numbers == list(range(1, len(numbers) + 1)), f"{path}: steps are missing or doubled")
            last.append(len(numbers))
        return last

    def go_on(self):
        before, deadline = self.steps(), time.monotonic() + PATIENCE_S
        while not all(now >= then + 3 for now, then in zip(self.steps(), before)):
            expect(time.monotonic() < deadline, f"not all members go on: {before}, then {self.steps()}")
            time.sleep(0.05)

    def launcher_has_left(self):
        deadline = time.monotonic() + PATIENCE_S
        while (n := self.check.instance.job(self.id)["processes"]) != len(self.paths):
            expect(time.monotonic() < deadline, f"{n} processes are in the tree, expected {len(self.paths)}")
            time.sleep(0.05)

    def round_trip(self):
        """Suspends and resumes; the seconds that this took, gate to ungate."""
        out = self.check.do("suspend", self.id)
        before = self.steps()
        into = self.check.do("resume", self.id)
        expect(len(before) == len(self.paths), "a member is missing")
        self.go_on()
        late = sum(p["seconds"] for p in out["phases"] if p["name"] in ("identify", "preflight"))
        return out["seconds"] - late + into["seconds"]

    def checkpoint_and_restore(self):
        saved = self.check.do("checkpoint", self.id)
        before = self.steps()
        self.check.do("restore", saved["checkpoint"])
        expect(self.steps() >= before, "a log became shorter")
        self.go_on()


def eight_processes(check):
    alone = Pool(check, 1)
    alone_s = min(alone.round_trip() for _ in range(ROUNDS))
    check.instance.end(alone.id)
    pool = Pool(check, MEMBERS)
    pool.launcher_has_left()
    pool_s = min(pool.round_trip() for _ in range(ROUNDS))
    pool.checkpoint_and_restore()
    pool.round_trip()
    check.instance.end(pool.id)
    check.measured["trees"] = f"eight members {pool_s:.2f} s, one alone {alone_s:.2f} s, {pool_s / alone_s:.2f} times"
    print(check.measured["trees"], flush=True)


def start_and_end(check):
    pool = Pool(check, 3, "churn")
    ended = pool.log.text().count("another has ended")
    for _ in range(10):
        pool.round_trip()
    pool.checkpoint_and_restore()
    expect(pool.log.text().count("another has ended") > ended, "no member has ended meanwhile")
    check.instance.end(pool.id)


def register(case):
    """Adds these cases to gpu-check's list."""
    case("trees: a pool of eight processes")(eight_processes)
    case("trees: members that start and end")(start_and_end)
