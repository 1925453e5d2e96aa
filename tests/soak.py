#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A soak: random jobs, random operations on them, two at a time, and meanwhile sudden ends and stops of any of our
programs, full disks and clocks that jump. Every program checks all of its memory in each step. A round begins with an
instance of brumate of its own and ends with a reckoning: each job goes on where it was, or is lost for a reason
that docs/states.md allows; each checkpoint that was said to be made is there and whole; each promise holds.

	python3 tests/soak.py [--seconds N] [--seed S] [--rounds N] [--gpu simulated|real] [--gpus N] [--build DIR] [--progress] [--stops]

--stops has all that can be killed stopped as well, members and CRIU included, for seconds, at any moment and at the points of
the code, and killed after that or let go on; half of the operations have a --timeout then, beyond which nobody waits.

It ends with one line that counts, and exit status 1 where anything was lost, wrong or stuck; on SIGTERM it does so once it
has reckoned up the round under way. The seed of a round that failed, given with --seed, repeats the round's choices.
BRUMATE_TEST_KEEP names a directory to which the directories of failed rounds are copied."""

import argparse
import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field

TESTS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [TESTS, os.path.join(TESTS, "integration")]

import promises  # noqa: E402
from cases import Bed, find_build  # noqa: E402
from faulty import ERRORS, PROGRAMS as OURS, Faulty  # noqa: E402
from harness import Build, Failed, Log, Skipped, plain_signals, process_start  # noqa: E402

COMMAND_S, GOES_ON_S, SETTLES_S = 150, 60, 90
TERMINATED = threading.Event()  # it was told to end
STATE_MIB = 400
TIMEOUT_S, LATE_S = 6, 5  # of operations, with --stops; the second counts beyond the first, on a machine with much to do
REFUSED = (2, 3, 4, 5, 6)  # nothing was touched
EXIT_LOST = 8


@dataclass
class Counts:
    rounds: int = 0
    operations: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    faults: dict = field(default_factory=dict)
    excused: int = 0  # lost, for a reason that is allowed
    lost: list = field(default_factory=list)
    wrong: list = field(default_factory=list)
    stuck: list = field(default_factory=list)

    def line(self, name, seed, seconds):
        faults = ", ".join(f"{n} {name}" for name, n in sorted(self.faults.items()))
        return (f"{name}: seed {seed}: {seconds:.0f} s, {self.rounds} rounds, {self.operations} operations ({self.done} done, "
                f"{self.failed} failed, {self.refused} refused), {sum(self.faults.values())} faults ({faults}), "
                f"{self.excused} lost with reason, {len(self.lost)} lost, {len(self.wrong)} wrong, {len(self.stuck)} stuck")

    def is_bad(self):
        return bool(self.lost or self.wrong or self.stuck)


class Subject:
    """A job, and what it must be like in the end."""

    def __init__(self, job, log, what):
        self.id, self.log, self.what = job, log, what
        self.excuse = None  # why it may be lost
        self.restores = 0   # how often its log may go back
        self.gone = False   # removed, by rm
        self.lock = threading.Lock()

    def __str__(self):
        return f"{self.id} ({self.what})"

    def check_log(self):
        """No wrong step; none left out; and back only as often as it was restored. The last step."""
        text = self.log.text()
        bad = re.search(r"^.*\b(BAD|WRONG|ERR\w*)\b.*$", text, re.MULTILINE)
        if bad:
            return None, f"the program says: {bad.group(0)}"
        steps = [int(n) for n in re.findall(r"^(?:.* )?step (\d+) .*\n", text, re.MULTILINE)]
        jumps, furthest = [], 0
        for a, b in zip([0] + steps, steps):
            if b > furthest + 1:
                return None, f"steps are left out: {b} follows {a}, and none before was beyond {furthest}"
            if b != a + 1:
                jumps.append((a, b))  # to where a checkpoint was made
            furthest = max(furthest, b)
        if len(jumps) > self.restores:
            return None, f"it jumped {jumps}, restored {self.restores} times"
        return (steps[-1] if steps else 0), None


PROGRAMS = (("counter", 4), ("counter", 16), ("counter", 48), ("counter", 16), ("kinds plain", 8), ("kinds big-many", 16),
            ("kinds async", 8), ("kinds pinned", 8), ("kinds vmm", 8), ("kinds graph", 8), ("kinds streams", 8),
            ("kinds threads", 8), ("kinds fork-child", 8), ("kinds fork-after", 8), ("kinds two-gpus", 8),
            ("kinds fork-before", 8), ("kinds none", 0), ("memory", 16), ("memory threads", 16), ("shared", 16),
            ("sh", 8))
NEEDS_FORCE = ("kinds two-gpus", "kinds fork-before", "sh")
BY_TWO_GPUS = ("kinds two-gpus",)


class Round:
    """One instance of brumate, from its first job to the reckoning."""

    NAME, JOBS = "soak", (2, 4)  # how many jobs there are, at least and at most
    VICTIMS = ("brumate", "brumate-broker", "brumate-shim", "brumate-keeper", "brumate-init", "criu", "member")
    ACTIONS = ("error:5", "error:28", "error:12", "kill", "kill:broker", "kill:criu", "delay:200", "delay:1000")  # at a point

    STOPS = ("stop", "stop:broker", "stop:keeper", "stop:job", "stop:criu", "stop:reaper")

    def __init__(self, build, seed, options, counts):
        self.seed, self.options, self.counts = seed, options, counts
        self.rng = random.Random(f"{seed}")
        self.real = options.gpu == "real"
        self.gpus = options.gpus or (1 if self.real else 2)
        self.lock = threading.Lock()
        self.subjects = []
        self.committed = {}  # id of a checkpoint that a command said it made: the subject
        self.removed = set()
        self.over = threading.Event()
        self.deadline = None
        self.stopped = {}  # pid of a process that stands still: until when
        self.was_stopped = set()
        self.events = []
        self.begin = time.monotonic()
        self.bed = Bed(build, {"BRUMATE_BROKER_IDLE_S": str(self.rng.choice((1, 60)))}, simulated=not self.real)
        self.disk_file = None
        self.faulty = None
        self.removals_fail = False  # then what is left goes with the next sweep, not before
        self.encrypted = self.rng.random() < 0.3
        self.small_disk = not self.real and self.rng.random() < 0.3

    def note(self, text):
        self.events.append(f"{time.monotonic() - self.begin:7.3f} {text}")

    def count_fault(self, name):
        with self.lock:
            self.counts.faults[name] = self.counts.faults.get(name, 0) + 1

    # The bed.
    def make(self):
        bed = self.bed
        lines = []
        if self.encrypted:
            key = os.path.join(bed.dir, "key")
            with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write(bytes(self.rng.randrange(256) for _ in range(32)).hex() + "\n")
            lines += ["[Store]", f"EncryptionKeyFile={key}"]
        if self.real:
            lines += ["[Broker]", "Pool=4G"]
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        if self.small_disk:
            path = bed.tmpfs(f"{STATE_MIB}M")
            bed.own["BRUMATE_STATE_DIR"] = os.path.join(path, "state")
            os.mkdir(bed.own["BRUMATE_STATE_DIR"], 0o700)
            self.disk_file = os.path.join(path, "filler")
        with contextlib.suppress(Skipped):  # without it, the clocks are right and no call fails
            self.faulty = Faulty(bed.build, bed.dir)
            bed.own.update(self.faulty.environment)
        self.note(f"encrypted={self.encrypted} small_disk={self.small_disk}")

    def new_job(self, rng):
        name, mib = rng.choice([p for p in PROGRAMS if self.gpus > 1 or p[0] not in BY_TWO_GPUS])
        words = name.split()
        gpu = rng.randrange(2) if self.gpus > 1 else 0
        interval = str(rng.choice((2, 10, 50)))
        if name == "sh":
            counter = f"{self.bed.program('counter')} --mib {mib} --chunk-mib 4 --interval-ms {interval}"
            argv = ["sh", "-c", f"{counter} >/dev/null & {counter} & wait"]
        else:
            argv = [self.bed.program(words[0]), *words[1:], "--interval-ms", interval]
            if words[0] == "counter":
                argv += ["--mib", str(mib), "--chunk-mib", str(min(mib, 16)), "--gpu", str(gpu)]
            elif mib:
                argv += ["--mib", str(mib)]
        options = ["--data-path", "driver"] if rng.random() < 0.15 else []
        self.run_job(Subject, name, *options, "--", *argv)

    def run_job(self, kind, name, *words):
        result = self.command("run", *words)
        if result is None or result[0]:
            return
        job = result[1].strip()
        log = Log(os.path.join(self.bed.own["BRUMATE_LOG_DIR"], job + ".log"))
        subject = kind(job, log, name)
        with self.lock:
            self.subjects.append(subject)
        with contextlib.suppress(Failed, FileNotFoundError):  # another thread may have removed it by now
            log.wait_until(lambda text: re.search("^ready ", text, re.MULTILINE) or self.over.is_set(), "ready", 20)

    # Commands.
    def command(self, *words, subject=None):
        """(exit code, stdout, stderr) of a command of brumate; None where it did not end. Each failure has a word."""
        start = time.monotonic()
        env = self.bed.command_env()
        has_end = self.options.stops and words[0] in ("suspend", "resume", "checkpoint", "restore") and "--every" not in words \
            and self.choice() < 0.5
        if has_end:
            words = (*words, "--timeout", f"{TIMEOUT_S}s")
        with subprocess.Popen([self.bed.brumate, *map(str, words)], env=env, stdin=subprocess.DEVNULL, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                self.stuck(f"{' '.join(map(str, words))}: no end within {COMMAND_S} s\n{self.where_all_stand()}")
                process.kill()
                process.communicate()
                return None
        code = process.returncode
        if has_end and time.monotonic() - start > TIMEOUT_S + LATE_S and process.pid not in self.was_stopped:
            self.stuck(f"{' '.join(map(str, words))}: exit {code} after {time.monotonic() - start:.1f} s: {err.strip()[-300:]}")
        shown = " ".join(os.path.basename(w) if w.startswith("/") else w for w in map(str, words))
        last = err.strip().splitlines()[-1:] if code else []
        self.note(f"{shown}: exit {code} after {time.monotonic() - start:.2f} s {' '.join(last)[-300:]}")
        with self.lock:
            self.counts.operations += 1
            self.counts.done += code == 0
            self.counts.refused += code in REFUSED
            self.counts.failed += code not in (0, *REFUSED)
        if code < 0 and code != -signal.SIGKILL:
            self.wrong(f"{shown}: ended by signal {-code}: {err[-500:]}")
        if code > 0 and not err.strip() and words[0] != "wait":
            self.wrong(f"{shown}: exit {code} without a word")
        if code == EXIT_LOST and subject and not subject.excuse:
            self.note(f"said to be lost: {subject}")
        return code, out, err

    def where_all_stand(self):
        """What our processes wait for."""
        lines = []
        for process in promises.Look(self.bed.places()).ours.values():
            for thread in promises.names_in(f"/proc/{process.pid}/task"):
                path = f"/proc/{process.pid}/task/{thread}"
                state = re.search(r"^State:\s+(.*)$", promises.read_text(path + "/status"), re.MULTILINE)
                lines.append(f"   {process} thread {thread}: {state.group(1) if state else '?'} "
                             f"{promises.read_text(path + '/wchan')} {promises.read_text(path + '/syscall').strip()[:60]}")
        return "\n".join(lines)

    # Findings.
    def lost(self, text):
        self.note("LOST " + text)
        self.counts.lost.append(f"seed {self.seed}: {text}")

    def wrong(self, text):
        self.note("WRONG " + text)
        self.counts.wrong.append(f"seed {self.seed}: {text}")

    def stuck(self, text):
        self.note("STUCK " + text)
        self.counts.stuck.append(f"seed {self.seed}: {text}")

    # What is done to jobs.
    def checkpoints(self):
        store = self.bed.store()
        return [name for name in promises.names_in(store) if not name.startswith(".")]

    def force(self, subject):
        return ["--force"] if subject.what in NEEDS_FORCE else []

    def suspend(self, rng, subject):
        self.command("suspend", subject.id, *rng.choice(((), (), ("--park",))), *self.force(subject), subject=subject)

    def resume(self, rng, subject):
        self.command("resume", subject.id, *rng.choice(((), (), ("--keep-copy",))), subject=subject)

    def checkpoint(self, rng, subject):
        options = rng.choice(((), (), ("--leave-running",), ("--leave-running", "--keep-copy")))
        result = self.command("checkpoint", subject.id, *options, *self.force(subject), subject=subject)
        if result and result[0] == 0:
            with self.lock:
                self.committed[result[1].strip()] = subject

    def restore(self, rng, subject):
        which = subject.id
        own = [c for c, s in list(self.committed.items()) if s is subject and c not in self.removed]
        if own and rng.random() < 0.5:
            which = rng.choice(own)
        subject.restores += 1
        self.command("restore", which, subject=subject)

    def kill(self, rng, subject):
        subject.excuse = "kill"
        self.command("kill", "--grace", rng.choice(("0", "200ms", "5s")), subject.id, subject=subject)

    def remove_job(self, _rng, subject):
        result = self.command("rm", "--job", subject.id, subject=subject)
        if result and result[0] == 0:
            subject.gone = True

    def remove_checkpoint(self, rng, _subject):
        found = self.checkpoints()
        if found:
            which = rng.choice(found)
            self.removed.add(which)
            self.command("rm", "--checkpoint", which)

    def prune(self, rng, _subject):
        keep = rng.randrange(1, 4)
        self.removed.update(self.checkpoints())
        self.removed.update(self.committed)
        self.command("prune", "--keep-last", keep)

    def move(self, rng, _subject):
        found = self.checkpoints()
        if not found:
            return
        which = rng.choice(found)
        path = os.path.join(self.bed.dir, f"stream-{rng.randrange(1 << 30)}")
        elsewhere = os.path.join(self.bed.dir, f"elsewhere-{rng.randrange(1 << 30)}")
        result = self.command("export", which, "--output", path)
        if result and result[0] == 0:
            result = self.command("import", "--dir", elsewhere, path)
            if result and result[0] == 0:
                self.verify_copy(elsewhere)
        shutil.rmtree(elsewhere, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)

    def verify_copy(self, directory):
        """A fault hits whoever looks, and once: what is damaged is so at each look."""
        for _ in range(4):
            result = self.command("verify", "--dir", directory, "--all")
            if not result or result[0] in (0, -signal.SIGKILL):
                return
        self.wrong(f"what was exported and imported is not whole: {result[2][-300:]}")

    def look(self, rng, subject):
        found = self.checkpoints()
        words = [("ps",), ("ls",), ("inspect", subject.id), ("doctor", "--job", subject.id), ("prune", "--leftovers")]
        if found:
            words += [("verify", rng.choice(found)), ("diff", rng.choice(found), rng.choice(found))]
        self.command(*rng.choice(words))

    def schedule(self, rng, subject):
        self.removed.update(c for c, s in list(self.committed.items()) if s is subject)
        subject.scheduled = True
        options = ("--every", "1s", "--keep-last", str(rng.randrange(1, 3)))
        result = self.command("checkpoint", subject.id, *options, *self.force(subject), subject=subject)
        if result and result[0] == 0:
            self.pause(rng.uniform(0.5, 2.5))
        self.command("checkpoint", subject.id, "--every", "0", subject=subject)

    def wait_a_moment(self, _rng, subject):
        self.command("wait", "--timeout", "200ms", subject.id)

    OPERATIONS = ((suspend, 20), (resume, 20), (checkpoint, 18), (restore, 18), (kill, 1), (remove_job, 2), (remove_checkpoint, 3),
                  (prune, 2), (move, 3), (look, 6), (schedule, 3), (wait_a_moment, 1))

    # What is likely to be done in a state; anything may be.
    LIKELY = {"running": (suspend, checkpoint, schedule), "suspended": (resume, resume, checkpoint), "checkpointed": (restore,),
              "exited": (restore, remove_job), "lost": (restore, remove_job)}

    def choose(self, rng, subject):
        functions, weights = zip(*self.OPERATIONS)
        record = promises.read_json(os.path.join(self.bed.own["BRUMATE_STATE_DIR"], "jobs", subject.id, "job.json")) or {}
        likely = self.LIKELY.get(record.get("state"), ())
        kind = rng.random()
        if likely and kind < 0.6:
            return rng.choice(likely)
        return rng.choices(functions, weights)[0]

    def goes_on(self):
        return not self.over.is_set() and not TERMINATED.is_set() and time.monotonic() < self.deadline

    def pause(self, seconds):
        self.over.wait(max(0, min(seconds, self.deadline - time.monotonic())))

    def worker(self, number):
        rng = random.Random(f"{self.seed} worker {number}")
        while self.goes_on():
            alive = [s for s in self.subjects if not s.gone]
            fewest, most = self.JOBS
            if len(alive) < fewest or (len(alive) < most and rng.random() < 0.05):
                self.new_job(rng)
                continue
            subject = rng.choice(alive)
            self.choose(rng, subject)(self, rng, subject)
            self.pause(rng.choice((0, 0, 0.02, 0.2)))

    # Faults.
    def holders_are_whole(self, look, job):
        """Whether all that shim and keeper hold is held by both: then either may be killed."""
        look.broken = []
        promises.check_copies(look)
        return not any(f"job {job.id} " in line for line in look.broken)

    def victim(self, rng):
        """(what it is, process, job): one of our processes whose end costs nothing."""
        look = promises.Look(self.bed.places())
        found = []
        for process in look.ours.values():
            kind = process.program
            job = next((j for j in look.jobs.values() if j.id in process.command or process.pid in j.tree), None)
            if kind == "brumate-keeper":
                job = next((j for j in look.jobs.values() if process in look.keepers(j)), None)
            if kind in ("brumate", "brumate-broker", "criu"):
                found.append((kind, process, job))
            if kind in ("brumate-shim", "brumate-keeper") and job and self.may_die(look, job, kind):
                found.append((kind, process, job))
            if kind == "brumate-init" and rng.random() < 0.1:
                found.append((kind, process, job))
            # Not the root of others: what descends from it would outlive the job.
            if kind is None and job and (process.pid != job.root.pid or len(job.tree) == 1) and rng.random() < 0.02:
                found.append(("member", process, job))
        found = [f for f in found if f[0] in self.VICTIMS]
        if not found:
            return None
        kinds = sorted({kind for kind, _, _ in found})
        kind = rng.choice(kinds)
        return rng.choice([f for f in found if f[0] == kind])

    def may_die(self, look, job, kind):
        """One of the two holders of a copy may be killed while the other holds all of it."""
        others = look.keepers(job) if kind == "brumate-shim" else look.shims(job)
        if not job.table:
            return not look.keepers(job) or bool(others)
        if job.state == "suspended" and not self.holders_are_whole(look, job):
            return False
        return bool(others)

    def subject_of(self, job):
        return next((s for s in self.subjects if job and s.id == job.id), None)

    def end_suddenly(self, rng):
        if self.fault_is_armed():
            return
        found = self.victim(rng)
        if not found:
            return
        kind, process, job = found
        subject = self.subject_of(job)
        if kind in ("member", "brumate-init") and subject:
            subject.excuse = f"{kind} killed"
        if kind == "criu":
            # While its code stands in place of the job's nobody can help (docs/states.md); and a process that it
            # restores bears its name until it is done.
            for other in self.subjects:
                other.excuse = other.excuse or "CRIU killed"
        if kind in ("brumate-shim", "brumate-keeper"):
            self.last_holder = time.monotonic()
        if process_start(process.pid) != process.start:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            self.note(f"   SIGKILL {process} of {subject}")
            self.count_fault(f"kills of {kind}")

    def choice(self):
        """For what two workers choose at the same time."""
        with self.lock:
            return self.rng.random()

    def stop(self, rng):
        """Until let_go() finds that it was long enough."""
        found = self.victim(rng)
        if not found or found[0] == "brumate-init":
            return
        kind, process, _ = found
        with contextlib.suppress(ProcessLookupError):
            self.note_stop(process.pid, rng.choice((0.3, 1.5, 4)), kind)
            os.kill(process.pid, signal.SIGSTOP)

    def note_stop(self, pid, seconds, kind):
        if kind == "criu":  # which is killed by the shim then
            for other in self.subjects:
                other.excuse = other.excuse or "CRIU killed"
        self.stopped[pid] = time.monotonic() + seconds
        self.was_stopped.add(pid)
        self.note(f"   SIGSTOP {kind} {pid} for {seconds} s")
        self.count_fault(f"stops of {kind}")

    def let_go(self, rng, everybody=False):
        """Those that were stopped at a point of the code are known by now."""
        path = self.bed.fault_file + ".stopped"
        with contextlib.suppress(OSError):
            with open(path, encoding="ascii") as file:
                pids = [int(word) for word in file.read().split()]
            os.unlink(path)
            for pid in pids:
                kind = {p: k for k, p in self.kinds()}.get(pid, "somebody")
                self.note_stop(pid, rng.choice((0.3, 1.5, 4)), kind)
        for pid, until in list(self.stopped.items()):
            if not everybody and time.monotonic() < until:
                continue
            del self.stopped[pid]
            if not everybody and rng.random() < 0.4 and pid in [p for k, p in self.kinds(may_die=True)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.note(f"   SIGKILL {pid}, which was stopped")
                    self.count_fault("kills of stopped")
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def kinds(self, may_die=False):
        """(program, pid) of all of ours; @may_die: of those whose end costs nothing."""
        look = promises.Look(self.bed.places())
        for process in look.ours.values():
            kind, job = process.program, None
            if kind in ("brumate-shim", "brumate-keeper"):
                job = next((j for j in look.jobs.values() if process in look.shims(j) or process in look.keepers(j)), None)
            if not may_die or kind in ("brumate", "brumate-broker") or (job and self.may_die(look, job, kind)):
                yield kind or "member", process.pid

    def stop_for_a_while(self, rng):
        if self.options.stops:
            self.stop(rng)
            return
        found = self.victim(rng)
        if not found or found[0] in ("member", "brumate-init", "criu"):
            return
        kind, process, _ = found
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
            seconds = rng.choice((0.05, 0.3, 1.5))
            self.note(f"   SIGSTOP {process} for {seconds} s")
            self.count_fault(f"stops of {kind}")
            self.pause(seconds)
            os.kill(process.pid, signal.SIGCONT)

    def fault_is_armed(self):
        return os.path.exists(self.bed.fault_file)

    def at_a_point(self, rng):
        """A fault at a named point of the code; it waits there until somebody comes by."""
        if self.fault_is_armed():
            if rng.random() < 0.3:
                self.bed.disarm()
            return
        point = rng.choice(self.options.points)
        action = rng.choice(self.ACTIONS + (self.STOPS if self.options.stops else ()))
        if action in ("kill:criu", "stop:criu"):
            for other in self.subjects:
                other.excuse = other.excuse or "CRIU killed"
        self.removals_fail |= point in ("store.remove", "store.rename")
        self.bed.fault(point, action)
        self.note(f"   armed {point} {action}")
        self.count_fault("points")

    def fill_disk(self, rng):
        if not self.disk_file:
            return
        self.note("   the disk is full")
        self.count_fault("full disks")
        try:
            with open(self.disk_file, "wb", buffering=0) as file:
                leave = rng.choice((0, 4096, 1 << 20, 8 << 20))
                size = os.statvfs(os.path.dirname(self.disk_file))
                left = size.f_bavail * size.f_frsize - leave
                while left > 0:
                    left -= file.write(bytes(min(left, 4 << 20)))
        except OSError:
            pass
        self.pause(rng.choice((0.1, 0.5, 2)))
        self.free_disk()

    def free_disk(self):
        if self.disk_file:
            with contextlib.suppress(OSError):
                os.unlink(self.disk_file)
                self.note("   the disk has room")

    def move_clock(self, rng):
        if self.faulty:
            seconds = rng.choice((-7200, -300, -2, 2, 300, 7200)) * rng.random()
            self.faulty.set_clock(seconds)
            self.note(f"   the clock is {seconds:+.0f} s off")
            self.count_fault("clocks")

    def fail_calls(self, rng):
        """The n-th call of some kind fails, or two of them do; they wait there until their turn comes."""
        if not self.faulty:
            return
        for rule in range(rng.choice((1, 2))):
            program, call = rng.choice(OURS), rng.choice(tuple(ERRORS))
            nth, error = int(1.5 ** rng.uniform(0, 18)), rng.choice(ERRORS[call])
            if self.faulty.failed(rule):
                self.count_fault("failed calls")
            self.removals_fail |= call == "name"
            self.faulty.arm(rule, program, call, nth, error)
            self.note(f"   armed: {call} {nth} of {program} fails with {error}")

    FAULTS = ((end_suddenly, 10), (stop_for_a_while, 4), (at_a_point, 6), (fill_disk, 3), (move_clock, 2), (fail_calls, 6))

    def saboteur(self):
        rng = random.Random(f"{self.seed} faults")
        functions, weights = zip(*self.FAULTS)
        if self.options.stops:
            weights = [10 if f.__name__ == "stop_for_a_while" else w for f, w in self.FAULTS]
        while self.goes_on():
            self.pause(rng.expovariate(1 / self.options.pause))
            if rng.random() < 0.98:
                rng.choices(functions, weights)[0](self, rng)
            self.let_go(rng)
        self.let_go(rng, everybody=True)

    # The round.
    def work(self, seconds):
        self.deadline = time.monotonic() + seconds
        threads = [threading.Thread(target=self.guarded, args=(function, *args), daemon=True)
                   for function, *args in ((self.worker, 1), (self.worker, 2), (self.saboteur,))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.over.set()

    def guarded(self, function, *args):
        try:
            function(*args)
        except Exception:  # noqa: BLE001 (a mistake in the soak itself is a failure of the round)
            self.wrong("the soak itself: " + traceback.format_exc(limit=-4))
            self.over.set()

    def settle(self, subject):
        """The state once nothing is under way; None where it does not come to that."""
        deadline = time.monotonic() + SETTLES_S
        while time.monotonic() < deadline:
            jobs = promises.Look(self.bed.places()).jobs
            job = jobs.get(subject.id)
            if not job:
                return "gone"
            if job.state not in promises.UNDER_WAY:
                return job.state
            if not job.has_shim:
                self.command("kill", "--signal", "URG", subject.id)
            select.select([], [], [], 0.1)
        self.stuck(f"{subject} is {job.state} for {SETTLES_S} s\n{self.where_all_stand()}")
        return None

    def reckon(self):
        self.bed.disarm()
        self.let_go(self.rng, everybody=True)
        self.free_disk()
        if self.faulty:
            self.counts.faults["failed calls"] = self.counts.faults.get("failed calls", 0) + \
                sum(failed for _, failed in self.faulty.disarm())
            self.faulty.set_clock(0)
        self.note("the reckoning")
        for subject in self.subjects:
            if not subject.gone:
                self.reckon_job(subject)
        self.reckon_store()
        if self.removals_fail:
            self.command("prune", "--leftovers")
        lines = promises.broken(self.bed.places(), 20)
        for line in lines:
            self.wrong(line)
        for subject in self.subjects:
            if not subject.gone:
                self.command("kill", "--grace", "5s", subject.id)
        for line in promises.broken(self.bed.places(), 20) if not lines else ():
            self.wrong("at the end: " + line)

    def end_schedule(self, subject):
        """It may be refused while a checkpoint is under way."""
        path = os.path.join(self.bed.own["BRUMATE_STATE_DIR"], "jobs", subject.id, "job.json")
        for _ in range(30):
            if not (promises.read_json(path) or {}).get("schedule"):
                return
            self.command("checkpoint", subject.id, "--every", "0")
            select.select([], [], [], 0.5)
        self.stuck(f"{subject}: its schedule cannot be ended")

    def reckon_job(self, subject):
        self.end_schedule(subject)
        state = self.settle(subject)
        if state == "gone" and subject.restores == 0:
            self.lost(f"{subject}: its record is gone")
        if state in ("suspended",):
            result = self.command("resume", subject.id)
            if not result or result[0]:
                self.stuck(f"{subject} is suspended and cannot be resumed: {result and result[2][-500:]}")
                return
        if state == "checkpointed" or (state == "lost" and self.own_checkpoints(subject)):
            if state == "checkpointed" and subject.id not in self.jobs_with_checkpoint():
                subject.excuse = subject.excuse or "its checkpoint was removed"
            subject.restores += 1
            result = self.command("restore", subject.id)
            if not result or result[0]:
                if not subject.excuse and state == "checkpointed":
                    self.lost(f"{subject} is checkpointed and cannot be restored: {result and result[2][-500:]}")
                return
        elif state in ("exited", "lost"):
            self.reckon_end(subject, state)
            return
        self.expect_goes_on(subject)

    def own_checkpoints(self, subject):
        return [c for c, s in self.committed.items() if s is subject and c in self.checkpoints()]

    def jobs_with_checkpoint(self):
        """Ids of jobs whose record names a checkpoint that is there."""
        return {job.id for job in promises.Look(self.bed.places()).jobs.values()
                if isinstance(job.record.get("checkpoint_path"), str) and os.path.isdir(job.record["checkpoint_path"])}

    def reckon_end(self, subject, state):
        job = promises.Look(self.bed.places()).jobs[subject.id]
        how = f"{subject} is {state} ({job.record.get('exit_code')}, {job.record.get('message')})"
        _, bad = subject.check_log()
        if bad:
            self.wrong(f"{how}: {bad}")
        elif subject.excuse:
            self.counts.excused += 1
            self.note(f"{how}; excused: {subject.excuse}")
        else:
            self.lost(f"{how}; log ends: {subject.log.tail(3)}")

    def expect_goes_on(self, subject):
        first, bad = subject.check_log()
        deadline = time.monotonic() + (5 if subject.excuse == "member killed" else GOES_ON_S)
        last = first
        while not bad and time.monotonic() < deadline:
            select.select([], [], [], 0.05)
            last, bad = subject.check_log()
            if not bad and last is not None and (last >= first + 3 or last < first):
                return
            job = promises.Look(self.bed.places()).jobs.get(subject.id)
            if not job or job.state in ("exited", "lost"):
                self.reckon_end(subject, job.state if job else "gone")
                return
        if bad:
            self.wrong(f"{subject}: {bad}")
        elif subject.excuse == "member killed":
            self.counts.excused += 1  # the one that writes the log
        else:
            self.stuck(f"{subject} runs and does no more steps after {last}\n{self.where_all_stand()}")

    def reckon_store(self):
        there = self.checkpoints()
        for checkpoint, subject in self.committed.items():
            if checkpoint not in there and checkpoint not in self.removed and not getattr(subject, "scheduled", False):
                self.lost(f"checkpoint {checkpoint} of {subject} is not there, and nobody removed it")
        if there:
            result = self.command("verify", "--all")
            if result and result[0]:
                self.wrong(f"verify --all: exit {result[0]}: {result[1][-500:]} {result[2][-500:]}")

    def run(self, seconds):
        bad = self.is_bad()
        try:
            self.make()
            self.work(seconds)
            self.reckon()
        finally:
            if self.is_bad() > bad:
                self.keep_evidence()
            self.bed.close()

    def is_bad(self):
        return len(self.counts.lost) + len(self.counts.wrong) + len(self.counts.stuck)

    def keep_evidence(self):
        print(f"--- seed {self.seed}\n" + "\n".join(self.events), flush=True)
        keep = os.environ.get("BRUMATE_TEST_KEEP")
        if keep:
            for name in {self.bed.dir, os.path.dirname(self.bed.own["BRUMATE_STATE_DIR"])}:
                with contextlib.suppress(shutil.Error):  # some of it goes meanwhile
                    shutil.copytree(name, os.path.join(keep, f"{self.NAME}-{self.seed}", os.path.basename(name)), symlinks=True,
                                    ignore=shutil.ignore_patterns("sim", "run", "*.sock", "*.img", "filler"), dirs_exist_ok=True)


def fault_points(build):
    steps = subprocess.run([build.program("brumate-shim"), "--steps"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    points = [f"{step}.{side}" for step in steps for side in ("begin", "end")]
    # Where CRIU holds the job, the points of a commit, and the broker's.
    return points + ["checkpoint.frozen", "checkpoint.dumped", "restore.restored", "store.sync-file", "store.sync-dir",
                     "store.write-manifest", "store.rename", "store.sync-store", "store.remove", "store.mkdir", "live.copy",
                     "data.alloc", "data.copy", "data.digests", "data.export", "data.import", "data.filled"] * 2


def parse(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", help="of the first round (default: of this moment)")
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    parser.add_argument("--round-seconds", type=float, default=15, help="how long there are operations in a round")
    parser.add_argument("--pause", type=float, default=0.6, help="seconds between two faults, on average")
    parser.add_argument("--gpu", choices=("simulated", "real"), default="simulated")
    parser.add_argument("--gpus", type=int, choices=(1, 2), help="how many are used (default: 2 simulated, 1 real)")
    parser.add_argument("--build", help="build directory (default: BUILD, or build/)")
    parser.add_argument("--stops", action="store_true", help="programs stand still as well as end, and operations have a --timeout")
    parser.add_argument("--progress", action="store_true", help="print the counts after each round, too")
    return parser.parse_args()


def main(kind=Round, description=__doc__):
    """Rounds of this kind for as long as is wanted; the exit status."""
    plain_signals()
    options = parse(description)
    build = Build(options.build) if options.build else find_build()
    if os.geteuid():
        print("skip: needs root: CRIU does")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: TERMINATED.set())
    options.points = fault_points(build)
    first = int(options.seed) if options.seed else int(time.time()) % 1000000 * 1000
    counts, begin = Counts(), time.monotonic()
    print(f"{kind.NAME}: seed {first}", flush=True)
    while counts.rounds == 0 or (time.monotonic() - begin < options.seconds and counts.rounds != options.rounds
                                 and not TERMINATED.is_set()):
        left = options.seconds - (time.monotonic() - begin)
        try:
            kind(build, first + counts.rounds, options, counts).run(max(3, min(options.round_seconds, left)))
        except Skipped as skipped:
            print(f"skip: {skipped}")
            return 77
        counts.rounds += 1
        if options.progress:
            print(counts.line("so far", first, time.monotonic() - begin), flush=True)
    for name in ("lost", "wrong", "stuck"):
        for text in getattr(counts, name):
            print(f"{name}: {text}")
    print(counts.line(kind.NAME, first, time.monotonic() - begin), flush=True)
    return 1 if counts.is_bad() else 0


if __name__ == "__main__":
    sys.exit(main())
