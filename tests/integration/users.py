#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Users who are not root, with nothing of root's running: a job of theirs from its start to its end, and what such a
user may not have. CRIU, shim, broker and keeper run as the user; what the launcher of CRIU adds is one capability."""

import json
import os
import time

from cases import CAP_CHECKPOINT_RESTORE, STEPPING, Skipped, allow_launcher, as_user, case, expect, main, pids, read_text, run, wait_until


def status_of(pid):
    """The fields of /proc/PID/status that say whose a process is and what it may."""
    return dict(line.split(":\t", 1) for line in read_text(f"/proc/{pid}/status").splitlines() if ":\t" in line)


def expect_of_user(bed, status, capabilities=0):
    name = status.get("Name")
    for field in ("Uid", "Gid"):
        expect(status[field].split() == [str(bed.uid)] * 4, f"{name}: {field} {status[field]}")
    expect(not status["Groups"].split(), f"{name}: groups {status['Groups']}")
    for field in ("CapPrm", "CapEff", "CapAmb"):
        expect(int(status[field], 16) == capabilities, f"{name}: {field} {status[field]}")


def session_of(pid):
    """None: the process has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@case
@as_user
def first_job(bed):
    """README's."""
    job, log = bed.counter("train")
    bed.operation("suspend", "train")
    keepers = [pid for pid, command in bed.processes() if "--keep" in command]
    expect(keepers, f"no keeper among {bed.processes()}")
    bed.operation("resume", "train")
    log.goes_on()
    with bed.held_at("checkpoint.gate.begin", "checkpoint", "train") as checkpoint:
        # The launcher becomes CRIU, and until then it has a command line like it.
        wait_until(lambda: not bed.named("brumate-criu-launch"), "CRIU to run in the launcher's place")
        processes = bed.processes()
        crius = [pid for pid, command in processes if "swrk" in command.split()]
        expect(crius, f"CRIU does not run: {processes}")
        found = {pid: (status_of(pid), session_of(pid)) for pid, _ in processes}
        found = {pid: one for pid, one in found.items() if "Uid" in one[0] and one[1]}  # the others have just ended
        names = {status["Name"].strip() for status, _ in found.values()}
        expect({"brumate-shim", "brumate-broker", "counter"} <= names and set(crius) & set(found), f"{names}")
        of_criu = {session for pid, (_, session) in found.items() if pid in crius}  # its helpers are in it, too
        for status, session in found.values():
            expect_of_user(bed, status, 1 << CAP_CHECKPOINT_RESTORE if session in of_criu else 0)
    code, _, err = checkpoint.end()
    expect(code == 0, f"checkpoint: exit {code}: {err}")
    bed.operation("restore", "train")
    log.goes_on()
    expect_of_user(bed, status_of(bed.pid(job)))
    bed.end(job)


# Runs a worker and says which signals reach itself.
TOLD = """
import os, signal, subprocess, sys
worker = subprocess.Popen([sys.argv[1], "--mib", "2", "--chunk-mib", "2", "--interval-ms", "25"])
def told(number, frame):
    print("told", signal.Signals(number).name[3:], flush=True)
    if number == signal.SIGTERM: worker.terminate(); worker.wait(); os._exit(3)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGUSR1, told)
while True: signal.pause()
"""


@case
@as_user
def what_is_restored_is_told_as_before(bed):
    """Signals reach the command and not the reaper, which the kernel shows to nobody while CRIU builds the tree; again and again."""
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", TOLD, bed.program("counter")], "told")
    pid = bed.pid(job)
    for _ in range(2):
        bed.operation("checkpoint", job)
        bed.operation("restore", job)
        log.goes_on()
        expect(bed.pid(job) == pid, f"{bed.pid(job)} is told to be the command, which is {pid}")
        before = log.text().count("told USR1")
        bed.ok("kill", "--signal", "USR1", job)
        log.wait_until(lambda text, n=before: text.count("told USR1") > n, "the signal")
    start = time.monotonic()
    bed.ok("kill", job)
    expect(time.monotonic() - start < 8, "it was killed only after the time for its own end was over")
    expect("told TERM" in log.text(), f"it was not told: {log.tail()}")
    expect(bed.job(job)["exit_code"] == 3, f"{bed.job(job)}")


