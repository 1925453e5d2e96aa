#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate rehearse`: a checkpoint is restored apart from the machine, compared, and thrown away. What is not as it was is
named; what runs does not notice, whatever becomes of the rehearsal."""

import glob
import os
import re
import shutil
import signal
import socket
import tempfile

from as_root import needs_root
from cases import EXIT_BAD_IMAGE, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_STILL_RUNNING, EXIT_TIMEOUT, EXIT_UNSUPPORTED, EXIT_USAGE, STEPPING, DeviceNode, \
    as_user, case, expect, main, pids, read_link, read_text, run, wait_until
from checkpoints import image
from harness import process_start
from users_jobs import script_of_him

SAME = "comes back as it was"


def rehearsed(bed, checkpoint, *options):
    """What was compared in a rehearsal that finds the checkpoint as it was."""
    told = bed.ok("rehearse", checkpoint, *options, "--format", "json").json()["rehearsal"]
    expect(told["id"] == checkpoint and told["processes"] > 0 and told["mappings"] > 0 and told["page_bytes"] > 0, f"{told}")
    return told


def state_of(place):
    """All that is below a directory, with what a change of it would change."""
    return {path: (s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode) for path in sorted(glob.glob(place + "/**", recursive=True))
            for s in [os.lstat(path)]}


def namespaces(bed):
    """Processes of pid namespaces in which some of this bed are: others may run containers beside it."""
    apart = {read_link(f"/proc/{pid}/ns/pid") for pid, _ in bed.processes()} - {"", read_link("/proc/self/ns/pid")}
    return {pid for pid in pids() if read_link(f"/proc/{pid}/ns/pid") in apart}


@case
def of_a_job_that_runs_on(bed):
    job, log = bed.counter("train", mib=32)
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    before = state_of(os.path.join(bed.dir, "state", "checkpoints"))
    result = bed.ok("rehearse", checkpoint)
    expect(result.out == checkpoint + "\n" and len(result.err.splitlines()) == 1 and SAME in result.err, result.why())
    told = rehearsed(bed, "train" if bed.job(job)["name"] == checkpoint else checkpoint)
    expect(told["memory_bytes"] >= 32 << 20 and told["processes"] == 2 and told["descriptors"] > 3, f"{told}")
    expect(state_of(os.path.join(bed.dir, "state", "checkpoints")) == before, "the checkpoint was changed")
    expect(not glob.glob(os.path.join(bed.dir, "log", "rehearsal*")), "a log of CRIU's was left")
    bed.expect_whole(job, log)


@case
@as_user
def of_a_users_job(bed):
    job, log = bed.counter("train", mib=32)
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    told = rehearsed(bed, checkpoint)
    expect(told["memory_bytes"] >= 32 << 20, f"{told}")
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job)
    rehearsed(bed, "train" if bed.job(job)["name"] == checkpoint else bed.job(job)["checkpoint"])


@case
@as_user
def while_something_is_mounted(bed):
    """As by a container that starts. What is planned for the place apart is of the mounts that were there before."""
    needs_root()
    job, log = bed.counter("train", mib=16)
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    at = os.path.join(bed.dir, "mounted")
    os.mkdir(at)
    bed.mounts.append(at)
    with bed.held_at("apart.clone", "rehearse", checkpoint) as rehearsal:
        run(["mount", "-t", "tmpfs", "tmpfs", at])
    code, _, err = rehearsal.end()
    expect(code == 0, f"exit {code}: {err}")
    bed.expect_whole(job, log)


@case
@as_user
def beside_mounts_he_may_not_see(bed):
    """As of root's containers below /tmp. No overlay can be made of a folder that has mounts in it."""
    needs_root()
    hidden = tempfile.mkdtemp(prefix="brumate-test-hidden-")
    try:
        for name, kind in (("memory", "tmpfs"), ("pts", "devpts")):
            at = os.path.join(hidden, name)
            os.mkdir(at)
            bed.mounts.append(at)
            run(["mount", "-t", kind, kind, at])
        job, log = bed.counter("train", mib=16)
        rehearsed(bed, bed.operation("checkpoint", job, "--leave-running")["checkpoint"])
        bed.expect_whole(job, log)
    finally:
        while bed.mounts:
            run(["umount", "-l", bed.mounts.pop()])
        shutil.rmtree(hidden)


@case
@as_user
def of_a_user_in_groups(bed):
    """As those of brumate-users are. The kernel lets nobody choose groups in a user namespace of their own."""
    bed.whose["extra_groups"] = [bed.uid + 1, bed.uid + 2]
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    rehearsed(bed, checkpoint)
    bed.whose["extra_groups"] = [bed.uid + 1]
    bed.refused(EXIT_UNSUPPORTED, "is in other groups than you are now", "rehearse", checkpoint)
    bed.expect_whole(job, log)


