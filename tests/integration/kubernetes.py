#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pods of a Kubernetes node: containers as containerd and CRI-O leave them in the state of runc and crun, with programs of the
simulated driver in them; and a stand-in for the kubelet."""

import json
import os
import re
import shutil
import signal
import socket
import tarfile

from cases import EXIT_BAD_IMAGE, EXIT_BUSY, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_TIMEOUT, EXIT_UNSUPPORTED, EXIT_USAGE
from cases import case, expect, main, wait_until
from harness import Skipped, process_start, run
from kubelet_server import NAME, Authority, Kubelet


class Node:
    """The state of the runtimes of a node."""

    def __init__(self, bed):
        self.bed = bed
        self.root = os.path.join(bed.dir, "node")
        self.n = 0
        os.makedirs(self.root)
        with open(bed.own["BRUMATE_CONFIG"], "a", encoding="utf-8") as file:
            file.write(f"[Container]\nState={self.root}/runc:{self.root}/crun\n")

    def write(self, path, value):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(value if isinstance(value, str) else json.dumps(value))

    def containerd(self, annotations, pid, start):
        self.n += 1
        self.write(f"runc/k8s.io/{self.n:064x}/state.json", {
            "init_process_pid": pid, "init_process_start": start,
            "config": {"labels": ["bundle=/"] + [f"{key}={value}" for key, value in annotations.items()]}})

    def crun(self, annotations, pid, start):
        """crun has the annotations in the config.json beside its status."""
        self.n += 1
        self.write(f"crun/{self.n:064x}/status", {"pid": pid, "process-start-time": start, "bundle": "/"})
        self.write(f"crun/{self.n:064x}/config.json", {"annotations": annotations})

    def container(self, program, name, pod="train-0", namespace="default", kind="container", engine="containerd"):
        """A container whose first process is this program's; None: it has ended."""
        pid, start = (program.pid, process_start(program.pid)) if program else (0, 0)
        if engine == "containerd":
            self.containerd({"io.kubernetes.cri.sandbox-namespace": namespace, "io.kubernetes.cri.sandbox-name": pod,
                             "io.kubernetes.cri.container-name": name, "io.kubernetes.cri.container-type": kind}, pid, start)
        else:
            self.crun({"io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": pod,
                       "io.kubernetes.container.name": name, "io.kubernetes.cri-o.ContainerType": kind}, pid, start)

    def sleeper(self):
        return self.bed.start(["sleep", "1000"])

    def counter(self, mib=32):
        argv = [self.bed.program("counter"), "--mib", mib, "--chunk-mib", 16, "--interval-ms", 40]
        return self.bed.start(argv, "counter").ready()

    def two_counters(self):
        """Two that may share device memory, for all that can be told from outside."""
        argv = f"{self.bed.program('counter')} --mib 16 --chunk-mib 16 --interval-ms 40"
        program = self.bed.start(["sh", "-c", f"trap 'trap - TERM; kill 0' TERM; {argv} & {argv} & wait"], "two")
        wait_until(lambda: len(re.findall("^ready ", program.log.text(), re.MULTILINE)) == 2, "both to be ready")
        return program


def k8s(bed, *words):
    """The document of a command."""
    return bed.ok("k8s", *words, "--format", "json").json()


def names(done):
    return [one["container"] for one in done["containers"]]


def stands_still(bed, *programs):
    """What is suspended has no device memory, and is at work no more."""
    for program in programs:
        wait_until(lambda program=program: bed.gpu_state(program.pid) == "checkpointed", "the program to be suspended")


