#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers that are up to no good while their engine checkpoints or restores them: what stands in the place of brumate's
library is a program of theirs (tests/programs/rogue.c). The engine's command fails, with the reason in its log, or works
without what is amiss; it takes little time and memory; the container goes on; others notice nothing."""

import os
import re
import threading
import time

from cases import case, expect, main, read_text, wait_until
from runc import Container

AGENTS = "/run/brumate-agents"
CHECKPOINT_S = 60  # on a machine that has much else to do
HELPER_MIB = 256  # with an honest container it takes about 70

# What the rogue does, and why the checkpoint fails; None: it works all the same.
DEEDS = (
    ("silent-at-hello", None),
    ("silent-at-gate", "its agent does not answer"),
    ("noise-at-hello", None),
    ("noise-at-list", "list: agent of version"),
    ("endless", "list: more than 131072 pieces"),
    ("long", "answer of its agent: too long"),
    ("huge", "agents tell of 1.00 PiB on GPU-.*, which has"),
    ("other-gpu", "no such GPU"),
    ("twice", "list: piece 1 twice"),
    ("claims", "uses device memory of process 1, which"),
    ("many-lines", r"gate: x \(00.000001\) brumate: all is well  \[31m %s%n"),
    ("gone-at-gate", None),
    ("gone-at-list", "its agent is gone"),
    ("gone-at-unmap", "its agent is gone"),
    ("gives-a-file", "export: what is neither memory nor a device of the driver"),
    ("gives-memory", "piece 1 of 1: .*INVALID_VALUE"),
    ("gives-none", "export: 0 fds came"),
    ("gives-many", "export: 250 fds came"),
)


def give_place(config):
    """A place for agents, as the device of `brumate cdi` has it, but no library."""
    config["mounts"].append({"source": "tmpfs", "destination": AGENTS, "type": "tmpfs", "options": ["mode=1777"]})


def wait_for_gates(bed, duration):
    with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
        file.write(f"[Operation]\nLockTimeout={duration}\n")


def rogue(bed, words, name="c"):
    return Container(bed, f"exec /bin/rogue {words} > /tmp/out", name, change=give_place, programs=("rogue",))


def counter_beside_rogue(bed, word):
    command = f"/bin/counter --mib 4 --chunk-mib 4 --interval-ms 20 > /tmp/out & /bin/rogue {word} > /tmp/{word} & wait"
    return Container(bed, command, library=True, programs=("counter", "rogue"))


def helpers(bed):
    return [p for p in bed.processes() if re.search("brumate-container|brumate-keeper", p[1])]


def settled(bed):
    wait_until(lambda: not helpers(bed), "the end of helper and keeper", 60)
    places = os.path.join(bed.own["BRUMATE_RUNTIME_DIR"], "containers")
    expect(not os.path.isdir(places) or not os.listdir(places), f"left in {places}: {os.listdir(places)}")


class Memory(threading.Thread):
    """Looks at what our programs for containers take, as long as the block runs."""

    def __init__(self, bed):
        super().__init__(daemon=True)
        self.bed, self.most, self.over = bed, 0, threading.Event()

    def run(self):
        while not self.over.wait(0.2):
            for pid, _ in helpers(self.bed):
                found = re.search(r"VmHWM:\s+(\d+) kB", read_text(f"/proc/{pid}/status"))
                self.most = max(self.most, int(found[1]) >> 10 if found else 0)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def told(container):
    """The plugin's lines in CRIU's log."""
    return [line for line in container.dump_log().splitlines() if re.match(r"\(\d+\.\d+\) brumate: ", line)]


def become(container, kind):
    path = os.path.join(container.rootfs, "tmp", "kind")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(kind)
    os.rename(path + ".new", path)


def checkpoint(container, kind, reason):
    become(container, kind)
    code = container.checkpoint("--leave-running", timeout=CHECKPOINT_S)
    become(container, "honest")  # or what is theirs to be given back would be refused, too, and the next one be held up
    expect((code == 0) == (reason is None), f"{kind}: {code}, {container.reason('dump.log')}")
    lines = told(container)
    expect(not reason or (len(lines) == 1 and re.search(reason, lines[0]) and "\033" not in lines[0]), f"{kind}: {lines}")
    expect(container.state() == "running", f"{kind}: the container is {container.state()}")
    container.log().goes_on(1)


@case
def agents_of_their_own(bed):
    wait_for_gates(bed, "1s")
    with rogue(bed, "honest --path /tmp/kind") as container, Memory(bed) as memory:
        container.start()
        for kind, reason in DEEDS:
            checkpoint(container, kind, reason)
    expect(memory.most < HELPER_MIB, f"{memory.most} MiB")
    settled(bed)


@case
def a_restored_agent_that_hangs_up(bed):
    """It has been saved as any other: the restore fails, and the image is as good as it was."""
    with rogue(bed, "gone-at-map") as container:
        container.start().saved().end()
        for _ in range(2):
            expect(container.restore() != 0, "the restore did not fail")
            expect(re.search("brumate: .*its agent is gone", container.dump_log("restore.log")), container.reason("restore.log"))
            expect(container.state() in ("none", "stopped"), f"the container is {container.state()}")
            container.end()
            settled(bed)


@case
def agents_that_fall_silent(bed):
    """At each of these questions they are waited for as long as it may take, which is 1 s here, and once: what is undone
    asks the first of them again, and waits for nobody who has not answered."""
    with rogue(bed, "honest --path /tmp/kind") as container:
        container.start()
        for question in ("list", "export", "unmap"):
            bed.fault(f"agent.patience.{question}", "error:1000")
            start = time.monotonic()
            checkpoint(container, f"silent-at-{question}", "its agent does not answer")
            expect(time.monotonic() - start >= 1, f"{question}: not waited for")
            settled(bed)
            expect(bed.has_fired(), f"{question}: asked nothing")
        become(container, "silent-at-map")
        container.saved().end()
        bed.fault("agent.patience.map", "error:1000")
        expect(container.restore() != 0 and bed.has_fired(), "the restore did not fail")
        expect("its agent does not answer" in container.dump_log("restore.log"), container.reason("restore.log"))
        expect(container.state() in ("none", "stopped"), f"the container is {container.state()}")
        container.end()
    settled(bed)


@case
def one_who_keeps_the_agent_busy(bed):
    """Somebody in the container connects to the agent thousands of times: nobody else can ask it, so the driver moves the memory."""
    with counter_beside_rogue(bed, "knock") as container:
        container.start(("out", "knock"))
        if container.checkpoint(timeout=CHECKPOINT_S) != 0:
            expect(told(container), container.reason("dump.log"))
            container.log().goes_on(1)
    settled(bed)


@case
def a_crowd_that_does_not_answer(bed):
    """Many processes that look as if they had agents are not waited for one after the other."""
    with counter_beside_rogue(bed, "crowd") as container:
        container.start(("out", "crowd"))
        expect(container.checkpoint("--leave-running", timeout=CHECKPOINT_S) == 0, container.reason("dump.log"))
        container.log().goes_on(1)
        settled(bed)


@case
def others_beside_it(bed):
    """While one container is waited for, others and jobs are saved and brought back."""
    wait_for_gates(bed, "300s")
    with rogue(bed, "silent-at-gate") as bad, rogue(bed, "honest", "d") as good:
        bad.start()
        good.start()
        job, log = bed.counter()
        os.makedirs(bad.image)
        waiting = bad.spawn(*bad.checkpoint_words(), bad.id)
        wait_until(lambda: helpers(bed), "the checkpoint to begin", 60)
        good.saved().end()
        good.restored().log().goes_on()
        bed.ok("suspend", job)
        bed.ok("resume", job)
        log.goes_on()
        expect(waiting.poll() is None, "nobody was waited for meanwhile")
        bad.end()
        expect(waiting.wait(60) != 0, "the checkpoint did not fail")
    settled(bed)


main()
