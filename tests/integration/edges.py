#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The edges of a process's life: operations on members that are just initialising the driver, ending, starting
another program, or whose context has failed. tests/programs/short.c stops at the phase that a case wants to look
at; what it prints must be what it prints undisturbed."""

import contextlib
import errno
import os
import re
import signal
import socket

from cases import case, expect, main, process_start, read_text, run, wait_until, with_env

BUSY_MS = 30
SHUTS_DOWN_LATE = {"BRUMATE_SIM_SHUTDOWN": "module"}


class Phase:
    """A place at which a program waits, once it comes there, until go()."""

    def __init__(self, bed, name, of="short"):
        self.prefix = os.path.join(bed.dir, of)
        self.path = f"{self.prefix}.{name}"
        self.fd = None
        os.mkfifo(self.path, 0o600)

    def _is_reached(self):
        try:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            expect(error.errno == errno.ENXIO, f"{self.path}: {error}")
        return self.fd is not None

    def reached(self):
        wait_until(self._is_reached, f"{os.path.basename(self.path)} to be reached", 60)
        return self

    def go(self):
        os.close(self.fd)
        os.unlink(self.path)


def short(bed, kind, *phases):
    """The command line of a program that stops at these phases."""
    path = ["--path", phases[0].prefix] if phases else []
    return [bed.program("short"), kind, "--busy-ms", BUSY_MS, *path]


def ends_as_undisturbed(bed, job, kind):
    want = run(short(bed, kind), env=bed.program_env(), timeout=60)
    log, ended = bed.log(job), bed.cli("wait", job, timeout=60)
    code = want.code if want.code >= 0 else 128 - want.code
    expect(ended.code == code, f"ended with {ended.code}, undisturbed {code}: {log.tail()}")
    expect(log.text() == want.out + want.err, f"printed {log.tail(3)!r}, undisturbed {want.out[-200:]!r}")


def agents_dir(bed, job):
    return os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "agents", bed.job(job)["id"])


def suspended_at(bed, kind, name):
    """A job that was suspended while its program waited at that phase, and that runs on but for the GPU."""
    phase = Phase(bed, name)
    job = bed.run(short(bed, kind, phase))
    phase.reached()
    bed.operation("suspend", job, "--cpu-runs")
    return job, phase


def goes_through(bed, kind, name):
    job, phase = suspended_at(bed, kind, name)
    phase.go()
    bed.operation("resume", job)
    ends_as_undisturbed(bed, job, kind)


# Beginning.

def in_cuinit(bed, kind="plain"):
    """A job in the middle of cuInit, where checkpoint calls find it already."""
    phase = Phase(bed, "init-found")
    # Not for the broker, which is started by the first command that needs it.
    job = bed.run(["env", f"BRUMATE_SIM_FAULT=init:found:1:hold={phase.path}", *short(bed, kind)])
    return job, phase.reached()


def goes_through_in_cuinit(bed, verb, back):
    """The members are looked at while it is there; then the gate waits for it."""
    job, phase = in_cuinit(bed)
    with bed.held_at(f"{verb}.gate.begin", verb, job) as operation:
        pass
    phase.go()
    code, _, err = operation.end()
    expect(code == 0, f"{verb}: exit {code}: {err}")
    bed.operation(back, job)
    ends_as_undisturbed(bed, job, "plain")


@case
def suspended_while_it_initialises_the_driver(bed):
    goes_through_in_cuinit(bed, "suspend", "resume")


@case
def saved_while_it_initialises_the_driver(bed):
    goes_through_in_cuinit(bed, "checkpoint", "restore")


@case
def who_begins_while_the_job_is_suspended_waits(bed):
    """Of two members one comes to the driver only then."""
    start = Phase(bed, "start", "second")
    second = " ".join(str(word) for word in short(bed, "plain", start))
    out = os.path.join(bed.dir, "second.out")
    job, log = bed.started(["sh", "-c", f'{second} >{out} & exec "$0" fork-after --interval-ms 10', bed.program("kinds")])
    start.reached()
    bed.operation("suspend", job, "--force", "--cpu-runs")
    known = set(os.listdir(agents_dir(bed, job)))
    start.go()
    wait_until(lambda: set(os.listdir(agents_dir(bed, job))) - known, "the agent of the second member")
    expect(not any(bed.vram()), f"device memory is in use while the job is suspended: {bed.vram()}")
    expect(read_text(out) == "", f"the second member went on: {read_text(out)}")
    bed.operation("resume", job)
    expect("hold" not in os.listdir(agents_dir(bed, job)), "the job is still held")
    log.goes_on()
    wait_until(lambda: re.search(r"^step 4 OK$", read_text(out), re.MULTILINE), "the second member to work")
    bed.end(job)


@case
def begins_after_its_checkpoint_has(bed):
    """The job had nothing on a GPU when the image was begun; what it has when its gate is closed is saved all the same."""
    go = os.path.join(bed.dir, "go")
    os.mkfifo(go)
    counter = [bed.program("counter"), "--mib", 16, "--chunk-mib", 16, "--interval-ms", 25]
    job = bed.run(["sh", "-c", 'read line <"$0"; exec "$@"', go, *counter])
    log = bed.log(job)
    with bed.held_at("checkpoint.gate.begin", "checkpoint", job) as operation:
        with open(go, "wb"):
            pass
        log.goes_on()
    code, _, err = operation.end()
    expect(code == 0, f"checkpoint: exit {code}: {err}")
    bed.operation("restore", job)
    bed.expect_whole(job, log)


@case
def suspended_at_every_phase(bed):
    for kind, name in (("plain", "init"), ("plain", "context"), ("plain", "module"), ("plain", "work"), ("idle", "init"),
                       ("late-handler", "late"), ("exec", "end")):
        goes_through(bed, kind, name)


# Ending.

@case
def ends_while_suspended(bed):
    for kind in ("plain", "handler", "late-handler", "exit-thread", "contexts"):
        goes_through(bed, kind, "end")


@case
@with_env(**SHUTS_DOWN_LATE)
def ends_while_suspended_by_a_late_handler(bed):
    for kind in ("plain", "handler", "exit-thread"):
        goes_through(bed, kind, "end")


@case
@with_env(**SHUTS_DOWN_LATE)
def driver_gone_in_the_middle_of_a_resume(bed):
    """The driver shuts down as soon as it is unlocked, before its memory is back."""
    job, end = suspended_at(bed, "handler", "end")
    pid = bed.pid(job)
    end.go()
    with bed.held_at("resume.map.begin", "resume", job) as resume:
        wait_until(lambda: bed.gpu_state(pid) == "none", "the end of the driver")
    code, _, err = resume.end()
    expect(code == 0, f"resume: exit {code}: {err}")
    ends_as_undisturbed(bed, job, "handler")


@case
def in_exit_for_long(bed):
    """It cannot be stopped any more: the suspend is refused, and it is let end."""
    phase = Phase(bed, "handler")
    job = bed.run(short(bed, "handler", phase))
    phase.reached()
    bed.refused(124, r"gate: process \d+ is in exit\(\), and has not ended within", "suspend", job, "--timeout", "5s")
    bed.expect_state(job, "running")
    phase.go()
    ends_as_undisturbed(bed, job, "handler")


@case
def a_member_ends_while_the_others_are_suspended(bed):
    """Its end is waited for, and the operation goes on without it."""
    phase = Phase(bed, "handler", "second")
    second = " ".join(str(word) for word in short(bed, "handler", phase))
    job, log = bed.started(["sh", "-c", f'{second} >/dev/null & exec "$0" streams --interval-ms 10', bed.program("kinds")])
    phase.reached()
    suspend = bed.spawn("suspend", job, "--force")
    wait_until(lambda: bed.state(job) == "suspending", "the suspend to begin")
    phase.go()
    code, _, err = suspend.end()
    expect(code == 0, f"suspend: exit {code}: {err}")
    bed.operation("resume", job)
    log.goes_on()
    bed.end(job)


@case
def a_member_is_killed_in_the_middle(bed):
    """At every step of a suspend and of a resume: the other member goes through both."""
    for steps in (("suspend.park.begin", "suspend.unmap.begin", "suspend.gpu-checkpoint.begin", "suspend.data-out.begin"),
                  ("resume.gpu-restore.begin", "resume.gpu-unlock.begin", "resume.map.begin", "resume.open.begin")):
        for point in steps:
            second = " ".join(str(word) for word in [bed.program("kinds"), "streams", "--interval-ms", 25])
            out = os.path.join(bed.dir, point)
            job, log = bed.started(["sh", "-c", f'{second} >{out} & exec "$0" streams --interval-ms 10',
                                    bed.program("kinds")])
            pid = int(wait_until(lambda: re.search(r"ready pid (\d+)", read_text(out)), "the second member").group(1))
            if point.startswith("resume"):
                bed.operation("suspend", job, "--force")
            verb = point.split(".")[0]
            with bed.held_at(point, verb, job, *(["--force"] if verb == "suspend" else [])) as operation:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: process_start(pid) is None, "the end of the second member")
            code, _, err = operation.end()
            expect(code == 0, f"{point}: exit {code}: {err}")
            if verb == "suspend":
                bed.operation("resume", job)
            log.goes_on()
            bed.end(job)


@case
def starts_another_program_while_suspended(bed):
    """exec(2) is no call of the driver: the memory of the program before it is nobody's."""
    job, end = suspended_at(bed, "exec", "end")
    def agents():
        """Each socket with when it was made: the number of a file is soon another's."""
        made = {}
        for name in os.listdir(agents_dir(bed, job)):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(os.path.join(agents_dir(bed, job), name))
                made[name] = (found.st_ino, found.st_ctime_ns)
        return made

    known = agents()
    end.go()

    def has_new_agent():
        return any(known.get(name) not in (None, made) for name, made in agents().items())

    wait_until(has_new_agent, "the agent of the program after it")
    bed.operation("resume", job)
    ends_as_undisturbed(bed, job, "exec")


