#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a person sees at a terminal of operations and of jobs."""

import datetime
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

from as_root import env_of_root, needs_root
from cases import (EXIT_PERMISSION, EXIT_UNSUPPORTED, EXIT_USAGE, Skipped, as_user, at_terminal, case, expect, main, read_text, run,
                   wait_until)

TIME = r"(<1 ms|\d+ ms|[\d.]+ s|\d+m\d+s)"
SIZE = r"[\d.]+ ([KMG]i)?B"


@case
def one_plain_line_after_an_operation(bed):
    job, log = bed.counter(name="train", mib=32)
    store = bed.store()
    for args, words in ((("suspend", job), rf"suspended job train in {TIME}: {SIZE} at [\d.]+ GB/s; now in host memory"),
                        (("resume", job), rf"resumed job train in {TIME}: {SIZE} at [\d.]+ GB/s, stood still {TIME}; "
                                          "back on the GPU"),
                        (("suspend", "--park", job), rf"suspended job train in {TIME}: .*; left on the GPU"),
                        (("resume", job), r"resumed job train in .*"),
                        (("checkpoint", job, "--leave-running", "--name", "one"),
                         rf"checkpointed job train in {TIME}: {SIZE} at [\d.]+ GB/s, stood still {TIME}, "
                         rf"copied behind it in {TIME}; now in {store}/one"),
                        (("checkpoint", job, "--name", "two"),
                         rf"checkpointed job train in {TIME}: {SIZE} at [\d.]+ GB/s; now in {store}/two"),
                        (("restore", job), rf"restored job train in {TIME}: {SIZE} at [\d.]+ GB/s.* from {store}/two")):
        result = bed.ok(*args)
        lines = [line for line in result.err.splitlines() if not line.startswith("note: ")]
        expect(len(lines) == 1 and re.fullmatch(words, lines[0]), f"{args}: {result.err!r}")
        expect(result.out in (f"{job}\n", "one\n", "two\n"), f"{args}: {result.out!r} on stdout")
    bed.expect_whole(job, log)


@case
def phases_by_stats(bed):
    job, _ = bed.counter(mib=32)
    shown = bed.ok("suspend", "--stats", job).err
    names = re.findall(r"^  ([a-z-]+) +\S+ ?\w* +\S+ \w+$", shown, re.MULTILINE)
    expect({"identify", "gate", "park", "settle"} <= set(names), f"{names} of {shown}")
    expect(re.search(rf"^  {SIZE} of device memory$", shown, re.MULTILINE), shown)
    with open(os.path.join(bed.build.path, "docs", "man", "brumate.1"), encoding="utf-8") as file:
        page = file.read().replace("\\-", "-")
    for name in names:
        expect(re.search(rf"\b{name}\b", page), f"brumate(1) does not explain {name}")
    bed.ok("resume", job)


@case
def no_summary_names_a_checkpoint_that_it_did_not_make(bed):
    job, _ = bed.counter(mib=16)
    expect(bed.operation("checkpoint", job, "--leave-running", "--name", "one")["checkpoint"] == "one", "its own")
    for verb in ("suspend", "resume"):
        expect(bed.operation(verb, job)["checkpoint"] is None, f"{verb} names a checkpoint")


@case
def progress_at_a_terminal(bed):
    job, _ = bed.counter(mib=32)
    bed.fault("suspend.settle.begin", "delay:1000")  # so that there is something to wait for
    code, shown = at_terminal(bed, None, "suspend", job)
    expect(code == 0 and re.search(r"\rsuspend \[\d+/\d+\] [a-z-]+ ", shown), f"{code}: no progress: {shown!r}")
    expect(shown.rstrip().endswith(job), f"the id is not the last: {shown!r}")
    bed.ok("resume", job)


@case
def several_jobs_at_once(bed):
    jobs = [bed.counter(name=name, mib=16)[0] for name in ("one", "two")]
    expect(bed.ok("suspend", "one", "two").out.split() == jobs, "suspend does not print both ids")
    expect([bed.job(job)["state"] for job in jobs] == ["suspended"] * 2, "not both are suspended")
    expect(bed.ok("resume", "two", "one").out.split() == jobs[::-1], "not in the order in which they are named")
    expect([bed.job(job)["state"] for job in jobs] == ["running"] * 2, "not both go on")
    for verb in ("resume", "release"):
        refused = bed.cli(verb, "nosuch", "neither", "nor-this")
        told = re.findall(r"no job (\S+)", refused.err)
        expect(refused.code == 3 and told == ["nosuch", "neither", "nor-this"], refused.why())


