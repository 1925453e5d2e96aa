#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers of runc and podman on AMD's GPUs, which CRIU's own plugin saves: the real plugin, loaded by brumate's in runc's CRIU, on a
stand-in for the kernel's driver (amd_bed.py)."""

import os
import re
import shutil

from amd_bed import CALLS, GPUS, PLACE, AmdBed, used
from cases import Bed, case, main, wait_until
from harness import expect
from podman_engine import Podman
from runc import Container, copy_libraries, fails_and_can_be_repeated, fails_and_goes_on, find_in, kill_engine_at

PROGRAM = "/bin/amd-program"
PROC = "/proc-of-the-machine"  # tests/amd/kernel.h


MOUNTS = {"/sys/class": "/sys/class", "/proc": PROC, "/dev/kfd": "/dev/kfd",
          **{f"/dev/dri/renderD{128 + i}": f"/dev/dri/renderD{128 + i}" for i in range(GPUS)}}
PRELOAD = "LD_PRELOAD=/driver/amd-kernel.so"


def fill_rootfs(bed, rootfs):
    for name in ("bin", "proc", "dev", "sys", "tmp", "driver"):
        os.makedirs(os.path.join(rootfs, name))
    for path in (shutil.which("sh"), bed.amd("amd-program")):
        shutil.copy(path, os.path.join(rootfs, "bin"))
        copy_libraries(path, rootfs)
    shutil.copy(bed.kernel, os.path.join(rootfs, "driver"))
    copy_libraries(bed.kernel, rootfs)


def bind(source, target):
    return {"destination": target, "type": "bind", "source": source, "options": ["bind", "rw"]}


class AmdContainer(Container):
    """With the driver's files, as `--device /dev/kfd --device /dev/dri/renderDN` gives them, and its sysfs."""

    def __init__(self, bed, options="", name="c", is_init=True, before=""):
        command = f"{PROGRAM} {options} > /tmp/out"
        super().__init__(bed, f"exec {command}" if is_init else f"{before} {command} & wait", name, programs=())
        os.unlink(os.path.join(self.dir, "path", "criu"))
        os.symlink(bed.runtime_criu(), os.path.join(self.dir, "path", "criu"))

    def _fill_rootfs(self, programs):
        fill_rootfs(self.bed, self.rootfs)

    def _add_gpus(self, config):
        config["process"]["env"] += [PRELOAD]
        config["mounts"] = [m for m in config["mounts"] if m["destination"] not in ("/sys", "/sys/fs/cgroup")]
        config["mounts"] += [bind(source, target) for source, target in MOUNTS.items()]


class AmdPodman(Podman):
    """The same of podman, which mounts a /sys."""

    def _fill_rootfs(self, rootfs):
        fill_rootfs(self.bed, rootfs)

    def write_criu(self, env=""):
        self.file("bin/criu", f"#!/bin/sh\n{env} exec {self.bed.runtime_criu()} \"$@\"\n", 0o700)

    @staticmethod
    def _command(_, name):
        return f"{PROGRAM} > /out/{name}"

    def _gpus(self):
        words = [word for source, target in MOUNTS.items() for word in ("--volume", f"{source}:{target}")]
        return [*words, "--volume", f"{self.driver}:/driver:ro", "--env", PRELOAD]


class ContainersBed(AmdBed):
    """What works for the engine's CRIU calls the stand-in, too."""

    def runtime_criu(self):
        path = os.path.join(self.dir, "runtime-criu")
        if not os.path.exists(path):
            with open(self.make_criu(), encoding="utf-8") as file:
                text = file.read()
            expect(text.count(f" --preload {self.kernel}") == 1, text)
            text = text.replace(f" --preload {self.kernel}", "").replace("\nexec ", f"\nexec env LD_PRELOAD={self.kernel} ")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        return path

    def helper_ended(self):
        wait_until(lambda: not [p for p in self.processes() if "brumate-container" in p[1]], "the helper's end", 60)


