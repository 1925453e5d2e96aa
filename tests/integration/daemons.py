#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers of containerd and of docker, by daemons of these tests' own: checkpointed and restored by their commands alone. Programs
of the simulated driver run in them. BRUMATE_TEST_ENGINES names a folder with the programs where they are not installed, as
`dpkg-deb -x` unpacks the packages containerd and docker.io."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess

from cases import case, expect, main, read_text, wait_until
from harness import Log, Skipped, run
from runc import PLUGIN, find_criu, find_runc, make_rootfs, remove_cgroups, simulated_gpu_env

PATIENCE_S = 120
OCI = "application/vnd.oci.image"
COUNTER = "exec /bin/counter --mib 64 --chunk-mib 16 --interval-ms 60 > /out/counter"
CONTAINERD = """version = 2
root = "{0}/root"
state = "{0}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{0}/sock"
"""


class Daemons:
    """containerd, and what else of daemons is asked for, in a mount namespace that goes with them."""

    def __init__(self, bed, *programs):
        self.bed, self.dir, self.cgroup = bed, os.path.join(bed.dir, "daemons"), f"/{os.path.basename(bed.dir)}"
        folder = os.environ.get("BRUMATE_TEST_ENGINES", "/nonexistent")
        self.path = f"{self.dir}/bin:{folder}/usr/bin:{folder}/usr/sbin:{os.environ['PATH']}"
        for program in ("containerd", "containerd-shim-runc-v2", *programs):
            if not shutil.which(program, path=self.path):
                raise Skipped(f"no {program}")
        self.out, self.sim = os.path.join(self.dir, "out"), bed.own["BRUMATE_SIM_DIR"]
        for path in (self.out, self.sim, os.path.join(self.dir, "bin")):
            os.makedirs(path)
        self._write_runtime()
        self.rootfs = os.path.join(self.dir, "rootfs")
        make_rootfs(bed, self.rootfs)
        expect(run(["tar", "-C", self.rootfs, "-cf", self.rootfs + ".tar", "."]).code == 0, "no archive of the root file system")
        self.env = {**os.environ, "PATH": self.path, "CONTAINERD_ADDRESS": f"{self.dir}/sock", "DOCKER_HOST": f"unix://{self.dir}/docker"}
        self.process = None

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def _write_runtime(self):
        """A runc that knows this instance of brumate, and whose CRIU finds the plugin, as a node's configuration would have it."""
        conf = self.file("criu.conf", f"libdir {os.path.dirname(self.bed.build.program(PLUGIN))}\n")
        env = "".join(f"export {k}='{v}'\n" for k, v in {**self.bed.own, "CRIU_CONFIG_FILE": conf}.items())
        self.file("bin/criu", f"#!/bin/sh\nexec {find_criu(self.bed)} \"$@\"\n", 0o700)
        self.file("bin/runc", f"#!/bin/sh\n{env}PATH={self.dir}/bin:$PATH exec {find_runc(self.bed.build)} \"$@\"\n", 0o700)

    def start(self, script, socket):
        self.file("containerd.toml", CONTAINERD.format(self.dir))
        script = f"containerd -c {self.dir}/containerd.toml > {self.dir}/containerd.log 2>&1 &\n{script}"
        self.process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], env=self.env,
                                        stdin=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: self.process.poll() is not None or os.path.exists(os.path.join(self.dir, socket)), "the daemon", PATIENCE_S)
        if self.process.poll() is not None:
            raise Skipped(f"no daemon here: {read_text(self.dir + '/containerd.log')[-300:]} {read_text(self.dir + '/docker.log')[-300:]}")

    def cli(self, *words):
        return run(words, env=self.env, timeout=PATIENCE_S)

    def ok(self, *words):
        done = self.cli(*words)
        expect(done.code == 0, f"{done.why()} {self.reason()}")
        return done.out.strip()

    def log(self):
        log = Log(os.path.join(self.out, "counter"))
        wait_until(lambda: os.path.exists(log.path), "the output of the container")
        log.wait_for("^ready ", PATIENCE_S)
        return log

    def reason(self):
        """What CRIU and the plugin said of failures."""
        found = []
        for base, _, names in os.walk(self.dir):
            for name in set(names) & {"dump.log", "criu-dump.log", "restore.log"}:
                lines = read_text(os.path.join(base, name)).splitlines()
                found += [f"{name}: {line}" for line in lines if "Error" in line or "brumate" in line]
        return " / ".join(found)[-900:]

    def _ours(self):
        """Shims, the daemons, and what is in the containers."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            told = read_text(f"/proc/{name}/cmdline").split("\0") + read_text(f"/proc/{name}/cgroup").splitlines()
            if any(self.dir + "/" in word or word.split("::")[0].rpartition(":")[2].startswith(self.cgroup) for word in told):
                found.append(int(name))
        return found

    def end(self):
        for process in self._ours():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if self.process:
            self.process.wait()
        wait_until(lambda: not self._ours(), "the end of the daemons", PATIENCE_S)
        wait_until(lambda: remove_cgroups(self.cgroup), "the end of what is in the cgroups", PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def blob(folder, data):
    digest = hashlib.sha256(data).hexdigest()
    with open(os.path.join(folder, "blobs", "sha256", digest), "wb") as file:
        file.write(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def image_archive(daemons):
    """The root file system as containerd imports it."""
    folder = os.path.join(daemons.dir, "image")
    os.makedirs(os.path.join(folder, "blobs", "sha256"))
    with open(daemons.rootfs + ".tar", "rb") as file:
        layer = blob(folder, file.read())
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]},
              "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
    manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
                "config": {"mediaType": f"{OCI}.config.v1+json", **blob(folder, json.dumps(config).encode())},
                "layers": [{"mediaType": f"{OCI}.layer.v1.tar", **layer}]}
    index = {"schemaVersion": 2, "manifests": [{"mediaType": f"{OCI}.manifest.v1+json", **blob(folder, json.dumps(manifest).encode()),
                                                "annotations": {"io.containerd.image.name": "docker.io/library/job:1"}}]}
    for name, value in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    daemons.ok("tar", "-C", folder, "-cf", folder + ".tar", ".")
    return folder + ".tar"


def options(daemons, mount):
    env = [word for k, v in simulated_gpu_env(daemons.bed).items() for word in ("--env", f"{k}={v}")]
    return env + [word for place in ((daemons.sim, daemons.sim), (daemons.out, "/out")) for word in mount(*place)]


@case
def containerd(bed):
    """containerd pauses a container that it checkpoints, and lets it go on. What the program has written since then is in the way of
    a restore, as CRIU expects files as they were: it is taken back, as a snapshot of the volume would do."""
    one, two, three = (f"brumate-test-{os.getpid()}-{n}" for n in (1, 2, 3))  # runc's state is the machine's
    with Daemons(bed, "ctr") as daemons:
        daemons.start("wait", "sock")
        daemons.ok("ctr", "image", "import", "--snapshotter", "native", image_archive(daemons))
        daemons.ok("ctr", "run", "--detach", "--null-io", "--snapshotter", "native", "--cgroup", daemons.cgroup,
                   *options(daemons, lambda a, b: ("--mount", f"type=bind,src={a},dst={b},options=rbind:rw")),
                   "docker.io/library/job:1", one, "/bin/sh", "-c", COUNTER)
        log = daemons.log()
        log.goes_on()
        daemons.ok("ctr", "containers", "checkpoint", "--image", "--task", one, "saved")
        log.goes_on()
        daemons.ok("ctr", "task", "kill", "--signal", "KILL", one)
        wait_until(lambda: "STOPPED" in daemons.ok("ctr", "task", "ls"), "the end of the container", PATIENCE_S)
        daemons.ok("ctr", "task", "rm", one)
        daemons.ok("ctr", "containers", "rm", one)
        refused = daemons.cli("ctr", "containers", "restore", "--live", two, "saved")
        size = re.search(r"File out/counter has bad size \d+ \(expect (\d+)\)", daemons.reason())
        expect(refused.code != 0 and size, f"{refused.why()} {daemons.reason()}")
        os.truncate(log.path, int(size[1]))
        daemons.ok("ctr", "containers", "restore", "--live", three, "saved")
        log.goes_on()
        daemons.ok("ctr", "task", "rm", "--force", three)


def starts(daemons):
    """docker hands the checkpoint to containerd, which at times still has it of its making, and refuses it for that."""
    done = daemons.cli("docker", "start", "--checkpoint", "saved", "one")
    expect(done.code == 0 or "already exists" in done.err, f"{done.why()} {daemons.reason()}")
    return done.code == 0


@case
def docker(bed):
    """docker ends a container that it checkpoints."""
    with Daemons(bed, "dockerd", "docker") as daemons:
        settings = daemons.file("docker.json", "{}")
        daemons.start(f"exec dockerd --config-file {settings} --data-root {daemons.dir}/docker-root --exec-root {daemons.dir}/docker-exec "
                      f"--pidfile {daemons.dir}/docker.pid --host unix://{daemons.dir}/docker --containerd {daemons.dir}/sock "
                      "--bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --storage-driver vfs "
                      f"--experimental --cgroup-parent {daemons.cgroup} --add-runtime ours={daemons.dir}/bin/runc --default-runtime ours "
                      f"> {daemons.dir}/docker.log 2>&1", "docker")
        wait_until(lambda: daemons.cli("docker", "version").code == 0, "the daemon", PATIENCE_S)
        daemons.ok("docker", "import", daemons.rootfs + ".tar", "job:1")
        daemons.ok("docker", "run", "--detach", "--name", "one", "--network", "none",
                   *options(daemons, lambda a, b: ("--volume", f"{a}:{b}")), "job:1", "/bin/sh", "-c", COUNTER)
        log = daemons.log()
        log.goes_on()
        daemons.ok("docker", "checkpoint", "create", "one", "saved")
        wait_until(lambda: daemons.ok("docker", "inspect", "--format", "{{.State.Status}}", "one") == "exited", "its end", PATIENCE_S)
        wait_until(lambda: starts(daemons), "the restore", PATIENCE_S)
        log.goes_on()
        daemons.ok("docker", "rm", "--force", "one")


main()