@case
def suspend_and_resume_a_pod(bed):
    """All containers with GPU state, of either engine; not the sandbox, not another pod's of that name."""
    node = Node(bed)
    one, two, other, elsewhere = (node.counter() for _ in range(4))
    node.container(one, "main")
    node.container(two, "server", engine="crio")
    node.container(node.sleeper(), "sidecar")
    node.container(node.sleeper(), "POD", kind="sandbox", engine="crio")
    node.container(node.sleeper(), "x", kind="sandbox")
    node.container(None, "setup", engine="crio")
    node.container(other, "main", namespace="team-a")
    node.container(elsewhere, "main", pod="train-1")
    for _ in range(2):
        done = k8s(bed, "suspend", "train-0")
        expect(names(done) == ["main", "server"] and done["left_alone"] == ["sidecar"], f"not as wanted: {done}")
        stands_still(bed, one, two)
        other.log.goes_on()
        elsewhere.log.goes_on()
        bed.expect_state("main", "suspended")
        bed.expect_state("server", "suspended")
        expect(len(bed.list("ps", "jobs")) == 2, "there are other jobs than those that were suspended")
        done = k8s(bed, "suspend", "train-0")
        expect(not done["containers"] and done["left_alone"] == ["main", "server", "sidecar"], f"suspended again: {done}")
        done = k8s(bed, "resume", "train-0")
        expect(names(done) == ["main", "server"] and done["left_alone"] == ["sidecar"], f"not as wanted: {done}")
        one.log.goes_on()
        two.log.goes_on()
    jobs = bed.ok("k8s", "suspend", "--namespace", "team-a", "train-0").out.split()
    expect(len(jobs) == 1 and bed.job(jobs[0])["pid"] == other.pid, f"another job: {jobs}")
    one.log.goes_on()
    bed.ok("k8s", "resume", "--namespace", "team-a", "train-0")
    for job in bed.list("ps", "jobs"):
        bed.ok("release", job["id"])


@case
def one_container_alone(bed):
    node = Node(bed)
    one, two = node.counter(), node.counter()
    node.container(one, "one")
    node.container(two, "two")
    expect(names(k8s(bed, "suspend", "train-0", "-C", "two")) == ["two"], "not the one that was named")
    one.log.goes_on()
    stands_still(bed, two)
    done = k8s(bed, "suspend", "train-0")
    expect(names(done) == ["one"] and done["left_alone"] == ["two"], f"not the other: {done}")
    expect(names(k8s(bed, "resume", "train-0", "--container", "one")) == ["one"], "not the one that was named")
    one.log.goes_on()
    stands_still(bed, two)
    bed.refused(EXIT_NOT_FOUND, "no container of pod default/train-0 is suspended", "k8s", "resume", "train-0", "-C", "one")
    bed.ok("k8s", "resume", "train-0")
    two.log.goes_on()
    bed.ok("release", "one")
    bed.ok("release", "two")


@case
def all_or_none(bed):
    """A container that cannot be suspended: those before it go on, and are jobs no more unless they were."""
    node = Node(bed)
    one, two, three = node.counter(), node.counter(), node.two_counters()
    node.container(one, "one")
    node.container(two, "two")
    node.container(three, "zwei")
    bed.ok("manage", "--pid", two.pid, "--name", "mine")
    before = bed.list("ps", "jobs")
    words = "container zwei of pod default/train-0: .*this may lose the job"
    result = bed.refused(EXIT_UNSUPPORTED, words, "k8s", "suspend", "train-0")
    expect("container one of pod default/train-0 is running again" in result.err, result.why())
    for program in (one, two):
        program.log.goes_on()
    expect([(job["id"], job["state"]) for job in bed.list("ps", "jobs")] == [(job["id"], "running") for job in before],
           f"the jobs are others than before: {bed.list('ps', 'jobs')}")
    bed.fault("resume.gpu-restore.begin", "error:5")
    result = bed.refused(EXIT_FAILED, words, "k8s", "suspend", "train-0")
    expect("container two of pod default/train-0 is still suspended" in result.err, result.why())
    expect(re.search("^hint: brumate resume ", result.err, re.MULTILINE), result.why())
    one.log.goes_on()
    bed.ok("resume", "mine")
    two.log.goes_on()
    expect(names(k8s(bed, "suspend", "train-0", "--force")) == ["one", "two", "zwei"], "not all")
    bed.ok("k8s", "resume", "train-0")
    one.log.goes_on()
    for job in bed.list("ps", "jobs"):
        bed.ok("release", job["id"])


@case
def interrupted(bed):
    """Ctrl-C while the second container is under way: both run."""
    node = Node(bed)
    programs = node.counter(), node.counter()
    for number, program in enumerate(programs):
        node.container(program, f"c{number}")
    bed.fault("suspend.gate.begin", "delay:1", "suspend.gate.begin", "hold")
    background = bed.spawn("k8s", "suspend", "train-0")
    fifo = bed.fault_file + ".held"
    wait_until(lambda: os.path.exists(fifo) or background.process.poll() is not None, "the second container")
    expect(background.process.poll() is None, "the second container was not reached")
    background.signal(signal.SIGINT)
    with open(fifo, "wb"):
        pass
    code, out, err = background.end()
    expect(code and not out and "container c1 of pod default/train-0: " in err, f"exit {code}: {out}{err}")
    expect("container c0 of pod default/train-0 is running again" in err, err)
    for program in programs:
        program.log.goes_on()
    expect(not bed.list("ps", "jobs"), f"there are jobs: {bed.list('ps', 'jobs')}")


