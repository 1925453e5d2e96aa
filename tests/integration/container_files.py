#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`checkpoint --container` and `restore --container`: the engine's own checkpoint, as an archive and as an OCI image, in what
other tools expect of both. Programs of the simulated driver run in the containers."""

import hashlib
import json
import os
import stat
import tarfile

from cases import EXIT_BAD_IMAGE, EXIT_BUSY, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_TIMEOUT, EXIT_UNSUPPORTED, EXIT_USAGE
from cases import case, expect, main, read_text, wait_until
from harness import Skipped, process_start, run
from podman_engine import Podman
from runc import Container, find_crun, find_in, find_tool

COUNTER = "exec /bin/counter --mib 64 --chunk-mib 16 --interval-ms 60 > /tmp/out"


def plain(config):
    """Without a word on CRIU: brumate's command says it all."""
    config["annotations"] = {}


def started(bed, container):
    container.edit(plain)
    container.start().log().goes_on()
    find_in(bed, os.path.join(container.dir, "state"))
    return container


def only_output(bed, *names):
    """Nothing that was needed on the way is left beside what was asked for."""
    left = [name for name in os.listdir(bed.dir) if name.startswith(".brumate-") or name.endswith(".XXXXXX")]
    expect(not left, f"left over: {left}")
    for name in names:
        path = os.path.join(bed.dir, name)
        expect(stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, f"{name} can be read by others")


def expect_audit(audit, method, container, path):
    line = audit.recv(4096).decode()
    words = (f"method={method} uid=0", "result=done", f'container="{container}"', f'path="{path}"')
    expect(all(word in line for word in words), f"expected {words}: {line!r}")


def members(path):
    with tarfile.open(path) as tar:
        return {member.name: member.size for member in tar}


def read_member(path, name):
    with tarfile.open(path) as tar:
        return tar.extractfile(name).read()


def comes_back(bed, container, archive):
    bed.ok("restore", "--container", container.id, archive)
    container.note_init()
    container.log().goes_on()


@case
def archive_and_back(bed):
    """Of a container of runc that was not set up for it, under another name; the checkpoint is where it was asked for."""
    archive = os.path.join(bed.dir, "one.tar")
    with bed.system_log() as audit, Container(bed, COUNTER) as container:
        started(bed, container)
        done = bed.ok("checkpoint", "--container", container.id, "--output", archive)
        expect_audit(audit, "Checkpoint", container.id, archive)
        expect(done.out.strip() == archive, f"it says {done.out}")
        only_output(bed, "one.tar")
        expect(container.state() in ("none", "stopped"), f"the container is {container.state()} after its checkpoint")
        found = members(archive)
        wanted = {"config.dump", "spec.dump", "stats-dump", "checkpoint/brumate-gpus.json", "checkpoint/inventory.img"}
        expect(wanted <= set(found), f"not in the archive: {wanted - set(found)}")
        config = json.loads(read_member(archive, "config.dump"))
        expect(config["id"] == container.id and config["runtime"] == "runc", f"config.dump: {config}")
        expect(json.loads(read_member(archive, "spec.dump"))["process"]["args"][0] == "/bin/sh", "spec.dump is another")
        bed.refused(EXIT_NOT_FOUND, "no container has the id", "checkpoint", "--container", container.id, "-o", archive + "2")
        container.id += "-again"
        shown = bed.ok("restore", "--container", container.id, archive, "--format", "json").json()
        expect(shown["engine"] == "runc" and shown["container"] == container.id, f"it says {shown}")
        expect_audit(audit, "Restore", container.id, archive)
        only_output(bed)
        container.note_init()
        container.log().goes_on()
        expect(container.state() == "running", f"the container is {container.state()}")


@case
def with_the_library(bed):
    """Device memory of the data path is in a directory of its own, which comes along."""
    archive = os.path.join(bed.dir, "one.tar")
    with Container(bed, COUNTER, library=True) as container:
        started(bed, container)
        bed.ok("checkpoint", "--container", container.id, "--output", archive)
        expect(any(name.startswith("checkpoint/brumate-memory/") for name in members(archive)), "no memory of the data path")
        comes_back(bed, container, archive)


@case
def what_cannot_be_packed_stays(bed):
    """The container is gone by then: its images are not to go, too."""
    archive = os.path.join(bed.dir, "one.tar")
    with Container(bed, COUNTER) as container:
        started(bed, container)
        config = os.path.join(container.dir, "config.json")
        os.rename(config, config + ".away")
        result = bed.refused(EXIT_NOT_FOUND, "config.json: No such file", "checkpoint", "--container", container.id, "-o", archive)
        expect(f"images of the container are there: {archive}.images" in result.err, result.why())
        os.rename(config + ".away", config)
        container.image = archive + ".images"
        container.edit(lambda changed: changed.update(annotations={"org.criu.config": os.path.join(container.dir, "criu.conf")}))
        container.restored().log().goes_on()


