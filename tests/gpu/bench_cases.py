# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check that measure: what `brumate bench` does at many sizes, to host memory, disk and
tmpfs; beside it what fio gets out of the same disk, and what CRIU and the driver take without brumate."""

import ctypes
import json
import os
import re
import shutil
import signal
import tempfile

from downtime_cases import Job
from harness import SOURCE, Failed, Log, Skipped, expect, process_start, run
from memory_watch import MemoryWatch

GIB = 1 << 30
BESIDE_GIB = 6  # of memory, beside what a case says it needs
FIO_GIB = 16
READY_S = 180  # a program that loads PyTorch takes its time
PR_SET_THP_DISABLE = 41


def available_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(re.search(r"^MemAvailable: +(\d+) kB", file.read(), re.MULTILINE)[1]) / (1 << 20)


def free_gib(folder):
    fs = os.statvfs(folder)
    return fs.f_bavail * fs.f_frsize / GIB


def need_room(check, gpu=0, memory=0, folder=None, disk=0, either=0):
    """Skips the case where the machine is too small for it: GiB on a GPU, of host memory, in @folder; and
    of host memory and @folder together."""
    if check.options.simulated:
        return
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    card = int(run(query, timeout=30).out.split()[0]) / 1024
    if card < gpu:
        raise Skipped(f"needs a GPU of {gpu} GiB, it has {card:.0f}")
    host, room = available_gib(), free_gib(folder) if folder else 0
    if host < memory + BESIDE_GIB:
        raise Skipped(f"needs {memory + BESIDE_GIB} GiB of host memory, {host:.0f} are available")
    if room < disk:
        raise Skipped(f"needs {disk} GiB in {folder}, {room:.0f} are free")
    if either and host + room < either + 2 * BESIDE_GIB:
        raise Skipped(f"needs {either} GiB of host memory and disk, {host + room:.0f} are available")


# fio, which comes with tools/gpu-bundle or is installed.

def find_fio(check):
    try:
        return check.program("fio")
    except Failed:
        local = os.path.join(SOURCE, ".fio", "fio")
        return local if os.path.exists(local) else shutil.which("fio")


def fio_way(check, fio, way, file, size):
    # io_uring as it is, but for the last line: what is written counts when it is on the disk.
    argv = [fio, f"--name={way}", f"--rw={way}", f"--filename={file}", f"--size={size}", "--bs=2M", "--iodepth=32",
            "--ioengine=io_uring", "--direct=1", "--output-format=json", "--end_fsync=1"]
    result = run(argv, env=check.instance.command_env(), timeout=240)
    expect(result.code == 0, result.why())
    job = json.loads(result.out[result.out.index("{"):])["jobs"][0]
    expect(not job["error"], f"fio: error {job['error']}")
    return job[way]["bw_bytes"] / 1e9


def fio_limits(check, folder):
    """GB/s that fio writes and reads there, past the page cache; nothing where there is no fio."""
    fio = find_fio(check)
    if not fio:
        check.measured["fio"] = "not here: tools/fio-provision builds one"
        return {}
    file = os.path.join(folder, ".fio")
    size = "64M" if check.options.simulated else f"{FIO_GIB}G"
    try:
        return {f"fio_{way}_gbps": fio_way(check, fio, way, file, size) for way in ("write", "read")}
    finally:
        if os.path.exists(file):
            os.unlink(file)


# `brumate bench`.

def set_broker(check, pool, idle):
    pool = "256M" if check.options.simulated else pool
    with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Broker]\nPool={pool}\nIdleTimeout={idle}\n")


def keep_report(check, name, report):
    with open(os.path.join(check.options.out, f"bench-{name}.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    for entry in report["results"]:
        stored = entry["summary"]["image_bytes"]
        expect(entry["operation"] != "checkpoint" or stored > 0.8 * entry["bytes"],
               f"of {entry['bytes']} random bytes {stored} were stored")
        key = f"bench {name}: {entry['operation']} by {entry['path']}, round {entry['round']}"
        check.measured[f"{key}, GB/s"] = round(entry["gbps"], 2)
        check.measured[f"{key}, s"] = round(entry["until_beat_s"] or entry["seconds"], 3)
    for limit, value in report["limits"].items():
        check.measured[f"bench {name}: {limit}"] = round(value, 2)


def smaller(args):
    """The same for a simulated GPU."""
    replaced = {"--size": "256M", "--pieces": "1M-16M"}
    return [replaced.get(args[i - 1], arg) if i else arg for i, arg in enumerate(args)]


def bench(check, name, *args, pool, limits=None, timeout=300):
    """Runs `brumate bench` with that pool and keeps its report beside the results."""
    with MemoryWatch(check.instance) as memory:
        report = run_bench(check, args, pool, timeout)
    memory.tell(check, f"bench {name}")
    report["limits"].update(limits or {})
    keep_report(check, name, report)
    return report


def run_bench(check, args, pool, timeout, idle="60s"):
    set_broker(check, pool, idle)
    if check.options.simulated:
        args = smaller(args)
    if "--dir" not in args:
        args = (*args, "--no-checkpoint")
    return json.loads(check.instance.ok("bench", "--format", "json", *args, timeout=timeout).out)


def bench_apart(check, name, *args, pool, limits=None):
    """As bench(), both paths, but the broker's pool is gone before the driver takes the memory."""
    with MemoryWatch(check.instance) as memory:
        report = run_bench(check, (*args, "--data-path", "broker"), pool, 300, idle="5s")
    memory.tell(check, f"bench {name}")
    left = check.instance.wait_gone(apart=(), seconds=60)
    expect(not left, f"still there when all was idle: {left}")
    other = run_bench(check, (*args, "--data-path", "driver"), "1G", 420)
    report["limits"].update(limits or {})
    report["results"] += other["results"]
    keep_report(check, name, report)


