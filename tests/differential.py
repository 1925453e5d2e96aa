#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs made of kernel objects at random (tests/programs/objects.c), which look at all that system calls tell of them: before,
and after a suspend and a resume, a checkpoint that leaves them running, a restore, and a second one. Each difference is a
fault, or stands in DIFFERS below and in docs/support.md.

	python3 tests/differential.py [--seconds N] [--seed S] [--programs N] [--each] [--kinds A,B…] [--user] [--build DIR]

In make check it runs for a while with the same programs each time, as root and as a user. BRUMATE_TEST_SWEEP=1: for an hour, with
others; BRUMATE_TEST_SEED and BRUMATE_TEST_SECONDS say which and for how long.

--each: one program of each kind alone. A program that is refused (exit code 4, before it stands still) is taken apart, until
it is known which kinds are refused: those are listed in the end. It ends with one line that counts, and exit status 1 where
anything differed, was lost, or was refused too late. The seed of a program, given with --seed --programs 1, makes it again."""

import argparse
import contextlib
import glob
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [TESTS, os.path.join(TESTS, "integration")]

from cases import Bed, UserBed, find_build  # noqa: E402
from harness import Build, Failed, Skipped, plain_signals, run  # noqa: E402

EXIT_UNSUPPORTED, EXIT_PERMISSION = 4, 5
KINDS_OF_A_PROGRAM = (3, 10)

# What a restore does not set, and how the support matrix has it (What a checkpoint carries): (key, reason).
OPENED = "flags that matter while a file is opened"
ZOMBIE = "what nobody asks of an ended process"
DIFFERS = [
    (r"(file-tmpfile|directory|directory-deleted)\.fd\.(fl|fdinfo1)", OPENED),
    (r"terminal(-raw)?\.slave\.(fl|fdinfo1)", OPENED),
    (r".*\.so59", "groups of a unix socket's peer"),
    (r"unix-dgram-closed\.other\.peer", "name of a peer that is gone"),
    (r"zombie(-killed)?\.child\.(Groups|SigBlk|SigIgn|SigCgt|ShdPnd|Cap[A-Z][a-z]+):", ZOMBIE),
    (r"pipe-no-reader\.end\.waiting", "bytes that nobody can read"),
    (r"(memory-(shared|zero-shared|shared-with-child))\.area\.map\d+", "name of shared anonymous memory"),
    (r"child-stopped\.child\.ShdPnd:", "stop signal of a stopped process"),
    (r"udp-data\.fd\.(received|waiting)", "datagrams not read yet"),
    (r"tcp.*\.tcp10", "largest window of a connection"),
    (r"tcp.*\.(ip33|ipv6-1[78]|ipv6-29)", "multicast options of TCP"),
    (r"(tcp6-[a-z-]+\.client|udp6-connected\.connected)\.ipv6-26", "IPV6_V6ONLY of a socket that is connected to an address of IPv6"),
    (r"file-mapped-replaced\.area\.map\d+", "name of a mapped file that was replaced"),
    (r"memory-mseal\..*flags\d+", "sealed mappings"),
    (r"epoll-without-number\.fd\.fdinfo\d+", "numbers of files that an epoll watches under a closed one"),
    (r"timerfd-distant-(monotonic|boottime)\.fd\.fdinfo6", "whether a timer behind a descriptor was set to a time or to a span"),
    (r"(main|[a-z-]+\.thread)\.session-keyring", "session keyring, which is empty unless the checkpoint notes it"),
    (r"process\.timers", "numbers and signals of timers of ended threads"),
]

# And not of a user's job: (key, stage, reason).
DIFFERS_OF_A_USER = [
    (r"zombie-killed\.child\.wait", "restored twice", "exit status of an ended process, the second time"),
]

# Kinds that cannot stand beside each other, or others.
APART = [{"cwd", "cwd-deleted"}, {"umask", "cwd"}]
ALONE = {"limit-files", "limit-locked", "limit-processes", "undumpable"}


@dataclass
class Counts:
    programs: int = 0
    looks: int = 0
    facts: int = 0
    refused: dict = field(default_factory=dict)   # kind: why
    left_out: dict = field(default_factory=dict)  # kind: why it cannot be made here
    known: dict = field(default_factory=dict)     # reason: kinds
    faults: list = field(default_factory=list)

    def line(self, seed, seconds):
        return (f"differential: seed {seed}: {seconds:.0f} s, {self.programs} programs, {self.looks} looks, {self.facts} facts, "
                f"{len(self.refused)} kinds refused, {len(self.left_out)} not possible here, "
                f"{sum(map(len, self.known.values()))} known to differ, {len(self.faults)} faults")


class Program:
    """One job, from its start to its end."""

    def __init__(self, build, seed, kinds, counts, user):
        self.seed, self.kinds, self.counts = seed, kinds, counts
        self.bed = UserBed(build) if user else Bed(build)
        self.place = os.path.join(self.bed.dir, "objects")
        self.reports = 0
        self.log = None

    def __str__(self):
        return f"seed {self.seed}: {' '.join(self.kinds)}"

    def start(self):
        os.mkdir(self.place, 0o700)
        os.chown(self.place, *self.bed.owner())
        self.job, self.log = self.bed.started([self.bed.program("objects"), self.seed, self.place, *self.kinds])
        for name, why in re.findall(r"^left out (\S+): (.*)$", self.log.text(), re.M):
            self.counts.left_out[name] = why

    def look(self):
        """A report, as {key: value}."""
        self.reports += 1
        path = os.path.join(self.place, f"report.{self.reports}")
        with open(os.path.join(self.place, "look.new"), "w", encoding="utf-8") as file:
            file.write(f"{self.reports}\n")
        os.chmod(file.name, 0o644)
        os.rename(file.name, os.path.join(self.place, "look"))
        self.log.wait_until(lambda _: os.path.exists(path), f"report {self.reports}", 60)
        with open(path, encoding="utf-8", errors="replace") as file:
            facts = dict(line.rstrip("\n").split("\t", 1) for line in file)
        self.counts.looks += 1
        self.counts.facts += len(facts)
        return facts

    def compare(self, before, stage):
        now = self.look()
        for key in sorted(before.keys() | now.keys()):
            was, value = before.get(key, "(nothing)"), now.get(key, "(nothing)")
            if was == value:
                continue
            known = self.known(key, stage)
            if known:
                self.counts.known.setdefault(known, set()).add(key.split(".")[0])
            else:
                self.fault(f"{stage}: {key}: {was} -> {value}")

    def known(self, key, stage):
        """Why it may differ there; None: it may not."""
        for pattern, why in DIFFERS:
            if re.fullmatch(pattern, key) and stage != "resumed":
                return why
        for pattern, when, why in DIFFERS_OF_A_USER:
            if isinstance(self.bed, UserBed) and re.fullmatch(pattern, key) and stage == when:
                return why
        return None

    def fault(self, text):
        self.counts.faults.append(f"{self}: {text}")

    def refusal(self, *args):
        """None where it is done, or why it was refused; anything else is a fault."""
        done = self.bed.cli(*args, timeout=120)
        if done.code == 0:
            return None
        if done.code in (EXIT_UNSUPPORTED, EXIT_PERMISSION) and args[0] != "restore" and self.bed.state(self.job) in ("running", "suspended"):
            return done.err.splitlines()[0] if done.err else "?"
        raise Failed(done.why())

    def go(self):
        """Why it was refused; None: it went through all."""
        self.start()
        before = self.look()
        self.compare(before, "looked at twice")
        why = self.refusal("suspend", self.job)
        if why:
            return why
        self.bed.ok("resume", self.job)
        self.compare(before, "resumed")
        why = self.refusal("checkpoint", "--leave-running", self.job)
        if why:
            return why
        self.compare(before, "left running")
        for stage in ("restored", "restored twice"):
            self.refused_late(self.refusal("checkpoint", self.job))
            self.refused_late(self.refusal("restore", self.job))
            self.compare(before, stage)
        return None

    @staticmethod
    def refused_late(why):
        if why:
            raise Failed(f"refused in the end: {why}")

    def run(self):
        self.counts.programs += 1
        try:
            return self.go()
        except Failed as failed:
            self.fault(str(failed).replace("\n", " ")[:600])
        finally:
            self.end()
        return None

    def end(self):
        with contextlib.suppress(Failed):
            self.bed.cli("kill", "--all", timeout=60)
        said = self.log.text() if self.log else ""
        for what, number in re.findall(r"^left (semaphores|queue) (\d+)$", said, re.M):
            subprocess.run(["ipcrm", "-s" if what == "semaphores" else "-q", number], stderr=subprocess.DEVNULL, check=False)
        self.bed.close()
        for pid in re.findall(r"^ready pid (\d+)$", said, re.M):  # others may run beside
            for path in glob.glob(f"/dev/shm/objects-{pid}-*") + glob.glob(f"/tmp/objects-{pid}-*"):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def chosen(rng, names):
    kinds = rng.sample(names, min(len(names), rng.randint(*KINDS_OF_A_PROGRAM)))
    for apart in APART:
        for extra in sorted(apart & set(kinds))[1:]:
            kinds.remove(extra)
    return kinds


def examine(build, seed, kinds, counts, options):
    """A program of these; where it is refused, those of its halves, down to each kind by itself."""
    why = Program(build, seed, kinds, counts, options.user).run()
    if why and len(kinds) == 1:
        counts.refused[kinds[0]] = why
    elif why:
        half = len(kinds) // 2
        for part in (kinds[:half], kinds[half:]):
            if not set(part) & counts.refused.keys():
                examine(build, seed, part, counts, options)


def programs_of(options, names, counts):
    """(seed, kinds) of one after the other."""
    if options.kinds:
        yield options.seed, options.kinds.split(",")
        return
    if options.each:
        yield from ((options.seed, [name]) for name in names)
        return
    alone = [name for name in names if name in ALONE]
    number = 0
    while True:
        seed = options.seed + number
        rng = random.Random(seed)
        together = [name for name in names if name not in ALONE and name not in counts.refused and name not in counts.left_out]
        yield seed, [rng.choice(alone)] if alone and rng.random() < 0.02 else chosen(rng, together)
        number += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sweep = os.environ.get("BRUMATE_TEST_SWEEP")
    seconds = os.environ.get("BRUMATE_TEST_SECONDS") or (3600 if sweep else 40)
    seed = os.environ.get("BRUMATE_TEST_SEED") if not sweep else None
    parser.add_argument("--seconds", type=float, default=float(seconds))
    parser.add_argument("--programs", type=int, default=1 << 30)
    parser.add_argument("--seed", type=int, default=int(seed or random.SystemRandom().randrange(1 << 30)))
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--user", action="store_true")
    parser.add_argument("--build")
    options = parser.parse_args()
    plain_signals()
    build = Build(options.build) if options.build else find_build()
    if os.geteuid() != 0:
        print("skip: needs root: CRIU does")
        return 77
    names = run([build.program("objects"), "--list"], env={**os.environ, "LD_LIBRARY_PATH": build.sim}).out.split()
    counts, begin = Counts(), time.monotonic()
    try:
        for number, (seed, kinds) in enumerate(programs_of(options, names, counts)):
            if number >= options.programs or (not options.each and time.monotonic() - begin >= options.seconds):
                break
            examine(build, seed, kinds, counts, options)
    except Skipped as skipped:
        print(f"skip: {skipped}")
        return 77
    for title, what in (("refused", counts.refused), ("not possible here", counts.left_out)):
        for kind, why in sorted(what.items()):
            print(f"{title}: {kind}: {why}")
    for reason, kinds in sorted(counts.known.items()):
        print(f"known: {reason}: {' '.join(sorted(kinds))}")
    for fault in counts.faults:
        print(f"FAULT {fault}")
    print(counts.line(options.seed, time.monotonic() - begin))
    return 1 if counts.faults or not counts.programs else 0


if __name__ == "__main__":
    sys.exit(main())
