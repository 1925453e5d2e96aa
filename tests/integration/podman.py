#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers of podman, whose runc finds brumate's plugin by an annotation: checkpointed and restored by podman's commands
alone, in place, through an archive and through an image. Programs of the simulated driver run in them."""

import contextlib
import os
import re
import shutil
import signal
import tarfile

from cases import EXIT_PERMISSION, as_user, case, expect, main, read_text, wait_until
from harness import run
from podman_engine import Podman, cdi_device, find_podman
from runc import cgroup_pids


@case
def checkpoint_and_restore(bed):
    with Podman(bed) as podman:
        podman.start("one").log().goes_on()
        for _ in range(2):
            podman.ok("container", "checkpoint", "one")
            expect(podman.status("one") == "exited", f"the container is {podman.status('one')}")
            podman.ok("container", "restore", "one")
            podman.log().goes_on()


@case
def checkpoint_and_go_on(bed):
    with Podman(bed) as podman:
        podman.start("one")
        podman.ok("container", "checkpoint", "--leave-running", "one")
        podman.log().goes_on()
        expect(podman.status("one") == "running", f"the container is {podman.status('one')}")


@case
def export_and_import(bed):
    """What goes to another machine: device memory is in it, and the container comes back under another name."""
    with Podman(bed) as podman:
        podman.start("one").log().goes_on()
        archive = os.path.join(podman.dir, "one.tar.gz")
        podman.ok("container", "checkpoint", "--export", archive, "--compress", "gzip", "one")
        with tarfile.open(archive) as tar:
            expect("checkpoint/brumate-gpus.json" in tar.getnames(), "the archive holds no GPU state")
        podman.ok("rm", "one")
        podman.ok("container", "restore", "--import", archive, "--name", "other")
        podman.log().goes_on()
        expect(podman.status("other") == "running", f"the container is {podman.status('other')}")


@case
def image_and_back(bed):
    """The same as an image, which a registry takes."""
    with Podman(bed) as podman:
        podman.start("one").log().goes_on()
        podman.ok("container", "checkpoint", "--create-image", "saved:1", "one")
        podman.ok("rm", "one")
        podman.ok("container", "restore", "--name", "other", "saved:1")
        podman.log().goes_on()


@case
def suspend_by_name(bed):
    """The name is podman's; the state is that of its runc, where root's usually is."""
    with Podman(bed) as podman:
        name = os.path.basename(bed.dir)
        podman.start(name).log().goes_on()
        bed.operation("suspend", "--container", name)
        expect(bed.job(name)["state"] == "suspended", f"{bed.job(name)}")
        bed.operation("resume", "--container", podman.ok("inspect", "--format", "{{.Id}}", name))
        podman.log().goes_on()
        bed.ok("release", name)


@case
def device_of_cdi(bed):
    """podman takes the specification, and the data path moves the memory of the container."""
    with Podman(bed) as podman, cdi_device(bed) as device:
        name = os.path.basename(bed.dir)
        podman.start(name, "--device", device).log().goes_on()
        bed.operation("suspend", "--container", name)
        memory = bed.ok("inspect", name, "--format", "json").json()["memory"]
        expect(sum(process["data_bytes"] for process in memory) >= 64 << 20, f"not by the library: {memory}")
        bed.operation("resume", "--container", name)
        podman.log().goes_on()
        bed.ok("release", name)
        podman.ok("container", "checkpoint", name)
        podman.ok("container", "restore", name)
        podman.log().goes_on()


@case
def errors_reach_podman(bed):
    """The container goes on where it cannot be saved, and can be restored again where that failed."""
    with Podman(bed) as podman:
        podman.start("one")
        bed.fault("container.gpu-checkpoint.end", "error:5")
        expect(podman.podman("container", "checkpoint", "one").code != 0, "the checkpoint did not fail")
        expect("injected at container.gpu-checkpoint.end" in podman.reason(), podman.reason())
        podman.log().goes_on()
        podman.ok("container", "checkpoint", "one")
        bed.fault("container.gpu-restore.end", "error:5")
        expect(podman.podman("container", "restore", "one").code != 0, "the restore did not fail")
        expect("injected at container.gpu-restore.end" in podman.reason(), podman.reason())
        podman.ok("container", "restore", "one")
        podman.log().goes_on()


def kill_all(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@case
@as_user
def without_root(bed):
    """podman refuses both by itself, before it looks for the container, and so does brumate."""
    podman, _ = find_podman(bed.build)
    archive = os.path.join(bed.dir, "one.tar")
    with open(archive, "wb"):
        pass
    os.chown(archive, bed.uid, bed.uid)
    places = ["--root", f"{bed.dir}/root", "--runroot", f"{bed.dir}/run", "--storage-driver", "vfs"]
    env = {"PATH": os.environ["PATH"], "HOME": bed.dir, "XDG_RUNTIME_DIR": bed.dir}
    for verb, what in (("checkpoint", "checkpointing"), ("restore", "restoring")):
        done = run([podman, *places, "container", verb, "one"], env=env, user=bed.uid, group=bed.uid, extra_groups=[])
        expect(done.code != 0 and f"{what} a container requires root" in done.err, done.why())
    kill_all(pid for pid, command in bed.processes() if command == podman)  # it holds podman's user namespace
    bed.refused(EXIT_PERMISSION, "containers are checkpointed and restored by root", "restore", "--container", "one", archive)


# ---- again and again, and whoever is killed in the middle ----

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP") == "1"
THREE = ("one", "two", "three")


@contextlib.contextmanager
def three_programs(bed):
    """A container of three GPU processes, by the library: their agents tell that they share nothing."""
    with Podman(bed) as podman, cdi_device(bed) as device:
        yield podman.start("three", "--device", device, mib=16, programs=THREE)


def all_go_on(podman, steps=1):
    for program in THREE:
        podman.log(program).goes_on(steps)


@case
def cycles_of_three_programs(bed):
    """Nothing wears out: 20 by hand."""
    with three_programs(bed) as podman:
        for _ in range(20 if SWEEP else 3):
            podman.ok("container", "checkpoint", "three")
            expect(not any(bed.vram()), "the GPU holds memory of a container that is not there")
            podman.ok("container", "restore", "three")
            all_go_on(podman)


# What CRIU asks the plugin for, one after the other, and of what follows of each the beginning and the end.
SAVE_POINTS = ("container.save", "container.gate.end", "container.unmap.end", "container.gpu-checkpoint.end", "container.check",
               "container.finish", "container.record.end")
LOAD_POINTS = ("container.look", "container.open", "container.load", "container.restore", "container.gpu-restore.end",
               "container.data-in.end", "container.open.end", "container.keep")


def named(bed, words):
    """Processes of this instance that have been begun with these words."""
    return [pid for pid, name in bed.processes() if re.search(words, name)]


RUNC = "runc.* (checkpoint|restore) "
LET_GO = ("container.keep", "CRIU")  # the container runs by then, and CRIU has yet to say so


def victims_of(bed, podman, engine, kind):
    if kind == "podman":
        return [engine.pid]
    if kind == "container":
        return [pid for pid in cgroup_pids(podman.cgroup) if read_text(f"/proc/{pid}/comm") == "sh\n"]
    return named(bed, {"helper": "brumate-container", "CRIU": "criu.* swrk 3", "runc": RUNC}[kind])


def kill_at(bed, podman, verb, point, kind):
    """A command of podman, under way, during which somebody is killed."""
    fifo = bed.fault_file + ".held"
    bed.fault(point, "hold")
    engine = podman.spawn("container", verb, "three")
    try:
        wait_until(lambda: os.path.exists(fifo) or engine.poll() is not None, f"{point} to be reached")
        expect(engine.poll() is None, f"{point} was not reached: {podman.reason()}")
        victims = victims_of(bed, podman, engine, kind)
        expect(victims, f"no {kind} at {point}")
        kill_all(victims)
    finally:
        if kind == "helper" and os.path.exists(fifo):
            os.unlink(fifo)
        elif os.path.exists(fifo):
            with open(fifo, "wb"):  # who waits there goes on as soon as it is open
                pass
    return engine


def killed_at(bed, *how):
    """The same to its end; whether podman says that it went well."""
    code = kill_at(bed, *how).wait(120)
    wait_until(lambda: not named(bed, f"brumate-container|brumate-keeper|criu.* swrk 3|{RUNC}"), "the end of those at work", 60)
    return code == 0


def runs_on_or_is_whole(bed, podman, where):
    """Where it does not run, it comes back from its image."""
    if podman.status("three") != "running":
        expect(not any(bed.vram()), f"{where}: the GPU holds memory of a container that is not there")
        podman.ok("container", "restore", "three")
    all_go_on(podman)


def some_of(points, kinds):
    """By hand all at each; else each of them once, at points that are not each other's neighbours."""
    return [(p, k) for p in points for k in kinds] if SWEEP else [(points[(2 * n + 1) % len(points)], k) for n, k in enumerate(kinds)]


