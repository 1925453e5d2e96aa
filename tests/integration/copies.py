#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`restore --name`: a checkpoint comes back as another job, beside the one that was saved, and neither disturbs the
other."""

import os
import socket
import sys

from cases import NOBODY, STEPPING, as_user, case, expect, fault_points, main, shim_steps, wait_until


def copied(bed, word, name, *options):
    """A copy that is at work: (id, log)."""
    summary = bed.operation("restore", word, "--name", name, *options)
    bed.jobs.append(summary["job"])
    return summary["job"], bed.log(summary["job"])


def expect_agents(bed, *jobs):
    """Their device memory is in the hands of agents of their own."""
    for job in jobs:
        expect(bed.job(job)["data_path"] == "broker", f"{job} is without an agent")


HELD = ["restore.restored"]  # while CRIU holds the job


def steps_of(verb):
    return [step for step in shim_steps() if step.startswith(verb + ".")]


def suspended_and_resumed(bed, job):
    bed.operation("suspend", job)
    bed.operation("resume", job)


def all_go_on(jobs):
    for _, log in jobs:
        log.goes_on()


@case
def beside_the_one_that_runs(bed):
    job, log = bed.counter(name="train", mib=32)
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    log.goes_on()
    copy, its_log = copied(bed, checkpoint, "fork")
    expect(copy != job and bed.job(copy)["name"] == "fork", f"{bed.job(copy)}")
    expect(its_log.path != log.path and its_log.path.endswith(f"{copy}.log"), its_log.path)
    its_log.goes_on()
    log.goes_on()
    expect(bed.pid(copy) != bed.pid(job), "they have one process")
    expect_agents(bed, job, copy)
    for one, other in ((copy, log), (job, its_log)):
        bed.operation("suspend", one)
        other.goes_on()
        bed.operation("resume", one)
    log.goes_on()
    its_log.goes_on()
    bed.end(copy)
    bed.ok("rm", copy)
    bed.jobs.remove(copy)
    bed.expect_whole(job, log)
    suspended_and_resumed(bed, job)
    log.goes_on()


@case
def of_a_job_whose_log_has_a_long_path(bed):
    place = os.path.join(bed.dir, *["d" * 200] * 3)
    os.makedirs(place)
    job, log = bed.counter(name="train", options=("--log", os.path.join(place, "log")))
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    _, its_log = copied(bed, checkpoint, "fork")
    its_log.goes_on()
    log.goes_on()


@case
def two_of_one_checkpoint(bed):
    job, log = bed.counter()
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    copies = [copied(bed, checkpoint, name) for name in ("one", "two")]
    everybody = [(job, log), *copies]
    bed.refused(6, "name one is taken by job", "restore", checkpoint, "--name", "one")
    refused = bed.refused(6, f"job {job} .* is still there", "restore", checkpoint)
    expect("--name NAME" in refused.err, refused.err)
    all_go_on(everybody)
    for who, _ in everybody:
        bed.operation("suspend", who)
        all_go_on([(other, its) for other, its in everybody if other != who])
        bed.operation("resume", who)
    for i, (who, _) in enumerate(everybody):
        bed.end(who)
        all_go_on(everybody[i + 1:])
    again = bed.operation("restore", "two")
    expect(again["job"] == copies[1][0], f"the name of a copy brings back job {again['job']}")
    bed.expect_state("two", "running")
    bed.expect_state(job, "exited")


@case
def saved_and_restored_by_itself(bed):
    """And so is a copy of it, when nobody of before is left."""
    job, log = bed.counter()
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    copy, its_log = copied(bed, checkpoint, "fork")
    bed.operation("checkpoint", copy, "--leave-running", "--name", "first")
    saved = bed.operation("checkpoint", copy, "--name", "second")["checkpoint"]
    log.goes_on()
    manifest = bed.ok("inspect", saved, "--format", "json").json()["manifest"]
    expect((manifest["job"]["id"], manifest["job"]["started_as"]) == (copy, job), f"{manifest['job']}")
    bed.expect_restorable(saved, its_log)
    grandchild, log_of_it = copied(bed, "first", "fork-of-fork")
    everybody = [(job, log), (copy, its_log), (grandchild, log_of_it)]
    all_go_on(everybody)
    expect_agents(bed, job, copy, grandchild)
    suspended_and_resumed(bed, copy)
    bed.operation("checkpoint", job, "--name", "own")
    all_go_on(everybody[1:])
    bed.expect_restorable("own", log)
    for who in (job, copy):
        bed.end(who)
        bed.ok("rm", who)
        bed.jobs.remove(who)
    log_of_it.goes_on()
    bed.operation("checkpoint", grandchild)
    bed.expect_restorable("fork-of-fork", log_of_it)


@case
def of_a_job_that_is_gone(bed):
    job, _ = bed.counter(name="train")
    bed.operation("checkpoint", job, "--name", "saved")
    bed.ok("rm", job)
    bed.jobs.remove(job)
    copy, log = copied(bed, "saved", "fork")
    log.goes_on()
    suspended_and_resumed(bed, copy)
    bed.end(copy)
    other, its_log = copied(bed, "saved", "train")
    its_log.goes_on()
    bed.ok("rm", copy)
    bed.jobs.remove(copy)
    bed.expect_whole(other, its_log)


@case
@as_user
def of_a_user(bed):
    """One after the other is all that a user can have, as beside each other takes a namespace."""
    job, log = bed.counter(name="train")
    bed.operation("checkpoint", job, "--leave-running", "--name", "early")
    before = log.goes_on()
    agents = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents")
    refused = bed.refused(6, f"job {job} .train., .* is still there", "restore", "early", "--name", "fork")
    expect("only root" in refused.err, refused.err)
    expect([entry["id"] for entry in bed.list("ps", "jobs")] == [job] and os.listdir(agents) == [job], "it was begun")
    suspended_and_resumed(bed, job)
    expect(log.goes_on() > before, "the job was disturbed")
    bed.operation("checkpoint", job, "--name", "late")

    copy, its_log = copied(bed, "early", "fork")
    its_log.goes_on()
    expect_agents(bed, copy)
    bed.refused(6, "in use, and only root can", "restore", "late")
    bed.expect_state(job, "checkpointed")
    suspended_and_resumed(bed, copy)
    bed.expect_whole(copy, its_log)
    bed.operation("checkpoint", copy, "--name", "of-fork")
    bed.expect_restorable("late", log)
    bed.refused(6, f"job {job} .* is still there", "restore", "of-fork")
    bed.expect_state(copy, "checkpointed")
    bed.expect_whole(job, log)
    suspended_and_resumed(bed, job)
    bed.end(job)
    bed.expect_restorable("of-fork", its_log)
    bed.ok("rm", job)
    bed.jobs.remove(job)
    suspended_and_resumed(bed, copy)
    bed.operation("checkpoint", copy)
    bed.expect_restorable("fork", its_log)
    expect(sorted(os.listdir(agents)) == sorted((job, copy)), f"{os.listdir(agents)}")
    bed.end(copy)
    bed.ok("rm", copy)
    bed.jobs.remove(copy)
    expect(not os.listdir(agents), f"left are {os.listdir(agents)}")


@case
def whose_members_start_later(bed):
    """They find their place by the environment, in which the id of the other job is, and listen where the copy is asked."""
    later = f"{bed.program('counter')} --mib 4 --chunk-mib 4 --interval-ms 10"
    flag = os.path.join(bed.dir, "flag")
    script = f"{later} & while ! test -e {flag}; do sleep 0.1; done; {later} >/dev/null & wait"
    job, log = bed.started(["sh", "-c", script])
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    copy, its_log = copied(bed, checkpoint, "fork")
    all_go_on([(job, log), (copy, its_log)])
    agents = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents")

    def sockets(who):
        return len(os.listdir(os.path.join(agents, who)))

    expect([sockets(job), sockets(copy)] == [1, 1], "agents before")
    with open(flag, "w", encoding="utf-8"):
        wait_until(lambda: [sockets(job), sockets(copy)] == [2, 2], "an agent more in each")
    for who in (job, copy):
        bed.operation("suspend", who)
    wait_until(lambda: bed.vram() == [0, 0], "all device memory to be away", 10)
    bed.operation("checkpoint", copy)
    bed.operation("resume", job)
    bed.expect_restorable("fork", its_log)
    log.goes_on()
    expect([sockets(job), sockets(copy)] == [2, 2], "agents after")


@case
def of_another_users_job(bed):
    bed.daemon()
    job, error = bed.run_as_nobody(bed.program("counter"), "--mib", "16", "--chunk-mib", "16", "--interval-ms", "25")
    expect(not error, f"{error}")
    log = bed.log(job)
    log.wait_for("^ready ")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    copy, its_log = copied(bed, checkpoint, "fork")
    both = [(job, log), (copy, its_log)]
    all_go_on(both)
    expect_agents(bed, job, copy)
    expect(os.stat(f"/proc/{bed.pid(copy)}").st_uid == NOBODY == os.stat(its_log.path).st_uid, "it is not of that user")
    for who, _ in both:
        suspended_and_resumed(bed, who)
    all_go_on(both)
    bed.operation("checkpoint", copy)
    bed.expect_restorable("fork", its_log)
    log.goes_on()


@case
def whose_shims_die(bed):
    job, log = bed.counter()
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    copy, its_log = copied(bed, checkpoint, "fork")
    both = [(job, log), (copy, its_log)]
    for who, _ in both:
        bed.operation("suspend", who)
    for who, _ in both:
        bed.kill_shim(who)
    for who, _ in both:
        bed.operation("resume", who)
    all_go_on(both)
    for who, _ in both:
        bed.kill_shim(who)
        all_go_on(both)
        suspended_and_resumed(bed, who)
    all_go_on(both)


LISTENS = """
import socket, sys, time

