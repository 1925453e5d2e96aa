#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What processes and threads have beside memory and files comes back: the CPUs they are bound to, priorities, policies of memory.
A job whose threads differ from each other and from what a new process has tells what it has, again and again."""

import ctypes
import json
import os
import re
import sys

from cases import Skipped, as_user, case, expect, main
from users_jobs import script_of_him

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable  # which each user may run

JOB = r"""
import ctypes, mmap, os, platform, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
CALLS = {"x86_64": (251, 252, 237, 238, 239), "aarch64": (30, 31, 235, 237, 236)}[platform.machine()]
IOPRIO_SET, IOPRIO_GET, MBIND, SET_MEMPOLICY, GET_MEMPOLICY = CALLS
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK, PR_MCE_KILL, PR_MCE_KILL_GET, BIND, INTERLEAVE, ADDR = 29, 30, 33, 34, 2, 3, 2
PR_GET_KEEPCAPS, PR_SET_KEEPCAPS, PR_SET_MDWE, PR_GET_MDWE = 7, 8, 65, 66
wanted = sys.argv[1].split(",")
cpus = sorted(os.sched_getaffinity(0))
mask = ctypes.c_ulong(1)

def become(cpu, priority, slack):
    if "cpus" in wanted:
        os.sched_setaffinity(0, [cpu])
    libc.syscall(IOPRIO_SET, 1, 0, ctypes.c_ulong(2 << 13 | priority))
    if "slack" in wanted:
        libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(slack))

def policy(address=None):
    mode = ctypes.c_int(-1)
    flags = ADDR if address else 0
    r = libc.syscall(GET_MEMPOLICY, ctypes.byref(mode), None, ctypes.c_ulong(0), ctypes.c_void_p(address), ctypes.c_ulong(flags))
    return mode.value if r == 0 else None

def own():
    return [sorted(os.sched_getaffinity(0)), libc.syscall(IOPRIO_GET, 1, 0), libc.prctl(PR_GET_TIMERSLACK), policy(),
            libc.personality(ctypes.c_ulong(0xffffffff)), libc.prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), os.sched_getscheduler(0),
            libc.prctl(PR_GET_KEEPCAPS), libc.prctl(PR_GET_MDWE, 0, 0, 0, 0)]

ask, answer, told = threading.Event(), threading.Event(), []
def second():
    become(cpus[0], 6, 777000)
    if "policy" in wanted and "gpu" not in wanted:
        libc.syscall(SET_MEMPOLICY, BIND, ctypes.byref(mask), ctypes.c_ulong(64))
    libc.prctl(PR_MCE_KILL, 1, 1, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, 1)
    os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    while True:
        ask.wait()
        ask.clear()
        told[:] = own()
        answer.set()

thread = threading.Thread(target=second, daemon=True)
if "personality" in wanted:
    libc.personality(ctypes.c_ulong(0x0040000))
if "policy" in wanted:
    libc.syscall(SET_MEMPOLICY, INTERLEAVE, ctypes.byref(mask), ctypes.c_ulong(64))
if "gpu" in wanted:
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
if "rules" in wanted:
    libc.prctl(PR_SET_MDWE, 1, 0, 0, 0)
