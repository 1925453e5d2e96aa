#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What newer drivers do by themselves, where our library does not stand in a program: processes that share memory by
legacy IPC, as a job of the driver."""

import collections
import os
import re
import shutil
import signal

from cases import EXIT_UNSUPPORTED, SOURCE, Skipped, case, expect, main, read_text, run, with_env

VARIABLE = "CUDA_CHECKPOINT_JOB_FILE"
BY_DRIVER = ("--data-path", "driver")
# Copies of 32 MiB take some 60 ms: calls that are made at once overlap.
SLOW = "0.5,0.5"


def sharers(bed, options=BY_DRIVER, prefix="", mib=8):
    """Two processes, of which one has opened the memory of the other."""
    handle = f"{bed.dir}/handle"
    kinds = f"{prefix} {bed.program('kinds')} %s --mib {mib} --interval-ms 10 --path {handle}"
    job, log = bed.started(["sh", "-c", f"{kinds % 'ipc-export'} & until [ -e {handle} ]; do :; done; "
                                        f"{kinds % 'ipc-import'}"], options=options)
    log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    return job, log


def slower(log):
    """How far the slower of two is, whose lines do not say whose they are."""
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    numbers = collections.Counter(int(n) for n in re.findall(r"^step (\d+) OK$", text, re.M))
    expect(not numbers or max(numbers.values()) <= 2, "a step is done again")
    return max((n for n, times in numbers.items() if times == 2), default=0)


def both_go_on(log):
    before = slower(log)
    log.wait_until(lambda _: slower(log) >= before + 3, "both go on")


def variable_of(pid, name=VARIABLE):
    for entry in read_text(f"/proc/{pid}/environ").split("\0"):
        if entry.startswith(name + "="):
            return entry[len(name) + 1:]
    return None


def findings(bed, job):
    return {f["key"]: f for f in bed.doctor("--job", job)["findings"]}


@case
@with_env(BRUMATE_SIM_DRIVER="610", BRUMATE_SIM_GBPS=SLOW)
def a_job_of_the_driver(bed):
    """No agent tells what they share: the driver keeps it. Its members are acted on one after the other."""
    job, log = sharers(bed, mib=32)
    both_go_on(log)
    found = findings(bed, job)
    expect("shared-memory" not in found, f"doctor suspects it: {found}")
    expect("legacy IPC" in found["driver-job"]["text"] and found["driver-job"]["level"] == "note", found)
    for _ in range(2):
        bed.operation("suspend", job)
        expect(not any(bed.vram()), "device memory is left")
        bed.operation("resume", job)
        both_go_on(log)
    bed.operation("checkpoint", job, "--name", "image")
    bed.operation("restore", "image")
    both_go_on(log)
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def its_file_is_held_by_the_reaper(bed):
    """Whoever starts processes without our descriptors gives them the file all the same."""
    script = ("import subprocess, sys\n"
              "subprocess.run(sys.argv[1:], close_fds=True, check=True)\n")
    words = [bed.program("counter"), "--mib", "8", "--chunk-mib", "8", "--interval-ms", "25"]
    job, log = bed.started(["python3", "-c", script, *words], options=BY_DRIVER)
    path = variable_of(bed.pid(job))
    expect(re.fullmatch(r"/proc/\d+/fd/3", path or ""), f"{VARIABLE} is {path}")
    expect(os.path.exists(path), f"{path} is not there")
    expect(variable_of(bed.pid(job), "NCCL_CUMEM_ENABLE") == "0", "NCCL is not told to share by legacy IPC")
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    expect(os.path.exists(path), f"{path} is not there after the restore")
    log.goes_on()
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="590")
def before_legacy_ipc_it_is_refused(bed):
    job, _ = sharers(bed)
    expect(variable_of(bed.pid(job)), "there is no job file")
    refused = bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    expect("has no agent" in refused.err and "610" in refused.err and "--force" in refused.err, refused.err)
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="580")
def before_job_files_there_is_none(bed):
    job, _ = sharers(bed)
    expect(variable_of(bed.pid(job)) is None, "a driver without jobs is given a file")
    bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def a_tool_that_fails_is_done_without(bed):
    """The job starts all the same, and is not a job of the driver."""
    programs = os.path.join(bed.dir, "programs")
    os.makedirs(os.path.join(programs, "sim"))
    for folder in ("src", "sim"):
        for name in os.listdir(os.path.join(bed.build.path, folder)):
            place = os.path.join(programs, *([] if folder == "src" else ["sim"]), name)
            if name not in ("sim", "cuda-checkpoint"):
                os.symlink(os.path.join(bed.build.path, folder, name), place)
    tool = os.path.join(programs, "sim", "cuda-checkpoint")
    with open(tool, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\necho this tool fails >&2\nexit 3\n")
    os.chmod(tool, 0o755)
    bed.own["BRUMATE_LIBEXEC_DIR"] = programs
    job, log = sharers(bed)
    expect("this tool fails" in log.text(), "the tool was not asked")
    expect(variable_of(bed.pid(job)) is None, "it has a file that nobody made")
    bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def the_library_needs_none(bed):
    job, log = bed.counter()
    expect(variable_of(bed.pid(job)) is None, "a job with the library has a file")
    bed.expect_whole(job, log)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def what_it_may_share_otherwise_is_suspected(bed):
    job, _ = sharers(bed, prefix="NCCL_CUMEM_ENABLE=1")
    refused = bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    expect("NCCL_CUMEM_ENABLE=0" in refused.err, refused.err)
    expect(findings(bed, job)["shared-memory"]["level"] == "warn", "doctor does not tell")
    bed.end(job)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def a_member_outside_it_is_suspected(bed):
    """That it shares nothing with the others is not known."""
    counter = f"{bed.program('counter')} --mib 8 --chunk-mib 8 --interval-ms 40"
    job, log = bed.started(["sh", "-c", f"{counter} & env -u {VARIABLE} {counter}"], options=BY_DRIVER)
    log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    refused = bed.fails(EXIT_UNSUPPORTED, "suspend", job)
    expect("has no agent" in refused.err, refused.err)
    bed.operation("suspend", job, "--force")
    bed.operation("resume", job)
    bed.end(job)


def ladder(bed):
    return {f["key"]: f for f in bed.doctor()["findings"] if f["key"].startswith("driver-")}


def expect_ladder(bed, job_files, ipc, storage, remap=True):
    """doctor says what the driver of this machine adds, and what is lost without."""
    found = ladder(bed)
    level = {key: f["level"] for key, f in found.items()}
    expect(level["driver-remap"] == ("ok" if remap else "warn"), found["driver-remap"])
    expect(level["driver-job-file"] == ("ok" if job_files else "note"), found["driver-job-file"])
    expect(job_files or "590" in found["driver-job-file"]["hint"], found["driver-job-file"])
    expect(level["driver-ipc"] == ("ok" if ipc else "note"), found["driver-ipc"])
    expect(ipc or "610" in found["driver-ipc"]["hint"], found["driver-ipc"])
    expect(("driver-storage" in found) == storage, f"{sorted(found)}")
    expect(not storage or "not used" in found["driver-storage"]["text"], found)


@case
@with_env(BRUMATE_SIM_DRIVER="570")
def doctor_of_570(bed):
    expect_ladder(bed, job_files=False, ipc=False, storage=False, remap=False)


@case
@with_env(BRUMATE_SIM_DRIVER="580")
def doctor_of_580(bed):
    expect_ladder(bed, job_files=False, ipc=False, storage=False)


@case
@with_env(BRUMATE_SIM_DRIVER="590")
def doctor_of_590(bed):
    expect_ladder(bed, job_files=True, ipc=False, storage=False)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def doctor_of_610(bed):
    expect_ladder(bed, job_files=True, ipc=True, storage=False)


@case
@with_env(BRUMATE_SIM_DRIVER="615")
def doctor_of_615(bed):
    expect_ladder(bed, job_files=True, ipc=True, storage=True)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def doctor_says_which_way(bed):
    """By the driver, and why; or by our library."""
    job, _ = bed.started([bed.program("counter"), "--mib", "8", "--chunk-mib", "8"], options=BY_DRIVER)
    expect("by the driver: its job was started with --data-path driver" in findings(bed, job)["memory"]["text"],
           findings(bed, job))
    bed.end(job)
    job, _ = bed.counter()
    expect("go by the data path" in findings(bed, job)["memory"]["text"], findings(bed, job))
    bed.end(job)
    program = bed.start([bed.program("counter"), "--mib", 8, "--chunk-mib", 8]).ready()
    found = {f["key"]: f for f in bed.doctor("--pid", program.pid)["findings"]}
    expect("by the driver: its job was already running when it was managed" in found["memory"]["text"], found)


# A /dev with KFD's name in it, for one command that asks for real GPUs.
WITH_KFD = """set -e
mkdir "$1"
mount -t tmpfs none "$1"
cp -a /dev/null /dev/zero /dev/urandom "$1"
touch "$1/kfd"
mount --bind "$1" /dev
shift
exec "$@"
"""


def doctor_with_kfd(bed, libexec):
    # Without the paths to the simulated driver that meson gives to tests.
    env = {**bed.command_env({"BRUMATE_GPU": "real", "BRUMATE_LIBEXEC_DIR": libexec}), "LD_LIBRARY_PATH": ""}
    done = run(["unshare", "--mount", "--propagation", "private", "sh", "-c", WITH_KFD, "sh", f"{libexec}/dev", bed.brumate,
                "doctor", "--format", "json"], env=env)
    expect(done.code in (0, 4), done.why())
    return {f["key"]: f for f in done.json()["findings"]}


@case
@with_env(BRUMATE_SIM_MODEL="Simulated H200,Simulated GH200 480GB")
def gpus_that_share_memory_with_the_processor(bed):
    """Nobody of us ran those: doctor says so of these alone."""
    told = [f for f in bed.cli("doctor", "--format", "json").json()["findings"] if f["key"] == "unproven"]
    expect(len(told) == 1 and told[0]["level"] == "warn", told)
    expect(told[0]["text"].startswith("GPU 1: Simulated GH200 480GB shares memory with the processor: not run"), told)


@case
def a_vendor_is_a_folder(bed):
    """A new one touches no file outside of its folder: it is built in, in the table of vendors, and its name stands nowhere else."""
    if not all(shutil.which(program) for program in ("meson", "ninja", "nm")):
        raise Skipped("needs meson, ninja and nm")
    tree = f"{bed.dir}/tree"
    shutil.copytree(SOURCE, tree, symlinks=True, ignore=shutil.ignore_patterns("build*", ".*", "__pycache__"))
    folder, example = f"{tree}/src/gpu/other", f"{SOURCE}/tests/unit/engine/other-vendor"
    os.mkdir(folder)
    for kind in ("c", "h"):
        shutil.copy(f"{example}.{kind}", folder)
    with open(f"{folder}/meson.build", "w", encoding="utf-8") as file:
        file.write("vendor_sources += files('other-vendor.c')\n")
    for command in (["meson", "setup", "build"], ["ninja", "-C", "build", "src/gpu/libgpu.a"]):
        done = run(command, cwd=tree, timeout=200)
        expect(done.code == 0, done.why())
    expect(re.search(r" [A-Z] gpu_vendor_other$", run(["nm", f"{tree}/build/src/gpu/libgpu.a"]).out, re.M), "it is not built in")
    with open(f"{tree}/build/src/gpu/vendors.c", encoding="utf-8") as file:
        expect(re.findall(r"&gpu_vendor_(\w+)", file.read()) == ["cuda", "amd", "other"], "it is not in the table")
    os.rename(folder, f"{tree}/src/gpu/madeup")
    with open(f"{tree}/src/base/clock.c", "a", encoding="utf-8") as file:
        file.write("/* madeup */\n")
    done = run([f"{tree}/tools/check-vendor"])
    expect(done.code == 1 and "clock.c" in done.out and "'madeup'" in done.out and "1 violations" in done.out, done.why())


@case
def which_vendor_is_here(bed):
    """AMD's device without CRIU's plugin is told and not taken; with it theirs is the broker, whose GPUs the kernel must name."""
    if os.geteuid() != 0 or os.path.exists("/dev/kfd") or os.path.exists("/dev/nvidiactl"):
        raise Skipped("needs root, to make a /dev of its own, and a machine without GPUs")
    libexec = f"{bed.dir}/without"
    os.makedirs(f"{libexec}/criu-plugin")
    found = doctor_with_kfd(bed, libexec)
    expect("amdgpu_plugin.so" in found["gpu-plugin"]["hint"] and "AMD" in found["gpu-plugin"]["text"], found)
    expect("NVIDIA" in found["driver"]["text"] and "unproven" not in found, found)

    libexec = f"{bed.dir}/with"
    os.makedirs(f"{libexec}/criu-plugin/amd")
    with open(f"{libexec}/criu-plugin/amd/amdgpu_plugin.so", "wb"):
        pass
    found = doctor_with_kfd(bed, libexec)
    expect("no AMD GPU: the kernel's topology has none" in found["driver"]["text"] and "gpu-plugin" not in found, found)
    expect("not run on hardware by us" in found["unproven"]["text"], found)


@case
@with_env(BRUMATE_SIM_DRIVER="610")
def one_that_others_started(bed):
    """By the vendor's own tool, as users start them."""
    handle = f"{bed.dir}/handle"
    kinds = f"{bed.program('kinds')} %s --mib 8 --interval-ms 10 --path {handle}"
    program = bed.start(["env", "NCCL_CUMEM_ENABLE=0", "NCCL_NVLS_ENABLE=0",
                         bed.program("cuda-checkpoint"), "--launch-job", "sh", "-c",
                         f"{kinds % 'ipc-export'} & until [ -e {handle} ]; do :; done; {kinds % 'ipc-import'}; wait"])
    program.log.wait_until(lambda text: text.count("ready pid") == 2, "both are ready")
    job = bed.operation("suspend", "--pid", program.pid)["job"]
    bed.operation("resume", job)
    both_go_on(program.log)
    for pid in re.findall(r"ready pid (\d+)", program.log.text()):
        os.kill(int(pid), signal.SIGTERM)  # orphans of a process that was taken in are nobody's
    bed.wait_state(job, ("exited", "lost"))


main()
