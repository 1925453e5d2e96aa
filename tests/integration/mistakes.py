#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mistakes of who types: what is not there is an error, never an empty answer, and what was meant is suggested."""

import os
import re
import signal

from cases import EXIT_BUSY, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_TIMEOUT, EXIT_USAGE, at_terminal, case, expect, main
from checkpoints import saved


@case
def a_store_that_does_not_exist(bed):
    nowhere, file = os.path.join(bed.dir, "nowhere"), os.path.join(bed.dir, "file")
    with open(file, "w", encoding="utf-8"):
        pass
    expect(bed.ok("ls").out.count("\n") == 1, "the usual store, which the first checkpoint makes, is an error")
    for args in (("ls",), ("verify", "--all"), ("prune", "--keep-last", "1"), ("prune", "--leftovers"), ("inspect", "x"), ("rm", "x"),
                 ("export", "x"), ("diff", "x", "y"), ("restore", "x"), ("push", "x", "s3://bucket/prefix")):
        env = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        bed.refused(EXIT_NOT_FOUND, f"{nowhere} does not exist", *args, "--dir", nowhere, env=env)
        bed.refused(EXIT_FAILED, f"{file} is not a directory", *args, "--dir", file, env=env)
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as conf:
        conf.write(f"[Store]\nDirectory={nowhere}\n")
    bed.refused(EXIT_NOT_FOUND, f"{nowhere} does not exist", "ls")
    job, _ = bed.counter(mib=16)
    expect(bed.ok("inspect", job).out, "a job is shown without a store")
    bed.ok("checkpoint", job, "--leave-running", "--name", "first")
    expect(bed.ok("ls", "-q").out == "first\n", "the first checkpoint makes the store")


@case
def a_store_that_is_a_dangling_link(bed):
    """A parameter is wrong: exit code 3 would say that there is no such job or checkpoint."""
    job, _ = bed.counter(mib=16)
    link, target = os.path.join(bed.dir, "link"), os.path.join(bed.dir, "not-mounted", "store")
    os.symlink(target, link)
    for args in (("checkpoint", job), ("checkpoint", job, "--every", "1h"), ("restore", "x"), ("ls",), ("inspect", "x")):
        refused = bed.refused(EXIT_USAGE, f"{link} is a link to {target}, which does not exist$", *args, "--dir", link)
        expect("hint: make that directory" in refused.err, refused.why())
    # As the usual store, too, and with the link further up; what is no question of the store is answered all the same.
    above = os.path.join(bed.dir, "above")
    os.symlink(os.path.dirname(target), above)
    for place, broken in ((link, f"{link} is a link to {target}"), (os.path.join(above, "store"), f"{above} is a link to ")):
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as conf:
            conf.write(f"[Store]\nDirectory={place}\n")
        for args in (("inspect", "--restore", "x"), ("inspect", "--restore", job), ("restore", "--checkpoint", "x"), ("ls",), ("rm", "--checkpoint", "--yes", "x"), ("pin", "x"),
                     ("checkpoint", "--dry-run", job), ("checkpoint", job)):
            refused = bed.refused(EXIT_USAGE, broken, *args)
            expect("hint: make that directory" in refused.err, refused.why())
        expect(job in bed.ok("inspect", job).out, "the job is not shown")
    bed.ok("suspend", job[:6])
    bed.ok("resume", job)
    os.truncate(bed.own["BRUMATE_CONFIG"], 0)
    os.makedirs(target)
    bed.ok("checkpoint", job, "--leave-running", "--dir", link)
    expect(len(os.listdir(target)) == 1, "it is not behind the link")


@case
def a_store_to_write_to_whose_path_is_misspelt(bed):
    """The last directory is made, those above it are not, whatever makes a checkpoint there."""
    job, _ = bed.counter(mib=16)
    bed.ok("checkpoint", job, "--leave-running", "--name", "first")
    stream = os.path.join(bed.dir, "stream")
    bed.ok("export", "first", "-o", stream)
    top = os.path.join(bed.dir, "misspelt")
    store = os.path.join(top, "store")
    env = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    for args in (("checkpoint", job), ("checkpoint", job, "--every", "1h"), ("import", stream), ("pull", "s3://bucket/prefix/x"),
                 ("bench", "--size", "16M")):
        bed.refused(EXIT_NOT_FOUND, f"{store} cannot be created: {top} does not exist$", *args, "--dir", store, env=env)
        expect(not os.path.exists(top), f"{args} made {top}")
    os.mkdir(top)
    bed.ok("checkpoint", job, "--leave-running", "--dir", store + "/")
    bed.ok("import", stream, "--dir", store)
    expect(len(bed.ok("ls", "-q", "--dir", store).out.split()) == 2, "not both are there")