@case
def nothing_to_suspend(bed):
    node = Node(bed)
    node.container(node.sleeper(), "one")
    node.container(node.sleeper(), "two")
    bed.refused(EXIT_UNSUPPORTED, "no container of pod default/train-0 has GPU state", "k8s", "suspend", "train-0")
    bed.refused(EXIT_NOT_FOUND, "no container of pod default/train-0 is suspended", "k8s", "resume", "train-0")
    expect(not bed.list("ps", "jobs"), "a job is left of a container without GPU state")


@case
def pods_that_are_not_meant(bed):
    """What is not there, has ended, is there twice or cannot be read is told apart."""
    node = Node(bed)
    node.container(node.counter(), "main")
    node.container(None, "ended", pod="done")
    node.container(node.sleeper(), "main", pod="twice")
    node.container(node.sleeper(), "main", pod="twice", engine="crio")
    suspend = ("k8s", "suspend")
    bed.refused(EXIT_NOT_FOUND, "no container of pod default/other is on this node", *suspend, "other")
    bed.refused(EXIT_NOT_FOUND, "no container of pod kube-system/train-0", *suspend, "train-0", "--namespace", "kube-system")
    bed.refused(EXIT_NOT_FOUND, "no container other of pod default/train-0", *suspend, "train-0", "-C", "other")
    bed.refused(EXIT_NOT_FOUND, "pod default/done: container .* does not run", *suspend, "done")
    bed.refused(6, "container main runs twice", *suspend, "twice")
    bed.refused(EXIT_USAGE, "an operand is empty", *suspend, "--", "")
    for name in ("../x", "A", "-a", "a-", "a..b", ".a", "a_b", "a" * 254):
        bed.refused(EXIT_USAGE, "cannot be the name of a pod", *suspend, "--", name)
    bed.refused(EXIT_USAGE, "the value is empty", *suspend, "x", "--namespace", "")
    for name in ("a.b", "a/b", "a" * 64):
        bed.refused(EXIT_USAGE, "cannot be the name of a namespace", *suspend, "x", "--namespace", name)
        bed.refused(EXIT_USAGE, "cannot be the name of a container", *suspend, "x", "-C", name)
    bed.refused(EXIT_USAGE, "unknown command", "k8s", "pause", "train-0")
    bed.refused(EXIT_USAGE, "--force goes with suspend", "k8s", "resume", "train-0", "--force")
    node.write("crun/damaged/status", "{")
    bed.refused(9, "not all containers could be looked at: .*damaged", *suspend, "train-0")
    bed.ok(*suspend, "train-0", "-C", "main")
    bed.ok("k8s", "resume", "train-0", "-C", "main")
    bed.ok("release", "main")

