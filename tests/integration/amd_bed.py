# SPDX-License-Identifier: MIT
"""A bed on the stand-in for the kernel's driver of AMD's GPUs (tests/amd/kernel.h), with CRIU's own plugin for them, the real one.
No such hardware was asked. What the files of the driver are lies in a mount namespace of the test's own."""

import ctypes
import os
import shutil
import stat
import tempfile

from cases import Bed, wait_until
from harness import CLONE_NEWNS, SOURCE, Program, Skipped, expect, run

PLUGIN = os.path.join(SOURCE, ".amdgpu", "amdgpu_plugin.so")
CALLS = ["none", "process-info", "checkpoint", "unpause", "restore", "resume", "import", "submit", "fence"]
GPUS = 2
NODES = "/sys/class/kfd/kfd/topology/nodes"
FIRST, FIRST_UNIQUE = 1000, 0x7b6440b15cf42280  # the kernel's number and the card's own
WORDS = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18


def mount(source, target, kind=None, flags=0):
    if libc.mount(os.fsencode(source), os.fsencode(target), kind and os.fsencode(kind), flags, None) < 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_dev(scratch):
    """A /dev with what the other one has, and room for ours."""
    new = os.path.join(scratch, "dev")
    os.mkdir(new)
    mount("none", new, "tmpfs")
    os.chmod(new, 0o755)
    for name in os.listdir("/dev"):
        there, here = f"/dev/{name}", f"{new}/{name}"
        info = os.lstat(there)
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(there), here)
        elif stat.S_ISDIR(info.st_mode):
            os.mkdir(here)
            mount(there, here, flags=MS_BIND | MS_REC)
        else:
            os.mknod(here, info.st_mode, info.st_rdev)
            os.chmod(here, stat.S_IMODE(info.st_mode))
    os.makedirs(f"{new}/dri")
    mount(new, "/dev", flags=MS_BIND | MS_REC)


def number_gpus(first, first_unique):
    for i in range(GPUS):
        node = f"{NODES}/{i + 1}"
        put(f"{node}/gpu_id", f"{first + i}\n")
        put(f"{node}/properties", "cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\nio_links_count 0\nvendor_id 4098\n"
            f"device_id 29857\nlocation_id {(i + 1) << 8}\ndomain 0\ndrm_render_minor {128 + i}\nunique_id {first_unique + i}\n")


def make_sysfs(scratch):
    """A processor and two GPUs, alike, in two slots."""
    old = os.path.join(scratch, "class")
    os.mkdir(old)
    mount("/sys/class", old, flags=MS_BIND)
    mount("none", "/sys/class", "tmpfs")
    for name in os.listdir(old):
        os.symlink(os.path.join(old, name), f"/sys/class/{name}")
    os.makedirs("/sys/class/kfd/kfd/proc")
    if os.path.islink("/sys/class/drm"):
        os.unlink("/sys/class/drm")
    put(f"{NODES}/0/gpu_id", "0\n")
    put(f"{NODES}/0/properties", "cpu_cores_count 4\nsimd_count 0\n")
    os.makedirs(f"{NODES}/0/io_links")
    number_gpus(FIRST, FIRST_UNIQUE)
    for i in range(GPUS):
        node = f"{NODES}/{i + 1}"
        put(f"{node}/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 67108864\n")
        os.makedirs(f"{node}/io_links")
        put(f"/sys/class/drm/renderD{128 + i}/device/mem_info_vram_total", "67108864\n")
        put(f"/sys/class/drm/renderD{128 + i}/device/mem_info_vram_used", "0\n")


def make_place(build, scratch):
    """From now on this process and those that it starts see the driver's files, and brumate has the plugin."""
    if libc.unshare(CLONE_NEWNS) < 0:
        raise Skipped("needs a mount namespace")
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    make_dev(scratch)
    make_sysfs(scratch)
    plugins = os.path.join(build.path, "src", "criu-plugin")
    ours = os.path.join(plugins, "brumate-criu.so")
    kept = os.path.join(scratch, "brumate-criu.so")
    shutil.copy2(ours, kept)
    mount("none", plugins, "tmpfs")
    os.chmod(plugins, 0o755)
    os.mkdir(os.path.join(plugins, "amd"))
    shutil.copy2(kept, ours)
    shutil.copy2(PLUGIN, os.path.join(plugins, "amd"))
    shutil.copy2(os.path.join(os.path.dirname(PLUGIN), "VERSION"), os.path.join(plugins, "amd"))


