# SPDX-License-Identifier: MIT
"""Jobs of a user who is not root, for root's brumate to save and restore."""

import os
import shutil
import textwrap

from cases import NOBODY
from harness import Log

AS_HIM = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(word) for word in file.read().split()]


def status(pid, name):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(line.split(":", 1)[1].split() for line in file if line.startswith(name + ":"))


def setuid_program(bed):
    path = os.path.join(bed.dir, "of-root")
    shutil.copy("/bin/sleep", path)
    os.chmod(path, 0o4755)
    return path


ROOTS_OWN = "roots-own"


def program_of_root(bed):
    """A command by which a user gets a program that is root's alone, as su(1) does: the kernel lets a user signal a setuid
    program for as long as that keeps the user's id as its real one."""
    path, own = os.path.join(bed.dir, "to-root"), os.path.join(bed.dir, ROOTS_OWN)
    shutil.copy(shutil.which("setpriv"), path)
    os.chmod(path, 0o4755)
    shutil.copy("/bin/sleep", own)
    os.chmod(own, 0o755)
    return [path, "--reuid", "0", own, "1000"]


STEPS = """
import os, socket, sys, time
out = os.open("out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.dup2(out, 1); os.dup2(out, 2)
{}
print("ready", flush=True)
step = 0
while True:
    step += 1
    {}
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


def script_of_him(bed, setup="pass", each="pass"):
    """A script of his that is at work: (program, log). It runs in his directory and writes to "out" there."""
    own = os.path.join(bed.dir, "his")
    if not os.path.isdir(own):
        bed.of_nobody("his")
    os.chmod(bed.dir, 0o711)
    text = STEPS.format(setup, textwrap.indent(each, "    ").lstrip())
    path = os.path.join(own, "out")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.chown(path, NOBODY, NOBODY)
    program = bed.start(["env", "-C", own, *AS_HIM, "/usr/bin/python3", "-u", "-c", text])
    log = Log(path)
    log.wait_until(lambda text: log.last_step() > 1, "steps", 30)
    return program, log


def saved_of_him(bed, setup="pass", each="pass"):
    """A checkpoint of his, the job of which has ended: (checkpoint, log)."""
    program, log = script_of_him(bed, setup, each)
    checkpoint = bed.operation("checkpoint", "--pid", program.pid)["checkpoint"]
    program.wait()
    return checkpoint, log
