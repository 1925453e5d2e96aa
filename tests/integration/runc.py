# SPDX-License-Identifier: MIT
"""Containers that runc checkpoints and restores by itself, with brumate's plugin in its CRIU, for the integration tests and
tools/gpu-check. Their root file system is made of this machine's own libraries, the driver's among them."""

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys

from cases import SOURCE, read_text, wait_until
from harness import Failed, Log, Skipped, expect, process_start, run

PLUGIN = "brumate_plugin.so"
CGROUPS = "/sys/fs/cgroup"
# Of the driver's libraries those that programs of CUDA load.
DRIVER_LIBRARIES = r"lib(cuda|nvidia-(ptxjitcompiler|nvvm|nvvm70|gpucomp|ml|cfg))\.so"
PATIENCE_S = 60


def cgroup_mounts():
    """Where hierarchies of cgroups are, of both versions."""
    names = os.listdir(CGROUPS) if os.path.isdir(CGROUPS) else []
    return [CGROUPS, *(os.path.join(CGROUPS, name) for name in names)]


def cgroup_pids(cgroup):
    """Who is in a cgroup or in one below it, of each hierarchy."""
    files = [os.path.join(base, "cgroup.procs") for place in cgroup_mounts() for base, _, _ in os.walk(place + cgroup)]
    return {int(pid) for path in files for pid in read_text(path).split()}


