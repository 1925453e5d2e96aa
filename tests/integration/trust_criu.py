#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user tries with the CRIU that works for root's brumate with the user's rights: to take it over, and to have it name
processes of others. Each case would succeed for the attacker if its check were taken away."""

import errno
import json
import os
import re
import shutil
import signal
import time
from contextlib import contextmanager

from cases import NOBODY, Skipped, case, expect, main, run, wait_until
from checkpoints import manifest_of
from harness import process_start
from users_jobs import AS_HIM, ROOTS_OWN, children, program_of_root, saved_of_him, script_of_him, status

HERE = os.path.dirname(os.path.abspath(__file__))
WAITS = "import os, signal, sys; signal.sigwait({signal.SIGUSR1}); os.execv(sys.argv[1], sys.argv[1:])"


@contextmanager
def lying(bed, *says):
    """The environment in which brumate runs a CRIU that says this."""
    directory = os.path.join(bed.dir, "lying")
    os.mkdir(directory)
    os.chmod(directory, 0o755)
    for name in ("lying_criu.py", "criu_images.py"):
        shutil.copy(os.path.join(HERE, name), directory)
        os.chmod(os.path.join(directory, name), 0o755)
    with open(os.path.join(directory, "lie"), "w", encoding="utf-8") as file:
        json.dump({"says": says}, file)
    os.chmod(file.name, 0o644)
    try:
        yield {"BRUMATE_CRIU": os.path.join(directory, "lying_criu.py")}
    finally:
        shutil.rmtree(directory)


def processes_of(bed):
    """Those that nobody may touch: of root, of the user and not of the job, and the test's own: {who: pid}."""
    own = bed.start(["sleep", "1000"])
    his = bed.start([*AS_HIM, "sleep", "1000"])
    return {"root's": own.pid, "his": his.pid, "the test": os.getpid()}


def comm_of(pid):
    return status(pid, "Name")[0]


def restored(pid):
    return {"script": "post-restore", "pid": pid}


def forget_jobs(bed):
    """And with them their shims, each of which has the environment of the command that started it."""
    for job in bed.list("ps", "jobs"):
        bed.ok("rm", job["id"])


def saved(bed):
    """A checkpoint of his, the pid of its first process, and its log."""
    checkpoint, log = saved_of_him(bed)
    forget_jobs(bed)
    return checkpoint, manifest_of(bed, checkpoint)["processes"][0]["pid"], log


def expect_distrust(bed, code, words, checkpoint, *says):
    with lying(bed, *says) as env:
        bed.refused(code, words, "restore", checkpoint, env=env)
    forget_jobs(bed)


@case
def a_criu_that_names_others(bed):
    checkpoint, _, log = saved(bed)
    for who, pid in processes_of(bed).items():
        start = process_start(pid)
        for end in ([], [{"script": "pre-resume", "pid": pid}, {"done": True, "pid": pid}]):
            expect_distrust(bed, 9, "names a process as restored that it was not to make: it was ended", checkpoint,
                            restored(pid), *end)
            expect(process_start(pid) == start and status(pid, "State")[0] in "SR", f"{who}: it was touched")
    bed.expect_restorable(checkpoint, log)


@case
def a_criu_that_makes_a_child(bed):
    """With the number of the checkpoint's process: but CRIU, and not the shim, would be told of its end."""
    checkpoint, pid, log = saved(bed)
    expect_distrust(bed, 9, "names a process as restored that it was not to make", checkpoint,
                    {"make": pid, "exec": ["/bin/sleep", "1000"], "child": True}, restored(pid))
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of what was made")
    bed.expect_restorable(checkpoint, log)


def end_untouched(pid):
    """Of a program of root's that the user has started, and could not end: it neither stands still nor has ended."""
    expect(comm_of(pid) == ROOTS_OWN and status(pid, "Uid")[:3] == ["0"] * 3, f"{comm_of(pid)} of uids {status(pid, 'Uid')} is there")
    expect(status(pid, "State")[0] in "SR", f"its state is {status(pid, 'State')}")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}") or status(pid, "State")[0] == "Z", "its end")


@case
def a_criu_that_makes_a_setuid_program(bed):
    """It has the number of the checkpoint's process, and is a child of the shim: but it is root's."""
    checkpoint, pid, log = saved(bed)
    expect_distrust(bed, 9, "names a process as restored that is not of the job's user", checkpoint,
                    {"make": pid, "exec": program_of_root(bed), "comm": ROOTS_OWN}, restored(pid))
    end_untouched(pid)
    bed.expect_restorable(checkpoint, log)


