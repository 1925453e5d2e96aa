#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What CRIU would refuse when the job stands still already, lose at the restore, or drop: it is refused beforehand, by name, and the
job goes on; or there is a way round it."""

import fcntl
import os
import re
import subprocess

from cases import EXIT_BUSY, EXIT_STILL_RUNNING, Skipped, as_user, case, expect, main, wait_until
from harness import run

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"  # which each user may run

STEPS = """
import time
print("ready 1", flush=True)
step = 0
while True:
    step += 1
    {}
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


def script(bed, setup, each="pass"):
    return bed.started([PYTHON, "-u", "-c", setup + STEPS.format(each)])


def refused(bed, job, log, words):
    """By doctor and by checkpoint, with the same words, while the job goes on."""
    told = bed.cli("doctor", "--job", job)
    expect(told.code == 4 and re.search(words, told.out), f"doctor: {told.why()}\n{told.out}")
    result = bed.refused(4, words, "checkpoint", job)
    expect("hint: " in result.err, f"it says nothing of what to do: {result.err}")
    bed.expect_whole(job, log)


@case
@as_user
def what_criu_does_not_know(bed):
    epoll = """
import os, select
r, w = os.pipe(); e = select.epoll(); e.register(r)
if os.fork() == 0:
    e.close()
    while True: time.sleep(1)
import time; time.sleep(0.1); os.close(r)
"""
    for setup, words in (("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n", "protocol MPTCP"),
                         ("import os; p = os.pipe2(os.O_DIRECT)\n", "pipe of packets"),
                         ("import time\n" + epoll, "watches a file which was its fd")):
        job, log = script(bed, setup)
        refused(bed, job, log, words)


@case
@as_user
def an_ended_process_of_a_user_that_is_not_told_of(bed):
    """As one is that a signal had ended when it was restored."""
    setup = """
import ctypes, os, signal, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); os.kill(os.getpid(), signal.SIGKILL)
while open(f"/proc/self/task/{os.getpid()}/children").read().split() == []: time.sleep(0.01)
"""
    words = "has ended, and the kernel does not tell how"
    job, log = script(bed, setup)
    pid = int(subprocess.run(["pgrep", "-P", str(bed.job(job)["pid"])], stdout=subprocess.PIPE, text=True, check=True).stdout)
    wait_until(lambda: open(f"/proc/{pid}/stat", encoding="ascii").read().split()[2] == "Z", "the end of the child")
    told = bed.cli("doctor", "--job", job)
    expect(told.code == 0 and words in told.out, f"doctor: {told.why()}\n{told.out}")
    summary = bed.operation("checkpoint", job)
    expect(words in str(summary), f"the summary does not tell: {summary}")
    bed.operation("restore", job)
    log.goes_on()


# Nothing takes the answer out: it waits in the socket. What is sent is RTM_GETLINK, with NLM_F_REQUEST and NLM_F_DUMP.
UNREAD = """
import select, socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
{}
s.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0))
select.select([s], [], [])
"""


def unread_answers(bed):
    for bound in ("", "s.bind((0, 0))", "s.bind((0, 1))"):
        job, log = script(bed, UNREAD.format(bound))
        refused(bed, job, log, "has a netlink socket .fd [0-9]+. with what it has not read yet")
        bed.end(job)


@case
def netlink_answers_not_read_yet(bed):
    unread_answers(bed)


@case
@as_user
def netlink_answers_of_a_user_not_read_yet(bed):
    unread_answers(bed)


LINKED = """
import os, tempfile
f = tempfile.NamedTemporaryFile(dir="/var/tmp", buffering=0, delete=False); f.write(b"linked")
other = f.name + ".other"; os.link(f.name, other); os.unlink(f.name)
print("other", other, flush=True)
"""


@case
def a_file_with_another_name(bed):
    job, log = script(bed, LINKED, "assert os.pread(f.fileno(), 6, 0) == b'linked'")
    other = re.search("^other (.*)$", log.text(), re.MULTILINE)[1]
    words = "which has another name"
    told = bed.cli("doctor", "--job", job)
    expect(told.code == 0 and words in told.out, f"doctor: {told.why()}")
    bed.refused(4, words, "checkpoint", "--leave-running", job)
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    log.goes_on()
    expect(os.stat(other).st_nlink == 1, "CRIU's own name of it is left")
    os.unlink(other)