kind, address = sys.argv[1:]
if kind == "inet":
    sockets = [socket.create_server(("127.0.0.1", int(address)))]
else:
    sockets = [socket.socket(socket.AF_UNIX)]
    sockets[0].bind(address.replace("@", chr(0)))
    sockets[0].listen()
print("ready", "to listen", flush=True)
""" + STEPPING


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@case
def that_would_listen_at_the_same_address(bed):
    """It is refused before CRIU takes away the place of who listens there, and comes back once that is free."""
    port = free_port()
    for kind, address in (("inet", port), ("unix", os.path.join(bed.dir, "place")), ("unix", f"@brumate-test-{port}")):
        job, log = bed.started([sys.executable, "-c", LISTENS, kind, address])
        checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
        place = os.stat(address).st_ino if str(address).startswith("/") else None
        bed.refused(6, f"address .*{address} of the job is in use", "restore", checkpoint, "--name", "fork")
        expect(not place or os.stat(address).st_ino == place, f"{address} is not what it was")
        bed.expect_whole(job, log)
        expect([entry["id"] for entry in bed.list("ps", "jobs") if entry["state"] == "running"] == [job], "a copy is there")
        bed.end(job)
        copy, its_log = copied(bed, checkpoint, "fork")
        its_log.goes_on()
        bed.end(copy)
        bed.ok("rm", copy)
        bed.jobs.remove(copy)


def in_the_middle(action, points):
    """Whatever a restore of a copy comes to, the job beside it goes on, and the copy is whole or gone."""
    def function(bed):
        job, log = bed.counter()
        checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
        for point in points:
            bed.fault(point, action)
            result = bed.cli("restore", checkpoint, "--name", "fork")
            expect(not bed.disarm(), f"{action} at {point}: it was not passed: {result.why()}")
            log.goes_on()
            for copy in [entry["id"] for entry in bed.list("ps", "jobs") if entry["id"] != job]:
                bed.cli("kill", copy)
                bed.wait_state(copy, ("exited", "lost", "checkpointed"))
                bed.ok("rm", copy)
            log.goes_on()
        copy, its_log = copied(bed, checkpoint, "fork")
        all_go_on([(job, log), (copy, its_log)])

    return function


@case
@as_user
def of_a_user_in_the_middle(bed):
    """Where the place of the agents is lent to a copy, the job that had it comes back all the same."""
    job, log = bed.counter()
    bed.operation("checkpoint", job, "--leave-running", "--name", "early")
    log.goes_on()
    bed.operation("checkpoint", job, "--name", "late")
    for action in ("error:5", "kill"):
        for point in ("restore.criu.begin", *HELD, "restore.criu.end", "restore.open.end"):
            bed.fault(point, action)
            bed.cli("restore", "early", "--name", "fork")
            expect(not bed.disarm(), f"{action} at {point}: it was not passed")
            for copy in [entry["id"] for entry in bed.list("ps", "jobs") if entry["id"] != job]:
                bed.cli("kill", copy)
                bed.wait_state(copy, ("exited", "lost", "checkpointed"))
                bed.ok("rm", copy)
            bed.expect_state(job, "checkpointed")
            bed.keeps_promises()
    bed.expect_restorable("late", log)
    expect_agents(bed, job)


STEPS = steps_of("restore")
for fault in ("error:5", "kill", "kill:broker", "kill:criu", "kill:job"):
    each = in_the_middle(fault, HELD if fault in ("kill:criu", "kill:job") else fault_points(STEPS, fault) + HELD)
    each.__name__ = f"restored_with_{fault.replace(':', '_')}"
    case(each)


if __name__ == "__main__":
    main()