class Place:
    """What all cases share; None where it cannot be."""

    def __init__(self):
        self.scratch = None

    def make(self, build):
        if self.scratch:
            return
        if not os.path.exists(PLUGIN):
            raise Skipped("CRIU's plugin for these GPUs is not here: tools/amdgpu-provision builds it")
        if os.path.exists("/dev/kfd"):
            raise Skipped("this machine has such GPUs")
        if not os.path.exists(os.path.join(build.path, "tests", "amd", "amd-kernel.so")):
            raise Skipped("a build with a sanitizer has no stand-in for the driver")
        self.scratch = tempfile.mkdtemp(prefix="brumate-amd-")
        make_place(build, self.scratch)
        run([os.path.join(build.path, "tests", "amd", "amd-gpu"), "make"])


PLACE = Place()


class AmdBed(Bed):
    """A bed on the stand-in's GPUs."""

    def __init__(self, build, env=None):
        PLACE.make(build)
        super().__init__(build, env, simulated=False)
        self.kernel = os.path.join(build.path, "tests", "amd", "amd-kernel.so")
        self.own.update({"BRUMATE_GPU": "real", "LD_LIBRARY_PATH": "", "BRUMATE_CRIU": self.make_criu()})
        for word in ("fail", "kill", "hold"):
            self.gpu(word, 0)
        self.renumber(FIRST, FIRST_UNIQUE)
        self.gpus_run = Program([self.amd("amd-gpu"), "run"], os.path.join(self.dir, "gpu.out"), env=dict(os.environ))
        wait_until(lambda: os.path.getsize(os.path.join(self.dir, "gpu.out")), "the GPUs")

    def renumber(self, first, first_unique):
        self.gpu("number", first)
        number_gpus(first, first_unique)

    def uuid(self, unique):
        digits = f"{unique:016x}"
        return f"GPU-00000000-0000-0000-{digits[:4]}-{digits[4:]}"

    def amd(self, name):
        return os.path.join(self.build.path, "tests", "amd", name)

    def gpu(self, *words):
        done = run([self.amd("amd-gpu"), *words])
        expect(done.code == 0, done.why())
        return done.out

    def make_criu(self):
        """The CRIU that tools/criu-provision made, with the stand-in in it."""
        path = os.path.join(self.dir, "criu")
        real = os.path.dirname(os.path.realpath(self.program("criu")))
        put(path, f'#!/bin/sh\nunset LD_PRELOAD LD_LIBRARY_PATH\nexec {real}/lib/ld-linux-x86-64.so.2 --inhibit-cache '
            f'--library-path {real}/lib --preload {self.kernel} --argv0 criu {real}/bin/criu "$@"\n')
        os.chmod(path, 0o755)
        return path

    def program_job(self, *options, name=None):
        return self.started(["env", f"LD_PRELOAD={self.kernel}", self.amd("amd-program"), *options], name)

    def broker_socket(self):
        return os.path.join(self.own["BRUMATE_RUNTIME_DIR"], "broker-amd.sock")

    def vram_at_the_end(self):
        wait_until(lambda: self.shown()[1] == 0, "the driver to forget all processes", 10)
        return self.shown()[3]

    def close(self):
        left = super().close()
        self.gpus_run.end()
        return left

    def goes_on(self, log):
        """Steps are done, none with a wrong word; those after an older checkpoint are done twice."""
        def right():
            text = log.text()
            expect("BAD" not in text, text[-300:])
            return text.count(" OK")
        before = right()
        wait_until(lambda: right() > before + 3, "the job to go on")

    def shown(self):
        """Queues that rest, processes that have the GPUs, those paused, bytes of each GPU."""
        held, processes, paused, *used = (int(word) for word in self.gpu("show").split())
        return held, processes, paused, used


def on_amd(function):
    function.bed_class = AmdBed
    return function


def used(gpus=GPUS, processes=1):
    return [WORDS * 4 * processes] * gpus + [0] * (GPUS - gpus)