@case
def leave_running(bed):
    archive = os.path.join(bed.dir, "one.tar")
    with Container(bed, COUNTER) as container:
        started(bed, container)
        bed.ok("checkpoint", "--container", container.id, "--leave-running", "-o", archive)
        container.log().goes_on()
        bed.refused(EXIT_BUSY, "is there already", "checkpoint", "--container", container.id, "-o", archive)
        container.log().goes_on()


def has_it_back(bed, container):
    """The container goes on, and who gave its GPUs back is done with it."""
    container.log().goes_on()
    wait_until(lambda: not [process for process in bed.processes() if "brumate-container" in process[1]], "the helper's end", 60)


def read_image(folder):
    """The manifest, with all digests checked."""
    def blob(descriptor):
        kind, digest = descriptor["digest"].split(":")
        with open(os.path.join(folder, "blobs", kind, digest), "rb") as file:
            data = file.read()
        expect(kind == "sha256" and hashlib.sha256(data).hexdigest() == digest, f"another digest: {descriptor}")
        expect(len(data) == descriptor["size"], f"another size: {descriptor}")
        return data

    expect(json.loads(read_text(os.path.join(folder, "oci-layout"))) == {"imageLayoutVersion": "1.0.0"}, "another layout")
    index = json.loads(read_text(os.path.join(folder, "index.json")))
    manifest = json.loads(blob(index["manifests"][0]))
    config = json.loads(blob(manifest["config"]))
    blob(manifest["layers"][0])
    expect(config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]], f"other layers: {config}")
    return manifest


@case
def image_and_back(bed):
    image = os.path.join(bed.dir, "image")
    with Container(bed, COUNTER) as container:
        started(bed, container)
        bed.ok("checkpoint", "--container", container.id, "--oci", image)
        only_output(bed, "image")
        annotations = read_image(image)["annotations"]
        expect(annotations["org.criu.checkpoint.container.name"] == container.id, f"annotations: {annotations}")
        expect(annotations["org.criu.checkpoint.engine.name"] == "runc", f"annotations: {annotations}")
        moved = os.path.join(bed.dir, "elsewhere")
        os.rename(image, moved)
        container.id += "-again"
        comes_back(bed, container, moved)


@case
def other_tools_read_the_image(bed):
    """What others have to say of an image and of an archive, where they are here."""
    image, archive = os.path.join(bed.dir, "image"), os.path.join(bed.dir, "one.tar")
    skopeo, umoci, checkpointctl = (find_tool(name) for name in ("skopeo", "umoci", "checkpointctl"))
    if not (skopeo or umoci or checkpointctl):
        raise Skipped("no skopeo, umoci or checkpointctl")
    with Container(bed, COUNTER) as container:
        started(bed, container)
        bed.ok("checkpoint", "--container", container.id, "--leave-running", "--oci", image)
        bed.ok("checkpoint", "--container", container.id, "-o", archive)
    if skopeo:
        done = run([skopeo, "inspect", f"oci:{image}"], timeout=60)
        expect(done.code == 0 and len(json.loads(done.out)["Layers"]) == 1, f"skopeo: {done.why()}")
    if umoci and skopeo:
        named = os.path.join(bed.dir, "named")  # it wants images to have a name
        done = run([skopeo, "copy", f"oci:{image}", f"oci:{named}:saved"], timeout=60)
        expect(done.code == 0, f"skopeo: {done.why()}")
        done = run([umoci, "stat", "--json", "--image", f"{named}:saved"], timeout=60)
        expect(done.code == 0 and "history" in json.loads(done.out), f"umoci: {done.why()} {done.out}")
    if checkpointctl:
        done = run([checkpointctl, "show", archive], timeout=60)
        expect(done.code == 0 and "runc" in done.out, f"checkpointctl: {done.why()} {done.out}")


CONTROL = "/snapshot-control"
# Ready once it is told to be, for which there is a file: what a model that takes long to load does.
WAITS = (f"/bin/counter --mib 64 --chunk-mib 16 --interval-ms 60 > /tmp/out & while [ ! -e /tmp/loaded ]; do :; done; "
         f"echo > {CONTROL}/ready-for-snapshot; while [ ! -e {CONTROL}/restore-complete ]; do :; done; echo > /tmp/told; wait")


