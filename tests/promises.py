#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks one instance of brumate, at rest, against the promises that docs/states.md numbers. It reads records,
/proc, the GPUs and the broker, and changes nothing. What is broken is said in a line each, with the number of
the promise; exit status 1 where anything is.

	python3 tests/promises.py [--state-dir DIR] [--runtime-dir DIR] [--sim-dir DIR] [--patience SECONDS]

The directories are those of the environment or the defaults. "At rest": no command is under way. What ends by
itself a little later (an idle shim, a cancelled copy) has as long as --patience says."""

import argparse
import fcntl
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

ALIVE = ("running", "suspended")
UNDER_WAY = ("suspending", "resuming", "checkpointing", "restoring")
PROGRAMS = ("brumate-shim", "brumate-keeper", "brumate-broker", "brumate-init", "brumated", "brumate", "criu")
JOB_FILES = {"job.json", "last.json", "counts.json", "turns", "parked.json", "shim.sock", "shim.lock", "shim.log", "keeper.sock", "keeper.lock", "job.json.spare", "dump.log", "criu", "asked",
             "restore.log", "namespace-status", "log.marks", "stats-dump", "stats-restore"}  # the last two are CRIU's


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_text(path):
    return read_bytes(path).decode(errors="replace")


def read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def names_in(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def is_locked(path):
    """Whether somebody holds a lock on this file or directory."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


@dataclass
class Process:
    pid: int
    start: int
    parent: int
    comm: str
    command: str
    environment: bytes

    @property
    def is_init(self):
        """The init of a job's pid namespace is forked from the shim, and has its command line."""
        return self.comm == "brumate-init"

    @property
    def program(self):
        """Which of our programs it is; None for any other."""
        if self.is_init:
            return "brumate-init"
        if self.comm == "brumate-tty":  # likewise
            return self.comm
        words = self.command.split(" ")
        name = os.path.basename(words[0])
        if name == "criu" or "swrk" in words:
            return "criu"
        return name if name in PROGRAMS else None

    def descriptors(self):
        """(link, device and inode) of each descriptor."""
        found = []
        for fd in names_in(f"/proc/{self.pid}/fd"):
            path = f"/proc/{self.pid}/fd/{fd}"
            try:
                st = os.stat(path)
                found.append((os.readlink(path), (st.st_dev, st.st_ino)))
            except OSError:
                continue
        return found

    def __str__(self):
        return f"process {self.pid} ({self.command[:80] or self.comm})"


def read_process(pid):
    """The process; None where there is none, or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, tail = file.read().rsplit(")", 1)
    except OSError:
        return None
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    command = read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(int(pid), int(fields[19]), int(fields[1]), head.split("(", 1)[1], command,
                   read_bytes(f"/proc/{pid}/environ"))


@dataclass
class Places:
    """Where an instance lives, and what of its environment is somebody else's."""
    state: str
    runtime: str
    simulated: str = None  # directory of the simulated GPUs; None: they are real
    stores: tuple = ()  # besides those that the records name
    apart: tuple = ()  # processes, with their descendants, that are no business of brumate
    except_for: tuple = ()  # numbers of promises that are not looked at
    idle_shims: bool = False  # the shim of a job that has ended may still be there, as it is for some seconds

    def job_dir(self, job):
        return os.path.join(self.state, "jobs", job)


@dataclass
class Job:
    id: str
    directory: str
    record: dict
    table: dict  # parked.json; None: nothing is in its vault
    has_shim: bool  # a shim holds its lock
    root: Process  # None: it has ended
    tree: set = field(default_factory=set)

    @property
    def state(self):
        """As `ps` shows it: the record's word, but for a job that ended with its shim."""
        said = self.record["state"]
        if self.root or self.has_shim or said not in ALIVE + UNDER_WAY:
            return said
        image = (self.record.get("op") or {}).get("image")
        saved = said == "restoring" or (said == "checkpointing" and isinstance(image, str) and os.path.isdir(image))
        return "checkpointed" if saved else "lost"

    def __str__(self):
        return f"job {self.id} ({self.record['name']}, {self.state})"


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