@case
def all_jobs(bed):
    def listed(*states):
        return [bed.job(job)["state"] for job in jobs] == list(states)

    for verb in ("suspend", "resume", "checkpoint", "kill"):
        expect(bed.ok(verb, "--all").out == "", f"{verb} --all: there is none")
        refused = bed.refused(2, "unknown option --latest", verb, "--latest")
        expect("`brumate ps -q`" in refused.err, refused.why())
    jobs = [bed.counter(name=name, mib=16)[0] for name in ("one", "two", "three")]
    for option, other, verb, *words in (("--all", "the name of a job", "suspend", "one", "--all"),
                                        ("--all", "--pid", "checkpoint", "--pid", "1", "--all")):
        bed.refused(2, f"{verb}: {option} cannot be combined with {other}", verb, *words)
    bed.refused(2, "--name takes one job", "checkpoint", "--all", "--name", "x")
    bed.refused(2, "--name takes one job", "checkpoint", "one", "two", "--name", "x")
    bed.refused(2, "kill: missing operand, expected JOB...", "kill")

    bed.ok("suspend", "three")
    expect(bed.ok("suspend", "-a").out.split() == jobs[:2], "not all that run")
    expect(listed("suspended", "suspended", "suspended"), "not all are suspended")
    expect(bed.ok("resume", "--all").out.split() == jobs and listed(*["running"] * 3), "not all go on")
    saved = bed.ok("checkpoint", "--all", "--leave-running").out.split()
    expect(len(saved) == 3 and set(saved) == set(bed.checkpoints()), f"{saved} of {bed.checkpoints()}")
    expect(bed.ok("checkpoint", "--all", "--every", "1h").out.split() == jobs, "not all have a schedule")
    bed.ok("checkpoint", "--all", "--every", "0")
    bed.ok("kill", "three")
    expect(bed.ok("kill", "--all").out.split() == jobs[:2] and listed(*["exited"] * 3), "kill --all")


# What of a command line is offered, by a shell that joins no words of its own at "=".
OFFERED = (("susp", "suspend"), ("suspend tr", "train"), ("restore week", "weekend"), ("prune --job t", "train"),
           ("kill --signal SE", "SEGV"), ("kill -s TTI", "TTIN"),
           ("run --label te", "team=vision"), ("ps --filter state=exi", "state=exited"), ("ps --filter na", "name=train"), ("ps --filter label=te", "label=team=vision"),
           ("resume --gpu-map 0=", "0=1"), ("restore --gpu-map 0=1,1=", "0=1,1=0"), ("completion f", "fish"),
           ("run --log=only", "--log=only-one"), ("run --log only", "only-one"))


def with_completion(bed, shell, name):
    """What a shell needs to find brumate, and its script in a directory for it."""
    if not shutil.which(shell):
        raise Skipped(f"{shell} is not installed")
    job, _ = bed.counter(name="train", mib=16, options=["--label", "team=vision"])
    bed.ok("checkpoint", job, "--leave-running", "--name", "weekend")
    folder = os.path.join(bed.dir, "completion")
    os.mkdir(folder)
    os.mkfifo(os.path.join(folder, "only-one"))
    with open(os.path.join(folder, name), "w", encoding="utf-8") as script:
        script.write(bed.ok("completion", shell).out)
    return folder, bed.command_env() | {"PATH": os.path.dirname(bed.brumate) + ":" + os.environ["PATH"],
                                        "HOME": folder, "TERM": "dumb"}


@case
def completion_in_bash(bed):
    """A real bash reads the script and completes by it."""
    folder, env = with_completion(bed, "bash", "brumate")

    def offered(*words):
        script = """. ./brumate; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _brumate; echo "${COMPREPLY[@]}\""""
        done = run(["bash", "-c", script, "bash", "brumate", *words], env=env, cwd=folder)
        expect(done.code == 0 and not done.err, f"{words}: {done.why()}")
        return done.out.strip()

    for line, meant in OFFERED:
        words = re.split(r"(=)| ", line) if "=" in line else line.split(" ")
        words = [word for word in words if word is not None]
        if words[-2:] == ["=", ""]:
            words.pop()
        last = meant[line.rpartition(" ")[2].rfind("=") + 1:]
        expect(offered(*words) == last, f"{words}: {offered(*words)}")
    job = bed.ok("ps", "-q").out.strip()
    for line, meant in (("suspend " + job[:6], job), ("kill --signal US", "USR1 USR2"), ("resume --gpu-map ", "0=1 1=0"),
                        ("resume --gpu-map = 1", "1=0"), ("kill --signal = TTI", "TTIN"), ("kill --al", "--all")):
        expect(offered(*line.split(" ")) == meant, f"{line}: {offered(*line.split(' '))}")


