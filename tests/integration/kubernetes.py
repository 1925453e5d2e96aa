#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pods of a Kubernetes node: containers as containerd and CRI-O leave them in the state of runc and crun, with programs of the
simulated driver in them."""

import json
import os
import re

from cases import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_UNSUPPORTED, EXIT_USAGE, case, expect, main, wait_until
from harness import process_start


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
        argv = [self.bed.program("counter"), "--mib", mib, "--chunk-mib", 16, "--interval-ms", 20]
        return self.bed.start(argv, "counter").ready()

    def two_counters(self):
        """Two that may share device memory, for all that can be told from outside."""
        argv = f"{self.bed.program('counter')} --mib 16 --chunk-mib 16 --interval-ms 20"
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
    jobs = bed.ok("k8s", "suspend", "-n", "team-a", "train-0").out.split()
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
    expect(names(k8s(bed, "suspend", "train-0", "-c", "two")) == ["two"], "not the one that was named")
    one.log.goes_on()
    stands_still(bed, two)
    done = k8s(bed, "suspend", "train-0")
    expect(names(done) == ["one"] and done["left_alone"] == ["two"], f"not the other: {done}")
    expect(names(k8s(bed, "resume", "train-0", "--container", "one")) == ["one"], "not the one that was named")
    one.log.goes_on()
    stands_still(bed, two)
    bed.refused(EXIT_NOT_FOUND, "no container of pod default/train-0 is suspended", "k8s", "resume", "train-0", "-c", "one")
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
    expect("container one of pod default/train-0 goes on again" in result.err, result.why())
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
    bed.refused(EXIT_NOT_FOUND, "no container of pod kube-system/train-0", *suspend, "train-0", "-n", "kube-system")
    bed.refused(EXIT_NOT_FOUND, "no container other of pod default/train-0", *suspend, "train-0", "-c", "other")
    bed.refused(EXIT_NOT_FOUND, "pod default/done: container .* does not run", *suspend, "done")
    bed.refused(6, "container main runs twice", *suspend, "twice")
    for name in ("", "../x", "A", "-a", "a-", "a..b", ".a", "a_b", "a" * 254):
        bed.refused(EXIT_USAGE, "cannot be the name of a pod", *suspend, "--", name)
    for name in ("", "a.b", "a/b", "a" * 64):
        bed.refused(EXIT_USAGE, "cannot be the name of a namespace", *suspend, "x", "-n", name)
        bed.refused(EXIT_USAGE, "cannot be the name of a container", *suspend, "x", "-c", name)
    bed.refused(EXIT_USAGE, "unknown command", "k8s", "pause", "train-0")
    bed.refused(EXIT_USAGE, "--force goes with suspend", "k8s", "resume", "train-0", "--force")
    node.write("crun/damaged/status", "{")
    bed.refused(9, "not all containers could be looked at: .*damaged", *suspend, "train-0")
    bed.ok(*suspend, "train-0", "-c", "main")
    bed.ok("k8s", "resume", "train-0", "-c", "main")
    bed.ok("release", "main")


main()
