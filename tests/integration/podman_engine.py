# SPDX-License-Identifier: MIT
"""podman with storage of its own, for the integration tests and tools/gpu-check. Its runc finds brumate's plugin by an annotation."""

import contextlib
import json
import os
import shutil
import signal
import subprocess

from cases import expect, read_text, wait_until
from harness import Log, Skipped, run
from runc import PLUGIN, cgroup_pids, find_criu, find_runc, gpu_devices, make_rootfs, remove_cgroups, simulated_gpu_env

COUNTER = "/bin/counter --mib {mib} --chunk-mib {chunk} --interval-ms 60 > /out/{name}"
PATIENCE_S = 300
CDI = "/run/cdi"


@contextlib.contextmanager
def cdi_device(bed):
    """The device of `brumate cdi`, under a name of its own: the folder is the machine's."""
    spec = bed.ok("cdi").json()
    spec["devices"][0]["name"] = name = os.path.basename(bed.dir)
    os.makedirs(CDI, exist_ok=True)
    path = os.path.join(CDI, f"{name}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:  # a podman that reads half of one knows no device
        json.dump(spec, file)
    os.rename(path + ".new", path)
    try:
        yield f"{spec['kind']}={name}"
    finally:
        os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(CDI)


KEEP_LOGS = """{runc} "$@"
code=$?
for word; do
	[ "$before" != --work-path ] || cp "$word"/*.log {dir}/logs
	before=$word
done
echo "$(date +%s.%N) end $*" >> {dir}/steps
exit $code
"""


def find_podman(build):
    """(podman, its conmon or None): bin/podman with bin/conmon in the folder that a variable names, the machine's, or those that
    came with the build."""
    folder = os.environ.get("BRUMATE_TEST_PODMAN")
    path = shutil.which("podman")
    if path and not folder:
        return path, None
    folder = folder or os.path.join(build.path, "tests", "podman")
    path = os.path.join(folder, "bin", "podman")
    if not os.access(path, os.X_OK):
        raise Skipped("no podman")
    return path, os.path.join(folder, "bin", "conmon")


class Podman:
    """podman with storage of its own, and an image of the programs of these tests. The driver is a volume. @logs: `logs` in its
    directory has those of CRIU and the plugin, which podman removes, and `steps` says when which program began."""

    def __init__(self, bed, logs=False):
        self.logs = logs
        self.path, self.conmon = find_podman(bed.build)
        self.runc = find_runc(bed.build)
        self.bed, self.dir = bed, os.path.join(bed.dir, "podman")
        self.out, self.cgroup = os.path.join(self.dir, "out"), f"/{os.path.basename(bed.dir)}"
        for path in (self.out, os.path.join(self.dir, "logs"), bed.own.get("BRUMATE_SIM_DIR", self.dir), os.path.join(self.dir, "bin")):
            os.makedirs(path, exist_ok=True)
        self.criu = find_criu(bed)
        self._write_settings()
        rootfs = os.path.join(self.dir, "rootfs")
        self._fill_rootfs(rootfs)
        self.driver = os.path.join(self.dir, "driver")
        os.rename(os.path.join(rootfs, "driver"), self.driver)
        expect(run(["tar", "-C", rootfs, "-cf", rootfs + ".tar", "."]).code == 0, "no archive of the root file system")
        policy = self.file("policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')
        self.ok("import", "--signature-policy", policy, rootfs + ".tar", "job")

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def _fill_rootfs(self, rootfs):
        make_rootfs(self.bed, rootfs)

    def _write_settings(self):
        """podman gives runc no environment but a path, so what the plugin needs of ours comes from a runc of ours."""
        path = os.path.join(self.dir, "bin")
        self.write_criu()
        env = "".join(f"export {k}='{v}'\n" for k, v in self.bed.own.items())
        runc = f"unshare --mount --propagation private {self.runc}"  # a CRIU that is killed leaves its mounts
        run_it = KEEP_LOGS.format(runc=runc, dir=self.dir) if self.logs else f"exec {runc} \"$@\"\n"
        runtime = self.file("bin/runc", f"#!/bin/sh\nunset LD_LIBRARY_PATH\n{env}export PATH={path}:$PATH\n"
                            f"{self._tell('runc')}{run_it}", 0o700)
        conf = self.file("containers.conf", f'[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
                         f'[engine]\nlock_type = "file"\nevents_logger = "none"\ncgroup_manager = "cgroupfs"\n'
                         f'runtime = "{runtime}"\ntmp_dir = "{self.dir}/tmp"\n'
                         + (f'conmon_path = ["{self.conmon}"]\n' if self.conmon else ""))
        self.use_plugins(os.path.dirname(self.bed.build.program(PLUGIN)))
        self.env = {**os.environ, "CONTAINERS_CONF": conf, "PATH": path + ":" + os.environ["PATH"]}

    def _tell(self, name):
        return f'echo "$(date +%s.%N) {name} $*" >> {self.dir}/steps\n' if self.logs else ""

    def write_criu(self, env=""):
        self.file("bin/criu", f"#!/bin/sh\n{self._tell('criu')}{env} exec {self.criu} \"$@\"\n", 0o700)

    def use_plugins(self, folder, *more):
        """What the CRIU of containers that begin from now on is told."""
        self.criu_conf = self.file("criu.conf", "\n".join([f"libdir {folder}", *more, ""]))

    def env_for_brumate(self):
        """With it, the podman that brumate runs is this one."""
        storage = self.file("storage.conf", f'[storage]\ndriver = "vfs"\ngraphroot = "{self.dir}/root"\n'
                            f'runroot = "{self.dir}/runroot"\n')
        return {"CONTAINERS_CONF": self.env["CONTAINERS_CONF"], "CONTAINERS_STORAGE_CONF": storage}

    def argv(self, *words):
        return [self.path, "--root", f"{self.dir}/root", "--runroot", f"{self.dir}/runroot", "--storage-driver", "vfs", *words]

    def podman(self, *words):
        return run(self.argv(*words), env=self.env, timeout=PATIENCE_S)

    def spawn(self, *words):
        return subprocess.Popen(self.argv(*words), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def ok(self, *words):
        done = self.podman(*words)
        expect(done.code == 0, f"{done.why()} {self.reason()}")
        return done.out.strip()

    @staticmethod
    def _command(mib, name):
        return COUNTER.format(mib=mib, chunk=min(mib // 4, 64), name=name)

    def _gpus(self):
        """Options by which a container has GPUs and the driver."""
        words = ["--volume", f"{self.driver}:/driver:ro"]
        if not self.bed.simulated:
            return [*words, "--env", "LD_LIBRARY_PATH=/driver",
                    *(word for device in gpu_devices() for word in ("--device", device["path"]))]
        sim = self.bed.own["BRUMATE_SIM_DIR"]
        words += ["--volume", f"{sim}:{sim}"]
        return words + [word for k, v in simulated_gpu_env(self.bed).items() for word in ("--env", f"{k}={v}")]

    def start(self, name, *options, mib=64, programs=("counter",)):
        """A program for each of these names, which is that of its output."""
        each = [self._command(mib, program) for program in programs]
        command = f"exec {each[0]}" if len(each) == 1 else " & ".join([*each, "wait"])
        done = self.podman("run", "--detach", "--name", name, "--network", "none", "--cgroup-parent", self.cgroup,
                           "--annotation", f"org.criu.config={self.criu_conf}", "--volume", f"{self.out}:/out",
                           *self._gpus(), *options, "job", "/bin/sh", "-c", command)
        if done.code != 0:
            raise Skipped(f"podman starts no container here: {done.why()}")
        for program in programs:
            wait_until(lambda log=self.log(program): os.path.exists(log.path), "the output of the container")
            self.log(program).wait_for("^ready ", PATIENCE_S)
        return self

    def log(self, program="counter"):
        return Log(os.path.join(self.out, program))

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

    def kill_all(self, engine):
        """Podman, conmon, and what is in the containers; a podman that was killed may know of none and leave their mounts."""
        for pid in [engine.pid, *cgroup_pids(self.cgroup)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        engine.wait()
        self._unmount()

    def _unmount(self):
        left = [line.split()[4] for line in read_text("/proc/self/mountinfo").splitlines() if self.dir + "/" in line]
        for path in reversed(left):
            subprocess.run(["umount", "--lazy", path], check=False)
        return left

    def end(self):
        self.podman("rm", "--all", "--force", "--time", "0")
        left = self._unmount()
        # conmon is in them, and what it has podman do when a container ends.
        wait_until(lambda: remove_cgroups(self.cgroup), "the end of conmon")
        expect(not left, f"mounts are left: {left}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