@case
def when_it_is_ready(bed):
    """By the files of images that are made to be saved. What is written belongs to the container's own user."""
    place, archive = os.path.join(bed.dir, "control"), os.path.join(bed.dir, "one.tar")
    os.mkdir(place)
    os.chmod(place, 0o777)

    def with_place(config):
        config["process"]["env"] += [f"SNAPSHOT_CONTROL_DIR={CONTROL}"]
        config["mounts"].append({"source": place, "destination": CONTROL, "type": "bind", "options": ["bind", "rw"]})

    with Container(bed, WAITS, change=with_place) as container:
        started(bed, container)
        words = ("checkpoint", "--container", container.id, "--when-ready", "-o", archive)
        bed.refused(EXIT_TIMEOUT, "the container is not ready", *words, "--timeout", "200ms")
        container.log().goes_on()
        background = bed.spawn(*words, "--leave-running")
        with open(os.path.join(container.rootfs, "tmp/loaded"), "w", encoding="utf-8"):
            pass
        code, _, err = background.end()
        expect(code == 0 and "note:" not in err, f"exit {code}: {err}")
        expect(sorted(os.listdir(place)) == ["ready-for-snapshot", "snapshot-complete"], f"files: {os.listdir(place)}")
        has_it_back(bed, container)
        os.unlink(archive)
        bed.ok(*words)
        container.id += "-again"
        result = bed.ok("restore", "--container", container.id, archive)
        expect("note:" not in result.err, result.why())
        container.note_init()
        wait_until(lambda: os.path.exists(os.path.join(container.rootfs, "tmp/told")), "the container to be told")
        container.log().goes_on()


@case
def failures_leave_the_container(bed):
    """Whatever fails, the container goes on, what was begun is gone, and the reason is that of the plugin or of CRIU."""
    archive = os.path.join(bed.dir, "one.tar")
    with Container(bed, COUNTER) as container:
        started(bed, container)
        bed.fault("container.gpu-checkpoint.end", "error:5")
        bed.refused(EXIT_FAILED, "runc cannot checkpoint it: .*injected at container.gpu-checkpoint.end",
                    "checkpoint", "--container", container.id, "--output", archive)
        has_it_back(bed, container)
        bed.fault("container.gpu-checkpoint.end", "error:5")
        bed.refused(EXIT_FAILED, "injected at", "checkpoint", "--container", container.id, "--oci", archive)
        has_it_back(bed, container)
        expect(not os.path.exists(archive), "an archive of nothing")
        only_output(bed)
        bed.ok("checkpoint", "--container", container.id, "--output", archive)
        bed.fault("container.gpu-restore.end", "error:5")
        bed.refused(EXIT_FAILED, "runc cannot restore it: .*injected at", "restore", "--container", container.id, archive)
        run([container.runc_path, "--root", os.path.join(container.dir, "state"), "delete", "--force", container.id])
        comes_back(bed, container, archive)


@case
def what_is_refused(bed):
    bed.refused(EXIT_USAGE, "takes one of --output and --oci", "checkpoint", "--container", "x")
    bed.refused(EXIT_USAGE, "takes one of --output and --oci", "checkpoint", "--container", "x", "-o", "a", "--oci", "b")
    bed.refused(EXIT_USAGE, "--every cannot be combined with --container", "checkpoint", "--container", "x", "--every", "1h")
    bed.refused(EXIT_USAGE, "--output goes with --container", "checkpoint", "x", "--output", "a")
    bed.refused(EXIT_USAGE, "--bundle goes with --container", "restore", "x", "--bundle", "a")
    bed.refused(EXIT_USAGE, "--gpu-map cannot be combined", "restore", "--container", "x", "a", "--gpu-map", "0=1")
    bed.refused(EXIT_NOT_FOUND, "No such file", "restore", "--container", "x", os.path.join(bed.dir, "none"))
    bed.refused(EXIT_USAGE, "cannot be the name of a container", "restore", "--container", "--all", bed.dir)
    os.mkdir(os.path.join(bed.dir, "empty"))
    bed.refused(EXIT_BAD_IMAGE, "is no OCI image of one checkpoint", "restore", "--container", "x", os.path.join(bed.dir, "empty"))