class Look:
    """What is there at one moment."""

    def __init__(self, places):
        self.places = places
        self.broken = []
        self.all = {p.pid: p for p in map(read_process, filter(str.isdigit, names_in("/proc"))) if p}
        self.children = {}
        for process in self.all.values():
            self.children.setdefault(process.parent, []).append(process.pid)
        self.boot = read_text("/proc/sys/kernel/random/boot_id").strip()
        self.jobs = {}
        for name in names_in(os.path.join(places.state, "jobs")):
            self._read_job(name)
        self.apart = set().union(*map(self.below, places.apart))
        self.ours = {pid: p for pid, p in self.all.items() if self._is_ours(p)}

    def says(self, number, text):
        if number not in self.places.except_for:
            self.broken.append(f"promise {number}: {text}")

    def below(self, pid):
        """The process and all its descendants."""
        found, todo = set(), [pid]
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                todo += self.children.get(pid, [])
        return found

    def _read_job(self, name):
        if not re.fullmatch("[0-9a-f]{8}", name):
            return
        directory = self.places.job_dir(name)
        record = read_json(os.path.join(directory, "job.json"))
        if not isinstance(record, dict) or "state" not in record or record.get("id") != name:
            if os.path.isdir(directory):
                self.says(6, f"{directory} has no record that can be read")
            return
        root = self.all.get((record.get("root") or {}).get("pid"))
        if root and (root.start != record["root"]["start"] or record["boot_id"] != self.boot):
            root = None
        job = Job(name, directory, record, read_json(os.path.join(directory, "parked.json")),
                  is_locked(os.path.join(directory, "shim.lock")), root)
        job.tree = self.below(root.pid) if root else set()
        self.jobs[name] = job

    def _is_ours(self, process):
        """Our programs of this instance and all that they have started. CRIU gets no environment, but has
        something of a job or a checkpoint open."""
        if process.pid in self.apart or process.pid == os.getpid():
            return False
        state, runtime = self.places.state.encode(), self.places.runtime.encode()
        if b"BRUMATE_STATE_DIR=" + state + b"\0" in process.environment:
            return True
        if b"BRUMATE_AGENT_DIR=" + runtime + b"/agents/" in process.environment:
            return True
        if self.places.job_dir("") in process.command + "/":
            return True
        if process.program not in ("criu", "brumate-keeper"):
            return False
        return any(link.startswith(self.places.state + "/") for link, _ in process.descriptors())

    def job_of(self, process):
        """The id of the job that a process is or was of, as far as it can be told."""
        for job in self.jobs.values():
            if process.pid in job.tree:
                return job.id
        found = re.search(rb"BRUMATE_AGENT_DIR=[^\0]*/agents/([0-9a-f]{8})\0", process.environment)
        return found.group(1).decode() if found else None

    def of_program(self, name):
        return [p for p in self.ours.values() if p.program == name]

    def shims(self, job):
        return [p for p in self.of_program("brumate-shim") if p.command.endswith(job.directory)]

    def keepers(self, job):
        log = os.path.join(job.directory, "shim.log")
        return [p for p in self.of_program("brumate-keeper") if any(link == log for link, _ in p.descriptors())]


# ---- what the promises say, each by its number ----

def check_records(look):
    """1: the record is true."""
    for job in look.jobs.values():
        if job.state in ALIVE and not job.root:
            look.says(1, f"{job}, but its process {job.record.get('root')} is not there")
        if job.state not in ALIVE + UNDER_WAY and job.root:
            look.says(1, f"{job}, but {job.root} lives")
        if job.state == "checkpointed" and not job.record.get("checkpoint"):
            look.says(1, f"{job} names no checkpoint")


def is_sole_copy(job):
    return job.table and not job.table.get("kept") and bool(job.table.get("pieces"))


def held_by(process):
    """What a shim or keeper may hold of a vault: files in memory, on a disk, on a GPU."""
    return [which for link, which in process.descriptors()
            if not link.startswith(("socket:", "pipe:", "anon_inode:[", "/dev/null")) and
            not re.search(r"/(shim|keeper)\.(log|lock)$", link)]


def check_copies(look):
    """2: what is the only copy of a job's memory is held by two processes, shim and keeper."""
    for job in look.jobs.values():
        if not is_sole_copy(job) or job.state != "suspended":
            continue
        copy = job.table.get("copy")
        wanted = copy["segments"] if copy else len(job.table["pieces"])
        holders = [("shim", look.shims(job)), ("keeper", look.keepers(job))]
        for who, processes in holders:
            if len(processes) != 1:
                look.says(2, f"{job}: it has {len(processes)} {who}s, and {wanted} files are its only copy")
        if all(len(processes) == 1 for _, processes in holders):
            shim, keeper = (held_by(processes[0]) for _, processes in holders)
            twice = sum(1 for which in keeper if which in shim)
            if twice < wanted:
                look.says(2, f"{job}: of {wanted} files that are its only copy shim and keeper both hold {twice}")