# Failing.

@case
def a_context_that_has_failed(bed):
    """The driver would bring it back otherwise: refused, and the errors stay what they are."""
    phase = Phase(bed, "failed")
    job = bed.run(short(bed, "sticky", phase))
    phase.reached()
    for verb in ("suspend", "checkpoint"):
        bed.refused(7, r"gate: process \d+: gate: a context has failed for good \(driver result 700\)", verb, job)
        bed.expect_state(job, "running")
    phase.go()
    ends_as_undisturbed(bed, job, "sticky")


# Stopped.

def stopped_child(bed, kind):
    """A job with a child that is stopped, and what lets it go on."""
    job, log = bed.kind(kind)
    child = int(log.wait_for(r"^child (\d+)$").group(1))
    log.goes_on()
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: read_text(f"/proc/{child}/stat").rsplit(") ", 1)[1][0] == "T", "the child to stop")
    return job, log, child


@case
def a_stopped_child_without_gpu_state(bed):
    """It has its parent's driver, device and mappings, and none of the driver's threads: it is in nobody's way."""
    job, log, child = stopped_child(bed, "fork-after")
    bed.operation("suspend", job)
    bed.operation("resume", job)
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    os.kill(child, signal.SIGCONT)
    log.goes_on()


@case
def a_stopped_child_with_gpu_state(bed):
    job, log, child = stopped_child(bed, "fork-before")
    for verb in ("suspend", "checkpoint"):
        bed.refused(11, rf"process {child} \(kinds\) is stopped", verb, job)
    os.kill(child, signal.SIGCONT)
    log.goes_on()