thread.start()
become(cpus[-1], 5, 555000)
memory = mmap.mmap(-1, 8 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if "policy" in wanted:
    libc.syscall(MBIND, ctypes.c_void_p(address), ctypes.c_ulong(8 << 20), BIND, ctypes.byref(mask), ctypes.c_ulong(64), 0)
memory.write(b"\1" * (8 << 20))
as_all = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
same = ctypes.addressof(ctypes.c_char.from_buffer(as_all))
if "policy" in wanted:
    libc.syscall(MBIND, ctypes.c_void_p(same), ctypes.c_ulong(4 << 20), INTERLEAVE, ctypes.byref(mask), ctypes.c_ulong(64), 0)
without = mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
none = ctypes.addressof(ctypes.c_char.from_buffer(without))
with open("/proc/self/coredump_filter", "w") as file:
    file.write("0x7f")
print("ready 1", flush=True)
step = 0
while True:
    step += 1
    ask.set()
    answer.wait()
    answer.clear()
    core = open("/proc/self/coredump_filter").read().strip()
    print("has", [own(), told, policy(address), core, policy(same), policy(none)], flush=True)
    print(f"step {step} OK", flush=True)
    time.sleep(0.025)
"""

ALL = "cpus,slack,personality,policy" + (",rules" if os.uname().machine == "x86_64" else "")  # carried what_was_written_is_not_run


def has(log):
    """What the job says last of what it has."""
    return re.findall(r"^has (.*)$", log.text(), re.MULTILINE)[-1]


def start(bed, wanted=ALL):
    return bed.started([PYTHON, "-u", "-c", JOB, wanted])


def comes_back(bed, job, log):
    """Restored twice, as what is given back is also what is saved next."""
    log.goes_on()
    before = has(log)
    for _ in range(2):
        bed.operation("checkpoint", job)
        summary = bed.operation("restore", job)
        log.goes_on()
        expect(has(log) == before, f"before: {before}, now: {has(log)}")
        expect(not re.search("could not be given|not all to be had", json.dumps(summary)), f"it is said otherwise: {summary}")
    return before


@case
def threads_and_processes_of_root(bed):
    job, log = start(bed)
    before = json.loads(comes_back(bed, job, log).replace("'", '"').replace("None", "null"))
    main_thread, other = before[0], before[1]
    if os.cpu_count() > 1:
        expect(main_thread[0] != other[0] and len(main_thread[0]) == 1, f"this test proves nothing: {before}")
    expect((main_thread[1], other[1]) == (2 << 13 | 5, 2 << 13 | 6), f"this test proves nothing: {before}")
    expect((main_thread[2], other[2]) == (555000, 777000), f"this test proves nothing: {before}")
    expect(other[3:] != main_thread[3:] and other[5:8] == [1, 0x40000003, 1] and main_thread[7] == 0, f"this test proves nothing: {before}")
    expect(main_thread[8] in (("rules" in ALL) * 1, -1) and main_thread[8] == other[8], f"this test proves nothing: {before}")


@case
def a_mapping_with_the_policy_of_its_process(bed):
    """Of a program that numactl(8) started, where no thread has another; but its agent."""
    job, log = start(bed, "policy,gpu")
    before = json.loads(comes_back(bed, job, log).replace("'", '"').replace("None", "null"))
    policies = before[0][3], before[1][3], before[2], before[4], before[5]
    expect(policies in ((3, 3, 2, 3, 0), (None,) * 5), f"this test proves nothing: {before}")


@case
@as_user
def threads_and_processes_of_a_user(bed):
    """The kernel tells who is not root nothing of the timer slack of others, so each thread is asked by CRIU's plugin."""
    job, log = start(bed)
    comes_back(bed, job, log)


@case
@as_user
def a_session_keyring_is_noted(bed):
    """As in which Kerberos tickets are kept: the shim has another one."""
    keyctl, add = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
    setup = (f"import ctypes; call = ctypes.CDLL(None).syscall; call({keyctl}, 1, None)\n"
             f"r = call({add}, b'user', b'ticket', b'x', ctypes.c_long(1), -3)\n"
             "print('ready 1', 'joined' if r > 0 else 'LACKS', flush=True)\n"
             "import time\nfor step in range(1 << 30):\n    print(f'step {step} OK', flush=True); time.sleep(0.02)\n")
    job, log = bed.started([PYTHON, "-u", "-c", setup])
    if "LACKS" in log.text() or os.uname().machine != "x86_64":
        raise Skipped("no keyrings here, or nobody to ask for them")
    summary = json.dumps(bed.operation("checkpoint", "--leave-running", job))
    expect("1 process has a session keyring other than the job's shim" in summary, summary)
    other, log = start(bed, "cpus")
    summary = json.dumps(bed.operation("checkpoint", "--leave-running", other))
    expect("keyring" not in summary, summary)


@case
def what_root_saves_and_restores_for_a_user(bed):
    """It is given back with his rights, which are enough."""
    setup = "libc = ctypes.CDLL(None); os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]); libc.syscall(251, 1, 0, 2 << 13 | 6)" \
        if os.uname().machine == "x86_64" else "os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])"
    program, log = script_of_him(bed, "import ctypes\n" + setup,
                                 'print("has", sorted(os.sched_getaffinity(0)), open("/proc/self/sched").read().count("prio"), flush=True)')
    job = bed.ok("manage", "--pid", program.pid).out.strip()
    bed.jobs.append(job)
    before = has(log)
    bed.operation("checkpoint", job)
    program.wait()
    bed.operation("restore", job)
    log.goes_on()
    expect(has(log) == before, f"before: {before}, now: {has(log)}")
    priority = ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, bed.pid(job))
    expect(os.uname().machine != "x86_64" or priority == 2 << 13 | 6, f"its I/O priority is {priority}")


