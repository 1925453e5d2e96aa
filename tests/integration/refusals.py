#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What fails or is refused leaves everything as it was: the state of a job whose restore fails, its log, the checkpoint
that it is restored from, and processes that are not taken in."""

import os
import re

from cases import case, expect, main, read_text
from checkpoints import files_of, flip, image, saved


def damage(bed, checkpoint):
    """A bit in the middle of its largest file, which only a restore finds."""
    files = files_of(image(bed, checkpoint))
    name = max((name for name in files if name != "manifest.json"), key=lambda name: len(files[name]))
    flip(os.path.join(image(bed, checkpoint), name), len(files[name]) // 2)


def expect_back(bed, job, log, *restore):
    """The restore brings it back: it writes new lines, none of them wrong. They follow the checkpoint, not the log."""
    before = len(log.text())
    expect(bed.ok("restore", *restore).out == job + "\n", "restore names another job")
    log.wait_until(lambda text: len(re.findall(r" step \d+ OK$", text[before:], re.MULTILINE)) >= 3, "new steps")
    expect(not re.search("BAD|ERR", log.text()), f"wrong data: {log.tail()}")
    bed.expect_state(job, "running")


# Restore.

@case
def a_failed_restore_leaves_an_ended_job_ended(bed):
    job, log = saved(bed, "sound", "bad")
    damage(bed, "bad")
    bed.ok("kill", "--signal", "TERM", job)
    bed.wait_state(job, ("exited",))
    for word in ("bad", job):
        refused = bed.refused(9, "bad", "restore", word)
        expect("brumate restore --checkpoint sound" in refused.err, f"the sound one is not named: {refused.why()}")
        entry = bed.job(job)
        expect(entry["state"] == "exited" and entry["exit_code"] == 143, f"it is {entry['state']} {entry['exit_code']}")
        expect(bed.cli("wait", job).code == 143, "wait answers something else")
    expect_back(bed, job, log, "--checkpoint", "sound")
    expect(bed.job(job)["checkpoint"] == "sound", f"its checkpoint is {bed.job(job)['checkpoint']}")


@case
def a_restore_cut_off_leaves_an_ended_job_ended(bed):
    job, log = saved(bed, "image")
    bed.end(job)
    before = bed.job(job)
    for point in ("restore.criu.begin", "restore.open.begin"):
        bed.fault(point, "kill")
        expect(bed.cli("restore", "image").code != 0 and bed.has_fired(), f"{point}: the shim did not die")
        bed.cli("wait", job)  # another shim puts it right
        entry = bed.job(job)
        expect((entry["state"], entry["exit_code"]) == (before["state"], before["exit_code"]), f"{point}: {entry}")
    expect_back(bed, job, log, "image")


@case
def a_failed_restore_of_a_missing_checkpoint_names_another(bed):
    job, _ = saved(bed, "first", "second")
    bed.end(job)
    os.rename(image(bed, "second"), os.path.join(bed.dir, "elsewhere"))
    refused = bed.refused(3, "second", "restore", job)
    expect("brumate restore --checkpoint first" in refused.err, refused.why())


@case
def a_failed_restore_keeps_the_log(bed):
    """The job of the checkpoint is not here, but its log is."""
    job, log = saved(bed, "image")
    bed.end(job)
    damage(bed, "image")
    before = log.text()
    os.link(log.path, log.path + ".kept")
    bed.ok("rm", job)
    bed.jobs.remove(job)
    os.rename(log.path + ".kept", log.path)
    bed.refused(9, "image", "restore", "image")
    expect(read_text(log.path) == before, "the log is gone, or is another")
    expect(not bed.list("ps", "jobs"), f"a record is left: {bed.list('ps', 'jobs')}")
    os.unlink(log.path)
    bed.refused(9, "image", "restore", "image")
    expect(not os.path.exists(log.path), "a log was made and left")


if __name__ == "__main__":
    main()
