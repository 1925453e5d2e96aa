#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers with brumate's library that runc checkpoints and restores by itself: device memory goes by the data path, beside
CRIU's images. Programs of the simulated driver run in them."""

import functools
import hashlib
import json
import os
import re
import shutil
import signal

from cases import all_go_on, case, expect, main, numbered_steps, read_text, wait_until
from runc import Container

MIB = 32
COUNTER = f"/bin/counter --mib {MIB} --chunk-mib 16 --interval-ms 20"
MEMORY = "brumate-memory"
RECORD = "brumate-gpus.json"


def size(path, pattern="."):
    return sum(os.stat(os.path.join(base, name)).st_size for base, _, names in os.walk(path) for name in names
               if re.search(pattern, name))


def manifest_of(container):
    return os.path.join(container.image, MEMORY, "manifest.json")


def by_library(container):
    """Bytes of device memory that are in the image by the library, before compression and sharing."""
    return sum(region["len_bytes"] for region in json.loads(read_text(manifest_of(container)))["memory"]["regions"])


def helpers(bed):
    return [p for p in bed.processes() if re.search("brumate-container|brumate-keeper", p[1])]


def settled(bed):
    """Nobody is at work on a container any more, and nothing of it is left outside of it."""
    wait_until(lambda: not helpers(bed), "the end of helper and keeper", 60)
    places = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "containers")
    expect(not os.path.isdir(places) or not os.listdir(places), f"left in {places}: {os.listdir(places)}")


def library(bed, command=f"exec {COUNTER} > /tmp/out", **kinds):
    return Container(bed, command, library=True, **kinds)


def saved(container, mib=MIB):
    """What is in the image is by the library, and nothing is on the GPU."""
    container.saved()
    expect(by_library(container) >= mib << 20, f"only {by_library(container)} bytes went by the library")
    pages = size(container.image, r"^pages-")
    expect(pages < 16 << 20, f"{pages} bytes of memory are in CRIU's images")
    wait_until(lambda: not any(container.bed.vram()), "the GPUs to be empty")
    settled(container.bed)
    container.end()


@case
def there_and_back(bed):
    with library(bed) as container:
        container.start().log().goes_on()
        for _ in range(3):
            saved(container)
            container.restored().log().goes_on()
            settled(bed)


@case
def into_the_same_directory(bed):
    """An image is written over, and an old one of device memory goes with it."""
    with library(bed) as container:
        container.start()
        for _ in range(2):
            expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
            container.log().goes_on()
            settled(bed)
        saved(container)
        container.restored().log().goes_on()


@case
def several_processes(bed):
    """Their agents tell that they share nothing, so nobody has to say so."""
    names = ("one", "two", "three")
    command = " ".join(f"{COUNTER} > /tmp/{name} &" for name in names) + " wait"
    with library(bed, command) as container:
        container.start(names)
        for _ in range(2):
            saved(container, 3 * MIB)
            container.restored()
            for name in names:
                container.log(name).goes_on()


steps = functools.partial(numbered_steps, word="member")
go_on = functools.partial(all_go_on, word="member")


def shares(bed, way):
    """What members share is saved once, and comes back shared."""
    with library(bed, f"exec /bin/partners {way} --port 2 --mib 16 > /tmp/out", programs=("partners",)) as container:
        container.start(())
        log = container.log()
        wait_until(lambda: len(steps(log)) == 2, "first steps of all", 60)
        for _ in range(2):
            saved(container, 16)
            container.restored()
            go_on(log)


@case
def shared_by_descriptors(bed):
    shares(bed, "fd")


@case
def shared_by_ipc(bed):
    shares(bed, "ipc")


@case
def with_and_without_an_agent(bed):
    """The driver saves those that have none, into their own memory."""
    command = f"{COUNTER} > /tmp/one & LD_PRELOAD= CUDA_INJECTION64_PATH= {COUNTER} --gpu 1 > /tmp/two & wait"
    with library(bed, command) as container:
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write("[Container]\nForce=yes\n")
        container.start(("one", "two"))
        container.saved().end()
        pages = size(container.image, r"^pages-")
        expect(by_library(container) >= MIB << 20, f"only {by_library(container)} bytes went by the library")
        expect(pages >= MIB << 20, f"only {pages} bytes are in CRIU's images")
        container.restored()
        for name in ("one", "two"):
            container.log(name).goes_on()


# ---- failures ----

SAVE_POINTS = ("container.image.end", "container.gate.end", "container.park.begin", "container.park.end", "container.copy.end",
               "container.unmap.end", "container.gpu-lock.end", "container.gpu-checkpoint.end", "container.check",
               "container.finish", "container.record.end")


def fails_and_goes_on(container, point, action, reason=None):
    bed = container.bed
    bed.fault(point, action)
    expect(container.checkpoint() != 0, f"{point} {action}: the checkpoint did not fail")
    expect(not os.path.exists(bed.fault_file), f"{point} was not reached")
    if reason:
        expect(re.search(reason, container.dump_log()), f"{point} {action}: {container.reason('dump.log')}")
    expect(container.state() == "running", f"{point} {action}: the container is {container.state()}")
    container.log().goes_on(1)
    settled(bed)
    shutil.rmtree(container.image)


def survives(bed, action, points, reason=None):
    with library(bed) as container:
        container.start()
        for point in points:
            fails_and_goes_on(container, point, action, reason and reason(point))
        saved(container)
        container.restored().log().goes_on()


@case
def errors_of_a_checkpoint(bed):
    survives(bed, "error:5", SAVE_POINTS, lambda point: f"brumate: .*{re.escape(point)}")


@case
def helper_killed_at_a_checkpoint(bed):
    survives(bed, "kill", SAVE_POINTS, lambda _: "brumate-container has ended")


@case
def criu_killed_at_a_checkpoint(bed):
    survives(bed, "kill:criu", SAVE_POINTS)


main()
