#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs around operations: [Hooks] of the configuration, and run --hook."""

import json
import os
import signal
import time

from cases import EXIT_UNSUPPORTED, EXIT_USAGE, NOBODY, as_user, case, expect, main, read_text, wait_until
from harness import Skipped

NOTE = 'echo "$1 $BRUMATE_HOOK $2 $BRUMATE_JOB $BRUMATE_JOB_NAME $BRUMATE_OPERATION uid=$(id -u) home=$HOME $BRUMATE_REASON" >>'


def script(bed, name, text, mode=0o755):
    path = os.path.join(bed.dir, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, mode)
    return path


def configure(bed, text):
    path = bed.own.get("BRUMATE_CONFIG") or os.path.join(bed.dir, ".config", "brumate", "brumate.conf")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def hooks(bed, **programs):
    configure(bed, "[Hooks]\n" + "".join(f"{key}={value}\n" for key, value in programs.items()))


def told(bed, job):
    """Its events of hooks."""
    events = [json.loads(line) for line in bed.ok("events", job, "--format", "json").out.splitlines()]
    return [e for e in events if e["event"] == "hook"]


def is_untouched(bed, job, log):
    bed.expect_whole(job, log)
    expect(bed.gpu_state(bed.pid(job)) == "running", "the driver was asked for something")


@case
def around_a_suspend_and_a_restore(bed):
    notes = os.path.join(bed.dir, "notes")
    hook = script(bed, "hook", f"{NOTE} {notes}; echo fine")
    hooks(bed, BeforeSuspend=hook, AfterResume=hook, AfterRestore=hook, OnFailure=hook)
    job, log = bed.counter(name="train", mib=16)
    bed.ok("suspend", "train", "--dry-run")
    expect(not os.path.exists(notes), "a dry run ran a hook")
    bed.ok("suspend", "train")
    bed.ok("suspend", "train")  # is suspended already
    bed.ok("resume", "train")
    bed.ok("checkpoint", "train", "--name", "one")
    bed.ok("restore", "train")
    lines = [line.split() for line in read_text(notes).splitlines()]
    expect([line[0] for line in lines] == ["before-suspend", "after-resume", "after-restore"], f"{lines}")
    for line, operation in zip(lines, ("suspend", "resume", "restore")):
        expect(line[:6] == [line[0], line[0], job, job, "train", operation] and line[6] == f"uid={os.getuid()}", f"{line}")
    events = told(bed, job)
    expect([(e["hook"], e["exit_code"], e["output"]) for e in events]
           == [(line[0], 0, "fine\n") for line in lines], f"{events}")
    expect("before-suspend: exit status 0" in bed.ok("events", "train").out, "events tell nothing of it")
    log.goes_on()


@case
def one_that_forbids(bed):
    hook = script(bed, "hook", 'echo "not now: 3 requests"; echo more; exit 3')
    failed = os.path.join(bed.dir, "failed")
    hooks(bed, BeforeSuspend=hook, OnFailure=script(bed, "failure", f'echo "$BRUMATE_OPERATION: $BRUMATE_REASON" >{failed}.new; mv {failed}.new {failed}'))
    job, log = bed.counter(name="train", mib=16)
    refused = bed.refused(EXIT_UNSUPPORTED, r"the hook before-suspend \(.*/hook\): exit status 3: not now: 3 requests$", "suspend", "train")
    expect("nothing was done to the job" in refused.err, refused.why())
    is_untouched(bed, job, log)
    wait_until(lambda: os.path.exists(failed), "the hook of the failure")
    expect(read_text(failed).startswith("suspend: the hook before-suspend"), read_text(failed))
    bed.ok("checkpoint", "train", "--leave-running")


def refuses(bed, words, seconds=0, **keys):
    """A suspend that this hook fails: within the time, with nothing touched and nothing left."""
    configure(bed, "[Hooks]\n" + "".join(f"{key}={value}\n" for key, value in keys.items()))
    job, log = bed.counter(mib=16)
    began = time.monotonic()
    bed.refused(EXIT_UNSUPPORTED, f"the hook before-suspend .*{words}", "suspend", job)
    took = time.monotonic() - began
    expect(seconds <= took < seconds + 8, f"took {took} s")
    is_untouched(bed, job, log)
    return told(bed, job)[-1]


@case
def one_that_is_none(bed):
    refuses(bed, "No such file", BeforeSuspend="/nowhere/at/all")
    refuses(bed, "Permission denied", BeforeSuspend=script(bed, "plain", "true", 0o644))
    refuses(bed, "Permission denied", BeforeSuspend=bed.dir)
    event = refuses(bed, "exit status 137", BeforeSuspend=script(bed, "killed", "kill -9 $$"))
    expect(event["exit_code"] == 137, f"{event}")
    for value, words in (("relative/path", "an absolute path"), ("/bin/true", "a duration")):
        configure(bed, f"[Hooks]\n{'BeforeSuspend' if value[0] != '/' else 'Timeout'}={value}\n")
        expect(words in bed.cli("doctor").out, "doctor says nothing of the configuration")
    configure(bed, "")


