# SPDX-License-Identifier: MIT
"""podman with storage of its own, for the integration tests. Its runc finds brumate's plugin by an annotation."""

import contextlib
import os
import shutil
import subprocess

from cases import expect, read_text, wait_until
from harness import Log, Skipped, run
from runc import PLUGIN, cgroup_mounts, find_criu, make_rootfs, simulated_gpu_env

COUNTER = "exec /bin/counter --mib 64 --chunk-mib 16 --interval-ms 20 > /out/counter"
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

    def env_for_brumate(self):
        """With it, the podman that brumate runs is this one."""
        storage = self.file("storage.conf", f'[storage]\ndriver = "vfs"\ngraphroot = "{self.dir}/root"\n'
                            f'runroot = "{self.dir}/runroot"\n')
        return {"CONTAINERS_CONF": self.env["CONTAINERS_CONF"], "CONTAINERS_STORAGE_CONF": storage}

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