def in_memory(check):
    """A folder of a file system in memory, removed with the case."""
    return tempfile.mkdtemp(prefix="brumate-bench-", dir="/dev/shm")


def without_huge_pages(check):
    """With transparent huge pages off in all that is started meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(on):
        expect(libc.prctl(PR_SET_THP_DISABLE, on, 0, 0, 0) == 0, f"prctl: {os.strerror(ctypes.get_errno())}")

    prctl(1)
    try:
        bench(check, "plain-pages", "--size", "16G", "--pieces", "64M-1G", "--rounds", "2", pool="24G")
    finally:
        prctl(0)


def headline(check):
    bench(check, "32g", "--size", "32G", "--pieces", "64M-1G", "--rounds", "2", "--trace",
          os.path.join(check.options.out, "bench-32g-trace.json"), pool="40G")


def many_small(check):
    bench(check, "small", "--size", "10000M", "--pieces", "1M", "--rounds", "2", "--data-path", "broker", pool="16G")


def larger_than_pool(check, name, gib, pool_gib):
    """What does not fit into host memory goes to the disk."""
    need_room(check, gpu=gib + 2, memory=pool_gib, folder=check.instance.dir, either=gib)
    report = bench(check, name, "--size", f"{gib}G", "--pieces", "1G", "--rounds", "1", "--data-path", "broker",
                   pool=f"{pool_gib}G", timeout=420)
    to_disk = max(entry["summary"]["disk_bytes"] for entry in report["results"])
    check.measured[f"bench {name}: of it to the disk, GB"] = round(to_disk / 1e9, 1)


def to_disk(check, name, gib, memory, measure=bench):
    folder = os.path.join(check.instance.dir, "bench")
    os.mkdir(folder)
    need_room(check, gpu=gib + 2, memory=memory, folder=folder, disk=gib + 4)
    limits = fio_limits(check, folder)
    measure(check, name, "--size", f"{gib}G", "--pieces", "64M-1G", "--rounds", "1", "--dir", folder,
            pool=f"{gib + 4}G", limits=limits)


def to_tmpfs(check, name, gib):
    need_room(check, gpu=gib + 2, memory=2 * gib + 4, folder="/dev/shm", disk=gib + 4)
    folder = in_memory(check)
    try:
        bench_apart(check, name, "--size", f"{gib}G", "--pieces", "64M-1G", "--rounds", "1", "--dir", folder,
                    pool=f"{gib + 4}G")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# CRIU and the driver, as they are without brumate.

class Alone:
    """A program that is not a job of ours, and what takes it to an image and back. The driver's calls go by
    way of brumate's broker, one by one, as its own command line tool would make them."""

    def __init__(self, check, folder, argv):
        self.check = check
        self.folder = folder
        self.criu = next((path for path in self.criu_places() if path and os.path.exists(path)), None)
        if not self.criu:
            raise Skipped("no CRIU here")
        self.program = check.instance.start(argv, "alone").ready(READY_S)
        self.pid, self.log = self.program.pid, self.program.log

    def criu_places(self):
        yield os.environ.get("BRUMATE_CRIU")
        for folder in (self.check.build.path, os.path.join(SOURCE, ".criu")):
            yield os.path.join(folder, "criu", "criu")
            yield os.path.join(folder, "criu")
        yield shutil.which("criu")

    def driver(self, *actions):
        seconds = 0.0
        for action in actions:
            result = run(["cuda-checkpoint", "--pid", self.pid, "--action", action],
                         executable=self.check.instance.brumate, env=self.check.instance.command_env(), timeout=240)
            expect(result.code == 0, result.why())
            seconds += result.seconds
        return seconds

    def run_criu(self, verb, *args):
        result = run([self.criu, verb, "-D", self.folder, "-o", f"{verb}.log", "-v2", "--libdir", self.folder,
                      "--manage-cgroups=ignore", "--file-locks", "--link-remap", "--ghost-limit", "4294967295",
                      *args], timeout=400)
        expect(result.code == 0, f"{result.why()}; {Log(os.path.join(self.folder, f'{verb}.log')).tail(6)}")
        return result.seconds

    def put_away(self):
        """On disk, and ended: the seconds of the driver and of CRIU."""
        out = self.driver("lock", "checkpoint")
        dump = self.run_criu("dump", "--tree", str(self.pid))
        self.program.wait()
        return out, dump

    def bring_back(self):
        restore = self.run_criu("restore", "--restore-detached")
        return self.driver("restore", "unlock"), restore

    def end(self):
        if process_start(self.pid) is not None:
            os.kill(self.pid, signal.SIGKILL)


