#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs as users: the Python package, and programs that ask to be saved themselves."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys

from cases import Skipped, as_user, case, expect, main, read_text, run, wait_until

HERE = os.path.dirname(os.path.realpath(__file__))
PYTHON = os.path.join(HERE, "..", "..", "python")

ITSELF = """
import sys, threading
import brumate

out = open(sys.argv[1], "a", buffering=1)

@brumate.on_checkpoint
def before():
    print("before", file=out)

@brumate.on_restore
def after():
    print("after", file=out)

print("restored" if brumate.checkpoint(leave_running=sys.argv[2] == "on", name=sys.argv[3]) else "goes on", file=out)
threading.Event().wait()
"""

DRIVER = r"""
import os, sys, brumate
job = brumate.Job(sys.argv[1])
assert job.state == "running", job.state
with job.paused() as summary:
    assert summary.operation == "suspend" and summary.seconds > 0, summary
    assert job.state == "suspended", job.state
assert job.state == "running", job.state
assert [j.name for j in brumate.jobs()] == [job.describe()["id"]]
made = job.checkpoint(name="by-python", timeout=300, with_files=True, keep_copy=False, compress="none")
assert made.checkpoint == "by-python" and job.state == "checkpointed", made
assert job.wait() is None
assert job.restore(gpu_map={0: 1}).operation == "restore" and job.state == "running"
assert [gpu["uuid"][-1] for gpu in job.describe()["gpus"]] == ["1"], job.describe()
try:
    with job.paused():
        raise KeyError("in the middle")
except KeyError:
    assert job.state == "running", job.state
job = brumate.Job.run(["sleep", "1000"], name="labelled", labels={"team": "vision"})
assert job.labels == {"team": "vision"}, job.labels
assert repr(job) == f"Job({job.name!r})" and "\n" not in repr(brumate.Job("a\nb"))
try:
    job.wait(timeout=0.1)
except brumate.BrumateError as error:
    assert error.exit_code == 124, vars(error)
else:
    raise AssertionError("a job that sleeps has ended")
job.kill()
assert job.wait() == 128 + 15, job.wait()
for code in (0, 7, 124):
    ended = brumate.Job.run(["sh", "-c", f"echo one; echo two; exit {code}"])
    assert ended.wait(timeout=60) == code and ended.logs() == "one\ntwo\n" and ended.logs(tail=1) == "two\n", code
let_go = brumate.Job.run(["sleep", "1000"])
pid = let_go.describe()["pid"]
let_go.release()
os.kill(pid, 9)
try:
    let_go.describe()
except brumate.BrumateError as error:
    assert error.exit_code == 3, vars(error)
for odd in ("--all", "-a", "--help"):  # a name is a name
    for method in ("kill", "suspend", "resume", "checkpoint", "restore", "describe", "wait", "logs", "release"):
        try:
            getattr(brumate.Job(odd), method)()
        except brumate.BrumateError as error:
            assert error.exit_code in (2, 3) and odd in error.text, (method, vars(error))
        else:
            raise AssertionError(f"{method} of {odd}")
assert job.state == "exited", job.state
try:
    brumate.Job("nosuch").suspend()
except brumate.BrumateError as error:
    assert error.exit_code == 3 and "nosuch" in error.text and error.hint, vars(error)
else:
    raise AssertionError("a job that is not there is suspended")
"""