@case
def completion_in_fish(bed):
    folder, env = with_completion(bed, "fish", "brumate.fish")
    done = run(["fish", "--no-config", "-c", "source brumate.fish; for line in $argv; complete -C $line; end"] +
               ["brumate " + line for line, _ in OFFERED], env=env, cwd=folder)
    offered = [row.split("\t")[0] for row in done.out.splitlines()]
    expect(done.code == 0 and not done.err and offered == [meant for _, meant in OFFERED], done.why() + done.out)


@case
def completion_in_zsh(bed):
    """Somebody types at a zsh, with the Tab key at the end of each line."""
    folder, env = with_completion(bed, "zsh", "_brumate")
    ours, theirs = pty.openpty()
    zsh = subprocess.Popen(["zsh", "-f", "-i"], env=env, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
                           start_new_session=True)
    os.close(theirs)
    shown = ""

    def typed(line, until):
        nonlocal shown
        os.write(ours, line.encode())
        deadline, start = time.monotonic() + 60, len(shown)
        while until not in shown[start:]:
            left = max(deadline - time.monotonic(), 0)
            expect(select.select([ours], [], [], left)[0], f"{line!r}: no {until!r}: {shown[start:]!r}")
            shown += os.read(ours, 4096).decode()

    try:
        typed("shown() { print -r -- \"<${(j:|:)@}>\" }; PS1=; unsetopt zle_bracketed_paste beep; fpath=($PWD $fpath); "
              "autoload -U compinit; compinit -u -D; compdef _brumate shown; shown is ready\r", "<is|ready>")
        for line, meant in OFFERED:
            words = line.split(" ")
            typed("shown " + line + "\t\r", f"<{'|'.join(words[:-1] + [meant])}>")
    finally:
        zsh.kill()
        zsh.wait()
        os.close(ours)


@case
def jobs_by_rule_and_in_colour(bed):
    names = ("beta", "alpha", "gamma")
    jobs = {name: bed.counter(name=name, mib=16)[0] for name in names}
    bed.ok("suspend", "gamma")

    def listed(*options):
        return bed.ok("ps", "-q", *options).out.split()

    expect(listed() == [jobs[name] for name in names], "the oldest first")
    expect(listed("--sort", "name") == [jobs[name] for name in sorted(names)], "by name")
    expect(listed("--filter", "state=suspended") == [jobs["gamma"]], "by state")
    expect(listed("--filter", "state=running,name=alpha") == [jobs["alpha"]], "by state and name")
    bed.refused(2, 'color=red|"color" is not KEY=VALUE', "ps", "--filter", "color=red")
    bed.refused(2, '"running" is not KEY=VALUE', "ps", "--filter", "running")
    _, shown = at_terminal(bed, None, "ps")
    expect("\x1b[32mrunning\x1b[0m" in shown and "\x1b[33msuspended\x1b[0m" in shown, f"{shown!r}")
    expect("\x1b" not in bed.ok("ps").out, "colours in a pipe")
    bed.ok("resume", "gamma")


READY = "print('ready 1 0'); print('step 1 OK'); __import__('signal').pause()"


@case
def what_a_terminal_obeys_is_never_printed(bed):
    """Words of others, in UTF-8 or not, through a pipe as well: controls of C0 and C1, and those of direction."""
    words = "\x1b[31m", "\x85\x9b31m", "gpj.\u202egnp", "\u2066x\u2069", "caf\udce9\udc9b"  # the last is no UTF-8
    obeyed = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffd]")
    job, _ = bed.started([sys.executable, "-u", "-c", READY, *words[:-1]])
    outputs = [bed.ok("ps"), bed.ok("inspect", job), bed.ok("inspect", job, "--format", "json"), bed.ok("ps", "--format", "json"),
               bed.ok("doctor", "--job", job)]
    for word in words:
        outputs += [bed.cli("restore", word), bed.cli("suspend", word), bed.cli("run", "--name", word, "true"),
                    bed.cli("restore", "--dir", "/" + word, "x"), bed.cli(word), bed.cli("run", "/" + word)]
    for result in outputs:
        found = obeyed.search(result.out + result.err)
        expect(not found, f"{result.line()!a} prints {(result.out + result.err)!a}")
    value = bed.ok("inspect", job, "--format", "json").json()
    argv = value["job"]["argv"]
    expect(argv[-len(words) + 1:] == list(words[:-1]), f"JSON says {value!a}")
    bed.end(job)


