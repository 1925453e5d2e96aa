#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of many processes made at random (tests/programs/weave.h) and, at random moments, operations on them and
sudden ends of brumate's own programs. Each process checks its memory in each step, so what is lost, doubled or
wrong is seen. Rounds, their reckoning and the options are those of tests/soak.py.

	python3 tests/integration/weave.py [--seconds N] [--seed S] [--rounds N]

The seed of a round that failed, given with --seed, repeats the round's program and choices."""

import os
import re
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import soak  # noqa: E402 (it stands beside this folder)


class Woven(soak.Subject):
    """A job each of whose members counts its own steps, whichever of its processes does them."""

    def check_log(self):
        """No wrong step of any member, none left out, and back only as often as it was restored. The least."""
        text = self.log.text()
        bad = re.search(r"^.*\b(BAD|ERR\w*)\b.*$", text, re.MULTILINE)
        if bad:
            return None, f"the program says: {bad.group(0)}"
        last = dict.fromkeys(range(self.members(text)), 0)
        furthest, jumps = dict(last), dict.fromkeys(last, 0)
        for found in re.finditer(r"^member (\d+) step (\d+) OK\n", text, re.MULTILINE):
            member, step = int(found.group(1)), int(found.group(2))
            if step > furthest[member] + 1:
                return None, f"steps are left out: member {member} does {step} after {last[member]}"
            if step != last[member] + 1:
                jumps[member] += 1  # to where a checkpoint was made
            last[member] = step
            furthest[member] = max(furthest[member], step)
        if max(jumps.values(), default=0) > self.restores:
            return None, f"members went back {jumps} times, restored {self.restores} times"
        return min(last.values(), default=0), None

    @staticmethod
    def members(text):
        found = re.search(r"^ready pid \d+: (\d+) members$", text, re.MULTILINE)
        return int(found.group(1)) if found else 0


class Weave(soak.Round):
    """A round with one job at a time, of which no process is harmed."""

    NAME, JOBS = "weave", (1, 1)
    OPERATIONS = ((soak.Round.suspend, 20), (soak.Round.resume, 20), (soak.Round.checkpoint, 18), (soak.Round.restore, 18),
                  (soak.Round.look, 6), (soak.Round.schedule, 2))
    FAULTS = ((soak.Round.end_suddenly, 10), (soak.Round.stop_for_a_while, 3), (soak.Round.at_a_point, 4))
    VICTIMS = ("brumate", "brumate-broker", "brumate-shim", "brumate-keeper")
    ACTIONS = ("error:5", "error:12", "kill", "kill:broker", "delay:200", "delay:1000")

    def __init__(self, *args):
        super().__init__(*args)
        self.small_disk = False
        self.bed.own["BRUMATE_SIM_VRAM_MIB"] = "8192"
        self.one = threading.Lock()  # of the two workers begins the job

    def new_job(self, rng):
        argv = [self.bed.program("weave"), str(self.seed), "--interval-ms", str(rng.choice((2, 5, 20)))]
        with self.one:
            if not self.subjects:
                self.run_job(Woven, f"weave {self.seed}", "--", *argv)


if __name__ == "__main__":
    sys.exit(soak.main(Weave, __doc__))