@case
def one_that_hangs(bed):
    pid = os.path.join(bed.dir, "pid")
    hang = script(bed, "hang", f"trap '' TERM INT HUP; sleep 1000 & setsid sleep 1000 & echo waiting; echo $! >{pid}; wait; sleep 1000")
    event = refuses(bed, "has not ended within 1 s: waiting", 1, BeforeSuspend=hang, Timeout="1s")
    expect("exit_code" not in event and event["output"] == "waiting\n", f"{event}")
    wait_until(lambda: not os.path.exists(f"/proc/{read_text(pid).strip()}"), "the end of what it has started")


@case
def one_that_leaves_a_process(bed):
    """It would be nobody's, and no member of the job."""
    pid = os.path.join(bed.dir, "pid")
    leaves = script(bed, "leaves", f"setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >{pid}; exit 0")
    refuses(bed, "has not ended within 1 s", 1, BeforeSuspend=leaves, Timeout="1s")
    wait_until(lambda: not os.path.exists(f"/proc/{read_text(pid).strip()}"), "the end of what it has left")


@case
def one_that_prints_megabytes(bed):
    loud = script(bed, "loud", "head -c 20000000 /dev/zero | tr '\\0' x; printf '\\033[31m\\377'; exit 0")
    hooks(bed, BeforeSuspend=loud)
    job, _ = bed.counter(mib=16)
    bed.ok("suspend", job)
    event = told(bed, job)[-1]
    expect(event["output_bytes"] == 20000006 and len(event["output"]) == 2047, f"{len(event['output'])} {event['output_bytes']}")
    hooks(bed, AfterResume=script(bed, "for-ever", "exec yes"), Timeout="1s")
    resumed = bed.ok("resume", job)
    expect("the hook after-resume" in resumed.err and "has not ended within 1 s" in resumed.err, resumed.why())
    bed.expect_state(job, "running")


@case
def of_one_job(bed):
    notes = os.path.join(bed.dir, "notes")
    own = script(bed, "own", f"{NOTE} {notes}; test $1 != before-suspend || test ! -e {bed.dir}/forbid")
    job, log = bed.counter(name="train", mib=16, options=("--hook", own))
    other, _ = bed.counter(name="other", mib=16)
    expect(bed.job(job)["hook"] == own and "hook" not in bed.job(other), "hook in ps")
    bed.ok("suspend", "other")
    expect(not os.path.exists(notes), "it is run for another job")
    open(f"{bed.dir}/forbid", "w").close()
    bed.refused(EXIT_UNSUPPORTED, "exit status 1", "suspend", "train")
    os.unlink(f"{bed.dir}/forbid")
    bed.ok("suspend", "train")
    bed.kill_shim(job)
    bed.ok("resume", "train")  # the record has it
    expect([line.split()[0] for line in read_text(notes).splitlines() if not line.startswith("failure")]
           == ["before-suspend", "before-suspend", "after-resume"], read_text(notes))
    log.goes_on()


@case
def of_one_job_that_is_none(bed):
    plain = script(bed, "plain", "true", 0o600)
    for path, words in (("/nowhere", "No such file"), (bed.dir, "not a program"), (plain, "Permission denied")):
        bed.refused(EXIT_USAGE, f"--hook: {path}: {words}", "run", "--hook", path, "--name", "train", "--", "sleep", "100")
    expect(bed.list("ps", "jobs", "-a") == [], "a job was started")


