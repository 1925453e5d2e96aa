#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user tries with a job of theirs that root suspends, saves and restores, in order to get at rights or data
of others. Each case would succeed for the attacker if its check were taken away."""

import contextlib
import os
import pty
import shutil
import signal
from contextlib import contextmanager

from cases import NOBODY, STEPPING, Skipped, case, expect, main, read_text, run, wait_until
from checkpoints import change_manifest, image, manifest_of, seal_again
from criu_images import change_credentials, change_image
from users_jobs import AS_HIM, children, saved_of_him, script_of_him, setuid_program, status

def of_him(bed, argv):
    """A program that the user has started, which is at work."""
    os.chmod(bed.dir, 0o711)
    if not os.path.isdir(os.path.join(bed.dir, "his")):
        bed.of_nobody("his")
    if run(["test", "-x", bed.program("kinds")], user=NOBODY, group=NOBODY, extra_groups=[]).code:
        raise Skipped(f"{bed.program('kinds')} cannot be reached by uid {NOBODY}")
    program = bed.start([*AS_HIM, *argv])
    program.log.wait_for("^ready", 20)
    return program


# Programs with rights that the user has not.

@contextmanager
def privileged_child(program):
    """The child of the program that has root's rights."""
    wait_until(lambda: any(status(pid, "Name") == ["of-root"] for pid in children(program.pid)), "the setuid program")
    found = children(program.pid)
    try:
        child = next((pid for pid in found if status(pid, "Uid")[1] == "0"), None)
        if not child:
            raise Skipped("setuid programs get no rights here")
        yield child
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)


@case
def a_setuid_program_is_no_part_of_his_job(bed):
    """Its memory would be read, and a restore would make it again with the rights that it had."""
    program = of_him(bed, ["sh", "-c", f"{setuid_program(bed)} 1000 & echo ready; wait"])
    with privileged_child(program) as child:
        for args in (("manage",), ("suspend",), ("checkpoint", "--leave-running"), ("checkpoint",)):
            bed.refused(5, rf"process {child} \(of-root\) has the rights of uid 0, and the job is of uid {NOBODY}",
                        args[0], "--pid", program.pid, *args[1:])
        bed.refused(5, "has the rights of uid 0", "manage", "--pid", child)
    expect(not bed.list("ps", "jobs"), "what was refused is a job")
    expect(not os.path.isdir(bed.store()) or not os.listdir(bed.store()), "something was saved")


@case
def a_setuid_program_that_comes_later(bed):
    """What was looked at when the job was taken in says nothing of what it is at the checkpoint."""
    path = setuid_program(bed)
    pipe = os.path.join(bed.dir, "pipe")
    os.mkfifo(pipe)
    os.chmod(pipe, 0o666)
    program = of_him(bed, ["sh", "-c", f"echo ready; read line < {pipe}; {path} 1000 & echo started; wait"])
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    with open(pipe, "w", encoding="utf-8") as file:
        file.write("go on\n")
    program.log.wait_for("^started$")
    with privileged_child(program):
        for args in (("checkpoint", "--leave-running"), ("checkpoint",)):
            bed.refused(5, "has the rights of uid 0", args[0], job, *args[1:])
        bed.expect_state(job, "running")


# CRIU works with his rights.

@case
def his_job_comes_back_as_he_is(bed):
    program, log = script_of_him(bed)
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(job)
    bed.operation("checkpoint", job, "--leave-running")
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    program.wait()
    for base, dirs, files in os.walk(os.path.join(bed.store(), checkpoint)):
        for name in [*dirs, *files]:
            expect(os.lstat(os.path.join(base, name)).st_uid == 0, f"{name} of the checkpoint is not root's")
    bed.expect_restorable(checkpoint, log)
    pid = bed.pid(job)
    expect(status(pid, "Uid") == [str(NOBODY)] * 4 and status(pid, "CapPrm") == ["0000000000000000"], "it is more than it was")
    bed.operation("checkpoint", job)
    bed.expect_restorable(job, log)


