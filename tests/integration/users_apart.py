#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Users who are not root beside each other and beside root: what one may do with the jobs, the checkpoints and the
sockets of another is nothing, and what is said of it gives nothing away."""

import contextlib
import os
import shutil
import socket

from cases import (EXIT_BAD_IMAGE, EXIT_BUSY, EXIT_NOT_FOUND, EXIT_PERMISSION, CAP_CHECKPOINT_RESTORE, Bed, UserBed, as_user, case,
                   expect, find_build, main, may_connect, pids, run, wait_until)
from checkpoints import change_manifest, image, seal_again
from criu_images import change_credentials


@contextlib.contextmanager
def beside(bed_class=UserBed):
    """The bed of somebody else, from which nothing may be left either."""
    with bed_class(find_build()) as other:
        yield other
        other.finish()


def expect_nothing_given_away(result, *secrets):
    for secret in secrets:
        expect(str(secret) not in result.out + result.err, f"{secret} is given away: {result.why()}")


def given_away(bed, job):
    """What nobody else is to be told."""
    entry = bed.job(job)
    return [entry["id"], entry["name"], bed.dir, f"uid {bed.uid}", "counter"]


@case
@as_user
def another_users_job_cannot_be_reached(bed):
    with beside() as other:
        job, log = bed.counter("secret-name")
        bed.operation("checkpoint", job, "--leave-running")
        checkpoint = os.path.join(bed.store(), bed.checkpoints()[0])
        secrets, pid = given_away(bed, job), bed.pid(job)
        expect(not other.list("ps", "jobs") and not other.list("ls", "checkpoints"), "they are seen")
        for verb in (("suspend",), ("resume",), ("checkpoint",), ("kill",), ("rm",), ("logs",), ("wait",), ("release",), ("inspect",)):
            for word in (job, "secret-name"):
                result = other.cli(*verb, word)
                expect(result.code == EXIT_NOT_FOUND, f"expected exit {EXIT_NOT_FOUND}: {result.why()}")
                expect_nothing_given_away(result, *[s for s in secrets if s != word])
        for verb in ("suspend", "checkpoint", "manage"):
            result = other.cli(verb, "--pid", pid)
            expect(result.code == EXIT_PERMISSION and "belongs to another user" in result.err, result.why())
            expect_nothing_given_away(result, *secrets)
        for args in (("restore", checkpoint), ("inspect", "--restore", checkpoint), ("verify", checkpoint),
                     ("rm", "--checkpoint", os.path.basename(checkpoint), "--dir", bed.store()), ("ls", "--dir", bed.store()),
                     ("checkpoint", "--pid", pid, "--dir", bed.store()), ("prune", "--leftovers", "--dir", bed.store())):
            result = other.cli(*args)
            expect(result.code != 0, f"it can be done: {result.why()}")
            expect_nothing_given_away(result, job, "counter")
        for path in (bed.broker_socket(), os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")):
            expect(may_connect(path, bed.uid), f"{path}: its user cannot connect, this test proves nothing")
            expect(not may_connect(path, other.uid), f"{path}: another user can connect")
        bed.expect_whole(job, log)
        bed.end(job)


def hold_connections(path, n):
    """As many idle connections, as far as they are taken; the sockets."""
    held = []
    for _ in range(n):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        held.append(one)
        try:
            one.connect(path)
        except (BlockingIOError, ConnectionError):
            break  # no more fit
    return held


@case
@as_user
def what_one_user_floods_stops_nobody_else(bed):
    """Idle connections to all that serves them, records, jobs that ask for the GPU, a checkpoint each second: another user
    and root work on as if there were nobody."""
    job, log = bed.counter("flood", mib=4)
    bed.doctor()  # starts the broker
    own_shim = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")
    held = [one for path in (bed.broker_socket(), own_shim) for one in hold_connections(path, 400)]
    expect(len(held) > 500, f"only {len(held)} connections: this test proves nothing")
    try:
        for _ in range(40):
            bed.run(["true"])
        second, _ = bed.counter("second", mib=4)
        bed.ok("checkpoint", second, "--every", "1s", "--keep-last", "1")
        for bed_class in (UserBed, Bed):
            with beside(bed_class) as other:
                theirs, their_log = other.counter()
                expect([entry["id"] for entry in other.list("ps", "jobs")] == [theirs], "others' jobs are listed")
                for verb in ("suspend", "resume", "checkpoint", "restore"):
                    other.operation(verb, theirs, timeout=120)
                other.expect_whole(theirs, their_log)
                other.end(theirs)
        bed.end_schedule(second)
    finally:
        for one in held:
            one.close()
    for name in (job, second):
        bed.end(name)


@case
@as_user
def one_that_root_names_by_its_process(bed):
    """Its user's job is what is meant, and that user's brumate knows of it; it is not taken in beside that."""
    job, log = bed.counter("train")
    with contextlib.closing(Bed(find_build())) as root:
        result = root.cli("manage", "--pid", bed.pid(job))
        expect(result.code == EXIT_BUSY and f"belongs to job {job} of uid {bed.uid}, of another brumate" in result.err and
               f"brumate suspend {job}" in result.err, result.why())
        for verb, state in (("suspend", "suspended"), ("resume", "running")):
            result = root.cli(verb, "--pid", bed.pid(job))
            expect(result.code == 0 and f"is of job {job} of user" in result.err, result.why())
            expect(bed.state(job) == state, f"its user's brumate says {bed.state(job)}")
        bed.expect_whole(job, log)
        expect(not root.cli("ps").out.count("counter"), "root has taken it in")
    bed.operation("suspend", job)
    bed.operation("resume", job)
    bed.end(job)


@case
@as_user
def a_place_that_another_user_made(bed):
    """Who comes first makes /tmp/brumate-UID; nobody works in one that somebody else made, or may write to: theirs is another."""
    instead = bed.runtime_dir + ".1"

    def expect_works_in(place):
        facts = bed.cli("doctor", "--format", "json", env=bed.DEFAULTS).json()["facts"]
        expect(facts["runtime-dir"] == place, f"{facts['runtime-dir']}, expected {place}")
        job = bed.ok("run", "--", bed.program("counter"), "--mib", 2, "--chunk-mib", 2, env=bed.DEFAULTS).out.strip()
        expect(os.listdir(os.path.join(place, "agents")), f"nothing in {place}")
        for verb in ("suspend", "resume", "kill"):
            wait_until(lambda v=verb: bed.cli(v, job, env=bed.DEFAULTS).code == 0, verb)
        bed.ok("rm", job, env=bed.DEFAULTS)

    with beside() as other:
        os.mkdir(bed.runtime_dir)
        os.chmod(bed.runtime_dir, 0o777)
        os.chown(bed.runtime_dir, bed.uid, bed.uid)
        bed.refused(EXIT_PERMISSION, "other users could", "run", "--", "true", env=bed.DEFAULTS)
        os.chown(bed.runtime_dir, other.uid, other.uid)
        try:
            expect_works_in(instead)
            expect(not os.listdir(bed.runtime_dir), "something was made in another user's place")
            os.rmdir(bed.runtime_dir)
            os.symlink(other.dir, bed.runtime_dir)
            os.lchown(bed.runtime_dir, other.uid, other.uid)
            expect_works_in(instead)
        finally:
            shutil.rmtree(instead, True)
        os.unlink(bed.runtime_dir)
        bed.ok("run", "--name", "short", "--", "true", env=bed.DEFAULTS)
        bed.ok("wait", "short", env=bed.DEFAULTS)
        bed.ok("rm", "short", env=bed.DEFAULTS)


# What CRIU's images ask for.

def put(value, *which):
    return lambda fields: [(field, wire, value if field in which else old) for field, wire, old in fields]


FORGERIES = {"another user": put(0, 1, 3, 5, 7), "another group": put(0, 2, 4, 6, 8), "groups": lambda fields: fields + [(14, 0, 0)],
             "capabilities": put(0xffffffff, 10, 11), "that of the launcher": put(1 << CAP_CHECKPOINT_RESTORE - 32, 10, 11)}


def is_of_root(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid == 0
    except OSError:
        return False


@case
@as_user
def forged_credentials_are_refused(bed):
    """By us where the manifest tells what they were, and where it says what the image says, by the kernel."""
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    whole = os.path.join(bed.dir, "whole")
    shutil.copytree(image(bed, checkpoint), whole)
    for words, forge in FORGERIES.items():
        for who in ({}, {"uid": 0, "gid": 0}):
            folder = os.path.join(image(bed, checkpoint), "criu")
            for name in os.listdir(folder):
                if name.startswith("core-"):
                    change_credentials(os.path.join(folder, name), forge)
            seal_again(bed, checkpoint)
            change_manifest(bed, checkpoint, **who)
            run(["chown", "-R", f"{bed.uid}:{bed.uid}", image(bed, checkpoint)])
            before = set(pids())
            result = bed.cli("restore", checkpoint)
            expect(result.code not in (0, 124), f"{words} {who}: {result.why()}")
            expect(not who or result.code != EXIT_BAD_IMAGE or "asks for" in result.err, result.why())
            gained = [pid for pid in set(pids()) - before if is_of_root(pid) and bed.dir in commands(pid)]
            expect(not gained, f"{words}: {gained} are root's")
            shutil.rmtree(image(bed, checkpoint))
            shutil.copytree(whole, image(bed, checkpoint))
            run(["chown", "-R", f"{bed.uid}:{bed.uid}", image(bed, checkpoint)])
    bed.expect_restorable(checkpoint, log)
    bed.end(job)


def commands(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


@case
@as_user
def a_checkpoint_of_roots_in_a_users_hands(bed):
    """And that of a user in root's, by the name of one of root's."""
    with beside(Bed) as root:
        job, log = root.counter("train")
        of_root = root.operation("checkpoint", job)["checkpoint"]
        copy = os.path.join(bed.dir, of_root)
        shutil.copytree(image(root, of_root), copy)
        run(["chown", "-R", f"{bed.uid}:{bed.uid}", copy])
        result = bed.cli("restore", copy)
        expect(result.code in (EXIT_PERMISSION, EXIT_BAD_IMAGE, 4), result.why())
        expect(not [entry for entry in bed.list("ps", "jobs") if entry["state"] == "running"], "it runs")
        his, his_log = bed.counter("train")
        bed.operation("checkpoint", his)
        his_store = bed.store()
        result = root.cli("restore", "train", "--dir", his_store)
        expect(result.code == EXIT_PERMISSION and "not to you" in result.err, result.why())
        result = root.cli("restore", os.path.join(his_store, bed.checkpoints()[0]))
        expect(result.code == EXIT_PERMISSION and "not to you" in result.err, result.why())
        root.expect_restorable("train", log)  # its own, as before
        bed.expect_restorable("train", his_log)
        for each, end in ((root, job), (bed, his)):
            each.end(end)


main()