def check_under_way(look):
    """3: no state without its operation."""
    for job in look.jobs.values():
        if job.state in UNDER_WAY:
            look.says(3, f"{job}, and nothing is under way" + ("" if job.has_shim else "; it has no shim"))
        elif job.record.get("op"):
            look.says(3, f"{job}, but its record still has the operation {job.record['op'].get('kind')}")


def check_processes(look):
    """4: no process outside a tree. Members of a living job descend from its root."""
    inside = set().union(*(job.tree for job in look.jobs.values()))
    for process in look.ours.values():
        if process.program or process.pid in inside:
            continue
        job = look.jobs.get(look.job_of(process))
        look.says(4, f"{process}, child of {process.parent}, is in no job's tree" + (f"; it was of {job}" if job else ""))
    for job in look.jobs.values():
        for pid in job.tree:
            tracer = re.search(r"^TracerPid:\s+([1-9]\d*)", read_text(f"/proc/{pid}/status"), re.MULTILINE)
            if tracer and look.all.get(int(tracer.group(1)), look.all[pid]).program == "criu":
                look.says(4, f"{job}: CRIU still holds process {pid}")


def gpu_memory(look, process):
    """What the process holds of the simulated GPUs."""
    prefix = look.places.simulated + "/gpu"
    maps = re.findall(r"^\S+ \S+ \S+ \S+ \S+\s+(\S+)", read_text(f"/proc/{process.pid}/maps"), re.MULTILINE)
    return {path for path in maps + [link for link, _ in process.descriptors()]
            if path.startswith(prefix) and not os.path.basename(path).startswith(".")}


def who_is_on_gpus(look):
    """{process: how much it holds, in words} of ours."""
    if look.places.simulated:
        found = {p.pid: gpu_memory(look, p) for p in look.ours.values()}
        return {pid: f"{len(held)} allocations" for pid, held in found.items() if held}
    if not shutil.which("nvidia-smi"):
        return {}
    done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60, check=False)
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 1]
    return {int(pid): used for pid, used in rows if int(pid) in look.ours}


def check_gpus(look):
    """5: nothing left on a GPU."""
    parked = [job for job in look.jobs.values() if is_sole_copy(job) and not job.table.get("copy")]
    may = {pid for job in look.jobs.values() if job.state == "running" for pid in job.tree}
    may |= {p.pid for p in look.of_program("brumate-broker")}
    may |= {p.pid for job in parked for p in look.shims(job) + look.keepers(job)}
    for pid, held in who_is_on_gpus(look).items():
        if pid not in may:
            job = look.jobs.get(look.job_of(look.ours[pid]))
            look.says(5, f"{look.ours[pid]} holds device memory ({held})" + (f" of {job}" if job else ""))


def stores_of(look):
    stores = {os.path.join(look.places.state, "checkpoints"), *look.places.stores}
    for job in look.jobs.values():
        if isinstance(job.record.get("checkpoint_path"), str):
            stores.add(os.path.dirname(job.record["checkpoint_path"]))
    return stores


def check_files(look):
    """6: nothing half made."""
    places = look.places
    for name in names_in(places.state):
        if ".tmp." in name:
            look.says(6, f"{places.state}/{name} is left")
    for job in look.jobs.values():
        for name in set(names_in(job.directory)) - JOB_FILES:
            look.says(6, f"{job.directory}/{name} is left")
    for store in stores_of(look):
        sets = os.path.join(store, ".sets")
        for name in names_in(sets) if os.path.isdir(sets) else ():
            if name.startswith(".") and not is_locked(os.path.join(sets, name)):
                look.says(6, f"{sets}/{name} is left, and nobody works on it")
        for name in names_in(store):
            if name.startswith(".") and name != ".sets" and not is_locked(os.path.join(store, name)):
                look.says(6, f"{store}/{name} is left, and nobody works on it")
    agents = os.path.join(places.runtime, "agents")
    for name in names_in(agents):
        copy = look.jobs.get(read_link(os.path.join(agents, name)))  # whose processes were started as that job
        if name not in look.jobs and not (copy and copy.record.get("started_as") == name):
            look.says(6, f"{agents}/{name} is left of a job that is gone")