# What it has is in the file system, in the network and between its processes.
HOLDER = """
import mmap, os, resource, signal, socket, sys, threading, time
os.chdir(sys.argv[1])
append = open("append", "ab")
open("read", "w").close(); read = open("read")
both = open("both", "w+b"); both.write(b"x" * 4096); both.flush()
mapped = mmap.mmap(both.fileno(), 4096)
gone = open("gone", "w+"); gone.write("gone"); gone.flush(); os.unlink("gone")
bound = socket.socket(socket.AF_UNIX); bound.bind("bound"); bound.listen()
hidden = socket.socket(socket.AF_UNIX); hidden.bind("\\0" + sys.argv[2]); hidden.listen()
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
near = socket.create_connection(server.getsockname()); far = server.accept()[0]
outside = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR | os.O_NONBLOCK)
shared = mmap.mmap(-1, 1 << 20); shared[:4] = b"here"
memory = os.memfd_create("scratch")
ours, theirs = os.openpty()
signal.signal(signal.SIGUSR1, lambda *_: None); signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 10000)
resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))
threading.Thread(target=time.sleep, args=(10000,), daemon=True).start()
child = os.fork()
if not child:
    os.umask(0o077); os.nice(3)
    while True:
        time.sleep(1)
def write():
    both.seek(0, 2); both.write(b"more"); both.flush(); append.write(b"line\\n"); append.flush(); far.send(b"."); near.recv(1)
print("ready to be saved", flush=True)
""" + STEPPING.replace('print("step"', 'write(); print("step"')


def holder(bed):
    """A job that holds all of that, and goes on writing: (job, log, its folder, a connection that leads to it)."""
    place = os.path.join(bed.dir, "place")
    os.mkdir(place, 0o755)
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", HOLDER, place, "brumate-" + os.path.basename(bed.dir),
                            server.getsockname()[1]], "holder")
    return job, log, place, server.accept()[0]


@case
def nothing_outside_is_touched(bed):
    """Sockets in the file system, a deleted file, a FIFO, connections within the job and to somebody else: all of it is
    there twice for a while, and the job goes on with its own."""
    job, log, place, connection = holder(bed)
    with connection:
        checkpoint = bed.operation("checkpoint", job, "--leave-running", "--force")["checkpoint"]
        listing = {path: state[0] for path, state in state_of(place).items()}
        told = rehearsed(bed, checkpoint)
        expect(told["processes"] == 3 and told["threads"] >= 4 and told["descriptors"] > 20, f"{told}")
        expect({path: state[0] for path, state in state_of(place).items()} == listing, "a file was made, removed or replaced")
        socket.socket(socket.AF_UNIX).connect(os.path.join(place, "bound"))
        connection.setblocking(False)
        try:
            expect(connection.recv(1), "the connection was closed")
        except BlockingIOError:
            pass
        bed.expect_whole(job, log)


@case
def what_the_job_no_longer_finds_is_named(bed):
    job, log, place, connection = holder(bed)
    with connection:
        checkpoint = bed.operation("checkpoint", job, "--leave-running", "--force")["checkpoint"]
        rehearsed(bed, checkpoint)
        os.rename(os.path.join(place, "read"), os.path.join(place, "other"))
        bed.refused(EXIT_BAD_IMAGE, f"{checkpoint} does not come back: .*place/read", "rehearse", checkpoint)
        expect(glob.glob(os.path.join(bed.dir, "log", f"rehearsal-{checkpoint}.log")), "there is no log of CRIU's")
        os.rename(os.path.join(place, "other"), os.path.join(place, "read"))
        rehearsed(bed, checkpoint)
        expect(not glob.glob(os.path.join(bed.dir, "log", "rehearsal*")), "the log of an earlier rehearsal is there still")
        bed.expect_whole(job, log)
        bed.end(job)
        rehearsed(bed, checkpoint)  # what has grown is cut back by a restore
        os.truncate(os.path.join(place, "both"), 10)
        rehearsed(bed, checkpoint)  # and what is shorter made anew


@case
def what_is_set_when_a_job_goes_on_is_no_difference(bed):
    job, log = bed.started(["setarch", "-R", "/usr/bin/python3", "-u", "-c", "print('ready to go', flush=True)\nimport time" + STEPPING], "plain")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    result = bed.ok("rehearse", checkpoint)
    expect("comes back as it was" in result.err and "CRIU does not set" not in result.err, result.why())
    bed.ok("kill", job)
    bed.ok("restore", checkpoint)
    expect(read_text(f"/proc/{bed.pid(job)}/personality").strip() == "00040000", "the personality is not what it was")
    bed.end(job)


HAS_A_DEVICE = """
import os, sys
device = os.open(sys.argv[1], os.O_RDWR)
print("ready with", device, flush=True)
import time
""" + STEPPING


