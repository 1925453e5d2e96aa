#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Users who are not root, with nothing of root's running: a job of theirs from its start to its end, and what such a
user may not have. CRIU, shim, broker and keeper run as the user; what the launcher of CRIU adds is one capability."""

import os

from cases import CAP_CHECKPOINT_RESTORE, allow_launcher, as_user, case, expect, main, read_text, run


def status_of(pid):
    """The fields of /proc/PID/status that say whose a process is and what it may."""
    return dict(line.split(":\t", 1) for line in read_text(f"/proc/{pid}/status").splitlines() if ":\t" in line)


def expect_of_user(bed, pid, capabilities=0):
    status = status_of(pid)
    name = status.get("Name")
    for field in ("Uid", "Gid"):
        expect(status[field].split() == [str(bed.uid)] * 4, f"{name}: {field} {status[field]}")
    expect(not status["Groups"].split(), f"{name}: groups {status['Groups']}")
    for field in ("CapPrm", "CapEff", "CapAmb"):
        expect(int(status[field], 16) == capabilities, f"{name}: {field} {status[field]}")


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
        processes = bed.processes()
        crius = [pid for pid, command in processes if "swrk" in command.split()]
        expect(crius, f"CRIU does not run: {processes}")
        names = {status_of(pid).get("Name") for pid, _ in processes}
        expect({"brumate-shim", "brumate-broker", "counter"} <= names, f"{names}")
        for pid, _ in processes:
            expect_of_user(bed, pid, 1 << CAP_CHECKPOINT_RESTORE if pid in crius else 0)
    code, _, err = checkpoint.end()
    expect(code == 0, f"checkpoint: exit {code}: {err}")
    bed.operation("restore", "train")
    log.goes_on()
    expect_of_user(bed, bed.pid(job))
    bed.end(job)


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


main()
