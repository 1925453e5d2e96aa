#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A job with a file of a file system in user space (FUSE) whose server does not answer any more. Whoever asks that waits in
the kernel, and cannot be killed: the job may have to wait with CRIU, but nobody else waits, and each command says what for.
The server is a process of its own, this file as "silent_files.py serve FD FILE": nobody who asks waits for itself."""

import http.client
import os
import shutil
import signal
import struct
import sys
import time
from contextlib import contextmanager

from as_root import as_root, env_of_root, needs_root, ok
from cases import NOBODY, STEPPING, Background, Skipped, UserBed, as_user, case, expect, find_build, main, read_text, run, wait_until
from harness import Log, Program
from servers import free_port

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, BATCH_FORGET = 1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 42
INTERRUPT = 36
NO_ANSWER = (FORGET, BATCH_FORGET, INTERRUPT)
HEAD, BYTES = struct.Struct("<IIQQIII4x"), 4096
DIR, FILE = 1, 2


def attributes(node):
    """struct fuse_attr. Nothing is kept: each look at the file is a question."""
    mode = 0o40755 if node == DIR else 0o100666
    return struct.pack("<6Q10I", node, BYTES, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node):
    if opcode == INIT:
        return struct.pack("<IIIIHHII", 7, 31, 4096, 0, 16, 16, 4096, 1) + bytes(36)
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<QII", 0, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 0, 0, 0)
    if opcode == STATFS:
        return struct.pack("<5Q10I", 1, 0, 0, 1, 0, BYTES, 255, BYTES, *[0] * 7)
    if opcode == READ:
        return b"x" * BYTES
    return b""


def serve(fd, silence):
    """Answers until the file system is gone; not to the kinds of questions that the file @silence names. Says each of those."""
    while True:
        try:
            request = os.read(fd, 1 << 17)
        except OSError:
            return
        _, opcode, unique, node, *_ = HEAD.unpack_from(request)
        unwanted = set(open(silence, encoding="utf-8").read().split()) if os.path.exists(silence) else ()
        if str(opcode) in unwanted:
            print("silent", opcode, flush=True)
        elif opcode not in NO_ANSWER:
            body = answer(opcode, node)
            try:
                os.write(fd, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
            except OSError:
                pass  # who asked has given up


class SilentFiles:
    """Such a file system of the user's, mounted, as fusermount(1) would: nobody else may look into it."""

    def __init__(self, bed, uid):
        self.dir = os.path.join(bed.dir, "silent-files")
        self.path = os.path.join(self.dir, "file")
        self.silence = os.path.join(bed.dir, "silence")
        os.chmod(bed.dir, 0o711)
        os.mkdir(self.dir)
        try:
            fd = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Skipped(f"no file systems in user space: {error}") from error
        options = f"fd={fd},rootmode=40755,user_id={uid},group_id={uid}"
        mounted = run(["mount", "-i", "-t", "fuse", "-o", options, "test", self.dir], pass_fds=[fd])
        if mounted.code:
            raise Skipped(f"no file system in user space can be mounted: {mounted.err}")
        # Root's, as users may not be able to read this file.
        self.server = Program([sys.executable, "-u", os.path.abspath(__file__), "serve", fd, self.silence], os.path.join(bed.dir, "server.out"), pass_fds=[fd])
        os.close(fd)

    def is_silent_on(self, *opcodes):
        """From now on it does not answer these."""
        with open(self.silence + ".new", "w", encoding="utf-8") as file:
            file.write(" ".join(map(str, opcodes)))
        os.rename(self.silence + ".new", self.silence)

    def abort(self):
        """Whoever waits gets an error, as the hint says. That the mount is in use does not matter."""
        run(["umount", "-f", self.dir])

    def end(self):
        self.abort()
        run(["umount", "-l", self.dir])
        self.server.process.kill()
        self.server.process.wait()


@contextmanager
def silent_files(bed, uid=0):
    files = SilentFiles(bed, uid)
    try:
        yield files
    finally:
        files.end()


SCRIPT = """
import os, time
file = os.open({path!r}, os.O_RDWR)
print("ready now", flush=True)
""" + STEPPING
PATIENCE = ("criu.patience", "error:300")


def expect_held(bed, job, files, opcode, *options):
    """A checkpoint that comes to a file system which does not answer: CRIU is stuck there."""
    bed.ok("checkpoint", job, "--leave-running")
    files.is_silent_on(opcode)
    bed.fault(*PATIENCE * 30)
    result = bed.refused(7, f"job {job} is held until CRIU, process [0-9]+, ends.*done nothing", "checkpoint", job, *options)
    expect("unmounted by force" in result.err, f"no word of what to do: {result.err}")
    expect(f"silent {opcode}" in files.server.log.text(), "nobody asked: this test proves nothing")
    found = bed.job(job)
    expect(found["state"] == "checkpointing" and "is held until CRIU" in found["message"], f"ps says {found}")


