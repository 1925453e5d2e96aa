# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about containers with GPUs that runc and podman checkpoint and restore, with brumate's plugin in
their CRIU; what that takes is told beside what brumate takes for the same program as a job, and beside CRIU's own cuda_plugin.

BRUMATE_TEST_STOCK names a folder with that cuda_plugin.so, built from CRIU's source, and NVIDIA's cuda-checkpoint."""

import contextlib
import json
import os
import platform
import re
import shutil
import threading
import time

import varlink_client
from cases import read_text, wait_until
from harness import Failed, Program, Skipped, expect, run
from podman_engine import Podman, cdi_device
from runc import CGROUPS, PLUGIN, Container, driver_folder, find_runc

BEGIN_S, OPERATION_S = 180, 300
CYCLES = 2
STUCK_S = 10  # a program that has not gone on after so long has lost its GPUs


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
    """Seconds until act() has returned, and until the program has gone a step further, which may be before: podman removes images."""
    before, start, steps = log.last_step(), time.monotonic(), []

    def watch():
        while time.monotonic() < start + OPERATION_S and not steps:
            time.sleep(0.005)
            if log.last_step() > before:
                steps.append(time.monotonic() - start)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    act()
    done = time.monotonic() - start
    wait_until(lambda: steps, "a step after it", BEGIN_S)
    watcher.join()
    return done, steps[0]


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


def paused(check, library=False):
    """By its engine, as containerd does: thawed while its GPU state is saved, and stopped thread by thread from then on."""
    with container(check, f"exec {counter(memory_mib(check, 1024))}", library=library) as made:
        made.log().goes_on()
        expect(made.runc("pause", made.id) == 0, made.last_words())
        expect(made.checkpoint("--leave-running", timeout=OPERATION_S) == 0, made.reason("dump.log"))
        expect(made.state() == "paused", f"the container is {made.state()}")
        expect(made.runc("resume", made.id) == 0, made.last_words())
        made.log().goes_on(seconds=BEGIN_S)
        shutil.rmtree(made.image)
        expect(made.runc("pause", made.id) == 0, made.last_words())
        made.saved(OPERATION_S).end()
        made.restored(OPERATION_S).log().goes_on(seconds=BEGIN_S)


def paused_by_library(check):
    paused(check, library=True)


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


# The simulated driver asks the process for its restore thread. One that is stopped does not answer; but the number within the
# container, which is the same after a restore, was told before.
RESTORE_TID = """
inner() {{ sed -n 's/^NSpid:.*[^0-9]//p' /proc/$1/task/$2/status; }}
if [ "$1" = --get-restore-tid ]; then
	if [ -e {dir}/tid ]; then
		for path in /proc/$3/task/*; do
			[ "$(inner $3 ${{path##*/}})" != "$(cat {dir}/tid)" ] || echo ${{path##*/}}
		done
	else
		tid=$({dir}/cuda-checkpoint "$@") || exit
		inner $3 $tid > {dir}/tid
		echo $tid
	fi
	exit
fi
"""


class Side:
    """One of those that are compared: a folder of plugins for podman's CRIU, and what its containers have besides."""

    def __init__(self, name, folder, conf=(), options=(), tool=None):
        self.name, self.folder, self.conf, self.options, self.tool = name, folder, conf, options, tool

    def start(self, podman, mib):
        podman.use_plugins(self.folder, "network-lock skip", *self.conf)  # there is none, and not every machine has iptables
        podman.start(self.container, *self.options, mib=mib).log().goes_on(seconds=BEGIN_S)

    @property
    def container(self):
        return self.name.replace(" ", "-").replace(",", "")


def stock_side(check, podman):
    """CRIU's own plugin and NVIDIA's tool, which podman's CRIU finds by its PATH. Its time limit of 10 s is for all processes
    together, and what is moved here takes longer."""
    folder = os.environ.get("BRUMATE_TEST_STOCK")
    if not folder:
        raise Skipped("BRUMATE_TEST_STOCK names no folder with CRIU's cuda_plugin.so")
    plugins = os.path.join(podman.dir, "stock")
    os.mkdir(plugins)
    shutil.copy(os.path.join(folder, "cuda_plugin.so"), plugins)
    script = f"#!/bin/sh\n[ ! -e {podman.dir}/fail ] || ! echo \"$*\" | grep -q -f {podman.dir}/fail || exit 1\n"
    if check.options.simulated:  # whose tables NVIDIA's tool does not know, and whose stopped processes do not answer
        os.symlink(check.program("brumate"), os.path.join(podman.dir, "cuda-checkpoint"))
        podman.write_criu("CRIU_FAULT=138")
        script += RESTORE_TID.format(dir=podman.dir) + f"exec {podman.dir}/cuda-checkpoint \"$@\"\n"
    else:
        script += f"LD_LIBRARY_PATH={driver_folder()} exec {os.path.join(folder, 'cuda-checkpoint')} \"$@\"\n"
    tool = podman.file("bin/cuda-checkpoint", script, 0o700)
    return Side("stock", plugins, ["timeout 300"], tool=tool)