def secret_of_root(bed):
    """A directory of root's with a file in it; nobody else may enter."""
    path = os.path.join(bed.dir, "roots")
    os.mkdir(path, 0o700)
    with open(os.open(os.path.join(path, "file"), os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("0123456789")
    return path


def expect_secret(path):
    expect(os.listdir(path) == ["file"], f"{path} has {os.listdir(path)}")
    found = os.stat(os.path.join(path, "file"))
    expect((found.st_uid, found.st_mode & 0o7777, found.st_size) == (0, 0o600, 10), f"{found}")


@case
def his_file_is_a_link_to_roots(bed):
    """Of the same size and mode, so that CRIU does not see that it is another one."""
    secret = secret_of_root(bed)
    for flags in ("O_RDWR", "O_RDONLY"):
        checkpoint, _ = saved_of_him(
            bed, f"os.umask(0); f = os.open('f', os.O_CREAT | os.O_WRONLY, 0o600); os.write(f, b'0123456789'); "
                 f"os.close(f); f = os.open('f', os.{flags})", "os.pread(f, 10, 0)")
        own = os.path.join(bed.dir, "his", "f")
        os.remove(own)
        os.symlink(os.path.join(secret, "file"), own)
        words = "is not a file any more" if flags == "O_RDWR" else "needs what is not here as it was: .*Permission denied"
        bed.refused(1 if flags == "O_RDWR" else 4, words, "restore", checkpoint)
        bed.refused(1, "Permission denied|Can't open file|is not a file any more", "restore", "--force", checkpoint)  # the kernel says so, too
        expect(not bed.list("ps", "jobs") or bed.list("ps", "jobs")[0]["state"] != "running", "it runs")
        os.remove(own)
        expect_secret(secret)
        os.remove(os.path.join(bed.dir, "his", "out"))


@case
def his_directory_leads_to_roots(bed):
    """A deleted file is made again, a socket is bound again, at the path where it was."""
    secret = secret_of_root(bed)
    for setup in ("f = open('d/f', 'w+'); f.write('his'); f.flush(); os.unlink('d/f')",
                  "s = socket.socket(socket.AF_UNIX); s.bind('d/file'); s.listen()",
                  "os.mkfifo('d/file'); f = os.open('d/file', os.O_RDWR)"):
        own = bed.of_nobody("his") if not os.path.isdir(os.path.join(bed.dir, "his")) else os.path.join(bed.dir, "his")
        sub = os.path.join(own, "d")
        os.mkdir(sub)
        os.chown(sub, NOBODY, NOBODY)
        checkpoint, _ = saved_of_him(bed, setup)
        shutil.rmtree(sub)
        os.symlink(secret, sub)
        for options, codes in (((), (1, 4)), (("--force",), (1,))):
            result = bed.cli("restore", *options, checkpoint)
            expect(result.code in codes, f"{setup}: {result.why()}")
            expect_secret(secret)
        os.remove(sub)
        os.remove(os.path.join(own, "out"))


@case
def his_paths_are_replaced_in_the_middle(bed):
    """When brumate has looked at everything: CRIU opens what it opens with his rights."""
    secret = secret_of_root(bed)
    own = bed.of_nobody("his")
    sub = os.path.join(own, "d")
    os.mkdir(sub)
    os.chown(sub, NOBODY, NOBODY)
    checkpoint, log = saved_of_him(
        bed, "os.umask(0); f = os.open('d/file', os.O_CREAT | os.O_RDWR, 0o600); os.write(f, b'0123456789'); "
             "s = socket.socket(socket.AF_UNIX); s.bind('d/s'); s.listen()", "os.pwrite(f, b'9876543210', 0)")
    with bed.held_at("restore.spawned", "restore", checkpoint) as restore:
        os.rename(sub, sub + ".his")
        os.symlink(secret, sub)
    code, _, err = restore.end()
    expect(code == 1 and "Permission denied" in err, f"exit {code}: {err}")
    expect_secret(secret)
    os.unlink(sub)
    os.rename(sub + ".his", sub)
    with bed.held_at("restore.restored", "restore", checkpoint) as restore:
        os.rename(sub, sub + ".his")
        os.symlink(secret, sub)
    code, _, err = restore.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.jobs.append(bed.list("ps", "jobs")[0]["id"])
    log.goes_on()
    expect_secret(secret)


CAP_SYS_RESOURCE = 24
HELPED = """
import os, subprocess, time
helper = subprocess.Popen({helper!r}, stdin=subprocess.DEVNULL)
while not os.path.exists("at-work"):
    time.sleep(0.01)
print("ready with a helper", flush=True)
""" + STEPPING
HELPER = "import os, time; f = open('f', 'r+'); open('at-work', 'w').close()\nwhile True: f.seek(0); f.read(); time.sleep(0.01)"


@case
def his_process_in_roots_job(bed):
    """Root's CRIU would open his file as root, whatever it leads to by then."""
    if not int(status(os.getpid(), "CapEff")[0], 16) >> CAP_SYS_RESOURCE & 1:
        raise Skipped("root has no CAP_SYS_RESOURCE here, without which its CRIU cannot save a process of another user")
    secret, own = secret_of_root(bed), bed.of_nobody("his")
    os.chmod(bed.dir, 0o711)
    path = os.path.join(own, "f")
    with open(path, "w", encoding="utf-8") as file:
        file.write("9876543210")
    os.chown(path, NOBODY, NOBODY)
    os.chmod(path, 0o600)
    helper = [*map(str, AS_HIM), "/usr/bin/python3", "-u", "-c", HELPER]
    script = f"import os; os.chdir({own!r})" + HELPED.format(helper=helper)
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", script], "helped")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    told = bed.ok("inspect", "--restore", checkpoint, "--format", "json").json()["restore"]
    expect(any(process["uids"] == [NOBODY] * 4 for process in told["processes"]), f"{told['processes']}")
    os.rename(path, path + ".old")
    os.symlink(os.path.join(secret, "file"), path)
    bed.refused(5, rf"of root's job is of uid {NOBODY}", "restore", checkpoint)
    bed.expect_state(job, "checkpointed")
    os.unlink(path)
    os.rename(path + ".old", path)
    bed.refused(5, rf"of root's job is of uid {NOBODY}", "restore", checkpoint)
    bed.expect_restorable(checkpoint, log, "--force")
    expect_secret(secret)


@case
def another_user_in_a_checkpoint_of_roots(bed):
    """As the manifest tells, and where it is of an older writer and does not, as CRIU's images do."""
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    whole = os.path.join(bed.dir, "whole")
    shutil.copytree(image(bed, checkpoint), whole)
    for tells in (True, False):
        for path in core_of(os.path.join(image(bed, checkpoint), "criu")):
            change_credentials(path, put(NOBODY, UID, EUID))
        seal_again(bed, checkpoint, rights=[r | {"uid": NOBODY, "euid": NOBODY} for r in manifest_of(bed, checkpoint)["rights"]] if tells else [])
        bed.refused(5, rf"process \d+ of root's job is of uid {NOBODY}, .* opens for it", "restore", checkpoint)
        bed.expect_state(job, "checkpointed")
        shutil.rmtree(image(bed, checkpoint))
        shutil.copytree(whole, image(bed, checkpoint))
    bed.expect_restorable(checkpoint, log)


def is_group(pid):
    """Whether the number is that of a process group, or of a process: it cannot be taken then."""
    try:
        os.killpg(pid, 0)
        return True
    except ProcessLookupError:
        return os.path.exists(f"/proc/{pid}")


@case
def what_he_has_is_restored(bed):
    """Nothing of what users have goes lost by it that CRIU works with their rights."""
    program, log = script_of_him(bed, """
import fcntl, mmap
file = open('f', 'w+'); file.write('x' * 8192); file.flush(); fcntl.flock(file, fcntl.LOCK_EX)
shared = mmap.mmap(file.fileno(), 8192)
gone = open('g', 'w+'); gone.write('gone'); gone.flush(); os.unlink('g')
listening = socket.socket(socket.AF_UNIX); listening.bind('s'); listening.listen()
one, other = socket.socketpair()
pipe = os.pipe()
child = os.fork()
if not child:
    while True: time.sleep(1)
shm = open('/dev/shm/brumate-%d' % os.getpid(), 'w+'); shm.write('shm'); shm.flush(); os.unlink(shm.name)
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen()
near = socket.create_connection(server.getsockname()); far = server.accept()[0]
""", """
one.send(b'a'); assert other.recv(1) == b'a'
os.write(pipe[1], b'b'); assert os.read(pipe[0], 1) == b'b'
assert os.pread(gone.fileno(), 9, 0) == b'gone'
assert shared[:4] == b'xxxx' and os.pread(shm.fileno(), 9, 0) == b'shm'
near.send(b'c'); assert far.recv(1) == b'c'
os.kill(child, 0)
""")
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(job)
    bed.operation("checkpoint", job, "--leave-running")
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    program.wait()
    bed.expect_restorable(checkpoint, log)
    expect(status(bed.pid(job), "CapPrm") == ["0000000000000000"], "it has capabilities")
    bed.operation("checkpoint", job)
    wait_until(lambda: not is_group(program.pid), "the end of the job")
    bed.take_pid(program.pid)
    bed.expect_restorable(job, log)


# What CRIU's images ask for.

UID, EUID, GROUPS, CAP_PERMITTED, SECUREBITS, LSM_PROFILE, NO_NEW_PRIVS = 1, 3, 14, 10, 13, 15, 18


def put(value, *which):
    """A change of fields of credentials to another value."""
    return lambda fields: [(field, wire, value if field in which else old) for field, wire, old in fields]


FORGERIES = {
    "another user": put(7, UID, EUID),
    "other groups": lambda fields: fields + [(GROUPS, 0, 4)],
    "more capabilities": put(0xffffffff, CAP_PERMITTED),
    "new privileges": put(0, NO_NEW_PRIVS),
    "securebits": put(1, SECUREBITS),
    "another security label": lambda fields: fields + [(LSM_PROFILE, 2, b"unconfined_t")],
}


def core_of(directory):
    return [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith("core-")]


def job_with_less(bed):
    """A job of root's that has not all of root's rights. It may be confined by Landlock, as far as anybody can tell: its checkpoints take
    --force."""
    text = ("import time\n"
            "print('ready to go', flush=True)\n"
            "step = 0\n"
            "while True:\n"
            "    step += 1\n"
            "    print('step', step, 'OK', flush=True)\n"
            "    time.sleep(0.02)\n")
    return bed.started(["setpriv", "--bounding-set", "-sys_admin,-setpcap", "--no-new-privs", "/usr/bin/python3", "-u", "-c", text])


@case
def an_image_that_asks_for_more_is_not_kept(bed):
    """Who may write to a process's memory changes what it tells CRIU. Here it is the image that is changed, while
    CRIU holds the job."""
    job, log = job_with_less(bed)
    for words, forge in FORGERIES.items():
        with bed.held_at("checkpoint.dumped", "checkpoint", job, "--force") as background:
            partial = next(name for name in os.listdir(bed.store()) if name.endswith(".partial"))
            for path in core_of(os.path.join(bed.store(), partial, "criu")):
                change_credentials(path, forge)
        code, _, err = background.end()
        expect(code != 0 and f"asks for {words}" in err, f"{words}: {code} {err}")
        bed.expect_whole(job, log)
        expect(not bed.checkpoints(), "it was kept")
    checkpoint = bed.operation("checkpoint", job, "--force")["checkpoint"]
    bed.expect_restorable(checkpoint, log)


@case
def an_image_that_asks_for_more_is_not_restored(bed):
    job, log = job_with_less(bed)
    checkpoint = bed.operation("checkpoint", job, "--force")["checkpoint"]
    whole = os.path.join(bed.dir, "whole")
    shutil.copytree(image(bed, checkpoint), whole)
    for words, forge in FORGERIES.items():
        for path in core_of(os.path.join(image(bed, checkpoint), "criu")):
            change_credentials(path, forge)
        seal_again(bed, checkpoint)
        bed.refused(9, f"asks for {words}", "restore", checkpoint)
        shutil.rmtree(image(bed, checkpoint))
        shutil.copytree(whole, image(bed, checkpoint))
    # It says that it is a user's.
    change_manifest(bed, checkpoint, uid=NOBODY, gid=NOBODY, log=None)
    bed.refused(9, "asks for rights that the job's user has not", "restore", checkpoint)
    shutil.rmtree(image(bed, checkpoint))
    shutil.copytree(whole, image(bed, checkpoint))
    bed.expect_restorable(checkpoint, log)


FILTER = """
import ctypes
class Program(ctypes.Structure):
    _fields_ = [('n', ctypes.c_ushort), ('code', ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(b'\\x06\\0\\0\\0\\0\\0\\xff\\x7f', 8)
program = Program(1, ctypes.addressof(allow))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
"""


@case
def a_filter_of_system_calls(bed):
    """Root's CRIU saves it; that of a user cannot see it, and would leave it out."""
    program, log = script_of_him(bed, FILTER)
    expect(status(program.pid, "Seccomp") == ["2"], "this test proves nothing: there is no filter")
    bed.refused(4, "has a filter of system calls", "checkpoint", "--pid", program.pid)
    log.goes_on()
    text = FILTER + "import time\nprint('ready to go', flush=True)\nstep = 0\nwhile True:\n" \
        "    step += 1\n    print('step', step, 'OK', flush=True)\n    time.sleep(0.02)\n"
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", text])
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.expect_restorable(checkpoint, log)
    expect(status(bed.pid(job), "Seccomp") == ["2"], "the filter is gone")


THREAD_CORE, SECCOMP_MODE = [5], 11
TASK_CORE, OLD_SECCOMP_MODE, OLD_SECCOMP_FILTER = [3], 11, 12
NO_FILTER = {
    "asks for another filter of system calls": (THREAD_CORE, put(0, SECCOMP_MODE)),
    "asks for another filter of system calls ": (THREAD_CORE, lambda fields: [f for f in fields if f[0] != SECCOMP_MODE]),
    "is damaged": (TASK_CORE, lambda fields: fields + [(OLD_SECCOMP_MODE, 0, 0)]),
    "is damaged ": (TASK_CORE, lambda fields: fields + [(OLD_SECCOMP_FILTER, 0, 0)]),
}
FILTERS, FILTER_PROGRAM, FILTER_FLAGS, TSYNC, LOGS = [1], 1, 3, 1, b"\x06\0\0\0\0\0\xfc\x7f"
OTHER_FILTER = {"asks for another filter of system calls  ": (FILTERS, put(LOGS, FILTER_PROGRAM))}


@case
def a_filter_that_an_image_leaves_out(bed):
    """In either of the two places where CRIU looks for it: what stands in that of its older images comes first there."""
    text = FILTER + "import time\nprint('ready to go', flush=True)\n" + STEPPING
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", text])
    for words, (where, forge) in (NO_FILTER | OTHER_FILTER).items():
        with bed.held_at("checkpoint.dumped", "checkpoint", job) as background:
            partial = next(name for name in os.listdir(bed.store()) if name.endswith(".partial"))
            directory = os.path.join(bed.store(), partial, "criu")
            for path in core_of(directory) if words in NO_FILTER else [os.path.join(directory, "seccomp.img")]:
                change_image(path, where, forge)
        code, _, err = background.end()
        expect(code != 0 and words.strip() in err, f"{words}: {code} {err}")
        bed.expect_whole(job, log)
        expect(not bed.checkpoints(), "it was kept")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    whole = os.path.join(bed.dir, "whole")
    shutil.copytree(image(bed, checkpoint), whole)
    for words, (where, forge) in NO_FILTER.items():
        for path in core_of(os.path.join(image(bed, checkpoint), "criu")):
            change_image(path, where, forge)
        seal_again(bed, checkpoint)
        bed.refused(9, words.strip(), "restore", checkpoint)
        shutil.rmtree(image(bed, checkpoint))
        shutil.copytree(whole, image(bed, checkpoint))
    bed.expect_restorable(checkpoint, log)
    expect(status(bed.pid(job), "Seccomp") == ["2"], "the filter is gone")


# Not for all threads; another program (SECCOMP_RET_LOG); another flag (SECCOMP_FILTER_FLAG_SPEC_ALLOW).
FORGED_FILTERS = (put(0, FILTER_FLAGS), put(LOGS, FILTER_PROGRAM), put(TSYNC | 4, FILTER_FLAGS))


@case
def a_filter_that_all_threads_have(bed):
    """CRIU writes it for the first thread and that it is for all, and for the others that they have none."""
    text = FILTER + "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n" \
        "print('ready to go', flush=True)\n" + STEPPING
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", text])
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    filters = os.path.join(image(bed, checkpoint), "criu", "seccomp.img")
    with open(filters, "rb") as file:
        whole = file.read()
    for forge in FORGED_FILTERS:
        change_image(filters, FILTERS, forge)
        seal_again(bed, checkpoint)
        bed.refused(9, "asks for another filter of system calls", "restore", checkpoint)
        with open(filters, "wb") as file:
            file.write(whole)
    seal_again(bed, checkpoint, filters=[])  # as a writer that did not look
    bed.expect_restorable(checkpoint, log)
    pid = bed.pid(job)
    threads = os.listdir(f"/proc/{pid}/task")
    have = [status(f"{pid}/task/{tid}", "Seccomp") for tid in threads]
    expect(len(threads) == 2 and have == [["2"], ["2"]], f"the filters are {have}")


SHARER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
stack = ctypes.create_string_buffer(65536)
top = ctypes.c_void_p(ctypes.addressof(stack) + 65536 & ~15)
CLONE_VM, CLONE_PARENT, SIGCHLD = 0x100, 0x8000, 17
sharer = libc.clone(libc.pause, top, CLONE_VM | CLONE_PARENT | SIGCHLD, None)
assert sharer > 0
print('sharer', sharer, flush=True)
"""


@case
def a_process_outside_that_lives_in_the_memory(bed):
    """It runs on while CRIU holds the job, and can change whatever CRIU's code says there."""
    program, log = script_of_him(bed, SHARER)
    sharer = int(log.wait_for(r"^sharer (\d+)$").group(1))
    try:
        for options in (("--leave-running",), ()):
            bed.refused(4, f"process {sharer} .*, which is not of the job, lives in the memory of one that is",
                        "checkpoint", "--pid", program.pid, *options)
        log.goes_on()
    finally:
        os.kill(sharer, signal.SIGKILL)
    os.waitpid(sharer, 0)
    bed.jobs.append(bed.operation("checkpoint", "--pid", program.pid, "--leave-running")["job"])
    log.goes_on()


# What a job starts with.

@case
def a_job_has_its_callers_limits(bed):
    """Not those of our programs: neither more rights nor more of the machine."""
    show = "umask; ulimit -n; ulimit -H -n; ulimit -c; grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/self/cgroup"
    wrapped = ["setpriv", "--no-new-privs", "prlimit", "--core=0:4096", "--nofile=777:888", "sh", "-c", "umask 027; exec \"$0\" \"$@\""]
    plain = run([*wrapped, "sh", "-c", show], env=bed.command_env())
    expect(plain.out.startswith("0027\n777\n888\n0\nNoNewPrivs:\t1\n"), f"this test proves nothing: {plain.out}")
    result = run([*wrapped, bed.brumate, "run", "--attach", "--", "sh", "-c", show], env=bed.command_env())
    expect(result.code == 0 and result.out == plain.out, f"{result.why()}: {result.out!r}, expected {plain.out!r}")
    filtered = ["/usr/bin/python3", "-c", FILTER + "import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])"]
    result = run([*filtered, bed.brumate, "run", "--attach", "--", "grep", "Seccomp:", "/proc/self/status"], env=bed.command_env())
    expect(result.out == "Seccomp:\t2\n", f"the caller's filter is not the job's: {result.why()}")


@contextmanager
def cgroup(name):
    """A cgroup of a tree that this machine lets be written to: its directory."""
    for root in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        path = os.path.join(root, name)
        try:
            os.mkdir(path)
            break
        except OSError as error:
            why = error
    else:
        raise Skipped(f"no cgroup can be made: {why}")
    try:
        yield path
    finally:
        wait_until(lambda: not members(path), f"{path} to be empty")
        os.rmdir(path)


def members(path):
    with open(os.path.join(path, "cgroup.procs"), encoding="ascii") as file:
        return [int(line) for line in file]


@case
def a_job_stays_in_its_callers_cgroup(bed):
    """With all that works for it: what it takes is the caller's, also after a restore."""
    with cgroup(f"brumate-test-{os.getpid()}") as path:
        enter = ["sh", "-c", f"echo $$ > {path}/cgroup.procs && exec \"$0\" \"$@\"", bed.brumate]
        job = run([*enter, "run", "--", bed.program("counter"), "--mib", "4", "--chunk-mib", "4"],
                  env=bed.command_env()).out.strip()
        bed.jobs.append(job)
        log = bed.log(job)
        log.goes_on()
        expect({bed.pid(job), bed.shim(job)} <= set(members(path)), f"{members(path)}")
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        done = run([*enter, "restore", checkpoint], env=bed.command_env())
        expect(done.code == 0, done.why())
        log.goes_on()
        expect({bed.pid(job), bed.shim(job)} <= set(members(path)), f"after a restore: {members(path)}")
        bed.end_all()
        for pid in bed.named("brumate-broker"):
            os.kill(pid, signal.SIGTERM)  # it would go by itself, once it is idle


def reads_terminal(pid, number):
    with contextlib.suppress(OSError):
        return read_text(f"/proc/{pid}/comm") == "brumate-tty\n" and f"tty-index:\t{number}\n" in read_text(f"/proc/{pid}/fdinfo/0")
    return False


@case
def a_terminal_is_read_with_his_rights(bed):
    """What his job writes to a terminal that it was given anew goes into its log, and counts for his quota."""
    ours, theirs = pty.openpty()
    path = os.ttyname(theirs)
    os.chown(path, NOBODY, NOBODY)
    program, log = script_of_him(bed, f"os.dup2(os.open({path!r}, os.O_RDWR | os.O_NOCTTY), 0)")
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(job)
    bed.operation("checkpoint", job)
    program.wait()
    os.close(theirs)
    os.close(ours)
    bed.operation("restore", job)
    log.goes_on()
    # It is nobody's but the terminal's: found by the master of that, which nobody else has.
    number = int(os.readlink(f"/proc/{bed.pid(job)}/fd/0").rsplit("/", 1)[1])
    readers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if reads_terminal(pid, number)]
    expect(len(readers) == 1, f"read by {readers}")
    for name in ("Uid", "Gid"):
        expect(set(status(readers[0], name)) == {str(NOBODY)}, f"{name} of it: {status(readers[0], name)}")
    expect(int(status(readers[0], "CapEff")[0], 16) == 0, "it has capabilities")


main()