def remove_cgroups(cgroup):
    """Removes a cgroup with those below it, of each hierarchy. Whether it is gone: with a process in it, it stays."""
    places = [place + cgroup for place in cgroup_mounts()]
    for place in places:
        for base, _, _ in os.walk(place, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(base)
    return not any(map(os.path.isdir, places))


def libraries_of(path):
    """What the loader would load for a program, the loader too."""
    done = run(["ldd", path], timeout=PATIENCE_S)
    expect(done.code == 0 and "not found" not in done.out, f"ldd: {done.why()}")
    return re.findall(r"(/\S+) \(0x", done.out)


def find_runc(build):
    """The machine's, or the one that came with the build, if all that it needs is here."""
    own = os.path.join(build.path, "tests", "runc")
    runc = os.environ.get("BRUMATE_TEST_RUNTIME") or shutil.which("runc") or (own if os.access(own, os.X_OK) else None)
    if not runc:
        raise Skipped("no runc")
    # Within a container it begins anew, with no path of libraries from us.
    missing = re.findall(r"(\S+) => not found", run(["ldd", runc], timeout=PATIENCE_S).out)
    if missing:
        raise Skipped(f"runc needs {', '.join(missing)}")
    return runc


def driver_folder():
    """Where libcuda.so.1 of a real GPU is: what the loader finds tells."""
    script = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"
    done = run([sys.executable, "-c", script], timeout=PATIENCE_S)
    found = re.search(r"(/\S+)/libcuda\.so\S*$", done.out, re.MULTILINE)
    if not found:
        raise Skipped(f"no libcuda.so.1: {done.err.strip()[-200:]}")
    return found[1]


def copy_driver(folder, target):
    """The libraries by which programs use the driver; their links stay links, as long as they lead to one another."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not re.match(DRIVER_LIBRARIES, name) or not os.path.exists(path):
            continue
        if os.path.islink(path) and "/" not in os.readlink(path):
            os.symlink(os.readlink(path), os.path.join(target, name))
        else:
            shutil.copy(path, os.path.join(target, name))


def gpu_devices():
    """The device nodes of a real driver, as config.json lists them."""
    devices = []
    for name in sorted(os.listdir("/dev")):
        path = os.path.join("/dev", name)
        if name.startswith("nvidia") and stat.S_ISCHR(os.stat(path).st_mode):
            number = os.stat(path).st_rdev
            devices.append({"path": path, "type": "c", "major": os.major(number), "minor": os.minor(number),
                            "fileMode": 0o666, "uid": 0, "gid": 0})
    if not devices:
        raise Skipped("no /dev/nvidia*")
    return devices


def add_device(config, spec):
    """What an engine does with a specification of CDI that has one device, as far as ours uses it."""
    expect(spec["kind"] == "brumate.dev/gpu" and [d["name"] for d in spec["devices"]] == ["on"], f"another device: {spec}")
    edits = spec["devices"][0]["containerEdits"]
    expect(set(edits) == {"env", "mounts"}, f"edits that are not known here: {edits}")
    config["process"]["env"] += edits["env"]
    for mount in edits["mounts"]:
        config["mounts"].append({"source": mount["hostPath"], "destination": mount["containerPath"],
                                 "type": mount.get("type", "bind"), "options": mount["options"]})


def allow(device):
    return {"allow": True, "type": "c", "major": device["major"], "minor": device["minor"], "access": "rwm"}


def copy_libraries(path, rootfs):
    """What the program or library needs, at the same places."""
    for library in libraries_of(path):
        target = rootfs + library
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(library, target)


def make_rootfs(bed, rootfs, names=("counter",)):
    """`sh`, programs of these tests, and the driver."""
    programs = [shutil.which("sh"), *(bed.build.program(name) for name in names)]
    for name in ("bin", "proc", "dev", "sys", "tmp", "driver"):
        os.makedirs(os.path.join(rootfs, name))
    for program in programs:
        shutil.copy(program, os.path.join(rootfs, "bin"))
        copy_libraries(program, rootfs)
    driver = os.path.join(rootfs, "driver")
    if bed.simulated:
        shutil.copy(os.path.join(bed.build.sim, "libcuda.so.1"), driver)
    else:
        copy_driver(driver_folder(), driver)
        for name in os.listdir(driver):
            copy_libraries(os.path.join(driver_folder(), name), rootfs)


def simulated_gpu_env(bed):
    """What a program in a container needs to find the simulated GPUs, whose directory it has."""
    return {"LD_LIBRARY_PATH": "/driver", **{k: v for k, v in bed.own.items() if k.startswith("BRUMATE_SIM_")}}


def find_in(bed, *places):
    """Tells brumate where the state of containers is."""
    with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
        file.write(f"[Container]\nState={':'.join(places)}\n")


def by_library(bed, container):
    """Bytes of device memory that brumate's data path moves."""
    memory = bed.ok("inspect", container.id, "--format", "json").json().get("memory", [])
    return sum(process["data_bytes"] for process in memory)


ENGINES = os.path.join(SOURCE, ".engines", "bin")  # of tools/engines-provision
# crun wants cgroups to be of one version: where there are both, it sees the first.
CRUN = """#!/bin/sh
[ ! -d {cgroups}/unified ] || [ "$1" = --inner ] || exec unshare --mount --propagation private "$0" --inner "$@"
[ "$1" != --inner ] || {{ shift; umount --lazy {cgroups}/unified || exit; }}
exec {crun} "$@"
"""


def check_cgroup_of_crun():
    """Of version 1, crun 1.21 takes the first hierarchy that it is in for all, and the end of its restore kills what is in that cgroup
    beside it. Where nothing is mounted, as of a hierarchy that a killed CRIU has left, that is the root: all restores at the same time, and
    whatever else is there."""
    lines = [line.split(":")[1] for line in read_text("/proc/self/cgroup").splitlines()]
    first = next(name for name in lines if name != "memory")
    if first and not os.path.isdir(os.path.join(CGROUPS, first.removeprefix("name="))):
        raise Skipped(f"crun would kill all that is in the root cgroup of this machine, as its hierarchy {first} is not mounted")


def find_tool(name):
    return shutil.which(name, path=f"{ENGINES}:{os.environ['PATH']}")


def find_crun(bed):
    """One that was built with CRIU, which that of Debian 12 is not; by what is found in the PATH of brumate."""
    crun = find_tool("crun")
    if not crun or "+CRIU" not in run([crun, "--version"], timeout=PATIENCE_S).out:
        raise Skipped("no crun with CRIU: tools/engines-provision gets one")
    check_cgroup_of_crun()
    path = os.path.join(bed.dir, "engine", "crun")
    os.mkdir(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(CRUN.format(cgroups=CGROUPS, crun=crun))
    os.chmod(path, 0o755)
    bed.own["PATH"] = f"{os.path.dirname(path)}:{os.environ['PATH']}"
    return path


def find_criu(bed):
    """The CRIU that runc is to use, for which this takes root."""
    criu = os.environ.get("BRUMATE_TEST_RUNTIME_CRIU") or os.path.join(bed.build.path, "src", "criu", "criu")
    if os.geteuid() != 0 or not os.access(criu, os.X_OK):
        raise Skipped("containers are checkpointed by root, with the provisioned CRIU")
    return criu


class Container:
    """A container of runc, with its bundle in the directory of an instance of brumate."""

    def __init__(self, bed, command, name="c", library=False, change=None, runtime=None,
                 programs=("counter",)):
        """With the library it has the device of `brumate cdi`. @change may change its config.json. @runtime: instead of runc."""
        self.runc_path = runtime or find_runc(bed.build)
        self.hidden = "unified" if runtime else None  # the hierarchy that the wrapper of crun hides from it
        self.criu = find_criu(bed)
        self.bed, self.name = bed, name
        self.id = self.cgroup = f"brumate-test-{os.getpid()}-{name}"
        self.dir = os.path.join(bed.dir, name)
        self.rootfs = os.path.join(self.dir, "rootfs")
        self.image = os.path.join(self.dir, "image")
        self.init = None  # pid and start time of the last one seen
        self.env = self._environment()
        self._fill_rootfs(programs)
        self._make_config(command, library, change)

    def _environment(self):
        path = os.path.join(self.dir, "path")
        os.makedirs(path)
        os.symlink(self.criu, os.path.join(path, "criu"))
        config = {"CRIU_CONFIG_FILE": os.path.join(self.dir, "criu.conf")} if self.hidden else {}  # crun heeds no annotation
        return self.bed.command_env({"PATH": path + ":" + os.environ["PATH"], **config})

    def _make_config(self, command, library, change):
        done = run([self.runc_path, "spec", "--bundle", self.dir], env=self.env, timeout=PATIENCE_S)
        expect(done.code == 0, done.why())
        path = os.path.join(self.dir, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["process"].update(terminal=False, args=["/bin/sh", "-c", command])
        config["process"].pop("rlimits", None)  # which take a capability that this machine may lack
        config["root"]["readonly"] = False
        self._add_gpus(config)
        # CRIU locks a network of the container's own by tools that not every machine has.
        config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] not in ("network", "cgroup")]
        config["linux"]["cgroupsPath"] = "/" + self.cgroup
        if library:
            add_device(config, self.bed.ok("cdi").json())
        if change:
            change(config)
        config["annotations"] = {"org.criu.config": os.path.join(self.dir, "criu.conf")}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.use_plugin(True)

    def _fill_rootfs(self, programs):
        make_rootfs(self.bed, self.rootfs, programs)

    def _add_gpus(self, config):
        if self.bed.simulated:
            self._add_simulated(config)
            return
        devices = gpu_devices()
        config["process"]["env"] += ["LD_LIBRARY_PATH=/driver"]
        config["linux"]["devices"] = devices
        config["linux"]["resources"]["devices"] += [allow(device) for device in devices]

    def _add_simulated(self, config):
        sim = self.bed.own["BRUMATE_SIM_DIR"]
        os.makedirs(sim, exist_ok=True)
        config["process"]["env"] += [f"{k}={v}" for k, v in simulated_gpu_env(self.bed).items()]
        config["mounts"].append({"destination": sim, "type": "bind", "source": sim, "options": ["rbind", "rw"]})

    def edit(self, change):
        """Changes the config.json, for a restore."""
        path = os.path.join(self.dir, "config.json")
        config = json.loads(read_text(path))
        change(config)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)

    def use_plugin(self, use):
        """What the engine's CRIU is told: where the plugin is, or a folder without any."""
        folder = os.path.dirname(self.bed.build.program(PLUGIN)) if use else os.path.join(self.dir, "path")
        with open(os.path.join(self.dir, "criu.conf"), "w", encoding="utf-8") as file:
            file.write(f"libdir {folder}\n")

    def spawn(self, *words):
        """A command of runc; what it starts keeps none of our pipes. A CRIU that is killed leaves its mounts, among them all
        of the machine's cgroups; so it has mounts of its own, which go with it."""
        log = os.path.join(self.dir, "runc.log")
        argv = ["unshare", "--mount", "--propagation", "private",
                self.runc_path, "--root", os.path.join(self.dir, "state"), "--log", log, *words]
        return subprocess.Popen(argv, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def runc(self, *words, timeout=PATIENCE_S):
        """The same, to its end; its exit code."""
        process = self.spawn(*words)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise Failed(f"runc {words[0]}: no end within {timeout} s; {self.last_words()}") from error

    def last_words(self):
        """What runc, CRIU and the plugin said last."""
        logs = [os.path.join(self.dir, "runc.log")]
        logs += [os.path.join(self.image, name) for name in ("dump.log", "restore.log", "brumate.log")]
        return "; ".join(f"{os.path.basename(path)}: {read_text(path).strip()[-300:]}" for path in logs if read_text(path))

    def log(self, name="out"):
        return Log(os.path.join(self.rootfs, "tmp", name))

    def start(self, names=("out",), seconds=PATIENCE_S):
        # A process of another user namespace or with fewer rights cannot do this, and neither can this test then.
        if self.runc("run", "--detach", "--bundle", self.dir, self.id) != 0:
            raise Skipped(f"runc starts no container here: {read_text(os.path.join(self.dir, 'runc.log'))[-300:]}")
        self.note_init()
        for name in names:
            path = os.path.join(self.rootfs, "tmp", name)
            wait_until(lambda path=path: os.path.exists(path), f"{name} in the container")
            self.log(name).wait_until(lambda text, name=name: self._is_ready(text, name), f"{name} in the container to be ready",
                                      seconds)
        return self

    def _is_ready(self, text, name):
        found = re.search("^ready ", text, re.MULTILINE)
        expect(found or self.lives(), f"the container has ended; {name} said: {text[-300:]}")
        return found

    def _state(self):
        argv = [self.runc_path, "--root", os.path.join(self.dir, "state"), "state", self.id]
        done = run(argv, env=self.env, timeout=PATIENCE_S)
        return json.loads(done.out) if done.code == 0 else {"status": "none", "pid": 0}

    def note_init(self):
        pid = self._state()["pid"]
        self.init = (pid, process_start(pid)) if pid else None

    def lives(self):
        return bool(self.init) and self.init[1] is not None and process_start(self.init[0]) == self.init[1]

    def state(self):
        return self._state()["status"]

    def dump_log(self, name="dump.log"):
        with open(os.path.join(self.image, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def checkpoint(self, *options, timeout=PATIENCE_S):
        os.makedirs(self.image, exist_ok=True)
        return self.runc(*self.checkpoint_words(), *options, self.id, timeout=timeout)

    def checkpoint_words(self):
        return ["checkpoint", "--image-path", self.image, "--work-path", self.image]

    def restore(self, *options, timeout=PATIENCE_S):
        code = self.runc("restore", "--detach", "--image-path", self.image, "--work-path", self.image,
                         "--bundle", self.dir, *options, self.id, timeout=timeout)
        self.note_init()
        return code

    def saved(self, timeout=PATIENCE_S):
        code = self.checkpoint(timeout=timeout)
        expect(code == 0, f"the checkpoint failed: {self.reason('dump.log')}")
        expect(self.state() in ("none", "stopped"), f"the container is {self.state()} after its checkpoint")
        return self

    def restored(self, timeout=PATIENCE_S):
        code = self.restore(timeout=timeout)
        expect(code == 0, f"the restore failed: {self.reason('restore.log')}")
        return self

    def reason(self, name):
        """The lines of CRIU's log that tell why; where there is none, what there is."""
        path = os.path.join(self.image, name)
        told = [line for line in read_text(path).splitlines() if "Error" in line or "brumate" in line]
        return " / ".join(told)[-900:] or self.last_words()

    def cgroups(self):
        """The cgroups of the container that are there, of all versions."""
        return [path for path in (os.path.join(place, self.cgroup) for place in cgroup_mounts()) if os.path.isdir(path)]

    def end(self):
        self.runc("delete", "--force", self.id)
        if self.lives():
            os.kill(self.init[0], 9)
            wait_until(lambda: not self.lives(), "the end of the container's init")
        left = [line.split()[4] for line in read_text("/proc/self/mountinfo").splitlines() if self.dir + "/" in line]
        for path in reversed(left):
            subprocess.run(["umount", "--lazy", path], check=False)
        expect(not left, f"mounts are left: {left}")
        if self.hidden:  # CRIU has restored its cgroup
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(CGROUPS, self.hidden, self.cgroup))
        left = self.cgroups()
        for path in left:
            subprocess.run(["rmdir", path], check=False)
        expect(not left, f"cgroups are left: {left}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.end()
        except Failed as failed:
            if not kind:  # else that is what matters
                raise
            self.bed.note(str(failed))


# ---- what goes wrong ----

def fails_and_goes_on(container, point, action, reason):
    """A checkpoint during which that happens fails, says why in its log, and the container has its GPU."""
    container.bed.fault(point, action)
    expect(container.checkpoint() != 0, f"{point} {action}: the checkpoint did not fail")
    expect(not os.path.exists(container.bed.fault_file), f"{point} was not reached")
    if reason:
        expect(re.search(reason, container.dump_log()), f"{point} {action}: {container.reason('dump.log')}")
    expect(container.state() == "running", f"{point} {action}: the container is {container.state()}")
    container.log().goes_on()
    shutil.rmtree(container.image)


def kill_engine_at(container, point):
    """A checkpoint whose runc is killed while the helper is at that point, until its CRIU has ended."""
    fifo = container.bed.fault_file + ".held"
    container.bed.fault(point, "hold")
    os.makedirs(container.image)
    engine = container.spawn(*container.checkpoint_words(), container.id)
    wait_until(lambda: os.path.exists(fifo) or engine.poll() is not None, f"{point} to be reached")
    expect(engine.poll() is None, f"{point} was not reached: {container.reason('dump.log')}")
    threads = os.listdir(f"/proc/{engine.pid}/task")
    criu = [int(pid) for tid in threads for pid in read_text(f"/proc/{engine.pid}/task/{tid}/children").split()]
    engine.kill()
    engine.wait()
    with open(fifo, "wb"):  # whoever waits there is gone as soon as it is open
        pass
    for pid in criu:
        wait_until(lambda pid=pid: process_start(pid) is None, "the end of CRIU", 60)


def fails_and_can_be_repeated(container, point, action, reason):
    """A restore during which that happens fails, says why in its log, and leaves no container but the image."""
    container.bed.fault(point, action)
    expect(container.restore() != 0, f"{point} {action}: the restore did not fail")
    expect(not os.path.exists(container.bed.fault_file), f"{point} was not reached: {container.reason('restore.log')}")
    # Where CRIU was killed, the helper ends what is there of the container after runc has ended.
    wait_until(lambda: not [p for p in container.bed.processes() if "brumate-container" in p[1]], "the helper's end", 60)
    if reason:
        expect(re.search(reason, container.dump_log("restore.log")), f"{point} {action}: {container.reason('restore.log')}")
    expect(container.state() in ("none", "stopped"), f"{point} {action}: the container is {container.state()}")
    container.end()