@contextlib.contextmanager
def sides(check):
    """podman, and the three that are compared."""
    check.instance.own["BRUMATE_FAULT_FILE"] = os.path.join(check.instance.dir, "fault")
    with machine_with_cgroups(), Podman(check.instance, logs=True) as podman, cdi_device(check.instance) as device:
        say_where(check)
        ours = os.path.dirname(check.program(PLUGIN))
        yield podman, [Side("brumate, CDI", ours, options=["--device", device]), Side("brumate", ours), stock_side(check, podman)]


SLOW_S = 0.02  # of two lines of CRIU's log


def stamps(text):
    """(seconds since CRIU began, line) of a log of CRIU."""
    return [(float(found[1]), found[2]) for found in re.finditer(r"^\((\d+\.\d+)\)(.*)", text, re.MULTILINE)]


def where_the_time_went(check, podman, name, start, seconds):
    """Of a command of podman: the engine's own time around CRIU, CRIU's, and what CRIU was slow at, the plugin's work with it."""
    steps = [line.split(maxsplit=2) for line in read_text(os.path.join(podman.dir, "steps")).splitlines()]
    began = [float(when) for when, program, words in steps if program == "criu" and words == "swrk 3"][-1] - start
    logs = os.path.join(podman.dir, "logs")
    lines = stamps("".join(read_text(os.path.join(logs, log)) for log in ("dump.log", "restore.log")))
    slow = [f"  {was:.3f}-{now:.3f} {what.strip()[:90]}" for (was, what), (now, _) in zip(lines, lines[1:]) if now - was > SLOW_S]
    told = [f"  {float(when) - start:.3f} {program} {words[-60:]}" for when, program, words in steps]
    check.instance.note("\n".join([f"{name}:", *told, *slow, read_text(os.path.join(logs, "brumate.log")).strip()]))
    tell(check, f"{name}: until CRIU / CRIU / after it, s", began, lines[-1][0], seconds - began - lines[-1][0])
    shutil.rmtree(logs)
    os.mkdir(logs)
    os.unlink(os.path.join(podman.dir, "steps"))


def podman_times(check, podman, side, mib, name, get_ready=lambda: None):
    """Of podman's checkpoint, its restore, and until the next step after it, in seconds; with the library the same a second time, as
    the first one has the broker make memory ready."""
    side.start(podman, mib)
    get_ready()
    os.unlink(os.path.join(podman.dir, "steps"))
    for again in ("", ", again") if side.options else ("",):
        start = time.time()
        podman.ok("container", "checkpoint", side.container)
        saved = time.time() - start
        where_the_time_went(check, podman, f"{name}{again}, checkpoint", start, saved)
        start = time.time()
        back = runs_to_the_next_step(podman.log(), lambda: podman.ok("container", "restore", side.container))
        where_the_time_went(check, podman, f"{name}{again}, restore", start, back[0])
        podman.log().goes_on(seconds=BEGIN_S)
        tell(check, f"{name}{again}: checkpoint / restore / until the next step, s", saved, *back)


def podman_with_brumated(check):
    """The first checkpoint, whose memory brumated has had made ready."""
    mib, failed = max(256, memory_mib(check, 10240)), []
    instance = check.instance

    def is_ready():
        name = "broker-simulated.sock" if check.options.simulated else "broker.sock"
        path = os.path.join(instance.own["BRUMATE_RUNTIME_DIR"], name)
        try:
            with varlink_client.Client(path) as broker:
                return broker.call("io.brumate.broker.Info", {})["pool"]["free_pinned_bytes"] >= mib << 20
        except (FileNotFoundError, ConnectionRefusedError):
            return False  # it is about to start

    def get_ready():
        wait_until(is_ready, "memory for the container's copy to be ready", 120)

    with machine_with_cgroups(), Podman(instance, logs=True) as podman, cdi_device(instance) as device:
        say_where(check)
        side = Side("brumate, CDI", os.path.dirname(check.program(PLUGIN)), options=["--device", device])
        instance.programs.append(Program([check.program("brumated")], os.path.join(instance.dir, "brumated.out"), env=instance.command_env()))
        name = f"containers: {mib} MiB, podman, brumated runs"
        with one_side(check, podman, side, name, failed):
            podman_times(check, podman, side, mib, name, get_ready)
    expect(not failed, " | ".join(failed))


