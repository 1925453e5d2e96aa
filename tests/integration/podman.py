#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers of podman, whose runc finds brumate's plugin by an annotation: checkpointed and restored by podman's commands
alone, in place, through an archive and through an image. Programs of the simulated driver run in them."""

import os
import tarfile

from cases import case, expect, main
from podman_engine import Podman, cdi_device


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


main()
