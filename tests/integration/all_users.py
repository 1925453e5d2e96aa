#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Root's view of all users' jobs: listed, named as USER/JOB, suspended and brought back, each with its user's rights. What a
user puts in root's way harms nobody else."""

import json
import os
import re
import resource
import signal
import subprocess
import threading
import time

from as_root import as_root, env_of_root, listed, needs_root, ok, ran_apart
from cases import (Background, EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_TIMEOUT, EXIT_USAGE, Failed, UserBed, as_user, case, expect, find_build,
                   main, read_text, run, wait_until)


@case
@as_user
def root_sees_the_jobs_of_users(bed):
    needs_root()
    job, log = bed.counter(name="train", mib=16)
    other, _ = bed.counter(name="other", mib=16)
    bed.ok("suspend", "other")
    seen = listed(bed)
    expect({(j["id"], j["name"], j["state"], j["user"]) for j in seen.values()} ==
           {(job, "train", "running", str(bed.uid)), (other, "other", "suspended", str(bed.uid))}, f"{seen}")
    table = ok(as_root(bed, "ps", "--all-users", "--columns", "user,name,state")).out
    expect([f"{bed.uid}", "train", "running"] in [line.split() for line in table.splitlines()], table)
    expect(f"{bed.uid}/{job}" in ok(as_root(bed, "ps", "--all-users", "-q")).out.split(), "as the other commands take it")
    expect(job not in ok(as_root(bed, "ps")).out, "root's own list has others'")
    refused = bed.refused(EXIT_PERMISSION, "--all-users is for root", "ps", "--all-users")
    expect("brumate ps" in refused.err, refused.why())
    bed.refused(EXIT_PERMISSION, "--all-users is for root", "suspend", "--all-users")
    log.goes_on()


def with_jobs(bed, living, ended):
    """So many jobs that live, every other one with a GPU, and records like that of one that ended five hours ago."""
    for i in range(living):
        bed.run([bed.program("counter"), "--mib", 8, "--chunk-mib", 8, "--interval-ms", 1000] if i % 2 else ["sleep", "1000"], name=f"live-{i}")
    old = bed.run(["true"], name="old")
    bed.cli("wait", old)
    jobs = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")
    record = json.loads(read_text(os.path.join(jobs, old, "job.json")))
    bed.ok("rm", "--job", "old")
    bed.jobs.remove(old)
    then = time.time() - 5 * 3600
    for i in range(ended):
        folder = os.path.join(jobs, f"{i:08x}")
        path = os.path.join(folder, "job.json")
        os.mkdir(folder, 0o700)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record | {"id": f"{i:08x}", "name": f"old-{i}"}, file)
        os.utime(path, (then, then))
        for name in (folder, path):
            os.chown(name, bed.uid, bed.uid)


@case
@as_user
def a_thousand_jobs_of_twenty_users(bed):
    """Those that live are on the first screen; what counts is the processors' time, as others use them, too."""
    needs_root()
    beds, took = [bed], []
    try:
        beds += [UserBed(find_build()) for _ in range(19)]
        for one in beds:
            with_jobs(one, living=2, ended=48)
        uids = {str(one.uid) for one in beds}
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            lines = ok(as_root(bed, "ps", "--all-users", "--columns", "uid,name,state", "--no-headers")).out.splitlines()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            rows = [line.split() for line in lines if line.split()[0] in uids]
            expect(len(rows) == 40 and all(name.startswith("live-") and state == "running" for _, name, state in rows), lines)
        rows = [line.split() for line in ok(as_root(bed, "ps", "--all-users", "-a", "--columns", "uid,name,state", "--no-headers")).out.splitlines()]
        rows = [row for row in rows if row[0] in uids]
        expect(len(rows) == 1000 and all(row[2] == "running" for row in rows[:24]), f"{len(rows)}: {rows[:24]}")
        expect(min(took) < 0.5, f"ps takes {min(took):.3f} s")
        print(f"    ps of 1000 jobs of 20 users, 40 of which live: {1000 * min(took):.0f} ms of processors")
    finally:
        for one in beds[1:]:
            one.close()


@case
@as_user
def metrics_of_the_jobs_of_users(bed):
    """With whose they are, and with what operations have come to."""
    needs_root()
    job, _ = bed.counter(name="secretive", mib=16)
    bed.ok("suspend", job)
    of_job = rf'job="{job}",user="{bed.uid}"'
    told = ok(as_root(bed, "metrics", "--all-users")).out
    for sample in (rf'brumate_job_state{{{of_job},name="secretive",state="suspended"}} 1',
                   rf'brumate_job_operations_total{{{of_job},name="secretive",operation="suspend",result="done"}} 1'):
        expect(sample in told.splitlines(), f"{sample} is not in {told}")
    found = re.search(rf'^brumate_job_device_memory_bytes{{{of_job},.*}} (\d+)$', told, re.M)
    expect(found and int(found[1]) >= 16 << 20, told)
    expect(job not in ok(as_root(bed, "metrics")).out, "root's own have others'")
    path = os.path.join(bed.dir, "of-root", "brumate.prom")
    ok(as_root(bed, "metrics", "--all-users", "--textfile", path))
    expect(f'{of_job}' in read_text(path) and "secretive" not in read_text(path), read_text(path))
    bed.refused(EXIT_PERMISSION, "--all-users is for root", "metrics", "--all-users")
    bed.refused(EXIT_PERMISSION, "--all-users is for root", "metrics", "--all-users", "--listen", "127.0.0.1:0")
    bed.ok("resume", job)


