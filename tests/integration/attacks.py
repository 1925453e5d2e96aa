#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user without rights puts into the way of root's commands and of other users: processes that look like ours, records
that are huge, and more of all than is any use. Each case would succeed for the attacker if its check were taken away; the
table in SECURITY.md says what came of it at first."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from as_root import as_root, env_of_root, needs_root, ok, ran_apart
from cases import Background, EXIT_BUSY, EXIT_PERMISSION, EXIT_STILL_RUNNING, EXIT_TIMEOUT, EXIT_USAGE, MIB, Skipped, UserBed, as_user, case, children, expect, find_build, main, read_text, run, wait_until


PLACES = 1024  # of users, that root looks at: USERS_MAX of src/cli/users.c


class Measured:
    """A command of root's, with its time, its output, and the most memory that it or a child of it had."""

    def __init__(self, bed, *args):
        begun = time.monotonic()
        with open(os.path.join(bed.dir, "measured"), "w+", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen([bed.brumate, *args], env=env_of_root(bed), cwd="/", stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            self.out = out.read()
        self.code, self.seconds, self.peak = process.returncode, time.monotonic() - begun, usage.ru_maxrss << 10


# Of all users.

@case
@as_user
def processes_that_are_named_like_shims(bed):
    """One for each of the instances that root looks at: the jobs of others are seen all the same."""
    needs_root()
    with UserBed(find_build()) as attacker:
        program = shutil.copy("/bin/sleep", os.path.join(attacker.dir, "brumate-shim"))
        script = f"for i in $(seq {PLACES + 16}); do BRUMATE_FAULT_FILE=/nowhere/$i {program} 600 & done; echo ready; wait"
        flood = attacker.start(["sh", "-c", script], "flood")
        try:
            flood.log.wait_for("^ready", 120)
            job, log = bed.counter(name="train", mib=4)
            done = ok(as_root(bed, "ps", "--all-users", "--format", "json", timeout=300))
            expect(f"user {attacker.uid} has processes of more than" in done.err, f"nothing says so: {done.err}")
            expect(job in [one["id"] for one in json.loads(done.out)["jobs"]], f"the job of another is not listed: {done.err}")
            ok(as_root(bed, "suspend", f"{bed.uid}/{job}"))
        finally:
            os.killpg(flood.pid, signal.SIGKILL)
        bed.ok("resume", job)
        log.goes_on()


@case
@as_user
def huge_records(bed):
    """Links to one file of many arguments: root waits for so long, and for no more memory."""
    needs_root()
    with UserBed(find_build()) as attacker:
        his, _ = attacker.counter(name="his", mib=4)  # so that root looks there
        jobs = os.path.join(attacker.own["BRUMATE_STATE_DIR"], "jobs")
        record = json.loads(read_text(os.path.join(jobs, his, "job.json"))) | {"argv": ["x" * 200] * 4000, "state": "exited"}
        first = os.path.join(attacker.dir, "record")
        with open(first, "w", encoding="utf-8") as file:
            json.dump(record, file)
        for number in range(2000):
            folder = os.path.join(jobs, f"{number:08x}")
            os.mkdir(folder, 0o700)
            os.link(first, os.path.join(folder, "job.json"))
        run(["chown", "-R", str(attacker.uid), jobs])
        job, log = bed.counter(name="train", mib=4)
        done = Measured(bed, "ps", "--all-users", "--all")
        expect(f"the jobs of user {attacker.uid} cannot be looked at" in done.out, f"they can: {done.out[-300:]}")
        expect(job in done.out, "the job of another is not listed")
        expect(done.peak < 512 * MIB, f"it took {done.peak // MIB} MiB")
        log.goes_on()
        run(["find", jobs, "-name", "0000*", "-prune", "-exec", "rm", "-rf", "{}", "+"])


@case
@as_user
def hundreds_of_jobs_in_metrics(bed):
    """Each would be some 40 series, and who scrapes has a limit for all of them. So many of a user's count, and all of the others'."""
    needs_root()
    with UserBed(find_build()) as attacker:
        his, _ = attacker.counter(name="his", mib=4)
        jobs = os.path.join(attacker.own["BRUMATE_STATE_DIR"], "jobs")
        record = json.loads(read_text(os.path.join(jobs, his, "job.json"))) | {"state": "exited"}
        for number in range(600):
            folder = os.path.join(jobs, f"{number:08x}")
            os.mkdir(folder, 0o700)
            with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
                json.dump(record | {"id": f"{number:08x}", "name": f"n{number}"}, file)
        run(["chown", "-R", str(attacker.uid), jobs])
        job, log = bed.counter(name="train", mib=4)

        def looked():  # on a busy machine the time for a look may be over
            done = ok(as_root(bed, "metrics", "--all-users"))
            expect(f'brumate_job_state{{job="{job}"' in done.out, "the job of another is not there")
            n = len([line for line in done.out.splitlines() if line.startswith("brumate_job_state{") and f'user="{attacker.uid}"' in line])
            return n and (n, done.err)
        n, said = wait_until(looked, "a look at the jobs of the attacker", 120)
        expect(n == 512 and "has more than 512 jobs" in said, f"{n}: {said}")
        log.goes_on()
        run(["find", jobs, "-name", "000*", "-prune", "-exec", "rm", "-rf", "{}", "+"])


@case
@as_user
def a_job_that_is_there_twice(bed):
    """Two records of one id, in one instance and in two: each series of root's metrics is there once, or Prometheus takes none."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    state = bed.own["BRUMATE_STATE_DIR"]
    planted = os.path.join(state, "jobs", "00000000")
    elsewhere = os.path.join(bed.dir, "elsewhere")
    for to in (planted, os.path.join(elsewhere, "jobs", job)):
        shutil.copytree(os.path.join(state, "jobs", job), to, ignore=shutil.ignore_patterns("*.sock"))
        run(["chown", "-R", str(bed.uid), elsewhere, planted])
    program = shutil.copy("/bin/sleep", os.path.join(bed.dir, "brumate-shim"))
    second = bed.start(["env", f"BRUMATE_STATE_DIR={elsewhere}", program, "600"], "second")
    wait_until(lambda: read_text(f"/proc/{second.pid}/comm") == "brumate-shim\n", "its name")
    text = ok(as_root(bed, "metrics", "--all-users")).out
    shutil.rmtree(planted)
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    expect(any(job in one for one in series), "the job is not there: this test proves nothing")
    twice = [one for one in series if series.count(one) > 1]
    expect(not twice, f"twice: {twice[:3]}")
    log.goes_on()


CHANGES = """
import os, socket, sys
jobs, secret, record = sys.argv[1:4]
folders = [os.path.join(jobs, name) for name in ("aaaaaaaa", "bbbbbbbb", "cccccccc")]
def link(path): os.symlink(secret, path)
def huge(path):
    with open(path, "w") as file:
        file.write(record.replace("NAME", "huge"))
        file.truncate(1 << 43)
def growing(path):
    with open(path, "w") as file:
        file.write(record.replace("NAME", "grows") + " " * (1 << 20))
def good(path):
    with open(path, "w") as file:
        file.write(record.replace("NAME", "changes"))
kinds = [link, os.mkfifo, huge, growing, good, os.mkdir]
for folder in folders:
    os.mkdir(folder, 0o700)
number = 0
while True:
    for folder in folders:
        number += 1
        made, path = os.path.join(folder, "new"), os.path.join(folder, "job.json")
        kinds[number % len(kinds)](made)
        try:
            os.rename(made, path)
        except OSError:
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
            os.rename(made, path)
    if number == 300:
        print("changes", flush=True)
"""


@case
@as_user
def records_that_change_while_root_reads(bed):
    """From a link to root's own into a pipe, a file of terabytes, one that grows, and back. The jobs of others are all there."""
    needs_root()
    with UserBed(find_build()) as attacker:
        his, _ = attacker.counter(name="his", mib=4)
        job, log = bed.counter(name="train", mib=4)
        jobs = os.path.join(attacker.own["BRUMATE_STATE_DIR"], "jobs")
        record = json.loads(read_text(os.path.join(jobs, his, "job.json")))
        secret = os.path.join(attacker.dir, "secret")
        with open(secret, "w", encoding="utf-8") as file:
            json.dump(record | {"name": "roots-own", "id": "aaaaaaaa"}, file)
        os.chmod(secret, 0o600)
        text = json.dumps(record | {"name": "NAME", "state": "exited"})
        changer = attacker.start(["/usr/bin/python3", "-c", CHANGES, jobs, secret, text], "changes")
        changer.log.wait_for("^(changes|Traceback)", 60)
        for _ in range(5):
            for command in (("ps", "--all-users", "--all"), ("metrics", "--all-users")):
                done = Measured(bed, *command)
                expect(done.code == 0 and job in done.out and "roots-own" not in done.out, f"{command}: exit {done.code}: {done.out[-300:]}")
                expect(done.peak < 512 * MIB, f"{command} took {done.peak // MIB} MiB")
        ok(as_root(bed, "suspend", f"{bed.uid}/{job}"))
        ok(as_root(bed, "resume", f"{bed.uid}/{job}"))
        expect(changer.process.poll() is None and "Traceback" not in changer.log.text(), changer.log.tail())
        os.killpg(changer.pid, signal.SIGKILL)
        changer.process.wait()
        log.goes_on()
        run(["rm", "-rf", *(os.path.join(jobs, 8 * letter) for letter in "abc")])


SILENT = """
import os, signal, socket, sys
path, backlog = sys.argv[1], int(sys.argv[2])
listener, held = socket.socket(socket.AF_UNIX), []
os.unlink(path)
listener.bind(path)
listener.listen(backlog)
print("silent", flush=True)
if backlog:
    while True:
        held.append(listener.accept())  # and says nothing
while True:  # until there is no place to wait in
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].setblocking(False)
    try:
        held[-1].connect(path)
    except BlockingIOError:
        print("full", flush=True)
        signal.pause()
"""


@case
@as_user
def a_broker_and_a_shim_that_never_answer(bed):
    """Programs of a user's are in their place, and take connections or have no room for one: nobody but that user waits."""
    needs_root()
    with UserBed(find_build()) as attacker:
        his, _ = attacker.counter(name="his", mib=4)
        attacker.ok("suspend", his)
        attacker.ok("resume", his)
        job, log = bed.counter(name="train", mib=4)
        broker, = (os.path.join(attacker.runtime_dir, name) for name in os.listdir(attacker.runtime_dir) if name.startswith("broker") and name.endswith(".sock"))
        shim = os.path.join(attacker.own["BRUMATE_STATE_DIR"], "jobs", his, "shim.sock")
        for backlog in (16, 0):
            silent = [attacker.start(["/usr/bin/python3", "-c", SILENT, path, str(backlog)], "silent") for path in (broker, shim)]
            for one in silent:
                one.log.wait_for("^silent" if backlog else "^full", 60)
            for command in (("ps", "--all-users"), ("metrics", "--all-users")):
                done = ok(as_root(bed, *command))
                expect(job in done.out, f"{command}: the job of another is not there: {done.err}")
            begun = time.monotonic()
            done = as_root(bed, "suspend", f"{attacker.uid}/{his}", "--timeout", "3s")
            expect(done.code == EXIT_TIMEOUT and time.monotonic() - begun < 30, done.why())
            ok(as_root(bed, "suspend", f"{bed.uid}/{job}"))
            ok(as_root(bed, "resume", f"{bed.uid}/{job}"))
            for one in silent:
                os.killpg(one.pid, signal.SIGKILL)
                one.process.wait()
        attacker.kill_shim(his)  # whom nobody reaches any more
        log.goes_on()


SHIM = """
import fcntl, json, os, socket, sys
folder, text = sys.argv[1], json.loads(sys.argv[2])
lock = open(os.path.join(folder, "shim.lock"), "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.join(folder, "shim.sock"))
listener.listen(64)
print("listens", flush=True)
while True:
    asked = listener.accept()[0]
    asked.recv(65536)
    asked.sendall(json.dumps({"parameters": {"job": text}}).encode() + b"\\0")
    print("asked", flush=True)
    asked.close()
"""
PAINT = "\x1b[2J\u009b31m\u202e"


@case
@as_user
def a_shim_that_says_what_it_likes(bed):
    """What root's scripts read of `ps -q` are jobs, and root's terminal and metrics get neither lines nor colours of another's."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    jobs = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")
    record = json.loads(read_text(os.path.join(jobs, job, "job.json")))
    whole = {"name": f"n{PAINT}", "state": "running", "created": record["created"], "argv": [PAINT], "pid": 1, "processes": 1, "message": PAINT}
    lies = {"aaaaaaaa": whole | {"id": f"x\n0/{job}"}, "bbbbbbbb": whole | {"id": "bbbbbbbb", "state": f"happy{PAINT}"}, "cccccccc": whole | {"id": "cccccccc"}}
    fakes = []
    for name, says in lies.items():
        folder = os.path.join(jobs, name)
        os.mkdir(folder, 0o700)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump(record | {"id": name, "name": name, "state": "suspending"}, file)
        run(["chown", "-R", str(bed.uid), folder])
        fakes.append(bed.start(["/usr/bin/python3", "-c", SHIM, folder, json.dumps(says)], name))
        fakes[-1].log.wait_for("^listens", 60)
    for command in (("ps", "--all-users", "-q"), ("ps", "--all-users"), ("ps", "--all-users", "--format", "json"), ("metrics", "--all-users")):
        done = ok(as_root(bed, *command))
        wrong = [line for line in done.out.splitlines() if set(line) & set("\x1b\u009b\u202e") or "happy" in line or re.search(rf"\b0/{job}", line)]
        expect(not wrong, f"{command}: {wrong[:1]!a}")
        expect(job in done.out and "cccccccc" in done.out, f"{command}: not all are there")
    for fake in fakes:
        expect("asked" in fake.log.text(), "nobody asked it: this test proves nothing")
        os.killpg(fake.pid, signal.SIGKILL)
    run(["rm", "-rf", *(os.path.join(jobs, name) for name in lies)])
    log.goes_on()


@case
@as_user
def a_command_of_a_user_that_never_ends(bed):
    """The jobs of others are suspended all the same."""
    needs_root()
    if ran_apart(__file__, "a-command-of-a-user-that-never-ends", timeout=240):
        return
    with UserBed(find_build()) as attacker:
        his, _ = attacker.counter(name="his", mib=4)
        job, log = bed.counter(name="train", mib=4)
        attacker.fault("suspend.gate.begin", "hold")
        root = Background([bed.brumate, "suspend", "--all-users"], env_of_root(bed), cwd="/")
        with attacker.holding("suspend.gate.begin", root):
            bed.wait_state(job, ("suspended",))
            wait_until(lambda: len(children(root.process.pid)) == 1, "the end of all commands but the attacker's")
            expect(root.process.poll() is None, "the attacker's job is not waited for: this test proves nothing")
            root.signal(signal.SIGINT)  # for the command, which is held
            root.signal(signal.SIGTERM)  # the second ends it
            code, out, err = root.end(60)
            expect(code == EXIT_TIMEOUT and out == f"{job}\n" and "did not end, and was killed" in err, f"exit {code}: {out} {err}")
        attacker.wait_state(his, ("running", "suspended"))
        bed.ok("resume", job)
        log.goes_on()


# What a user gets of root's shell.

@case
@as_user
def the_directory_of_roots_shell(bed):
    """Nobody else gets to it, as one above it is root's alone. A process of the user's that were in it would be a way there."""
    needs_root()
    with tempfile.TemporaryDirectory() as closed:
        inside = os.path.join(closed, "inside")
        os.mkdir(inside, 0o755)
        with open(os.path.join(inside, "secret"), "w", encoding="utf-8") as file:
            file.write("roots-own")
        os.chmod(file.name, 0o644)
        job, log = bed.counter(name="train", mib=4)
        name = f"{bed.uid}/{job}"
        bed.fault("suspend.gate.begin", "hold")
        root = Background([bed.brumate, "suspend", name], env_of_root(bed), cwd=inside)
        with bed.holding("suspend.gate.begin", root):
            child, = read_text(f"/proc/{root.process.pid}/task/{root.process.pid}/children").split()
            thief = bed.start(["sh", "-c", f"cat /proc/{child}/cwd/etc/passwd /proc/{child}/cwd/secret; echo; echo done"], "thief")
            thief.log.wait_for("^done", 60)
        code, _, err = root.end()
        expect(code == 0, f"exit {code}: {err}")
        expect("roots-own" not in thief.log.text(), "he has what nobody else gets to")
        expect("root:" in thief.log.text(), f"the command is not there: this test proves nothing: {thief.log.tail()}")
        ok(as_root(bed, "resume", name))
        log.goes_on()
        refused = run([bed.brumate, "checkpoint", name, "--dir", "store"], env=env_of_root(bed), cwd=inside)
        expect(refused.code == EXIT_USAGE and "its user cannot enter this directory" in refused.err, refused.why())
        os.chmod(closed, 0o711)
        ok(run([bed.brumate, "checkpoint", name, "--dir", "store"], env=env_of_root(bed), cwd=bed.dir))
        expect(os.listdir(os.path.join(bed.dir, "store")), "it is not where root meant it to be")


# What a job of his gets of root's.

KEYS = """
while ! [ -e "$0" ]; do sleep 0.05; done
keyctl print "$(keyctl search @s user brumate-test)"
echo asked
while :; do sleep 1; done
"""


@case
@as_user
def the_keys_of_roots_session(bed):
    """His job comes back by a command of root's, whose session has keys."""
    needs_root()
    keyctl = shutil.which("keyctl")
    if not keyctl:
        raise Skipped("keyctl is not installed")
    go = os.path.join(bed.dir, "go")
    bed.counter(mib=4)  # so that root finds where he has his jobs
    job, _ = bed.started(["sh", "-c", f"echo ready now; {KEYS}", go])
    bed.ok("checkpoint", job)
    bed.kill_shim(job)  # the next one is started by root's command
    command = f"keyctl add user brumate-test roots-own @s >/dev/null && keyctl print %user:brumate-test && {bed.brumate} restore {bed.uid}/{job}"
    done = run([keyctl, "session", "brumate-test", "sh", "-c", command], env=env_of_root(bed), cwd="/")
    expect(done.code == 0 and "roots-own" in done.out, f"this test proves nothing: {done.why()}")
    with open(go, "w", encoding="ascii"):
        pass
    log = bed.log(job)
    log.wait_for("^asked")
    expect("roots-own" not in log.text(), f"he has root's key: {log.tail()}")


# What his job has.

HOLES = """
at=$((3 << 60))
exec 3<>"$0"; rm "$0"; truncate -s $((7 << 60)) /proc/self/fd/3
printf x | dd of=/proc/self/fd/3 bs=1 seek=$at conv=notrunc 2>/dev/null
echo ready now
n=0
while :; do
	n=$((n+1))
	[ "$(dd if=/proc/self/fd/3 bs=1 skip=$at count=1 2>/dev/null)" = x ] && echo step $n OK || echo step $n BAD
	sleep 0.02
done
"""


@case
@as_user
def a_deleted_file_of_exbibytes(bed):
    """Of holes, with one byte in the middle. Nobody looks at each of its parts, neither here nor at the restore."""
    job, log = bed.started(["sh", "-c", HOLES, f"/dev/shm/brumate-test-{bed.uid}"])
    bed.ok("checkpoint", job, "--leave-running", "--timeout", "60s")
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job, "--timeout", "60s")["checkpoint"]
    bed.expect_restorable(checkpoint, log, "--timeout", "60s")
    bed.ok("kill", job)


# What his job holds.

HOLDS = """
import resource, signal, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
held = []
for path in sys.argv[1:]:
    for number in range(600):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].settimeout(20)
        held[-1].connect(path)
        try:
            held[-1].send(b'{"method": "io.brumate.' if number % 2 else b"")
        except BrokenPipeError:
            pass
print("held", flush=True)
signal.pause()
"""


@case
@as_user
def connections_that_ask_nothing(bed):
    """To the broker and to a job's shim: some say nothing, some half of a call. His and root's commands get in all the same."""
    needs_root()
    job, log = bed.counter(mib=4)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    broker, = (os.path.join(bed.runtime_dir, name) for name in os.listdir(bed.runtime_dir) if name.startswith("broker") and name.endswith(".sock"))
    holder = bed.start(["/usr/bin/python3", "-c", HOLDS, broker, os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")], "holder")
    holder.log.wait_for("^held", 60)
    bed.ok("suspend", job, "--timeout", "20s")
    ok(as_root(bed, "resume", f"{bed.uid}/{job}", "--timeout", "20s"))
    log.goes_on()


CROWDS = """
import array, json, os, signal, socket, sys
how, path, processes, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def hold():
    held = []
    for number in range(each):
        ours = socket.socket(socket.AF_UNIX)
        ours.settimeout(60)
        ours.connect(path)
        held.append(ours)
        if how == "wait":
            ours.sendall(b'{"method": "io.brumate.job.Wait"}\\0')
            continue
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        given = array.array("i", [held[-1][1].fileno()])
        ours.sendmsg([b'{"method": "io.brumate.broker.Transfer"}\\0'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
        answer = ours.recv(4096)
        ours.close()
        if b"error" in answer:
            print("refused:", answer.decode(), flush=True)
    return held
told = os.pipe()
for number in range(processes):
    if os.fork() == 0:
        held = hold()
        os.write(told[1], b"x")
        for ours in held if how == "wait" else ():
            ours.settimeout(None)
            print("answered" if ours.recv(4096) else "hung up on", flush=True)
        signal.pause()
for number in range(processes):
    os.read(told[0], 1)
print("held", flush=True)
signal.pause()
"""


class Crowd:
    """Processes of the user that hold connections in a call, or sessions in which they say nothing."""

    def __init__(self, bed, how, path, processes, each):
        self.program = bed.start(["/usr/bin/python3", "-c", CROWDS, how, path, str(processes), str(each)], how)
        self.program.log.wait_for("^held", 120)

    def end(self):
        os.killpg(self.program.pid, signal.SIGKILL)


@case
@as_user
def sessions_in_which_nothing_is_said(bed):
    """All that the broker has places for, first of one process, then of one for each. Other jobs of the user are moved all the same."""
    job, log = bed.counter(mib=4)
    for processes in (1, 64):
        bed.ok("suspend", job)
        bed.ok("resume", job)
        broker, = (os.path.join(bed.runtime_dir, name) for name in os.listdir(bed.runtime_dir) if name.startswith("broker") and name.endswith(".sock"))
        crowd = Crowd(bed, "session", broker, processes, 64 // processes)
        for operation in ("suspend", "resume"):
            done = bed.ok(operation, job, "--timeout", "60s")
            expect("the driver alone" not in done.err, f"{operation}: its memory did not go by a session: {done.err}")
        crowd.end()
        log.goes_on()


@case
@as_user
def calls_that_wait(bed):
    """For the end of the job, on more connections than its shim has places for: others are served, and so is one that waits honestly."""
    job, log = bed.counter(mib=4)
    shim = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")
    honest = Crowd(bed, "wait", shim, 1, 1)
    crowd = Crowd(bed, "wait", shim, 6, 120)
    bed.ok("suspend", job, "--timeout", "60s")
    bed.ok("resume", job, "--timeout", "60s")
    log.goes_on()
    crowd.end()
    bed.ok("kill", job)
    honest.program.log.wait_for("^(answered|hung up on)", 60)
    honest.end()
    expect("answered" in honest.program.log.text(), "who waits honestly is hung up on")


# In a store that others can look into, or write to.

LOCKS = """
import fcntl, os, signal, sys
held = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def shared_store(bed, mode):
    """A directory that all can reach, and somebody else."""
    store = tempfile.mkdtemp(prefix="brumate-test-store-")
    try:
        os.chmod(store, mode)
        with UserBed(find_build()) as attacker:
            yield store, attacker
    finally:
        run(["rm", "-rf", store])


@case
def a_lock_of_the_store(bed):
    """Who may list a store can lock its directory, and keep it locked: nothing is waited for without end because of that."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    with shared_store(bed, 0o755) as (store, attacker):
        bed.ok("checkpoint", job, "--dir", store, "--name", "before", "--leave-running")
        left = os.path.join(store, ".half.partial")
        os.mkdir(left, 0o700)
        attacker.start(["/usr/bin/python3", "-c", LOCKS, store], "locks").log.wait_for("^locked", 60)
        bed.ok("checkpoint", job, "--dir", store, "--name", "one", "--leave-running")
        refused = bed.refused(EXIT_BUSY, "somebody has locked", "pin", "one", "--dir", store)
        expect("lslocks" in refused.err, refused.why())
        bed.ok("ls", "--dir", store)
        bed.ok("rm", "--dir", store, "--yes", "before")
        bed.ok("prune", "--dir", store, "--keep-last", "1", "--yes")
        bed.ok("checkpoint", job, "--dir", store, "--name", "two")
        bed.ok("restore", "two", "--dir", store)
        log.goes_on()
        attacker.programs[-1].end()
        bed.ok("pin", "one", "--dir", store)
        bed.ok("checkpoint", job, "--dir", store, "--name", "three", "--leave-running")
        expect(not os.path.exists(left), "what a dead writer left is there still")
        bed.ok("kill", job)


@case
def a_folder_of_sets_that_is_anothers(bed):
    """Who made it could list the names of records, by which members know each other, or have them written elsewhere."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    with shared_store(bed, 0o1777) as (store, attacker):
        folder, elsewhere = os.path.join(store, ".sets"), os.path.join(bed.dir, "elsewhere")
        os.mkdir(elsewhere, 0o700)
        os.symlink(elsewhere, folder)
        os.lchown(folder, attacker.uid, attacker.uid)
        line = ("set", "checkpoint", "--dir", store, "--name", "one", job)
        refused = bed.cli(*line)
        expect(refused.code != 0 and not os.listdir(elsewhere), f"{os.listdir(elsewhere)} {refused.why()}")
        expect("a link" in refused.err, refused.why())
        os.unlink(folder)
        os.mkdir(folder, 0o755)
        os.chown(folder, attacker.uid, attacker.uid)
        bed.refused(EXIT_PERMISSION, f"belongs to uid {attacker.uid}", *line)
        os.chown(folder, 0, 0)
        os.chmod(folder, 0o777)
        bed.refused(EXIT_PERMISSION, "users other than its owner may write to it", *line)
        os.chmod(folder, 0o755)
        log.goes_on()
        bed.ok(*line)
        expect(os.stat(folder).st_mode & 0o777 == 0o755, "its mode is another")
        bed.ok("set", "restore", "--dir", store, "one", "--timeout", "60s")
        log.goes_on()


@case
def a_store_whose_owner_exchanges_checkpoints(bed):
    """While one is written, for a link to somewhere else: nothing is written there, and the job does not end for what is not there."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    with shared_store(bed, 0o755) as (store, attacker):
        os.chown(store, attacker.uid, attacker.uid)
        for name, point in (("one", "checkpoint.image.end"), ("two", "checkpoint.criu.begin")):
            elsewhere = os.path.join(bed.dir, f"elsewhere-of-{name}")
            for folder in ("criu", "memory"):
                os.makedirs(os.path.join(elsewhere, folder), 0o700)
            script = f"mv .{name}.partial taken-{name} && ln -s {elsewhere} .{name}.partial; echo done"
            with bed.held_at(point, "checkpoint", job, "--dir", store, "--name", name) as checkpoint:
                attacker.start(["sh", "-c", script], "exchanges", cwd=store).log.wait_for("^done", 60)
            code, _, err = checkpoint.end(60)
            expect(code == EXIT_STILL_RUNNING and "somebody has put something else in its place" in err, f"{point}: exit {code}: {err}")
            expect(os.path.islink(os.path.join(store, name)), f"it was not exchanged: this test proves nothing: {os.listdir(store)}")
            found = [files for _, _, files in os.walk(elsewhere) if files]
            expect(not found, f"written through the link: {found}")
            bed.expect_state(job, "running")
            log.goes_on()
        bed.ok("checkpoint", job)
        bed.ok("restore", job)
        log.goes_on()


@case
def checkpoints_of_another_in_a_store_of_all(bed):
    """Links, pipes and files of terabytes under names that look like later ones of a job: each command ends, and means one's own."""
    needs_root()
    job, log = bed.counter(name="train", mib=4)
    with shared_store(bed, 0o1777) as (store, attacker):
        bed.ok("checkpoint", job, "--dir", store, "--name", "train-1", "--leave-running")
        log.goes_on()
        script = """
import os, sys
os.chdir(sys.argv[1])
def folder(name):
    os.mkdir(name, 0o755)
    return os.path.join(name, "manifest.json")
os.mkfifo(folder("train-2"), 0o666)
os.symlink("../train-1/manifest.json", folder("train-3"))
with open(folder("train-4"), "w") as file:
    file.truncate(1 << 43)
os.symlink("train-1", "train-5")
os.symlink("/proc/self/root", "train-6")
os.mkfifo("train-7")
folder("train-8")
deep = os.getcwd()
os.mkdir(".half.partial")
os.chdir(".half.partial")
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.chdir(deep)
for name in os.listdir("."):
    if name.startswith("train-") and name != "train-1":
        os.utime(name, (1 << 32, 1 << 32), follow_symlinks=False)
print("made", flush=True)
"""
        made = attacker.start(["/usr/bin/python3", "-c", script, store], "plants")
        made.log.wait_for("^(made|Traceback)", 60)
        expect("made" in made.log.text(), made.log.tail())
        for command in (("ls",), ("ls", "--format", "json"), ("prune", "--keep-last", "1", "--yes", "--dry-run")):
            done = bed.cli(*command, "--dir", store, timeout=60)
            expect("train-1" in done.out or command[0] == "prune", done.why())
        for name in ("train-2", "train-3", "train-4", "train-5", "train-6", "train-7", "train-8"):
            for command in ("verify", "restore", "inspect"):
                done = bed.cli(command, name, "--dir", store, timeout=60)
                expect(done.code not in (0, -11, -6, -7), done.why())
        bed.ok("checkpoint", job, "--dir", store, "--name", "other")
        bed.ok("restore", "--dir", store, "--checkpoint", "other")
        log.goes_on()
        bed.ok("kill", job)
        bed.ok("rm", "--yes", "--job", job)
        bed.ok("rm", "--yes", "--dir", store, "--checkpoint", "other")
        bed.ok("restore", "--dir", store, "train")
        bed.ok("kill", "train")
        run(["rm", "-rf", os.path.join(store, ".half.partial")])


if __name__ == "__main__":
    main()
