#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Containers with the settings by which they are hardened, or open to the host: what is left of checkpoint and restore by the
engine, and of suspend and resume by brumate. docs/containers.md has the table; each case here is a row of it."""

import contextlib
import ctypes
import errno
import json
import os
import re
import shutil

from cases import MIB, case, expect, main, read_text
from harness import Skipped
from runc import Container, by_library, copy_libraries, find_in

COUNTER = "/bin/counter --mib 16 --chunk-mib 4 --interval-ms 40"
PROGRAM = f"exec {COUNTER} > /tmp/out"
PR_SET_CHILD_SUBREAPER = 36
BY_LIBRARY, BY_DRIVER = True, False


def is_suspended_and_resumed(bed, container, way):
    """By the way that is wanted; the container goes on as before."""
    bed.operation("suspend", "--container", container.id)
    moved = by_library(bed, container)
    expect((moved >= 16 * MIB) == (way == BY_LIBRARY), f"{moved} bytes go by the library")
    bed.operation("resume", "--container", container.id)
    container.log().goes_on()
    bed.ok("release", container.id)


def is_saved_and_restored(container):
    container.saved().end()
    container.restored().log().goes_on()
    shutil.rmtree(container.image)


@contextlib.contextmanager
def started(bed, change, library=True, name="c", command=PROGRAM):
    """A container with what @change makes of its config.json, which brumate finds."""
    with Container(bed, command, name, library, change) as container:
        find_in(bed, os.path.join(container.dir, "state"))
        container.start().log().goes_on()
        yield container


def works(bed, change, library=True, way=None, name="c"):
    """All of it, before and after a restore."""
    with started(bed, change, library, name) as container:
        way = library if way is None else way
        is_suspended_and_resumed(bed, container, way)
        is_saved_and_restored(container)
        is_suspended_and_resumed(bed, container, way)


def mount_of(config, destination):
    return next(mount for mount in config["mounts"] if mount["destination"] == destination)


def without_namespace(config, *kinds):
    config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] not in kinds]


@case
def as_runc_makes_them(bed):
    """With namespaces of its own but for the network, and paths that are hidden or read only."""

    def change(config):
        kinds = {namespace["type"] for namespace in config["linux"]["namespaces"]}
        expect(kinds == {"pid", "ipc", "uts", "mount"}, f"other namespaces: {kinds}")
        expect(config["linux"]["maskedPaths"] and config["linux"]["readonlyPaths"], "no path is hidden")

    for library in (True, False):
        works(bed, change, library=library, name=f"library-{library}")


@case
def all_of_it_at_once(bed):
    """As a cluster may want it of its containers, but for a user of its own."""

    def change(config):
        for one in (read_only(bed), take_privileges, take_capabilities, filter_calls(), limit_pids(16), limit_memory(512)):
            one(config)
        config["linux"]["namespaces"] += [{"type": "network"}, {"type": "cgroup"}]

    works(bed, change)


def read_only(bed):
    def change(config):
        config["root"]["readonly"] = True
        source = os.path.join(bed.dir, "c", "rootfs", "tmp")
        # First, so that the simulated GPUs, which are mounted below it, are not hidden.
        config["mounts"].insert(0, {"destination": "/tmp", "type": "bind", "source": source, "options": ["bind", "rw"]})

    return change


@case
def root_that_is_read_only(bed):
    works(bed, read_only(bed))


def take_privileges(config):
    config["process"]["noNewPrivileges"] = True


@case
def no_new_privileges(bed):
    works(bed, take_privileges)


def take_capabilities(config):
    config["process"]["capabilities"] = {kind: [] for kind in ("bounding", "effective", "permitted")}


@case
def no_capabilities(bed):
    for library in (True, False):
        works(bed, take_capabilities, library=library, name=f"library-{library}")


USER = 1000
CAP_SYS_RESOURCE = 24


def has_capability(number):
    return int(re.search(r"^CapEff:\s*(\w+)", read_text("/proc/self/status"), re.MULTILINE)[1], 16) >> number & 1


def let_in(bed, name, *users):
    for path in (os.path.join(bed.dir, name, "rootfs", "tmp"), bed.own["BRUMATE_SIM_DIR"]):
        os.chown(path, *users)


def as_user(bed, name="c"):
    def change(config):
        config["process"]["user"] = {"uid": USER, "gid": USER}
        let_in(bed, name, USER, USER)

    return change


@case
def user_that_is_not_root(bed):
    for library in (True, False):
        name = f"library-{library}"
        with started(bed, as_user(bed, name), library, name) as container:
            is_suspended_and_resumed(bed, container, library)


@case
def user_that_is_not_root_checkpointed(bed):
    if not has_capability(CAP_SYS_RESOURCE):
        raise Skipped("CRIU asks for limits of another user's process, for which this machine's root lacks CAP_SYS_RESOURCE")
    works(bed, as_user(bed))


@case
def users_beside_root(bed):
    """The first process is root's, and the one that uses the GPU is not."""
    setpriv = shutil.which("setpriv")

    def change(config):
        rootfs = os.path.join(bed.dir, "c", "rootfs")
        shutil.copy(setpriv, os.path.join(rootfs, "bin"))
        copy_libraries(setpriv, rootfs)
        os.chmod(os.path.join(rootfs, "tmp"), 0o1777)
        os.chown(bed.own["BRUMATE_SIM_DIR"], USER, USER)
        for kind in ("bounding", "effective", "permitted"):
            config["process"]["capabilities"][kind] += ["CAP_SETUID", "CAP_SETGID"]

    command = f"/bin/setpriv --reuid {USER} --regid {USER} --clear-groups {COUNTER} > /tmp/out & wait"
    with started(bed, change, command=command) as container:
        is_suspended_and_resumed(bed, container, BY_LIBRARY)