@case
def a_name_is_looked_at_before_the_object_store(bed):
    env = {name: "/nowhere" for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")}
    env |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    saved(bed, "first")
    bed.refused(EXIT_NOT_FOUND, "no checkpoint (or job )?nosuch", "push", "nosuch", "s3://bucket/prefix", env=env)
    bed.refused(EXIT_PERMISSION, "no credentials", "push", "first", "s3://bucket/prefix", env=env)


@case
def a_configuration_that_does_not_exist(bed):
    os.unlink(bed.own["BRUMATE_CONFIG"])
    bed.refused(EXIT_NOT_FOUND, "BRUMATE_CONFIG=.*brumate.conf: No such file", "ps")
    for words in (("ps",), ("ls",), ("prune", "--leftovers")):
        bed.ok(*words, env={"BRUMATE_CONFIG": "/dev/null"})
    for words in (("version",), ("help", "run"), ("completion", "bash")):
        bed.ok(*words)
    bed.refused(EXIT_FAILED, "BRUMATE_CONFIG=/: Is a directory", "ps", env={"BRUMATE_CONFIG": "/"})
    bed.refused(EXIT_USAGE, "BRUMATE_STATE_DIR=state: expected an absolute path", "ps", env={"BRUMATE_STATE_DIR": "state"})


@case
def a_job_that_does_not_exist(bed):
    job, _ = saved(bed, "train-first")
    bed.refused(EXIT_NOT_FOUND, "no job nosuch", "prune", "--job", "nosuch", "--keep-last", "1")
    bed.end(job)
    bed.ok("rm", "--yes", job)
    bed.jobs.remove(job)
    expect(bed.ok("prune", "--job", job, "--keep-last", "1").out == "", "its record is gone, its checkpoint is there")


@case
def what_was_meant_is_suggested(bed):
    job, _ = bed.counter(name="train", mib=16)
    bed.ok("checkpoint", job, "--leave-running", "--name", "weekend")
    for args, meant in ((("suspend", "train_"), "train"), (("logs", "trains"), "train"), (("rm", "weekand"), "weekend"),
                        (("restore", "wekend"), "weekend"), (("inspect", "train_"), "train"),
                        (("inspect", "weekendd"), "weekend"), (("diff", "weekend", "weeken_"), "weekend")):
        refused = bed.refused(EXIT_NOT_FOUND, "no (job|checkpoint)", *args)
        expect(f"hint: did you mean {meant}?" in refused.err, refused.why())
    refused = bed.refused(EXIT_NOT_FOUND, "no job", "suspend", "elephant")
    expect("`brumate ps`" in refused.err, refused.why())


@case
def habits_of_other_tools(bed):
    """What podman, systemctl, kill and criu take is answered by what to do here."""
    for line, hint in (("run -d -- true", "in the background anyway"), ("run --gpus all -- true", "says which GPUs it sees"),
                       ("ps train", "`brumate inspect JOB`"), ("kill -9 x", "--signal KILL"),
                       ("rm -f x", "brumate kill"), ("manage 1", "--pid PID"), ("checkpoint --tree 1", "--pid PID"),
                       ("restore --import x", "brumate import"), ("ls /tmp", "--dir DIR"),
                       ("push x http://host", "AWS_ENDPOINT_URL"), ("-v", "brumate --version"),
                       ("--format json", "options follow the command"), ("PS", "`brumate ps`"),
                       ("ps --filter state=suspendd", "did you mean suspended?"), ("help jobs", "`brumate help ps`"),
                       ("prune --keep 3", "did you mean --keep-last?"), ("prune --dry", "did you mean --dry-run?"),
                       ("ls --json", "did you mean --format json?"), ("metrics --port 9100", "--listen ADDRESS:PORT"),
                       ("checkpoint x --every never", "0 ends the schedule")):
        refused = bed.refused(EXIT_USAGE, "unknown|unexpected|expected|not a (state|duration)", *line.split())
        expect(re.search(f"^hint: .*{re.escape(hint)}", refused.err, re.M), refused.why())


@case
def what_state_a_job_is_in(bed):
    job, _ = bed.counter(mib=16)
    bed.ok("suspend", job)
    refused = bed.refused(EXIT_BUSY, f"job {job} is suspended$", "suspend", "--park", job)
    expect(f"brumate resume {job}" in refused.err, refused.why())
    bed.ok("checkpoint", job)
    refused = bed.refused(EXIT_BUSY, f"job {job} is checkpointed$", "suspend", job)
    expect(f"brumate restore {job}" in refused.err, refused.why())
    bed.ok("restore", job)
    refused = bed.refused(EXIT_TIMEOUT, "suspend|identify: timed out after 1 ms", "suspend", job, "--timeout", "1ms")
    expect("hint: a longer --timeout" in refused.err and "the job goes on" in refused.err, refused.why())
    bed.ok("suspend", job)
    refused = bed.refused(EXIT_TIMEOUT, "timed out after 1 ms", "resume", job, "--timeout", "1ms")
    expect("the job stays suspended" in refused.err, refused.why())
    bed.ok("resume", job)
    bed.refused(EXIT_TIMEOUT, f"wait: timed out after 50 ms; job {job} has not ended", "wait", job, "--timeout", "0.05")
    bed.end(job)
    bed.refused(EXIT_BUSY, f"job {job} has exited$", "resume", job)


@case
def a_command_that_is_not_there(bed):
    refused = bed.refused(127, "nosuchcommand: command not found", "run", "--", "nosuchcommand")
    expect("./nosuchcommand" in refused.err, refused.why())
    bed.refused(127, "/nosuch/command: No such file", "run", "--", "/nosuch/command")
    bed.refused(EXIT_FAILED, f"{bed.dir}: .*Is a directory", "import", bed.dir)


@case
def doctor_begins_with_what_matters(bed):
    code, shown = at_terminal(bed, None, "doctor")
    lines = shown.replace("\r", "").splitlines()
    levels = [word for word in (re.sub(r"\x1b\[\d*m", "", line).split(" ")[0] for line in lines)
              if word in ("fail", "warn", "note", "ok")]
    weight = {"fail": 0, "warn": 1, "note": 2, "ok": 3}
    expect(levels and levels == sorted(levels, key=weight.get), f"not in order of weight: {levels}")
    color = {"fail": 31, "warn": 33}.get(levels[0], 32)
    expect(lines[0].startswith(f"\x1b[{color}m"), f"the first line: {lines[0]!r}, then {levels[0]}")
    expect((code == 4) == (levels[0] == "fail"), f"exit {code}: {shown}")


@case
def doctor_knows_a_directory_from_a_program(bed):
    """And what keeps it from asking the driver is not said to be the driver."""
    libexec, file = os.path.join(bed.dir, "libexec"), os.path.join(bed.dir, "file")
    os.makedirs(os.path.join(libexec, "brumate-broker"))
    with open(file, "w", encoding="utf-8"):
        pass
    os.chmod(file, 0o755)
    result = bed.cli("doctor", "--format", "json", env={"BRUMATE_LIBEXEC_DIR": libexec, "BRUMATE_LOG_DIR": file})
    found = {f["key"]: f for f in result.json()["findings"]}
    expect(found["brumate-broker"]["level"] == "fail" and "is a directory" in found["brumate-broker"]["text"],
           f"{found['brumate-broker']}")
    expect(found["driver"]["level"] == "warn" and "no broker" in found["driver"]["text"], f"{found['driver']}")
    expect(found["log-dir"]["level"] == "fail", f"a file as a directory: {found['log-dir']}")
    result = bed.cli("doctor", "--format", "json", env={"BRUMATE_CRIU": libexec})
    criu = {f["key"]: f for f in result.json()["findings"]}["criu"]
    expect(f"{libexec} is a directory" in criu["text"], f"{criu}")


@case
def one_of_all_ends_meanwhile(bed):
    """It was not named, and needs nothing."""
    first, log = bed.counter(mib=16)
    second, _ = bed.counter(mib=16)
    with bed.held_at("suspend.gate.begin", "suspend", "--all") as all_of_them:
        os.kill(bed.pid(second), signal.SIGKILL)
        bed.wait_state(second, ("exited",))
    code, out, err = all_of_them.end()
    expect(code == 0 and out.split() == [first] and f"job {second} has ended meanwhile" in err, f"exit {code}: {out} {err}")
    bed.ok("resume", "--all")
    log.goes_on()


if __name__ == "__main__":
    main()