@case
@as_user
def a_file_with_another_name_of_a_user(bed):
    job, log = script(bed, LINKED)
    refused(bed, job, log, "which has another name")
    os.unlink(re.search("^other (.*)$", log.text(), re.MULTILINE)[1])


MAPPED = """
import ctypes, mmap, os, tempfile
fd, path = tempfile.mkstemp(dir="/var/tmp"); os.write(fd, bytes(8192)); os.link(path, path + ".other")
c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = c.mmap(None, 8192, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0); os.close(fd); os.unlink(path)
print("other", path + ".other", flush=True)
def check(step):
    ctypes.memmove(at, b"%08d" % step, 8)
    with open(path + ".other", "rb") as file: assert file.read(8) == b"%08d" % step, "memory and file have parted"
"""


def mapped_by_another_name(bed, code, words):
    """What is written to memory is in the file still; where the job goes on, the checkpoint would have nothing to find it by."""
    job, log = script(bed, MAPPED, "check(step)")
    other = re.search("^other (.*)$", log.text(), re.MULTILINE)[1]
    bed.refused(code, words, "checkpoint", "--leave-running", job)
    bed.expect_whole(job, log)
    for _ in range(2):
        bed.operation("checkpoint", job)
        bed.operation("restore", job)
        log.goes_on()
    expect(os.stat(other).st_nlink == 1, "CRIU's own name of it is left")
    bed.end(job)
    os.unlink(other)


@case
def a_mapped_file_with_another_name(bed):
    mapped_by_another_name(bed, 4, "mapped, which has another name")


@case
@as_user
def a_mapped_file_with_another_name_of_a_user(bed):
    # The kernel does not tell a user what is mapped until CRIU looks.
    mapped_by_another_name(bed, 7, "which was deleted and has another name")


def a_lease(bed):
    """Its holder is ended by SIGIO as soon as anybody opens the file: neither doctor nor a checkpoint does."""
    setup = """
import fcntl, os, tempfile
f = tempfile.NamedTemporaryFile(dir="/var/tmp", buffering=0); f.write(b"leased"); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""
    job, log = script(bed, setup)
    refused(bed, job, log, "holds a lease for writing")


@case
def a_lease_for_writing(bed):
    a_lease(bed)


@case
@as_user
def a_lease_for_writing_of_a_user(bed):
    a_lease(bed)


@case
def a_landlock_ruleset_of_a_gpu_process(bed):
    """What the simulated driver has open in the place of a device is another one, which goes with the GPU state."""
    number = 444  # landlock_create_ruleset(2) on all machines
    setup = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
rules = ctypes.c_uint64(1)
held = libc.syscall({number}, ctypes.byref(rules), ctypes.c_size_t(8), 0)
cuda = ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
print("ruleset", held, flush=True)
"""
    job, log = script(bed, setup)
    if "ruleset -1" in log.text():
        raise Skipped("no landlock in this kernel")
    refused(bed, job, log, "has a landlock ruleset")
    held = int(re.search(r"ruleset (\d+)", log.text())[1])
    job, log = script(bed, setup + f"import os; os.close({held})\n")
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    log.goes_on()


@case
def semaphores_of_system_v(bed):
    """On this machine, and before it boots anew, they are there still."""
    setup = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
held = libc.semget(0, 1, 0o600)
assert held >= 0 and libc.semctl(held, 0, 16, 5) == 0
print("semaphores", held, flush=True)
"""
    job, log = script(bed, setup, "assert libc.semctl(held, 0, 12, 0) == 5")
    held = re.search(r"semaphores (\d+)", log.text())[1]
    try:
        refusal = bed.refused(4, "uses System V semaphores", "checkpoint", job)
        expect("--force" in refusal.err and "reboot" in refusal.err, refusal.err)
        bed.expect_whole(job, log)
        summary = bed.operation("checkpoint", job, "--force")
        expect(any("System V semaphores" in note for note in summary["notes"]), summary["notes"])
        bed.operation("restore", job)
        log.goes_on()
    finally:
        run(["ipcrm", "-s", held])


CLIENT = """
import socket, time
path, kind, blocks = {!r}, socket.{}, {!r}
def connect():
    s = socket.socket(socket.AF_UNIX, kind); s.connect(path); s.setblocking(blocks)
    return s
