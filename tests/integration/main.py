#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The main job from outside: every command as users give it, on the simulated driver with the real
CRIU. Each case looks at the job's own check of its data, not at what brumate says of it."""

import json
import os
import re
import shutil
import signal
import socket

from cases import MIB, NOBODY, case, expect, main, process_start, run, wait_until, with_env
from harness import Log


def sh(bed, script, *options, **named):
    return bed.cli("run", *options, "--", "sh", "-c", script, **named)


# Running.

@case
def run_prints_the_id_alone(bed):
    result = sh(bed, "echo hello; exit 4", "--name", "greeter")
    expect(result.code == 0, result.why())
    job = result.out.strip()
    expect(re.fullmatch(r"[0-9a-f]{8}\n", result.out) and not result.err, f"printed {result.out!r} {result.err!r}")
    waited = bed.cli("wait", job)
    expect(waited.code == 4, waited.why())
    entry = bed.job("greeter")
    expect(entry["id"] == job and entry["state"] == "exited" and entry["exit_code"] == 4, f"ps says {entry}")
    expect(bed.ok("logs", "greeter").out == "hello\n", "logs does not show the output")
    table = bed.ok("ps").out
    expect(re.search(rf"^{job} +greeter +exited \(4\)", table, re.MULTILINE), f"ps prints {table!r}")
    expect(bed.ok("ps", "--quiet").out == job + "\n", "ps --quiet is not the id alone")
    expect(bed.ok("rm", job).out == job + "\n", "rm does not name what it removed")
    expect(not bed.list("ps", "jobs"), "the job is still listed after rm")
    expect(not os.listdir(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")), "rm left the job's directory")
    expect(not os.path.exists(entry["log"]), "rm left the job's log")


@case
def attach_shows_the_output_and_exits_alike(bed):
    for script, code in (("echo out; echo err >&2", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)):
        result = sh(bed, script, "--attach")
        expect(result.code == code, f"expected {code}: {result.why()}")
    result = sh(bed, "echo out; echo err >&2", "--attach")
    expect(sorted(result.out.split()) == ["err", "out"], f"attach printed {result.out!r}")
    missing = bed.cli("run", "--attach", "--", "/no/such/command")
    expect(missing.code == 127 and "/no/such/command" in missing.err, missing.why())
    forbidden = bed.cli("run", "--attach", "--", "/etc/passwd")
    expect(forbidden.code == 126 and "/etc/passwd" in forbidden.err, forbidden.why())
    without = bed.cli("run", "--", "/no/such/command")
    expect(without.code == 127, without.why())
    expect([j["exit_code"] for j in bed.list("ps", "jobs")] == [0, 3, 137, 143, 0],
           "a command that could not be started left a job")


@case
def attach_passes_signals_on(bed):
    command = bed.spawn("run", "--attach", "--name", "trap", "--", "sh", "-c",
                        "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: any(j["name"] == "trap" and os.path.exists(j["log"]) for j in bed.list("ps", "jobs")), "the job")
    bed.log("trap").wait_for("^ready")
    command.signal(signal.SIGTERM)
    code, out, err = command.end()
    expect(code == 9 and "caught" in out, f"exit {code}, printed {out!r} {err!r}")


@case
def attach_passes_on_what_came_before(bed):
    """While the job was being started: it is not left behind by a command that ended without it."""
    bed.fault("start.started", "hold")
    command = bed.spawn("run", "--attach", "--name", "early", "--", "sleep", "600")
    with bed.holding("start.started", command):
        command.signal(signal.SIGTERM)
    code, _, err = command.end()
    expect(code == 128 + signal.SIGTERM, f"exit {code}: {err!r}")
    bed.expect_state("early", "exited")


@case
def attach_later_and_wait(bed):
    job, log = bed.counter("late")
    follower = bed.spawn("logs", "--follow", job)
    attached = bed.spawn("logs", "--follow", "--tail", "0", job)
    waiting = bed.spawn("wait", job)
    late = bed.cli("wait", "--timeout", "200ms", job)
    expect(late.code == 124, late.why())
    log.goes_on()
    bed.ok("kill", "--signal", "USR1", job)
    for command, want in ((follower, 138), (attached, 138), (waiting, 138)):
        code, _, err = command.end()
        expect(code == want, f"{command.argv[1:]}: exit {code}, expected {want}: {err}")
    expect(bed.job(job)["exit_code"] == 138, "the job's exit code is not that of SIGUSR1")


@case
def names_and_prefixes(bed):
    job = sh(bed, "exec sleep 60", "--name", "one").out.strip()
    bed.jobs.append(job)
    bed.refused(6, "name one is taken by job " + job, "run", "--name", "one", "--", "true")
    for bad in ("-x", "a/b", "", ".x", "a b", "x" * 64):
        result = bed.cli("run", "--name", bad, "--", "true")
        expect(result.code == 2, f"name {bad!r}: {result.why()}")
    expect(len(bed.list("ps", "jobs")) == 1, "a refused name left a job")
    made = sh(bed, "exec sleep 60").out.strip()
    bed.jobs.append(made)
    expect(re.fullmatch(r"sh-[0-9a-f]{4}", bed.job(made)["name"]), f"made up name {bed.job(made)['name']}")
    length = next(n for n in range(2, 9) if made[:n] != job[:n])
    expect(bed.ok("inspect", made[:length], "--format", "json").json()["job"]["id"] == made, "prefix of an id")
    # Ids all begin with one of 16 digits: 17 jobs share one somewhere.
    ids = [made, job] + [sh(bed, "true").out.strip() for _ in range(15)]
    shared = next(digit for digit in "0123456789abcdef" if sum(i.startswith(digit) for i in ids) > 1)
    ambiguous = bed.cli("wait", shared)
    expect(ambiguous.code != 0 and shared in ambiguous.err, ambiguous.why())


@case
def a_word_for_a_job_and_a_checkpoint(bed):
    job, _ = bed.counter(name="both")
    bed.ok("checkpoint", "-R", "--name", job[:3], job)  # begins the job's id
    bed.ok("checkpoint", "-R", "--name", "both", job)
    inspect = ("inspect", "--format", "json")
    expect("manifest" in bed.ok(*inspect, job[:3]).json(), "the beginning of a job's id comes before a checkpoint's id")
    expect(bed.ok(*inspect, job[:4]).json()["job"]["id"] == job, "the beginning of a job's id alone")
    for args in (("inspect",), ("rm",)):
        refused = bed.refused(2, '"both" may mean a job or a checkpoint', *args, "both")
        expect("hint: say which: --job or --checkpoint" in refused.err, refused.why())
    bed.refused(2, "job or a checkpoint", "inspect", job[:2])  # the beginning of both
    bed.refused(2, "only the beginning of job", "rm", job[:2])
    expect("manifest" in bed.ok(*inspect, "--checkpoint", "both").json(), "--checkpoint")
    expect(bed.ok(*inspect, "--job", "both").json()["job"]["id"] == job, "--job")
    bed.refused(2, "either --job or --checkpoint", "rm", "--job", "--checkpoint", "both")
    bed.refused(6, "still there", "restore", "both")  # it is the job's latest: no matter which
    bed.ok("rm", job[:3])
    expect(bed.checkpoints() == ["both"], f"the exact name of a checkpoint removed another: {bed.checkpoints()}")
    bed.refused(6, "is running", "rm", "--job", "both")
    bed.ok("checkpoint", "-R", "--name", "later", job)
    bed.refused(2, "job or a checkpoint", "restore", "both")
    bed.refused(6, "still there", "restore", "--checkpoint", "both")
    bed.ok("kill", job)
    bed.ok("rm", "--job", "both")
    expect(bed.checkpoints() == ["both", "later"] and not bed.list("ps", "jobs"), "--job removed something else")
    bed.refused(3, 'no job or checkpoint "nothing"', "rm", "nothing")


@case
def a_job_has_its_own_session_directory_and_no_stdin(bed):
    script = "readlink /proc/self/fd/0; pwd; echo $MARK; ps -o sid= -p $$ | tr -d ' '; echo $PPID; exec ls /proc/self/fd"
    result = bed.cli("run", "--attach", "--", "sh", "-c", script, env={"MARK": "a mark"})
    lines = result.out.split("\n")
    expect(result.code == 0, result.why())
    expect(lines[0] == "/dev/null", f"stdin is {lines[0]}")
    expect(lines[1] == os.getcwd() and lines[2] == "a mark", f"directory and environment are {lines[1:3]}")
    expect(lines[3] == lines[4], "the job is not in a session of its own, which its reaper leads")
    expect(lines[5:] == ["0", "1", "2", "3", ""], f"the job inherits fds: {lines[5:]}")  # 3: what ls reads


def ignore_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@case
def a_caller_that_ignores_its_children(bed):
    """What it starts inherits that, and waits for children of its own."""
    def command(*words):
        code, out, err = bed.spawn(*words, preexec_fn=ignore_children).end(120)
        expect(code == 0, f"{words}: {code}: {err}")
        return out.strip()

    job = command("run", "--", bed.program("counter"), "--mib", "16", "--chunk-mib", "16", "--interval-ms", "40")
    bed.jobs.append(job)
    log = bed.log(job)
    log.goes_on()
    for verb in ("suspend", "resume", "checkpoint", "restore"):
        command(verb, job)
    log.goes_on()


@case
def log_elsewhere(bed):
    path = os.path.join(bed.dir, "own.log")
    with open(path, "w", encoding="utf-8") as file:
        file.write("before\n")
    job = sh(bed, "echo during", "--log", path).out.strip()
    bed.ok("wait", job)
    expect(Log(path).text() == "before\nduring\n", f"the log holds {Log(path).text()!r}")
    bed.ok("rm", job)
    expect(os.path.exists(path), "rm removed a log that is the user's")
    bed.refused(3, "/no/such/directory", "run", "--log", "/no/such/directory/log", "--", "true")


@case
def kill_ends_all_of_a_job(bed):
    job, log = bed.kind("fork-before")
    children = [bed.pid(job), int(re.search(r"^child (\d+)", log.text(), re.MULTILINE).group(1))]
    starts = [process_start(pid) for pid in children]
    bed.ok("kill", job)
    expect(bed.wait_state(job, ("exited",)) == "exited", "not exited")
    wait_until(lambda: all(process_start(p) != s for p, s in zip(children, starts)), "the end of both processes")
    bed.refused(3, "not running", "kill", job)
    stubborn, log = bed.started(["sh", "-c", "trap '' TERM; echo ready now; while :; do sleep 0.05; done"])
    bed.ok("kill", "--grace", "200ms", stubborn)
    expect(bed.wait_state(stubborn, ("exited",)) == "exited" and bed.job(stubborn)["exit_code"] == 137,
           f"{bed.job(stubborn)}")
    parent = sh(bed, "sleep 600 & echo ready $!; wait").out.strip()
    child = int(bed.log(parent).wait_for(r"^ready (\d+)").group(1))
    start = process_start(child)
    bed.ok("kill", parent)
    wait_until(lambda: process_start(child) != start, "the end of the job's child", 5)
    busy = sh(bed, "exec sleep 60").out.strip()
    bed.jobs.append(busy)
    bed.refused(6, "is running", "rm", busy)


# Suspend and resume.

@case
def suspend_empties_the_gpu_and_resume_fills_it(bed):
    job, log = bed.counter(mib=64)
    log.goes_on()
    used = bed.vram()
    expect(used[0] >= 64 * MIB and used[1] == 0, f"in use while it runs: {used}")
    summary = bed.operation("suspend", job)
    expect(summary["operation"] == "suspend" and summary["job"] == job, f"summary {summary}")
    expect(summary["gpu_bytes"] >= 64 * MIB and summary["seconds"] > 0, f"summary {summary}")
    expect([p["name"] for p in summary["phases"]] == ["identify", "preflight", "gate", "export", "hold", "park", "unmap",
                                                     "gpu-lock", "gpu-checkpoint", "data-out", "settle", "stop"],
           f"phases {summary['phases']}")
    bed.expect_state(job, "suspended")
    # The broker's own context goes when it has been idle for a while.
    wait_until(lambda: [gpu["used_bytes"] for gpu in bed.doctor()["facts"]["gpus"]] == [0, 0], "doctor to see empty GPUs")
    expect(bed.gpu_state(bed.pid(job)) == "checkpointed", "the driver says otherwise")
    step = log.last_step()
    again = bed.ok("suspend", job)
    expect(again.err.startswith("note: job ") and again.err.endswith(" is suspended already\n") and again.out == f"{job}\n", again.why())
    expect(log.last_step() == step, "the job went on while it was suspended")
    summary = bed.operation("resume", job)
    expect(summary["operation"] == "resume" and summary["downtime_s"] > 0, f"summary {summary}")
    log.goes_on()
    wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)
    again = bed.ok("resume", job)
    expect(again.err.startswith("note: job ") and again.err.endswith(" is running already\n") and again.out == f"{job}\n", again.why())
    expect(bed.operation("resume", job)["already"], "the summary does not say so")
    bed.refused(6, "is running", "resume", job, "--gpu-map", "0=1,1=0")
    inspected = bed.ok("inspect", job, "--format", "json").json()
    expect(inspected["last"]["operation"] == "resume", f"inspect says {inspected['last']}")


@case
def other_names_of_commands(bed):
    refused = bed.refused(2, 'unknown command "exec"', "exec", "--", "true")
    expect("brumate run" not in refused.err, "podman's exec is taken for run")
    job, log = bed.counter(name="alias", mib=16)
    log.goes_on()
    lists = bed.ok("help").out + bed.ok("__complete", "").out
    expect("  manage" not in lists and "manage\t" not in lists and "suspend\t" in lists and "usage: brumate manage" in bed.ok("manage", "--help").out, "manage is not hidden")
    for verb, ours in (("freeze", "suspend"), ("thaw", "resume"), ("unfreeze", "resume")):
        expect(f"did you mean `brumate {ours}`?" in bed.refused(2, "unknown command", verb, "alias").err, verb)
    bed.expect_state(job, "running")
    checkpoint = bed.ok("dump", "alias").out.strip()
    expect(checkpoint in bed.checkpoints(), f"dump printed {checkpoint!r}")
    expect(bed.ok("restore", "alias").out == job + "\n", "restore by the job's name does not print its id")
    log.goes_on()


@case
def suspended_job_on_another_gpu(bed):
    job, log = bed.counter(mib=64)
    old, new = bed.uuids()
    bed.ok("suspend", job)
    bed.ok("resume", job, "--gpu-map", f"{old}={new}")
    log.goes_on()
    expect(log.lines()[-1].split(" gpu ")[1].startswith(new), f"the log ends {log.lines()[-1]}")
    used = bed.vram()
    expect(used[0] == 0 and used[1] >= 64 * MIB, f"in use {used}")
    bed.ok("suspend", job)
    bed.refused(2, "no GPU", "resume", job, "--gpu-map", f"{new}=GPU-00000000-0000-0000-0000-000000000000")
    bed.refused(2, "no GPU 7", "resume", job, "--gpu-map", "1=7")
    bed.expect_state(job, "suspended")
    bed.ok("resume", job, "--gpu-map", "1=0")
    log.goes_on()
    expect(bed.vram()[1] == 0, "numbers in --gpu-map did not move it back")


# Checkpoint and restore.

@case
def checkpoint_ends_the_job_and_restore_brings_it_back(bed):
    job, log = bed.counter("saved", mib=32)
    log.goes_on()
    pid, start = bed.pid(job), process_start(bed.pid(job))
    summary = bed.operation("checkpoint", job)
    expect(summary["image_bytes"] >= 32 * MIB and summary["gpu_bytes"] >= 32 * MIB, f"summary {summary}")
    expect({"gpu-lock", "gpu-checkpoint", "criu", "commit"} <= {p["name"] for p in summary["phases"]}, f"{summary}")
    expect(process_start(pid) != start, "the process is still there")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.expect_state(job, "checkpointed")
    waited = bed.cli("wait", job)
    expect(waited.code == 0 and "was checkpointed" in waited.err, waited.why())
    step, size = log.last_step(), len(log.text())
    restored = bed.operation("restore", summary["checkpoint"])
    expect(restored["job"] == job, f"restored as {restored['job']}")
    log.goes_on()
    expect(log.last_step() > step and len(log.text()) > size, "the log did not grow")
    expect(bed.pid(job) == pid, f"it was {pid} and is {bed.pid(job)}")
    expect(not bed.job(job)["pid_namespace"], "it is in another pid namespace")
    again = bed.operation("checkpoint", job)
    expect(again["checkpoint"] != summary["checkpoint"], "two checkpoints of one name")
    bed.expect_restorable(again["checkpoint"], log)
    bed.ok("kill", job)
    bed.wait_state(job, ("exited",))
    text = log.text()
    bed.operation("restore", summary["checkpoint"])  # the older one: its steps come again
    wait_until(lambda: log.text().count("\n") > text.count("\n") + 3, "more lines")
    added = log.text()[len(text):].splitlines()
    expect(log.text().startswith(text), "the log was changed")
    expect(f"step {step + 1} OK" in added[0] or f"step {step + 2} OK" in added[0], f"it went on with {added[0]!r}")


@case
def attached_restore_exits_as_the_job(bed):
    job, log = bed.started([bed.program("counter"), "--mib", 16, "--chunk-mib", 16, "--interval-ms", 20, "--steps", 60])
    log.goes_on()
    bed.ok("checkpoint", job)
    step = log.last_step()
    result = bed.cli("restore", "--attach", job)
    expect(result.code == 0, result.why())
    shown = re.findall(r"step (\d+) OK", result.out)
    expect(shown == [str(n) for n in range(step + 1, 61)], f"after step {step} it showed {shown}")
    expect(log.is_right() == 60, "steps are missing")


@case
def leave_running(bed):
    job, log = bed.counter(mib=32)
    pid, start = bed.pid(job), process_start(bed.pid(job))
    summary = bed.operation("checkpoint", job, "--leave-running", "--name", "copy")
    expect(summary["checkpoint"] == "copy" and 0 < summary["downtime_s"] <= summary["seconds"], f"{summary}")
    bed.expect_whole(job, log)
    expect(process_start(pid) == start, "it is another process now")
    bed.refused(6, "exists", "checkpoint", job, "--leave-running", "--name", "copy")
    bed.expect_whole(job, log)
    bed.refused(6, "still there", "restore", "copy")
    bed.expect_whole(job, log)
    bed.refused(2, "cannot be the name", "checkpoint", job, "--name", "../up")


@case
def checkpoint_of_a_suspended_job(bed):
    job, log = bed.counter(mib=32)
    bed.ok("suspend", job)
    step = log.last_step()
    bed.ok("checkpoint", job, "--leave-running", "--name", "kept")
    bed.expect_state(job, "suspended")
    expect(log.last_step() == step and bed.vram() == [0, 0], "it did not stay suspended")
    bed.ok("resume", job)
    log.goes_on()
    bed.ok("suspend", job)
    bed.ok("checkpoint", job, "--name", "ended")
    bed.expect_state(job, "checkpointed")
    bed.expect_restorable("ended", log)
    bed.expect_state(job, "running")


@case
def restore_on_the_other_gpu(bed):
    job, log = bed.counter(mib=64)
    old, new = bed.uuids()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.expect_restorable(checkpoint, log, "--gpu-map", f"{old}={new}")
    used = bed.vram()
    expect(used[0] == 0 and used[1] >= 64 * MIB, f"in use {used}")
    expect(log.lines()[-1].split(" gpu ")[1].startswith(new), f"the log ends {log.lines()[-1]}")
    bed.ok("suspend", job)
    bed.ok("resume", job)
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.expect_restorable(checkpoint, log, "--gpu-map", "1=0,0=1")
    expect(bed.vram()[1] == 0, "not back on the first GPU")


@case
def taken_pid_means_a_new_pid_namespace(bed):
    job, log = bed.counter(mib=32)
    pid = bed.pid(job)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    squatter = bed.take_pid(pid)
    summary = bed.operation("restore", checkpoint)
    expect(any("namespace" in note and str(pid) in note for note in summary["notes"]), f"notes {summary['notes']}")
    log.goes_on()
    entry = bed.job(job)
    expect(entry["pid_namespace"] and entry["pid"] != pid, f"{entry}")
    bed.ok("suspend", job)
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.ok("resume", job)
    log.goes_on()
    bed.ok("checkpoint", job, "--leave-running", "--name", "again")
    log.goes_on()
    ended = bed.operation("checkpoint", job)["checkpoint"]
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.expect_restorable(ended, log)
    expect(bed.job(job)["pid_namespace"], "its pid is taken, yet it is in no namespace")
    squatter.end()
    bed.ok("kill", "--signal", "INT", job)
    bed.wait_state(job, ("exited", "lost"))
    expect(bed.job(job)["exit_code"] == 130, f"{bed.job(job)}")


@case
def taken_thread_id_means_a_new_pid_namespace(bed):
    job, log = bed.counter(mib=16)
    pid = bed.pid(job)
    thread = max(int(t) for t in os.listdir(f"/proc/{pid}/task"))
    expect(thread != pid, "the job has no thread")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.take_pid(thread)
    summary = bed.operation("restore", checkpoint)
    expect(any("namespace" in note and str(thread) in note for note in summary["notes"]), f"notes {summary['notes']}")
    log.goes_on()


@case
def an_id_that_is_taken_after_the_look_at_it(bed):
    """CRIU is about to make a process and a thread of these numbers. Whoever keeps one makes the job go into a
    namespace, and nobody who is gone when that is tried again."""
    job, log = bed.counter(mib=16)
    pid = bed.pid(job)
    for number in (pid, max(int(t) for t in os.listdir(f"/proc/{pid}/task"))):
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        bed.restore_while_taken(number, checkpoint)
        log.goes_on()
        expect(not bed.job(job)["pid_namespace"], f"{number} was given back")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    with bed.held_at("restore.spawned", "restore", checkpoint) as restore:
        bed.take_pid(number)
    code, _, err = restore.end()
    expect(code == 0 and f"{number} of the checkpoint is in use" in err, f"exit {code}: {err}")
    expect(bed.job(job)["pid_namespace"], f"{number} is taken")
    log.goes_on()


@case
def a_new_pid_namespace_keeps_no_host_memory(bed):
    """Its init, which lives as long as the job, is made while the memory of the checkpoint is read."""
    job, log = bed.counter(mib=16)
    pid = bed.pid(job)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.take_pid(pid)
    with bed.held_at("store.io-read", "restore", checkpoint) as restore:
        wait_until(lambda: any(command.startswith("brumate-init") for _, command in bed.processes()), "the init")
    code, _, err = restore.end()
    expect(code == 0, f"restore: exit {code}: {err}")
    log.goes_on()
    bed.keeps_promises()


@case
def store_elsewhere(bed):
    store = os.path.join(bed.dir, "elsewhere")
    job, log = bed.counter(mib=16)
    summary = bed.operation("checkpoint", job, "--dir", store, "--name", "far")
    expect(summary["path"] == os.path.join(store, "far"), f"path {summary['path']}")
    expect(os.stat(store).st_mode & 0o777 == 0o700, "the store is open to others")
    for base, dirs, files in os.walk(os.path.join(store, "far")):
        for name in dirs + files:
            mode = os.lstat(os.path.join(base, name)).st_mode & 0o777
            expect(mode == (0o700 if name in dirs else 0o600), f"{name} has mode {mode:o}")
    expect(not bed.checkpoints(), "it is in the default store")
    listed = bed.list("ls", "checkpoints", "--dir", store)
    expect([c["id"] for c in listed] == ["far"] and listed[0]["job"] == job and not listed[0].get("error"), f"{listed}")
    table = bed.ok("ls", "--dir", store).out
    expect("far" in table and "ok (simulated)" in table, f"ls prints {table!r}")
    manifest = bed.ok("inspect", "far", "--dir", store, "--format", "json").json()["manifest"]
    expect(manifest["id"] == "far" and manifest["job"]["id"] == job and manifest["processes"], f"{manifest}")
    expect(manifest["job"]["argv"][0] == bed.program("counter"), f"{manifest['job']}")
    expect("far" in bed.ok("inspect", summary["path"]).out, "inspect by path")
    bed.refused(3, "far", "restore", "far")
    bed.expect_restorable("far", log, "--dir", store)
    bed.ok("checkpoint", job, "--dir", store, "--name", "farther")
    bed.expect_restorable(os.path.join(store, "farther"), log)
    bed.ok("rm", "--checkpoint", "--dir", store, "far")
    expect([c["id"] for c in bed.list("ls", "checkpoints", "--dir", store)] == ["farther"], "rm --checkpoint")
    bed.refused(3, "nothing", "rm", "--checkpoint", "--dir", store, "nothing")


@case
def restore_without_the_record(bed):
    """The record of the job is gone, as on another machine: the image says all that is needed."""
    job, log = bed.counter("movable", mib=16)
    path = log.path
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    copy = os.path.join(bed.dir, "log-copy")
    shutil.copy(path, copy)
    bed.ok("rm", job)
    bed.operation("restore", checkpoint)
    entry = bed.job(job)
    expect(entry["name"] == "movable" and entry["log"] == path and entry["argv"][0] == bed.program("counter"), f"{entry}")
    log.wait_for("^.*step ")  # the log went with the record: it begins anew
    expect(int(re.search(r"step (\d+)", log.text()).group(1)) > Log(copy).last_step(), "it began anew")
    log.goes_on()


# Programs that brumate did not start.

@case
def by_pid(bed):
    program = bed.start([bed.program("counter"), "--mib", 32, "--chunk-mib", 16, "--interval-ms", 40]).ready()
    start = process_start(program.pid)
    job = bed.operation("suspend", "--pid", program.pid)["job"]
    bed.jobs.append(job)
    entry = bed.job(job)
    expect(entry["by_pid"] and entry["pid"] == program.pid and entry["log"] is None, f"{entry}")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    expect(bed.operation("resume", "--pid", program.pid)["job"] == job, "another job")
    program.log.goes_on()
    bed.ok("checkpoint", "--pid", program.pid, "--leave-running")
    program.log.goes_on()
    expect(process_start(program.pid) == start, "it is another process")
    checkpoint = bed.operation("checkpoint", "--pid", program.pid)["checkpoint"]
    program.wait()
    bed.expect_restorable(checkpoint, program.log)
    expect(len(bed.list("ps", "jobs")) == 1, "one program, several jobs")
    bed.end(job)
    expect(bed.job(job)["exit_code"] == 143, f"{bed.job(job)}")


@case
def by_pid_from_a_shell(bed):
    """Whoever types a command leads the session that it is in."""
    counter = f"{bed.program('counter')} --mib 16 --chunk-mib 16 --interval-ms 40"
    program = bed.start(["sh", "-c", f"{counter} & echo pid $!; wait"]).ready()
    pid = int(program.log.wait_for(r"^pid (\d+)$").group(1))
    bed.ok("checkpoint", "--pid", pid, "--leave-running")
    bed.jobs += [entry["id"] for entry in bed.list("ps", "jobs")]
    program.log.goes_on()
    checkpoint = bed.operation("checkpoint", "--pid", pid)["checkpoint"]
    program.wait()
    bed.expect_restorable(checkpoint, program.log)


@case
def manage(bed):
    program = bed.start([bed.program("counter"), "--mib", 16, "--chunk-mib", 16, "--interval-ms", 40]).ready()
    job = bed.ok("manage", "--pid", program.pid, "--name", "mine").out.strip()
    bed.jobs.append(job)
    entry = bed.job("mine")
    expect(entry["id"] == job and entry["pid"] == program.pid and entry["state"] == "running", f"{entry}")
    expect(entry["argv"][1:3] == ["--mib", "16"] and entry["cwd"] == bed.dir, f"{entry}")
    bed.refused(6, "belongs to job " + job, "manage", "--pid", program.pid)
    bed.refused(2, "--pid", "manage")
    bed.refused(3, "has no log", "logs", job)
    bed.ok("suspend", "mine")
    bed.ok("resume", "mine")
    program.log.goes_on()
    program.end()
    expect(bed.wait_state(job, ("exited", "lost")) in ("exited", "lost"), "its end was not seen")


# Kinds of programs.

def whole_round(bed, job, log, *options):
    log.goes_on()
    used = bed.vram()
    bed.ok("suspend", job, *options)
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.ok("resume", job)
    log.goes_on()
    bed.ok("checkpoint", job, "--leave-running", *options)
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job, *options)["checkpoint"]
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    bed.expect_restorable(checkpoint, log)
    wait_until(lambda: bed.vram() == used, "device memory in use as it should be", 10)


def register_kinds():
    def add(kind, *options):
        def function(bed):
            job, log = bed.kind(kind)
            whole_round(bed, job, log, *options)

        function.__name__ = "kind_" + kind
        case(function)

    for kind in ("plain", "big-many", "async", "pinned", "vmm", "graph", "streams", "threads", "fork-child", "fork-after"):
        add(kind)
    add("two-gpus", "--force")
    add("fork-before", "--force")


register_kinds()


@case
def kind_idle(bed):
    """Only cuInit: GPU state without memory."""
    job, log = bed.kind("idle")
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_restorable(bed.operation("checkpoint", job)["checkpoint"], log)


@case
def kind_none(bed):
    """No GPU at all: nothing to suspend, but it can be checkpointed."""
    job, log = bed.kind("none")
    bed.refused(4, "no GPU state", "suspend", job)
    bed.expect_whole(job, log)
    bed.ok("checkpoint", job, "--leave-running")
    bed.expect_whole(job, log)
    bed.expect_restorable(bed.operation("checkpoint", job)["checkpoint"], log)


@case
def udp_server(bed):
    job, log = bed.started([bed.program("udp-counter"), "serve"])
    port = int(log.wait_for(r"^ready pid \d+ port (\d+)").group(1))

    def ask():
        result = run([bed.program("udp-counter"), "ask", "--port", port], env=bed.program_env())
        expect(result.code == 0, result.why())
        return int(result.out)

    expect([ask(), ask()] == [1, 2], "the first answers")
    bed.ok("suspend", job)
    bed.ok("resume", job)
    expect(ask() == 3, "the answer after resume")
    bed.ok("checkpoint", job)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", port))  # nobody has it while the job is on disk
    bed.ok("restore", job)
    expect([ask(), ask()] == [4, 5], "the answers after restore")


@case
def output_to_a_pipe(bed):
    """A program that writes to a pipe of its starter's: what it says after a restore goes to its log."""
    script = f"{bed.program('counter')} --mib 16 --chunk-mib 16 --interval-ms 40 2>&1 | cat"
    job, log = bed.started(["sh", "-c", script])
    log.goes_on()
    bed.expect_restorable(bed.operation("checkpoint", job)["checkpoint"], log)


# The tool of the vendor's.

@case
def called_as_cuda_checkpoint(bed):
    link = os.path.join(bed.dir, "cuda-checkpoint")
    os.symlink(bed.brumate, link)
    program = bed.start([bed.program("counter"), "--mib", 32, "--chunk-mib", 16, "--interval-ms", 40]).ready()

    def tool(*args, code=0):
        result = run([link, *args, "--pid", program.pid], env={**bed.command_env(), "BRUMATE_LIBEXEC_DIR":
                     os.path.dirname(os.path.dirname(bed.brumate))})
        expect(result.code == code, f"expected {code}: {result.why()}")
        return result

    def state(want):
        have = tool("--get-state").out
        expect(have == want + "\n", f"state {have!r}, expected {want}")

    state("running")
    tid = int(tool("--get-restore-tid").out)
    expect(os.path.isdir(f"/proc/{program.pid}/task/{tid}"), f"restore thread {tid} is none of the process")
    tool("--toggle")
    state("checkpointed")
    wait_until(lambda: bed.vram() == [0, 0], "device memory in use as it should be", 10)
    tool("--toggle")
    state("running")
    program.log.goes_on()
    old, new = bed.uuids()
    for action, after in (("lock", "locked"), ("checkpoint", "checkpointed")):
        tool("--action", action, *(["--timeout", "5000"] if action == "lock" else []))
        state(after)
    tool("--action", "unlock", code=1)
    state("checkpointed")
    tool("--action", "restore", "--device-map", f"{old}={new},{new}={old}")
    state("locked")
    tool("--action", "unlock")
    program.log.goes_on()
    expect(bed.vram()[0] == 0 and bed.vram()[1] >= 32 * MIB, f"in use {bed.vram()}")
    tool("--action", "dance", code=1)
    tool("--get-state", "--toggle", code=1)
    tool(code=1)


# Other users.

@case
def a_caller_of_the_socket_runs_as_itself(bed):
    """It may be root, but what it starts is its own user's as long as it says nothing else."""
    bed.daemon()
    job, error = bed.run_as_nobody(bed.program("counter"), "--mib", "16", "--chunk-mib", "16", "--interval-ms", "25",
                                   name="mine")
    expect(job, f"{error}")
    log = bed.log(job)
    log.goes_on()
    entry = bed.job(job)
    expect(entry["uid"] == NOBODY and entry["gid"] == NOBODY, f"the job is uid {entry['uid']}")
    expect(os.stat(f"/proc/{entry['pid']}").st_uid == NOBODY, "its process is another user's")
    for verb in ("suspend", "resume"):
        bed.operation(verb, job)
    log.goes_on()


# Words.

@case
def help_and_versions(bed):
    for args in (("help",), ("--help",), ("version",), ("--version",), ("run", "--help"), ("help", "checkpoint"),
                 ("completion", "bash"), ("completion", "zsh"), ("completion", "fish")):
        result = bed.ok(*args)
        expect(result.out.strip() and not result.err, f"{result.line()} printed {result.out!r} {result.err!r}")
    expect(bed.cli().code == 2, "no command is not an error")
    bed.refused(2, 'unknown command "suspnd"', "suspnd", "x")
    bed.refused(2, "no-such-option", "ps", "--no-such-option")
    for verb in re.findall(r"^  ([a-z]+)\b", bed.ok("help").out, re.MULTILINE):
        expect(bed.cli(verb, "--help").code == 0, f"{verb} has no --help")
    for words in (("--timeout", "soon"), ("--gpu-map", "0"), ("--pid", "x")):
        verb = "resume"
        result = bed.cli(verb, *words, *(["x"] if words[0] != "--pid" else []))
        expect(result.code == 2 and words[0].lstrip("-") in result.err, result.why())


@case
@with_env(BRUMATE_SIM_DRIVER="570")
def oldest_driver(bed):
    """570 saves and restores, but cannot move a process to another GPU."""
    job, log = bed.counter(mib=16)
    bed.ok("suspend", job)
    bed.refused(4, "driver 570.* other GPUs", "resume", job, "--gpu-map", "0=1,1=0")
    bed.expect_state(job, "suspended")
    bed.ok("resume", job)
    log.goes_on()
    bed.expect_restorable(bed.operation("checkpoint", job)["checkpoint"], log)


# What scripts read.

RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "printed.json")


