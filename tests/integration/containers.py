#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers that runc checkpoints and restores by itself, with brumate's plugin in its CRIU: no job, no command of ours.
Programs of the simulated driver run in them."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import tarfile

from cases import Bed, case, expect, main, read_text, wait_until
from harness import Failed, Skipped, process_start
from runc import Container, by_library, fails_and_can_be_repeated, fails_and_goes_on, find_in, kill_engine_at

COUNTER = "/bin/counter --mib 64 --chunk-mib 16 --interval-ms 60"


def on_gpu(bed, gpu=None):
    """How many bytes of device memory there are, whoever has them; of one GPU or of all."""
    folder = os.path.join(bed.own["BRUMATE_SIM_DIR"], "" if gpu is None else f"gpu{gpu}")
    return sum(os.stat(os.path.join(base, name)).st_blocks * 512 for base, _, names in os.walk(folder) for name in names)


@case
def checkpoint_remove_restore(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().log().goes_on()
        for _ in range(2):
            container.saved()
            expect(on_gpu(bed) < 32 << 20, "the GPU holds memory of a container that is not there")
            container.end()
            container.restored().log().goes_on()
            shutil.rmtree(container.image)


@case
def gpus_by_uuid(bed):
    """On another machine the container gets the GPU that it had, whichever place that has there; and where none is it, another."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().log().goes_on()
        container.saved().end()
        size = os.path.getsize(container.log().path)  # CRIU wants it as it was
        for uuids, place, left in (("7,0", 1, "00"), ("7,8", 0, "07")):
            with Bed(bed.build, {"BRUMATE_SIM_UUIDS": uuids, "BRUMATE_SIM_DIR": bed.own["BRUMATE_SIM_DIR"]}) as other:
                container.env = other.command_env({"PATH": container.env["PATH"]})
                os.truncate(container.log().path, size)
                container.restored().log().goes_on()
                used = [on_gpu(bed, n) for n in (0, 1)]
                expect(used[place] >= 64 << 20 > used[1 - place], f"{uuids}: in use {used}")
                last = container.log().lines()[-1]
                expect(f"0000000000{left} step" in last, f"{uuids}: {last}")
                container.end()
                other.finish()


def give_device(config, path):
    """A device that CRIU cannot save, named like a GPU's."""
    number = os.stat("/dev/fuse").st_rdev
    device = {"path": path, "type": "c", "major": os.major(number), "minor": os.minor(number), "fileMode": 0o666}
    config["linux"].setdefault("devices", []).append(device)
    config["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": device["major"], "minor": device["minor"], "access": "rwm"})


@case
def leftover_of_a_device(bed):
    """What a program has open of the GPU's devices without using the GPU is opened again, as it was opened."""
    if not os.path.exists("/dev/fuse"):
        raise Skipped("no /dev/fuse to stand in for a device")
    device = f"/dev/nvidia-test-{os.getpid()}"
    command = f"exec 8<{device} 9<>{device}; {COUNTER} 8<&- 9<&- > /tmp/out & wait"
    with Container(bed, command, change=lambda config: give_device(config, device)) as container:
        container.start().log().goes_on()
        for _ in range(2):
            container.saved().end()
            container.restored().log().goes_on()
            found = {n: os.readlink(f"/proc/{container.init[0]}/fd/{n}") for n in (8, 9)}
            modes = {n: re.search(r"flags:\t0?\d*(\d)$", read_text(f"/proc/{container.init[0]}/fdinfo/{n}"), re.M)[1] for n in (8, 9)}
            expect(set(found.values()) == {device} and modes == {8: "0", 9: "2"}, f"{found} {modes}")
            shutil.rmtree(container.image)


def refuses_while_suspended(bed, container):
    expect(container.checkpoint() != 0, "a suspended container was checkpointed")
    expect("is suspended" in container.dump_log(), container.reason("dump.log"))
    wait_until(lambda: not [p for p in bed.processes() if "brumate-container" in p[1]], "the helper's end", 60)
    expect(on_gpu(bed) < 32 << 20, "a suspended container is on the GPU again")
    bed.expect_state(container.id, "suspended")