@case
def archives_that_are_none(bed):
    """Nothing that an archive says leads out of where it is unpacked, and what is damaged is told from what is not ours."""
    path, bundle = os.path.join(bed.dir, "bad.tar"), os.path.join(bed.dir, "bundle")
    os.mkdir(bundle)
    about = {"version": 1, "runtime": "runc", "state": os.path.join(bed.dir, "state"), "bundle": bundle, "container": "x"}

    def make(names, said=about):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name in ["brumate.json", *names]:
                data = json.dumps(said).encode() if name == "brumate.json" else b"data"
                header = tarfile.TarInfo(name)
                header.size, header.mode, header.mtime = len(data), 0o600, 0
                # As brumate writes it, to the byte: else it is refused for that.
                block = bytearray(header.tobuf(tarfile.USTAR_FORMAT))
                block[329:345] = b"\0" * 16
                block[124:136] = b"%011o\0" % len(data)
                block[148:156] = b" " * 8
                block[148:156] = b"%06o\0 " % sum(block)
                tar.fileobj.write(bytes(block) + data + b"\0" * (-len(data) % 512))

    for names in (["checkpoint/../../escaped"], ["checkpoint/."], ["checkpoint/"], ["checkpoint//a"], ["checkpoint/a", "checkpoint/a"],
                  ["checkpoint/no/dir"], ["checkpoint/a/../b"]):
        make(names)
        bed.refused(EXIT_BAD_IMAGE, "damaged", "restore", "--container", "x", path)
        expect(not os.path.exists(os.path.join(bed.dir, "escaped")), "a name led out")
        only_output(bed)
    make(["checkpoint/a"], {**about, "state": "--root"})
    bed.refused(EXIT_BAD_IMAGE, "damaged: it has no state", "restore", "--container", "x", path)
    make(["checkpoint/a"], {**about, "bundle": os.path.join(bed.dir, "gone")})
    bed.refused(EXIT_NOT_FOUND, "the bundle of the container", "restore", "--container", "x", path)
    make(["checkpoint/a"])
    bed.refused(EXIT_FAILED, "runc cannot restore it", "restore", "--container", "x", path)
    with open(path, "r+b") as file:
        file.truncate(1200)
    bed.refused(EXIT_BAD_IMAGE, "damaged", "restore", "--container", "x", path)


@case
def engines_that_keep_their_own(bed):
    """Whose container it is, the state tells; where brumate has no way, it names the engine's own."""
    root = os.path.join(bed.dir, "engines")
    sleeper = bed.start(["sleep", "1000"])

    def make(path, labels):
        os.makedirs(os.path.join(root, path))
        with open(os.path.join(root, path, "state.json"), "w", encoding="utf-8") as file:
            json.dump({"init_process_pid": sleeper.pid, "init_process_start": process_start(sleeper.pid),
                       "config": {"labels": [f"{key}={value}" for key, value in labels.items()]}}, file)

    make("mine/c1", {"bundle": "/run/containerd/io.containerd.runtime.v2.task/mine/c1"})
    make("k8s.io/c2", {"bundle": "/x", "io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.container-name": "c"})
    find_in(bed, root)
    out = os.path.join(bed.dir, "out.tar")
    for word, why, hint in (("c1", "is containerd's", "ctr --namespace mine containers checkpoint --task c1"),
                            ("c2", "is of a pod", "brumate k8s checkpoint")):
        result = bed.refused(EXIT_UNSUPPORTED, why, "checkpoint", "--container", word, "-o", out)
        expect(hint in result.err, f"it does not say how: {result.err}")


@case
def crun_archive_and_back(bed):
    archive = os.path.join(bed.dir, "one.tar")
    with Container(bed, COUNTER, runtime=find_crun(bed)) as container:
        started(bed, container)
        bed.ok("checkpoint", "--container", container.id, "--leave-running", "--output", archive)
        container.log().goes_on()
        os.unlink(archive)
        bed.ok("checkpoint", "--container", container.id, "--output", archive)
        container.id += "-again"
        shown = bed.ok("restore", "--container", container.id, archive, "--format", "json").json()
        expect(shown["engine"] == "crun", f"it says {shown}")
        container.note_init()
        container.log().goes_on()


@case
def podman_archive_and_back(bed):
    archive = os.path.join(bed.dir, "one.tar")
    with Podman(bed) as podman:
        env = podman.env_for_brumate()
        name = os.path.basename(bed.dir)
        podman.start(name).log().goes_on()
        bed.ok("checkpoint", "--container", name, "--output", archive, env=env)
        only_output(bed, "one.tar")
        expect(podman.status(name) == "exited", f"the container is {podman.status(name)}")
        expect("checkpoint/brumate-gpus.json" in members(archive), "the archive holds no GPU state")
        bed.ok("restore", "--container", "other", archive, env=env)
        podman.log().goes_on()
        expect(podman.status("other") == "running", f"the container is {podman.status('other')}")


@case
def podman_takes_the_image(bed):
    """podman restores what it has pulled from the directory, as it would from a registry; brumate does without."""
    image = os.path.join(bed.dir, "image")
    with Podman(bed) as podman:
        env = podman.env_for_brumate()
        name = os.path.basename(bed.dir)
        podman.start(name).log().goes_on()
        bed.ok("checkpoint", "--container", name, "--oci", image, env=env)
        podman.ok("rm", name)
        written = os.path.getsize(podman.log().path)
        pulled = podman.ok("pull", f"oci:{image}")
        podman.ok("container", "restore", "--name", "other", pulled.split()[-1])
        podman.log().goes_on()
        podman.ok("rm", "--force", "--time", "0", "other")
        os.truncate(podman.log().path, written)  # it is the host's: CRIU wants it as it was
        bed.ok("restore", "--container", "third", image, env=env)
        podman.log().goes_on()
        expect(podman.status("third") == "running", f"the container is {podman.status('third')}")


main()
