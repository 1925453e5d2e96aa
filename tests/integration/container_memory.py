#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers with brumate's library that runc checkpoints and restores by itself: device memory goes by the data path, beside
CRIU's images. Programs of the simulated driver run in them."""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import time

from cases import all_go_on, case, children, expect, main, numbered_steps, read_text, wait_until
from runc import Container, find_crun

MIB = 32
COUNTER = f"/bin/counter --mib {MIB} --chunk-mib 16 --interval-ms 60"
MEMORY = "brumate-memory"
RECORD = "brumate-gpus.json"


def size(path, pattern="."):
    return sum(os.stat(os.path.join(base, name)).st_size for base, _, names in os.walk(path) for name in names
               if re.search(pattern, name))


def manifest_of(container):
    return os.path.join(container.image, MEMORY, "manifest.json")


def beside_criu(container, kind):
    """Bytes of device or host memory that are in the image by brumate, before compression and sharing."""
    regions = json.loads(read_text(manifest_of(container)))["memory"]["regions"]
    return sum(region["len_bytes"] for region in regions if region["kind"] == kind)


def by_library(container):
    return beside_criu(container, "device")


def helpers(bed):
    return [p for p in bed.processes() if re.search("brumate-container|brumate-keeper", p[1])]


def nobody_is_at_work(bed):
    wait_until(lambda: not helpers(bed), "the end of helper and keeper", 60)


def settled(bed):
    """Nobody is at work on a container any more, and nothing of it is left outside of it."""
    nobody_is_at_work(bed)
    places = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "containers")
    expect(not os.path.isdir(places) or not os.listdir(places), f"left in {places}: {os.listdir(places)}")


def configure(bed, line):
    with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
        file.write(f"[Container]\n{line}\n")


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
def there_and_back_by_crun(bed):
    with library(bed, runtime=find_crun(bed)) as container:
        container.start().log().goes_on()
        for _ in range(2):
            saved(container)
            container.restored().log().goes_on()
            settled(bed)


@case
def who_begins_later(bed):
    """What held newcomers back while the container was saved holds nobody back after a restore, nor where it went on."""
    with library(bed, f"{COUNTER} > /tmp/out & wait") as container:
        container.start()
        for name in ("first", "second"):
            if name == "first":
                expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
            else:
                container.saved().end()
                container.restored()
            argv = ["exec", "--detach", container.id, "/bin/sh", "-c", f"exec {COUNTER} > /tmp/{name}"]
            expect(container.runc(*argv) == 0, container.last_words())
            wait_until(lambda name=name: "ready" in read_text(os.path.join(container.rootfs, "tmp", name)), f"the {name}", 30)
            container.log(name).goes_on(1)


@case
def into_the_same_directory(bed):
    """An image is written over, and an old one of device memory goes with it."""
    with library(bed) as container:
        container.start()
        for _ in range(3):  # the next one waits for the end of the one before
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
def criu_writes_meanwhile(bed):
    """What CRIU has to write of processes is there before the image of device memory is."""
    fifo = bed.fault_file + ".held"
    with library(bed) as container:
        container.start()
        bed.fault("container.record.begin", "hold")
        os.makedirs(container.image)
        engine = container.spawn(*container.checkpoint_words(), container.id)
        wait_until(lambda: os.path.exists(fifo) or engine.poll() is not None, "the end of CRIU's images of processes")
        expect(engine.poll() is None, f"container.record was not reached: {container.reason('dump.log')}")
        written, whole = size(container.image, r"^pages-"), os.path.exists(os.path.join(container.image, RECORD))
        with open(fifo, "wb"):
            pass
        expect(engine.wait(60) == 0, container.reason("dump.log"))
        expect(written and not whole, f"{written} bytes of pages are there, the record of GPUs: {whole}")
        container.end()
        container.restored().log().goes_on()


@case
def with_and_without_an_agent(bed):
    """The driver saves those that have none, into their own memory."""
    command = f"{COUNTER} > /tmp/one & LD_PRELOAD= CUDA_INJECTION64_PATH= {COUNTER} --gpu 1 > /tmp/two & wait"
    with library(bed, command) as container:
        configure(bed, "Force=yes\nMemory=criu")
        container.start(("one", "two"))
        container.saved().end()
        pages = size(container.image, r"^pages-")
        expect(by_library(container) >= MIB << 20, f"only {by_library(container)} bytes went by the library")
        expect(pages >= MIB << 20, f"only {pages} bytes are in CRIU's images")
        container.restored()
        for name in ("one", "two"):
            container.log(name).goes_on()