class Cluster:
    """Who may ask a kubelet, and how it is asked."""

    def __init__(self, bed):
        self.bed = bed
        self.dir = os.path.join(bed.dir, "cluster")
        self.authority = Authority(self.dir)
        self.cert = self.authority.issue("kubelet", NAME, alt=f"DNS:{NAME}")
        self.good = self.token("good-token")

    def token(self, text):
        path = os.path.join(self.dir, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        return path

    def kubelet(self, cert=None, address=("127.0.0.1", 0)):
        return Kubelet(cert or self.cert, self.authority.ca, address)

    def words(self, kubelet, **other):
        """The command for a container of a pod, with other options than are right."""
        options = {"--server": kubelet.url, "--server-name": NAME, "--ca-file": self.authority.ca, "--token-file": self.good}
        options.update({f"--{name.replace('_', '-')}": value for name, value in other.items()})
        return ["k8s", "checkpoint", "train-0", *(word for pair in options.items() if pair[1] for word in pair)]


def archive(container, pod="train-0", namespace="default"):
    return f"/var/lib/kubelet/checkpoints/checkpoint-{pod}_{namespace}-{container}-2026-01-02T03:04:05Z.tar"


@case
def checkpoint_a_pod(bed):
    """Its containers by the runtimes' state, or the one that is named, of which only the kubelet need know."""
    node, cluster = Node(bed), Cluster(bed)
    node.container(node.sleeper(), "one")
    node.container(node.sleeper(), "two", engine="crio")
    node.container(node.sleeper(), "POD", kind="sandbox", engine="crio")
    node.container(node.sleeper(), "one", namespace="team-a")
    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"one": None, "two": None, "three": None}, ("team-a", "train-0"): {"one": None}}
        words = cluster.words(kubelet)
        result = bed.ok(*words)
        expect(result.out.split("\n") == [archive("one"), archive("two"), ""], f"not the archives: {result.out}")
        expect(kubelet.log == [(f"/checkpoint/default/train-0/{name}?timeout=600", 0) for name in ("one", "two")],
               f"other requests than wanted: {kubelet.log}")
        done = bed.ok(*words, "--format", "json", "-C", "three", "--timeout", "90500ms").json()
        expect([(one["container"], one["archives"]) for one in done["containers"]] == [("three", [archive("three")])],
               f"not the archives: {done}")
        expect(kubelet.log[2:] == [("/checkpoint/default/train-0/three?timeout=91", 0)], f"other requests: {kubelet.log[2:]}")
        expect(bed.ok(*words, "--namespace", "team-a").out == archive("one", namespace="team-a") + "\n", "not of the namespace")
        bed.refused(EXIT_NOT_FOUND, "no container of pod default/other", *[w.replace("train-0", "other") for w in words])
        # What was saved before one that fails is told.
        kubelet.pods["default", "train-0"]["two"] = (500, "no")
        result = bed.cli(*words)
        expect(result.code == EXIT_FAILED and result.out == archive("one") + "\n", result.why())


def pod_series(bed):
    """What monitoring is told of checkpoints of pods: {name with labels: value}."""
    lines = [line.rsplit(" ", 1) for line in bed.ok("metrics").out.splitlines() if line.startswith("brumate_pod_")]
    return {name.removeprefix("brumate_pod_checkpoint_"): float(value) for name, value in lines}


@case
def counts_stay(bed):
    """What was done, failed and was interrupted is told after the command has ended, whatever becomes of the pod."""
    node, cluster = Node(bed), Cluster(bed)
    node.container(node.sleeper(), "one")
    node.container(node.sleeper(), "two")
    before = pod_series(bed)
    expect(before and not any(before.values()), f"{before}")
    path = os.path.join(bed.dir, "archive.tar")
    with open(path, "wb") as file:
        file.write(bytes(1000))
    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"one": (200, json.dumps({"items": [path]})), "two": None}}
        words = cluster.words(kubelet)
        bed.ok(*words)
        kubelet.pods["default", "train-0"]["two"] = (500, "no")
        bed.refused(EXIT_FAILED, "the runtime failed", *words, "-C", "two")
        bed.refused(EXIT_NOT_FOUND, "no container of pod", *[w.replace("train-0", "other") for w in words])
    after = pod_series(bed)
    took = after.pop("duration_seconds_sum")
    expect(took > 0 and after == {
        'operations_total{result="done"}': 1, 'operations_total{result="failed"}': 1, 'operations_total{result="cancelled"}': 0,
        "duration_seconds_count": 1, "size_bytes_sum": 1000, "size_bytes_count": 1}, f"{after}")


class Ready:
    """A container whose program has a directory for the files of snapshots."""

    def __init__(self, bed, node, name, path=None, uid=1):
        self.place = os.path.join(bed.dir, name)
        os.mkdir(self.place)
        os.chown(self.place, uid, uid)
        for folder in (bed.dir, os.path.dirname(bed.dir)):
            os.chmod(folder, os.stat(folder).st_mode | 0o111)
        self.program = bed.start(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env",
                                  f"SNAPSHOT_CONTROL_DIR={path or self.place}", "sleep", "1000"])
        wait_until(lambda: b"sleep" in read_bytes(f"/proc/{self.program.pid}/cmdline")[:5], "the program")
        node.container(self.program, name)

    def file(self, name):
        return os.path.join(self.place, name)

    def says_ready(self):
        with open(self.file("ready-for-snapshot"), "w", encoding="utf-8"):
            pass


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