@case
def killed_at_a_checkpoint(bed):
    with three_programs(bed) as podman:
        for point, kind in some_of(SAVE_POINTS, ("helper", "CRIU", "runc", "podman")):
            killed_at(bed, podman, "checkpoint", point, kind)
            runs_on_or_is_whole(bed, podman, f"{kind} at {point}")


@case
def killed_at_a_restore(bed):
    with three_programs(bed) as podman:
        for point, kind in some_of(LOAD_POINTS, ("helper", "CRIU")):
            if (point, kind) == LET_GO:
                continue
            podman.ok("container", "checkpoint", "three")
            killed_at(bed, podman, "restore", point, kind)
            runs_on_or_is_whole(bed, podman, f"{kind} at {point}")


@case
def engine_killed_at_a_restore(bed):
    """What CRIU is at goes on without it, and what it has let go without CRIU. Where that comes to its end, the container runs on,
    though podman may not know, or waits for what runc was to say."""
    for point, kind in some_of(LOAD_POINTS, ("runc", "podman")) + ([LET_GO] if SWEEP else []):
        with three_programs(bed) as podman:
            podman.ok("container", "checkpoint", "three")
            engine = kill_at(bed, podman, "restore", point, kind)
            try:
                wait_until(lambda: not named(bed, f"brumate-container|criu.* swrk 3|{RUNC}"), "the end of those at work", 60)
                if not any("counter" in read_text(f"/proc/{pid}/comm") for pid in cgroup_pids(podman.cgroup)):
                    engine.wait(60)
                    podman.ok("container", "restore", "three")
                all_go_on(podman)
            finally:
                podman.kill_all(engine)
        shutil.rmtree(podman.dir)


@case
def container_killed_at_a_checkpoint(bed):
    """By somebody else: podman is told, and nothing of it is left."""
    with three_programs(bed) as podman:
        expect(not killed_at(bed, podman, "checkpoint", "container.gpu-checkpoint.end", "container"), "what is gone was checkpointed")
        expect(podman.status("three") == "exited", f"the container is {podman.status('three')}")
        wait_until(lambda: not any(bed.vram()), "the GPUs to be empty")


main()