@case
@as_user
def a_job_by_the_name_of_its_user(bed):
    needs_root()
    job, log = bed.counter(name="train", mib=16)
    name = f"{bed.uid}/train"
    done = ok(as_root(bed, "suspend", name))
    expect(done.out == f"{job}\n" and "suspended job train in" in done.err, done.why())
    bed.expect_state(job, "suspended")
    summary = json.loads(ok(as_root(bed, "resume", name, "--format", "json")).out)["summary"]
    expect(summary["job"] == job, f"{summary}")
    log.goes_on()
    expect(json.loads(ok(as_root(bed, "inspect", f"{bed.uid}/{job[:4]}", "--format", "json")).out)["job"]["id"] == job, "inspect")
    expect("step 1 OK" in ok(as_root(bed, "logs", name)).out, "logs")
    expect(ok(as_root(bed, "events", name)).out.count("train") >= 1, "events")
    for user, code, words in ((bed.uid, EXIT_NOT_FOUND, "no job nosuch"), (4711, EXIT_NOT_FOUND, "no user 4711 has jobs here")):
        refused = as_root(bed, "suspend", f"{user}/nosuch")
        expect(refused.code == code and words in refused.err and not refused.out, refused.why())
    refused = as_root(bed, "suspend", name, "4711/nosuch")
    expect(refused.code == EXIT_NOT_FOUND, refused.why())
    bed.expect_state(job, "running")
    expect(as_root(bed, "suspend", name, "--bogus").code == EXIT_USAGE, "a slip in the line")
    files = [path for path, _, names in os.walk(bed.kept) for name in names if os.stat(os.path.join(path, name)).st_uid != bed.uid]
    expect(not files, f"of root in the user's directory: {files}")
    expect(ok(as_root(bed, "kill", "--grace", "0s", name)).out == "train\n", "kill")
    expect(bed.state(job) == "exited", "it lives")


@case
@as_user
def before_maintenance_and_back(bed):
    needs_root()
    if ran_apart(__file__, "before-maintenance-and-back", timeout=120):
        return
    jobs = [bed.counter(name=name, mib=16) for name in ("one", "two")]
    others = {job["id"] for job in json.loads(ok(as_root(bed, "ps", "--all-users", "--format", "json")).out)["jobs"]
              if job["uid"] != bed.uid and job["state"] in ("running", "suspended")}
    if others:
        raise Failed(f"others have jobs here, which this would suspend: {others}")
    done = ok(as_root(bed, "suspend", "--all-users"))
    expect({job for job, _ in jobs} <= set(done.out.split()), done.why())
    for job, _ in jobs:
        bed.expect_state(job, "suspended")
    refused = as_root(bed, "suspend", "--all-users", "one")
    expect(refused.code == EXIT_USAGE and "--all-users takes no job" in refused.err, refused.why())
    ok(as_root(bed, "resume", "--all-users"))
    for _, log in jobs:
        log.goes_on()
    done = ok(as_root(bed, "resume", "--all-users"))
    expect("nothing to do" in done.err and not done.out, done.why())
    # One that ends while another is suspended needs nothing.
    bed.fault("suspend.gate.begin", "hold")
    background = Background([bed.brumate, "suspend", "--all-users"], env_of_root(bed), cwd="/")
    with bed.holding("suspend.gate.begin", background):
        os.kill(bed.pid(jobs[1][0]), signal.SIGKILL)
        bed.wait_state(jobs[1][0], ("exited",))
    code, out, err = background.end()
    expect(code == 0 and out.split() == [jobs[0][0]] and f"{bed.uid}/{jobs[1][0]} has ended meanwhile" in err, f"exit {code}: {out} {err}")


@case
@as_user
def a_process_of_somebodys_job(bed):
    """It is suspended as that job, whose record says so."""
    needs_root()
    job, log = bed.counter(name="train", mib=16)
    done = ok(as_root(bed, "suspend", "--pid", bed.pid(job)))
    expect(f"is of job {job} of user {bed.uid}" in done.err and done.out == f"{job}\n", done.why())
    bed.expect_state(job, "suspended")
    ok(as_root(bed, "resume", "--pid", bed.pid(job)))
    log.goes_on()
    refused = as_root(bed, "manage", "--pid", bed.pid(job))
    expect(refused.code != 0 and f"job {job}" in refused.err, refused.why())


def stopped_children(pid, stop):
    """Stops the command that root starts as the user, as that user may."""
    while not stop.is_set():
        for child in read_text(f"/proc/{pid}/task/{pid}/children").split():
            if read_text(f"/proc/{child}/cmdline").startswith("brumate\0suspend\0"):
                os.kill(int(child), signal.SIGSTOP)
                return


