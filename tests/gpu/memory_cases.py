# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about memory of the CPU: how fast it is saved and comes back beside CRIU, against
CRIU alone, in one run. Figures are told, not judged: they are the machine's."""

import json
import os
import tempfile

from harness import Skipped, expect, run

SHM = "/dev/shm"
DISK = "/tmp"
RUN_S = 240


def bench(check, folder, mib, *more, cpus=None):
    """The last round of tests/bench/host-memory.c: a dict of ways."""
    program = check.program("bench-host-memory")
    libexec = os.path.join(check.build.path, "src")
    argv = ["taskset", "-c", cpus] if cpus else []
    env = {**check.build.environment(os.environ), "BRUMATE_LIBEXEC_DIR": libexec}
    with tempfile.TemporaryDirectory(prefix="brumate-bench-", dir=folder) as place:
        result = run([*argv, program, place, str(mib), *more], env=env, timeout=RUN_S)
    print(result.out, end="")
    expect(result.code == 0, result.why())
    lines = [line for line in result.out.splitlines() if line.startswith("{")]
    expect(lines, f"no figures: {result.why()}")
    return json.loads(lines[-1])


def tell(check, what, ways):
    alone = ways["criu"]
    check.measured[f"CPU memory, {what}: CRIU alone, dump / restore, s"] = f"{alone['dump']} / {alone['restore']}"
    for name in ("copy", "in place"):
        way = ways[name]
        check.measured[f"CPU memory, {what}: {name}, dump / restore, s"] = f"{way['dump']} / {way['restore']}"
        check.measured[f"CPU memory, {what}: {name}, times CRIU's speed, dump / restore"] = \
            f"{alone['dump'] / way['dump']:.2f} / {alone['restore'] / way['restore']:.2f}"
    check.measured[f"CPU memory, {what}: copy, frozen / fill, s; part in huge pages"] = \
        f"{ways['copy']['copy']} / {ways['copy']['fill']}; {ways['copy']['huge']:.2f}"


def room_mib(folder):
    """The largest power of two that leaves room for the memory, its copy and its image; at most 4096."""
    stat = os.statvfs(folder)
    with open("/proc/meminfo", encoding="ascii") as file:
        free = int(file.read().split("MemAvailable:")[1].split()[0]) >> 10
    least = min(free, (stat.f_bavail * stat.f_frsize) >> 20)
    mib = 4096
    while mib > 256 and least < 4 * mib:
        mib //= 2
    return mib


def memory_in_shm(check):
    if not os.path.isdir(SHM):
        raise Skipped(f"no {SHM}")
    mib = room_mib(SHM)
    cores = sorted(os.sched_getaffinity(0))
    tell(check, f"{mib} MiB, tmpfs, {len(cores)} cores", bench(check, SHM, mib, "2"))
    mib //= 2
    tell(check, f"{mib} MiB, tmpfs, {len(cores)} cores, small pages", bench(check, SHM, mib, "1", "small"))


def memory_on_two_cores(check):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= 2:
        raise Skipped("no more than two cores")
    mib = min(room_mib(SHM), 2048)
    two = f"{cores[0]},{cores[1]}"
    tell(check, f"{mib} MiB, tmpfs, 2 cores", bench(check, SHM, mib, "1", cpus=two))


def memory_on_disk(check):
    mib = min(room_mib(DISK), 2048)
    tell(check, f"{mib} MiB, disk", bench(check, DISK, mib, "1"))


def register(case):
    """Adds the cases to gpu-check's list."""
    case("bench: CPU memory beside CRIU, tmpfs")(memory_in_shm)
    case("bench: CPU memory beside CRIU, two cores")(memory_on_two_cores)
    case("bench: CPU memory beside CRIU, disk")(memory_on_disk)
