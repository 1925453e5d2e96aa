# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about how long a job stands still where not all of its data has to move while
it does: checkpoints that let it run on, copies of what changed, copies of a running job. Times are told
beyond what the driver takes for the control state and CRIU for the process, both of the same run; the
data is checked after each."""

import os
import re
import signal
import threading

import bench_cases
from harness import Skipped, expect, run

ANSWER_S, OPERATION_S, CHANGE_EVERY_S = 60, 300, 0.02
CONTROL = ("gpu-lock", "gpu-checkpoint", "gpu-restore", "gpu-unlock")


class Job:
    """A bench-job on the data path, with a pool that holds all of it."""

    def __init__(self, check, mib, change):
        self.check = check
        self.mib = 128 if check.options.simulated else mib
        pieces = "1024-16384" if check.options.simulated else "65536-1048576"
        with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write(f"[Broker]\nPool={self.mib + self.mib // 8 + 1024}M\n")
        argv = [check.program("bench-job"), "--mib", self.mib, "--piece-kib", pieces, "--change", change]
        self.id, self.log = check.job_started(argv, "downtime", options=("--data-path", "broker"))
        self.pid = check.instance.job(self.id)["pid"]

    def ask(self, sig, pattern):
        """Sends a signal and waits for the line that answers it."""
        seen = len(re.findall(pattern, self.log.text(), re.MULTILINE))
        os.kill(self.pid, sig)
        self.log.wait_until(lambda text: len(re.findall(pattern, text, re.MULTILINE)) > seen, pattern, ANSWER_S)

    def change(self):
        self.ask(signal.SIGUSR2, r"^changed \d+$")

    def is_right(self):
        self.ask(signal.SIGUSR1, r"^check \w+$")
        expect("check BAD" not in self.log.text(), "the data is wrong")

    def do(self, verb, *args):
        summary = self.check.instance.operation(verb, self.id, *args, timeout=OPERATION_S)
        self.check.operations.append(summary)
        return summary


def phase_seconds(summary, *names):
    return sum(phase["seconds"] for phase in summary["phases"] if phase["name"] in names)


def control_seconds(job):
    """What the driver takes for the control state of this job, both ways, at best. Warms the pool too."""
    seconds = {"suspend": [], "resume": []}
    for _ in range(3):
        for verb, found in seconds.items():
            found.append(phase_seconds(job.do(verb), *CONTROL))
    return sum(min(found[1:]) for found in seconds.values())


def tell(check, what, seconds, control, criu):
    check.measured[f"{what}, s"] = round(seconds, 3)
    check.measured[f"{what}: control, s"] = round(control, 3)
    if criu:
        check.measured[f"{what}: CRIU, s"] = round(criu, 3)


def leave_running(check):
    job = Job(check, 16384, 0)
    control = control_seconds(job)
    summary = job.do("checkpoint", "--leave-running")
    job.is_right()
    criu = phase_seconds(summary, "criu")
    expect(criu > 0 and summary["downtime_s"] > 0, f"no time of CRIU, or no downtime: {summary}")
    tell(check, "leave-running: downtime", summary["downtime_s"], control, criu)
    check.measured["leave-running: downtime beyond control and CRIU, s"] = round(
        summary["downtime_s"] - control - criu, 3)
    check.instance.end(job.id)


def keep_copy(check):
    job = Job(check, 32768, 1)
    for _ in range(2):
        job.do("suspend")
        job.do("resume", "--keep-copy")
        job.change()
    summary = job.do("suspend")
    job.do("resume")
    job.is_right()
    copied = summary["data_bytes"] - summary["zero_bytes"] - summary["unchanged_bytes"]
    expect(copied < summary["data_bytes"] / 2, f"{copied} of {summary['data_bytes']} bytes were copied again")
    control = phase_seconds(summary, "gpu-lock", "gpu-checkpoint")
    tell(check, "keep-copy: second suspend", summary["seconds"], control, 0)
    check.measured["keep-copy: second suspend, MB copied"] = round(copied / 1e6)
    check.measured["keep-copy: second suspend beyond control, s"] = round(summary["seconds"] - control, 3)
    check.instance.end(job.id)


def live(check):
    """One share of the memory changes all the time, as keys and values do; the rest stands still. There is no room for a
    snapshot: the job has three fifths of the GPU."""
    if check.options.simulated:
        raise Skipped("tests/integration/keep_copy.py does this on the simulated driver")
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    mib = int(run(query, timeout=30).out.split()[0]) * 3 // 5 // 64 * 64
    bench_cases.need_room(check, memory=2 * mib / 1024)
    job = Job(check, mib, 5)
    control = control_seconds(job)
    done = threading.Event()

    def keep_changing():
        while not done.wait(CHANGE_EVERY_S):
            os.kill(job.pid, signal.SIGUSR2)

    changing = threading.Thread(target=keep_changing)
    changing.start()
    try:
        summary = job.do("checkpoint", "--leave-running")
    finally:
        done.set()
        changing.join()
    job.is_right()
    expect(phase_seconds(summary, "live") > 0, f"nothing was copied live: {summary}")
    criu = phase_seconds(summary, "criu")
    tell(check, "live: downtime", summary["downtime_s"], control, criu)
    check.measured["live: downtime beyond control and CRIU, s"] = round(summary["downtime_s"] - control - criu, 3)
    check.instance.end(job.id)


def register(case):
    """Adds the cases to gpu-check's list."""
    case("downtime: --leave-running, 16 GiB")(leave_running)
    case("downtime: --keep-copy, 32 GiB")(keep_copy)
    case("downtime: --leave-running without room for a snapshot")(live)
