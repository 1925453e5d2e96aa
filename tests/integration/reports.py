#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What people reported of CRIU, podman, ray, vLLM and Slurm, a program for each kind in tests/cases: each goes through all
operations, as root and as a user. It is as before in its own eyes, or
refused with the reason while it runs on, or `doctor --job` says what will differ."""

import os

from cases import SOURCE, Skipped, as_user, case, expect, main

FOLDER = os.path.join(SOURCE, "tests", "cases")

# What is refused, and the reason. All else comes back.
NO_LEADER = "its parent and the leader of its session have ended"
REFUSED = {"daemon-of-its-own": NO_LEADER, "dead-leader-of-a-session": NO_LEADER,
           "leader-that-has-ended": "its first thread has ended, and others run on"}

# The same, of users alone.
REFUSED_TO_USERS = {"connection-that-both-have-ended": "that both ends have closed"}

# What a restore changes: the key of the finding.
NOTED = {"fifo-without-a-writer": "fifo"}


def source(name):
    with open(os.path.join(FOLDER, name + ".py"), encoding="utf-8") as file:
        return file.read()


def text_of(bed, name):
    """A user may not be able to read this folder."""
    return (f"import os, sys, types\nos.chdir({bed.dir!r})\nsys.modules['report'] = types.ModuleType('report')\n"
            f"exec({source('report')!r}, sys.modules['report'].__dict__)\n{source(name)}")


def take_through(bed, name, refused):
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", text_of(bed, name)], "report")
    if "LACKS" in log.text():
        bed.ok("kill", "--signal", "KILL", job)
        raise Skipped(log.text())
    if name in NOTED:
        found = [f for f in bed.doctor("--job", job)["findings"] if f["key"] == NOTED[name]]
        expect(len(found) == 1, f"it is not said: {found}")
        bed.operation("suspend", job)
        bed.operation("resume", job)
        bed.expect_whole(job, log)
        bed.operation("checkpoint", job)
        return
    for there, back in (("suspend", "resume"), ("checkpoint --leave-running", None), ("checkpoint", "restore"),
                        ("suspend", None), ("checkpoint", "restore"), ("checkpoint", "restore")):
        if refused and there != "suspend":
            bed.refused(4, refused, *there.split(), job)
            bed.expect_whole(job, log)
            break
        bed.operation(*there.split(), job)
        if back:
            bed.operation(back, job)
        if back or there != "suspend":
            bed.expect_whole(job, log)
    bed.end(job)


def add_cases(name):
    def root(bed):
        take_through(bed, name, REFUSED.get(name))

    @as_user
    def user(bed):
        take_through(bed, name, REFUSED.get(name) or REFUSED_TO_USERS.get(name))
    for whose, function in (("", root), ("-of-a-user", user)):
        function.__name__ = name + whose
        case(function)


for entry in sorted(os.listdir(FOLDER)):
    if entry.endswith(".py") and entry != "report.py":
        add_cases(entry.removesuffix(".py"))

if __name__ == "__main__":
    main()