@case
def a_dump_that_waits_for_an_answer(bed):
    """Without a deadline of its caller's. The job goes on once the file system is given up."""
    with silent_files(bed) as files:
        job, log = bed.python(SCRIPT.format(path=files.path))
        expect_held(bed, job, files, GETATTR, "--leave-running")
        files.abort()
        bed.wait_state(job, ("running",), 60)
        log.goes_on()
        expect("CRIU has waited" in bed.job(job)["message"], f"ps says {bed.job(job)['message']}")


@case
def a_dump_of_his_that_waits_for_a_close(bed):
    """As the user, whose file system root may not even look into; and CRIU closes what it got of the job."""
    with silent_files(bed, NOBODY) as files:
        program = bed.start(["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "/usr/bin/python3", "-u",
                             "-c", SCRIPT.format(path=files.path)])
        program.log.wait_for("^ready", 20)
        job = bed.ok("manage", "--pid", program.pid).out.strip()
        expect_held(bed, job, files, FLUSH)
        files.abort()
        bed.wait_state(job, ("running",), 60)
        Log(program.log.path).goes_on()


@case
def a_shim_that_finds_such_a_dump(bed):
    """The next shim waits as the first did, and serves meanwhile."""
    with silent_files(bed) as files:
        job, log = bed.python(SCRIPT.format(path=files.path))
        expect_held(bed, job, files, GETATTR, "--leave-running")
        bed.kill_shim(job)
        expect(bed.job(job)["state"] == "checkpointing", f"ps says {bed.job(job)}")
        files.abort()
        bed.cli("kill", "--signal", "URG", job)
        bed.wait_state(job, ("running",), 60)
        log.goes_on()


@case
def a_file_of_a_job_of_the_driver(bed):
    """Its path is whatever the program has in its environment: it is looked up without asking anybody."""
    with silent_files(bed) as files:
        job, log = bed.counter(env={"CUDA_CHECKPOINT_JOB_FILE": files.path}, options=("--data-path", "driver"))
        files.is_silent_on(LOOKUP, GETATTR)
        bed.ok("suspend", job)
        bed.ok("resume", job)
        log.goes_on()


class Giver:
    """A job whose agent gives a file of a file system that does not answer by now; a suspend of it."""

    def __init__(self, bed, files, way):
        self.kind = os.path.join(bed.dir, "kind")
        rogue = [bed.program("rogue"), way, "--path", self.kind]
        self.job, self.log = bed.started(rogue, env={"ROGUE_FILE": files.path, "BRUMATE_INTERPOSE": "off"})
        self.bed = bed
        files.is_silent_on(FLUSH)
        self.is_refused()

    def is_refused(self, **how):
        self.bed.refused(7, "neither memory nor a device of the driver", "suspend", self.job, **how)

    def is_honest(self):
        """From now on."""
        with open(self.kind, "w", encoding="utf-8") as file:
            file.write("honest")


@case
def an_agent_that_gives_such_a_file(bed):
    """The shim cannot get rid of it: closing it does not end. It serves all the same, and ends, and another takes its place."""
    with silent_files(bed) as files:
        giver = Giver(bed, files, "gives-a-file")
        job, log = giver.job, giver.log
        bed.expect_whole(job, log)
        files.server.log.wait_for(f"^silent {FLUSH}$")
        shim = bed.shim(job)
        bed.end_idle_shim(shim)
        shim_log = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.log")
        wait_until(lambda: f"brumate-shim[{shim}]: the shim of job {job} ends" in read_text(shim_log), "the end of the shim")
        bed.ok("kill", "--signal", "URG", job)
        bed.expect_whole(job, log)


@case
def a_shim_that_is_killed_with_such_a_file(bed):
    """What waits for the file system has nothing that the next shim needs, and no process of the job as its child."""
    with silent_files(bed) as files:
        giver = Giver(bed, files, "gives-a-file")
        job, log = giver.job, giver.log
        files.server.log.wait_for(f"^silent {FLUSH}$")
        bed.kill_shim(job)
        bed.ok("ps", timeout=20)
        giver.is_refused(timeout=20)
        bed.kill_shim(job)
        bed.ok("kill", "--signal", "URG", job, timeout=20)
        bed.expect_whole(job, log)
        giver.is_honest()
        bed.ok("suspend", job)
    bed.ok("resume", job)
    log.goes_on()