s, ends = connect(), 0
def ask():
    global s, ends
    try:
        s.send(b"question")
        s.setblocking(True)
        answer = s.recv(64)
        s.setblocking(blocks)
        if not answer: raise ConnectionError("end")
        return
    except (BrokenPipeError, ConnectionError) as e:
        assert s.getblocking() == blocks or isinstance(e, ConnectionError), "it blocks otherwise now"
        assert s.type == kind
        ends += 1
        print("ended", ends, flush=True)
        s = connect()
"""

DAEMON = """
import socket, sys, threading
l = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2])); l.bind(sys.argv[1]); l.listen()
def serve(c):
    try:
        while c.recv(64): c.send(b"answer")
    except ConnectionError: pass  # the client was killed with an answer unread
print("serves", flush=True)
while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
"""


def connected(bed, kind, blocks):
    path = os.path.join(bed.dir, f"daemon-{kind}-{blocks}")
    daemon = subprocess.Popen([PYTHON, "-u", "-c", DAEMON, path, kind], stdout=subprocess.PIPE, text=True)
    expect(daemon.stdout.readline() == "serves\n", "no daemon")
    os.chmod(path, 0o777)
    job, log = script(bed, CLIENT.format(path, kind, blocks), "ask()")
    return daemon, job, log


def dropped(bed, kind, blocks):
    daemon, job, log = connected(bed, kind, blocks)
    try:
        result = bed.refused(4, "is connected to a process outside the job", "checkpoint", job)
        expect("--drop-external" in result.err, f"the way round is not named: {result.err}")
        summary = bed.operation("checkpoint", job, "--drop-external", "--leave-running")
        expect(any("finds the connection closed" in note for note in summary["notes"]), summary["notes"])
        log.goes_on()
        expect("ended" not in log.text(), "a job that goes on lost its connection")
        bed.operation("checkpoint", job, "--drop-external")
        bed.operation("restore", job)
        log.goes_on()
        expect("ended 1" in log.text() and "ended 2" not in log.text(), log.tail())
        bed.operation("checkpoint", job, "--drop-external")
        bed.operation("restore", job)
        log.wait_until(lambda text: "ended 2" in text, "the second end")
        log.goes_on()
        bed.end(job)
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()


@case
def a_connection_to_a_daemon(bed):
    for kind, blocks in (("SOCK_STREAM", True), ("SOCK_STREAM", False), ("SOCK_SEQPACKET", True)):
        dropped(bed, kind, blocks)


@case
@as_user
def a_connection_of_a_user_to_a_daemon(bed):
    os.chmod(bed.dir, 0o711)
    dropped(bed, "SOCK_STREAM", True)


CONTEXT = """
import ctypes
libc, cuda = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libcuda.so.1")
context, device = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
"""


@case
def what_was_written_is_not_run(bed):
    """PR_SET_MDWE, which the kernel tells the process alone, is given back before the program runs on. CRIU's own code for arm64 is
    in memory that can be written, so there it is refused."""
    job, log = script(bed, CONTEXT + "print('rules', libc.prctl(65, 1, 0, 0, 0), flush=True)\n",
                      "assert rules == libc.prctl(66, 0, 0, 0, 0), 'ERR'".replace("rules", "1"))
    if "rules 0" not in log.text():
        raise Skipped("this kernel has no PR_SET_MDWE")
    for _ in range(2):
        if os.uname().machine == "aarch64":
            bed.refused(EXIT_STILL_RUNNING, "PR_SET_MDWE", "checkpoint", job)
        else:
            bed.operation("checkpoint", job)
            bed.operation("restore", job)
        log.goes_on()
    bed.operation("suspend", job)
    bed.operation("resume", job)
    log.goes_on()


# What a restore needs.

def expect_needs(bed, checkpoint, problems):
    """The list, and the restore, which refuses before anything is started, name these problems and no others."""
    listed = bed.cli("inspect", "--needs", checkpoint, "--format", "json")
    needs = listed.json()["needs"]
    found = {need["path"]: need["problem"] for need in needs if "problem" in need}
    expect(found == problems, f"found {found}, expected {problems}")
    expect(listed.code == (4 if problems else 0), listed.why())
    page = bed.cli("inspect", "--needs", checkpoint)
    expect(page.code == listed.code and all(path in page.out and text in page.out for path, text in problems.items()), page.why())
    return needs


def needs_are_told(bed):
    home = os.path.join(bed.dir, "files")
    setup = f"""