@case
def snapshot_when_ready(bed):
    """The kubelet is asked once the container is ready, and the container is told afterwards, as its own user."""
    if os.geteuid() != 0:
        raise Skipped("other users' programs take root")
    node, cluster = Node(bed), Cluster(bed)
    ready = Ready(bed, node, "main")
    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"main": None, "linked": None, "plain": None}}
        words = [*cluster.words(kubelet), "--when-ready", "-C"]
        bed.refused(EXIT_TIMEOUT, "the container is not ready", *words, "main", "--timeout", "1")
        expect(not kubelet.log, "the kubelet was asked for what is not ready")
        background = bed.spawn(*words, "main")
        ready.says_ready()
        code, out, err = background.end()
        expect(code == 0 and out == archive("main") + "\n" and "note:" not in err, f"exit {code}: {out}{err}")
        told = os.stat(ready.file("snapshot-complete"))
        expect(told.st_uid == 1 and told.st_gid == 1, f"it belongs to {told.st_uid}:{told.st_gid}")
        bed.ok(*words, "main")
        expect(k8s(bed, "restored", "train-0")["containers"] == [{"container": "main"}], "not told")
        expect(os.path.exists(ready.file("restore-complete")), "nothing is there")
        # What the container makes of its directory is its own affair, and nobody else's.
        theirs = os.path.join(bed.dir, "theirs")
        os.mkdir(theirs)
        link = os.path.join(bed.dir, "link")
        os.symlink(theirs, link)
        Ready(bed, node, "linked", path=link)
        bed.refused(EXIT_FAILED, "SNAPSHOT_CONTROL_DIR of the container, .*symbolic links", *words, "linked")
        expect(not os.listdir(theirs), "a link was followed")
        node.container(node.sleeper(), "plain")
        bed.refused(EXIT_NOT_FOUND, "has no SNAPSHOT_CONTROL_DIR", *words, "plain")
        os.unlink(ready.file("snapshot-complete"))
        os.chown(ready.place, 0, 0)
        result = bed.ok(*words, "main")
        expect("was not told that it is saved: snapshot-complete in SNAPSHOT_CONTROL_DIR: Permission denied" in result.err,
               result.why())


@case
def ends_before_it_is_ready(bed):
    node, cluster = Node(bed), Cluster(bed)
    if os.geteuid() != 0:
        raise Skipped("other users' programs take root")
    ready = Ready(bed, node, "main")
    with cluster.kubelet() as kubelet:
        background = bed.spawn(*cluster.words(kubelet), "--when-ready", "-C", "main")
        wait_until(lambda: watches(background.process.pid), "it to wait")
        os.kill(ready.program.pid, signal.SIGKILL)
        code, out, err = background.end()
        expect(code == EXIT_NOT_FOUND and not out and "was never ready" in err, f"exit {code}: {out}{err}")


def watches(pid):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:inotify" for fd in os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return False


@case
def archive_as_an_image(bed):
    """What the kubelet wrote becomes the layer of an image that CRI-O and containerd restore."""
    node, cluster = Node(bed), Cluster(bed)
    node.container(node.sleeper(), "main")
    image, saved = os.path.join(bed.dir, "image"), os.path.join(bed.dir, "saved.tar")
    with tarfile.open(saved, "w") as tar:
        tar.add(__file__, "config.dump")
    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"main": (200, json.dumps({"items": [saved]}))}}
        words = [*cluster.words(kubelet), "--oci", image]
        bed.refused(EXIT_USAGE, "--oci takes one container", *words)
        expect(bed.ok(*words, "-C", "main").out == saved + "\n", "another archive")
        n = len(kubelet.log)
        bed.refused(EXIT_BUSY, "is there already", *words, "-C", "main")
        expect(len(kubelet.log) == n, "the kubelet was asked in vain")
        index = json.loads(read_bytes(os.path.join(image, "index.json")))
        blobs = os.path.join(image, "blobs", "sha256")
        manifest = json.loads(read_bytes(os.path.join(blobs, index["manifests"][0]["digest"][7:])))
        expect(manifest["annotations"] == {"org.criu.checkpoint.container.name": "main",
                                           "io.kubernetes.cri-o.annotations.checkpoint.name": "main",
                                           "org.criu.checkpoint.pod.name": "train-0",
                                           "org.criu.checkpoint.pod.namespace": "default"}, f"{manifest['annotations']}")
        layer = os.path.join(blobs, manifest["layers"][0]["digest"][7:])
        expect(read_bytes(layer) == read_bytes(saved), "another layer")
        shutil.rmtree(image)
        with open(saved, "wb") as file:
            file.write(b"\x1f\x8b" + b"x" * 1000)
        result = bed.refused(EXIT_BAD_IMAGE, "is not a plain tar archive", *words, "-C", "main")
        expect(f"the archive is there: {saved}" in result.err and not os.path.exists(image), result.why())