@case
def suspend_and_resume(bed):
    """By brumate's own commands: the engine does not notice, and `ps` has the container as a job of its name."""
    with Container(bed, f"{COUNTER} > /tmp/out & wait") as container:
        container.start().log().goes_on()
        bed.refused(3, "no container has the id or the name", "suspend", "--container", container.id)
        find_in(bed, os.path.join(bed.dir, "nowhere"), os.path.join(container.dir, "state"))
        for word in (container.id, container.id[:-2]):
            job = bed.operation("suspend", "--container", word)["job"]
            expect(on_gpu(bed) < 32 << 20, "the GPU holds memory of a suspended container")
            bed.expect_state(container.id, "suspended")
            refuses_while_suspended(bed, container)
            bed.operation("resume", "--container", word)
            container.log().goes_on()
        bed.ok("release", job)
        bed.refused(3, "belongs to no job", "resume", "--container", container.id)


@case
def suspended_by_the_library(bed):
    """With the device of `brumate cdi` the data path moves the memory of all processes. Several that share nothing are not
    asked about, as their agents tell. The engine checkpoints such a container as any other."""
    names = ("one", "two")
    with Container(bed, f"{COUNTER} > /tmp/one & {COUNTER} > /tmp/two & wait", library=True) as container:
        container.start(names)
        find_in(bed, os.path.join(container.dir, "state"))
        for _ in range(3):
            bed.operation("suspend", "--container", container.id)
            expect(by_library(bed, container) >= 128 << 20, f"only {by_library(bed, container)} bytes go by the library")
            expect(on_gpu(bed) < 32 << 20, "the GPU holds memory of a suspended container")
            bed.operation("resume", "--container", container.id)
            for name in names:
                container.log(name).goes_on()
        bed.ok("release", container.id)


