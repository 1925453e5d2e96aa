#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CRIU's own files of options, /etc/criu/default.conf and ~/.criu/default.conf: they are for those who run CRIU by hand, and
change nothing of what brumate's CRIU does. In a mount namespace of this test's own, with a copy of /etc."""

import os
import subprocess

from cases import as_user, case, expect, main, run
from harness import own_mounts



def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def own_etc(bed):
    """From now on this process and all that it starts have an /etc of their own."""
    own_mounts()
    copy = os.path.join(bed.dir, "etc")
    os.mkdir(copy)
    for words in (["mount", "-t", "tmpfs", "-o", "mode=0755", "etc", copy], ["cp", "-a", "/etc/.", copy],
                  ["mount", "--bind", copy, "/etc"], ["umount", copy]):
        subprocess.run(words, check=True)
    os.rmdir(copy)


def expect_criu_breaks(build):
    """A CRIU that is run by hand takes what the file says."""
    result = run([build.criu(), "--version"], env={"PATH": os.environ["PATH"]})
    expect("no-such-option" in result.err, f"this test proves nothing: {result.why()} {result.out}")


def goes_there_and_back(bed):
    job, log = bed.counter()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.expect_restorable(checkpoint, log)
    bed.operation("checkpoint", job, "--leave-running")
    bed.expect_whole(job, log)
    bed.end(job)


def is_not_read(bed):
    ran = os.path.join(bed.dir, "ran")
    script = os.path.join(bed.dir, "script")
    home = os.path.join(bed.dir, "home")
    write(script, f"#!/bin/sh\n: >{ran}\n")
    os.chmod(script, 0o755)
    os.chmod(bed.dir, 0o755)
    own_etc(bed)
    bed.own["HOME"] = home
    for path in ("/etc/criu/default.conf", os.path.join(home, ".criu", "default.conf")):
        for text in ("no-such-option\n", f"action-script {script}\nleave-stopped\n"):
            write(path, text)
            if path.startswith("/etc") and "such" in text:
                expect_criu_breaks(bed.build)
            goes_there_and_back(bed)
            expect(not os.path.exists(ran), f"{path}: CRIU ran what it names")
        os.unlink(path)


@case
def of_root(bed):
    is_not_read(bed)


@case
@as_user
def of_a_user(bed):
    is_not_read(bed)


main()
