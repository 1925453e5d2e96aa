#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers of podman, whose runc finds brumate's plugin by an annotation: checkpointed and restored by podman's commands
alone, in place, through an archive and through an image. Programs of the simulated driver run in them."""

import contextlib
import json
import os
import shutil
import subprocess
import tarfile

from cases import case, expect, main, read_text, wait_until
from harness import Log, Skipped, run
from runc import PLUGIN, cgroup_mounts, find_criu, make_rootfs, simulated_gpu_env

COUNTER = "exec /bin/counter --mib 64 --chunk-mib 16 --interval-ms 20 > /out/counter"
CDI = "/run/cdi"
PATIENCE_S = 120


class Podman:
    """podman with storage of its own, and an image of the programs of these tests."""

    def __init__(self, bed):
        self.path, self.runc = shutil.which("podman"), shutil.which("runc")
        if not self.path or not self.runc:
            raise Skipped("no podman with runc")
        self.bed, self.dir = bed, os.path.join(bed.dir, "podman")
        self.out, self.cgroup = os.path.join(self.dir, "out"), f"/{os.path.basename(bed.dir)}"
        for path in (self.out, bed.own["BRUMATE_SIM_DIR"], os.path.join(self.dir, "bin")):
            os.makedirs(path, exist_ok=True)
        self._write_settings(find_criu(bed))
        rootfs = os.path.join(self.dir, "rootfs")
        make_rootfs(bed, rootfs)
        expect(run(["tar", "-C", rootfs, "-cf", rootfs + ".tar", "."]).code == 0, "no archive of the root file system")
        self.ok("import", rootfs + ".tar", "job")

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def _write_settings(self, criu):
        """podman gives runc no environment but a path, so what the plugin needs of ours comes from a runc of ours."""
        path = os.path.join(self.dir, "bin")
        os.symlink(criu, os.path.join(path, "criu"))
        env = "".join(f"export {k}='{v}'\n" for k, v in self.bed.own.items())
        runtime = self.file("bin/runc", f"#!/bin/sh\n{env}PATH={path}:$PATH exec {self.runc} \"$@\"\n", 0o700)
        conf = self.file("containers.conf", f'[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
                         f'[engine]\nlock_type = "file"\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\n'
                         f'runtime = "{runtime}"\ntmp_dir = "{self.dir}/tmp"\n')
        self.criu_conf = self.file("criu.conf", f"libdir {os.path.dirname(self.bed.build.program(PLUGIN))}\n")
        self.env = {**os.environ, "CONTAINERS_CONF": conf, "PATH": path + ":" + os.environ["PATH"]}

    def podman(self, *words):
        places = ["--root", f"{self.dir}/root", "--runroot", f"{self.dir}/runroot", "--storage-driver", "vfs"]
        return run([self.path, *places, *words], env=self.env, timeout=PATIENCE_S)

    def ok(self, *words):
        done = self.podman(*words)
        expect(done.code == 0, f"{done.why()} {self.reason()}")
        return done.out.strip()

    def start(self, name, *options):
        sim = self.bed.own["BRUMATE_SIM_DIR"]
        env = [word for k, v in simulated_gpu_env(self.bed).items() for word in ("--env", f"{k}={v}")]
        done = self.podman("run", "--detach", "--name", name, "--network", "none", "--cgroup-parent", self.cgroup,
                           "--annotation", f"org.criu.config={self.criu_conf}", "--volume", f"{sim}:{sim}",
                           "--volume", f"{self.out}:/out", *env, *options, "job", "/bin/sh", "-c", COUNTER)
        if done.code != 0:
            raise Skipped(f"podman starts no container here: {done.why()}")
        wait_until(lambda: os.path.exists(self.log().path), "the output of the container")
        self.log().wait_for("^ready ")
        return self

    def log(self):
        return Log(os.path.join(self.out, "counter"))

    def status(self, name):
        return self.ok("inspect", "--format", "{{.State.Status}}", name)

    def reason(self):
        """What CRIU and the plugin said of failures, of all containers."""
        found = []
        for base, _, names in os.walk(os.path.join(self.dir, "root")):
            for name in set(names) & {"dump.log", "restore.log", "brumate.log"}:
                lines = read_text(os.path.join(base, name)).splitlines()
                found += [f"{name}: {line}" for line in lines if "Error" in line or "brumate" in line]
        return " / ".join(found)[-900:]

    def end(self):
        self.podman("rm", "--all", "--force", "--time", "0")
        left = [line.split()[4] for line in read_text("/proc/self/mountinfo").splitlines() if self.dir + "/" in line]
        for path in reversed(left):
            subprocess.run(["umount", "--lazy", path], check=False)
        # conmon is in them, and what it has podman do when a container ends.
        wait_until(self._remove_cgroups, "the end of conmon")
        expect(not left, f"mounts are left: {left}")

    def _remove_cgroups(self):
        for place in cgroup_mounts():
            for base, _, _ in os.walk(place + self.cgroup, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(base)
        return not any(os.path.isdir(place + self.cgroup) for place in cgroup_mounts())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


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


@contextlib.contextmanager
def cdi_device(bed):
    """The device of `brumate cdi`, under a name of its own: the folder is the machine's."""
    spec = bed.ok("cdi").json()
    spec["devices"][0]["name"] = name = os.path.basename(bed.dir)
    os.makedirs(CDI, exist_ok=True)
    path = os.path.join(CDI, f"{name}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    try:
        yield f"{spec['kind']}={name}"
    finally:
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(CDI)


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