@case
def checkpoint_with_the_library(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out", library=True) as container:
        container.start().log().goes_on()
        find_in(bed, os.path.join(container.dir, "state"))
        for _ in range(2):
            container.saved().end()
            container.restored().log().goes_on()
            shutil.rmtree(container.image)
        bed.operation("suspend", "--container", container.id)
        expect(by_library(bed, container) >= 64 << 20, f"only {by_library(bed, container)} bytes go by the library")
        refuses_while_suspended(bed, container)
        bed.operation("resume", "--container", container.id)
        container.log().goes_on()
        bed.ok("release", container.id)


AGENTS = "/run/brumate-agents"


def say_agents(config):
    config["process"]["env"] += [f"BRUMATE_AGENT_DIR={AGENTS}"]


def give_place(config):
    """A place for agents, as the device has it, but no library."""
    say_agents(config)
    config["mounts"].append({"source": "tmpfs", "destination": AGENTS, "type": "tmpfs", "options": ["mode=1777"]})


@case
def agents_that_are_none(bed):
    """What stands in the place of the agents is the container's to make: a link to a directory of the host is not followed,
    and neither is one in the place of a socket. Then the driver moves the memory."""
    theirs = os.path.join(bed.dir, "theirs")
    os.mkdir(theirs)

    with Container(bed, f"{COUNTER} > /tmp/out & wait", change=say_agents) as container:
        os.makedirs(os.path.join(container.rootfs, "run"))
        os.symlink(theirs, container.rootfs + AGENTS)
        goes_by_the_driver(bed, container)
    expect(not os.listdir(theirs), f"in a directory of the host was made: {os.listdir(theirs)}")
    socket_of_host = os.path.join(theirs, "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(socket_of_host)
        listener.listen()
        listener.setblocking(False)
        with Container(bed, f"{COUNTER} > /tmp/out & wait", "d", change=give_place) as container:
            container.start()
            for pid in range(1, 20):
                os.symlink(socket_of_host, f"/proc/{container.init[0]}/root{AGENTS}/{pid}")
            goes_by_the_driver(bed, container)
        try:
            listener.accept()
            raise Failed("a socket of the host was connected to by way of a container")
        except BlockingIOError:
            pass


@case
def agents_of_others(bed):
    """Who answers must be the process that is asked: another one gets no word. Thousands of sockets that nobody serves, and
    their names, are no burden."""
    with contextlib.ExitStack() as stack, Container(bed, f"{COUNTER} > /tmp/out & wait", change=give_place) as container:
        container.start()
        inside = f"/proc/{container.init[0]}/root{AGENTS}"
        listeners = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(20)]
        for pid, listener in enumerate(listeners, 1):
            listener.bind(f"{inside}/{pid}")
            listener.listen()
        for number in range(1000, 6000):
            os.mknod(f"{inside}/{number}", stat.S_IFSOCK | 0o600)
        goes_by_the_driver(bed, container)
        heard = 0
        for listener in listeners:
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    peer = listener.accept()[0]
                    with peer:
                        heard += 1
                        expect(peer.recv(4096) == b"", "somebody else was told what is for an agent")
        expect(heard, "nobody was asked: this case shows nothing")


def goes_by_the_driver(bed, container):
    if not container.init:
        container.start()
    find_in(bed, os.path.join(container.dir, "state"))
    bed.operation("suspend", "--container", container.id)
    bed.operation("resume", "--container", container.id)
    expect(by_library(bed, container) == 0, "memory went by agents that are none")
    container.log().goes_on()
    bed.ok("release", container.id)


@case
def containers_that_are_not_meant(bed):
    """State that is damaged, of one that has ended, or of several is told apart; what cannot be read is no "no"."""
    root = os.path.join(bed.dir, "engines")

    def make(path, state):
        os.makedirs(os.path.dirname(os.path.join(root, path)))
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(state)

    sleeper = bed.start(["sleep", "1000"])
    start = process_start(sleeper.pid)
    make("crun/aaa1/status", json.dumps({"pid": sleeper.pid, "process-start-time": start + 1, "bundle": "/"}))
    make("runc/k8s/aaa2/state.json", json.dumps({"init_process_pid": 0, "init_process_start": 0}))
    find_in(bed, os.path.join(root, "crun"), os.path.join(root, "runc"))
    bed.refused(3, "container aaa1 does not run", "suspend", "--container", "aaa1")
    bed.refused(3, "container aaa2 does not run", "suspend", "--container", "aaa2")
    bed.refused(2, "2 containers are meant", "suspend", "--container", "aaa")
    bed.refused(2, "expected an id or a name", "suspend", "--container", "../aaa1")
    bed.refused(3, "no container has the id or the name", "suspend", "--container", "b")
    bed.refused(2, "expected one of JOB, --all, --container and --pid", "suspend", "--container", "aaa1", "--pid", "1")
    make("runc/k8s/bbb/state.json", "{")
    bed.refused(9, "not all could be looked at", "suspend", "--container", "b")
    bed.refused(3, "container aaa1 does not run", "suspend", "--container", "aaa1")


@case
def twenty_cycles(bed):
    """Nothing wears out: no process and no device memory is left of any."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().log().goes_on()
        for _ in range(20):
            container.saved()
            expect(on_gpu(bed) < 32 << 20, "the GPU holds memory of a container that is not there")
            container.end()
            container.restored().log().goes_on(1)
            shutil.rmtree(container.image)


@case
def other_id_from_an_archive(bed):
    """What another machine gets: the directory of the image in one file, unpacked in another place."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().log().goes_on()
        container.saved().end()
        archive = os.path.join(container.dir, "image.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(container.image, ".")
        shutil.rmtree(container.image)
        container.id, container.image = container.id + "-again", os.path.join(bed.dir, "unpacked")
        with tarfile.open(archive) as tar:
            tar.extractall(container.image)
        container.restored().log().goes_on()
        expect(container.state() == "running", f"the container is {container.state()}")


@case
def checkpoint_and_go_on(bed):
    """The container has its GPU again once CRIU is gone, and its image is as good as any."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
        container.log().goes_on()
        expect(container.state() == "running", f"the container is {container.state()}")


@case
def paused_before(bed):
    """As containerd does with each container that it checkpoints."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        expect(container.runc("pause", container.id) == 0, container.last_words())
        expect(container.checkpoint("--leave-running") == 0, container.reason("dump.log"))
        expect(container.runc("resume", container.id) == 0, container.last_words())
        container.log().goes_on()
        expect(container.runc("pause", container.id) == 0, container.last_words())
        container.saved().end()
        container.restored().log().goes_on()


@case
def three_processes(bed):
    """All are saved before the first is stopped. Whether they share memory nobody can tell, so somebody has to say so."""
    names = ("one", "two", "three")
    command = "; ".join(f"{COUNTER} > /tmp/{name} &" for name in names).replace("&;", "&") + " wait"
    with Container(bed, command) as container:
        container.start(names)
        expect(container.checkpoint() != 0, "what may share memory was saved all the same")
        expect("no agent that tells whether it shares" in container.dump_log(), container.reason("dump.log"))
        for name in names:
            container.log(name).goes_on()
        shutil.rmtree(container.image)
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write("[Container]\nForce=yes\n")
        container.saved().restored()
        for name in names:
            container.log(name).goes_on()


@case
def no_gpu_in_it(bed):
    """A container that uses no GPU costs nothing, and its image needs nothing of ours."""
    # It starts no programs: one that waits for its child to do so cannot be frozen by cgroups of version 1.
    command = ("i=0; echo ready now > /tmp/out; while :; do i=$((i+1)); "
               "[ $((i%5000)) != 0 ] || echo step $((i/5000)) OK >> /tmp/out; done")
    with Container(bed, command) as container:
        container.start().log().goes_on()
        container.saved()
        expect("brumate-gpus.json" not in os.listdir(container.image), "GPUs were recorded")
        container.use_plugin(False)
        container.restored().log().goes_on()


@case
def image_asks_for_the_plugin(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().saved()
        container.use_plugin(False)
        expect(container.restore() != 0, "restored without anybody to bring the GPU's state back")
        expect("brumate-container" in container.dump_log("restore.log"), container.reason("restore.log"))
        container.end()
        container.use_plugin(True)
        container.restored().log().goes_on()


SAVE_POINTS = ("container.save", "container.gpu-lock.end", "container.gpu-checkpoint.begin", "container.gpu-checkpoint.end",
               "container.record.end", "container.check")


@case
def errors_of_a_checkpoint(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        for point in SAVE_POINTS:
            fails_and_goes_on(container, point, "error:5", f"Error.*brumate|brumate: .*{re.escape(point)}")
        container.saved().restored().log().goes_on()


@case
def helper_killed_at_a_checkpoint(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        for point in SAVE_POINTS:
            fails_and_goes_on(container, point, "kill", "brumate-container has ended")
        container.saved().restored().log().goes_on()


@case
def criu_killed_at_a_checkpoint(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        for point in SAVE_POINTS:
            fails_and_goes_on(container, point, "kill:criu", None)
        container.saved().restored().log().goes_on()


@case
def engine_killed_at_a_checkpoint(bed):
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start()
        for point in SAVE_POINTS:
            kill_engine_at(container, point)
            container.log().goes_on()
            shutil.rmtree(container.image)
        container.saved().restored().log().goes_on()


@case
def container_killed_at_a_checkpoint(bed):
    """By somebody else, while its GPU state is on its way: the engine is told, and the helper ends."""
    fifo = bed.fault_file + ".held"
    for n, point in enumerate(("container.gpu-lock.begin", "container.gpu-checkpoint.end")):
        with Container(bed, f"exec {COUNTER} > /tmp/out", f"c{n}") as container:
            container.start()
            bed.fault(point, "hold")
            os.makedirs(container.image)
            engine = container.spawn(*container.checkpoint_words(), container.id)
            wait_until(lambda: os.path.exists(fifo) or engine.poll() is not None, f"{point} to be reached", 60)
            expect(engine.poll() is None, f"{point} was not reached: {container.reason('dump.log')}")
            os.kill(container.init[0], signal.SIGKILL)
            with open(fifo, "wb"):
                pass
            expect(engine.wait(60) != 0, f"{point}: a container that is gone was checkpointed")
            wait_until(lambda: not [p for p in bed.processes() if "brumate-container" in p[1]], "the helper's end", 60)
            expect(container.state() in ("none", "stopped"), f"{point}: the container is {container.state()}")


LOAD_POINTS = ("container.load", "container.restore", "container.gpu-restore.begin", "container.gpu-restore.end",
               "container.gpu-unlock.end")


@case
def errors_of_a_restore(bed):
    """CRIU hears of what goes wrong on the GPU, and so does the engine."""
    with Container(bed, f"{COUNTER} > /tmp/out & {COUNTER} --gpu 1 > /tmp/other & wait") as container:
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write("[Container]\nForce=yes\n")
        container.start(("out", "other")).saved()
        for point in LOAD_POINTS:
            fails_and_can_be_repeated(container, point, "error:5", f"brumate: .*{re.escape(point)}")
        container.restored().log().goes_on()
        container.log("other").goes_on()


@case
def killed_at_a_restore(bed):
    """Be it the helper or CRIU: the image is whole."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().saved()
        for point in LOAD_POINTS:
            fails_and_can_be_repeated(container, point, "kill", "brumate-container has ended")
            fails_and_can_be_repeated(container, point, "kill:criu", None)
        container.restored().log().goes_on()


@case
def not_enough_device_memory(bed):
    """That is found out before the driver is asked, which would lose the process."""
    with Container(bed, f"exec {COUNTER} > /tmp/out") as container:
        container.start().saved()
        hog = bed.start([bed.program("counter"), "--mib", 448, "--chunk-mib", 64], "hog").ready()
        expect(container.restore() != 0, "restored where there is no room")
        expect("MiB free, the job needs" in container.dump_log("restore.log"), container.reason("restore.log"))
        container.end()
        hog.end()
        container.restored().log().goes_on()


main()