@case
def bound_to_no_cpu_is_bound_to_none(bed):
    """It has all CPUs that there are where it is restored, whatever the command that restores it is bound to."""
    if os.cpu_count() < 2:
        raise Skipped("one CPU")
    job, log = start(bed, "slack")
    log.goes_on()
    before = has(log)
    bed.operation("checkpoint", job)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cpus)])
    try:
        bed.kill_shim(job)
        bed.operation("restore", job)
    finally:
        os.sched_setaffinity(0, cpus)
    log.goes_on()
    expect(has(log) == before, f"before: {before}, now: {has(log)}")


WATCHER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
watcher = libc.inotify_init1(0o4000)
path = sys.argv[1]
other = libc.inotify_add_watch(watcher, os.path.dirname(path).encode(), 0x100)
held = open(path, "w+")
watch = libc.inotify_add_watch(watcher, path.encode(), 0x2)
os.unlink(path)
print("ready 1", flush=True)
step = 0
while True:
    step += 1
    try: os.read(watcher, 4096)
    except BlockingIOError: pass
    held.write("x"); held.flush()
    event = os.read(watcher, 4096)
    assert int.from_bytes(event[:4], "little") == watch and event[4] == 2, ("BAD", event)
    print(f"step {step} OK", flush=True)
    time.sleep(0.025)
"""


def watches(bed):
    job, log = bed.started([PYTHON, "-u", "-c", WATCHER, os.path.join(bed.dir, "watched")])
    for _ in range(2):
        bed.operation("checkpoint", job)
        summary = bed.operation("restore", job)
        log.goes_on()
        expect("inotify" not in json.dumps(summary), f"it is said otherwise: {summary}")


@case
def a_watch_on_a_deleted_file(bed):
    watches(bed)


@case
@as_user
def watches_of_a_user_are_refused(bed):
    job, log = bed.started([PYTHON, "-u", "-c", WATCHER, os.path.join(bed.dir, "watched")])
    bed.refused(4, "watches files by inotify .*, which takes CAP_DAC_READ_SEARCH to save", "checkpoint", job)
    bed.expect_whole(job, log)


@case
def in_a_namespace_of_its_own(bed):
    """Its threads have other numbers there than the record of who looks from outside."""
    job, log = start(bed)
    log.goes_on()
    before = has(log)
    bed.ok("checkpoint", job, "--name", "image", "--leave-running")
    copy = bed.ok("restore", "image", "--name", "copy").out.strip()
    bed.jobs.append(copy)
    copied = bed.log(copy)
    copied.goes_on()
    expect(has(copied) == before, f"before: {before}, now: {has(copied)}")


if __name__ == "__main__":
    main()
