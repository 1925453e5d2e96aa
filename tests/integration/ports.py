#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ports of jobs that come back: one that somebody else has by now is named with who has it, before anything starts, and one
that only ended connections of the job keep is free for it."""

import os
import socket
import sys
import threading

from cases import STEPPING, case, expect, main

# Who closes first of the two ends of a connection leaves the kernel to remember it for a minute: here at the port
# where the program goes on listening, as NCCL's ranks do.
LISTENS = """
import os, socket, sys, time

way = sys.argv[1]
if way == "udp":
    ours = socket.socket(type=socket.SOCK_DGRAM)
    ours.bind(("127.0.0.1", 0))
else:
    ours = socket.socket(socket.AF_INET6 if way == "v6" else socket.AF_INET)
    if way == "shared":
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    ours.bind(("::1" if way == "v6" else "127.0.0.1", 0))
    ours.listen()
for _ in range(3 if way in ("v4", "v6") else 0):
    theirs = socket.create_connection(ours.getsockname()[:2])
    accepted, _ = ours.accept()
    accepted.shutdown(socket.SHUT_RDWR)
    accepted.close()
    theirs.close()
print("ready port", ours.getsockname()[1], flush=True)
n = 0
while True:
    n += 1
    print("step", n, "OK", flush=True)
    time.sleep(0.01)
"""


def listener(bed, way):
    job, log = bed.started([sys.executable, "-u", "-c", LISTENS, way])
    return job, log, int(log.wait_for(r"^ready port (\d+)$")[1])


def comes_back(bed, way):
    job, log, port = listener(bed, way)
    saved = bed.operation("checkpoint", job)
    if way in ("v4", "v6"):
        with open("/proc/net/tcp6" if way == "v6" else "/proc/net/tcp", encoding="ascii") as file:
            expect(any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "06" for line in file if ":" in line),
                   f"the kernel remembers no connection at port {port}")
    bed.operation("restore", saved["checkpoint"])
    log.goes_on()
    bed.end(job)


@case
def of_connections_that_have_ended(bed):
    for way in ("v4", "v6"):
        comes_back(bed, way)


@case
def that_processes_share(bed):
    """NCCL's ranks all listen at one port for who asks after their health, and so do those of other jobs."""
    job, log, port = listener(bed, "shared")
    saved = bed.operation("checkpoint", job)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        bed.operation("restore", saved["checkpoint"])
        log.goes_on()


@case
def taken_meanwhile(bed):
    for way, kind in (("plain", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
        job, log, port = listener(bed, way)
        saved = bed.operation("checkpoint", job)
        lines = log.lines()
        with socket.socket(type=kind) as other:
            other.bind(("127.0.0.1", port))
            if kind == socket.SOCK_STREAM:
                other.listen()
            comm = open("/proc/self/comm", encoding="utf-8").read().strip()
            bed.refused(6, rf"address 127\.0\.0\.1:{port} of the job is in use by process {os.getpid()} \({comm}\)",
                        "restore", saved["checkpoint"])
        expect(log.lines() == lines, "something was started")
        bed.operation("restore", saved["checkpoint"])
        log.goes_on()
        bed.end(job)


NAMED = """
import os, socket, sys
os.chdir(sys.argv[1])
ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if sys.argv[2] == "stream" else socket.SOCK_DGRAM)
ours.bind("name")
if sys.argv[2] == "stream":
    ours.listen()
import time
print("ready to go", flush=True)
""" + STEPPING


@case
def of_a_name_that_is_anothers_elsewhere(bed):
    """What a relative name stands for is the directory's; the same name in another is in nobody's way."""
    for kind in ("stream", "datagram"):
        one, two = (os.path.join(bed.dir, f"{name}-{kind}") for name in ("one", "two"))
        os.mkdir(one)
        os.mkdir(two)
        job, log = bed.started([sys.executable, "-u", "-c", NAMED, one, kind])
        saved = bed.operation("checkpoint", job)
        other = bed.start([sys.executable, "-u", "-c", NAMED, two, kind]).ready()
        bed.operation("restore", saved["checkpoint"])
        log.goes_on()
        saved = bed.operation("checkpoint", job)
        other.end()
        os.unlink(os.path.join(one, "name"))
        other = bed.start([sys.executable, "-u", "-c", NAMED, one, kind]).ready()
        bed.refused(6, rf"address name of the job is in use by process {other.pid} ", "restore", saved["checkpoint"])
        other.end()
        bed.operation("restore", saved["checkpoint"])
        log.goes_on()
        bed.end(job)


SENDS = """
import socket, sys, time
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ours.connect(sys.argv[1])
print("ready to go", flush=True)
step = 0
while True:
    step += 1
    ours.send(b"x")
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


@case
def of_somebody_to_whom_the_job_sends(bed):
    """As a logger's: it is not the job's, and has to be in use when the job comes back."""
    path = os.path.join(bed.dir, "logger")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as logger:
        logger.bind(path)
        receiver = threading.Thread(target=lambda: [None for _ in iter(lambda: logger.recv(8), b"end")])
        receiver.start()
        try:
            job, log = bed.started([sys.executable, "-u", "-c", SENDS, path])
            bed.expect_restorable(bed.operation("checkpoint", job)["checkpoint"], log)
            saved = bed.operation("checkpoint", job, "--leave-running")
            sockets = bed.ok("inspect", "--restore", saved["checkpoint"], "--format", "json").json()["restore"]["sockets"]
            expect([s["state"] for s in sockets if s.get("address") == path] == ["outside"], f"it has {sockets}")
            bed.end(job)
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
                ours.sendto(b"end", path)
            receiver.join()


main()
