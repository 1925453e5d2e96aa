# SPDX-License-Identifier: MIT
"""A case of tools/gpu-check whose job reserves much more than it uses, as a server does whose paged cache is nearly all
zero, and part of the rest the same again and again: what each operation takes at defaults, images on tmpfs, and the room
that a checkpoint asks for. The data is checked after each. A refusal where the data would have fitted is told as a figure,
and fails the case at its end."""

import os
import re
import shutil
import signal
import tempfile
import time

from bench_cases import MemoryWatch
from harness import Failed, Skipped, expect, run

AFTER_START_S, OPERATION_S, CHECK_S = 15, 300, 120
SUSPENDED_S = 2  # right after a suspend the driver clears the memory that was let go, and a resume waits for it
# The last: room for the data, and not for what is reserved. On a simulated GPU all is smaller.
RANDOM_MIB, ZERO_MIB, SAME_MIB, ROOM_MIB = 5734, 88064, 14336, 12288
SMALL_RANDOM_MIB, SMALL_ZERO_MIB, SMALL_SAME_MIB, SMALL_ROOM_MIB = 64, 768, 128, 512


class Server:
    """The job, what it was asked, and what its operations took."""

    def __init__(self, check):
        self.check, self.name = check, "mostly-zero"
        small = check.options.simulated
        argv = [check.program("bench-job"), "--mib", SMALL_RANDOM_MIB if small else RANDOM_MIB,
                "--piece-kib", "1024-16384" if small else "65536-1048576",
                "--zero-mib", SMALL_ZERO_MIB if small else ZERO_MIB, "--same-mib", SMALL_SAME_MIB if small else SAME_MIB, "--change", 1]
        self.id, self.log = check.job_started(argv, "server")

    def tell(self, what, value):
        self.check.measured[f"{self.name}: {what}"] = value

    def ask(self, sig, pattern):
        seen = len(re.findall(pattern, self.log.text(), re.MULTILINE))
        os.kill(self.check.instance.job(self.id)["pid"], sig)
        self.log.wait_until(lambda text: len(re.findall(pattern, text, re.MULTILINE)) > seen, pattern, CHECK_S)

    def is_right(self):
        self.ask(signal.SIGUSR1, r"^check \w+$")
        expect("check BAD" not in self.log.text(), "the data is wrong")

    def change(self):
        self.ask(signal.SIGUSR2, r"^changed \d+$")

    def computes_after(self, begin_ns):
        """Seconds until the first step after what began then."""
        found = []

        def look(text):
            found[:] = [int(end) for end in re.findall(r"^gap \d+ (\d+)$", text, re.MULTILINE) if int(end) > begin_ns]
            return found

        self.log.wait_until(look, "a step", OPERATION_S)
        return (found[-1] - begin_ns) / 1e9

    def do(self, what, verb, *args):
        begin_ns = time.time_ns()
        summary = self.check.instance.operation(verb, *args, timeout=OPERATION_S)
        self.tell(f"{what}, answered, s", round((time.time_ns() - begin_ns) / 1e9, 3))
        self.check.operations.append({**summary, "what": what})
        if verb in ("resume", "restore"):
            self.tell(f"{what}, until it computes, s", round(self.computes_after(begin_ns), 3))
        if summary.get("downtime_s"):
            self.tell(f"{what}, downtime, s", round(summary["downtime_s"], 3))
        self.tell(f"{what}, GB: reserved / zero / unchanged / on a disk",
                  " / ".join(f"{summary[key] / 1e9:.2f}"
                             for key in ("data_bytes", "zero_bytes", "unchanged_bytes", "disk_bytes")))
        for phase in summary["phases"]:
            self.tell(f"{what}: phase {phase['name']}", f"{phase['start']:.3f} + {phase['seconds']:.3f} s")
        return summary


def suspended(server):
    for i in range(4):
        which = "first" if i == 0 else f"later {i}"
        server.do(f"suspend, {which}", "suspend", server.id)
        time.sleep(SUSPENDED_S)
        server.do(f"resume, {which}", "resume", server.id)
        server.is_right()
    server.change()
    server.do("suspend, 1 % changed", "suspend", server.id)
    server.do("resume, 1 % changed", "resume", server.id)
    server.is_right()


def saved_and_restored(server, folder):
    for i in range(2):
        saved = server.do(f"checkpoint {i}", "checkpoint", server.id, "--dir", folder, "--name", f"saved-{i}")
        server.tell(f"checkpoint {i}: image, GB", round(saved["image_bytes"] / 1e9, 2))
        server.do(f"restore {i}", "restore", "--dir", folder, f"saved-{i}")
        server.is_right()
        server.check.instance.ok("rm", "--dir", folder, "--checkpoint", f"saved-{i}")


class SmallRoom:
    """A tmpfs that holds the data, and not what is reserved."""

    def __init__(self, check, folder):
        self.folder = os.path.join(folder, "small")
        mib = SMALL_ROOM_MIB if check.options.simulated else ROOM_MIB
        os.mkdir(self.folder)
        mounted = run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", self.folder], timeout=30)
        if mounted.code:
            raise Skipped(f"no file system of its own can be mounted here: {mounted.why()}")

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        run(["umount", "-l", self.folder], timeout=30)


def left_running(server, folder):
    """Returns why the first was refused, if it was."""
    with SmallRoom(server.check, folder) as small:
        refused = server.check.instance.cli("checkpoint", server.id, "--leave-running", "--dir", small, timeout=OPERATION_S)
    server.tell("checkpoint where only the data has room", refused.err.strip() if refused.code else "done")
    for i in range(2):
        server.do(f"checkpoint --leave-running {i}", "checkpoint", server.id, "--leave-running", "--dir", folder,
                  "--name", f"running-{i}")
        server.is_right()
    return refused.why() if refused.code else None


def mostly_zero(check):
    if not os.path.isdir("/dev/shm"):
        raise Failed("no /dev/shm")
    folder = tempfile.mkdtemp(prefix="brumate-zero-", dir="/dev/shm")
    try:
        server = Server(check)
        time.sleep(2 if check.options.simulated else AFTER_START_S)
        with MemoryWatch(check.instance) as memory:
            suspended(server)
            saved_and_restored(server, folder)
        memory.tell(check, server.name)
        refused = left_running(server, folder)
        check.instance.end(server.id)
        expect(refused is None, f"there was room for the data: {refused}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def register(case):
    """Adds the case to gpu-check's list."""
    case("bench: a mostly-zero server of 106 GiB")(mostly_zero)