@case
@as_user
def a_user_that_stops_what_root_asks(bed):
    """It is waited for no longer than it is given; and the way back is free."""
    needs_root()
    job, log = bed.counter(name="train", mib=16)
    begun, stop = time.monotonic(), threading.Event()
    command = subprocess.Popen([bed.brumate, "suspend", f"{bed.uid}/{job}", "--timeout", "3s"], env=env_of_root(bed), cwd="/",
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    thread = threading.Thread(target=stopped_children, args=(command.pid, stop))
    thread.start()
    try:
        _, err = command.communicate(timeout=60)
    finally:
        stop.set()
        thread.join()
    took = time.monotonic() - begun
    expect(command.returncode == EXIT_TIMEOUT and "did not end, and was killed" in err, f"{command.returncode}: {err}")
    expect(took < 20, f"it took {took:.1f} s")  # on a busy machine
    ok(as_root(bed, "suspend", f"{bed.uid}/{job}"))
    ok(as_root(bed, "resume", f"{bed.uid}/{job}"))
    log.goes_on()


@case
@as_user
def what_a_user_puts_in_the_way(bed):
    """A link to what only root may read, a pipe that nobody writes to, words for a terminal: others are still listed."""
    needs_root()
    job, _ = bed.counter(name="train", mib=16)
    jobs = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")
    secret = os.path.join(bed.dir, "secret")
    record = json.loads(read_text(os.path.join(jobs, job, "job.json")))
    with open(secret, "w", encoding="utf-8") as file:
        json.dump(record | {"id": "aaaaaaaa", "name": "secret"}, file)
    os.chmod(secret, 0o600)
    os.chown(secret, 0, 0)

    def planted(name):
        folder = os.path.join(jobs, name)
        os.mkdir(folder, 0o700)
        os.chown(folder, bed.uid, bed.uid)
        return os.path.join(folder, "job.json")

    os.symlink(secret, planted("aaaaaaaa"))
    with open(planted("bbbbbbbb"), "w", encoding="utf-8") as file:
        json.dump(record | {"id": "bbbbbbbb", "name": "b", "state": "exited", "argv": ["\x1b[31mred\u202e"]}, file)
    os.chown(os.path.join(jobs, "bbbbbbbb", "job.json"), bed.uid, bed.uid)
    seen = listed(bed, "--all")
    expect(job in seen and "secret" not in json.dumps(seen), f"{seen}")
    table = ok(as_root(bed, "ps", "--all-users", "--all"))
    expect("\x1b" not in table.out + table.err and "\u202e" not in table.out, f"{table.out!a}")
    os.mkfifo(planted("cccccccc"), 0o666)
    start = time.monotonic()
    done = as_root(bed, "ps", "--all-users", timeout=30)
    expect(done.code == 0 and time.monotonic() - start < 15, done.why())
    for name in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        run(["rm", "-rf", os.path.join(jobs, name)])


@case
def a_process_with_nothing_to_save(bed):
    """Neither the kernel's own threads nor what has ended become jobs."""
    gone = subprocess.Popen(["true"])
    wait_until(lambda: read_text(f"/proc/{gone.pid}/stat").rsplit(") ", 1)[1][:1] == "Z", "the end of a process")
    refusals = [(gone.pid, EXIT_NOT_FOUND, r"process \d+ \(true\) has ended")]
    if os.getuid() == 0 and read_text("/proc/2/comm") == "kthreadd\n":
        refusals.append((2, EXIT_USAGE, "process 2 cannot be a job: it is a thread of the kernel .kthreadd."))
    for pid, code, words in refusals:
        for verb in ("manage", "suspend", "checkpoint"):
            bed.refused(code, words, verb, "--pid", pid)
    gone.wait()
    expect(bed.list("ps", "jobs", "--all") == [], "one became a job")


@case
def several_are_brought_back(bed):
    """The way back from a drain."""
    jobs = [bed.counter(name=name, mib=16) for name in ("one", "two")]
    ids = [job for job, _ in jobs]
    bed.ok("checkpoint", "one", "two")
    refused = bed.cli("restore", "one", "nosuch")
    expect(refused.code == EXIT_NOT_FOUND and not refused.out, refused.why())
    bed.expect_state("one", "checkpointed")
    for line in (("restore", "one", "two", "--name", "x"), ("restore", "--all", "--name", "x"), ("restore", "--all", "--attach")):
        bed.refused(EXIT_USAGE, "restore: --(name|attach) takes one job", *line)
    bed.refused(EXIT_USAGE, "restore: missing operand, expected CHECKPOINT, JOB or --all", "restore")
    expect(bed.ok("restore", "two", "one").out.split() == ids[::-1], "not in the order in which they are named")
    for _, log in jobs:
        log.goes_on()
    bed.ok("checkpoint", "--all")
    expect(bed.ok("restore", "--all").out.split() == ids, "not all that were saved")
    for _, log in jobs:
        log.goes_on()
    done = bed.ok("restore", "--all")
    expect("nothing to do: no job is checkpointed" in done.err and not done.out, done.why())


main()