class OtherVendorsBed(Bed):
    """On the simulated GPUs of the other vendor, where the plugin for AMD's is installed, too."""

    def __init__(self, build, env=None):
        PLACE.make(build)
        super().__init__(build, env)


def on_amd(function):
    function.bed_class = ContainersBed
    return function


@case
@on_amd
def checkpoint_remove_restore(bed):
    with AmdContainer(bed) as container:
        container.start().log().goes_on()
        expect(bed.shown()[1:] == (1, 0, used()), bed.shown())
        for _ in range(2):
            container.saved()
            wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
            container.end()
            container.restored().log().goes_on()
            expect(bed.shown()[1:] == (1, 0, used()), bed.shown())
            shutil.rmtree(container.image)



def goes_on(bed, container, gpus=GPUS, processes=1):
    """With right data, and the driver has no process too many or one that is paused."""
    container.log().goes_on()
    wait_until(lambda: bed.shown()[1:] == (processes, 0, used(gpus, processes)), f"the GPUs are {bed.shown()}")


def is_gone(bed, container):
    wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
    container.end()


@case
@on_amd
def leave_running(bed):
    """Also where CRIU's plugin leaves the process paused, as it does with one that has not opened all GPUs."""
    for gpus in (GPUS, 1):
        with AmdContainer(bed, f"--gpus {gpus}", f"c{gpus}") as container:
            container.start()
            expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
            goes_on(bed, container, gpus)
            expect(container.state() == "running", f"the container is {container.state()}")
        wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")


@case
@on_amd
def two_processes(bed):
    """Nothing tells whether they share device memory, so somebody has to say that they may be saved."""
    with AmdContainer(bed, "--children 1") as container:
        container.start().log().wait_for("child 1 at")
        expect(container.checkpoint() != 0, "what may share memory was saved all the same")
        expect("may share device memory" in container.dump_log(), container.reason("dump.log"))
        shutil.rmtree(container.image)
        with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
            file.write("[Container]\nForce=yes\n")
        is_gone(bed, container.saved())
        before = container.restored().log().text().count("child 1 at")
        goes_on(bed, container, processes=2)
        container.log().wait_until(lambda text: text.count("child 1 at") > before + 3, "the other process to go on")


@case
@on_amd
def on_another_machine(bed):
    """Whose kernel names its GPUs by other numbers; and from there once more."""
    with AmdContainer(bed) as container:
        container.start().log().goes_on()
        for i in range(2):
            is_gone(bed, container.saved())
            bed.renumber(2000 + 10 * i, 0x1234 + 10 * i)
            container.restored()
            goes_on(bed, container)
            shutil.rmtree(container.image)


@case
@on_amd
def what_cannot_be_saved_is_no_checkpoint(bed):
    """Whichever call fails, also those that CRIU's plugin takes for done; and the container goes on."""
    with AmdContainer(bed) as container:
        container.start()
        for call in ("process-info", "checkpoint", "import", "submit", "fence"):
            bed.gpu("fail", CALLS.index(call))
            expect(container.checkpoint() != 0, f"{call}: the checkpoint did not fail")
            bed.gpu("fail", 0)
            bed.helper_ended()
            expect(container.state() == "running", f"{call}: the container is {container.state()}")
            goes_on(bed, container)
            if call != "process-info":  # then CRIU's plugin ends CRIU by a signal (amd.py)
                for words in ("brumate: GPU state was not saved", r"Error \(\S+\): amdgpu_plugin: "):
                    expect(re.search(words, container.dump_log()), f"{call}: {container.reason('dump.log')}")
            expect("brumate-gpus.json" not in os.listdir(container.image), f"{call}: there is a checkpoint")
            shutil.rmtree(container.image)
        is_gone(bed, container.saved())
        container.restored()
        goes_on(bed, container)