@case
@as_user
def everything_lies_below_the_home(bed):
    facts = bed.cli("doctor", "--format", "json", env=bed.DEFAULTS).json()["facts"]
    found = {key: facts[key] for key in ("runtime-dir", "state-dir", "log-dir", "store")}
    expect(found == {"runtime-dir": bed.runtime_dir, "state-dir": bed.own["BRUMATE_STATE_DIR"],
                     "log-dir": os.path.join(bed.kept, "logs"), "store": os.path.join(bed.kept, "checkpoints")}, f"{found}")
    log = os.path.join(bed.kept, "logs", bed.ok("run", "--name", "short", "--", "id", "-u", env=bed.DEFAULTS).out.strip())
    bed.ok("wait", "short", env=bed.DEFAULTS)
    expect(read_text(log + ".log") == f"{bed.uid}\n", f"{log}: {read_text(log + '.log')!r}")
    bed.ok("rm", "short", env=bed.DEFAULTS)


@case
@as_user
def doctor_does_not_fail_for_what_only_root_can_check(bed):
    result = bed.cli("doctor")
    failed = [line for line in result.out.splitlines() if line.startswith("fail")]
    expect(result.code == 0 and not failed, f"exit {result.code}: {failed}")
    check = [line for line in result.out.splitlines() if " criu-check " in line]
    expect(len(check) == 1 and ("not checked (needs root)" in check[0] or check[0].startswith("ok")), f"{check}")


@case
@as_user
def without_its_capability_the_launcher_says_so(bed):
    os.removexattr(bed.launcher(), "security.capability")
    try:
        _, log = bed.counter("train")
        levels = {f["key"]: f for f in bed.doctor()["findings"]}
        expect(levels["criu"]["level"] == "fail" and f"setcap cap_checkpoint_restore=ep {bed.launcher()}" in
               levels["criu"]["hint"], f"{levels['criu']}")
        expect(levels["capabilities"]["level"] == levels["ptrace"]["level"] == "ok", f"{levels}")
        bed.refused(4, "has no CAP_CHECKPOINT_RESTORE", "checkpoint", "train")
        bed.operation("suspend", "train")
        bed.operation("resume", "train")
        log.goes_on()
    finally:
        allow_launcher(bed.launcher())


@case
@as_user
def one_who_is_of_the_group_since(bed):
    """The groups of a process are those of its login: to be told what has been done already helps nobody."""
    databases = {"passwd": f"fresh:x:{bed.uid}:{bed.uid}::{bed.dir}:/bin/sh\n", "group": f"fresh:x:{bed.uid}:\nsavers:x:4711:fresh\n"}
    for name, more in databases.items():
        with open(os.path.join(bed.dir, name), "w", encoding="utf-8") as file:
            file.write(read_text(f"/etc/{name}") + more)
    os.chown(bed.launcher(), 0, 4711)
    os.chmod(bed.launcher(), 0o750)
    try:
        mounts = " && ".join(f"mount --bind {bed.dir}/{name} /etc/{name}" for name in databases)
        for groups, hint in ((f"{bed.uid}", "you are of it since: log in again"), (f"{bed.uid},4711", "")):
            done = run(["unshare", "-m", "sh", "-c", f"{mounts} && exec setpriv --reuid {bed.uid} --regid {bed.uid} --groups {groups} "
                        f"{bed.brumate} doctor --format json"], env=bed.command_env())
            criu = next(f for f in json.loads(done.out)["findings"] if f["key"] == "criu")
            expect(hint in criu["hint"] and (criu["level"] == "fail" or not hint), f"{groups}: {criu}")
    finally:
        os.chown(bed.launcher(), 0, 0)
        os.chmod(bed.launcher(), 0o755)
        allow_launcher(bed.launcher())


@case
@as_user
def root_decides_who_may_run_the_launcher(bed):
    """An installation lets a group run it; a change of the group takes the capability away, as `make install` minds."""
    os.chmod(bed.launcher(), 0o750)
    try:
        _, log = bed.counter("train")
        criu = next(f for f in bed.doctor()["findings"] if f["key"] == "criu")
        expect(criu["level"] == "fail" and "usermod -aG brumate-users" in criu["hint"], f"{criu}")
        bed.refused(4, f"{bed.launcher()}: only users of its group may run it", "checkpoint", "train")
        log.goes_on()
        os.chown(bed.launcher(), 0, bed.uid)
        allow_launcher(bed.launcher())
        bed.operation("checkpoint", "train", "--leave-running")
        log.goes_on()
    finally:
        os.chown(bed.launcher(), 0, 0)
        os.chmod(bed.launcher(), 0o755)
        allow_launcher(bed.launcher())