def see_data(job):
    """A bench-job checks all of its data."""
    seen = len(re.findall(r"^check \w+$", job.log.text(), re.MULTILINE))
    os.kill(job.pid, signal.SIGUSR1)
    answer = job.log.wait_until(lambda text: re.findall(r"^check (\w+)$", text, re.MULTILINE)[seen:],
                                "the check of the data", 60)
    expect(answer == ["OK"], "the data is wrong")


def alone(check, name, folder, memory):
    """What a checkpoint and a restore take without brumate, for the job of the case beside."""
    need_room(check, gpu=42, memory=memory, folder=folder, disk=44)
    mib = 256 if check.options.simulated else 40960
    pieces = "1024-16384" if check.options.simulated else "65536-1048576"
    job = Alone(check, folder, [check.program("bench-job"), "--mib", mib, "--piece-kib", pieces])
    try:
        out, dump = job.put_away()
        back, restore = job.bring_back()
        see_data(job)
    finally:
        job.end()
    for verb, driver, criu in (("checkpoint", out, dump), ("restore", back, restore)):
        check.measured[f"CRIU and the driver alone, {name}: {verb}, s"] = round(driver + criu, 3)
        check.measured[f"CRIU and the driver alone, {name}: {verb}, driver / CRIU, s"] = f"{driver:.3f} / {criu:.3f}"