@case
def a_setuid_program_of_a_criu_that_is_killed(bed):
    """What is left of its process group is ended then."""
    checkpoint, pid, log = saved(bed)
    with lying(bed, {"make": pid, "exec": program_of_root(bed), "comm": ROOTS_OWN, "child": True}, {"ends": signal.SIGKILL}) as env:
        bed.refused(1, "CRIU was killed by signal 9", "restore", checkpoint, env=env)
    forget_jobs(bed)
    end_untouched(pid)
    bed.expect_restorable(checkpoint, log)


@case
def a_process_that_becomes_a_setuid_program(bed):
    """When it has been looked at, and before its memory is filled."""
    checkpoint, pid, log = saved(bed)
    command = program_of_root(bed)
    expect_distrust(bed, 5, rf"process {pid} \({ROOTS_OWN}\) has the rights of uid 0", checkpoint,
                    {"make": pid, "exec": ["/usr/bin/python3", "-c", WAITS, *command]}, restored(pid),
                    {"turn": pid, "exec": command, "comm": ROOTS_OWN}, {"script": "pre-resume", "pid": pid}, {"done": True, "pid": pid})
    end_untouched(pid)
    bed.expect_restorable(checkpoint, log)


@case
def a_member_that_becomes_a_setuid_program(bed):
    """When CRIU has said that all stand still, and dies: the kernel, and then the shim, would stop it."""
    command = program_of_root(bed)
    waits = ["/usr/bin/python3", "-c", WAITS, *command]
    program, log = script_of_him(bed, "import signal, subprocess; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); "
                                      f"subprocess.Popen({waits!r})")
    child = children(program.pid)[0]
    with lying(bed, {"script": "query-ext-files", "pid": 0}, {"turn": child, "exec": command, "comm": ROOTS_OWN}) as env:
        bed.refused(7, "CRIU ended without an answer", "checkpoint", "--pid", program.pid, env=env)
    log.goes_on()
    forget_jobs(bed)
    end_untouched(child)


# Like code of CRIU's it blocks all signals, also those which the C library keeps for itself.
TELLS_TRACER = """
import ctypes, time
mask = ctypes.create_string_buffer(b"\\xff" * 8, 8)
assert ctypes.CDLL(None).syscall({number}, 0, mask, None, 8) == 0
until = time.monotonic() + 1000
while time.monotonic() < until:
    with open("/proc/self/status") as file:
        tracer = next(line for line in file if line.startswith("TracerPid:")).split()[1]
    with open({path!r}, "a") as file:
        file.write(tracer + "\\n")
    time.sleep(0.01)
"""
RT_SIGPROCMASK = {"x86_64": 14, "aarch64": 135}


@case
def a_setuid_program_is_not_traced(bed):
    """Members are traced that may be in CRIU's code when it has died."""
    own, told = os.path.join(bed.dir, ROOTS_OWN), os.path.join(bed.dir, "told")
    command = program_of_root(bed)
    os.remove(own)
    os.symlink("/usr/bin/python3", own)
    command[-1:] = ["-c", TELLS_TRACER.format(number=RT_SIGPROCMASK[os.uname().machine], path=told)]
    waits = ["/usr/bin/python3", "-c", WAITS, *command]
    program, log = script_of_him(bed, "import signal, subprocess; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); "
                                      f"subprocess.Popen({waits!r})")
    child = children(program.pid)[0]
    with lying(bed, {"script": "query-ext-files", "pid": 0}, {"turn": child, "exec": command, "comm": ROOTS_OWN},
               {"await": told}) as env:
        bed.refused(7, "CRIU ended without an answer", "checkpoint", "--pid", program.pid, env=env)
    log.goes_on()
    forget_jobs(bed)
    end_untouched(child)
    with open(told, encoding="utf-8") as file:
        expect(set(file.read().split()) == {"0"}, "it was traced")


@case
def a_criu_that_is_done_too_soon(bed):
    checkpoint, pid, log = saved(bed)
    there = {"make": pid, "exec": ["/usr/bin/python3", "-c", WAITS, "/bin/true"]}
    for says in ([{"done": True, "pid": pid}], [there, restored(pid), {"done": True, "pid": pid}],
                 [there, restored(pid), {"script": "pre-resume", "pid": pid}, {"done": True, "pid": os.getpid()}],
                 [there, restored(pid), restored(pid)], [{"script": "pre-resume", "pid": pid}], [{"script": "post-dump", "pid": pid}]):
        expect_distrust(bed, 9, "CRIU, process [0-9]+, (says|names) .*: it was ended", checkpoint, *says)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of what was made")
    bed.expect_restorable(checkpoint, log)