def rows_of(table):
    """A table as a list of {heading: cell}: cells stand under their headings, apart from blanks beside them."""
    head, *lines = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    names = head.split()
    rows = []
    for line in lines:
        cells = re.split(r" {2,}", line.strip())
        expect(len(cells) == len(names), f"{cells} under {names}, at {starts}")
        rows.append(dict(zip(names, cells)))
    return rows


@case
def where_jobs_are(bed):
    """GPUs and memory of each job, as its broker tells; of what nobody can tell, none is said."""
    bed.counter(name="zero", mib=16)
    bed.counter(name="one", mib=48, gpu=1)
    idle = bed.run(["sleep", "1000"], name="idle")
    bed.ok("doctor")  # starts a broker
    jobs = {job["name"]: job for job in bed.list("ps", "jobs")}
    expect([[gpu["index"] for gpu in jobs[name]["gpus"]] for name in ("zero", "one", "idle")] == [[0], [1], []], f"{jobs}")
    expect(jobs["one"]["gpus"][0]["bytes"] >= jobs["zero"]["gpus"][0]["bytes"] + (32 << 20), f"{jobs}")
    expect(jobs["idle"]["host_bytes"] > 0 and jobs["one"]["needs"] is None, f"{jobs}")
    rows = {row["NAME"]: row for row in rows_of(bed.ok("ps").out)}
    expect([rows[name]["GPU"] for name in ("zero", "one", "idle")] == ["0", "1", "none"], f"{rows}")
    expect(re.fullmatch(SIZE, rows["one"]["GPU-MEM"]) and re.fullmatch(SIZE, rows["idle"]["HOST-MEM"]), f"{rows}")
    expect(rows["idle"]["GPU-MEM"] == rows["one"]["SAVED"] == rows["one"]["NEXT"] == "-", f"{rows}")

    def listed(rule):
        return [row["NAME"] for row in rows_of(bed.ok("ps", "--filter", rule).out)]

    expect(listed("gpu=1") == ["one"] == listed("gpu=" + jobs["one"]["gpus"][0]["uuid"]), "by GPU")
    bed.ok("suspend", "one")
    expect(listed("gpu=1") == [] and listed("gpu=none") == ["one", "idle"], "a suspended job is on none")
    job = bed.job("one")
    expect(job["needs"][0]["bytes"] >= 48 << 20 and job["gpus"] == [], f"{job}")
    bed.ok("resume", "one")
    bed.ok("checkpoint", "zero", "--every", "1h")
    bed.ok("checkpoint", "zero", "--leave-running")
    row = {row["NAME"]: row for row in rows_of(bed.ok("ps").out)}["zero"]
    expect(re.fullmatch(r"\d+s", row["SAVED"]) and row["NEXT"] in ("59m", "60m"), f"{row}")
    bed.end(idle)


@case
def labels(bed):
    """They stay with a job and its checkpoints, and jobs are found by them."""
    job, _ = bed.counter(name="train", options=["--label", "team=vision", "--label", "gpus=a, b=c"])
    bed.counter(name="other", options=["--label=team=speech"])
    given = {"team": "vision", "gpus": "a, b=c"}
    expect(bed.job(job)["labels"] == given, f"{bed.job(job)['labels']}")

    def listed(rule):
        return [row["NAME"] for row in rows_of(bed.ok("ps", "--filter", rule).out)]

    expect(listed("label=team") == ["train", "other"] and listed("label=team=vision") == ["train"], "by label")
    expect(listed("label=tea") == [] == listed("label=team=vis") and listed("label=team,name=other") == ["other"], "by label")
    page = bed.ok("inspect", job).out
    expect(re.search("^label +gpus=a, b=c\nlabel +team=vision$", page, re.MULTILINE), page)
    bed.ok("checkpoint", job, "--name", "saved")
    manifest = bed.ok("inspect", "saved", "--format", "json").json()["manifest"]
    expect(manifest["job"]["labels"] == ["gpus=a, b=c", "team=vision"], f"{manifest['job']}")
    bed.ok("rm", "--job", job)
    bed.ok("restore", "saved")
    expect(bed.job(job)["labels"] == given, "a restore without the record loses them")
    for words, why in ((["x"], '"x" is not KEY=VALUE'), (["=x"], 'label "=x"'), (["a=1", "a=2"], "a is given twice"),
                       (["-a=1"], 'label "-a=1"'), (["a=" + 256 * "x"], 'label "a=x'), (["a=\n"], 'label "a='),
                       ([f"k{i}=" for i in range(65)], "more than 64 labels")):
        bed.refused(2, why, "run", *[f"--label={word}" for word in words], "--", "true")
    expect(len(bed.list("ps", "jobs")) == 2, "a refusal left a job")


