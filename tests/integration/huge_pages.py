#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs with huge pages of their own. How many there are is the whole machine's: no other test may run
beside these, since its broker would take them for its pool."""

import contextlib
import json
import os
import re

from cases import MIB, Skipped, case, expect, main, read_text
from checkpoints import back_and_forth, image

HUGE_PAGE = 2 * MIB
HUGE_POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
HUGE_JOB = f"""
import mmap, time
private, shared = (mmap.mmap(-1, n * {HUGE_PAGE}, how | mmap.MAP_ANONYMOUS | 0x40000)
                   for n, how in ((2, mmap.MAP_PRIVATE), (1, mmap.MAP_SHARED)))
private[:4], shared[-4:] = b"mine", b"ours"
print("ready now")
for step in range(1, 1 << 30):
    print("step", step, "OK" if private[:4] == b"mine" and shared[-4:] == b"ours" else "BAD", flush=True)
    time.sleep(0.01)
"""


def huge_pages(name, value=None):
    with open(f"{HUGE_POOL}/{name}", "r+" if value is not None else "r", encoding="ascii") as file:
        if value is not None:
            file.write(str(value))
            file.flush()
        file.seek(0)
        return int(file.read())


@contextlib.contextmanager
def set_aside(n):
    """So many free huge pages (fewer than brumate's own pool would take), and what changes that number."""
    if not os.path.isdir(HUGE_POOL) or huge_pages("nr_overcommit_hugepages"):
        raise Skipped("no huge pages of 2 MiB, or as many as memory has")
    if not os.access(f"{HUGE_POOL}/nr_hugepages", os.W_OK):
        raise Skipped("how many huge pages there are cannot be changed here")
    # Without those that a broker, which is ending, still has of a test before: they go with it.
    before = huge_pages("nr_hugepages") - huge_pages("surplus_hugepages")

    def free(count):
        used = huge_pages("nr_hugepages") - huge_pages("free_hugepages") + huge_pages("resv_hugepages")
        huge_pages("nr_hugepages", used + count)
        return huge_pages("free_hugepages") - huge_pages("resv_hugepages") == count

    try:
        if not free(n):
            raise Skipped(f"{n} huge pages cannot be set aside")
        yield free
    finally:
        huge_pages("nr_hugepages", before)


def hierarchy_with_hugetlb():
    """Where cgroups of version 2 are mounted that can limit huge pages."""
    with open("/proc/self/mounts", encoding="ascii", errors="replace") as file:
        mounts = [line.split() for line in file]
    for _, path, kind, *_ in mounts:
        if kind == "cgroup2" and "hugetlb" in read_text(f"{path}/cgroup.controllers").split():
            return path
    raise Skipped("no cgroups of version 2 that limit huge pages")


def write_text(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(str(text))


@contextlib.contextmanager
def cgroup_with_huge_pages(limit):
    """This process and all it starts may have so many bytes of huge pages; the cgroup's folder."""
    root = hierarchy_with_hugetlb()
    folder, switch = f"{root}/brumate-test-{os.getpid()}", f"{root}/cgroup.subtree_control"
    had, place = "hugetlb" in read_text(switch).split(), re.search(r"^0::(.*)$", read_text("/proc/self/cgroup"), re.M)[1]
    try:
        write_text(switch, "+hugetlb")
        os.mkdir(folder)
    except OSError as error:
        raise Skipped(f"no cgroup can be made here: {error}") from error
    try:
        write_text(f"{folder}/hugetlb.2MB.max", limit)
        write_text(f"{folder}/cgroup.procs", os.getpid())
        yield folder
    finally:
        for pid in read_text(f"{folder}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                write_text(f"{root}{place}/cgroup.procs", pid)
        os.rmdir(folder)
        if not had:
            write_text(switch, "-hugetlb")


@case
def huge_pages_that_are_refused(bed):
    """A limit of the broker's cgroup counts when pages are touched, not when they are set aside."""
    with set_aside(40), cgroup_with_huge_pages(16 * MIB) as cgroup:
        job, log = bed.counter(mib=64)
        for _ in range(2):
            summary = bed.operation("suspend", job)
            expect(summary["data_bytes"] >= 64 * MIB and not summary["notes"], f"the data went another way: {summary}")
            bed.operation("resume", job)
            log.goes_on()
        refused = int(re.search(r"^max (\d+)$", read_text(f"{cgroup}/hugetlb.2MB.events"), re.M)[1])
        expect(refused > 0, "no page was refused")
        bed.ok("kill", job)


@case
def huge_pages_come_back(bed):
    """Shared ones and private ones."""
    with set_aside(24):
        back_and_forth(bed, *bed.started([bed.program("shared"), "huge", "--mib", 8]))


@case
def huge_pages_are_asked_for_first(bed):
    with set_aside(3) as free:
        job, log = bed.python(HUGE_JOB)
        log.goes_on()
        expect(free(1), "no page for CRIU, which maps one to know their device by")
        bed.ok("checkpoint", "--name", "huge", job)
        with open(os.path.join(image(bed, "huge"), "manifest.json"), encoding="utf-8") as file:
            told = json.load(file)["huge_pages"]
        expect(told == [{"page_bytes": HUGE_PAGE, "bytes": 3 * HUGE_PAGE}], f"the manifest tells of {told}")
        expect(free(2), "pages of the job are not free")
        refused = bed.refused(1, "the job needs 3 huge pages of 2048 kB, 2 can be had here", "restore", job)
        hint = re.search(r"hint: echo (\d+) > (\S+)", refused.err)
        expect(hint, f"no hint: {refused.err}")
        bed.expect_state(job, "checkpointed")
        with open(hint.group(2), "w", encoding="ascii") as file:
            file.write(hint.group(1))
        bed.ok("restore", job)
        log.goes_on()
        bed.ok("kill", job)


main()
