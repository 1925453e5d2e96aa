#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What another user of the machine tries in order to get at root's rights or at root's data, through paths
and sockets. Each case would succeed for the attacker if its check were taken away."""

import os
import socket
import stat
import sys

from cases import NOBODY, STEPPING, Program, case, expect, main, may_connect, wait_until
from checkpoints import change_manifest, saved
from harness import Log


HIS = {"uid": NOBODY, "gid": NOBODY, "id": "deadbeef", "name": "his"}
COUNTER = ("--mib", "4", "--chunk-mib", "4", "--interval-ms", "25")


def of_root(bed, name="secret", text="root's alone\n"):
    """A file that the attacker may neither read nor write."""
    path = os.path.join(bed.dir, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def expect_untouched(path, text="root's alone\n"):
    found = os.stat(path)
    expect((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o600), f"{path}: {found}")
    with open(path, encoding="utf-8") as file:
        expect(file.read() == text, f"{path} was written to")


# The socket of brumated.

@case
def the_socket_is_for_those_who_may_be_root(bed):
    os.chmod(bed.dir, 0o711)
    os.chmod(bed.own["BRUMATE_RUNTIME_DIR"], 0o755)
    bed.start_daemon()
    found = os.stat(bed.daemon_socket())
    expect((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o660), f"the socket: {found}")
    expect(may_connect(bed.daemon_socket(), 0), "root cannot connect, this test proves nothing")
    expect(not may_connect(bed.daemon_socket(), NOBODY), f"uid {NOBODY} can connect")


def activated(bed, mode):
    """brumated started as a service manager does, with a socket of this mode."""
    path = os.path.join(bed.dir, f"activated-{mode:o}.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        os.chmod(path, mode)
        listening.listen()
        command = f"exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec {bed.program('brumated')}"
        program = Program(["sh", "-c", command], os.path.join(bed.dir, f"activated-{mode:o}.out"), env=bed.command_env(),
                          pass_fds=[listening.fileno()])
    bed.programs.append(program)
    return path, program


@case
def a_socket_for_everybody_is_not_served(bed):
    for mode in (0o666, 0o662, 0o777):
        path, program = activated(bed, mode)
        expect(program.wait() == 5, f"mode {mode:o}: ended with {program.process.returncode}")
        expect("any user may connect" in program.log.text(), f"says {program.log.text()!r}")
    path, _ = activated(bed, 0o660)
    wait_until(lambda: bed.is_served(path), "a socket for a group is served")


@case
def doctor_sees_a_socket_for_everybody(bed):
    bed.start_daemon()
    level = {f["key"]: f["level"] for f in bed.doctor()["findings"]}
    expect(level["brumated"] == "ok", f"{level}")
    os.chmod(bed.daemon_socket(), 0o666)
    level = {f["key"]: f["level"] for f in bed.doctor()["findings"]}
    expect(level["brumated"] == "fail", f"{level}")


# Logs.

def attempt(bed, log):
    """A job of another user's, with its log there: (id, None) or (None, error)."""
    return bed.run_as_nobody(bed.program("counter"), *COUNTER, log=log)


def expect_no_log(bed, path, words):
    job, error = attempt(bed, path)
    expect(not job and words in error["text"], f"{path}: {job} {error}")