# Connections that nobody has accepted.

LISTENER = """
import os, select, signal, socket, time
server = socket.create_server(("127.0.0.1", 0), backlog=4)
client = []
wanted = []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
print("port", server.getsockname()[1], flush=True)
print("ready pid", os.getpid(), flush=True)
step = 0
while True:
    if wanted:
        wanted.clear()
        connection, _ = server.accept()
        connection.sendall(b"served")
        connection.close()
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


def listener(bed):
    """A job that accepts a connection when it gets SIGUSR1; a client that nobody has accepted yet."""
    job, log = bed.python(LISTENER)
    port = int(log.wait_for(r"^port (\d+)$").group(1))
    return job, log, port, socket.create_connection(("127.0.0.1", port), timeout=30)


@case
def connections_that_nobody_has_accepted(bed):
    job, log, port, client = listener(bed)
    bed.refused(4, r"listens \(fd \d+\), and has not accepted 1 TCP connection yet", "checkpoint", job)
    result = bed.cli("checkpoint", job)
    expect("--tcp-skip-in-flight" in result.err, f"no word of the option: {result.why()}")
    log.goes_on()
    os.kill(bed.pid(job), signal.SIGUSR1)
    expect(client.recv(6) == b"served", "it is served after a refusal")
    client.close()


TALKER = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other = server.accept()[0]
print("ready to talk", flush=True)
step = 0
while True:
    one.sendall(b"word")
    assert other.recv(4, socket.MSG_WAITALL) == b"word"
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.001)
"""


@case
def connections_when_criu_dies_at_the_end(bed):
    """It dies when it is about to let the job go on, which nothing stops from then on."""
    job, log = bed.python(TALKER)
    bed.operation("checkpoint", job, "--leave-running")
    log.goes_on()
    for _ in range(10):
        bed.fault("checkpoint.dumped", "kill:criu")
        bed.refused(7, "CRIU was killed by signal 9", "checkpoint", job, "--leave-running")
        log.goes_on()


@case
def connections_that_are_left_out(bed):
    """Those of a job that runs on are not touched; those of one that is saved end with it."""
    job, log, port, client = listener(bed)
    summary = bed.operation("checkpoint", job, "--tcp-skip-in-flight", "--leave-running")
    expect(any("left out" in note for note in summary["notes"]), f"no word of what is dropped: {summary['notes']}")
    log.goes_on()
    os.kill(bed.pid(job), signal.SIGUSR1)
    expect(client.recv(6) == b"served", "it is served though it is not in the checkpoint")
    client.close()
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    bed.operation("checkpoint", job, "--tcp-skip-in-flight")
    with contextlib.suppress(ConnectionResetError):
        expect(client.recv(6) == b"", "the connection did not end")
    client.close()
    bed.operation("restore", job)
    log.goes_on()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        os.kill(bed.pid(job), signal.SIGUSR1)
        expect(client.recv(6) == b"served", "it does not listen after the restore")


main()
