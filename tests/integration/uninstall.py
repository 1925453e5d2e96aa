#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`make uninstall` removes what `make install` has installed, and nothing of others."""

import os
import shutil

from cases import SOURCE, Skipped, case, expect, main, run

TOOL = os.path.join(SOURCE, "tools", "uninstall")


def files_below(path):
    return [os.path.join(base, name) for base, _, names in os.walk(path) for name in names]


@case
def what_was_installed_goes(bed):
    if not shutil.which("meson"):
        raise Skipped("meson is not installed")
    place, build = os.path.join(bed.dir, "place"), os.path.join(bed.dir, "build")
    done = run(["meson", "install", "-C", bed.build.path, "--no-rebuild", f"--destdir={place}"], env=dict(os.environ), timeout=100)
    expect(done.code == 0, done.why())
    programs = [path for path in files_below(place) if path.endswith(("/bin/brumate", "/brumate-shim", "/brumate-criu-launch"))]
    expect(len(programs) == 3, f"{programs}")
    # The list as it is now: another installation of this build directory would write another.
    os.makedirs(os.path.join(build, "meson-logs"))
    shutil.copy(os.path.join(bed.build.path, "meson-logs", "install-log.txt"), os.path.join(build, "meson-logs"))
    others = os.path.join(os.path.dirname(next(path for path in programs if path.endswith("-shim"))), "of-others")
    with open(others, "w", encoding="utf-8"):
        pass
    for _ in range(2):  # again, nothing is left to be removed
        done = run([TOOL, build], env=dict(os.environ))
        expect(done.code == 0 and "jobs and checkpoints" in done.out, done.why())
    expect(files_below(place) == [others], f"{files_below(place)}")
    empty = [base for base, dirs, names in os.walk(place) if "brumate" in base.split("/") and not dirs and not names]
    expect(not empty, f"empty directories of ours: {empty}")
    expect(any(base.endswith("/systemd/system") for base, _, _ in os.walk(place)), "a directory of everybody's is gone")


@case
def nothing_was_installed(bed):
    done = run([TOOL, bed.dir], env=dict(os.environ))
    expect(done.code == 1 and f"{bed.dir} has installed nothing" in done.err, done.why())


main()