@case
def a_log_is_made_with_its_users_rights(bed):
    bed.daemon()
    job, log = bed.counter()
    logs = bed.own["BRUMATE_LOG_DIR"]
    roots = os.path.join(logs, f"{job}.log")
    before = os.stat(roots)
    secret = of_root(bed)
    own = bed.of_nobody("own")
    os.symlink(secret, os.path.join(own, "link"))
    os.symlink(os.path.join(bed.dir, "made-by-link"), os.path.join(own, "dangling"))
    for path in (os.path.join(logs, "..", "made"), os.path.join(logs, "..", "secret"), roots, os.path.join(logs, "made.log"),
                 os.path.join(own, "link"), os.path.join(own, "dangling"), secret):
        expect_no_log(bed, path, "log ")
    expect_untouched(secret)
    for made in ("made", "made-by-link", os.path.join(logs, "made.log")):
        expect(not os.path.lexists(os.path.join(bed.dir, made)), f"{made} was made")
    after = os.stat(roots)
    expect((after.st_uid, after.st_mode) == (before.st_uid, before.st_mode), "the log of root's job changed hands")
    made, error = attempt(bed, os.path.join(own, "log"))
    expect(made, f"{error}")
    found = os.stat(os.path.join(own, "log"))
    expect(found.st_uid == NOBODY and stat.S_IMODE(found.st_mode) == 0o600, f"{found}")
    bed.expect_whole(job, log)


@case
def a_log_that_is_a_pipe_holds_nobody_up(bed):
    bed.daemon()
    own = bed.of_nobody("own")
    pipe = os.path.join(own, "pipe")
    os.mkfifo(pipe)
    os.chmod(pipe, 0o666)
    bed.refused(2, "log .*neither a file nor a terminal", "run", "--log", pipe, "--", "true")
    expect_no_log(bed, pipe, "neither a file")
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb"):  # not even with a reader
        expect_no_log(bed, pipe, "neither a file")


def restore_with_log(bed, path):
    """Root restores a user's checkpoint, whose log is at this path; by force, as the images are of root's rights."""
    change_manifest(bed, "his", log=path, **HIS)
    return bed.cli("restore", "--force", "his")


@case
def a_log_replaced_before_a_restore(bed):
    job, _ = saved(bed, "his")
    bed.end(job)
    bed.ok("rm", job)
    os.chmod(bed.dir, 0o711)
    secret = of_root(bed)
    own = bed.of_nobody("own")
    logs = bed.own["BRUMATE_LOG_DIR"]
    for name, target in (("link", secret), ("dangling", os.path.join(bed.dir, "made"))):
        os.symlink(target, os.path.join(own, name))
    os.mkfifo(os.path.join(own, "pipe"))
    os.chmod(os.path.join(own, "pipe"), 0o666)
    os.symlink(bed.dir, os.path.join(own, "dir"))
    os.symlink(secret, os.path.join(logs, "deadbeef.log"))
    for path in (os.path.join(own, "link"), os.path.join(own, "dangling"), os.path.join(own, "pipe"),
                 os.path.join(own, "dir", "new", "log"), os.path.join(logs, "..", "made"), os.path.join(logs, "deadbeef.log"),
                 secret):
        result = restore_with_log(bed, path)
        expect(result.code != 0 and "log " in result.err, f"{path}: {result.why()}")
        expect(not bed.list("ps", "jobs"), "a refused restore left a job")
    expect_untouched(secret)
    for made in ("made", "new"):
        expect(not os.path.lexists(os.path.join(bed.dir, made)), f"{made} was made")
    os.unlink(os.path.join(logs, "deadbeef.log"))
    of_root(bed, os.path.join("log", "deadbeef.log"))
    result = restore_with_log(bed, os.path.join(logs, "deadbeef.log"))
    expect(result.code == 5 and "belongs to uid 0" in result.err, result.why())


@case
def a_log_replaced_in_the_middle(bed):
    """At the last moments before a restore opens it, and before the job has it."""
    bed.daemon()
    own, secret = bed.of_nobody("own"), of_root(bed)
    path = os.path.join(own, "log")
    job, error = attempt(bed, path)
    expect(job, f"{error}")
    log = Log(path)
    for point in ("restore.preflight.end", "restore.criu.begin", "restore.spawned", "restore.restored"):
        log.goes_on()
        bed.operation("checkpoint", job)
        with bed.held_at(point, "restore", job) as restore:
            os.rename(path, path + ".his")
            os.symlink(secret, path)
        code, _, err = restore.end()
        refused = point in ("restore.preflight.end", "restore.criu.begin")
        expect(code != 0 and "log " in err if refused else code == 0, f"{point}: exit {code}: {err}")
        os.rename(path + ".his", path)
        expect_untouched(secret)
        if code:
            bed.operation("restore", job)
    log.goes_on()


