#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A checkpoint outlives the brumate that made it: other files stand where the program of the job's root and our
library in its processes were, or none."""

import os

from cases import Bed, as_user, case, copy_for_users, expect, main, read_text

OURS = ("brumate-reaper", "libbrumate-cuda.so")


def files_of_ours(build):
    return [os.path.join(base, name) for base, _, names in os.walk(build.path) for name in names if name in OURS]


def install_anew(build):
    """As another version would: other files of these names, of another size."""
    for path in files_of_ours(build):
        with open(path, "rb") as file:
            text = file.read()
        with open(path + ".new", "wb") as file:
            file.write(text + b"another version")
        os.chmod(path + ".new", 0o755)
        os.rename(path + ".new", path)


def held_by(pid):
    """The files of ours that a process has mapped."""
    paths = {line.split()[-1] for line in read_text(f"/proc/{pid}/maps").splitlines() if "/" in line}
    return {path for path in paths if os.path.basename(path) in OURS}


def outlives_two_upgrades(bed):
    job, log = bed.counter(mib=8)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.ok("verify", checkpoint)
    for _ in range(2):
        install_anew(bed.build)
        bed.operation("restore", job)
        log.goes_on()
        kept = held_by(bed.pid(job))
        expect(kept and all(path.startswith(os.path.join(bed.own["BRUMATE_STATE_DIR"], "programs")) for path in kept),
               f"the job holds {kept}")
        bed.operation("suspend", job)
        bed.operation("resume", job)
        log.goes_on()
        bed.operation("checkpoint", job)
    removed = files_of_ours(bed.build)
    for path in removed:
        os.rename(path, path + ".away")
    bed.operation("restore", job)
    log.goes_on()
    bed.end(job)
    for path in removed:
        os.rename(path + ".away", path)


@case
def of_root(bed):
    with Bed(copy_for_users(bed.build)) as own:
        outlives_two_upgrades(own)
        own.finish()


@case
@as_user
def of_a_user(bed):
    outlives_two_upgrades(bed)


@case
def what_is_as_it_was_is_not_copied(bed):
    job, log = bed.counter(mib=8)
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    log.goes_on()
    expect(not os.path.exists(os.path.join(bed.own["BRUMATE_STATE_DIR"], "programs")), "copies were made")


if __name__ == "__main__":
    main()