# ---- CPU memory ----

CPU_MIB = 12
WITH_MEMORY = f"{COUNTER} > /tmp/out & exec /bin/memory --mib {CPU_MIB} %s > /tmp/memory"
BOTH = ("out", "memory")


def with_memory(bed, word="alone", library=False, who="brumate"):
    """A container with large CPU memory, of which the program knows every byte, and who is to save it."""
    configure(bed, f"Memory={who}")
    return Container(bed, WITH_MEMORY % word, f"{word or 'forks'}-{who}", library=library, programs=("counter", "memory"))


def both_go_on(container):
    for name in BOTH:
        container.log(name).goes_on(1)


def leaves_it_out(container):
    """What is large is not in CRIU's images but beside them."""
    container.saved()
    host, pages = beside_criu(container, "host"), size(container.image, r"^pages-")
    expect(host >= 3 * CPU_MIB << 20, f"only {host} bytes of CPU memory are beside CRIU's images")
    expect(pages < 24 << 20, f"{pages} bytes of memory are in CRIU's images")
    container.end()


def cpu_memory_goes(bed, word, library):
    with with_memory(bed, word, library) as container:
        container.start(BOTH)
        for _ in range(2):
            leaves_it_out(container)
            container.restored()
            both_go_on(container)
            settled(bed)
        expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
        both_go_on(container)


@case
def cpu_memory_with_the_library(bed):
    cpu_memory_goes(bed, "threads", True)


@case
def cpu_memory_by_the_driver(bed):
    """Also what the driver has saved of device memory into a process."""
    cpu_memory_goes(bed, "alone", False)


@case
def cpu_memory_that_is_shared(bed):
    """What a child shares stays with CRIU, the rest goes beside."""
    with with_memory(bed, "") as container:
        container.start(BOTH)
        container.saved().end()
        expect(beside_criu(container, "host") >= CPU_MIB << 20, f"{beside_criu(container, 'host')} bytes of CPU memory")
        container.restored()
        both_go_on(container)


@case
def cpu_memory_that_criu_keeps(bed):
    """Where images build on earlier ones CRIU alone says what is in which; and where it is told to."""
    for who in ("brumate", "criu"):
        with with_memory(bed, who=who) as container:
            container.start(BOTH)
            os.makedirs(container.image)
            if who == "brumate":
                os.mkdir(os.path.join(container.dir, "earlier"))
                os.symlink("../earlier", os.path.join(container.image, "parent"))
            container.saved().end()
            pages = size(container.image, r"^pages-")
            expect(pages >= 3 * CPU_MIB << 20, f"only {pages} bytes are in CRIU's images")
            expect(not os.path.exists(os.path.join(container.image, MEMORY)), "there is an image of brumate's")
            container.restored()
            both_go_on(container)


@case
def cpu_memory_and_deaths(bed):
    """The container runs on, or its image can be restored again."""
    with with_memory(bed) as container:
        container.start(BOTH)
        for action in ("error:5", "kill", "kill:criu"):
            for point in ("container.memory", "container.record.begin", "container.record.end"):
                fails_and_goes_on(container, point, action)
                container.log("memory").goes_on(1)
        leaves_it_out(container)
        settled(bed)
        for action in ("error:5", "kill", "kill:criu"):
            fails_and_can_be_repeated(container, "restore.host-memory", action, action == "error:5" and "memory is filled")
        container.restored()
        both_go_on(container)