@case
def a_schedule_that_fails(bed):
    """Its hook has run within two seconds."""
    told_at = os.path.join(bed.dir, "told")
    hooks(bed, OnFailure=script(bed, "hook", f'echo "$BRUMATE_OPERATION: $BRUMATE_REASON" >{told_at}.new; mv {told_at}.new {told_at}'))
    job, log = bed.counter(name="train", mib=16)
    store = os.path.join(bed.dir, "store")
    os.mkdir(store, 0o700)
    bed.ok("checkpoint", "train", "--every", "1s", "--dir", store)
    wait_until(lambda: any(not name.startswith(".") for name in os.listdir(store)), "the first checkpoint by schedule")
    os.chmod(store, 0o707)  # everyone may write to it: refused
    wait_until(lambda: os.path.exists(told_at), "the hook of the failure")
    failed = [json.loads(line) for line in bed.ok("events", "train", "--format", "json").out.splitlines()]
    first = next(e for e in failed if e["event"] == "failed")
    at = time.mktime(time.strptime(first["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone + float(f"0{first['time'][19:23]}")
    expect(-0.1 <= os.stat(told_at).st_mtime - at < 2, f"{os.stat(told_at).st_mtime} {first}")
    expect(read_text(told_at).startswith("checkpoint by schedule: ") and "everyone may write" in read_text(told_at), read_text(told_at))
    os.chmod(store, 0o700)
    bed.end_schedule(job)
    bed.expect_whole(job, log)


@case
def a_failure_that_hangs_holds_up_nobody(bed):
    pid = os.path.join(bed.dir, "pid")
    hang = script(bed, "hang", f"echo $$ >{pid}; exec sleep 1000")
    job = bed.run(["sleep", "1000"])
    for timeout in ("300s", "3s"):
        hooks(bed, OnFailure=hang, Timeout=timeout)
        bed.refused(EXIT_UNSUPPORTED, "no GPU state", "suspend", job)
        hook = int(wait_until(lambda: read_text(pid).strip(), "the hook"))
        if timeout == "300s":  # the command has not waited for it
            os.kill(hook, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{hook}"), "the end of the hook")  # pylint: disable=W0640
        os.unlink(pid)


@case
def of_a_users_job_by_root(bed):
    """Root takes in a process of a user: a hook never has more than that user's rights."""
    if os.getuid():
        raise Skipped("not root")
    notes = os.path.join(bed.dir, "notes")
    os.chmod(bed.dir, 0o755)
    os.makedirs(os.path.join(bed.dir, "open"), mode=0o777)
    os.chmod(os.path.join(bed.dir, "open"), 0o777)
    notes = os.path.join(bed.dir, "open", "notes")
    hooks(bed, BeforeSuspend=script(bed, "hook", f'{{ cat /proc/self/status; env; id; ls -l /proc/self/fd; }} >{notes} 2>&1'))
    os.chmod(bed.own["BRUMATE_RUNTIME_DIR"], 0o755)
    os.makedirs(bed.own["BRUMATE_SIM_DIR"], exist_ok=True)
    os.chown(bed.own["BRUMATE_SIM_DIR"], NOBODY, NOBODY)
    program = bed.start(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"LD_LIBRARY_PATH={bed.build.sim}",
                         bed.program("counter"), "--mib", "16", "--chunk-mib", "16"])
    program.ready()
    bed.ok("suspend", "--pid", str(program.pid), env={"SECRET": "of root"})
    text = read_text(notes)
    status = {line.split(":")[0]: line.split()[1:] for line in text.splitlines() if ":" in line}
    expect(status["Uid"] == [str(NOBODY)] * 4 and status["Gid"] == [str(NOBODY)] * 4, f"{status['Uid']} {status['Gid']}")
    expect(status.get("Groups", []) in ([], [str(NOBODY)]), f"{status['Groups']}")
    for which in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        expect(int(status[which][0], 16) == 0, f"{which} {status[which]}")
    expect("SECRET" not in text and bed.own["BRUMATE_STATE_DIR"] not in text, text)
    hidden = script(bed, "hidden", "id", 0o700)
    configure(bed, f"[Hooks]\nAfterResume={hidden}\n")
    resumed = bed.ok("resume", "--pid", str(program.pid))
    expect("Permission denied" in resumed.err, resumed.why())


@case
@as_user
def of_a_user(bed):
    notes = os.path.join(bed.dir, "notes")
    configure(bed, f"[Hooks]\nBeforeSuspend={script(bed, 'hook', f'{NOTE} {notes}')}\n")
    job, log = bed.counter(name="train", mib=16)
    bed.ok("suspend", "train")
    expect(f"uid={bed.uid}" in read_text(notes), read_text(notes))
    bed.ok("resume", "train")
    log.goes_on()


@case
def one_that_ends_its_reaper(bed):
    """What it leaves would come to the shim, which takes orphans for members of the job."""
    pid = os.path.join(bed.dir, "pid")
    kills = script(bed, "kills", f"sleep 1000 & echo $! >{pid}; kill -9 $PPID; wait")
    refuses(bed, "has not ended within 1 s|exit status 137", BeforeSuspend=kills, Timeout="1s")
    left = int(read_text(pid))
    wait_until(lambda: not os.path.exists(f"/proc/{left}"), "the end of what it has left")


@case
def many_failures_that_hang(bed):
    """No more of their hooks run at once than the shim has room for: with 64 children it would die."""
    pids = os.path.join(bed.dir, "pids")
    hooks(bed, OnFailure=script(bed, "hang", f"echo $$ >>{pids}; exec sleep 1000"), Timeout="300s")
    job = bed.run(["sleep", "1000"])
    shim = bed.shim(job)
    for _ in range(12):
        bed.refused(EXIT_UNSUPPORTED, "no GPU state", "suspend", job)
    expect(bed.shim(job) == shim, "its shim has died")
    wait_until(lambda: len(read_text(pids).split()) == 8, "the hooks that run at once")
    for pid in read_text(pids).split():
        os.kill(int(pid), 9)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in read_text(pids).split()), "the end of the hooks")
    bed.expect_state(job, "running")


if __name__ == "__main__":
    main()