def alone_to_tmpfs(check):
    folder = in_memory(check)
    try:
        alone(check, "40 GiB to tmpfs", folder, memory=84)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def alone_to_disk(check):
    folder = os.path.join(check.instance.dir, "images")
    os.mkdir(folder)
    alone(check, "40 GiB to disk", folder, memory=44)


# A second checkpoint, of which most is there already.

def stored(check, checkpoint):
    """What of it is on the disk and not another's too."""
    return next(entry["disk_bytes"] for entry in check.instance.list("ls", "checkpoints") if entry["id"] == checkpoint)


def second_checkpoint(check, *options):
    what = " ".join(("second checkpoint", *options))
    need_room(check, gpu=18, memory=24, folder=check.instance.dir, disk=20)
    job = Job(check, 16384, 2)
    first = job.do("checkpoint", "--leave-running", *options)
    whole = stored(check, first["checkpoint"])
    job.change()
    second = job.do("checkpoint", "--leave-running", *options)
    job.is_right()
    # What both have is counted with neither.
    written = stored(check, second["checkpoint"])
    check.instance.end(job.id)
    for name, value in (("first, s", first["seconds"]), ("second, s", second["seconds"]),
                        ("downtime, s", second["downtime_s"]),
                        ("bytes of the first, %", written / whole * 100),
                        ("time of the first, %", second["seconds"] / first["seconds"] * 100)):
        check.measured[f"{what}: {name}"] = round(value, 3)
    expect(written < whole / 10, f"{written} bytes were written again, of {whole}")


# What clients of a server wait for.

def servers(check, gib):
    """Two such servers are in host memory at once, and one of them in tmpfs, too."""
    need_room(check, gpu=gib + 2, memory=3 * gib, folder="/dev/shm", disk=gib + 4)
    folder = in_memory(check)
    try:
        set_broker(check, f"{2 * gib + 4}G", "60s")
        args = smaller(["--size", f"{gib}G"]) if check.options.simulated else ["--size", f"{gib}G"]
        report = check.instance.ok("bench", "--serve", "--format", "json", "--rounds", "3", "--dir", folder, *args, timeout=300)
        for key, waited in json.loads(report.out).items():
            if isinstance(waited, dict):
                check.measured[f"servers of {gib} GiB: {key}"] = (f"{waited['first_s']:.3f} s at first, {waited['fastest_s']:.3f} s the fastest of "
                                                                  f"{waited['rounds']}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def register(case):
    """Adds the cases to gpu-check's list."""
    for gib in (12, 36):
        case(f"bench: clients of servers of {gib} GiB")(lambda check, gib=gib: servers(check, gib))
    case("bench: 32 GiB")(headline)
    case("bench: ten thousand 1 MiB buffers")(many_small)
    case("bench: 90 GiB, pool of 16 GiB")(lambda check: larger_than_pool(check, "90g", 90, 16))
    case("bench: 120 GiB, pool of 32 GiB")(lambda check: larger_than_pool(check, "120g", 120, 32))
    case("bench: checkpoint of 16 GiB to disk")(lambda check: to_disk(check, "disk", 16, 36))
    case("bench: 40 GiB to tmpfs")(lambda check: to_tmpfs(check, "40g-tmpfs", 40))
    case("bench: 40 GiB to tmpfs, CRIU and the driver alone")(alone_to_tmpfs)
    case("bench: 40 GiB to disk")(lambda check: to_disk(check, "40g-disk", 40, 48, bench_apart))
    case("bench: 40 GiB to disk, CRIU and the driver alone")(alone_to_disk)
    case("bench: 16 GiB without huge pages")(without_huge_pages)
    case("second checkpoint, 2 % changed")(second_checkpoint)
    case("second checkpoint, 2 % changed, --keep-copy")(lambda check: second_checkpoint(check, "--keep-copy"))