@contextlib.contextmanager
def one_side(check, podman, side, name, failed):
    """One that fails does not keep the others from being seen, and what was said is kept. Where it is CRIU's own plugin, that is
    a result like any other."""
    try:
        yield
    except Failed as failure:
        for base, _, names in os.walk(podman.dir):
            for log in sorted(set(names) & {"dump.log", "restore.log", "brumate.log"}):
                check.instance.note(f"--- {side.name}: {log}\n{read_text(os.path.join(base, log))[-6000:]}")
        check.measured[name] = f"failed, and {what_it_does(podman, side)}: {failure}"
        print(f"{name}: {check.measured[name][:200]} … {podman.reason()}", flush=True)
        if not side.tool:
            failed.append(f"{side.name}: {failure}")
    podman.podman("rm", "--force", "--time", "0", side.container)


def podman_beside_stock(which):
    def compare(check):
        """The same container with each of them: a case each, so that a machine's time may go to one alone."""
        mib, failed = memory_mib(check, 10240), []
        with sides(check) as (podman, all_sides):
            side = all_sides[which]
            name = f"containers: {mib} MiB, podman, {side.name}"
            with one_side(check, podman, side, name, failed):
                podman_times(check, podman, side, mib, name)
        expect(not failed, " | ".join(failed))

    return compare


def word(code):
    return "success" if code == 0 else "failure"


def what_it_does(podman, side):
    status = podman.podman("inspect", "--format", "{{.State.Status}}", side.container).out.strip() or "gone"
    if status != "running":
        return f"the container is {status}"
    try:
        podman.log().goes_on(seconds=STUCK_S)
        return "the program goes on"
    except Failed:
        return "the program is stuck"


def failing_checkpoint(podman, side, fail, again):
    fail()
    code = podman.podman("container", "checkpoint", side.container).code
    again()
    return f"podman says {word(code)}, {what_it_does(podman, side)}"


def failing_restore(podman, side, fail, again):
    """Once more without the failure, where podman can."""
    podman.ok("container", "checkpoint", side.container)
    fail()
    code = podman.podman("container", "restore", side.container).code
    told = f"podman says {word(code)}, {what_it_does(podman, side)}"
    again()
    if podman.status(side.container) == "exited":
        code = podman.podman("container", "restore", side.container).code
        told += f"; restored again: {word(code)}, {what_it_does(podman, side)}"
    return told


def podman_failures(check):
    """What becomes of a container whose device memory cannot be saved or restored: the tool of the one fails, a step of the other."""
    failed = []
    with sides(check) as (podman, all_sides):
        for side in all_sides:
            def fail(what, side=side):
                if side.tool:
                    podman.file("fail", f"action {what}\n")
                else:
                    with open(check.instance.own["BRUMATE_FAULT_FILE"], "w", encoding="utf-8") as file:
                        file.write(f"container.gpu-{what}.end error:5\n")

            def again(side=side):
                if side.tool:
                    os.unlink(os.path.join(podman.dir, "fail"))

            for what, act in (("checkpoint", failing_checkpoint), ("restore", failing_restore)):
                name = f"containers: podman, {side.name}, a {what} of device memory fails"
                with one_side(check, podman, side, name, failed):
                    side.start(podman, memory_mib(check, 256))
                    check.measured[name] = act(podman, side, lambda what=what, fail=fail: fail(what), again)
                    print(f"{name}: {check.measured[name]}", flush=True)
                    expect(side.tool or "stuck" not in check.measured[name].rsplit(";", 1)[-1], check.measured[name])
    expect(not failed, " | ".join(failed))


def register(case):
    """Adds these cases to gpu-check's list."""
    case("containers: runc checkpoints and restores, twice")(twice)
    case("containers: runc checkpoints and leaves running")(leave_running)
    case("containers: runc, paused before")(paused)
    case("containers: runc, paused before, by the library")(paused_by_library)
    case("containers: runc, three GPU processes in one")(three_processes)
    case("containers: runc beside brumate's own, 8 GiB")(times)
    case("containers: suspended by the library, 8 GiB")(suspended)
    case("containers: checkpointed by the library, 10 GiB")(by_library)
    case("containers: three GPU processes by the library")(three_by_library)
    for which, what in enumerate(("with the library", "without", "and that alone")):
        case(f"containers: podman beside CRIU's own plugin, 10 GiB, {what}")(podman_beside_stock(which))
    case("containers: podman with the library while brumated runs, 10 GiB")(podman_with_brumated)
    case("containers: podman beside CRIU's own plugin, failures")(podman_failures)