@case
def ipc_of_the_host(bed):
    def change(config):
        without_namespace(config, "ipc")
        config["mounts"].remove(mount_of(config, "/dev/mqueue"))

    works(bed, change)


@contextlib.contextmanager
def reaping():
    """What engines' monitors do: the container's first process is our child, and its number is free once we know of its end."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@case
def pids_of_the_host(bed):
    """A process has its number again, which must be free."""
    with reaping(), started(bed, lambda config: without_namespace(config, "pid")) as container:
        pid = container.init[0]
        is_suspended_and_resumed(bed, container, BY_LIBRARY)
        container.saved()
        os.waitpid(pid, 0)
        container.end()
        squatter = bed.take_pid(pid)
        expect(container.restore() != 0, "restored with a number that is taken")
        expect(f"Can't fork for {pid}: File exists" in container.dump_log("restore.log"), container.reason("restore.log"))
        container.end()
        squatter.end()
        container.restored().log().goes_on()
        is_suspended_and_resumed(bed, container, BY_LIBRARY)


@case
def network_of_none(bed):
    def change(config):
        config["linux"]["namespaces"].append({"type": "network"})

    works(bed, change)


@case
def cgroup_namespace(bed):
    def change(config):
        config["linux"]["namespaces"].append({"type": "cgroup"})

    works(bed, change)


@case
def small_dev_shm(bed):
    def change(config):
        mount = mount_of(config, "/dev/shm")
        mount["options"] = [o for o in mount["options"] if not o.startswith("size=")] + ["size=64k"]

    works(bed, change)


FIRST_ID = 100000


def give(path, first):
    """To root of a user namespace, with all below it."""
    for base, folders, names in os.walk(path):
        for name in (".", *folders, *names):
            os.chown(os.path.join(base, name), first, first, follow_symlinks=False)


def map_ids(bed, name="c", first=FIRST_ID):
    def change(config):
        # Who owns the container's network may have its own /sys.
        config["linux"]["namespaces"] += [{"type": "user"}, {"type": "network"}]
        ids = [{"containerID": 0, "hostID": first, "size": 65536}]
        config["linux"].update(uidMappings=ids, gidMappings=ids)
        os.chmod(bed.dir, 0o711)
        give(os.path.join(bed.dir, name, "rootfs"), first)
        give(bed.own["BRUMATE_SIM_DIR"], first)

    return change


@case
def few_files(bed):
    """For a user of its own: CRIU dumps no process while more descriptors of its user are on their way, from whatever program,
    than the process may have files (unix(7))."""
    own_ids = map_ids(bed, first=2 * FIRST_ID)

    def change(config):
        own_ids(config)
        config["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": 64, "hard": 64}]

    works(bed, change)


@case
def user_namespace(bed):
    """Root in the container is not root outside, and brumate is nobody it knows."""
    for library in (True, False):
        name = f"library-{library}"
        works(bed, map_ids(bed, name), library=library, name=name)


@case
def user_namespace_and_pids_of_the_host(bed):
    """The library cannot tell brumate from others there, and does not answer: the driver moves the memory."""

    def change(config):
        map_ids(bed)(config)
        without_namespace(config, "pid")
        mount_of(config, "/proc").update(type="bind", source="/proc", options=["rbind"])

    with reaping(), started(bed, change) as container:
        is_suspended_and_resumed(bed, container, BY_DRIVER)


def limit_pids(n):
    def change(config):
        config["linux"]["resources"]["pids"] = {"limit": n}

    return change


def limit_memory(mib):
    def change(config):
        config["linux"]["resources"]["memory"] = {"limit": mib * MIB}

    return change


@case
def memory_limit_with_room(bed):
    works(bed, limit_memory(512))


@case
def memory_limit_without_room(bed):
    """Refused before anything is touched; the library needs no room in the container."""
    reason = r"B of device memory do not fit into the [\d.]+ [KM]?i?B of memory that cgroup"
    command = f"exec {COUNTER} --mib 48 > /tmp/out"
    with started(bed, limit_memory(32), False, "driver", command) as container:
        expect(container.checkpoint() != 0, "saved where the memory has no room")
        expect(re.search(reason, container.dump_log()), container.reason("dump.log"))
        container.log().goes_on()
        bed.refused(1, reason, "suspend", "--container", container.id)
        container.log().goes_on()
    with started(bed, limit_memory(32), True, "library", command) as container:
        is_suspended_and_resumed(bed, container, BY_LIBRARY)
        is_saved_and_restored(container)


@case
def pids_limit_with_room(bed):
    works(bed, limit_pids(16))


@case
def pids_limit_of_just_the_threads(bed):
    """What CRIU starts to restore a container counts as the container's. The image is whole, and the limit can be raised."""
    with started(bed, limit_pids(4)) as container:
        is_suspended_and_resumed(bed, container, BY_LIBRARY)
        container.saved().end()
        expect(container.restore() != 0, "restored where CRIU may start nothing: this case shows nothing")
        expect("Cannot fork" in container.dump_log("restore.log"), container.reason("restore.log"))
        container.end()
        container.edit(limit_pids(16))
        container.restored().log().goes_on()


