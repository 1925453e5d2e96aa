#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where Yama lets CRIU trace nobody, that is said in one line, before the job is touched. In the place of the kernel's
switch is a file, in a mount namespace of this test's own: nobody enforces it."""

import os
import subprocess

from cases import EXIT_UNSUPPORTED, as_user, case, expect, main
from harness import own_mounts

KERNEL = "/proc/sys/kernel"


def copy_of_kernel(to):
    """All that can be read there now; what is written there goes nowhere."""
    for folder, _, names in os.walk(KERNEL):
        os.makedirs(os.path.join(to, os.path.relpath(folder, KERNEL)), exist_ok=True)
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    text = file.read()
            except OSError:
                continue
            with open(os.path.join(to, os.path.relpath(folder, KERNEL), name), "wb") as file:
                file.write(text)


def own_switch(bed):
    own_mounts()
    copy = os.path.join(bed.dir, "kernel")
    os.mkdir(copy)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "kernel", copy], check=True)
    copy_of_kernel(copy)
    os.makedirs(os.path.join(copy, "yama"), exist_ok=True)
    subprocess.run(["mount", "--bind", copy, KERNEL], check=True)
    subprocess.run(["umount", copy], check=True)
    os.rmdir(copy)


def switch(value):
    with open(os.path.join(KERNEL, "yama", "ptrace_scope"), "w", encoding="ascii") as file:
        file.write(f"{value}\n")


def goes_there_and_back(bed, refused):
    """@refused: by value, what is said."""
    os.chmod(bed.dir, 0o755)
    own_switch(bed)
    for value in range(4):
        switch(0)
        job, log = bed.counter()
        words = refused.get(value)
        switch(value)
        if words:
            bed.refused(EXIT_UNSUPPORTED, f"kernel.yama.ptrace_scope is {value}: {words}", "checkpoint", job)
            bed.expect_whole(job, log)
            expect(not bed.checkpoints() and not bed.partials(), "something is left of it")
            switch(0)
        bed.ok("checkpoint", job)
        switch(value)
        if words:
            bed.refused(EXIT_UNSUPPORTED, f"kernel.yama.ptrace_scope is {value}: {words}", "restore", job)
            bed.expect_state(job, "checkpointed")
            switch(0)
        bed.ok("restore", job)
        bed.expect_whole(job, log)
        for checkpoint in bed.checkpoints():
            bed.ok("rm", "--checkpoint", checkpoint)
        bed.end(job)


@case
def of_root(bed):
    goes_there_and_back(bed, {3: "nobody may trace"})


@case
@as_user
def of_a_user(bed):
    of_users = "CRIU of a user who is not root may not trace"
    goes_there_and_back(bed, {1: of_users, 2: of_users, 3: "nobody may trace"})


main()