@case
def a_dump_that_never_stood_still(bed):
    program, log = script_of_him(bed)
    for says in ([{"done": True}], [{"script": "post-dump", "pid": 0}], [{"script": "query-ext-files", "pid": 0}, {"done": True}]):
        with lying(bed, *says) as env:
            bed.refused(7, "CRIU, process [0-9]+, says .*: it was ended", "checkpoint", "--pid", program.pid, env=env)
        log.goes_on()
        forget_jobs(bed)
    expect(not bed.checkpoints(), "it was kept")


@case
def he_stops_the_criu_that_restores(bed):
    """He may signal it, as it has his rights. Nobody waits for him."""
    checkpoint, _, log = saved(bed)
    for options, code, words, limit_s in ((("--timeout", "2s"), 124, "timed out after 2 s", 4), ((), 1, "CRIU, process [0-9]+, was stopped by a signal", 15)):
        with bed.held_at("restore.spawned", "restore", checkpoint, *options) as restore:
            criu = bed.crius()[0]
            os.kill(criu, signal.SIGSTOP)
            start = time.monotonic()
        got, _, err = restore.end()
        expect(code == got and re.search(words, err), f"{options}: exit {got}: {err}")
        expect(time.monotonic() - start < limit_s, f"{options}: it took {time.monotonic() - start:.1f} s")
        wait_until(lambda: process_start(criu) is None, "the end of CRIU")  # pylint: disable=W0640
        forget_jobs(bed)
    bed.expect_restorable(checkpoint, log)


@case
def he_stops_the_criu_that_saves(bed):
    program, log = script_of_him(bed)
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(job)
    for options, limit_s in ((("--timeout", "2s"), 4), ((), 15)):
        with bed.held_at("checkpoint.frozen", "checkpoint", job, *options) as checkpoint:
            os.kill(bed.crius()[0], signal.SIGSTOP)
            start = time.monotonic()
        code, _, err = checkpoint.end()
        expect(code == (124 if options else 7) and re.search("timed out|stopped by a signal", err), f"{options}: exit {code}: {err}")
        expect(time.monotonic() - start < limit_s, f"{options}: it took {time.monotonic() - start:.1f} s")
        bed.wait_state(job, ("running",))
        log.goes_on()
    expect(not bed.checkpoints(), "it was kept")


def file_of_root(bed):
    """A file of root's in his directory: he can move it, and not read it."""
    path = os.path.join(bed.dir, "his", "of-root")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("secret")
    return path


CONNECTS = ("s = None", "if not s and os.path.exists('connect'): s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
            "open('connected', 'w').close()")


@case
def roots_file_among_the_images(bed):
    """The directory is given to CRIU once more for a second try, and the first one's CRIU has moved it there."""
    program, log = script_of_him(bed, *CONNECTS)
    path = file_of_root(bed)
    told = os.path.join(bed.dir, "his", "told")
    frozen = {"script": "query-ext-files", "pid": 0}
    with lying(bed, {"read": "of-root", "note": told}, {"move": path},
               {"touch": os.path.join(bed.dir, "his", "connect")}, {"await": os.path.join(bed.dir, "his", "connected")}, frozen) as env:
        bed.refused(7, "CRIU ended without an answer", "checkpoint", "--pid", program.pid, env=env)
    log.goes_on()
    forget_jobs(bed)
    with open(told, encoding="utf-8") as file:
        expect(file.read().splitlines() == ["No such file or directory", "Permission denied"], "he has read it")


@case
def roots_file_is_no_image(bed):
    """It would be a part of the checkpoint, and a restore gives all of that to his CRIU."""
    program, log = script_of_him(bed)
    path = file_of_root(bed)
    with lying(bed, {"script": "query-ext-files", "pid": 0}, {"move": path}, {"script": "post-dump", "pid": 0}) as env:
        bed.refused(7, "something in them that is not a file of CRIU's", "checkpoint", "--pid", program.pid, env=env)
    log.goes_on()
    forget_jobs(bed)
    expect(not bed.checkpoints(), "it was kept")


@case
def a_pipe_among_the_images(bed):
    """Of those that were given to his CRIU, which says then that a number is taken: whose, the images tell."""
    checkpoint, _, log = saved(bed)
    with lying(bed, {"pipe": "pstree.img"}, {"failed": errno.EEXIST}) as env:
        bed.refused(9, "pstree.img: Bad message", "restore", checkpoint, env=env)
    forget_jobs(bed)
    bed.expect_restorable(checkpoint, log)


