# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about containers with GPUs that runc checkpoints and restores, with brumate's plugin in its CRIU;
what that takes is told beside what brumate takes for the same program as a job."""

import contextlib
import json
import os
import platform
import shutil
import threading
import time

from cases import read_text, wait_until
from harness import expect, run
from runc import CGROUPS, Container, find_runc

BEGIN_S, OPERATION_S = 180, 300
CYCLES = 2


@contextlib.contextmanager
def machine_with_cgroups():
    """runc wants cgroups. Where none are mounted they are, for as long as the block lasts."""
    mine = not any(" - cgroup" in line for line in read_text("/proc/self/mountinfo").splitlines())
    if mine:
        done = run(["mount", "-t", "cgroup2", "cgroup2", CGROUPS])
        expect(done.code == 0, f"no cgroups: {done.why()}")
    try:
        yield
    finally:
        if mine:
            run(["umount", CGROUPS])


def say_where(check):
    """What may explain a failure on a machine that nobody can look at later."""
    runc = find_runc(check.build)
    version = run([runc, "--version"]).out.split("\n")[0]
    cgroups = [line.split(" - ")[1] for line in read_text("/proc/self/mountinfo").splitlines() if " - cgroup" in line]
    check.instance.note(f"kernel {platform.release()}, {version} ({runc}), cgroups: {cgroups}, own: "
                        f"{read_text('/proc/self/cgroup').split()}, tar: {shutil.which('tar')}")


@contextlib.contextmanager
def container(check, command, names=("out",), library=False):
    with machine_with_cgroups():
        say_where(check)
        with Container(check.instance, command, library=library) as made:
            yield made.start(names, BEGIN_S)


def counter(mib, name="out"):
    return f"/bin/counter --mib {mib} --chunk-mib {min(mib, 64)} --interval-ms 50 > /tmp/{name} 2>&1"


def memory_mib(check, mib):
    return 64 if check.options.simulated else mib


def runs_to_the_next_step(log, act):
    """Seconds until act() has returned, and until the program has gone a step further."""
    before, start = log.last_step(), time.monotonic()
    act()
    done = time.monotonic() - start
    wait_until(lambda: log.last_step() > before, "a step after it", BEGIN_S)
    return done, time.monotonic() - start


def twice(check):
    with container(check, f"exec {counter(memory_mib(check, 1024))}") as made:
        made.log().goes_on()
        for _ in range(CYCLES):
            made.saved(OPERATION_S)
            expect("brumate-gpus.json" in os.listdir(made.image), "the image holds no GPU state")
            made.end()
            made.restored(OPERATION_S).log().goes_on(seconds=BEGIN_S)
            shutil.rmtree(made.image)


def leave_running(check):
    with container(check, f"exec {counter(memory_mib(check, 1024))}") as made:
        made.log().goes_on()
        expect(made.checkpoint("--leave-running", timeout=OPERATION_S) == 0, made.reason("dump.log"))
        made.log().goes_on(seconds=BEGIN_S)
        expect(made.state() == "running", f"the container is {made.state()}")


def three_processes(check):
    """Whether they share device memory nobody can tell, so somebody has to say that they do not."""
    names = ("one", "two", "three")
    command = " ".join(f"{counter(memory_mib(check, 512), name)} &" for name in names) + " wait"
    with container(check, command, names) as made:
        for name in names:
            made.log(name).goes_on()
        expect(made.checkpoint(timeout=OPERATION_S) != 0, "what may share memory was saved all the same")
        expect("no agent that tells whether it shares" in made.dump_log(), made.reason("dump.log"))
        for name in names:
            made.log(name).goes_on(seconds=BEGIN_S)
        shutil.rmtree(made.image)
        with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write("[Container]\nForce=yes\n")
        made.saved(OPERATION_S)
        made.end()
        made.restored(OPERATION_S)
        for name in names:
            made.log(name).goes_on(seconds=BEGIN_S)


def suspended(check):
    """With the device of `brumate cdi`, suspended and resumed as fast as a job."""
    mib = memory_mib(check, 8192)
    with container(check, f"exec {counter(mib)}", library=True) as made:
        with open(check.instance.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
            file.write(f"[Container]\nState={made.dir}/state\n")
        made.log().goes_on()
        for _ in range(CYCLES):
            out = check.do("suspend", "--container", made.id)
            memory = check.instance.ok("inspect", made.id, "--format", "json").json()["memory"]
            expect(sum(process["data_bytes"] for process in memory) >= mib << 20, f"not by the library: {memory}")
            into = check.do("resume", "--container", made.id)
            made.log().goes_on(seconds=BEGIN_S)
        check.instance.ok("release", made.id)
        made.saved(OPERATION_S)
        made.end()
        made.restored(OPERATION_S).log().goes_on(seconds=BEGIN_S)
    job, log = check.job_started([check.program("counter"), "--mib", mib, "--chunk-mib", "64", "--interval-ms", "50"], "beside")
    log.goes_on()
    for _ in range(CYCLES):
        job_out, job_into = check.do("suspend", job), check.do("resume", job)
    check.instance.end(job)
    name = f"containers: {mib} MiB, suspend / resume of a container, of a job, s"
    check.measured[name] = (f"{out['seconds']:.2f} / {into['seconds']:.2f}, "
                            f"{job_out['seconds']:.2f} / {job_into['seconds']:.2f}")
    print(f"{name}: {check.measured[name]}", flush=True)


def job_times(check, mib, *options):
    """Of brumate's own checkpoint and restore of the same program."""
    argv = [check.program("counter"), "--mib", mib, "--chunk-mib", min(mib, 64), "--interval-ms", "50"]
    job, log = check.job_started(argv, f"beside{'-driver' if options else ''}", options)
    log.goes_on()
    saved = check.do("checkpoint", job)
    restored = runs_to_the_next_step(log, lambda: check.do("restore", saved["checkpoint"]))
    check.instance.end(job)
    check.instance.ok("rm", job)
    check.instance.ok("rm", saved["checkpoint"])
    return saved["seconds"], *restored