def pod(name, wish, namespace="default", restarts=0):
    annotations = {} if wish is None else {"brumate.dev/gpu": wish}
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations},
            "status": {"containerStatuses": [{"restartCount": restarts}]}}


@case
def annotations_of_pods(bed):
    """A pod is suspended and resumed as its annotation says; one without it is not touched, whatever the kubelet answers."""
    node, cluster = Node(bed), Cluster(bed)
    one, other = node.counter(), node.counter()
    node.container(one, "main")
    node.container(other, "main", pod="train-1")
    with cluster.kubelet() as kubelet:
        def says(*pods):
            kubelet.pod_list = json.dumps({"kind": "PodList", "items": pods})
            asked_twice()

        def asked_twice():
            seen = kubelet.asked
            wait_until(lambda: kubelet.asked > seen + 1, "the kubelet to be asked twice more")

        words = [word for word in cluster.words(kubelet) if word not in ("checkpoint", "train-0")]
        background = bed.spawn("k8s", "watch", "--interval", "100ms", *words[1:])
        says(pod("train-0", None), pod("train-1", "off"), pod("gone", "suspended"), {"metadata": 7})
        one.log.goes_on()
        says(pod("train-1", "off"), pod("train-0", "suspended"))
        stands_still(bed, one)
        other.log.goes_on()
        kubelet.pod_list = "no list"
        asked_twice()
        expect(bed.gpu_state(one.pid) == "checkpointed", "resumed for an answer that is none")
        says(pod("train-0", "running"))
        one.log.goes_on()
        says(pod("train-0", "suspended", restarts=1))
        stands_still(bed, one)
        says(pod("train-0", None))
        expect(bed.gpu_state(one.pid) == "checkpointed", "resumed without being told")
        says(pod("train-0", "running"))
        one.log.goes_on()
        other.log.goes_on()
        background.signal(signal.SIGTERM)
        code, _, err = background.end()
        expect(code == 0, f"exit {code}: {err}")
        expect(err.count('pod default/train-1: brumate.dev/gpu is "off": expected suspended or running') == 1, err)
        expect(err.count("the answer is no list of pods") == 1, err)
    bed.refused(EXIT_USAGE, "k8s watch: expected no POD", "k8s", "watch", "train-0")
    bed.refused(EXIT_USAGE, "k8s suspend: expected a POD", "k8s", "suspend")
    bed.refused(EXIT_USAGE, "--interval goes with watch", "k8s", "suspend", "x", "--interval", "1s")
    bed.ok("release", "main")


@case
def who_asks_a_kubelet(bed):
    """A token or a certificate, and what it may."""
    cluster = Cluster(bed)
    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"main": None}}

        def refused(text, **other):
            return bed.refused(EXIT_PERMISSION, text, *cluster.words(kubelet, **other), "-C", "main")

        bed.ok(*cluster.words(kubelet), "-C", "main")
        cert = cluster.authority.issue("client", "checkpointer")
        bed.ok(*cluster.words(kubelet, token_file=None, cert=cert), "-C", "main")
        key = cluster.authority.path("client.key")
        bed.ok(*cluster.words(kubelet, token_file=None, cert=cluster.authority.path("client.crt"), key=key), "-C", "main")
        refused(r"does not know who is asking \(401\)", token_file=cluster.token("unknown"))
        bed.refused(EXIT_PERMISSION, "401", *cluster.words(kubelet, token_file=None), "-C", "main")
        result = refused(r"not allowed \(403\): Forbidden \(user=system:serviceaccount:x:y,",
                         token_file=cluster.token("other-token"))
        expect("the verb create on the resource nodes/checkpoint" in result.err, result.why())
        refused("403", token_file=None, cert=cluster.authority.issue("stranger", "stranger"))
        refused("--cert", cert=cluster.authority.path("client.crt"), key=cluster.authority.path("kubelet.key"))
        n = len(kubelet.log)
        bed.refused(EXIT_NOT_FOUND, "No such file", *cluster.words(kubelet, token_file="/nowhere"), "-C", "main")
        bed.refused(EXIT_NOT_FOUND, "No such file", *cluster.words(kubelet, cert="/nowhere"), "-C", "main")
        bed.refused(EXIT_USAGE, "holds no token", *cluster.words(kubelet, token_file=cluster.cert), "-C", "main")
        bed.refused(EXIT_USAGE, "cannot be the name of a container", *cluster.words(kubelet), "-C", "../../x")
        bed.refused(EXIT_USAGE, "--timeout", *cluster.words(kubelet), "-C", "main", "--timeout", "0")
        bed.refused(EXIT_USAGE, "--force goes with suspend", *cluster.words(kubelet), "-C", "main", "--force")
        expect(len(kubelet.log) == n, f"it was asked all the same: {kubelet.log[n:]}")


ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
PKI = "/var/lib/kubelet/pki"


