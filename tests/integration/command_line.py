#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a line that is typed comes to: nothing is touched unless all of it is understood, and each answer is told in the form
that is asked for."""

import json
import os
import re
import shutil

from cases import EXIT_BUSY, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_TIMEOUT, EXIT_USAGE, at_terminal, case, expect, main, run, wait_until
from checkpoints import saved


def with_job(function):
    """The case has a counter called train."""
    def wrapped(bed):
        job, log = bed.counter(name="train", mib=16)
        function(bed, job, log)
    wrapped.__name__ = function.__name__
    return wrapped


# Operands.

@case
def none_is_acted_on_unless_all_are_there(bed):
    one, two = (bed.counter(name=name, mib=16)[0] for name in ("one", "two"))
    for verb in ("suspend", "checkpoint", "kill", "release"):
        refused = bed.cli(verb, "one", "nosuch", "two")
        expect(refused.code == EXIT_NOT_FOUND and "no job nosuch" in refused.err and not refused.out, refused.why())
        for job in (one, two):
            bed.expect_state(job, "running")
    for verb in ("kill", "release"):
        refused = bed.cli(verb, "one", two[:5])
        expect(refused.code == EXIT_USAGE and "only the beginning of job" in refused.err, refused.why())
        bed.expect_state(one, "running")
    bed.ok("checkpoint", "one", "--leave-running", "--name", "first")
    for verb, *options in (("rm", "--checkpoint"), ("pin",)):
        refused = bed.cli(verb, *options, "first", "nosuch")
        expect(refused.code == EXIT_NOT_FOUND and "no checkpoint nosuch" in refused.err and not refused.out, refused.why())
    shown = bed.list("ls", "checkpoints")
    expect([(c["id"], c["pinned"]) for c in shown] == [("first", False)], f"{shown}")
    bed.ok("suspend", "one", "two")
    refused = bed.cli("resume", "one", "nosuch", "two")
    expect(refused.code == EXIT_NOT_FOUND and not refused.out, refused.why())
    bed.expect_state(one, "suspended")
    bed.ok("resume", "two", "one")


@case
@with_job
def a_time_in_two_words(bed, job, log):
    """It would be 5 seconds, and two jobs."""
    refused = bed.refused(EXIT_NOT_FOUND, "no job minutes", "checkpoint", "--every", "5s", "minutes", "train")
    refused = bed.refused(EXIT_USAGE, '--every: "5" has no unit', "checkpoint", "--every", "5", "train")
    expect("hint: write it as 30s, 10m" in refused.err, refused.why())
    bed.refused(EXIT_USAGE, '--every: "1.5" has no unit', "checkpoint", "--every=1.5", "train")
    expect(bed.job(job)["schedule"] is None, "there is a schedule")
    bed.ok("checkpoint", "--every", "1h", "train")
    bed.ok("checkpoint", "--every", "0", "train")


@case
@with_job
def values_that_are_empty(bed, job, log):
    """As of a variable that is not set: what would be done without the option is not what is meant."""
    for line in (("checkpoint", "train", "--dir", ""), ("checkpoint", "train", "--dir="), ("ls", "--dir", ""),
                 ("checkpoint", "train", "--name", ""), ("run", "--log", "", "--", "true"), ("prune", "--job", "", "--keep-last", "1"),
                 ("restore", "train", "--key-file", ""), ("ps", "--filter", "")):
        bed.refused(EXIT_USAGE, f"{line[0]}: --[a-z-]+: the value is empty, expected ", *line)
    for line in (("suspend", ""), ("kill", "train", ""), ("rm", "--yes", ""), ("inspect", ""), ("ls", "")):
        bed.refused(EXIT_USAGE, f"{line[0]}: an operand is empty", *line)
    bed.expect_whole(job, log)
    expect(bed.checkpoints() == [], "a checkpoint was made")
    job = bed.run(["sh", "-c", 'test "$#" = 1 && exit 7', "sh", ""])
    expect(bed.cli("wait", job).code == 7, "an empty argument of a job's command is not passed on")


@case
@with_job
def a_slip_suggests_nothing_that_turns_a_check_off(bed, job, log):
    for line in ("suspend train --forc", "restore train --forces", "restore train --allow-unauthentica", "rm x --ye",
                 "checkpoint train --drop-externa", "restore train --tcp-clos", "checkpoint train --tcp-skip"):
        refused = bed.refused(EXIT_USAGE, "unknown option", *line.split())
        expect("did you mean" not in refused.err and "--help" in refused.err, refused.why())
    refused = bed.refused(EXIT_USAGE, "unknown option", "checkpoint", "train", "--leave-runing")
    expect("did you mean --leave-running?" in refused.err, refused.why())


@case
def one_character_is_no_beginning(bed):
    job, _ = saved(bed, "first")
    for line in (("suspend", job[0]), ("inspect", job[0]), ("inspect", "f"), ("verify", "f"), ("restore", "f")):
        bed.refused(EXIT_NOT_FOUND, "no (job|checkpoint)", *line)
    expect(bed.ok("inspect", "fi", "--format", "json").json()["manifest"]["id"] == "first", "two are")
    expect(bed.ok("inspect", job[:2], "--format", "json").json()["job"]["id"] == job, "two are")


@case
@with_job
def what_may_be_is_told_in_a_sentence(bed, job, log):
    words = "expected auto, none, lz4 or zstd"
    bed.refused(EXIT_USAGE, f'--compress: "gzip": {words}', "checkpoint", "train", "--compress", "gzip")
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as conf:
        conf.write("[Store]\nCompress=gzip\n")
    bed.refused(EXIT_USAGE, words, "ls")
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8"):
        pass
    bed.refused(EXIT_USAGE, 'completion: "csh": expected bash, zsh or fish', "completion", "csh")


@case
def variables_that_mean_nothing(bed):
    for name, value, words in (("BRUMATE_IO", "fast", "expected uring or posix"), ("BRUMATE_GPU", "amd", "expected simulated or real"),
                               ("BRUMATE_LOG_LEVEL", "loud", "expected error, warn, info or debug"),
                               ("BRUMATE_MANAGED", "gpu", "expected driver or host"),
                               ("BRUMATE_BROKER_IDLE_S", "soon", "expected a number of seconds")):
        refused = bed.refused(EXIT_USAGE, f"{name}={value}: {words}", "ps", env={name: value})
        expect("hint: unset it" in refused.err, refused.why())
        bed.ok("ps", env={name: ""})
        bed.ok("version", env={name: value})


@case
def a_configured_store_that_is_misspelt(bed):
    """Like --dir: the last directory is made, those above it are not."""
    job, _ = bed.counter(mib=16)
    top = os.path.join(bed.dir, "misspelt")
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as conf:
        conf.write(f"[Store]\nDirectory={top}/store\n")
    bed.refused(EXIT_NOT_FOUND, f"{top}/store cannot be created: {top} does not exist$", "checkpoint", job)
    expect(not os.path.exists(top), "it was made")
    os.mkdir(top)
    bed.ok("checkpoint", job, "--leave-running")
    expect(len(os.listdir(f"{top}/store")) == 1, "the checkpoint is not there")


# What a state comes to.

@case
@with_job
def a_suspend_of_what_is_suspended(bed, job, log):
    """Who wants the GPU to be free has what is wanted."""
    bed.ok("suspend", job)
    for line in (("suspend", "train"), ("suspend", job), ("suspend", "--pid", bed.pid(job))):
        done = bed.ok(*line)
        expect(done.out == f"{job}\n" and done.err == "note: job train is suspended already\n", done.why())
    value = bed.ok("suspend", job, "--format", "json").json()
    expect(value["summary"]["already"], f"{value}")
    bed.ok("resume", job)
    done = bed.ok("resume", job)
    expect(done.err == "note: job train is running already\n", done.why())
    bed.ok("suspend", "--park", job)
    bed.ok("suspend", "--park", job)
    bed.refused(EXIT_BUSY, f"job {job} is suspended$", "suspend", job)  # its memory is on the GPU still
    bed.ok("resume", job)
    log.goes_on()


@case
def a_checkpoint_from_inside(bed):
    """A command cannot wait for what begins once it has ended, and its job is not to be asked for otherwise."""
    for line in ("checkpoint inner", "checkpoint --leave-running inner"):
        job = bed.run([bed.brumate, *line.split()], name="inner")
        expect(bed.cli("wait", job).code == EXIT_USAGE, bed.log(job).text())
        expect(re.search(rf"job {job} .inner. cannot be saved by a command that is part of it\nhint: brumate checkpoint --self",
                         bed.log(job).text()), bed.log(job).text())
        bed.ok("rm", "--job", job)
        bed.jobs.remove(job)


@case
@with_job
def a_time_that_is_over(bed, job, log):
    """What was waited for and what becomes of the job are told once."""
    for verb, point, words in (("suspend", "suspend.data-out.begin", "device memory to reach host memory"),
                               ("checkpoint", "checkpoint.data-out.begin", "")):
        for time in ("120ms", "300ms", "1s"):
            bed.fault(point, "delay:400")
            done = bed.cli(verb, job, "--timeout", time)
            bed.disarm()
            if done.code == 0:
                bed.ok("resume" if verb == "suspend" else "restore", job)
                continue
            expect(done.code == EXIT_TIMEOUT and done.err.count("timed out after") == 1 and "cancelled" not in done.err,
                   done.why())
            expect(re.search(r"timed out after (120 ms|300 ms|1 s)", done.err), done.why())
            expect(done.err.count("the job goes on") == 1 or "what it began is taken back" in done.err, done.why())
            expect(done.err.count("it waited for") <= 1, done.why())
            wait_until(lambda: bed.state(job) == "running", "what was begun to be taken back")
    log.goes_on()


@case
def who_ends_all_is_asked(bed):
    jobs = [bed.counter(name=name, mib=16)[0] for name in ("one", "two")]
    code, shown = at_terminal(bed, "n", "kill", "--all")
    expect(code == EXIT_FAILED and "end these 2 jobs? [y/N]" in shown and f"{jobs[0]}  one" in shown, f"{code}: {shown!r}")
    for job in jobs:
        bed.expect_state(job, "running")
    code, shown = at_terminal(bed, None, "kill", "--all", "--signal", "URG")
    expect(code == 0 and "[y/N]" not in shown, f"a signal that ends nothing: {shown!r}")
    code, shown = at_terminal(bed, None, "kill", "one")
    expect(code == 0 and "[y/N]" not in shown, f"one that is named: {shown!r}")
    code, shown = at_terminal(bed, "y", "kill", "--all")
    expect(code == 0 and bed.state(jobs[1]) == "exited", f"{code}: {shown!r}")


@case
def nothing_that_is_verified(bed):
    """It is no proof of anything."""
    empty = os.path.join(bed.dir, "empty")
    os.mkdir(empty)
    refused = bed.refused(EXIT_FAILED, f"verify: there is no checkpoint in {empty}", "verify", "--all", "--dir", empty)
    expect("hint: `brumate ls`" in refused.err, refused.why())
    bed.refused(EXIT_FAILED, "there is no checkpoint in the store", "verify", "--all")


@case
def a_name_that_is_taken(bed):
    """What frees it depends on whether its job lives."""
    bed.counter(name="train", mib=16)
    done = bed.run(["true"], name="done")
    bed.cli("wait", done)
    refused = bed.refused(EXIT_BUSY, "name train is taken by job", "run", "--name", "train", "--", "true")
    expect("`brumate kill`, then `brumate rm " in refused.err, refused.why())
    refused = bed.refused(EXIT_BUSY, "name done is taken by job", "run", "--name", "done", "--", "true")
    expect(f"remove that job: `brumate rm {done}`" in refused.err, refused.why())


@case
def what_is_left_over(bed):
    """What was done is said, beside the number for scripts; where there is no store yet, too."""
    done = bed.ok("prune", "--leftovers")
    expect(done.out == "0\n" and done.err == "there was nothing to remove: nothing is left of what was killed\n", done.why())
    job, _ = bed.counter(name="train", mib=16)
    bed.ok("checkpoint", "train", "--leave-running", "--name", "first")
    partial = os.path.join(bed.store(), ".second.partial")
    os.mkdir(partial, 0o700)
    done = bed.ok("prune", "--leftovers")
    expect(done.out == "1\n" and done.err == "removed 1 leftover of what was killed\n" and not os.path.exists(partial), done.why())
    bed.expect_state(job, "running")


@case
def an_example_to_begin_with(bed):
    """As README's first command: wherever the programs are installed, and with the counter's own options after it."""
    job, log = bed.started(["--mib", "16", "--chunk-mib", "16"], name="first", options=("--example",))
    expect(bed.job(job)["name"] == "first", f"{bed.job(job)}")
    log.goes_on()
    bed.ok("suspend", "first")
    bed.ok("resume", "first")
    done = bed.cli("run", "--example", "--attach", "--", "--mib", "16", "--chunk-mib", "16", "--steps", "1")
    bed.jobs.append("counter")
    expect(done.code == 0 and "step 1 OK" in done.out, done.why())
    bed.refused(EXIT_USAGE, "run: missing operand", "run")
    bed.refused(EXIT_USAGE, "unknown option --exampl", "run", "--exampl")
    programs = os.path.join(bed.dir, "bin")
    os.mkdir(programs)
    copied = os.path.join(programs, "brumate")
    shutil.copy(bed.brumate, copied)
    if not os.path.exists("/usr/local/libexec/brumate/counter"):
        done = run([copied, "run", "--example"], env=bed.command_env())
        expect(done.code == EXIT_NOT_FOUND and "counter is not installed with brumate\nhint: " in done.err, done.why())


# Forms.

@case
def errors_in_json(bed):
    def error_of(*line, code):
        done = bed.cli(*line)
        lines = done.err.splitlines()
        expect(done.code == code and len(lines) == 1 and not done.out, done.why())
        value = json.loads(lines[0])
        expect(value["apiVersion"] == "brumate/v1" and value["error"]["exit_code"] == code, f"{value}")
        return value["error"]

    error = error_of("suspend", "nosuch", "--format", "json", code=EXIT_NOT_FOUND)
    expect(error["message"] == "no job nosuch" and "brumate ps" in error["hint"], f"{error}")
    error = error_of("ps", "--format=json", "--bogus", code=EXIT_USAGE)
    expect("unknown option --bogus" in error["message"], f"{error}")
    expect(error_of("inspect", "--format", "json", code=EXIT_USAGE)["message"].startswith("inspect: missing operand"), "operand")
    refused = bed.refused(EXIT_USAGE, "unknown option --bogus", "run", "--bogus", "--", "echo", "--format", "json")
    expect(refused.err.startswith("brumate: "), refused.why())


@case
@with_job
def answers_in_json(bed, job, log):
    def answer(*line):
        return bed.ok(*line, "--format", "json").json()

    ran = bed.ok("run", "--name", "short", "--format", "json", "--", "true").json()
    expect(ran["job"]["name"] == "short", f"{ran}")
    bed.jobs.append(ran["job"]["id"])
    expect(answer("wait", "short")["job"]["exit_code"] == 0, "wait")
    expect(answer("rm", "--job", "short")["kind"] == "job", "rm")
    bed.jobs.remove(ran["job"]["id"])
    expect(answer("checkpoint", "train", "--every", "1h")["job"]["schedule"]["every_ms"] == 3600000, "checkpoint --every")
    expect(answer("checkpoint", "train", "--every", "0")["job"]["schedule"] is None, "checkpoint --every 0")
    answer("checkpoint", "train", "--leave-running", "--name", "first")
    expect(answer("pin", "first")["checkpoint"] == "first", "pin")
    os.rmdir(os.path.join(bed.store(), ".first.pinned"))
    stream = os.path.join(bed.dir, "stream")
    bed.ok("export", "first", "--output", stream)
    other = os.path.join(bed.dir, "other")
    expect(answer("import", stream, "--dir", other)["checkpoint"] == "first", "import")
    expect(answer("rm", "--yes", "--dir", other, "first")["kind"] == "checkpoint", "rm of a checkpoint")
    released = answer("release", "train")["job"]
    expect(released["id"] == job and released["state"] == "running", f"{released}")
    managed = answer("manage", "--pid", released["pid"])["job"]
    expect(managed["pid"] == released["pid"], f"{managed}")
    bed.jobs.append(managed["id"])
    log.goes_on()
    expect(answer("kill", managed["id"])["job"]["state"] in ("exited", "lost"), "kill")


@case
@with_job
def numbers_have_the_digits_that_they_mean(bed, job, log):
    done = bed.ok("suspend", job, "--format", "json")
    numbers = re.findall(r": (-?[\d.]+(?:e-?\d+)?),?$", done.out, re.M)
    for number in numbers:
        digits = re.sub(r"e.*|\.|-", "", number).strip("0") if "." in number else ""
        expect(len(digits) <= 6, f"{number} of {done.out}")
    expect(any("." in number for number in numbers), f"no number is broken: {done.out}")
    bed.ok("resume", job)
    for number in re.findall(r" (\S+)$", bed.ok("metrics").out, re.M):
        expect(not re.search(r"\.\d*(0{8}|9{8})\d*$", number), f"{number} in the metrics")


@case
def one_line_says_how_a_command_is_used(bed):
    for verb, line in (("suspend", "usage: brumate suspend [OPTION...] [JOB...]"), ("ps", "usage: brumate ps [OPTION...]"),
                       ("run", "usage: brumate run [OPTION...] [--] COMMAND [ARG...]")):
        expect(line in bed.ok(verb, "--help").out.splitlines(), f"{verb}: {bed.ok(verb, '--help').out}")


@case
def a_narrow_terminal_shows_the_state(bed):
    job, _ = bed.counter(name="train", mib=16)
    bed.ok("checkpoint", job, "--leave-running", "--name", "weekend-20261121-1")
    for columns in (40, 60, 80, 200):
        code, shown = at_terminal(bed, None, "ls", columns=columns)
        head, row, totals = re.sub(r"\x1b\[\d*m", "", shown).replace("\r", "").splitlines()
        expect(re.fullmatch(rf"1 checkpoint, \S+ \S+, \S+ \S+ on disk, in {bed.store()}", totals), totals)
        expect(code == 0 and head.startswith("ID") and "STATE" in head and row.startswith("weekend-20261121-1") and
               "ok (simul" in row, f"{columns}: {shown!r}")
        expect(len(head) <= columns and len(row) <= columns, f"{columns}: {shown!r}")


@case
def only_what_fits_is_offered(bed):
    """By the shell's own question, of jobs in two states."""
    bed.counter(name="train-one", mib=16)
    bed.counter(name="train-two", mib=16)
    bed.ok("suspend", "train-two")
    folder = os.path.join(bed.dir, "completion")
    os.mkdir(folder)
    with open(os.path.join(folder, "brumate"), "w", encoding="utf-8") as script:
        script.write(bed.ok("completion", "bash").out)
    env = bed.command_env() | {"PATH": os.path.dirname(bed.brumate) + ":" + os.environ["PATH"]}

    def offered(line, kind=9):
        words = line.split(" ")
        script = f'. ./brumate; COMP_TYPE={kind}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _brumate; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = run(["bash", "-c", script, "bash", "brumate", *words], env=env, cwd=folder)
        expect(done.code == 0 and not done.err, done.why())
        return done.out.split("\n")[:-1]

    expect(offered("suspend tr") == ["train-one"], f"suspend: {offered('suspend tr')}")
    expect(offered("resume tr") == ["train-two"], f"resume: {offered('resume tr')}")
    expect(offered("kill tr") == ["train-one", "train-two"], f"kill: {offered('kill tr')}")
    expect(offered("kill tr", 63) == ["train-one (running)", "train-two (suspended)"], f"{offered('kill tr', 63)}")
    pids = offered("manage --pid ")
    expect(str(os.getpid()) in pids, "a process is not offered")
    for pid in pids:
        expect(pid.isdigit() and "2" != pid, f"{pid} is offered")
        status = run(["sh", "-c", f"cat /proc/{pid}/status 2>/dev/null || true"]).out
        expect("Kthread:\t1" not in status and not re.search(r"^PPid:\t2$", status, re.M) or not os.path.exists("/proc/2/comm") or
               run(["cat", "/proc/2/comm"]).out != "kthreadd\n", f"{pid} is a thread of the kernel: {status}")
    expect("state=running" in offered("ps --filter state="[:-1]), f"{offered('ps --filter state')}")
    bed.ok("resume", "train-two")


main()
