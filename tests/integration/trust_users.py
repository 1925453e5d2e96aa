#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user tries with a job of theirs that root suspends, saves and restores, in order to get at rights or data
of others. Each case would succeed for the attacker if its check were taken away."""

import os
import shutil
import signal
from contextlib import contextmanager

from cases import NOBODY, Skipped, case, expect, main, run, wait_until

AS_HIM = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]


def of_him(bed, argv):
    """A program that the user has started, which is at work."""
    os.chmod(bed.dir, 0o711)
    if not os.path.isdir(os.path.join(bed.dir, "his")):
        bed.of_nobody("his")
    if run(["test", "-x", bed.program("kinds")], user=NOBODY, group=NOBODY, extra_groups=[]).code:
        raise Skipped(f"{bed.program('kinds')} cannot be reached by uid {NOBODY}")
    program = bed.start([*AS_HIM, *argv])
    program.log.wait_for("^ready", 20)
    return program


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(word) for word in file.read().split()]


def status(pid, name):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(line.split(":", 1)[1].split() for line in file if line.startswith(name + ":"))


# Programs with rights that the user has not.

def setuid_program(bed):
    path = os.path.join(bed.dir, "of-root")
    shutil.copy("/bin/sleep", path)
    os.chmod(path, 0o4755)
    return path


@contextmanager
def privileged_child(program):
    """The child of the program that has root's rights."""
    wait_until(lambda: any(status(pid, "Name") == ["of-root"] for pid in children(program.pid)), "the setuid program")
    found = children(program.pid)
    try:
        child = next((pid for pid in found if status(pid, "Uid")[1] == "0"), None)
        if not child:
            raise Skipped("setuid programs get no rights here")
        yield child
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)


@case
def a_setuid_program_is_no_part_of_his_job(bed):
    """Its memory would be read, and a restore would make it again with the rights that it had."""
    program = of_him(bed, ["sh", "-c", f"{setuid_program(bed)} 1000 & echo ready; wait"])
    with privileged_child(program) as child:
        for args in (("manage",), ("suspend",), ("checkpoint", "--leave-running"), ("checkpoint",)):
            bed.refused(5, rf"process {child} \(of-root\) has the rights of uid 0, and the job is of uid {NOBODY}",
                        args[0], "--pid", program.pid, *args[1:])
        bed.refused(5, "has the rights of uid 0", "manage", "--pid", child)
    expect(not bed.list("ps", "jobs"), "what was refused is a job")
    expect(not os.path.isdir(bed.store()) or not os.listdir(bed.store()), "something was saved")


@case
def a_setuid_program_that_comes_later(bed):
    """What was looked at when the job was taken in says nothing of what it is at the checkpoint."""
    path = setuid_program(bed)
    pipe = os.path.join(bed.dir, "pipe")
    os.mkfifo(pipe)
    os.chmod(pipe, 0o666)
    program = of_him(bed, ["sh", "-c", f"echo ready; read line < {pipe}; {path} 1000 & echo started; wait"])
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    with open(pipe, "w", encoding="utf-8") as file:
        file.write("go on\n")
    program.log.wait_for("^started$")
    with privileged_child(program):
        for args in (("checkpoint", "--leave-running"), ("checkpoint",)):
            bed.refused(5, "has the rights of uid 0", args[0], job, *args[1:])
        bed.expect_state(job, "running")


main()