# A filter that allows everything.
WITH_A_FILTER = """
import ctypes, time
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
allow = ctypes.create_string_buffer(b"\\x06\\0\\0\\0\\0\\0\\xff\\x7f", 8)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(allow))), 0, 0) == 0
print("ready with a filter", flush=True)
while True:
    time.sleep(0.01)
"""


@case
@as_user
def a_filter_of_system_calls_is_not_lost(bed):
    job, _ = bed.started(["/usr/bin/python3", "-u", "-c", WITH_A_FILTER], "filtered")
    bed.refused(4, "has a filter of system calls", "checkpoint", "filtered")
    bed.expect_state(job, "running")
    bed.end(job)


# What a user cannot have is refused before anything is touched.

def refused_untouched(bed, job, log, words, *args):
    bed.fault("checkpoint.criu-start.begin", "error:5")  # it would fire before the job is touched
    result = bed.cli("checkpoint", job, *args)
    expect(result.code in (4, 5) and words in result.err and "hint: " in result.err, result.why())
    expect(bed.disarm(), f"it was begun: {result.why()}")
    bed.expect_whole(job, log)
    expect(not bed.checkpoints() and not bed.partials(), "something was saved")


@case
@as_user
def a_pid_that_is_taken_is_refused(bed):
    """It takes a pid namespace, and that takes root."""
    job, log = bed.counter("train")
    pid = bed.pid(job)
    bed.operation("checkpoint", job)
    squatter = bed.take_pid(pid)
    bed.fault("restore.load.begin", "error:5")
    bed.refused(6, f"process id {pid} of the checkpoint is in use, and only root can", "restore", job)
    expect(bed.disarm(), "it was begun")
    bed.expect_state(job, "checkpointed")
    squatter.end()
    bed.expect_restorable(job, log)
    bed.end(job)


@case
@as_user
def a_pid_that_is_taken_for_a_moment(bed):
    """After the look at it: who is gone at the next try is in nobody's way."""
    job, log = bed.counter("train")
    thread = max(int(t) for t in os.listdir(f"/proc/{bed.pid(job)}/task"))
    bed.operation("checkpoint", job)
    bed.restore_while_taken(thread, job)
    log.goes_on()
    bed.end(job)


IN_NAMESPACES = ["unshare", "--user", "--map-current-user", "--time", "--fork"]


@case
@as_user
def namespaces_of_its_own_are_refused(bed):
    if run([*IN_NAMESPACES, "true"], **bed.whose).code:
        raise Skipped("users can make no namespaces here")
    job, log = bed.started([*IN_NAMESPACES, "/usr/bin/python3", "-u", "-c", WITH_STEPS], "apart")
    refused_untouched(bed, job, log, "has capabilities (")
    bed.end(job)


WITH_STEPS = """
import time
print("ready", "to go", flush=True)
""" + STEPPING


LARGE = """
import mmap, time
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096):
    memory[at:at + 8] = at.to_bytes(8, "little")
print("ready", "with 64 MiB", flush=True)
step = 0
while True:
    step += 1
    good = all(memory[at:at + 8] == at.to_bytes(8, "little") for at in range(0, len(memory), 4096))
    print("step", step, "OK" if good else "BAD", flush=True)
    time.sleep(0.02)
"""


@case
@as_user
def large_memory_comes_back(bed):
    """That is kept beside CRIU's images. Until it is about to run, the kernel keeps the job from its own user."""
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", LARGE], "large")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    regions = bed.ok("inspect", checkpoint, "--format", "json").json()["manifest"]["memory"]["regions"]
    expect(any(region["kind"] == "host" for region in regions), f"this test proves nothing: {regions}")
    bed.fault("restore.host-memory", "error:5")
    before = set(pids())
    bed.refused(1, "injected while memory is filled", "restore", checkpoint)
    bed.expect_state(job, "checkpointed")
    left = [pid for pid in set(pids()) - before if "64 MiB" in read_text(f"/proc/{pid}/cmdline")]
    expect(not left, f"{left} are left of it")
    bed.expect_restorable(checkpoint, log)
    bed.end(job)