@case
def cpu_memory_that_is_damaged(bed):
    """It is found before anything of the container runs."""
    with with_memory(bed) as container:
        container.start(BOTH)
        leaves_it_out(container)
        settled(bed)
        before = [container.log(name).text() for name in BOTH]
        pack = packs_of(container)[0]
        for place in (4096, os.path.getsize(pack) // 2):
            flip(pack, place)
            expect(container.restore() != 0, "restored")
            expect(re.search("brumate: .*(digest|damaged)", container.dump_log("restore.log")), container.reason("restore.log"))
            container.end()
            settled(bed)
            flip(pack, place)
        expect([container.log(name).text() for name in BOTH] == before, "the container ran")
        container.restored()
        both_go_on(container)


# ---- failures ----

SAVE_POINTS = ("container.image.end", "container.gate.end", "container.park.begin", "container.park.end", "container.copy.end",
               "container.unmap.end", "container.gpu-lock.end", "container.gpu-checkpoint.end", "container.check",
               "container.memory", "container.finish", "container.record.end")


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


@case
def broker_killed(bed):
    """The container runs on or the image is whole."""
    with library(bed) as container:
        container.start()
        for point in ("copy.begin", "unmap.end", "gpu-lock.end", "record.begin"):
            bed.fault(f"container.{point}", "kill:broker")
            if container.checkpoint() == 0:
                container.end()
                container.restored()
            expect(container.state() == "running", f"{point}: the container is {container.state()}")
            container.log().goes_on(1)
            shutil.rmtree(container.image)


@case
def all_killed_at_a_checkpoint(bed):
    """Engine, CRIU and helper: the keeper of the memory starts who brings it back."""
    with library(bed) as container:
        container.start()
        for point in ("park.end", "unmap.end", "gpu-checkpoint.end", "record.begin", "record.end"):
            bed.fault(f"container.{point}", "hold")
            fifo = bed.fault_file + ".held"
            os.makedirs(container.image)
            engine = container.spawn(*container.checkpoint_words(), container.id)
            wait_until(lambda: os.path.exists(fifo) or engine.poll() is not None, f"{point} to be reached")
            expect(engine.poll() is None, f"{point} was not reached: {container.reason('dump.log')}")
            for pid in (*children(engine.pid), *(pid for pid, name in helpers(bed) if "brumate-keeper" not in name), engine.pid):
                os.kill(pid, signal.SIGKILL)
            engine.wait()
            os.unlink(fifo)
            container.log().goes_on(1)
            settled(bed)
            shutil.rmtree(container.image)
        saved(container)
        container.restored().log().goes_on()


LOAD_POINTS = ("container.open", "container.load", "container.restore", "container.gpu-restore.end", "container.map-ahead.end",
               "container.data-in.end", "container.map.end", "container.open.end")


def fails_and_can_be_repeated(container, point, action, reason):
    container.bed.fault(point, action)
    expect(container.restore() != 0, f"{point} {action}: the restore did not fail")
    expect(not os.path.exists(container.bed.fault_file), f"{point} was not reached: {container.reason('restore.log')}")
    nobody_is_at_work(container.bed)
    if reason:
        expect(re.search(reason, container.dump_log("restore.log")), f"{point} {action}: {container.reason('restore.log')}")
    expect(container.state() in ("none", "stopped"), f"{point} {action}: the container is {container.state()}")
    container.end()


def can_be_repeated(bed, action, reason=None):
    with library(bed) as container:
        container.start()
        saved(container)
        for point in LOAD_POINTS:
            fails_and_can_be_repeated(container, point, action, reason and reason(point))
        container.restored().log().goes_on()
        settled(bed)


@case
def errors_of_a_restore(bed):
    can_be_repeated(bed, "error:5", lambda point: f"brumate: .*{re.escape(point)}")


@case
def helper_killed_at_a_restore(bed):
    can_be_repeated(bed, "kill", lambda _: "brumate-container has ended")


@case
def criu_killed_at_a_restore(bed):
    can_be_repeated(bed, "kill:criu")


@case
def a_thread_that_allocates(bed):
    """It is stopped with the lock of the C library's allocator, which driver and agent want, too. What it does so that they
    get it is not seen outside: after a failure the image is as good as before."""
    with library(bed, "exec /bin/heap > /tmp/out", programs=("heap",)) as container:
        container.start()
        saved(container)
        container.restored().log().goes_on()
        saved(container)
        before = container.log().text()
        fails_and_can_be_repeated(container, "container.open.end", "error:5", "container.open.end")
        expect(container.log().text() == before, "the program has run")
        container.restored().log().goes_on()


@case
def broker_killed_at_a_restore(bed):
    with library(bed) as container:
        container.start()
        for point in ("gpu-restore.begin", "map-ahead.begin", "data-in.begin"):
            saved(container)
            bed.fault(f"container.{point}", "kill:broker")
            if container.restore() != 0:
                container.end()
                container.restored()
            container.log().goes_on(1)


# ---- images from somewhere else ----


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def sealed(manifest):
    manifest = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return manifest | {"digest": hashlib.sha256(text.encode()).hexdigest()}


def change(path, how):
    """Has how() change the object in the file, and returns it."""
    thing = json.loads(read_text(path))
    thing = how(thing) or thing
    with open(path, "w", encoding="utf-8") as file:
        json.dump(thing, file)
    return thing


def packs_of(container):
    folder = os.path.join(container.image, MEMORY, "memory")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pack"))


def damage_pack(container):
    flip(packs_of(container)[0], 4096)


def cut_pack(container):
    os.truncate(packs_of(container)[0], 4096)


def flip_manifest(container):
    flip(manifest_of(container), 1000)


def lose_all(container):
    shutil.rmtree(os.path.join(container.image, MEMORY))


def other_image(container):
    """Whole, but not the one that the record names."""
    change(manifest_of(container), lambda manifest: sealed(manifest | {"created": "2020-01-01T00:00:00.000Z"}))


def later_record(container):
    change(os.path.join(container.image, RECORD), lambda record: record | {"version": 9})


def record_without_memory(container):
    """As the driver's alone would be."""
    change(os.path.join(container.image, RECORD), lambda record: {k: v for k, v in record.items() if k != "image"} | {"version": 1})


def no_processes(container):
    change(os.path.join(container.image, RECORD), lambda record: record | {"processes": []})


def lose_record(container):
    os.unlink(os.path.join(container.image, RECORD))


def many_processes(container):
    change(os.path.join(container.image, RECORD), lambda record: record | {"processes": record["processes"] * 5000})


DAMAGES = ((damage_pack, "digest"), (cut_pack, "truncated|bytes"), (flip_manifest, MEMORY), (lose_all, MEMORY),
           (other_image, "of another checkpoint"), (later_record, "version 9"), (many_processes, "at most"), (record_without_memory, "is not of this image"), (no_processes, "is not of this image"),
           (lose_record, "is missing"))


@case
def an_image_from_before_there_were_seals(bed):
    """CRIU's inventory asks for the plugin by its name alone."""
    with library(bed) as container:
        container.start()
        saved(container)
        path = os.path.join(container.image, "inventory.img")
        with open(path, "rb") as file:
            data = file.read()
        name = b"brumate-container"
        at = data.index(name)
        seal = len(b":") + 64
        size = struct.unpack_from("<I", data, 4)[0]
        # A magic number, a size, and fields: [tag, size, [tag, size, name]].
        expect(data[at - 1] == len(name) + seal and data[at - 3] == data[at - 1] + 2, f"{data!r}")
        inner = bytes([data[at - 3] - seal, data[at - 2], data[at - 1] - seal])
        with open(path, "wb") as file:
            file.write(data[:4] + struct.pack("<I", size - seal) + data[8:at - 3] + inner + name + data[at + len(name) + seal:])
        container.restored().log().goes_on()


@case
def damaged_images(bed):
    """They are refused with the reason, before anything of the container runs again."""
    with library(bed) as container:
        container.start()
        saved(container)
        whole = container.image + ".whole"
        shutil.copytree(container.image, whole)
        before = container.log().text()
        for how, reason in DAMAGES:
            shutil.rmtree(container.image)
            shutil.copytree(whole, container.image)
            how(container)
            expect(container.restore() != 0, f"{how.__name__}: restored")
            expect(re.search(f"brumate: .*({reason})", container.dump_log("restore.log")),
                   f"{how.__name__}: {container.reason('restore.log')}")
            container.end()
            settled(bed)
            expect(container.log().text() == before, f"{how.__name__}: the container ran")
        shutil.rmtree(container.image)
        shutil.copytree(whole, container.image)
        container.restored().log().goes_on()


@case
def memory_is_ready_where_brumated_runs(bed):
    """For the container's first checkpoint, as long as its program is there. Nothing of the container is asked."""
    mib = 256
    bed.start_daemon()
    with library(bed, f"exec /bin/counter --mib {mib} --chunk-mib 64 --interval-ms 200 > /tmp/out") as container:
        container.start()
        wait_until(lambda: bed.ready_bytes() >= mib << 20, "memory for the container's copy to be ready", 90)
        broker = bed.broker()
        saved(container, mib)
        expect(bed.broker() == broker, "another broker made the copy")


SMALL_MIB, CONTEXT_MIB, ROOM_MIB = 768, 64, 320
SMALL_GPU = {"BRUMATE_SIM_VRAM_MIB": str(SMALL_MIB), "BRUMATE_SIM_CTX_MIB": str(CONTEXT_MIB), "BRUMATE_LOG_LEVEL": "debug"}
GROW = f"--grow {SMALL_MIB - CONTEXT_MIB - ROOM_MIB - 16}"


def bench_job(bed, options="", name="c"):
    command = f"exec /bin/bench-job --mib {ROOM_MIB} --piece-kib 4096 {options} > /tmp/out"
    return library(bed, command, name=name, programs=("bench-job",))


def is_open(container):
    """Whether the container's processes are told that the broker has their GPU open."""
    return os.path.exists(f"/proc/{container.init[0]}/root/run/brumate-agents/room-held")


def wait_open(bed, container):
    wait_until(lambda: is_open(container), "the GPU to be open for the container", 90)
    expect(bed.brokers_mib() >= CONTEXT_MIB, "the GPU is not open")


def told(container, sig, pattern):
    seen = len(container.log().lines())
    os.kill(container.init[0], sig)
    container.log().wait_until(lambda text: any(line.startswith(pattern) for line in text.splitlines()[seen:]), pattern)
    expect("ERR" not in container.log().text() and "BAD" not in container.log().text(), container.log().text())


@case
def the_gpu_is_open_where_brumated_runs(bed):
    """Before the container's copy begins; not beside it, nor where the container has gone."""
    bed.own.update(SMALL_GPU)
    bed.start_daemon()
    with bench_job(bed) as container:
        container.start()
        wait_open(bed, container)
        wait_until(bed.all_is_pinned, "what is ready to be pinned", 30)
        opened = bed.gpus_opened()
        container.saved()
        container.end()
        expect(bed.gpus_opened() == opened, "a copy waited for the GPU to be opened")
        wait_until(lambda: not bed.brokers_mib(), "the GPU to be closed after the container", 60)
        container.restored()
        wait_open(bed, container)
        told(container, signal.SIGUSR1, "check OK")


@case
def a_container_misses_no_memory_that_is_held_for_it(bed):
    """It asks for all that it is told is free: the broker's part comes first."""
    bed.own.update(SMALL_GPU)
    bed.start_daemon()
    with bench_job(bed, GROW) as container:
        container.start()
        wait_open(bed, container)
        told(container, signal.SIGHUP, "grown")
        free = int(next(line for line in container.log().lines() if line.startswith("asks")).split()[-1])
        expect(free >= (SMALL_MIB - CONTEXT_MIB - ROOM_MIB - 8) << 20, f"{free} bytes were told to be free")
        expect(not bed.brokers_mib() and not is_open(container), "the GPU is open still")
        told(container, signal.SIGUSR1, "check OK")


@case
def whoever_is_killed_a_container_misses_none(bed):
    bed.own.update(SMALL_GPU)
    for victim in ("broker", "brumated"):
        daemon = bed.start_daemon()
        with bench_job(bed, GROW, name=victim) as container:
            container.start()
            wait_open(bed, container)
            os.kill(bed.broker() if victim == "broker" else daemon.pid, signal.SIGKILL)
            wait_until(lambda: bed.brokers_mib() < CONTEXT_MIB, "the end of what was open")
            told(container, signal.SIGHUP, "grown")
            told(container, signal.SIGUSR1, "check OK")
        daemon.end()


@case
def a_container_that_asks_all_the_time(bed):
    """Whoever connects where nobody misses anything keeps neither brumated nor another container from what they have."""
    bed.own.update(SMALL_GPU)
    bed.start_daemon()
    with bench_job(bed, GROW) as container:
        container.start()
        wait_open(bed, container)
        place = os.open(f"/proc/{container.init[0]}/root/run/brumate-agents", os.O_PATH)
        asked = 0
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.connect(f"/proc/self/fd/{place}/room")
                asked += 1
        os.close(place)
        expect(asked > 64, f"only {asked} could ask")
        expect(bed.is_served(bed.daemon_socket()), "brumated is not there any more")
        told(container, signal.SIGHUP, "grown")
        told(container, signal.SIGUSR1, "check OK")


main()