@case
@on_amd
def what_cannot_be_restored_does_not_run(bed):
    with AmdContainer(bed) as container:
        container.start()
        is_gone(bed, container.saved())
        for call in ("restore", "resume", "import", "submit", "fence"):
            bed.gpu("fail", CALLS.index(call))
            expect(container.restore() != 0, f"{call}: the restore did not fail")
            bed.gpu("fail", 0)
            bed.helper_ended()
            words = "a process does not go on with its GPU" if call == "resume" else "GPU state was not restored"
            expect(f"brumate: {words}" in container.dump_log("restore.log"), f"{call}: {container.reason('restore.log')}")
            expect(container.state() in ("none", "stopped"), f"{call}: the container is {container.state()}")
            is_gone(bed, container)
        container.restored()
        goes_on(bed, container)


@case
@on_amd
def criu_dies_in_a_call(bed):
    """While the driver has the process paused, or half of it is restored. An init cannot kill itself."""
    with AmdContainer(bed, is_init=False) as container:
        container.start()
        for call in ("process-info", "checkpoint", "import", "submit"):
            bed.gpu("kill", CALLS.index(call))
            expect(container.checkpoint() != 0, f"{call}: the checkpoint did not fail")
            bed.gpu("kill", 0)
            bed.helper_ended()
            expect(container.state() == "running", f"{call}: the container is {container.state()}")
            goes_on(bed, container)
            shutil.rmtree(container.image)
        is_gone(bed, container.saved())
        for call in ("restore", "import", "submit", "resume"):
            bed.gpu("kill", CALLS.index(call))
            expect(container.restore() != 0, f"{call}: the restore did not fail")
            bed.gpu("kill", 0)
            bed.helper_ended()
            is_gone(bed, container)
        container.restored()
        goes_on(bed, container)


@case
@on_amd
def nothing_runs_before_all_is_restored(bed):
    """Where CRIU is killed before it lets the processes run, none of them writes a byte; not only the init ends with it."""
    chats = [f"/tmp/chat{i}" for i in range(4)]
    before = " ".join(f"(while :; do echo; done > {path}) &" for path in chats)
    with AmdContainer(bed, before=before, is_init=False) as container:
        container.start().log().goes_on()
        is_gone(bed, container.saved())
        paths = [container.rootfs + path for path in (*chats, "/tmp/out")]
        sizes = [os.path.getsize(path) for path in paths]
        expect(all(sizes), sizes)
        for _ in range(3):
            bed.gpu("kill", CALLS.index("resume"))
            expect(container.restore() != 0, "the restore did not fail")
            bed.gpu("kill", 0)
            bed.helper_ended()
            is_gone(bed, container)
            expect([os.path.getsize(path) for path in paths] == sizes, "what was not restored to its end has run")
        container.restored()
        goes_on(bed, container)


SAVE_POINTS = ("container.save", "container.preflight.end", "container.gpus.begin", "container.gpus.end", "container.check",
               "container.record.begin", "container.record.end")
LOAD_POINTS = ("container.look", "container.open", "container.load", "container.restore")


def at_each_point_of_a_checkpoint(bed, action, reason):
    with AmdContainer(bed) as container:
        container.start()
        for point in SAVE_POINTS:
            fails_and_goes_on(container, point, action, reason and reason(point))
            bed.helper_ended()
            goes_on(bed, container)
        is_gone(bed, container.saved())
        container.restored()
        goes_on(bed, container)


def at_each_point_of_a_restore(bed, action, reason):
    with AmdContainer(bed) as container:
        container.start()
        is_gone(bed, container.saved())
        for point in LOAD_POINTS:
            fails_and_can_be_repeated(container, point, action, reason and reason(point))
            wait_until(lambda at=point: bed.shown()[1] == 0, f"{point}: the driver to forget the process")
        container.restored()
        goes_on(bed, container)


@case
@on_amd
def errors_of_a_checkpoint(bed):
    at_each_point_of_a_checkpoint(bed, "error:5", lambda point: f"brumate: .*{re.escape(point)}")


@case
@on_amd
def helper_killed_at_a_checkpoint(bed):
    at_each_point_of_a_checkpoint(bed, "kill", lambda _: "brumate-container has ended")


@case
@on_amd
def criu_killed_at_a_checkpoint(bed):
    at_each_point_of_a_checkpoint(bed, "kill:criu", None)