PROFILE = "/usr/share/containers/seccomp.json"


def default_profile(refuse=None, without=()):
    """The profile of podman and CRI-O, which is docker's too, for a container with the capabilities of runc's example."""
    text = read_text(PROFILE)
    if not text:
        raise Skipped(f"no {PROFILE}")
    rules = []
    for rule in json.loads(text)["syscalls"]:
        wanted = rule.get("includes") or {}
        if rule["action"] != "SCMP_ACT_ALLOW" or wanted.get("caps") or "amd64" not in wanted.get("arches", ["amd64"]):
            continue
        names = [name for name in rule["names"] if name not in without]
        rules.append({"names": names, "action": rule["action"], "args": rule.get("args") or []})
    return {"defaultAction": refuse or "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.ENOSYS, "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": rules}


def filter_calls(**options):
    def change(config):
        config["linux"]["seccomp"] = default_profile(**options)

    return change


@case
def seccomp_as_engines_have_it(bed):
    for library in (True, False):
        works(bed, filter_calls(), library=library, name=f"library-{library}")


# Calls that engines allow, of the kinds that the library makes, which it does not make.
NOT_MADE = ("accept", "connect", "getpeername", "recvfrom", "recvmmsg", "sendmmsg", "sendto", "shutdown", "socketpair",
            "clock_settime", "eventfd2", "inotify_init1", "io_uring_setup", "kill", "memfd_secret", "mknod", "pidfd_getfd",
            "pidfd_open", "pidfd_send_signal", "process_vm_readv", "process_vm_writev", "ptrace", "tgkill", "timerfd_create")


@case
def seccomp_that_kills(bed):
    """The library makes no call that engines do not allow, and none of those."""
    works(bed, filter_calls(refuse="SCMP_ACT_KILL_PROCESS", without=NOT_MADE))


@case
def seccomp_without_sockets(bed):
    """The library cannot listen: the driver moves the memory."""
    works(bed, filter_calls(without=("socket", "bind", "listen")), way=BY_DRIVER)


@case
def label_of_apparmor(bed):
    profiles = re.findall(r"^(\S*default\S*) \(enforce\)", read_text("/sys/kernel/security/apparmor/profiles"), re.MULTILINE)
    if not profiles:
        raise Skipped("no profile of AppArmor for containers is loaded")

    def change(config):
        config["process"]["apparmorProfile"] = profiles[0]

    works(bed, change)


@case
def label_of_selinux(bed):
    if read_text("/sys/fs/selinux/enforce").strip() != "1":
        raise Skipped("SELinux does not enforce anything here")

    def change(config):
        config["process"]["selinuxLabel"] = "system_u:system_r:container_t:s0:c1,c2"
        config["linux"]["mountLabel"] = "system_u:object_r:container_file_t:s0:c1,c2"

    works(bed, change)


main()