@case
def without_an_option(bed):
    """In a pod with a service account; and as the node's root, whose kubelet has made its certificate itself. Where they lie, an
    empty file system is put, for the command alone."""
    cluster = Cluster(bed)
    # Of the addresses of this machine one that no other test has, as the port is the kubelet's.
    address = f"127.{1 + os.getpid() // 62500}.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
    cert, ca = cluster.authority.path("kubelet.crt"), cluster.authority.ca

    def checkpoint(files, *words, name=NAME):
        script = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib || exit 77\n"
        script += "".join(f"mkdir -p {os.path.dirname(to)} && cp {source} {to}\n" for to, source in files.items())
        argv = ["unshare", "--mount", "sh", "-ec", script + 'exec "$@"', "sh"]
        done = run([*argv, bed.brumate, "k8s", "checkpoint", "train-0", "-C", "main", *words], env=bed.command_env({"NODE_IP": address, "NODE_NAME": name}))
        if done.code == 77:
            raise Skipped(f"no file system can be mounted here: {done.err.strip()}")
        return done

    with cluster.kubelet(address=(address, 10250)) as kubelet:
        kubelet.pods = {("default", "train-0"): {"main": None}}
        pod = {f"{ACCOUNT}/ca.crt": ca, f"{ACCOUNT}/token": cluster.good}
        done = checkpoint(pod)
        expect(done.out == archive("main") + "\n", done.why())
        done = checkpoint({f"{PKI}/kubelet.crt": cert}, "--cert", cluster.authority.issue("client", "checkpointer"))
        expect(done.out == archive("main") + "\n", done.why())
        # Both may be there, and only one of them say who signed it.
        other = Authority(os.path.join(bed.dir, "other")).ca
        done = checkpoint({**pod, f"{ACCOUNT}/ca.crt": other, f"{PKI}/kubelet.crt": cert})
        expect(done.out == archive("main") + "\n", done.why())
        done = checkpoint({f"{PKI}/kubelet.crt": cert})
        expect(done.code == EXIT_PERMISSION and "(401)" in done.err, done.why())
        done = checkpoint({})
        expect(done.code == EXIT_NOT_FOUND and "--ca-file" in done.err, done.why())
        done = checkpoint(pod, name="")
        expect(done.code == EXIT_PERMISSION and f"not for {address}" in done.err, done.why())


@case
def kubelets_that_are_none(bed):
    """A server that is not who it has to be hears no token."""
    cluster, other = Cluster(bed), Authority(os.path.join(bed.dir, "other"))
    hint = "^hint: .*"

    def refused(code, words, hinted, kubelet, **more):
        result = bed.refused(code, words, *cluster.words(kubelet, **more), "-C", "main")
        expect(re.search(hint + hinted, result.err, re.MULTILINE), result.why())

    with cluster.kubelet() as kubelet:
        kubelet.pods = {("default", "train-0"): {"main": None}}
        refused(EXIT_PERMISSION, "certificate is not for 127.0.0.1", "--server-name", kubelet, server_name=None)
        refused(EXIT_PERMISSION, "certificate is not for node-2", "--server-name", kubelet, server_name="node-2")
        refused(EXIT_PERMISSION, "certificate is not trusted", "--ca-file", kubelet, ca_file=other.ca)
        bed.ok(*cluster.words(kubelet, ca_file=cluster.authority.path("kubelet.crt")), "-C", "main")
        kubelet.log.clear()
        for path in ("/nowhere", cluster.good, os.devnull):
            bed.fails(EXIT_NOT_FOUND if path == "/nowhere" else EXIT_USAGE, *cluster.words(kubelet, ca_file=path), "-C", "main")
        expect(not kubelet.log, f"it was asked all the same: {kubelet.log}")
        # The name that the environment says is the default, and the address.
        port = kubelet.url.rsplit(":", 1)[1]
        bed.refused(EXIT_FAILED, r"127\.0\.0\.2:10250: no connection", *cluster.words(kubelet, server=None), "-C", "main",
                    env={"NODE_IP": "127.0.0.2"})
        bed.refused(EXIT_USAGE, "is not https://", *cluster.words(kubelet, server=f"http://127.0.0.1:{port}"), "-C", "main")
        proxy = {"https_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"}
        bed.ok(*cluster.words(kubelet), "-C", "main", env=proxy)
    refused(EXIT_FAILED, "no connection", "--server", kubelet)
    with cluster.kubelet(cluster.authority.issue("old", NAME, expired=True, alt=f"DNS:{NAME}")) as kubelet:
        refused(EXIT_PERMISSION, "certificate has expired", "renew", kubelet)


