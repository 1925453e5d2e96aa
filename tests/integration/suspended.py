#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A suspended job stands still as a whole: nobody in it watches the others and takes them for hung. On the way back those on the
GPU go first. Whatever ends the suspension makes all of it run on."""

import contextlib
import json
import os
import re
import shutil
import signal

from cases import as_user, case, expect, fault_points, main, process_start, read_text, run, wait_until
from users_jobs import status

PATIENCE_MS = 700
LONG = 2 * PATIENCE_MS / 1000

# Starts a worker on the GPU, passes its output on, and ends it where nothing comes for a while: by poll(2), whose time goes on while it stands
# still itself; or by select(2), which CRIU does not cut short. A thread of it, and a child without a GPU, beat meanwhile.
SUPERVISOR = r"""
import os, select, signal, subprocess, sys, threading, time
how, beats, patience, *argv = sys.argv[1:]
def beat(name):
    n = 0
    while True:
        n += 1
        with open(os.path.join(beats, name), "w") as f: f.write(str(n))
        time.sleep(0.01)
if os.fork() == 0: beat("child")
threading.Thread(target=beat, args=("thread",), daemon=True).start()
for name in ("TERM", "USR1"):
    def told(number, frame, name=name):
        print("told", name, flush=True)
        if name == "TERM": worker.terminate(); os._exit(3)
    signal.signal(getattr(signal, "SIG" + name), told)
worker = subprocess.Popen(argv, stdout=subprocess.PIPE)
poll = select.poll(); poll.register(worker.stdout, select.POLLIN)
def has_come():
    return poll.poll(int(patience)) if how == "poll" else select.select([worker.stdout], [], [], int(patience) / 1000)[0]
while True:
    if not has_come():
        print("BAD: the worker is hung, and killed", flush=True); worker.kill(); sys.exit(1)
    text = os.read(worker.stdout.fileno(), 65536)
    if not text: print("BAD: the worker has ended", flush=True); sys.exit(1)
    os.write(1, text)
    done, status = os.waitpid(worker.pid, os.WNOHANG | os.WUNTRACED)
    if done: print("BAD: the worker is seen as", hex(status), flush=True); sys.exit(1)
