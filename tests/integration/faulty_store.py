#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A store on a disk that fails: calls of each kind end with an error, from the first one on or in the middle. What is asked says so
in a line, in time, and with an exit code of its own; no job and no older checkpoint is lost, and once the disk is well all goes on."""

import errno
import os
import re
import time

from cases import EXIT_FAILED, EXIT_STILL_RUNNING, EXIT_TIMEOUT, case, expect, main
from passed_files import passed_files

LIMIT_S, SPARE_S = 30, 2
SETTLES_S = 6  # after that the job goes on without its store
WORDS = {errno.EIO: "Input/output error", errno.EROFS: "Read-only file system", errno.EDQUOT: "Disk quota exceeded",
         errno.ESTALE: "Stale file handle", errno.ENOSPC: "No space left on device"}




class Store:
    """A job with an older checkpoint in such a store."""

    def __init__(self, bed, files):
        self.bed, self.files = bed, files
        self.at = ("--dir", files.dir)
        self.job, self.log = bed.counter(mib=8, chunk_mib=2)
        self.older = self.checkpoint("--leave-running")

    def checkpoint(self, *options):
        return self.bed.ok("checkpoint", self.job, *options, *self.at).out.strip()

    def denied(self, kind, number, skip, *args, has_a_time=True):
        """The result of a command while such calls fail; None if it made none."""
        before = self.files.denials()
        self.files.deny(kind, number, skip)
        start = time.monotonic()
        limit = ("--timeout", f"{LIMIT_S}s") if has_a_time else ()
        result = self.bed.cli(*args, *self.at, *limit, timeout=2 * LIMIT_S)
        seconds = time.monotonic() - start
        self.files.allow()
        self.what = f"{args[0]} while {kind} fails after {skip}: {result.why()}: {result.out}"
        expect(seconds < LIMIT_S, f"took {seconds:.1f} s: {self.what}")
        if result.code:
            line = result.err.splitlines()[0] if result.err else ""
            expect(len(re.findall("^brumate: ", result.err, re.MULTILINE)) == 1, f"not one line: {self.what}")
            expect(line.strip(), f"without a word: {self.what}")
        return result if self.files.denials() > before else None

    def is_whole(self):
        """The job runs, and what there was before is sound."""
        self.bed.expect_state(self.job, "running")
        self.log.goes_on(2)
        self.bed.ok("verify", self.older, *self.at)


@case
def a_checkpoint_that_cannot_be_written(bed):
    """The job runs on, whatever it is that fails."""
    with passed_files(bed) as files:
        store, tried = Store(bed, files), 0
        for kind, number in (("write", errno.EIO), ("fsync", errno.EIO), ("create", errno.EIO), ("rename", errno.EIO),
                             ("mkdir", errno.EIO), ("fsyncdir", errno.EIO), ("lookup", errno.EIO), ("getattr", errno.ESTALE),
                             ("open", errno.ESTALE), ("read", errno.EIO), ("write", errno.EDQUOT), ("mkdir", errno.EROFS),
                             ("write", errno.ENOSPC)):
            for skip in (0, 3):
                result = store.denied(kind, number, skip, "checkpoint", store.job)
                if bed.state(store.job) == "checkpointed":
                    expect(result is None or result.code == 0, f"saved, and said not to be: {store.what}")
                    bed.ok("restore", store.job, *store.at)
                elif result:
                    expect(result.code in (EXIT_FAILED, EXIT_STILL_RUNNING), store.what)
                    expect(WORDS[number] in result.err, store.what)
                    tried += 1
                store.is_whole()
        expect(tried > 15, f"only {tried} failed: this test proves nothing")
        store.checkpoint()
        bed.ok("restore", store.job, *store.at)
        bed.ok("prune", "--leftovers", *store.at)
        expect(not bed.partials(files.dir), f"left: {bed.partials(files.dir)}")
        store.is_whole()


@case
def a_checkpoint_that_cannot_be_read(bed):
    """It is not said to be bad, or not to be there, and an older one does not come back in its place."""
    with passed_files(bed) as files:
        store = Store(bed, files)
        newest = store.checkpoint()
        for kind in ("open", "read", "lookup", "getattr", "readdir"):
            for skip in (0, 1, 5):
                for args in (("verify", store.older), ("inspect", "--checkpoint", store.older), ("verify", "--all"), ("restore", store.job),
                             ("restore", "--checkpoint", newest)):
                    result = store.denied(kind, errno.EIO, skip, *args, has_a_time=args[0] == "restore")
                    if args[0] == "restore" and bed.state(store.job) == "running":
                        expect(bed.job(store.job)["checkpoint"] == newest, f"another came back: {store.what}")
                        newest = store.checkpoint()
                    elif result and result.code:
                        expect(result.code == EXIT_FAILED and "Input/output error" in result.err, store.what)
                        expect("brumate rm" not in result.err and "cannot be restored" not in result.err, store.what)
        bed.ok("restore", store.job, *store.at)
        store.is_whole()


@case
def a_store_that_cannot_be_listed(bed):
    """Each checkpoint is listed, with why nothing is known of it, or none are and it is said why; nothing is removed in doubt."""
    with passed_files(bed) as files:
        store = Store(bed, files)
        ids = {store.older, store.checkpoint("--leave-running"), store.checkpoint("--leave-running")}
        for kind in ("open", "read", "lookup", "getattr", "readdir"):
            for skip in (0, 2):
                result = store.denied(kind, errno.EIO, skip, "ls", has_a_time=False)
                listed = {line.split()[0] for line in result.out.splitlines()[1:] if line} if result else ids
                expect(listed == ids or (not listed and result.code == EXIT_FAILED), f"not all, and no word: {store.what}")
                store.denied(kind, errno.EIO, skip, "prune", "--keep-last", "3", "--yes", has_a_time=False)
                store.denied(kind, errno.EIO, skip, "rm", "--checkpoint", "no-such-one", has_a_time=False)
                expect(set(bed.ok("ls", "-q", *store.at).out.split()) == ids, f"one is gone: {store.what}")
        for kind in ("unlink", "rmdir"):
            result = store.denied(kind, errno.EIO, 0, "rm", "--checkpoint", ids.pop() if kind == "unlink" else store.checkpoint("--leave-running"),
                                  has_a_time=False)
            expect(result and "removed later" in result.err, store.what)
        bed.ok("verify", "--all", *store.at)


@case
def a_store_that_does_not_answer(bed):
    """As on a server that is gone: the command ends in time, the job runs on, and when the mount is given up, all is as before."""
    job, log = bed.counter(mib=8, chunk_mib=2)
    for kind, skip in (("write", 1), ("fsync", 0), ("mkdir", 0), ("rename", 2)):
        with passed_files(bed) as files:
            files.deny(kind, "silent", skip)
            start = time.monotonic()
            result = bed.cli("checkpoint", job, "--leave-running", "--dir", files.dir, "--timeout", "3s", timeout=60)
            seconds = time.monotonic() - start
            expect(files.denials() > 0, f"{kind}: answered: this test proves nothing: {result.why()}")
            expect(result.code == EXIT_TIMEOUT and seconds < 3 + SPARE_S, f"{kind}: {seconds:.1f} s: {result.why()}")
            log.goes_on(2, SETTLES_S)
            files.allow()
            files.abort()
            bed.wait_state(job, ("running",), 30)
        bed.ok("suspend", job)
        bed.ok("resume", job)
        log.goes_on(2)



READS = """
exec 3<"$0"
echo ready now
n=0
while :; do n=$((n+1)); echo step $n OK; sleep 0.02; done
"""


@case
def a_file_of_the_job_that_does_not_answer(bed):
    """Whether it is as it was cannot be told then: it is said so, in time, and it comes back once the server is there."""
    with passed_files(bed) as files:
        data = os.path.join(files.dir, "folder", "data")
        os.mkdir(os.path.dirname(data))
        with open(data, "w", encoding="ascii") as file:
            file.write("data")
        job, log = bed.started(["sh", "-c", READS, data])
        saved = bed.operation("checkpoint", job)["checkpoint"]
        for args in (("restore", saved, "--timeout", "5s"), ("inspect", "--needs", saved)):
            files.deny("lookup", "silent")
            start = time.monotonic()
            result = bed.cli(*args, timeout=60)
            seconds = time.monotonic() - start
            expect(files.denials() > 0, f"{args}: answered: this test proves nothing: {result.why()}")
            expect(seconds < 5 + SPARE_S and "does not answer" in result.out + result.err, f"{args}: {seconds:.1f} s: {result.why()}")
            files.allow()
        bed.ok("restore", saved)
        log.goes_on()


if __name__ == "__main__":
    main()
