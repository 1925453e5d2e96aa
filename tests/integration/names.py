#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Names that destroy: what a word means to rm, kill and prune, who is asked, and what stays because a job's record
names it."""

import os
import re
import select
import signal

from cases import at_terminal, case, expect, main, wait_until
from checkpoints import flip, image, saved

EXIT_NOT_FOUND, EXIT_BUSY = 3, 6


@case
def rm_twice_keeps_the_checkpoint(bed):
    job, _ = bed.counter(name="train")
    checkpoint = bed.operation("checkpoint", "train")["checkpoint"]
    removed = bed.ok("rm", "train")
    expect(removed.out == job + "\n" and f"removed job {job} (train)" in removed.err, removed.why())
    again = bed.refused(3, rf'no job "train"; checkpoint {checkpoint} is of a job of that name', "rm", "train")
    expect(f"brumate rm --checkpoint {checkpoint}" in again.err, again.why())
    expect(bed.checkpoints() == [checkpoint], "the only copy of the run is gone")
    bed.refused(2, f"only the beginning of checkpoint {checkpoint}", "rm", "train-")
    bed.refused(2, "only the beginning of checkpoint", "rm", "--checkpoint", checkpoint[:-1])
    bed.refused(3, "checkpoint .* is of a job of that name", "rm", "--checkpoint", "train")
    expect(bed.checkpoints() == [checkpoint], "a beginning removed it")
    removed = bed.ok("rm", "--checkpoint", checkpoint)
    expect(removed.out == checkpoint + "\n" and f"removed checkpoint {checkpoint} of job train ({job})" in removed.err,
           removed.why())
    expect(not bed.checkpoints(), "it is still there")


@case
def the_beginning_of_an_id_ends_nothing(bed):
    job, log = bed.counter(name="train")
    for args in (("kill", job[:7]), ("kill", "--signal", "KILL", job[:7]), ("rm", job[:7]), ("rm", "--job", job[:7])):
        bed.refused(2, rf"only the beginning of job {job} \(train\)", *args)
    bed.expect_whole(job, log)
    bed.ok("kill", "train")
    bed.refused(2, "only the beginning", "rm", job[:7])
    expect(bed.ok("rm", "train").out == job + "\n", "by its name")


@case
def a_job_of_that_name_comes_before_a_beginning(bed):
    """The checkpoint of a job whose record is gone, and another job whose id begins so."""
    job, _ = bed.counter(name="other")
    name = job[:5]
    gone, _ = bed.counter(name=name)
    bed.ok("checkpoint", "--name", "saved", gone)
    bed.ok("rm", gone)
    bed.jobs.remove(gone)
    shown = bed.ok("inspect", name, "--format", "json").json()
    expect(shown.get("manifest", {}).get("id") == "saved", f"{name} means {list(shown)}, not job {name}'s checkpoint")


@case
def what_a_record_names_stays(bed):
    job, log = saved(bed, "older")
    bed.ok("checkpoint", job, "--name", "whole")
    refused = bed.refused(6, f"checkpoint whole: job {job} .*checkpointed.* would be restored from it", "rm", "whole")
    expect(f"brumate rm {job}" in refused.err, refused.why())
    expect(bed.ok("rm", "older").out == "older\n", "one that no record names")
    bed.expect_restorable(job, log)
    bed.ok("rm", "whole")  # the job lives
    expect(bed.job(job)["checkpoint"] is None, f"the record names {bed.job(job)['checkpoint']}, which is gone")
    bed.expect_whole(job, log)
    bed.ok("checkpoint", job, "--name", "damaged")
    flip(os.path.join(image(bed, "damaged"), "manifest.json"), 40)
    bed.refused(6, "would be restored from it", "rm", "damaged")
    bed.ok("rm", job)
    removed = bed.ok("rm", "damaged")
    expect("removed checkpoint damaged, which is damaged" in removed.err, removed.why())


@case
def a_terminal_is_asked(bed):
    job, _ = saved(bed, "one", "two", "three")
    bed.end(job)
    for answer in ("n", "", "no", "maybe"):
        code, shown = at_terminal(bed, answer or " ", "rm", "one")
        expect(code == 1 and "remove checkpoint one of job" in shown and "not removed" in shown, f"{code}: {shown}")
    code, shown = at_terminal(bed, "n", "prune", "--keep-last", "1")
    expect(code == 1 and "remove these 2 checkpoints?" in shown and "nothing was removed" in shown, f"{code}: {shown}")
    expect(bed.checkpoints() == ["one", "two", "three"], f"a no removed something: {bed.checkpoints()}")
    code, shown = at_terminal(bed, "y", "rm", "one")
    expect(code == 0 and "removed checkpoint one" in shown, f"{code}: {shown}")
    code, shown = at_terminal(bed, None, "rm", "--yes", "two")
    expect(code == 0 and "[y/N]" not in shown, f"{code}: {shown}")
    code, shown = at_terminal(bed, None, "prune", "--keep-last", "1", "--dry-run")
    expect(code == 0 and "[y/N]" not in shown, f"{code}: {shown}")
    code, shown = at_terminal(bed, None, "rm", job)
    expect(code == 0 and "[y/N]" not in shown, f"the record of a job: {code}: {shown}")
    expect(bed.checkpoints() == ["three"], f"{bed.checkpoints()}")


@case
def what_is_pinned_stays(bed):
    def mark(checkpoint):
        return os.path.join(bed.store(), f".{checkpoint}.pinned")

    job, _ = saved(bed, "one", "two", "three", "four")
    expect(bed.ok("pin", "one").out == "one\n" and bed.ok("pin", "one").out == "one\n", "pinned, and once more")
    refused = bed.refused(6, "checkpoint one: pinned", "rm", "one")
    expect("brumate pin --remove one" in refused.err, refused.why())
    code, shown = at_terminal(bed, "y", "rm", "one")
    expect(code == 6 and "[y/N]" not in shown, f"asks what it then refuses: {code}: {shown}")
    rows = {row["id"]: row["pinned"] for row in bed.ok("ls", "--format", "json").json()["checkpoints"]}
    expect(rows == {"one": True, "two": False, "three": False, "four": False}, f"{rows}")
    for word, pinned in (("one", True), ("two", False)):
        told = bed.ok("inspect", word, "--format", "json").json()
        expect(told["pinned"] == pinned, f"inspect {word} says {told['pinned']}")
    expect(re.search(r"^pinned +yes$", bed.ok("inspect", "one").out, re.MULTILINE), "not on the page")
    expect(not bed.partials(), f"a pin is taken for half a checkpoint: {bed.partials()}")
    expect("pinned)" in next(row for row in bed.ok("ls").out.splitlines() if row.startswith("one ")), "not in the table")
    bed.ok("verify", "one")
    expect(bed.ok("prune", "--keep-last", "2").out == "two\n", "one counts, or is gone")
    expect(bed.ok("prune", "--leftovers").out == "0\n" and bed.checkpoints() == ["one", "three", "four"], f"{bed.checkpoints()}")
    bed.refused(2, "expected the whole id", "pin", "--remove", "on")
    bed.refused(3, "no checkpoint nosuch", "pin", "nosuch")
    flip(os.path.join(image(bed, "one"), "manifest.json"), 40)
    bed.refused(6, "checkpoint one: pinned", "rm", "one")
    expect(bed.ok("pin", "--remove", "one").out == "one\n" and bed.ok("rm", "one").out == "one\n", "a damaged one")
    expect(bed.ok("pin", bed.job(job)["name"]).out == "four\n", "a job means its latest")
    bed.ok("kill", job)
    bed.refused(6, "pinned", "rm", "four")
    os.rename(image(bed, "four"), os.path.join(bed.dir, "elsewhere"))
    expect(bed.ok("prune", "--leftovers").out == "1\n" and not os.path.exists(mark("four")), "the mark of one that is gone stays")


@case
def what_cannot_be_removed_is_gone_all_the_same(bed):
    """Its name was taken from it first. What is left out of sight is said, and goes with what is removed next."""
    job, _ = bed.counter(mib=8)
    saved = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    bed.end(job)
    for point, words in (("job.removed", ("rm", "--job", job)), ("store.remove", ("rm", "--checkpoint", saved))):
        bed.fault(point, "error:5")
        result = bed.ok(*words)
        expect(re.search("what is left of it is removed later: .*Input/output error", result.err), result.why())
        bed.refused(3, "", *words)
    bed.jobs.remove(job)
    bed.ok("prune", "--leftovers")
    expect(not bed.partials(), f"it is still there: {bed.partials()}")


@case
def removed_while_a_restore_begins(bed):
    """Whoever comes second finds the job gone, be it removed by its shim or by the command: no process is left that is no job's."""
    for by_shim in (True, False):
        job, _ = bed.counter()
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        if by_shim:
            bed.cli("kill", "--signal", "URG", job)  # where there is none, that starts one
        else:
            os.kill(bed.shim(job), signal.SIGTERM)
            wait_until(lambda job=job: bed.shim(job) is None, "its shim to end")
        with bed.held_at("job.remove", "rm", "--job", job) as removal:
            restore = bed.spawn("restore", job)
            select.select([], [], [], 1)  # it would have begun by now
        expect(removal.end()[0] == 0, "rm failed")
        code, _, said = restore.end()
        expect(code in (EXIT_NOT_FOUND, EXIT_BUSY) and said, f"restore: exit {code}: {said}")
        expect(not bed.list("ps", "jobs"), "the job is there")
        bed.jobs.remove(job)
        bed.ok("rm", "--checkpoint", checkpoint)


@case
def a_priority_stays_with_its_job(bed):
    def priority(job):
        listed = next(row for row in bed.list("ps", "jobs") if row["id"] == job)["priority"]
        shown = bed.ok("inspect", job, "--format", "json").json()["job"]["priority"]
        expect(listed == shown, f"ps says {listed}, inspect {shown}")
        return shown

    plain, _ = bed.counter(name="plain", mib=16)
    job, log = bed.counter(name="first", mib=16, options=("--priority", "-7"))
    expect((priority(plain), priority(job)) == (0, -7), f"{priority(plain)}, {priority(job)}")
    bed.ok("checkpoint", job)
    bed.ok("restore", job)
    log.goes_on()
    expect(priority(job) == -7, "lost by a restore")
    for word, text in (("1001", "priority: expected an integer from -1000 to 1000"), ("high", "is not a whole number")):
        bed.refused(2, text, "run", "--priority", word, "--", "true")


if __name__ == "__main__":
    main()