@case
def a_log_that_names_thousands(bed):
    """Of what a CRIU that was killed leaves behind, root's shim learns from its log."""
    program, log = script_of_him(bed)
    with lying(bed, {"log": "CRIU run id = a\n", "times": 4 << 20}) as env:
        bed.refused(7, "CRIU ended without an answer", "checkpoint", "--pid", program.pid, env=env)
    log.goes_on()
    forget_jobs(bed)
    checkpoint = bed.operation("checkpoint", "--pid", program.pid)["checkpoint"]
    program.wait()
    forget_jobs(bed)
    with lying(bed, {"log": "Opening ghost file 0x1 for x ", "times": 2 << 20}) as env:
        bed.refused(1, "CRIU ended without an answer", "restore", checkpoint, env=env)
    forget_jobs(bed)
    bed.expect_restorable(checkpoint, log)


@case
def a_log_that_names_a_file_of_roots(bed):
    """As one that CRIU had made anew for a restore, and left."""
    checkpoint, _, log = saved(bed)
    path = os.path.join(bed.dir, "x.cr.1.ghost")
    with open(path, "w", encoding="utf-8"):
        pass
    with lying(bed, {"log": f"Opening ghost file 0x1 for {bed.dir[1:]}/x\n", "times": 1}) as env:
        bed.refused(1, "CRIU ended without an answer", "restore", checkpoint, env=env)
    forget_jobs(bed)
    expect(os.path.exists(path), "it is gone")
    os.chmod(bed.dir, 0o777)
    with lying(bed, {"log": f"Opening ghost file 0x1 for {bed.dir[1:]}/x\n", "times": 1}) as env:
        bed.refused(1, "CRIU ended without an answer", "restore", checkpoint, env=env)
    os.chmod(bed.dir, 0o711)
    forget_jobs(bed)
    expect(not os.path.exists(path), "this test proves nothing: he may remove it, and it stays")
    bed.expect_restorable(checkpoint, log)


@case
def images_that_he_opens_to_all(bed):
    """He could put there what he likes, once it was looked at."""
    program, log = script_of_him(bed)
    with lying(bed, {"script": "query-ext-files", "pid": 0}, {"open": 0o777}, {"script": "post-dump", "pid": 0}) as env:
        bed.fault("criu.images", "hold")
        with bed.holding("criu.images", bed.spawn("checkpoint", "--pid", program.pid, env=env)) as background:
            partial = next(name for name in os.listdir(bed.store()) if name.endswith(".partial"))
            found = os.stat(os.path.join(bed.store(), partial, "criu"))
        background.end()
    expect((found.st_uid, found.st_mode & 0o7777) == (0, 0o700), f"it is of uid {found.st_uid}, and its mode {found.st_mode:o}")
    log.goes_on()


TRACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, PIDFD_OPEN, PIDFD_GETFD = 0x4206, 434, 438
pid = int(sys.argv[1])
for what, r in (("seized", libc.ptrace(SEIZE, pid, 0, 0)),
                ("descriptor taken", libc.syscall(PIDFD_GETFD, libc.syscall(PIDFD_OPEN, pid, 0), 0, 0))):
    print(what if r >= 0 else os.strerror(ctypes.get_errno()))
try:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
    print("memory opened")
except OSError as error:
    print(error.strerror)
"""


def launched(capabilities):
    return [*map(str, AS_HIM), "--inh-caps", capabilities, "--ambient-caps", capabilities]


LAUNCHED = launched("+checkpoint_restore")
IN_SESSION = launched("+checkpoint_restore,+wake_alarm")  # which systemd gives to those who log in


def trace(pid, as_whom=LAUNCHED):
    """What a user with the launcher's capability is told who wants to trace it."""
    return set(run([*as_whom, "/usr/bin/python3", "-c", TRACE, str(pid)]).out.splitlines())


@case
def he_traces_roots_criu(bed):
    """He can have the capability that this CRIU has, by brumate-criu-launch, and so may trace what has no more."""
    checkpoint, _, log = saved(bed)
    own = bed.start([*LAUNCHED, "/usr/bin/python3", "-c", "import time; print('ready'); time.sleep(1000)"])
    own.log.wait_for("^ready")
    if trace(own.pid) != {"seized", "descriptor taken", "memory opened"}:
        raise Skipped(f"a user may not trace here: {trace(own.pid)}")
    with bed.held_at("restore.spawned", "restore", checkpoint) as restore:
        criu = bed.crius()[0]
        wait_until(lambda: status(criu, "Uid")[1] == str(NOBODY), "CRIU to be his")
        said = trace(criu) | trace(criu, IN_SESSION)
    expect(said <= {"Operation not permitted", "Permission denied"}, f"he may trace it: {said}")
    code, _, err = restore.end()
    expect(code == 0, f"exit {code}: {err}")
    job = bed.list("ps", "jobs")[0]["id"]
    bed.jobs.append(job)
    log.goes_on()
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        expect(int(status(bed.pid(job), name)[0], 16) == 0, f"{name} of what was restored is {status(bed.pid(job), name)}")


main()
