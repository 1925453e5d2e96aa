#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The n-th call of a kind fails in one of our programs, or two calls do, and every operation ends all the same: done,
or not done and said so, and the job as it was. Without faults everything works again. All n, for every program and
kind of call, would take days: each place in the code from which a call is made has one of its calls fail, once. Those are
more than fit into a minute, so some are taken at random: BRUMATE_TEST_SEED names the seed, which is printed, and is another
each time the file is run by hand. BRUMATE_TEST_SWEEP=1 takes every place; BRUMATE_TEST_SWEEP=K/N every N-th, from the K-th on."""

import os
import random
import re
import signal
import time

import faulty
from cases import LaterLog, case, expect, main, process_start, read_text, wait_until

SECONDS = float(os.environ.get("BRUMATE_TEST_SECONDS", "7"))
SEED = int(os.environ.get("BRUMATE_TEST_SEED", "0")) or int(time.time())
SWEEP = os.environ.get("BRUMATE_TEST_SWEEP")
WAYS = {"suspend": ("suspend", "resume"), "checkpoint": ("checkpoint", "restore")}
# 1 and 7: nothing was changed, or it goes on; the others refuse. 8, that the job is lost, is none of them.
FAILED = (1, 2, 3, 4, 5, 6, 7, 9, 124)


class Subject:
    """A job that is taken through operations in which calls fail."""

    def __init__(self, bed):
        self.bed = bed
        self.faulty = faulty.Faulty(bed.build, bed.dir)
        bed.own.update(self.faulty.environment)
        self.job, log = bed.counter(mib=16)
        self.log = LaterLog(log.path)

    def pids(self):
        """Our programs by pid: none of them may die of a call that failed."""
        return {pid: name for name in ("brumate-shim", "brumate-broker") for pid in self.bed.named(name)}

    def try_all(self, way, rules):
        """One round of operations with these rules; how many of them came to a failed call."""
        what = f"{way} with " + " and ".join(f"error {error} for {site}" for site, error in rules) + f" (seed {SEED})"
        before = self.pids()
        for number, (site, error) in enumerate(rules):
            self.faulty.arm_at(number, site, error)
        said = []
        try:
            for verb in WAYS[way]:
                result = self.bed.cli(verb, self.job, timeout=90)
                said.append(result.why())
                expect(result.code in (0, *FAILED), said[-1])
                blind = any(site.program == "brumate" for site, _ in rules)  # it may lack what it takes to speak
                expect(result.code == 0 or result.err.strip() or blind, f"{said[-1]}: not a word")
            failed = sum(hits for _, hits in self.faulty.disarm())
            self.expect_as_before()
            self.expect_alive(before)
        except Exception as error:
            self.faulty.disarm()
            raise type(error)(f"{what}: {error} (said: {said})") from error
        return failed

    def expect_as_before(self):
        """The job runs with right data, now or after the one command that its state asks for."""
        bed = self.bed
        if bed.shim(self.job) is None:
            bed.cli("kill", "--signal", "URG", self.job)
        state = bed.wait_state(self.job, ("running", "suspended", "checkpointed", "exited", "lost"), 60)
        if state == "suspended":
            bed.ok("resume", self.job)
        if state == "checkpointed":
            self.log.begin_here()
            bed.ok("restore", self.job)
        bed.expect_state(self.job, "running")
        self.log.goes_on()
        bed.ok("prune", "--leftovers")  # what could not be removed goes with the next sweep
        bed.keeps_promises(30)
        for checkpoint in bed.checkpoints():
            bed.ok("verify", checkpoint)
            bed.ok("rm", "--checkpoint", checkpoint)

    def expect_alive(self, before):
        """A program that a failed call kills is as bad as one that lies: a job has no shim for a while."""
        for pid, name in before.items():
            expect(process_start(pid) is not None or self.ended_well(name, pid), f"{name} {pid} died")

    def ended_well(self, name, pid):
        """They end when they are idle, a shim while its job does not live; then a shim says so."""
        if name == "brumate-broker":
            return not re.search(r"SIG|abort|assert", self.broker_log())
        log = os.path.join(self.bed.own["BRUMATE_STATE_DIR"], "jobs", self.job, "shim.log")
        return f"brumate-shim[{pid}]: the shim of job {self.job} ends" in read_text(log)

    def broker_log(self):
        path = os.path.join(self.bed.own["BRUMATE_LOG_DIR"], "broker.log")
        return open(path, encoding="utf-8", errors="replace").read() if os.path.exists(path) else ""


def sites_of(subject, way):
    """Where an undisturbed round makes calls."""
    subject.faulty.note_sites(True)
    for verb in WAYS[way]:
        subject.bed.ok(verb, subject.job)
    subject.faulty.note_sites(False)
    subject.expect_as_before()
    return subject.faulty.sites()


def rule_of(rng, site):
    return site, rng.choice(faulty.ERRORS[site.call])


def at_random(bed, way, n_rules):
    rng = random.Random(f"{SEED} {way} {n_rules}")
    subject = Subject(bed)
    sites = sites_of(subject, way)
    expect(len({(site.program, site.call) for site in sites}) > 15, f"hardly any call is seen: {sites}")
    end, tries, failed = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < end:
        failed += subject.try_all(way, [rule_of(rng, rng.choice(sites)) for _ in range(n_rules)])
        tries += 1
    print(f"   {way}: {tries} rounds, {failed} calls failed of {len(sites)} places; seed {SEED}")
    expect(failed > 0, "no call failed: this test proves nothing")


def reach(subject, way, rule):
    """Once more where no call came there: some are only made by a broker that starts, and it outlives the rounds."""
    failed = subject.try_all(way, [rule])
    if failed or rule[0].program != "brumate-broker":
        return failed
    broker = subject.bed.broker()
    if broker:
        os.kill(broker, signal.SIGTERM)
        wait_until(lambda: process_start(broker) is None, "the end of the broker")
    return subject.try_all(way, [rule])


def sweep(bed, way):
    rng = random.Random(f"{SEED} {way}")
    first, step = map(int, (SWEEP if "/" in SWEEP else "1/1").split("/"))
    subject = Subject(bed)
    mine, failed = sites_of(subject, way)[first - 1::step], 0
    for number, site in enumerate(mine, 1):
        failed += reach(subject, way, rule_of(rng, site))
        if number % 20 == 0 or number == len(mine):
            print(f"   {way}: {number} of {len(mine)} places, {failed} calls failed; seed {SEED}", flush=True)
    expect(failed > len(mine) / 2, "hardly any call failed: this test proves nothing")


def register(way):
    if SWEEP:
        function = lambda bed: sweep(bed, way)  # noqa: E731 (a case each)
        function.__name__ = f"every_call_in_{way}"
        case(function)
        return
    for n_rules in (1, 2):
        function = lambda bed, n=n_rules: at_random(bed, way, n)  # noqa: E731 (as above)
        function.__name__ = f"{'one_call' if n_rules == 1 else 'two_calls'}_in_{way}"
        case(function)


for name in WAYS:
    register(name)


@case
def clocks_that_jump(bed):
    """The time of day is not a measure of an operation, and decides nothing about what is alive."""
    subject = Subject(bed)
    for seconds in (-7200, 7200, -86400 * 400, 0):
        subject.faulty.set_clock(seconds)
        for verb in ("suspend", "resume", "checkpoint", "restore"):
            bed.ok(verb, subject.job)
        subject.log.goes_on()
        bed.ok("checkpoint", subject.job, "--every", "1s", "--keep-last", "1")
        made = len(bed.checkpoints())
        wait_until(lambda: bed.checkpoints() and (len(bed.checkpoints()) != made or made), "a checkpoint", 20)
        bed.end_schedule(subject.job)
    bed.expect_whole(subject.job, subject.log)


main()