import os
home = {home!r}
os.makedirs(home + "/dir")
names = ["gone", "grown", "closed", "other", "same", "log"]
for name in names: open(home + "/" + name, "w").write("text")
held = [open(home + "/" + name) for name in names[:-1]] + [os.open(home + "/dir", os.O_RDONLY), open(home + "/log", "a")]
"""
    job, log = script(bed, setup)
    bed.operation("checkpoint", job, "--name", "image")
    needs = expect_needs(bed, "image", {})
    expect({os.path.join(home, name) for name in ("gone", "grown", "same", "log", "dir")} <= {need["path"] for need in needs}, needs)
    os.rename(f"{home}/gone", f"{home}/away")
    with open(f"{home}/grown", "a", encoding="utf-8") as file:
        file.write("more")
    with open(f"{home}/log", "a", encoding="utf-8") as file:
        file.write("more")
    mode = os.stat(f"{home}/closed").st_mode & 0o7777
    os.chmod(f"{home}/closed", 0o640)
    os.rename(f"{home}/other", f"{home}/was")
    os.mkdir(f"{home}/other")
    problems = {f"{home}/gone": "is not there", f"{home}/grown": "is 8 bytes long, was 4",
                f"{home}/closed": f"has mode 0640, had {mode:04o}", f"{home}/other": "is a directory, was a file"}
    expect_needs(bed, "image", problems)
    refused_here = bed.refused(4, "needs what is not here as it was: .*; and more", "restore", "image")
    expect("brumate inspect --needs image" in refused_here.err and "(4)" in refused_here.err, refused_here.err)
    bed.expect_state(job, "checkpointed")
    os.rename(f"{home}/away", f"{home}/gone")
    os.truncate(f"{home}/grown", 4)
    os.chmod(f"{home}/closed", mode)
    os.rmdir(f"{home}/other")
    os.rename(f"{home}/was", f"{home}/other")
    expect_needs(bed, "image", {})
    bed.operation("restore", "image")
    log.goes_on()


@case
def what_a_restore_needs(bed):
    needs_are_told(bed)


@case
@as_user
def what_a_restore_needs_of_a_user(bed):
    needs_are_told(bed)


@case
def another_runtime_directory(bed):
    """Agents listen where they did, and are looked for elsewhere."""
    job, log = bed.counter()
    bed.operation("checkpoint", job, "--name", "image")
    needs = expect_needs(bed, "image", {})
    place = next(need["path"] for need in needs if need["kind"] == "agents")
    other = os.path.join(bed.dir, "other-run")
    bed.kill_shim(job)
    result = bed.cli("restore", "image", env={"BRUMATE_RUNTIME_DIR": other})
    expect(result.code == 4 and place in result.err and f"the runtime directory is {other} here" in result.err, result.why())
    bed.kill_shim(job)  # it has the other directory
    bed.expect_restorable("image", log)


LOCKED = """
import fcntl, mmap, os, tempfile
f = tempfile.NamedTemporaryFile(dir="/var/tmp", buffering=0); f.write(bytes(8192))
m = mmap.mmap(f.fileno(), 8192); fcntl.lockf(f, fcntl.LOCK_EX, 100, 50); fcntl.flock(f, fcntl.LOCK_EX)
print("file", f.name, flush=True)
"""


def held_by_another(bed):
    job, log = script(bed, LOCKED)
    name = re.search("^file (.*)$", log.text(), re.MULTILINE)[1]
    told = bed.ok("rehearse", bed.operation("checkpoint", "--leave-running", job)["checkpoint"])
    expect("lock" not in told.err, told.err)
    bed.operation("checkpoint", job)
    with open(name, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 90)
        bed.refused(EXIT_BUSY, f"be given a lock on bytes 50 to 149 of {name}", "restore", job)
    with open(name, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        bed.refused(EXIT_BUSY, f"be given a lock on {name}", "restore", job)
    bed.operation("restore", job)
    log.goes_on()
    with open(name, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 149)
            expect(False, "the lock is gone")
        except BlockingIOError:
            pass


@case
def bytes_that_somebody_else_locks_meanwhile(bed):
    held_by_another(bed)


@case
@as_user
def bytes_of_a_user_that_somebody_else_locks_meanwhile(bed):
    held_by_another(bed)


if __name__ == "__main__":
    main()