@case
def no_device_is_opened(bed):
    with DeviceNode("/dev/fuse") as device:
        job, log = bed.started(["/usr/bin/python3", "-u", "-c", HAS_A_DEVICE, device], "holder")
        number = log.wait_for(r"^ready with (\d+)$").group(1)
        checkpoint = bed.operation("checkpoint", job, "--leave-running", "--force")["checkpoint"]
        with bed.held_at("rehearse.restored", "rehearse", checkpoint) as rehearsal:
            apart = os.stat(f"/proc/{rehearsed_process(bed, 'python3')}/fd/{number}").st_rdev
            expect(apart == os.stat("/dev/null").st_rdev, f"device {os.major(apart)}:{os.minor(apart)} is open")
        code, out, err = rehearsal.end()
        expect(code == 0 and out, f"exit {code}: {err}")
        bed.expect_whole(job, log)


def rehearsed_process(bed, name):
    """The process of that name that stands apart."""
    found = [pid for pid in namespaces(bed) if read_text(f"/proc/{pid}/comm") == name + "\n"]
    expect(len(found) == 1, f"{len(found)} processes {name} apart")
    return found[0]


def write_memory(pid):
    end = next(int(re.split("[- ]", line)[1], 16) for line in read_text(f"/proc/{pid}/maps").splitlines() if "[stack]" in line)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(end - 64)
        was = memory.read(1)
        memory.seek(end - 64)
        memory.write(bytes([was[0] ^ 1]))


def write_oom_score(pid):
    with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write("77")


def kill(pid):
    """It is traced, and stands still: it ends a moment later, and its tracer keeps it."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: re.search(r"\) [ZX] ", read_text(f"/proc/{pid}/stat") or ") X "), "the end of the process")


@case
def what_is_other_than_it_was_is_named(bed):
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    ways = ((write_memory, "its memory is different at "), (write_oom_score, "has oom_score_adj 77, and had 0"),
            (lambda pid: run(["prlimit", "--pid", pid, "--nofile=77:777"]), "a limit is other than it was: Max open files"),
            (lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 7), "has niceness 7, and had 0"),
            (kill, r"process \d+"))
    for change, words in ways:
        with bed.held_at("rehearse.restored", "rehearse", checkpoint) as rehearsal:
            change(rehearsed_process(bed, "counter"))
        code, out, err = rehearsal.end()
        expect(code == EXIT_BAD_IMAGE and not out and "does not come back" in err, f"{words}: exit {code}: {err}")
        expect(re.search(words, err), f"{err!r} says nothing like {words!r}")
    rehearsed(bed, checkpoint)
    bed.expect_whole(job, log)


@case
def damaged_memory_is_named(bed):
    job, log = bed.counter("train", mib=32)
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    pack = max(glob.glob(os.path.join(image(bed, checkpoint), "memory", "*")), key=os.path.getsize)
    with open(pack, "r+b") as file:
        file.seek(os.path.getsize(pack) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    bed.refused(EXIT_BAD_IMAGE, "memory/.*: chunk", "rehearse", checkpoint)
    bed.refused(EXIT_NOT_FOUND, "", "rehearse", "nothing-of-that-name")
    bed.expect_whole(job, log)


KEEPER = """
import os, time
held, step = os.urandom(32 << 20), 0
print("ready to go", flush=True)
while True:
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


@case
def damaged_memory_of_a_process_is_named(bed):
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", KEEPER])
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    rehearsed(bed, checkpoint)
    pack = max(glob.glob(os.path.join(image(bed, checkpoint), "memory", "*")), key=os.path.getsize)
    expect(os.path.getsize(pack) >= 16 << 20, "its memory is not in chunks")
    with open(pack, "r+b") as file:
        file.seek(8 << 20)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    bed.refused(EXIT_BAD_IMAGE, "memory/.*: chunk .*CPU memory", "rehearse", checkpoint)
    log.goes_on()


def expect_nothing_left(bed, before):
    wait_until(lambda: not namespaces(bed) - before, "the end of all that stood apart")


@case
def whoever_is_killed_leaves_nothing(bed):
    """brumate, CRIU or the init of the place, while the job stands there with all that it is: nothing of it runs."""
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    before = namespaces(bed)
    for action in ("kill", "kill:criu"):
        bed.fault("rehearse.restored", action)
        result = bed.cli("rehearse", checkpoint)
        # Without CRIU all of it stands still as well, and is looked at to the end.
        expect(bed.has_fired() and (action != "kill" or result.code != 0), f"{action}: {result.why()}")
        expect_nothing_left(bed, before)
        log.goes_on()
    with bed.held_at("rehearse.restored", "rehearse", checkpoint) as rehearsal:
        init = [pid for pid in namespaces(bed) - before if re.search(r"^NSpid:\t\d+\t1$", read_text(f"/proc/{pid}/status"), re.M)]
        expect(len(init) == 1, f"{len(init)} inits")
        counter = rehearsed_process(bed, "counter")
        os.kill(init[0], signal.SIGKILL)
        wait_until(lambda: not process_start(counter), "the end of the job that stood there")
    code, out, err = rehearsal.end()
    expect(code != 0 and not out, f"exit {code}: {err}")
    expect_nothing_left(bed, before)
    rehearsed(bed, checkpoint)
    bed.expect_whole(job, log)


