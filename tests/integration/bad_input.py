#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What brumate refuses, and that it harms nothing in doing so: each case looks at the exit code, at the
one line that says why, at the job, which goes on or is as it was, and at what is left behind."""

import errno
import json
import os
import random
import re
import shutil
import signal
import socket
import sys

from cases import EXIT_FROZEN, EXIT_NO_ROOM, MIB, Bed, Log, Skipped, case, expect, main, process_start, run, wait_until, with_env


# Names and processes that are not there.

@case
def unknown_jobs(bed):
    for args in (("suspend", "nosuch"), ("resume", "nosuch"), ("checkpoint", "nosuch"), ("restore", "nosuch"),
                 ("wait", "nosuch"), ("logs", "nosuch"), ("kill", "nosuch"), ("rm", "nosuch"),
                 ("inspect", "nosuch"), ("doctor", "--job", "nosuch"), ("rm", "--checkpoint", "nosuch")):
        bed.refused(3, "nosuch", *args)
    expect(not bed.list("ps", "jobs") and not bed.checkpoints(), "a refusal left something")


@case
def wrong_words(bed):
    for args in (("suspend",), ("checkpoint", "a", "b", "--name", "c"), ("suspend", "a", "--pid", "1234"), ("restore",), ("run",),
                 ("suspend", "--pid", "0"), ("suspend", "--pid", "-3"), ("suspend", "--pid", "12x"),
                 ("suspend", "--pid", "99999999999"), ("resume", "x", "--gpu-map", "GPU-1=GPU-2,GPU-1=GPU-3"),
                 ("kill", "--signal", "NOSUCH", "x"), ("wait", "--timeout", "-1", "x"), ("ps", "extra"),
                 ("ps", "--format", "xml")):
        bed.refused(2, ".", *args)


@case
def processes_that_are_not_there(bed):
    pid = int(open("/proc/sys/kernel/pid_max", encoding="ascii").read()) - 1
    if os.path.exists(f"/proc/{pid}"):
        raise Skipped(f"pid {pid} is in use")
    for verb in ("suspend", "resume", "checkpoint", "manage"):
        bed.refused(3, str(pid), verb, "--pid", pid)
    ended = bed.start(["true"])
    ended.wait()
    bed.refused(3, str(ended.pid), "suspend", "--pid", ended.pid)
    sleeper = bed.start(["sleep", "60"])
    bed.refused(3, "belongs to no job", "resume", "--pid", sleeper.pid)
    expect(not bed.list("ps", "jobs"), "a refusal left a job")
    bed.refused(4, "no GPU state", "suspend", "--pid", sleeper.pid)
    expect(process_start(sleeper.pid), "the process was harmed")


@case
def thread_ids(bed):
    """The driver takes a thread id for its process; brumate must not."""
    program = bed.start([bed.program("kinds"), "threads", "--mib", "8", "--interval-ms", "25"]).ready()
    tids = [int(name) for name in os.listdir(f"/proc/{program.pid}/task") if int(name) != program.pid]
    expect(len(tids) >= 8, f"the program has the threads {tids}")
    for verb in ("suspend", "checkpoint", "manage"):
        result = bed.cli(verb, "--pid", tids[0])
        expect(result.code in (2, 3) and "thread" in result.err, result.why())
    expect(not bed.list("ps", "jobs"), "a refusal left a job")
    expect(bed.gpu_state(program.pid) == "running", "the process was touched")
    program.log.goes_on()


def edit_record(bed, job, change):
    """Changes the record of a job whose shim is not there to see it."""
    shim = bed.shim(job)
    if shim:
        start = process_start(shim)
        os.kill(shim, signal.SIGTERM)
        wait_until(lambda: process_start(shim) != start, "the end of the shim")
    path = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    change(record)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)


@case
def reused_pid(bed):
    """The record names a pid that another process has now."""
    job, log = bed.counter()
    pid, start = bed.pid(job), process_start(bed.pid(job))
    other = bed.start(["sleep", "600"])

    def point_elsewhere(record):
        key = next(k for k in record["root"] if "start" in k)
        record["root"] = {**record["root"], "pid": other.pid, key: process_start(other.pid) - 1}

    edit_record(bed, job, point_elsewhere)
    bed.expect_state(job, "lost")
    for args in (("suspend", job), ("checkpoint", job), ("kill", job)):
        result = bed.cli(*args)
        expect(result.code in (3, 6) and re.search("lost|not running|ended", result.err), result.why())
    waited = bed.cli("wait", job)
    expect(waited.code == 8, waited.why())
    expect(process_start(other.pid), "the other process was harmed")
    expect(process_start(pid) == start, "the old process was harmed")
    log.goes_on()
    bed.ok("rm", job)
    expect(process_start(other.pid), "the other process was harmed by rm")
    os.kill(pid, signal.SIGKILL)


@case
def damaged_records(bed):
    job, log = bed.counter()
    path = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")
    with open(path, "rb") as file:
        good = file.read()
    shim, start = bed.shim(job), process_start(bed.shim(job))
    os.kill(shim, signal.SIGTERM)
    wait_until(lambda: process_start(shim) != start, "the end of the shim")
    for bad in (b"", b"{", b"[]", good[: len(good) // 2], good.replace(b'"pid"', b'"dip"', 1), b"\0" * 100):
        with open(path, "wb") as file:
            file.write(bad)
        listed = bed.list("ps", "jobs")
        expect([j["id"] for j in listed] == [job], f"ps lists {listed}")
        result = bed.cli("suspend", job)
        expect(result.code not in (0, 139, 134) and result.err.startswith("brumate: "), result.why())
    with open(path, "wb") as file:
        file.write(good)
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def busy_jobs(bed):
    job, log = bed.counter()
    bed.ok("checkpoint", job, "--leave-running", "--name", "image")
    with bed.held_at("checkpoint.image.begin", "checkpoint", job, "--leave-running", "--name", "first") as first:
        for args in (("suspend", job), ("checkpoint", job), ("rm", job)):
            bed.refused(6, job, *args)
        bed.refused(6, "checkpoint is in progress|is checkpointing", "resume", job)
        bed.refused(6, "still there", "restore", "image")
        bed.expect_state(job, "checkpointing")
    code, out, err = first.end()
    expect(code == 0 and out == "first\n", f"exit {code}: {err}")
    bed.expect_whole(job, log)
    with bed.held_at("suspend.identify.begin", "suspend", job) as other:
        bed.refused(6, "suspend", "checkpoint", job)
    expect(other.end()[0] == 0, "the first suspend failed")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


# Images that are not as they should be.

class Images:
    """A checkpoint of a job, and spoilt copies of it."""

    def __init__(self, bed, mib=16):
        self.bed = bed
        self.job, self.log = bed.counter(mib=mib)
        self.path = bed.operation("checkpoint", self.job, "--name", "good")["path"]
        self.store = os.path.join(bed.dir, "spoilt")
        os.mkdir(self.store, 0o700)
        self.step = self.log.last_step()

    def copy(self, name):
        path = os.path.join(self.store, name)
        shutil.copytree(self.path, path, symlinks=True)
        os.chmod(path, 0o700)
        return path

    def files(self):
        return sorted(os.path.relpath(os.path.join(base, name), self.path)
                      for base, _, names in os.walk(self.path) for name in names)

    def refused(self, path, words, code=9):
        result = self.bed.refused(code, words, "restore", path)
        self.bed.expect_state(self.job, "checkpointed")
        return result

    def check_good(self):
        """Nothing that was refused has done anything."""
        expect(self.log.last_step() == self.step, "the job ran meanwhile")
        expect(self.bed.vram() == [0, 0], f"device memory is in use: {self.bed.vram()}")
        self.bed.expect_restorable("good", self.log)


@case
def images_that_are_none(bed):
    images = Images(bed)
    empty = os.path.join(images.store, "empty")
    os.mkdir(empty, 0o700)
    images.refused(empty, "manifest")
    images.refused(os.path.join(images.store, "absent"), "absent", code=3)
    for name, text in (("text", "hello\n"), ("list", "[]"), ("object", "{}"), ("nothing", ""), ("other", '{"format": "tar"}'),
                       ("deep", "[" * 5000), ("binary", "\x7fELF\0\0\1")):
        path = os.path.join(images.store, name)
        os.mkdir(path, 0o700)
        with open(os.open(os.path.join(path, "manifest.json"), os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write(text)
        images.refused(path, "manifest|format")
    path = os.path.join(images.store, "directory")
    os.makedirs(os.path.join(path, "manifest.json"), 0o700)
    os.chmod(path, 0o700)
    images.refused(path, "manifest")
    file = os.path.join(images.store, "file")
    with open(file, "w", encoding="utf-8") as f:
        f.write("no directory")
    result = bed.cli("restore", file)
    expect(result.code in (3, 9, 1, 2) and "file" in result.err, result.why())
    listed = bed.list("ls", "checkpoints", "--dir", images.store)
    expect(all(c.get("error") for c in listed) and len(listed) == 9, f"ls lists {listed}")
    images.check_good()


@case
def damaged_files(bed):
    images = Images(bed, mib=16)
    names = [name for name in images.files() if name != "manifest.json"]
    expect(len(names) > 10, f"the image holds only {names}")
    rng = random.Random(1)
    path = images.copy("copy")
    for name in names:
        file = os.path.join(path, name)
        size = os.path.getsize(file)
        if size:
            at = rng.randrange(size)
            with open(file, "r+b") as f:
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 1 << rng.randrange(8)]))
            images.refused(path, re.escape(name))
            with open(file, "r+b") as f:
                f.seek(at)
                f.write(bytes([byte]))
    for name, spoil, words in (("pages-1.img", lambda f: os.truncate(f, os.path.getsize(f) - 1), "bytes"),
                               ("core-*.img", lambda f: os.truncate(f, 0), "bytes"),
                               ("pstree.img", os.unlink, "missing|No such file"),
                               ("inventory.img", lambda f: os.truncate(f, os.path.getsize(f) + 4096), "bytes")):
        match = next(n for n in names if re.fullmatch("(.*/)?" + name.replace(".", r"\.").replace("*", ".*"), n))
        shutil.rmtree(path)
        path = images.copy("copy")
        spoil(os.path.join(path, match))
        result = images.refused(path, re.escape(match))
        expect(re.search(words, result.err), result.why())
    shutil.rmtree(path)
    path = images.copy("copy")
    with open(os.path.join(path, "criu", "more.img"), "w", encoding="ascii") as f:
        f.write("more")
    images.refused(path, "more.img")
    images.check_good()


@case
def damaged_manifests(bed):
    images = Images(bed)
    path = images.copy("copy")
    manifest = os.path.join(path, "manifest.json")
    with open(manifest, "rb") as file:
        good = file.read()
    rng = random.Random(2)
    for _ in range(40):
        at = rng.randrange(len(good))
        with open(manifest, "wb") as file:
            file.write(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        images.refused(path, "manifest|copy")
    for n in (0, 1, len(good) // 3, len(good) - 2):
        with open(manifest, "wb") as file:
            file.write(good[:n])
        images.refused(path, "manifest|copy")
    newer = json.loads(good)
    newer["version"] = 1000
    with open(manifest, "w", encoding="utf-8") as file:
        json.dump(newer, file)
    result = images.refused(path, "version")
    expect(str(newer["version"]) in result.err, result.why())
    images.check_good()


@case
def images_that_others_could_have_changed(bed):
    images = Images(bed)
    path = images.copy("open")
    for mode in (0o777, 0o770, 0o702):
        os.chmod(path, mode)
        images.refused(path, "write", code=5)
    os.chmod(path, 0o700)
    manifest = os.path.join(path, "manifest.json")
    os.chmod(manifest, 0o666)
    images.refused(path, "write", code=5)
    os.chmod(manifest, 0o600)
    os.chown(path, 12345, 12345)
    images.refused(path, "uid 12345", code=5)
    os.chown(path, 0, 0)
    pages = os.path.join(path, "criu", "pages-1.img")
    os.rename(pages, os.path.join(bed.dir, "pages"))
    os.symlink(os.path.join(bed.dir, "pages"), pages)
    images.refused(path, "pages-1.img")
    linked = images.copy("linked")
    os.rename(os.path.join(linked, "criu"), os.path.join(bed.dir, "criu"))
    os.symlink(os.path.join(bed.dir, "criu"), os.path.join(linked, "criu"))
    images.refused(linked, "criu")
    linked = images.copy("manifest-linked")
    os.rename(os.path.join(linked, "manifest.json"), os.path.join(bed.dir, "manifest"))
    os.symlink(os.path.join(bed.dir, "manifest"), os.path.join(linked, "manifest.json"))
    images.refused(linked, "manifest")
    images.check_good()


@case
def stores_that_cannot_be_used(bed):
    job, log = bed.counter()
    read_only = bed.tmpfs("256m")
    expect(run(["mount", "-o", "remount,ro", read_only]).code == 0, "remount")
    open_to_all = os.path.join(bed.dir, "open")
    os.mkdir(open_to_all)
    os.chmod(open_to_all, 0o777)
    file = os.path.join(bed.dir, "plain")
    with open(file, "w", encoding="ascii") as f:
        f.write("x")
    bed.refused(1, "[Rr]ead-only", "checkpoint", job, "--dir", read_only, "--name", "x")
    bed.refused(5, "everyone may write", "checkpoint", job, "--dir", open_to_all, "--name", "x")
    bed.refused(1, "[Nn]ot a directory|plain", "checkpoint", job, "--dir", file, "--name", "x")
    bed.expect_whole(job, log)
    expect(not os.listdir(open_to_all), "something is left in the store")


# Other machines.

def on_another_machine(bed, words, **env):
    """A good image is refused on a machine that differs in @env; on its own it is restored."""
    images = Images(bed)
    with Bed(bed.build, env) as other:
        result = other.refused(4, words, "restore", images.path)
        expect(re.search("^hint: .", result.err, re.MULTILINE), f"no hint: {result.err!r}")
        expect(not other.list("ps", "jobs"), "the refusal left a job there")
        other.finish()
    images.check_good()


@case
def fewer_gpus(bed):
    on_another_machine(bed, "saw 2 GPUs, 1 ", BRUMATE_SIM_GPUS="1")


@case
def another_model(bed):
    on_another_machine(bed, "Simulated H200", BRUMATE_SIM_MODEL="Simulated B300")


@case
def another_driver(bed):
    on_another_machine(bed, "driver 580.*590", BRUMATE_SIM_DRIVER="590")


@case
def older_driver(bed):
    on_another_machine(bed, "driver 580.*570", BRUMATE_SIM_DRIVER="570")


@case
@with_env(BRUMATE_SIM_VRAM_MIB="256")
def too_little_vram(bed):
    """The driver would lose the process: it must be refused before it is asked."""
    job, log = bed.counter(mib=128)
    bed.ok("checkpoint", job, "--leave-running", "--name", "image")
    bed.ok("suspend", job)
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 100])
    used = bed.vram()
    result = bed.refused(EXIT_NO_ROOM, "free", "resume", job)
    expect("--gpu-map" in result.err, f"no way out is shown: {result.err!r}")
    bed.expect_state(job, "suspended")
    expect(bed.vram() == used, "device memory was touched")
    expect(bed.gpu_state(bed.pid(job)) == "checkpointed", "the driver was asked")
    bed.ok("kill", hog)
    bed.wait_state(hog, ("exited",))
    bed.ok("resume", job)
    log.goes_on()
    bed.end(job)
    hog, _ = bed.started([bed.program("hog"), "--leave-mib", 100])
    bed.refused(EXIT_NO_ROOM, "free", "restore", "image")
    expect(bed.state(job) in ("checkpointed", "exited"), f"{job} is {bed.state(job)}")
    old, new = bed.uuids()
    before = log.last_step()
    bed.operation("restore", "image", "--gpu-map", f"{old}={new},{new}={old}")
    size = log.text().count("\n")
    wait_until(lambda: log.text().count("\n") > size + 3, "more steps")
    expect("BAD" not in log.text() and before, "wrong data")


# Space.

@case
def store_too_small(bed):
    """Seen before the job is touched."""
    job, log = bed.counter(mib=32)
    small = bed.tmpfs("8m")
    result = bed.refused(1, "free", "checkpoint", job, "--dir", small, "--name", "x")
    expect("--dir" in result.err, f"no way out is shown: {result.err!r}")
    bed.expect_whole(job, log)
    expect(not os.listdir(small), f"left in the store: {os.listdir(small)}")


def fill(store, leave):
    """Takes what room there is but @leave, from whoever is writing there too."""
    with open(os.path.join(store, "other"), "wb") as file:
        while True:
            stat = os.statvfs(store)
            size = stat.f_bavail * stat.f_frsize - leave
            if size <= 0:
                return
            try:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + size)
                return
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


@case
def disk_full_in_the_middle(bed):
    """Somebody else fills the disk while the job is saved."""
    job, log = bed.counter(mib=32)
    store = bed.tmpfs("256m")
    for point, leave, options in (("checkpoint.image.end", 8 * MIB, ()), ("checkpoint.criu.begin", 4096, ()),
                                  ("store.write-manifest", 0, ()), ("checkpoint.criu.begin", 4096, ("--leave-running",)),
                                  ("store.write-manifest", 0, ("--leave-running",))):
        with bed.held_at(point, "checkpoint", job, "--dir", store, "--name", "x", *options) as command:
            fill(store, leave)
        code, out, err = command.end()
        expect(code == 7 and not out, f"{point}: exit {code}, printed {out!r}: {err}")
        line = [text for text in err.splitlines() if text.startswith("brumate: ")]
        expect(len(line) == 1 and re.search("[Nn]o space|free", line[0]), f"{point}: says {err!r}")
        expect(os.listdir(store) == ["other"], f"{point}: left in the store: {os.listdir(store)}")
        os.unlink(os.path.join(store, "other"))
        bed.expect_whole(job, log)
    bed.ok("checkpoint", job, "--dir", store, "--name", "x")
    bed.expect_restorable("x", log, "--dir", store)


# CRIU.

@case
@with_env(BRUMATE_CRIU="/nonexistent/criu")
def no_criu(bed):
    job, log = bed.counter()
    result = bed.refused(4, "/nonexistent/criu", "checkpoint", job)
    expect("criu-provision" in result.err, f"no way out is shown: {result.err!r}")
    bed.expect_whole(job, log)
    findings = bed.doctor()["findings"]
    expect(any(f["key"] == "criu" and f["level"] == "fail" and f["hint"] for f in findings), f"doctor: {findings}")
    bed.ok("suspend", job)  # needs none
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def no_criu_to_restore_with(bed):
    job, log = bed.counter()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.ok("rm", job)  # and with it its shim, which has the environment of who started it
    for where, words in (("/nonexistent/criu", "cannot run /nonexistent/criu"),
                         (script(bed, "old", "echo Version: 3.17\n"), "3.17.*4.2")):
        result = bed.refused(4, f"preflight: .*{words}", "restore", checkpoint, env={"BRUMATE_CRIU": where})
        expect("criu-provision" in result.err, f"no way out is shown: {result.err!r}")
    bed.expect_restorable(checkpoint, log)


def script(bed, name, text):
    path = os.path.join(bed.dir, name)
    with open(path, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


@case
def criu_too_old_or_none_at_all(bed):
    for name, text, code, words in (("old", "echo Version: 3.17\n", 4, "3.17.*4.2"),
                                    ("odd", "echo hello\n", 4, 'not a CRIU: it said "hello", exit status 0'),
                                    ("bad", "exit 1\n", 4, "not a CRIU: it said nothing, exit status 1"),
                                    ("killed", "kill -9 $$\n", 1, "killed by signal 9 before it told its version")):
        bed.own["BRUMATE_CRIU"] = script(bed, name, text)
        job, log = bed.counter()
        result = bed.refused(code, words, "checkpoint", job)
        expect(re.search("^hint: ", result.err, re.MULTILINE), f"no way out is shown: {result.err!r}")
        bed.expect_whole(job, log)
        bed.end(job)
    del bed.own["BRUMATE_CRIU"]


@case
def killed_while_criu_is_asked(bed):
    """What a shim starts for itself is no member of its job: who ends the job does not end that."""
    asked, go, answered = (os.path.join(bed.dir, name) for name in ("asked", "go", "answered"))
    os.mkfifo(go)
    held = script(bed, "held", f"[ $1 = --version ] || exit 1; : > {asked}; read -r word < {go}; echo Version: 4.2; : > {answered}\n")
    job, _ = bed.counter(env={"BRUMATE_CRIU": held})
    pid = bed.pid(job)
    checkpoint = bed.spawn("checkpoint", job)
    wait_until(lambda: os.path.exists(asked) or checkpoint.process.poll() is not None, "CRIU to be asked")
    kill = bed.spawn("kill", "--grace", "0s", job)
    wait_until(lambda: process_start(pid) is None, "the end of the job")
    with open(go, "r+b", buffering=0) as file:
        file.write(b"go\n")
        wait_until(lambda: os.path.exists(answered) or checkpoint.process.poll() is not None, "CRIU to answer")
    code, _, err = checkpoint.end()
    expect(code != 0 and os.path.exists(answered), f"CRIU was killed with the job: {code}: {err}")
    expect(kill.end()[0] == 0, "it could not be killed")
    bed.wait_state(job, ("exited",))


# Jobs that cannot be saved.

@case
def managed_memory(bed):
    job, log = bed.kind("managed")
    pid, start = bed.pid(job), process_start(bed.pid(job))
    for args in (("suspend", job), ("checkpoint", job), ("suspend", job, "--force")):
        bed.refused(4, "managed", *args)
    findings = bed.doctor("--job", job)["findings"]
    expect(any(f["key"] == "managed-memory" and f["level"] == "fail" for f in findings), f"doctor: {findings}")
    expect(bed.gpu_state(pid) == "running" and process_start(pid) == start, "the job was touched")
    bed.expect_whole(job, log)
    expect(not bed.checkpoints(), "a refused checkpoint is there")


STEPS = "print('ready now'); n = 0\nwhile True:\n    n += 1; print('step', n, 'OK'); time.sleep(0.01)\n"


MAKES_URING = """
import ctypes, errno, time
fd = ctypes.CDLL(None, use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))
print("io_uring", fd if fd >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@case
def io_uring(bed):
    job, log = bed.started([sys.executable, "-u", "-c", MAKES_URING + STEPS], options=("--data-path", "driver"))
    if not re.search(r"^io_uring \d", log.text(), re.MULTILINE):
        raise Skipped("this kernel has no io_uring, or does not allow it")
    bed.refused(4, "io_uring", "checkpoint", job)
    bed.expect_whole(job, log)
    findings = bed.doctor("--job", job)["findings"]
    expect(any(f["key"] == "io_uring" and f["level"] == "fail" for f in findings), f"doctor: {findings}")


@case
def io_uring_is_withheld(bed):
    """As from libuv, on the data path: the program does without, and can be saved."""
    job, log = bed.started([sys.executable, "-u", "-c", MAKES_URING + STEPS])
    expect(re.search("^io_uring ENOSYS$", log.text(), re.MULTILINE), log.text()[:200])
    saved = bed.operation("checkpoint", job)
    bed.operation("restore", saved["checkpoint"])
    log.goes_on()


@case
def socket_to_a_stranger(bed):
    """One end of a unix stream in a process that is not saved: nobody can put that back."""
    path = os.path.join(bed.dir, "stranger")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        job, log = bed.python(f"import socket, time\ns = socket.socket(socket.AF_UNIX); s.connect({path!r})\n" + STEPS)
        stranger = listener.accept()[0]
        result = bed.cli("checkpoint", job)
        expect(result.code in (4, 7), result.why())
        expect(re.search("socket|unix", result.err), result.why())
        bed.expect_whole(job, log)
        stranger.setblocking(False)
        try:
            expect(stranger.recv(1) != b"", "the connection was closed")
        except OSError as error:
            expect(error.errno == errno.EAGAIN, f"the connection is broken: {error}")
        stranger.close()


@case
def shared_between_gpus(bed):
    """What may lose the job is only done when it is asked for, and said when it happened."""
    job, log = bed.kind("peer", run_options=("--data-path", "driver"))
    for verb in ("suspend", "checkpoint"):
        result = bed.refused(4, "may lose", verb, job)
        expect("--force" in result.err, f"no way out is shown: {result.err!r}")
    bed.expect_whole(job, log)
    image = bed.operation("checkpoint", job, "--force", "--name", "kept")
    expect(any("--force" in note for note in image["notes"]), f"notes {image['notes']}")
    result = bed.cli("restore", "kept")
    expect(result.code in (1, 8) and result.err.strip(), f"the driver cannot restore this: {result.why()}")
    bed.expect_state(job, "checkpointed")
    expect(bed.checkpoints() == ["kept"] and bed.vram() == [0, 0], "the image is gone, or memory is in use")


@case
def lost_by_force_is_said(bed):
    job, log = bed.kind("peer", run_options=("--data-path", "driver"))
    bed.ok("suspend", job, "--force")
    result = bed.refused(8, "driver says", "resume", job)
    expect("refuses for good" in result.err, f"no hint: {result.err!r}")
    bed.expect_state(job, "suspended")
    bed.ok("kill", job)
    bed.wait_state(job, ("exited",))
    expect(bed.vram() == [0, 0], "device memory is in use")
    expect(log.is_right() > 0, "no step")


@case
def kernel_that_takes_too_long(bed):
    job, log = bed.kind("busy", "--busy-ms", "5000")
    for verb in ("suspend", "checkpoint"):
        os.kill(bed.pid(job), signal.SIGUSR1)
        started = log.text().count("started")
        log.wait_until(lambda text: text.count("started") > started, "the kernel")
        result = bed.refused(124, "NOT_READY|timed out after|TIMEOUT|did not end in time", verb, job, "--timeout", "1500ms")
        expect("--timeout" in result.err, f"no way out is shown: {result.err!r}")
        expect(result.seconds < 4, f"it took {result.seconds:.1f} s to give up after 1.5")
        bed.expect_whole(job, log)
        expect(bed.gpu_state(bed.pid(job)) == "running", "it is still locked")
    bed.ok("suspend", job)  # waits for it
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def callback_under_way(bed):
    """The lock waits for a host callback; with time enough it succeeds."""
    job, log = bed.kind("callback", "--busy-ms", "1000")
    os.kill(bed.pid(job), signal.SIGUSR1)
    log.wait_for("^started")
    summary = bed.operation("suspend", job)
    expect(summary["seconds"] > 0.3, f"it did not wait: {summary['seconds']} s")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def stopped_job(bed):
    """The driver's calls do not return for a stopped process."""
    job, log = bed.counter()
    pid = bed.pid(job)
    for verb in ("suspend", "checkpoint"):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[0] == "T", "the stop")
        result = bed.cli(verb, job, "--timeout", "2s")
        expect(result.code == EXIT_FROZEN and re.search("stopped", result.err), result.why())
        expect(result.seconds < 10, f"it took {result.seconds:.1f} s to say so")
        os.kill(pid, signal.SIGCONT)
        bed.wait_state(job, ("running",))
        bed.expect_whole(job, log)
        expect(bed.gpu_state(pid) == "running", f"the driver says {bed.gpu_state(pid)}")
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def driver_that_fails(bed):
    """Each call of the driver's fails once in the target: the job is what it was."""
    job, log = bed.counter(mib=16)
    for call, verb in (("lock", "suspend"), ("checkpoint", "suspend"), ("lock", "checkpoint"), ("checkpoint", "checkpoint")):
        bed.driver_fault(f"target:{call}:*:error=999")
        before = bed.checkpoints()
        result = bed.cli(verb, job)
        bed.driver_fault("")
        expect(result.code == 7 and "UNKNOWN" in result.err, f"{call} in {verb}: {result.why()}")
        bed.expect_whole(job, log)
        expect(bed.checkpoints() == before, "a failed checkpoint is there")
    bed.ok("suspend", job)
    for call in ("restore", "unlock"):
        bed.driver_fault(f"target:{call}:*:error=999")
        result = bed.cli("resume", job)
        bed.driver_fault("")
        want = 8 if call == "restore" else 1
        expect(result.code == want and "UNKNOWN" in result.err, f"{call} in resume: {result.why()}")
        bed.expect_state(job, "suspended")
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    for call in ("restore", "unlock"):
        bed.driver_fault(f"target:{call}:*:error=999")
        result = bed.cli("restore", checkpoint)
        bed.driver_fault("")
        expect(result.code == 1 and "UNKNOWN" in result.err, f"{call} in restore: {result.why()}")
        bed.expect_state(job, "checkpointed")
        expect(bed.vram() == [0, 0], f"device memory is in use: {bed.vram()}")
    bed.expect_restorable(checkpoint, log)


@case
def driver_that_takes_its_time(bed):
    """On a busy machine it may not tell in time how far it is: that is no answer, and no failure."""
    job, log = bed.counter()
    fifo = os.path.join(bed.dir, "held")
    os.mkfifo(fifo)
    bed.driver_fault(f"cuCheckpointProcessGetState:*:hold={fifo}")
    suspend = bed.spawn("suspend", job)
    with open(fifo, "wb"):
        bed.driver_fault("")
        said = Log(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.log"))
        said.wait_for("asked for states again", 60)
    expect(suspend.end()[0] == 0, "it was not waited for")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


main()