# A job's own agent: whoever is a process of the job can listen in its place.

AGENT = """
import array, ctypes, os, socket, struct, sys, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
context, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(16)
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuDeviceGetUuid(uuid, 0) == 0
HELLO, GATE, LIST, EXPORT, UNMAP, MAP, OWN, OPEN = range(1, 9)
GATES = {GATE: 1, UNMAP: 2, MAP: 1, OPEN: 0}
mood = lambda: open(sys.argv[1]).read()
place = f"{os.environ['BRUMATE_AGENT_DIR']}/{os.getpid()}"
while not os.path.exists(place):
    time.sleep(0.01)
os.unlink(place)
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(place)
listening.listen()
gate = 0

def pieces(first, n, size):
    return b"".join(struct.pack("<QQQ16sQ", first + i, (first + i) << 41, size, uuid.raw, 0) for i in range(n))

def say(to, n=0, what=b"", more=0, managed=0, fds=()):
    data = struct.pack("<IiiIIIQQ160s3072s", 1, 0, 0, more, gate, n, managed, 0, b"", what)
    to.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

def answer(to, op, n):
    global gate
    gate, how = GATES.get(op, gate), mood()
    if op == HELLO:
        say(to, managed=(1 << 64) - 1 if how == "vast" else 2 << 20)
        while how == "chatter":
            say(to)
    elif op == LIST and how == "endless":
        for first in range(1, 1 << 62, 64):
            say(to, 64, pieces(first, 64, 1 << 21), more=1)
    elif op == LIST:
        say(to, 1, pieces(1, 1, 1 << 40 if how == "vast" else 2 << 20))
    elif op == EXPORT:
        fd = os.pipe()[0] if how == "pipes" else os.memfd_create("piece")
        say(to, fds=[fd] * n)
        os.close(fd)
    else:
        say(to)

def serve():
    global gate
    while True:
        to = listening.accept()[0]
        try:
            while request := to.recv(1024):
                _, op, _, n = struct.unpack_from("<4I", request)
                answer(to, op, n)
        except OSError:
            pass  # it has hung up
        to.close()
        gate = gate if gate == 2 else 0

threading.Thread(target=serve, daemon=True).start()
print("ready to lie", flush=True)
""" + STEPPING


def peak_mib(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) >> 10


TRIES = (("chatter", {"suspend": 0, "resume": 0}), ("vast", {"suspend": 0}),
         ("pipes", {"suspend": 7, "checkpoint": 7}), ("endless", {"suspend": 7}))


@case
def an_agent_that_says_what_it_likes(bed):
    """Without end, more than there is, and what is no memory. Every command ends and says what is wrong, the
    job can be ended, and nobody else comes to harm."""
    other, other_log = bed.counter("other", mib=4)
    broker, path = bed.broker(), os.path.join(bed.dir, "mood")
    for mood, tries in TRIES:
        with open(path, "w", encoding="utf-8") as file:
            file.write(mood)
        job, log = bed.started([sys.executable, "-u", "-c", AGENT, path], mood)
        for verb, code in tries.items():
            result = bed.cli(verb, job, *(["--leave-running"] if verb == "checkpoint" else []))
            expect(result.code == code, f"{mood}: expected exit {code}: {result.why()}")
        expect(peak_mib(bed.shim(job)) < 300, f"{mood}: the shim had {peak_mib(bed.shim(job))} MiB")
        if bed.state(job) == "running":
            log.goes_on()
        bed.end(job)
        for verb in ("suspend", "resume"):
            bed.operation(verb, other)
        bed.expect_whole(other, other_log)
        expect(bed.broker() == broker or not broker, f"{mood}: the broker has ended")
        broker = bed.broker()


main()
