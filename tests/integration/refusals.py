#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What fails or is refused leaves everything as it was: the state of a job whose restore fails, its log, the checkpoint
that it is restored from, and processes that are not taken in."""

import os
import re
import signal

from cases import AS_NOBODY, case, expect, main, process_start, read_text, run, wait_until
from checkpoints import files_of, flip, image, saved
from users_jobs import status


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
def nobody_removes_a_job_that_is_being_restored(bed):
    """Before it has a process again it looks like one that has ended; also where its shim has died meanwhile."""
    job, log = saved(bed, "one")
    bed.end(job)
    with bed.held_at("restore.criu.begin", "restore", job) as restore:
        bed.refused(6, "is restoring", "rm", "--job", job)
        bed.fault("restore.criu.end", "kill")
    code, _, err = restore.end()
    expect(code != 0, f"exit {code}: {err}")
    bed.wait_state(job, ("exited",))
    expect_back(bed, job, log, job)
    bed.end(job)
    bed.ok("rm", "--job", job)


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


# Taking in and giving back.

def expect_no_jobs(bed):
    expect(not bed.list("ps", "jobs"), f"jobs are left: {bed.list('ps', 'jobs')}")
    wait_until(lambda: not bed.named("brumate-shim"), "the end of the shims", 20)


@case
def a_refused_process_is_given_back(bed):
    sleeper = bed.start(["sleep", "600"])
    start = process_start(sleeper.pid)
    for verb in ("suspend", "checkpoint"):
        if verb == "checkpoint":  # it needs no GPU, but a store
            open_to_all = os.path.join(bed.dir, "open")
            os.makedirs(open_to_all)
            os.chmod(open_to_all, 0o777)
            bed.refused(5, "everyone may write", verb, "--pid", sleeper.pid, "--dir", open_to_all)
        else:
            bed.refused(4, "no GPU state", verb, "--pid", sleeper.pid)
        expect(process_start(sleeper.pid) == start, "the process has ended")
        expect_no_jobs(bed)
    program = bed.start([bed.program("counter"), "--mib", 16, "--chunk-mib", 16, "--interval-ms", 25]).ready()
    bed.fault("suspend.gpu-checkpoint.begin", "error:5")
    failed = bed.cli("suspend", "--pid", program.pid)
    expect(failed.code == 7 and bed.has_fired(), failed.why())
    program.log.goes_on()
    expect_no_jobs(bed)
    with bed.held_at("suspend.gpu-checkpoint.begin", "suspend", "--pid", program.pid) as suspending:
        suspending.signal(signal.SIGINT)
    expect(suspending.end()[0] != 0, "it was not cancelled")
    program.log.goes_on()
    expect_no_jobs(bed)


@case
def nobody_takes_in_the_caller(bed):
    for verb in ("manage", "suspend", "checkpoint"):
        script = f'"{bed.brumate}" {verb} --pid $$; echo code $?'
        result = run(["sh", "-c", script], env=bed.command_env())
        expect("code 2" in result.out and "this command (process" in result.err, f"{verb}: {result.why()}")
        expect_no_jobs(bed)
    job, log = bed.counter()
    bed.refused(2, "brumate-shim .* is brumate's own", "manage", "--pid", bed.shim(job))
    bed.expect_whole(job, log)


@case
def nobody_takes_in_the_caller_through_the_daemon(bed):
    bed.daemon()
    script = f'"{bed.brumate}" manage --pid $$; echo code $?'
    result = run(["sh", "-c", script], env=bed.command_env(), cwd="/", **AS_NOBODY)
    expect("code 2" in result.out and "this command (process" in result.err, result.why())
    expect_no_jobs(bed)


@case
def release_lets_a_process_run_on(bed):
    job, log = bed.counter(name="mine")
    pid = bed.pid(job)
    bed.ok("suspend", job)
    refused = bed.refused(6, f"job {job} is suspended", "release", job)
    expect(f"brumate resume {job}" in refused.err, refused.why())
    bed.ok("resume", "--keep-copy", job)
    expect(bed.named("brumate-shim"), "no keeper holds the copy")
    bed.refused(2, "only the beginning", "release", job[:7])
    waiting = bed.spawn("wait", job)
    expect(bed.ok("release", "mine").out == "mine\n", "release does not say what it released")
    code, _, err = waiting.end()
    expect(code == 3 and f"no job {job}" in err, f"wait: {code}: {err}")
    bed.jobs.remove(job)
    try:
        log.goes_on()
        expect_no_jobs(bed)
        log.goes_on()
        bed.refused(3, "no job", "release", job)
        again = bed.ok("manage", "--pid", pid).out.strip()
        expect(bed.pid(again) == pid, "it cannot be taken in again")
        log.goes_on()
        bed.ok("release", again)
        log.goes_on()
    finally:
        os.kill(pid, signal.SIGKILL)
    ended, _ = bed.kind("none")
    bed.end(ended)
    bed.refused(3, "is not running", "release", ended)


if __name__ == "__main__":
    IN_VFORK = """
import os, time
print("ready pid", os.getpid(), flush=True)
os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}, file_actions=[
    (os.POSIX_SPAWN_OPEN, 9, "%s", os.O_WRONLY, 0), (os.POSIX_SPAWN_CLOSE, 9)])
n = 0
while True:
    n += 1
    print("step", n, "OK", flush=True)
    time.sleep(0.02)
"""


@case
def a_member_whose_child_has_yet_to_exec(bed):
    """It does not stop as long as that has its memory; the child here waits for somebody who reads a FIFO."""
    fifo = os.path.join(bed.dir, "fifo")
    os.mkfifo(fifo)
    job, log = bed.python(IN_VFORK % fifo)
    pid = bed.pid(job)
    wait_until(lambda: status(pid, "State")[0] == "D", "the member to wait")
    told = [f for f in bed.doctor("--job", job)["findings"] if f["key"] == "vfork"]
    expect(told and told[0]["level"] == "fail", f"doctor says {told}")
    for options in ((), ("--force",)):
        result = bed.refused(4, rf"process {pid} .*vfork", "checkpoint", job, *options)
        expect(result.seconds < 10, f"it took {result.seconds:.1f} s")
    bed.expect_state(job, "running")
    os.close(os.open(fifo, os.O_RDONLY))
    log.goes_on()
    bed.ok("checkpoint", job)
    bed.ok("restore", job)
    log.goes_on()


main()