@case
@on_amd
def engine_killed_at_a_checkpoint(bed):
    with AmdContainer(bed) as container:
        container.start()
        for point in SAVE_POINTS:
            kill_engine_at(container, point)
            bed.helper_ended()
            if container.lives():
                goes_on(bed, container)
                shutil.rmtree(container.image)
                continue
            # It was not CRIU's turn to fail: the image is whole.
            is_gone(bed, container)
            container.restored()
            goes_on(bed, container)
            shutil.rmtree(container.image)


@case
@on_amd
def errors_of_a_restore(bed):
    at_each_point_of_a_restore(bed, "error:5", lambda point: f"brumate: .*{re.escape(point)}")


@case
@on_amd
def helper_killed_at_a_restore(bed):
    at_each_point_of_a_restore(bed, "kill", lambda _: "brumate-container has ended")


@case
@on_amd
def criu_killed_at_a_restore(bed):
    at_each_point_of_a_restore(bed, "kill:criu", None)


@case
@on_amd
def large_cpu_memory(bed):
    """What brumate saves of it itself is beside CRIU's images, and back before the process runs."""
    with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
        file.write("[Container]\nMemory=brumate\n")
    with AmdContainer(bed, "--memory-mib 32") as container:
        container.start()
        is_gone(bed, container.saved())
        expect("brumate-memory" in os.listdir(container.image), os.listdir(container.image))
        container.restored()
        goes_on(bed, container)


@case
@on_amd
def by_one_command(bed):
    """Of ours, which gives runc the CRIU and the plugin; as another container."""
    archive = os.path.join(bed.dir, "one.tar")
    with AmdContainer(bed) as container:
        container.edit(lambda config: config.pop("annotations"))
        container.start()
        find_in(bed, os.path.join(container.dir, "state"))
        bed.ok("checkpoint", "--container", container.id, "--output", archive)
        is_gone(bed, container)
        container.id += "-again"
        bed.ok("restore", "--container", container.id, archive)
        container.note_init()
        goes_on(bed, container)


@case
@on_amd
def podman_in_place_and_by_an_archive(bed):
    with AmdPodman(bed) as podman:
        podman.start("one").log().goes_on()
        podman.ok("container", "checkpoint", "one")
        wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
        podman.ok("container", "restore", "one")
        podman.log().goes_on()
        archive = os.path.join(podman.dir, "one.tar.gz")
        podman.ok("container", "checkpoint", "--export", archive, "--compress", "gzip", "one")
        podman.ok("rm", "one")
        wait_until(lambda: bed.shown()[1] == 0, "the driver to forget the process")
        podman.ok("container", "restore", "--import", archive, "--name", "other")
        podman.log().goes_on()
        expect(podman.status("other") == "running" and bed.shown()[1:] == (1, 0, used()), f"the GPUs are {bed.shown()}")


def with_other_gpus(bed):
    """Of a container that does not use AMD's GPUs, the plugin for these has nothing to do."""
    with Container(bed, "exec /bin/counter --mib 64 --chunk-mib 16 --interval-ms 60 > /tmp/out") as container:
        container.start().log().goes_on()
        container.saved().end()
        expect("amdgpu" not in container.dump_log(), container.reason("dump.log"))
        container.restored().log().goes_on()
        expect("amdgpu" not in container.dump_log("restore.log"), container.reason("restore.log"))


with_other_gpus.bed_class = OtherVendorsBed
case(with_other_gpus)


@case
@on_amd
def without_the_vendors_plugin(bed):
    """Which CRIU's plugin it takes is said, at a checkpoint and at a restore."""
    place = os.path.join(bed.build.path, "src", "criu-plugin", "amd", "amdgpu_plugin.so")
    with AmdContainer(bed) as container:
        container.start()
        is_gone(bed, container.saved())
        os.rename(place, place + ".away")
        try:
            expect(container.restore() != 0, "it was restored without")
            expect("amdgpu_plugin.so" in container.dump_log("restore.log"), container.reason("restore.log"))
            container.end()
        finally:
            os.rename(place + ".away", place)
        container.restored()
        goes_on(bed, container)


main()