@case
@as_user
def the_other_ways_of_an_operation(bed):
    """--leave-running, one that shares the chunks of an earlier one, threads, and processes by their pid."""
    job, log = bed.kind("threads", name="train")
    for options in (("--leave-running",), ("--leave-running",), ()):
        bed.operation("checkpoint", job, *options)
        if options:
            bed.expect_whole(job, log)
    bed.expect_restorable(job, log)
    bed.operation("suspend", job)
    bed.operation("resume", job, "--keep-copy")
    bed.end(job)
    program = bed.start([bed.program("counter"), "--mib", "8", "--chunk-mib", "8", "--interval-ms", "25"])
    program.log.wait_for("^ready")
    bed.operation("suspend", "--pid", program.pid)
    bed.operation("resume", "--pid", program.pid)
    bed.ok("release", next(entry["id"] for entry in bed.list("ps", "jobs") if entry["pid"] == program.pid))
    taken = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(taken)
    checkpoint = bed.operation("checkpoint", taken)["checkpoint"]
    program.wait()
    bed.operation("restore", checkpoint)
    expect_of_user(bed, status_of(bed.pid(taken)))
    bed.end(taken)


# Encrypted.

def key_of(bed, name="key"):
    path = os.path.join(bed.dir, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("5" * 64)
    os.chown(path, bed.uid, bed.uid)
    return path


SECRETIVE = """
import time
secret = open("{}").read()
print("ready", "with a secret", flush=True)
""" + STEPPING


def files_with(secret, *directories):
    found = []
    for directory in directories:
        for top, _, names in os.walk(directory):
            found += [name for name in names if os.path.isfile(os.path.join(top, name))
                      and secret in read_text(os.path.join(top, name))]
    return found


@case
@as_user
def an_encrypted_checkpoint(bed):
    """What is in the clear is in memory that has no path, also while CRIU writes and reads it, and after a sudden end."""
    secret = "a-password-that-only-memory-knows"
    with open(os.path.join(bed.dir, "secret"), "w", encoding="utf-8") as file:
        file.write(secret)
    os.chmod(os.path.join(bed.dir, "secret"), 0o644)
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", SECRETIVE.format(os.path.join(bed.dir, "secret"))], "train")
    os.unlink(os.path.join(bed.dir, "secret"))
    places = [bed.dir, bed.runtime_dir]
    key = ("--key-file", key_of(bed))
    plain = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    expect(files_with(secret, *places), "this test proves nothing: the secret is not even in a checkpoint in the clear")
    bed.ok("rm", "--checkpoint", plain, "--yes")
    with bed.held_at("checkpoint.dumped", "checkpoint", job, "--leave-running", *key) as operation:
        expect(not files_with(secret, *places), f"in the clear: {files_with(secret, *places)}")
    expect(operation.end()[0] == 0, "the checkpoint failed")
    bed.fault("checkpoint.dumped", "kill")
    expect(bed.cli("checkpoint", job, *key).code != 0 and bed.has_fired(), "the shim did not die")
    bed.cli("kill", "--signal", "CONT", job)  # the next shim puts it right
    bed.wait_state(job, ("running",), 60)
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job, *key)["checkpoint"]
    expect(not files_with(secret, *places), f"in the clear: {files_with(secret, *places)}")
    bed.refused(5, "encrypted, and there is no key", "restore", checkpoint)
    bed.ok("verify", checkpoint, *key)
    with bed.held_at("restore.restored", "restore", checkpoint, *key) as operation:
        expect(not files_with(secret, *places), f"in the clear: {files_with(secret, *places)}")
    code, _, err = operation.end()
    expect(code == 0, f"restore: exit {code}: {err}")
    log.goes_on()
    expect_of_user(bed, status_of(bed.pid(job)))
    bed.end(job)


@case
@as_user
def an_encrypted_checkpoint_of_the_gpu(bed):
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--key-file", key_of(bed))["checkpoint"]
    bed.expect_restorable(checkpoint, log, "--key-file", os.path.join(bed.dir, "key"))
    bed.end(job)


@case
@as_user
def encryption_without_a_place_in_memory_is_refused(bed):
    """Where users can have no namespaces."""
    job, log = bed.counter("train")
    bed.fault("memory-dir.namespace", "error:28")
    bed.refused(5, "nothing may reach a disk in the clear", "checkpoint", job, "--key-file", key_of(bed))
    bed.expect_whole(job, log)
    expect(not bed.checkpoints() and not bed.partials(), "something was saved")
    bed.end(job)


# The launcher.