@case
def a_page_about_a_job(bed):
    job, _ = bed.counter(name="train", mib=32)
    bed.ok("checkpoint", job, "--leave-running", "--name", "weekend")
    bed.ok("checkpoint", job, "--every", "1h", "--keep-last", "3")
    page = bed.ok("inspect", job).out
    facts, *rest = page.split("\n\n")
    parts = {part.splitlines()[0]: "\n".join(part.splitlines()[1:]) for part in rest}
    expect(list(parts)[:5] == ["GPUs", "Processes", "Files", "Schedule", "Checkpoints"], f"{list(parts)}")
    expect(list(parts)[5].startswith("Last operation: checkpoint in "), f"{list(parts)}")
    expect(re.search(rf"^job +{job} \(train\)$", facts, re.MULTILINE) and
           re.search(r"^state +running$", facts, re.MULTILINE), facts)
    gpu = rows_of(parts["GPUs"])[0]
    expect(gpu["GPU"] == "0" and gpu["UUID"].startswith("GPU-") and re.fullmatch(SIZE, gpu["MEMORY"]), f"{gpu}")
    process = rows_of(parts["Processes"].replace("IN PIECES", "BYTES").replace("BY DRIVER", "DRIVER"))[0]
    expect(process["PID"] == str(bed.pid(job)) and re.fullmatch(r"3\d\.\d MiB", process["BYTES"]), f"{process}")
    expect(int(process["PIECES"]) > 1, f"{process}")
    expect(bed.job(job)["log"] in parts["Files"], parts["Files"])
    schedule = rows_of(parts["Schedule"])[0]
    expect(schedule["EVERY"] == "1h00m" and schedule["KEEP"] == "3" and schedule["FAILED"] == "no", f"{schedule}")
    expect([row["ID"] for row in rows_of(parts["Checkpoints"])] == ["weekend"], parts["Checkpoints"])
    bed.ok("suspend", job)
    expect("Device memory that it needs again\n" in bed.ok("inspect", job).out, "what it needs")
    bed.ok("resume", job)
    expect("{" not in page and bed.ok("inspect", job, "--format", "json").json()["files"], "JSON")


