#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints on other file systems than the usual one: each is written, shared with the next, verified, restored, exported
and removed there."""

import os
import shutil

from cases import EXIT_BUSY, Skipped, case, expect, main, run
from passed_files import passed_files

IMAGE_MIB = 400


def mounted(bed, kind, source, *options):
    place = os.path.join(bed.dir, "store")
    os.mkdir(place)
    done = run(["mount", "-t", kind, *options, source, place])
    if done.code:
        raise Skipped(f"{kind} cannot be mounted here: {done.err.splitlines()[0]}")
    bed.mounts.append(place)
    return place


def tool_of(name):
    tool = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not tool:
        raise Skipped(f"not installed: {name}")
    return tool


def image_of(bed, kind):
    """A file with an empty file system of this kind."""
    tool = tool_of(f"mkfs.{kind}")
    image = os.path.join(bed.dir, "image")
    with open(image, "wb") as file:
        file.truncate(IMAGE_MIB << 20)
    done = run([tool, image])
    expect(done.code == 0, done.why())
    return image


def made(bed, kind):
    return mounted(bed, kind, image_of(bed, kind), "-o", "loop")


def keeps_checkpoints(bed, place):
    job, log = bed.counter(mib=32)
    at = ("--dir", place)
    first = bed.ok("checkpoint", job, "--leave-running", *at).out.strip()
    second = bed.ok("checkpoint", job, *at).out.strip()
    bed.ok("verify", "--all", *at)
    bed.ok("export", second, "-o", os.path.join(bed.dir, "stream"), *at)
    bed.ok("restore", second, *at)
    log.goes_on()
    bed.ok("rm", "--checkpoint", first, *at)
    bed.ok("verify", "--all", *at)
    bed.ok("suspend", job)
    third = bed.ok("checkpoint", job, *at).out.strip()
    bed.ok("restore", third, *at)
    log.goes_on()
    bed.ok("set", "checkpoint", "--name", "one", job, *at)
    bed.ok("set", "restore", "one", *at)
    log.goes_on()
    bed.refused(EXIT_BUSY, "exists already", "set", "checkpoint", "--name", "one", job, *at)
    bed.end(job)
    bed.ok("rm", "--job", "--yes", job)
    bed.ok("set", "rm", "one", *at)
    bed.ok("rm", "--checkpoint", second, *at)
    bed.ok("import", os.path.join(bed.dir, "stream"), *at)
    bed.ok("prune", "--keep-last", "1", "--yes", *at)
    bed.ok("verify", "--all", *at)


@case
def ramfs(bed):
    """It says that it has no blocks, free or not."""
    keeps_checkpoints(bed, mounted(bed, "ramfs", "brumate-test"))


@case
def xfs(bed):
    keeps_checkpoints(bed, made(bed, "xfs"))


@case
def btrfs(bed):
    keeps_checkpoints(bed, made(bed, "btrfs"))


@case
def ext2(bed):
    """Without a journal, and with blocks of 1 KiB."""
    keeps_checkpoints(bed, made(bed, "ext2"))


@case
def fuse(bed):
    """By a process: ext2 once more, as fuse2fs of e2fsprogs has it."""
    tool, place = tool_of("fuse2fs"), os.path.join(bed.dir, "store")
    os.mkdir(place)
    done = run([tool, "-o", "fakeroot", image_of(bed, "ext2"), place])
    if done.code:
        raise Skipped(f"no FUSE here: {done.why()}")
    bed.mounts.append(place)
    keeps_checkpoints(bed, place)


@case
def vfat(bed):
    """Neither links, nor modes, nor owners; names without regard to case; files of less than 4 GiB."""
    keeps_checkpoints(bed, made(bed, "vfat"))


@case
def as_poor_as_vfat(bed):
    """Where the kernel has no vfat: neither links, nor modes, nor owners, nor room that is taken ahead, and times of two seconds."""
    with passed_files(bed, poor=True) as files:
        keeps_checkpoints(bed, files.dir)


if __name__ == "__main__":
    main()