"""


class Watched:
    """A job of a supervisor, its child, and a worker on the GPU."""

    def __init__(self, bed, how="poll", options=(), name="train"):
        self.bed = bed
        self.beats = os.path.join(bed.dir, "beats-" + name)
        os.mkdir(self.beats, 0o777)
        os.chmod(self.beats, 0o777)
        self.job, self.log = bed.started(["/usr/bin/python3", "-u", "-c", SUPERVISOR, how, self.beats, PATIENCE_MS, bed.program("counter"),
                                          "--mib", 4, "--chunk-mib", 4, "--interval-ms", 25], name, options=options)
        self.expect_runs()

    def seen(self):
        return [read_text(os.path.join(self.beats, name)) for name in ("thread", "child")]

    def members(self):
        """But for the reaper."""
        found = [json.loads(read_text(os.path.join(self.bed.own["BRUMATE_STATE_DIR"], "jobs", self.job, "job.json")))["root"]["pid"]]
        for pid in found:
            with contextlib.suppress(FileNotFoundError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    found += [int(word) for word in read_text(f"/proc/{pid}/task/{task}/children").split()]
        return found[1:]

    def states(self):
        found = [re.search(r"^State:\s+(\S)", read_text(f"/proc/{pid}/status"), re.M) for pid in self.members()]
        return {f[1] for f in found if f}

    def expect_still(self):
        """Not for a moment: as long as the supervisor has patience for, and more."""
        before, lines = self.seen(), self.log.text()
        run(["sleep", str(LONG)])
        expect(self.seen() == before, f"beats went on: {before}, {self.seen()}")
        expect(self.log.text() == lines, f"it goes on: {self.log.tail()}")

    def expect_runs(self):
        def moved(before):
            return all(old != new and new for old, new in zip(before, self.seen()))
        before = self.seen()
        wait_until(lambda: moved(before), "all of it to run")

    def expect_whole(self):
        self.bed.expect_whole(self.job, self.log)
        self.expect_runs()
        expect("T" not in self.states(), f"some are stopped: {self.states()}")


@case
def its_supervisor_does_not_see_it(bed):
    it = Watched(bed)
    for _ in range(2):
        bed.operation("suspend", it.job)
        it.expect_still()
        bed.operation("resume", it.job)
        it.expect_whole()
    bed.end(it.job)


@case
@as_user
def nor_that_of_a_user(bed):
    it = Watched(bed, "select")
    bed.operation("suspend", it.job)
    it.expect_still()
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.expect_whole()
    bed.operation("suspend", it.job)
    it.expect_still()
    bed.operation("resume", it.job)
    it.expect_whole()
    bed.end(it.job)


# Learns by SIGCHLD that its child was stopped, and then stops itself for ever, as script(1) does.
STOPS_WITH_ITS_CHILD = r"""
import os, signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
child = subprocess.Popen(sys.argv[1:])
while True:
    told = signal.sigwaitinfo({signal.SIGCHLD})
    if told.si_status == signal.SIGSTOP:
        print("BAD: it saw the stop", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif told.si_code == os.CLD_EXITED: sys.exit(0)
"""


def stops_with_its_child(bed):
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", STOPS_WITH_ITS_CHILD, bed.program("counter"), "--mib", 4, "--chunk-mib", 4], "train")
    for there, back in (("suspend", "resume"), ("suspend", "resume"), ("checkpoint", "restore"), ("suspend", None), ("checkpoint", "restore")):
        bed.operation(there, job)
        if back:
            bed.operation(back, job)
            bed.expect_whole(job, log)
            expect("BAD" not in log.text() and status(bed.pid(job), "State")[0] != "T", f"its parent stops: {log.tail()}")
    bed.end(job)


@case
def a_parent_that_stops_with_its_child(bed):
    stops_with_its_child(bed)


@case
@as_user
def and_that_of_a_user(bed):
    stops_with_its_child(bed)


@case
def by_the_driver_alone(bed):
    it = Watched(bed, "select", options=("--data-path", "driver"))
    bed.operation("suspend", it.job)
    it.expect_still()
    bed.operation("resume", it.job)
    it.expect_whole()
    bed.operation("suspend", it.job)
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.expect_whole()


@case
def it_runs_on_where_that_is_asked_for(bed):
    job, _ = bed.counter("train")
    beats = os.path.join(bed.dir, "beats")
    os.mkdir(beats)
    script = ("import os, subprocess, sys, time\nworker = subprocess.Popen(sys.argv[1:])\nn = 0\nwhile True:\n n += 1\n"
              f" open({beats + '/n'!r}, 'w').write(str(n)); time.sleep(0.01)\n")
    other, log = bed.started(["/usr/bin/python3", "-u", "-c", script, bed.program("counter"), "--mib", 4, "--chunk-mib", 4], "other")
    bed.operation("suspend", "--cpu-runs", other)
    before = read_text(beats + "/n")
    wait_until(lambda: read_text(beats + "/n") not in ("", before), "its processor to run on")
    bed.operation("resume", other)
    log.goes_on()
    bed.end(job)
    bed.end(other)


@case
def saved_while_it_stands_still(bed):
    it = Watched(bed, "select")
    bed.operation("suspend", it.job)
    kept = bed.operation("checkpoint", "--leave-running", "--name", "kept", it.job)["checkpoint"]
    bed.expect_state(it.job, "suspended")
    it.expect_still()
    findings = [f for f in bed.doctor("--job", it.job)["findings"] if f["key"] == "stopped"]
    expect(not findings, f"doctor: {findings}")
    expect(bed.ok("inspect", it.job).out, "inspect shows nothing")
    bed.ok("kill", "--signal", "KILL", it.job)
    bed.operation("restore", kept)
    it.expect_whole()
    bed.operation("suspend", it.job)
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.expect_whole()


@case
def what_was_stopped_before_stays_so(bed):
    """By its user: neither a resume nor a restore makes it run."""
    it = Watched(bed, "select")
    child = next(pid for pid in it.members() if read_text(f"/proc/{pid}/task/{pid}/children") == "" and
                 b"counter" not in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[0])
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: "T" in it.states(), "it to stop")
    bed.operation("suspend", it.job)
    bed.operation("resume", it.job)
    it.log.goes_on()
    expect("T" in it.states(), f"it runs: {it.states()}")
    bed.operation("suspend", it.job)
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.log.goes_on()
    expect("T" in it.states(), f"it runs: {it.states()}")
    os.kill(child, signal.SIGCONT)
    it.expect_whole()


@case
def a_resume_that_fails(bed):
    """The job stands still again, and can be resumed."""
    it = Watched(bed)
    bed.operation("suspend", it.job)
    for step in ("gpu-restore", "data-in", "open", "continue-others"):
        bed.fault(f"resume.{step}.begin", "error:5")
        bed.refused(1, "injected", "resume", it.job)
        bed.expect_state(it.job, "suspended")
        it.expect_still()
    bed.operation("resume", it.job)
    it.expect_whole()


@case
def a_shim_that_dies(bed):
    """The next one knows from the record who stands still."""
    it = Watched(bed)
    bed.operation("suspend", it.job)
    shim = bed.shim(it.job)
    start = process_start(shim)
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: process_start(shim) != start, "the shim to end")
    it.expect_still()
    bed.operation("resume", it.job)
    it.expect_whole()
    for point in fault_points(["suspend.stop-others", "suspend.settle", "suspend.stop", "resume.continue", "resume.open",
                               "resume.continue-others"], "kill"):
        if point.startswith("resume") and bed.state(it.job) == "running":
            bed.operation("suspend", it.job)
        bed.fault(point, "kill")
        result = bed.cli(point.split(".")[0], it.job)
        expect(result.code, f"{point}: nobody died")
        wait_until(lambda: bed.state(it.job) in ("running", "suspended"), f"{point}: the next shim")
        if bed.state(it.job) == "suspended":
            bed.operation("resume", it.job)
        it.expect_whole()


@case
def killed(bed):
    """It is told so, and ends as it likes."""
    it = Watched(bed)
    bed.operation("suspend", it.job)
    bed.ok("kill", "--signal", "USR1", it.job)
    it.expect_still()
    bed.ok("kill", it.job)
    expect("told TERM" in it.log.text(), f"it was not told: {it.log.tail()}")
    entry = bed.job(it.job)
    expect((entry["state"], entry["exit_code"]) == ("exited", 3), f"{entry['state']}, {entry['exit_code']}")


@case
def a_signal_reaches_it_once_it_runs(bed):
    it = Watched(bed)
    bed.operation("suspend", it.job)
    bed.ok("kill", "--signal", "USR1", it.job)
    bed.operation("resume", it.job)
    it.log.wait_until(lambda text: "told USR1" in text, "the signal")
    it.expect_whole()


@case
def one_that_begins_to_use_the_gpu_meanwhile(bed):
    """Its agent waits for its gate to open, and stands still with the others."""
    script = ("import subprocess, sys, os\nfirst = subprocess.Popen(sys.argv[2:])\nsys.stdin.close()\n"
              "while not os.path.exists(sys.argv[1]): pass\nos.execv(sys.argv[2], sys.argv[2:])\n")
    flag = os.path.join(bed.dir, "flag")
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", script, flag, bed.program("counter"), "--mib", 4, "--chunk-mib", 4], "two")
    with bed.held_at("suspend.stop-others.begin", "suspend", job) as suspend:
        open(flag, "w").close()
        pid = bed.pid(job)
        wait_until(lambda: os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "counter", "it to start the other program")
    code, _, err = suspend.end()
    expect(code == 0, f"suspend: exit {code}: {err}")
    bed.operation("resume", job)
    before = len(re.findall("^ready ", log.text(), re.M))
    log.wait_until(lambda text: len(re.findall("^ready ", text, re.M)) >= max(2, before), "the second one", 60)
    bed.end(job)


@case
def a_job_that_was_taken_in_runs_on(bed):
    """Its parent is outside, and would see it stop."""
    program = bed.start([bed.program("counter"), "--mib", 4, "--chunk-mib", 4]).ready()
    bed.operation("suspend", "--pid", program.pid)
    expect(status(program.pid, "State")[0] != "T", "it is stopped")
    bed.operation("resume", "--pid", program.pid)
    program.log.goes_on()


def sweep(bed):
    """As `rm -rf /tmp/*` does, or an epilog."""
    path = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents")
    expect(os.listdir(path), "nothing to sweep")
    shutil.rmtree(bed.own["BRUMATE_RUNTIME_DIR"])


def goes_on_after_each_sweep(bed):
    it = Watched(bed, "select")
    sweep(bed)
    bed.operation("suspend", it.job)
    it.expect_still()
    sweep(bed)
    summary = bed.operation("resume", it.job)
    expect(any("was gone" in note for note in summary["notes"]) and summary["data_bytes"], f"{summary}")
    it.expect_whole()
    sweep(bed)
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.expect_whole()
    bed.operation("suspend", it.job)
    sweep(bed)
    bed.operation("checkpoint", it.job)
    bed.operation("restore", it.job)
    it.expect_whole()
    bed.end(it.job)


@case
def its_sockets_are_swept(bed):
    goes_on_after_each_sweep(bed)


@case
@as_user
def those_of_a_user_are_swept(bed):
    goes_on_after_each_sweep(bed)


if __name__ == "__main__":
    main()