@case
def answers_of_a_kubelet(bed):
    """What it refuses, how its runtime fails, and answers that are none."""
    cluster = Cluster(bed)
    with cluster.kubelet() as kubelet:

        def answer(told):
            kubelet.pods = {("default", "train-0"): {"main": told}}

        def refused(code, words, told):
            answer(told)
            return bed.refused(code, words, *cluster.words(kubelet), "-C", "main")

        words = [*cluster.words(kubelet), "-C", "main"]
        bed.refused(EXIT_NOT_FOUND, r"container main of .*no such container \(404\): pod does not exist", *words)
        answer(None)
        bed.refused(EXIT_NOT_FOUND, r"container other .*\(404\): container other does not exist", *words[:-1], "other")
        kubelet.gate = False
        result = bed.refused(EXIT_NOT_FOUND, r"checkpoints are not enabled \(404\)", *words)
        expect("ContainerCheckpoint" in result.err, result.why())
        kubelet.gate = True
        reason = "checkpointing of default/train-0/main failed (rpc error: CRIU: \x1b[2J\r\nbrumate: no\x9b room)"
        shown = r"runtime failed \(500\): checkpointing of .*: \?\[2J  brumate: no\?+ room\)"
        result = refused(EXIT_FAILED, shown, (500, reason))
        expect("\x1b" not in result.err and "\x9b" not in result.err, result.why())
        result = refused(EXIT_FAILED, r"\(500\): x{100}", (500, "x" * 100000))
        expect(len(result.err) < 1500, f"{len(result.err)} bytes are shown")
        refused(EXIT_FAILED, "it answered 302", (302, "elsewhere"))
        refused(EXIT_FAILED, "it answered 503: try later", (503, "try later\n"))
        refused(EXIT_FAILED, "the answer is too large", (200, b"[" * (2 << 20)))
        refused(EXIT_FAILED, "the answer is too large", (500, b"x" * (2 << 20)))
        for text in ("", "<html>", '{"items"', "[" * 100000):
            refused(EXIT_FAILED, "the answer is not JSON", (200, text))
        for text in ("{}", "[]", "1", '{"items": []}', '{"items": "/a"}', '{"items": null}'):
            refused(EXIT_FAILED, "the answer (names no archive|is not JSON)", (200, text))
        for path in ("a.tar", "", "/a\x1b[2J.tar", "/a\nb", "/a\x9bb", "/" + "a" * 5000, 7):
            refused(EXIT_FAILED, "not a path", (200, json.dumps({"items": ["/good.tar", path]})))
        refused(EXIT_FAILED, "the connection broke", "cut")
        refused(EXIT_FAILED, "the connection broke", "reset")


@case
def kubelets_that_are_late(bed):
    """One that works for longer than it may, and one that takes connections and says nothing."""
    cluster = Cluster(bed)
    with cluster.kubelet() as kubelet, socket.create_server(("127.0.0.1", 0)) as silent:
        kubelet.pods = {("default", "train-0"): {"main": "late"}}
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        background = bed.spawn(*cluster.words(kubelet, server=url), "-C", "main")
        result = bed.refused(EXIT_TIMEOUT, "no answer within 6 s", *cluster.words(kubelet), "-C", "main", "--timeout", "1s")
        expect("/var/lib/kubelet/checkpoints" in result.err, result.why())
        code, _, err = background.end()
        expect(code == EXIT_FAILED and "no connection" in err, f"exit {code}: {err}")


main()