def kinds_of_members(value, path=""):
    """{path: type} of all members of a value; "[]" stands for any item, "*" for a name that users choose."""
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    found = {path: names.get(type(value), "null")} if path else {}
    if isinstance(value, list):
        for item in value:
            found |= {k: kind for k, kind in kinds_of_members(item, path + "[]").items() if kind != "null" or k not in found}
    elif isinstance(value, dict):
        for name, item in value.items():
            name = "*" if path.endswith("labels") else name
            found |= kinds_of_members(item, f"{path}.{name}" if path else name)
    return found


def printed_by_commands(bed):
    """What commands print with --format json in the life of a job."""
    job, _ = bed.counter(name="recorded", options=("--label", "kind=test"))
    commands = {"suspend": (job,), "resume": (job,), "ps": (), "checkpoint": (job, "--leave-running", "--name", "first"),
                "ls": (), "verify": ("first",), "inspect": ("first",), "doctor": ()}
    printed = {name: bed.ok(name, *args, "--format", "json").json() for name, args in commands.items()}
    printed["inspect of a job"] = bed.ok("inspect", job, "--format", "json").json()
    printed["inspect --restore"] = bed.ok("inspect", "first", "--restore", "--format", "json").json()
    bed.ok("checkpoint", job, "--name", "second")
    printed["diff"] = bed.ok("diff", "first", "second", "--format", "json").json()
    printed["restore"] = bed.ok("restore", "second", "--format", "json").json()
    return {name: kinds_of_members(value) for name, value in printed.items()}


@case
def what_commands_print_as_json_stays(bed):
    """Members may be added; none that is in the record may go, or become of another type."""
    printed = printed_by_commands(bed)
    with open(RECORD, encoding="utf-8") as file:
        record = json.load(file)
    expect(set(record) == set(printed), "the record is of other commands")
    for command, wanted in record.items():
        for path, kind in wanted.items():
            found = printed[command].get(path)
            expect(found, f"{command}: {path} is not printed any more")
            expect("null" in (kind, found) or kind == found, f"{command}: {path} is a {found} now, not a {kind}")


main()