@case
def an_agent_that_gives_it_many_times(bed):
    """None of them is there any more when the shim starts CRIU: the start itself would close each."""
    with silent_files(bed) as files:
        giver = Giver(bed, files, "gives-many")
        job, log = giver.job, giver.log
        files.server.log.wait_for(f"^silent {FLUSH}$")
        giver.is_honest()
        bed.fault(*PATIENCE * 30)
        bed.refused(7, "is held until CRIU", "checkpoint", job, "--leave-running")
        files.abort()
        bed.wait_state(job, ("running",), 60)
        bed.disarm()
        log.goes_on()


SHARED = """
import ctypes, os, signal, socket, time
CLONE_FILES = 0x400
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
other = server.accept()[0]
file = os.open({path!r}, os.O_RDWR)
clone = dict(x86_64=56, aarch64=220)[os.uname().machine]
pid = ctypes.CDLL(None).syscall(clone, CLONE_FILES | signal.SIGCHLD, None, None, None, None)
if pid == 0:
    while True:
        time.sleep(0.02)
print("ready", pid, flush=True)
open({pipe!r}).read()
for socket in (one, other, server):
    os.dup2(file, socket.fileno())
print("put", flush=True)
os.waitpid(pid, 0)
"""


@case
def a_file_in_the_place_of_a_connection(bed):
    """Somebody outside the job puts it there, who shares the descriptors, when the job's connections are taken out of repair."""
    pipe = os.path.join(bed.dir, "pipe")
    os.mkfifo(pipe)
    with silent_files(bed) as files:
        program = bed.start([sys.executable, "-u", "-c", SHARED.format(path=files.path, pipe=pipe)])
        pid = program.log.wait_for(r"^ready (\d+)$", 20).group(1)
        job = bed.ok("manage", "--pid", pid).out.strip()
        bed.jobs.append(job)
        bed.fault("checkpoint.frozen", "kill:criu", "heal.repair", "hold")
        with bed.holding("heal.repair", bed.spawn("checkpoint", job, "--leave-running")) as checkpoint:
            files.is_silent_on(FLUSH)
            with open(pipe, "w", encoding="utf-8") as file:
                file.write("now")
            program.log.wait_for("^put$", 20)
        code, _, err = checkpoint.end(60)
        expect(code == 7 and "CRIU was killed by signal 9" in err, f"exit {code}: {err}")
        expect(f"silent {FLUSH}" in files.server.log.text(), "nobody took the file: this test proves nothing")
        bed.expect_state(job, "running")


def scraped(port):
    """What `metrics --listen` answers; nothing while it does not listen yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except ConnectionRefusedError:
        return ""
    finally:
        connection.close()


@case
@as_user
def jobs_of_a_user_are_there(bed):
    """Root looks for them as that user, in a child that no signal ends. The jobs of others are listed, and of such children there is one,
    though root looks again and again."""
    needs_root()
    with UserBed(find_build()) as attacker, silent_files(attacker, attacker.uid) as files:
        job, log = bed.counter(name="train", mib=4)
        files.is_silent_on(LOOKUP, OPEN, OPENDIR)
        program = shutil.copy("/bin/sleep", os.path.join(attacker.dir, "brumate-shim"))
        named = attacker.start(["env", f"BRUMATE_STATE_DIR={files.dir}", program, "600"], "named")
        wait_until(lambda: read_text(f"/proc/{named.pid}/comm") == "brumate-shim\n", "its name")
        for command in (("ps", "--all-users", "-q"), ("metrics", "--all-users")):
            done = ok(as_root(bed, *command))
            expect(job in done.out and f"the jobs of user {attacker.uid} cannot be looked at" in done.err, done.why())
        expect("silent" in files.server.log.text(), "nobody asked: this test proves nothing")
        ok(as_root(bed, "suspend", f"{bed.uid}/{job}"))
        ok(as_root(bed, "resume", f"{bed.uid}/{job}"))
        port = free_port()
        listening = Background([bed.brumate, "metrics", "--all-users", "--listen", f"127.0.0.1:{port}"], env_of_root(bed), cwd="/")
        for _ in range(3):
            wait_until(lambda: job in scraped(port), "an answer")
            time.sleep(1)  # what was found counts for so long
        children = read_text(f"/proc/{listening.process.pid}/task/{listening.process.pid}/children").split()
        his = [pid for pid in children if f"\nUid:\t{attacker.uid}\t" in read_text(f"/proc/{pid}/status")]  # not those of tests beside this one
        expect(len(his) == 1, f"of looks there are {his}")
        listening.signal(signal.SIGTERM)
        listening.end()
        log.goes_on()


if sys.argv[1:2] == ["serve"]:
    serve(int(sys.argv[2]), sys.argv[3])
else:
    main()