@case
@as_user
def the_launcher_runs_criu_alone(bed):
    """And as it was installed, whatever its user says."""
    for words in ((), ("dump",), ("swrk",), ("swrk", "x"), ("swrk", "3", "--config"), ("--version", "-v")):
        result = run([bed.launcher(), *words], **bed.whose)
        expect(result.code == 120 and "usage" in result.err, result.why())
    os.chmod(bed.dir, 0o755)
    result = run([bed.launcher(), "--version"], env={"LD_PRELOAD": "/nowhere.so", "PATH": bed.dir, "HOME": bed.dir}, **bed.whose)
    expect(result.code == 0 and result.out.startswith("Version: ") and not result.err, f"{result.why()} {result.out}")
    folder = os.path.dirname(bed.launcher())
    os.chmod(os.path.dirname(folder), 0o777)
    try:
        result = run([bed.launcher(), "--version"], **bed.whose)
        expect(result.code == 120 and "does not belong to root alone" in result.err, result.why())
    finally:
        os.chmod(os.path.dirname(folder), 0o755)


@case
@as_user
def the_launcher_reads_nothing_of_its_users(bed):
    """No configuration of CRIU's, no library, no descriptor but the one that it is told of."""
    os.chmod(bed.dir, 0o755)
    os.makedirs(os.path.join(bed.dir, ".criu"))
    for name in (".criu/default.conf", "named.conf"):
        with open(os.path.join(bed.dir, name), "w", encoding="utf-8") as file:
            file.write("no-such-option\n")
    hostile = {"HOME": bed.dir, "CRIU_CONFIG_FILE": os.path.join(bed.dir, "named.conf"),
               "CRIU_LIBS_DIR": bed.dir, "PATH": bed.dir}
    criu = os.path.join(os.path.dirname(os.path.dirname(bed.launcher())), "criu", "criu")
    if os.path.exists(criu):
        for name in ("HOME", "CRIU_CONFIG_FILE"):
            result = run([criu, "--version"], env={"PATH": os.environ["PATH"], name: hostile[name]}, **bed.whose)
            expect("no-such-option" in result.err, f"this test proves nothing: {result.why()}")
    for closed in ("", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        script = f'LD_PRELOAD=/nowhere.so LD_AUDIT=/nowhere.so LD_LIBRARY_PATH=$HOME exec "$0" --version {closed}'
        result = run(["/bin/sh", "-c", script, bed.launcher()], env=hostile, **bed.whose)
        expect(result.code == 0 and (">&-" in closed or result.out.startswith("Version: ")), f"{closed}: {result.why()}")
    job, log = bed.counter("train")
    bed.own.update(hostile)
    bed.kill_shim(job)  # the next one gets this environment
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.expect_restorable(checkpoint, log)
    bed.end(job)


# Asks the launcher's CRIU to dump a process of the user's, with a script that it is to run meanwhile.
WITH_A_SCRIPT = """
import os, socket, subprocess, sys
launcher, folder = sys.argv[1:]
def number(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])
def field(key, value):
    return number(key << 3) + number(value) if isinstance(value, int) else number(key << 3 | 2) + number(len(value)) + value
os.mkdir(folder + "/images")
script = folder + "/script"
open(script, "w").write("#!/bin/sh\\ncat /proc/self/status > " + folder + "/ran\\n")
os.chmod(script, 0o755)
open(folder + "/conf", "w").write("action-script " + script + "\\n")
victim = subprocess.Popen(["setsid", "sleep", "100"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
images = os.open(folder + "/images", os.O_RDONLY)
criu = subprocess.Popen([launcher, "swrk", str(its.fileno())], pass_fds=[its.fileno(), images], stderr=subprocess.STDOUT)
its.close()
options = (field(1, images) + field(2, victim.pid) + field(3, 1) + field(7, 1) + field(9, 4) + field(10, b"log")
           + field(51, (folder + "/conf").encode()) + field(67, 1))
ours.send(field(1, 1) + field(2, options))
ours.recv(65536)
victim.kill()
criu.wait()
"""


@case
@as_user
def what_the_launcher_gives_is_one_capability(bed):
    """CRIU does what its user asks, and runs their programs: with the launcher's capability, and with no other right."""
    result = run(["/usr/bin/python3", "-c", WITH_A_SCRIPT, bed.launcher(), bed.dir], cwd="/", **bed.whose)
    expect(result.code == 0, result.why())
    ran = dict(line.split(":\t", 1) for line in read_text(os.path.join(bed.dir, "ran")).splitlines() if ":\t" in line)
    expect(ran, f"CRIU runs no scripts any more: SECURITY.md says more than is so: {read_text(bed.dir + '/images/log')[-500:]}")
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        expect(int(ran[name], 16) & ~(1 << CAP_CHECKPOINT_RESTORE) == 0, f"{name}: {ran[name]}")
    expect(set(ran["Uid"].split()) == set(ran["Gid"].split()) == {str(bed.uid)} and not ran["Groups"].split(), f"{ran}")


main()