@case
def a_deadline_ends_it(bed):
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    before = namespaces(bed)
    bed.fault("rehearse.restored", "delay:1500")
    bed.refused(EXIT_TIMEOUT, "", "rehearse", checkpoint, "--timeout", "1s")
    expect_nothing_left(bed, before)
    bed.expect_whole(job, log)


@case
def where_there_are_no_namespaces_it_says_so(bed):
    job, log = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    bed.fault("apart.clone", "error:1")
    bed.refused(EXIT_UNSUPPORTED, "can only be rehearsed apart from the machine", "rehearse", checkpoint)
    bed.expect_whole(job, log)


@case
def root_rehearses_a_users_job(bed):
    program, log = script_of_him(bed)
    checkpoint = bed.operation("checkpoint", "--pid", program.pid, "--leave-running")["checkpoint"]
    told = rehearsed(bed, checkpoint)
    expect(told["processes"] == 1, f"{told}")
    log.goes_on()


def checkpoints(bed):
    return {c["id"] for c in bed.ok("ls", "--format", "json").json()["checkpoints"]}


@case
def a_checkpoint_that_does_not_come_back_is_none(bed):
    job, log = bed.counter("train")
    bed.refused(EXIT_USAGE, "--rehearse goes with --leave-running", "checkpoint", job, "--rehearse")
    result = bed.ok("checkpoint", job, "--leave-running", "--rehearse", "--name", "first")
    expect("rehearsed: 2 processes come back as they were" in result.err, result.why())
    bed.fault("rehearse.restored", "error:5")
    failed = bed.cli("checkpoint", job, "--leave-running", "--rehearse", "--name", "second")
    expect(failed.code == EXIT_STILL_RUNNING and not failed.out and "second does not come back" in failed.err, failed.why())
    expect(checkpoints(bed) == {"first"} and bed.job(job)["checkpoint"] == "first", f"{checkpoints(bed)} {bed.job(job)}")
    bed.fault("rehearse.restored", "error:12")  # no memory
    failed = bed.cli("checkpoint", job, "--leave-running", "--rehearse", "--name", "second")
    expect(failed.code == EXIT_FAILED and "second was made, and could not be rehearsed" in failed.err, failed.why())
    bed.ok("rm", "second")
    bed.fault("apart.clone", "error:1")
    failed = bed.cli("checkpoint", job, "--leave-running", "--rehearse", "--name", "third")
    expect(failed.code == EXIT_UNSUPPORTED and "third was made, and could not be rehearsed" in failed.err, failed.why())
    expect(checkpoints(bed) == {"first", "third"} and bed.job(job)["checkpoint"] == "third", f"{checkpoints(bed)}")
    bed.expect_whole(job, log)
    bed.end(job)
    bed.operation("restore", "first")
    bed.expect_state(job, "running")


@case
@as_user
def a_user_rehearses_each(bed):
    job, log = bed.counter("train")
    bed.ok("checkpoint", job, "--leave-running", "--rehearse", "--name", "first")
    expect(checkpoints(bed) == {"first"}, f"{checkpoints(bed)}")
    bed.expect_whole(job, log)


@case
def a_schedule_keeps_what_comes_back(bed):
    job, log = bed.counter("train")
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "1", "--rehearse")
    expect(bed.job(job)["schedule"]["rehearse"] is True, f"{bed.job(job)['schedule']}")
    wait_until(lambda: bed.job(job)["checkpoint"], "the first of them", 60)
    bed.fault("rehearse.restored", "error:5")
    failure = wait_until(lambda: bed.job(job)["schedule"]["failure"], "the one that does not come back", 60)
    expect("does not come back" in failure, failure)
    kept = bed.job(job)["checkpoint"]
    expect(kept in checkpoints(bed), f"{kept} of {checkpoints(bed)}")
    wait_until(lambda: not bed.job(job)["schedule"]["failure"], "one that does", 60)
    wait_until(lambda: kept not in checkpoints(bed), f"the end of {kept}", 60)
    bed.end_schedule(job)
    expect(len(checkpoints(bed)) == 1, f"{checkpoints(bed)}")
    bed.expect_whole(job, log)


main()