def longest_pause(log, act):
    """The longest time without a step of the program while act() runs, and until the next step after it, in seconds."""
    pauses, ended = [0.0], threading.Event()

    def watch():
        last, since = log.last_step(), time.monotonic()
        while not ended.is_set():
            ended.wait(0.002)
            step, now = log.last_step(), time.monotonic()
            if step > last:
                pauses.append(now - since)
                last, since = step, now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        act()
        log.goes_on(seconds=BEGIN_S)  # the container's GPUs come back behind the engine
    finally:
        ended.set()
        watcher.join()
    return max(pauses)


def tell(check, name, *seconds):
    check.measured[name] = " / ".join(f"{one:.2f}" for one in seconds)
    print(f"{name}: {check.measured[name]}", flush=True)


def keep_log(check, made):
    told = [line for line in read_text(os.path.join(made.image, "brumate.log")).splitlines() if line]
    check.instance.note("\n".join(told[-20:]))


def goes_on_after(made):
    expect(made.checkpoint("--leave-running", timeout=OPERATION_S) == 0, made.reason("dump.log"))


def by_library(check):
    """The engine's checkpoint by the data path, beside brumate's own of the same program as a job."""
    mib = memory_mib(check, 10240)
    what = f"containers: {mib} MiB, by the library"
    with container(check, f"exec {counter(mib)}", library=True) as made:
        made.log().goes_on()
        pause = longest_pause(made.log(), lambda: goes_on_after(made))
        keep_log(check, made)
        shutil.rmtree(made.image)
        start = time.monotonic()
        made.saved(OPERATION_S)
        saved = time.monotonic() - start
        manifest = json.loads(read_text(os.path.join(made.image, "brumate-memory", "manifest.json")))
        moved = sum(region["len_bytes"] for region in manifest["memory"]["regions"])
        expect(moved >= mib << 20, f"only {moved} bytes went by the library")
        check.instance.note(f"phases of the save, s: { {p['name']: p['duration_us'] / 1e6 for p in manifest['phases']} }")
        made.end()
        rows = (saved, *runs_to_the_next_step(made.log(), lambda: made.restored(OPERATION_S)))
        keep_log(check, made)
        made.log().goes_on(seconds=BEGIN_S)
    tell(check, f"{what}: checkpoint / restore / until the next step, s", *rows)
    argv = [check.program("counter"), "--mib", mib, "--chunk-mib", min(mib, 64), "--interval-ms", "50"]
    job, log = check.job_started(argv, "beside-library")
    log.goes_on()
    ours = longest_pause(log, lambda: check.do("checkpoint", job, "--leave-running"))
    check.instance.end(job)
    check.instance.ok("rm", job)
    tell(check, f"{what}: longest pause of a container that goes on / of a job, s", pause, ours)
    tell(check, f"containers: {mib} MiB, the same as a job: checkpoint / restore / until the next step, s", *job_times(check, mib))


def three_by_library(check):
    """Their agents tell that they share nothing."""
    names = ("one", "two", "three")
    command = " ".join(f"{counter(memory_mib(check, 512), name)} &" for name in names) + " wait"
    with container(check, command, names, library=True) as made:
        made.saved(OPERATION_S)
        expect("brumate-memory" in os.listdir(made.image), "no device memory went by the library")
        made.end()
        made.restored(OPERATION_S)
        for name in names:
            made.log(name).goes_on(seconds=BEGIN_S)


def times(check):
    """The engine's own, from its start to its end, and until the program goes on; the same job's by brumate."""
    mib = memory_mib(check, 8192)
    rows = {}
    with container(check, f"exec {counter(mib)}") as made:
        made.log().goes_on()
        start = time.monotonic()
        made.saved(OPERATION_S)
        saved = time.monotonic() - start
        made.end()
        rows["runc, by the driver"] = (saved, *runs_to_the_next_step(made.log(), lambda: made.restored(OPERATION_S)))
        keep_log(check, made)
    rows["a job, by the driver"] = job_times(check, mib, "--data-path", "driver")
    rows["a job, by the library"] = job_times(check, mib)
    for what, (saved, restored, first_step) in rows.items():
        tell(check, f"containers: {mib} MiB, {what}: checkpoint / restore / until the next step, s", saved, restored, first_step)


def register(case):
    """Adds these cases to gpu-check's list."""
    case("containers: runc checkpoints and restores, twice")(twice)
    case("containers: runc checkpoints and leaves running")(leave_running)
    case("containers: runc, three GPU processes in one")(three_processes)
    case("containers: runc beside brumate's own, 8 GiB")(times)
    case("containers: suspended by the library, 8 GiB")(suspended)
    case("containers: checkpointed by the library, 10 GiB")(by_library)
    case("containers: three GPU processes by the library")(three_by_library)