def ask(path, method):
    """The answer of a varlink service; None where nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as s:
            s.settimeout(5)
            s.connect(path)
            s.sendall(json.dumps({"method": method}).encode() + b"\0")
            answer = b""
            while not answer.endswith(b"\0"):
                more = s.recv(65536)
                if not more:
                    return None
                answer += more
            return json.loads(answer[:-1]).get("parameters")
    except (OSError, ValueError):
        return None


def files_of_copies(process):
    return [link for link, _ in process.descriptors() if link.startswith(("/memfd:brumate-segment", "/memfd:brumate-digests"))]


def check_host_memory(look):
    """7: no host memory held by nobody."""
    for job in look.jobs.values():
        if job.table:
            continue
        for process in look.shims(job) + look.keepers(job):
            held = files_of_copies(process)
            if held:
                look.says(7, f"{process} of {job} holds {len(held)} files of a host copy that no table names")
    if any(job.table for job in look.jobs.values()):
        return
    broker = "broker-simulated.sock" if look.places.simulated else "broker.sock"
    info = ask(os.path.join(look.places.runtime, broker), "io.brumate.broker.Info")
    if info and info.get("pool", {}).get("leased_bytes"):  # one without a driver has no pool
        holders = [str(process) for process in look.all.values() if files_of_copies(process)]
        look.says(7, f"the broker has {info['pool']['leased_bytes']} bytes on lease, and no job has a host copy; such files are held by {holders}")


def check_programs(look):
    """8: our programs end with what they are for."""
    for name in ("brumate-shim", "brumate-keeper"):
        owners = {}
        for job in look.jobs.values():
            for process in look.shims(job) if name == "brumate-shim" else look.keepers(job):
                owners[process.pid] = job
        for process in look.of_program(name):
            if process.pid not in owners:
                look.says(8, f"{process} serves a job that is gone")
        for job in look.jobs.values():
            n = [pid for pid, owner in owners.items() if owner is job]
            if len(n) > 1:
                look.says(8, f"{job} has {len(n)} of {name}: {n}")
            idle = name == "brumate-shim" and look.places.idle_shims
            if n and not job.root and job.state not in UNDER_WAY and not idle:
                look.says(8, f"{name} {n[0]} goes on though {job} has ended")
            if n and name == "brumate-keeper" and not job.table and not job.record.get("schedule"):
                look.says(8, f"{name} {n[0]} of {job} keeps nothing")
    for process in look.of_program("criu"):
        look.says(8, f"{process} is left")
    for process in look.of_program("brumate-init"):
        if not any(process.pid in self_and_parents(look, job.root) for job in look.jobs.values() if job.root):
            look.says(8, f"{process} is the init of a job that is gone")


def self_and_parents(look, process):
    found = set()
    while process and process.pid not in found:
        found.add(process.pid)
        process = look.all.get(process.parent)
    return found


CHECKS = (check_records, check_copies, check_under_way, check_processes, check_gpus, check_files, check_host_memory,
          check_programs)


def broken_now(places):
    """What is broken at this moment, a line each."""
    look = Look(places)
    for check in CHECKS:
        check(look)
    return look.broken


def broken(places, patience_s=10):
    """What is broken and stays so for as long as @patience_s."""
    deadline = time.monotonic() + patience_s
    pause = 0.02
    while True:
        lines = broken_now(places)
        if not lines or time.monotonic() > deadline:
            return lines
        select.select([], [], [], pause)
        pause = min(pause * 2, 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    get = os.environ.get
    parser.add_argument("--state-dir", default=get("BRUMATE_STATE_DIR", "/var/lib/brumate"))
    parser.add_argument("--runtime-dir", default=get("BRUMATE_RUNTIME_DIR", "/run/brumate"))
    parser.add_argument("--sim-dir", default=get("BRUMATE_SIM_DIR"), help="the simulated GPUs (default: real ones)")
    parser.add_argument("--patience", type=float, default=10, metavar="SECONDS")
    args = parser.parse_args()
    lines = broken(Places(args.state_dir, args.runtime_dir, args.sim_dir), args.patience)
    print("\n".join(lines) or "all promises hold")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