def environment(bed, **more):
    return {**bed.command_env(), "PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate, **more}


def python(bed, program, *arguments, **more):
    return run([sys.executable, "-c", program, *arguments], env=environment(bed, **more))


def lines(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def started(bed, mode):
    """A program that asks for a checkpoint called own: (job, its output)."""
    out = os.path.join(bed.dir, "out")
    job = bed.run([sys.executable, "-c", ITSELF, out, mode, "own"],
                  env={"PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate})
    return job, out


def wait_for(path, wanted):
    wait_until(lambda: lines(path) == wanted, f"the program to say {wanted}", 60)


@case
def python_drives_a_job(bed):
    job, log = bed.counter(mib=16)
    result = python(bed, DRIVER, job)
    expect(result.code == 0, result.why())
    bed.expect_whole(job, log)


@case
def python_saves_itself_and_goes_on(bed):
    job, out = started(bed, "on")
    wait_for(out, ["before", "goes on"])
    bed.expect_state(job, "running")
    bed.ok("kill", job)
    bed.ok("restore", "own")
    wait_for(out, ["before", "after", "restored"])  # it is the file that it was
    expect(lines(out + ".after-own") == ["goes on"], "what was written since is not kept")


WITH_FILE = """
import sys, threading
import brumate

data = open(sys.argv[1], "r+b", buffering=0)
print("ready", flush=True)
restored = brumate.checkpoint(name="own", with_files=True, tcp_close=True, tcp_skip_in_flight=True, drop_external=True,
                              compress="lz4")
if not restored:
    data.write(b"two")
data.seek(0)
print("asked", int(restored), data.read().decode(), flush=True)
threading.Event().wait()
"""


def file_comes_back(bed, path, job):
    """One that the program has changed since it was saved."""
    log = bed.log(job)
    log.wait_until(lambda text: "asked 0 two" in text, "the program to be told of the checkpoint", 60)
    bed.ok("kill", job)
    expect(lines(path) == ["two"], "the file is not that of the program")
    bed.ok("restore", "own")
    log.wait_until(lambda text: text.rstrip().endswith("asked 1 one"), "the program to have its file again", 60)
    expect(lines(path) == ["one"], "the file is not as it was")


def data_file(bed):
    path = os.path.join(bed.dir, "data")
    with open(path, "w", encoding="utf-8") as file:
        file.write("one")
    return path


@case
def python_saves_itself_with_its_files(bed):
    path = data_file(bed)
    file_comes_back(bed, path, bed.run([sys.executable, "-c", WITH_FILE, path], env={
        "PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate}))


@case
def c_program_saves_itself_with_its_files(bed):
    path = data_file(bed)
    file_comes_back(bed, path, bed.run([bed.program("asks"), "files", "own", path], env={"BRUMATE_COMMAND": bed.brumate}))


TWICE = """
import threading
import brumate

restored = brumate.checkpoint(leave_running=True, name="own")
print("ready", "restored" if restored else "goes on", flush=True)
if restored:
    brumate.checkpoint(leave_running=True, name="again")
    print("saved again", flush=True)
threading.Event().wait()
"""


def saved_twice(bed):
    return bed.run([sys.executable, "-c", TWICE],
                   env={"PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate})


@case
def python_saves_itself_where_its_pid_was_taken(bed):
    """In a pid namespace the numbers in the records of jobs mean nothing."""
    job = saved_twice(bed)
    bed.log(job).wait_for("^ready goes on$")
    pid = bed.pid(job)
    bed.end(job)
    bed.take_pid(pid)
    bed.ok("restore", "own")
    bed.log(job).wait_for("^saved again$")
    expect(bed.job(job)["pid_namespace"] and bed.state(job) == "running", f"{bed.job(job)}")


LOOKS = """
import os, subprocess, sys, time
command, out = sys.argv[1:]
print("ready", "to look", flush=True)
while True:
    if os.path.exists(out + ".go"):
        os.unlink(out + ".go")
        for verb in ("ps", "resume"):
            words = ["--format", "json"] if verb == "ps" else [open(out + ".job").read()]
            done = subprocess.run([command, verb, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            open(out + ".new", "w").write(done.stdout + done.stderr)
            os.rename(out + ".new", out + "." + verb)
    time.sleep(0.02)
"""


@case
def jobs_outside_are_not_taken_for_ended(bed):
    """A process of a job in a pid namespace cannot see those of the others, whatever numbers their records have."""
    out = os.path.join(bed.dir, "looked")
    looker, log = bed.started([sys.executable, "-u", "-c", LOOKS, bed.brumate, out])
    pid = bed.pid(looker)
    bed.operation("checkpoint", looker)
    bed.take_pid(pid)
    bed.operation("restore", looker)
    expect(bed.job(looker)["pid_namespace"], "this test proves nothing: it is in no namespace")
    other, other_log = bed.counter()
    with open(out + ".job", "w", encoding="ascii") as file:
        file.write(other)
    bed.kill_shim(other)
    with open(out + ".go", "wb"):
        pass
    told = json.loads(wait_until(lambda: read_text(out + ".ps"), "what ps says in there", 60))
    states = {entry["id"]: entry["state"] for entry in told["jobs"]}
    expect(states == {looker: "running", other: "running"}, f"in there they are {states}")
    wait_until(lambda: os.path.exists(out + ".resume"), "what resume says in there", 90)
    bed.cli("kill", "--signal", "CONT", other)  # starts a shim where there is none
    bed.expect_whole(other, other_log)


@case
def a_copy_saves_itself(bed):
    """It is the copy that is saved, though all in it but its pid namespace speaks of the other job."""
    job = saved_twice(bed)
    bed.log(job).wait_for("^ready goes on$")
    copy = bed.operation("restore", "own", "--name", "fork")["job"]
    bed.jobs.append(copy)
    bed.log(copy).wait_for("^saved again$")
    manifest = bed.ok("inspect", "again", "--format", "json").json()["manifest"]
    expect(manifest["job"]["id"] == copy, f"it is of job {manifest['job']['id']}, not of {copy}")
    expect("again" not in bed.log(job).text(), bed.log(job).text())
    for who in (job, copy):
        bed.expect_state(who, "running")


@case
def python_saves_itself_and_ends(bed):
    job, out = started(bed, "end")
    bed.wait_state(job, ("checkpointed",))
    expect(lines(out) == ["before"], f"{lines(out)}")
    bed.ok("restore", job)
    wait_for(out, ["before", "after", "restored"])


AGAIN = """
import os, subprocess, time
import brumate

def running():
    return subprocess.run([os.environ["BRUMATE_COMMAND"], "ps", "--quiet", "--filter", "state=running"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.split()

for name in ("first", "second"):
    brumate.checkpoint(leave_running=False, name=name)
    deadline = time.monotonic() + 30  # it goes on a moment before the restore is at its end
    while not (seen := running()) and time.monotonic() < deadline:
        time.sleep(0.05)
    print("restored", name, seen, flush=True)
"""


@case
def python_saves_itself_each_time(bed):
    """A restored program has a clock of its own, by which it still finds its job running, and is saved again."""
    job = bed.run([sys.executable, "-c", AGAIN],
                  env={"PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate})
    for name in ("first", "second"):
        wait_until(lambda name=name: bed.job(job)["checkpoint"] == name and bed.state(job) == "checkpointed",
                   f"checkpoint {name}", 60)
        bed.ok("restore", job)
        bed.log(job).wait_for(rf"^restored {name} \['{job}'\]$")


@case
def python_is_told_why_not(bed):
    """No job, no command, and a checkpoint that fails: an exception each, and the program runs on."""
    ask = "import brumate\ntry:\n    brumate.checkpoint()\nexcept brumate.BrumateError as e:\n    print(e.exit_code, e)"
    result = python(bed, ask)
    expect(result.code == 0 and "3 this process is not of a job (start its program" in result.out, result.why() + result.out)
    result = python(bed, ask, BRUMATE_COMMAND="/nonexistent/brumate")
    expect(result.code == 0 and "install brumate" in result.out, result.why() + result.out)
    bed.fault("checkpoint.criu.begin", "error:5")
    out = os.path.join(bed.dir, "out")
    program = ask + "\nimport threading; threading.Event().wait()"
    job = bed.run([sys.executable, "-u", "-c", f"import sys; sys.stdout = open({out!r}, 'w', buffering=1)\n" + program],
                  env={"PYTHONPATH": PYTHON, "PYTHONDONTWRITEBYTECODE": "1", "BRUMATE_COMMAND": bed.brumate})
    wait_until(lambda: lines(out), "the program to be told", 60)
    expect("checkpoint" in lines(out)[0] and not bed.checkpoints(), f"{lines(out)}")
    bed.expect_state(job, "running")


@case
def c_program_saves_itself(bed):
    job = bed.run([bed.program("asks"), "end", "own"], env={"BRUMATE_COMMAND": bed.brumate})
    bed.wait_state(job, ("checkpointed",))
    bed.ok("restore", job)
    bed.log(job).wait_until(lambda text: text == "ready asks\nasked 1 \n", "the program to be told of the restore", 60)


def operate_on_another(bed):
    job, log = bed.counter(name="other", mib=16)

    def asks(*words, **env):
        done = run([bed.program("asks"), *words], env=environment(bed, **env), **bed.whose)
        expect(done.code == 0, done.why())
        code, _, text = done.out.rstrip("\n").partition(" ")
        return -int(code), text

    for verb, state in (("suspend", "suspended"), ("suspend", "suspended"), ("resume", "running"), ("resume", "running")):
        expect(asks(verb, "other") == (0, ""), verb)
        bed.expect_state(job, state)
    log.goes_on()
    expect(asks("checkpoint", job, "by-c") == (0, "") and bed.checkpoints() == ["by-c"], "a checkpoint")
    log.goes_on()
    code, text = asks("restore", "other")
    expect(code == errno.EBUSY and "running" in text, f"{code} {text}")
    bed.ok("checkpoint", job)
    code, text = asks("suspend", "other")
    expect(code == errno.EBUSY and "checkpointed" in text, f"{code} {text}")
    expect(asks("restore", "other", "", "reaps") == (0, ""), "a program that reaps all children")
    log.goes_on()
    for name in ("NULL", "", "-a", "--all", "a b", "a\nb", "/other", "ot*", "o\xe9"):
        for verb in ("suspend", "resume", "checkpoint", "restore"):
            code, text = asks(verb, name)
            expect(code == errno.EINVAL and "not the name of a job: " in text, f"{verb} {name!r}: {code} {text}")
    expect(asks("checkpoint", "other", "-x")[0] == errno.EINVAL, "a name that is an option")
    expect(asks("checkpoint", "other", "x/y")[0] == errno.EINVAL, "a name with a slash")
    expect(asks("flags", "other", "x")[0] == errno.EINVAL, "unknown flags")
    code, text = asks("resume", "nosuch")
    expect(code == errno.ESRCH and text == "no job nosuch", f"{code} {text}")
    expect(asks("suspend", "other", BRUMATE_COMMAND="/nonexistent/brumate")[0] == errno.ENOENT, "no command")
    bed.expect_whole(job, log)
    expect(len(bed.checkpoints()) == 2, f"{bed.checkpoints()}")


@case
def c_program_operates_on_another_job(bed):
    operate_on_another(bed)


@case
@as_user
def c_program_of_a_user_operates_on_another_job(bed):
    operate_on_another(bed)


@case
def c_program_goes_on(bed):
    job = bed.run([bed.program("asks"), "on", "own"], env={"BRUMATE_COMMAND": bed.brumate})
    bed.log(job).wait_until(lambda text: text == "ready asks\nasked 0 \n", "the program to be told of the checkpoint", 60)
    bed.expect_state(job, "running")
    bed.ok("kill", job)
    bed.ok("restore", "own")
    bed.log(job).wait_until(lambda text: text.endswith("asked 1 \n"), "the program to be told of the restore", 60)


@case
def c_program_whose_shim_ends(bed):
    """The shim is replaced while it makes the checkpoint that was asked for: the program is told, and asks again."""
    bed.fault("checkpoint.gate.end", "kill")
    job = bed.run([bed.program("asks"), "on", "own", "again"], env={"BRUMATE_COMMAND": bed.brumate})
    bed.log(job).wait_until(lambda text: text == "ready asks\nasked -4 checkpoint own: the shim ended while it made the "
                            "checkpoint\nasked 0 \n", "the program to be told, and to be saved", 60)
    bed.expect_state(job, "running")
    bed.ok("kill", job)
    bed.ok("restore", "own")
    bed.log(job).wait_until(lambda text: text.endswith("asked 1 \n"), "the program to be told of the restore", 60)


@case
def c_program_whose_shim_ends_too_late(bed):
    """The checkpoint was complete: that is what the program is told."""
    bed.fault("checkpoint.commit.end", "kill")
    job = bed.run([bed.program("asks"), "on", "own"], env={"BRUMATE_COMMAND": bed.brumate})
    bed.log(job).wait_until(lambda text: text == "ready asks\nasked 0 \n", "the program to be told of the checkpoint", 60)
    bed.expect_state(job, "running")
    expect(bed.checkpoints() == ["own"], f"{bed.checkpoints()}")


@case
def c_program_restored_after_a_reboot(bed):
    """It may have been made as many ticks after that start of the machine as before. A stand-in for brumate, and for the
    kernel's name of the start."""
    boot_id, out, command = (os.path.join(bed.dir, name) for name in ("boot_id", "out", "brumate"))
    reply = json.dumps({"asked": {"checkpoint": "own", "dir": "/nowhere", "answer": "/nowhere/asked"}}, indent=1)
    for path, text in ((boot_id, "one\n"), (command, f"#!/bin/sh\n: >{boot_id}.asked\ncat <<E\n{reply}\nE\n")):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    os.chmod(command, 0o755)
    script = f'mount --bind {boot_id} /proc/sys/kernel/random/boot_id && exec "$0" on own >{out}'
    program = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, bed.program("asks")],
                               env=environment(bed, BRUMATE_COMMAND=command))
    try:
        wait_until(lambda: os.path.exists(boot_id + ".asked"), "the program to ask")
        expect(lines(out) == ["ready asks"], f"{lines(out)}")
        with open(boot_id, "w", encoding="utf-8") as file:
            file.write("two\n")
        wait_for(out, ["ready asks", "asked 1 "])
    finally:
        program.kill()
        program.wait()


@case
def no_program_waits_for_an_answer_that_cannot_be_read(bed):
    """The job's directory is gone, by a cleaner. A stand-in for brumate."""
    command = os.path.join(bed.dir, "brumate")
    reply = json.dumps({"asked": {"checkpoint": "own", "dir": "/nowhere", "answer": "/nowhere/asked"},
                        "checkpoint": "own", "dir": "/nowhere", "answer": "/nowhere/asked"}, indent=1)
    with open(command, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncat <<E\n{reply}\nE\n")
    os.chmod(command, 0o755)
    script = "import brumate\ntry:\n    brumate.checkpoint()\nexcept brumate.BrumateError as error:\n    print('asked', error)"
    programs = [subprocess.Popen(argv, env=environment(bed, BRUMATE_COMMAND=command), stdout=subprocess.PIPE, text=True)
                for argv in ([bed.program("asks"), "end", "own"], [sys.executable, "-c", script])]
    for program in programs:
        try:
            out = program.communicate(timeout=60)[0]
        finally:
            program.kill()
        expect(re.search(r"asked (-5 )?checkpoint own: how it went cannot be read: /nowhere/asked: No such file", out), out)


@case
def c_program_is_told_why_not(bed):
    result = run([bed.program("asks"), "end", "own"], env=environment(bed))
    expect(result.code == 0 and "asked -3 this process is not of a job" in result.out, result.why() + result.out)
    result = run([bed.program("asks"), "end", "own"], env=environment(bed, BRUMATE_COMMAND="/nonexistent/brumate"))
    expect(result.code == 0 and "asked -2 /nonexistent/brumate: No such file" in result.out, result.why() + result.out)


@case
def python_package_installs(bed):
    """By pip, without a network."""
    if run([sys.executable, "-m", "pip", "--version"]).code:
        raise Skipped("there is no pip")
    place = os.path.join(bed.dir, "installed")
    result = run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir",
                  "--disable-pip-version-check", "--no-build-isolation", "--target", place, PYTHON])
    expect(result.code == 0, result.why())
    shown = subprocess.run([sys.executable, "-c", "import brumate; print(brumate.__file__, brumate.version())"],
                           env={**environment(bed), "PYTHONPATH": place}, stdout=subprocess.PIPE, text=True, check=True)
    expect(shown.stdout.startswith(place), shown.stdout)


TYPED = """
import brumate

job = brumate.Job("train")
summary: brumate.Summary = job.checkpoint(leave_running=True)
%s
"""


@case
def python_package_is_typed(bed):
    """A strict checker takes the package, and what it is told of it is what catches a mistake of its user."""
    if not shutil.which("mypy"):
        raise Skipped("mypy is not installed")
    package = os.path.join(bed.dir, "brumate")
    shutil.copytree(os.path.join(PYTHON, "brumate"), package, ignore=shutil.ignore_patterns("__pycache__"))

    def checked(*words):
        return run(["mypy", "--strict", "--cache-dir", os.path.join(bed.dir, "cache"), *words], cwd=bed.dir, timeout=200)

    done = checked(package)
    expect(done.code == 0, done.why() + done.out)
    for name, line in (("right", "with job.paused(): pass"), ("wrong", "job.checkpoint(leave_runing=True)")):
        with open(os.path.join(bed.dir, name + ".py"), "w", encoding="utf-8") as file:
            file.write(TYPED % line)
    done = checked("right.py", "wrong.py")
    expect(done.code == 1 and "right.py" not in done.out and 'wrong.py:6: error: Unexpected keyword argument "leave_runing"'
           in done.out, done.why() + done.out)


main()