class Screen:
    """A command of brumate that has a terminal for itself, and what it draws there."""

    ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"

    def __init__(self, bed, *args, columns=200, rows=50, env=None):
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.shown = ""
        self.process = subprocess.Popen([bed.brumate, *args], env=env or bed.command_env(), stdin=self.theirs, stdout=self.theirs,
                                        stderr=self.theirs, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def _read(self, deadline, what):
        expect(select.select([self.ours], [], [], max(deadline - time.monotonic(), 0))[0], f"no {what}: {self.shown[-2000:]!r}")
        self.shown += os.read(self.ours, 65536).decode(errors="replace")

    def wait_for(self, pattern, seconds=60):
        """Waits for a picture, drawn from now on, that has this."""
        deadline, start = time.monotonic() + seconds, len(self.shown)
        while not re.search(pattern, re.sub("\x1b\\[[0-9;]*m", "", self.shown[start:])):
            self._read(deadline, pattern)

    def typed(self, keys):
        os.write(self.ours, keys.encode())

    def end(self, seconds=60):
        """Its exit code; the terminal is what it was."""
        deadline = time.monotonic() + seconds
        while self.LEAVE not in self.shown[self.shown.rfind(self.ENTER):]:
            self._read(deadline, "end")
        code = self.process.wait(seconds)
        expect(termios.tcgetattr(self.theirs) == self.before, f"the terminal is not as before: {termios.tcgetattr(self.theirs)}")
        expect("\x1b[?25h" in self.shown and "\x1b[?7h" in self.shown, "the cursor is hidden")
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@case
def top_shows_what_goes_on(bed):
    job, _ = bed.counter(name="train", mib=32)
    bed.ok("doctor")  # starts a broker
    with Screen(bed, "top") as screen:
        screen.wait_for(r"brumate top +\d\d:\d\d:\d\d +jobs: 1, running: 1")
        expect(termios.tcgetattr(screen.theirs) != screen.before, "keys are shown")
        screen.wait_for(rf"0 +{SIZE} of {SIZE} +\d+% +[\d.]+ GB/s +[\d.]+ GB/s")
        screen.wait_for(rf"{job} +train +running")
        screen.wait_for("no operation in progress")
        with bed.held_at("suspend.data-out.begin", "suspend", job):
            screen.wait_for(r"train +suspend +\d+/\d+ data-out")
            screen.wait_for("suspending")
        screen.wait_for("suspended")
        screen.wait_for("no operation in progress")
        moved = bed.gpus()[0]
        expect(moved["out_bytes"] >= 32 << 20 and moved["in_bytes"] == 0 == moved["written_bytes"], f"{moved}")
        bed.ok("resume", job)
        screen.wait_for(rf"{job} +train +running")
        screen.typed("xq")
        expect(screen.end() == 0, "exit code")
    expect(bed.gpus()[0]["in_bytes"] >= 32 << 20, "what went in is not counted")


@case
def top_is_moved_by_keys(bed):
    for i in range(12):
        bed.run(["sleep", "1000"], name=f"job-{i:02}")
    with Screen(bed, "top", rows=12) as screen:
        screen.wait_for(r"(?s)brumate top +[\d:]+ +jobs: 12.*COMMAND")
        expect("job-00" not in screen.shown, "all of it fits")
        for down, up in (("G", "g"), ("   ", "bbb"), ("\x1b[6~" * 3, "\x1b[5~" * 3), ("j" * 20, "k" * 20), ("\x1b[B" * 20, "\x1b[A" * 20)):
            screen.typed(down)
            screen.wait_for("job-00")
            screen.typed(up)
            screen.wait_for(r"brumate top +[\d:]+ +jobs: 12")
        screen.typed("kkkq")
        expect(screen.end() == 0, "exit code")


@case
def top_sorts_and_folds(bed):
    """What lives is above what has ended, the newest first; and what ended long ago is not there until it is asked for."""
    old = bed.run(["true"], name="ended-job")
    bed.cli("wait", old)
    then = time.time() - 2 * 3600
    os.utime(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", old, "job.json"), (then, then))
    for name in ("b-first", "a-second", "c-third"):
        bed.run(["sleep", "1000"], name=name)
    with Screen(bed, "top") as screen:
        screen.wait_for(r"(?s)c-third.*a-second.*b-first(?!.*ended-job).*sorted by: newest; 1 more ended long ago")
        screen.typed("a")
        screen.wait_for(r"(?s)jobs: 4,.*c-third.*a-second.*b-first.*ended-job.*sorted by: newest\x1b")
        screen.typed("as")
        screen.wait_for(r"(?s)a-second.*b-first.*c-third.*sorted by: name")
        screen.typed("a")
        screen.wait_for(r"(?s)jobs: 3,.*sorted by: name; 1 more")
        screen.typed("ssss")
        screen.typed("q")
        expect(screen.end() == 0, "exit code")


@case
@as_user
def top_of_all_users(bed):
    """With whose each job is; a user who lets it wait is named, and holds no more than a picture up."""
    needs_root()
    bed.refused(EXIT_PERMISSION, "--all-users is for root", "top", "--all-users")
    job, _ = bed.counter(name="train", mib=16)
    with Screen(bed, "top", "--all-users", env=env_of_root(bed)) as screen:
        screen.wait_for(rf"(?s)USER +ID.*{bed.uid} +{job} +train +running")
        bed.ok("suspend", job)
        screen.wait_for(rf"{bed.uid} +{job} +train +suspended")
        planted = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", "cccccccc")
        os.mkdir(planted, 0o700)
        os.chown(planted, bed.uid, bed.uid)
        os.mkfifo(os.path.join(planted, "job.json"), 0o666)
        screen.wait_for(f"note: the jobs of user {bed.uid} cannot be looked at")
        shutil.rmtree(planted)
        screen.wait_for(rf"{bed.uid} +{job} +train +suspended")
        screen.typed("q")
        expect(screen.end() == 0, "exit code")
    bed.ok("resume", job)


@case
def the_terminal_after_top(bed):
    """It is what it was, whatever ends it; and it is given to the shell meanwhile, where it is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        with Screen(bed, "top") as screen:
            screen.wait_for("no operation")
            screen.process.send_signal(number)
            expect(screen.end() == 0, f"{number!r}")
    with Screen(bed, "top") as screen:
        screen.wait_for("no operation")
        screen.process.send_signal(signal.SIGSEGV)
        expect(screen.end() == -signal.SIGSEGV, "a crash")
    with Screen(bed, "top") as screen:
        screen.wait_for("no operation")
        screen.typed("\x03")
        expect(screen.end() == 0, "Ctrl-C")
    with Screen(bed, "top") as screen:
        screen.wait_for("no operation")
        screen.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: termios.tcgetattr(screen.theirs) == screen.before, "the terminal while it is stopped")
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for(re.escape(Screen.ENTER))
        screen.wait_for("no operation")
        screen.typed("q")
        expect(screen.end() == 0, "after a stop")
    bed.refused(2, "standard input and output are not a terminal", "top")
    expect("`brumate top`" in bed.refused(2, "unknown option --watch", "ps", "--watch").err, "top is not named")


@case
def jobs_without_a_broker(bed):
    """None is started to list jobs, and where they are is not said."""
    bed.counter(name="train", mib=16)
    if bed.broker():
        bed.ask_broker("Quit")
        wait_until(lambda: not bed.broker(), "the end of the broker")
    job = bed.job("train")
    expect(job["gpus"] is None and job["gpu_processes"] == 1, f"{job}")
    shown = bed.ok("ps", "--filter", "gpu=0")
    expect("train" not in shown.out and "the GPUs of 1 job are not known" in shown.err, shown.why() + shown.out)
    expect([row["GPU"] for row in rows_of(bed.ok("ps").out)] == ["-"], "GPU of a job")
    expect(not bed.broker(), "ps started a broker")


@case
def a_narrow_terminal(bed):
    bed.counter(name="train", mib=16)
    wide = bed.ok("ps").out.splitlines()[0].split()
    expect(wide[0] == "ID" and wide[-1] == "COMMAND" and "UID" in wide and "PROCS" in wide, f"{wide}")
    shown = {}
    for columns in (200, 80, 40):
        _, text = at_terminal(bed, None, "ps", columns=columns)
        lines = text.replace("\r", "").splitlines()
        shown[columns] = lines[0].split()
        expect(all(len(re.sub("\x1b\\[[0-9;]*m", "", line)) <= columns for line in lines), f"{columns}: {lines}")
    expect(shown[200] == wide, f"{shown}")
    expect({"ID", "NAME", "STATE", "GPU", "GPU-MEM", "COMMAND"} <= set(shown[80]) < set(wide), f"{shown}")
    expect("UID" not in shown[80] and set(shown[40]) < set(shown[80]), f"{shown}")


@case
def a_log_that_grows_large(bed):
    """Its beginning is given back to the disk; lines stay whole, and the job goes on in it after a restore."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Run]\nLogKeep=1M\n")
    script = ("import sys, time\nfor i in range(200000): print(f'line {i:06} ' + 60 * '.')\nprint('ready now', flush=True)\n"
              "for i in range(1 << 30):\n print('step', i, 'OK', flush=True)\n time.sleep(0.1)")
    job, log = bed.python(script)
    path = bed.job(job)["log"]
    # As often as it was: what is left is not worth another time.
    wait_until(lambda: os.stat(path).st_blocks * 512 <= 9 << 18, "the log to be shortened", 60)
    expect(os.stat(path).st_size > 13 << 20, "its length")
    shown = bed.ok("logs", job)
    lines = shown.out.splitlines()
    expect(re.search("^note: [\\d.]+ MiB of the log are gone", shown.err), shown.err)
    expect(re.fullmatch(r"line \d{6} \.{60}", lines[0]) and "\0" not in shown.out, f"{lines[:2]}")
    first = int(lines[0].split()[1])
    expect([line.split()[1] for line in lines if line.startswith("line")] ==
           [f"{i:06}" for i in range(first, 200000)], "lines are missing")
    last = bed.ok("logs", "--tail", "100", job)
    expect(len(last.out.splitlines()) == 100 and "gone" not in last.err, last.err)
    whole = bed.ok("logs", "--tail", "1000000", job).out.splitlines()
    expect(whole[0] == lines[0], f"{whole[0]}")
    stamped = bed.ok("logs", "--timestamps", job).out.splitlines()
    expect(re.fullmatch(r"\d{4}-.*Z line \d{6} \.{60}", stamped[0]), stamped[0])
    bed.ok("checkpoint", job)
    size = os.stat(path).st_size
    bed.ok("restore", job)
    wait_until(lambda: os.stat(path).st_size > size, "the job to go on in its log")
    expect("\0" not in bed.ok("logs", job).out, "holes are shown")


@case
def the_last_lines_of_a_log(bed):
    script = "import sys; sys.stdout.write(''.join(f'line {i}\\n' for i in range(50000)) + 'ready \\nhalf')"
    job = bed.run([sys.executable, "-c", script])
    bed.ok("wait", job)
    whole = bed.ok("logs", job).out
    lines = whole.splitlines(keepends=True)
    expect(len(lines) == 50002, f"{len(lines)} lines")
    for n in (1, 2, 3, 20000, 50001, 50002, 99999):
        expect(bed.ok("logs", "--tail", str(n), job).out == "".join(lines[-n:]), f"--tail {n}: other lines")
    expect(bed.ok("logs", "--tail", "0", job).out == "", "--tail 0 shows something")
    expect(bed.ok("logs", "--follow", "--tail", "2", job).out == "ready \nhalf", "--follow begins elsewhere")
    bed.fails(EXIT_USAGE, "logs", "--tail", "few", job)


@case
def the_last_lines_of_a_log_that_grows(bed):
    """What is written meanwhile is not shown: they are as many as asked for."""
    job, _ = bed.python("import time\nprint(9 * 'line\\n' + 'ready now', flush=True)\nfor i in range(1 << 40):\n print(f'line {i}', flush=True)\n"
                        " time.sleep(0.0001)")
    for _ in range(20):
        lines = bed.ok("logs", "--tail", "10", job).out.splitlines()
        expect(len(lines) == 10, f"{lines}")


@case
def the_tail_of_an_empty_log(bed):
    job = bed.run(["/bin/true"])
    bed.ok("wait", job)
    expect(bed.ok("logs", "--tail", "5", job).out == "", "something of nothing")


def marks(bed, job):
    text = read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "log.marks"))
    return [tuple(map(int, line.split())) for line in text.splitlines()]


@case
def times_of_lines(bed):
    before = time.time()
    go_on = os.path.join(bed.dir, "go-on")
    os.mkfifo(go_on)
    job = bed.run(["sh", "-c", f"echo one; echo two; read x < {go_on}; echo three"])
    wait_until(lambda: marks(bed, job)[-1:] and marks(bed, job)[-1][1] == len("one\ntwo\n"), "a mark", 60)
    first = bed.ok("logs", "--timestamps", job).out.splitlines()
    expect([line[25:] for line in first] == ["one", "two"], first)
    noted = [datetime.datetime.fromisoformat(line[:24].replace("Z", "+00:00")).timestamp() for line in first]
    expect(all(before - 0.1 <= at <= time.time() for at in noted), (before, first))
    wait_until(lambda: time.time() * 1000 > marks(bed, job)[-1][0] + 2, "a later moment", 60)
    moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    with open(go_on, "w", encoding="utf-8") as file:
        file.write("x\n")
    bed.ok("wait", job)
    wait_until(lambda: marks(bed, job)[-1][1] == len("one\ntwo\nthree\n"), "the last mark", 60)
    expect(bed.ok("logs", "--since", moment, job).out == "three\n", "not what was written since")
    expect(bed.ok("logs", "--since", "1d", job).out == "one\ntwo\nthree\n", "not all of today")
    expect(bed.ok("logs", "--since", "1d", "--tail", "1", job).out == "three\n", "not the last line of today")
    expect(bed.ok("logs", "--since", "2037-01-01", job).out == "", "something of what is to come")
    shown = bed.ok("logs", "--follow", "--timestamps", job).out.splitlines()
    expect(shown[:2] == first and shown[2].endswith("Z three"), shown)


@case
def lines_that_nobody_saw_written(bed):
    job = bed.run(["sh", "-c", "echo seen; sleep 1000"])
    wait_until(lambda: marks(bed, job), "a mark", 60)
    for shim in bed.named("brumate-shim"):
        os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not bed.named("brumate-shim"), "the end of the shim", 60)
    with open(bed.job(job)["log"], "a", encoding="utf-8") as file:
        file.write("unseen\n")
    bed.fails(EXIT_UNSUPPORTED, "suspend", job)  # it has no GPU state; but now it has another shim
    wait_until(lambda: marks(bed, job)[-1] == (0, len("seen\nunseen\n")), "a mark", 60)
    lines = bed.ok("logs", "--timestamps", job).out.splitlines()
    expect(re.fullmatch(r"\S{24} seen", lines[0]) and re.fullmatch(r"- {24}unseen", lines[1]), lines)


if __name__ == "__main__":
    main()
