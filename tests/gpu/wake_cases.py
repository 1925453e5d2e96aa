# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about servers of `run --wake`: a request brings a suspended one back, threads that look do not, and two
that fill the GPU take turns."""

import json
import os
import shutil
import socket
import tempfile
import time

import bench_cases
import engine_cases
from harness import Skipped, expect, run

QUIET_S = 20
ANSWER_S = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """tests/programs/server.c as a job, with a thread that looks all the time."""

    def __init__(self, check, name, mib):
        self.check, self.port, self.steps = check, free_port(), 0
        argv = [check.program("server"), "watch", "--port", self.port, "--mib", mib, "--chunk-mib", 64]
        self.id, _ = check.job_started(argv, name, options=("--wake",))

    def state(self):
        return self.check.instance.job(self.id)["state"]

    def get(self, path):
        """The answer, and how long it took."""
        begin = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_S) as s:
            s.settimeout(ANSWER_S)
            s.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            text = b""
            while b"\n" not in text.partition(b"\r\n\r\n")[2]:
                more = s.recv(4096)
                expect(more, "the server hung up")
                text += more
        return text.partition(b"\r\n\r\n")[2].decode(), time.monotonic() - begin

    def ask(self):
        body, seconds = self.get("/")
        self.steps += 1
        expect(body == f"step {self.steps} OK\n", f"answer {self.steps} is {body!r}")
        return seconds

    def settle(self):
        """The answer comes before the end of the resume that let it."""
        until = time.monotonic() + ANSWER_S
        while self.state() != "running":
            expect(time.monotonic() < until, f"it is {self.state()}")
            time.sleep(0.01)


def calls_that_woke(check):
    lines = check.instance.cli("events", "--format", "json").out.splitlines()
    return [e["call"] for e in map(json.loads, lines) if e["event"] == "wake"]


def stays_asleep(check, state):
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        expect(state() == "suspended", f"woken for nothing, by {calls_that_woke(check)}")
        time.sleep(0.2)


def one_server(check):
    mib = 256 if check.options.simulated else 12288
    it = Server(check, "model", mib)
    check.measured["wake: awake, an answer, s"] = round(min(it.ask() for _ in range(5)), 4)
    for i in range(3):
        it.settle()
        begin = time.monotonic()
        check.do("suspend", it.id)
        check.measured[f"wake: suspend {i}, s"] = round(time.monotonic() - begin, 3)
        body, seconds = it.get("/health")
        expect(body == "alive\n", f"its health is {body!r}")
        check.measured[f"wake: asleep {i}, an answer without the GPU, s"] = round(seconds, 4)
        if i == 0:
            stays_asleep(check, it.state)
        check.measured[f"wake: asleep {i}, {mib} MiB, an answer, s"] = round(it.ask(), 3)
    it.settle()
    check.measured["wake: calls that woke it"] = " ".join(calls_that_woke(check))
    check.instance.end(it.id)


def two_servers(check):
    """Each has three fifths of the GPU. The copies of both are in host memory."""
    if check.options.simulated:
        raise Skipped("tests/integration/neighbours.py does this on the simulated driver")
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    mib = int(run(query, timeout=30).out.split()[0]) * 3 // 5 // 64 * 64
    bench_cases.need_room(check, memory=2 * mib / 1024)
    servers = [Server(check, f"model-{i}", mib) for i in range(2)]
    for i in range(4):
        it = servers[i % 2]
        expect(it.state() == "suspended", f"both have room: {mib} MiB are too few for this GPU")
        check.measured[f"wake: {mib} MiB out, {mib} MiB in, an answer {i}, s"] = round(it.ask(), 3)
        it.settle()
    for s in servers:
        check.instance.end(s.id)


def an_engine(check):
    """A real one: what its own threads do while nobody asks wakes nobody."""
    if check.options.simulated:
        raise Skipped("PyTorch needs a real GPU")
    folder = tempfile.mkdtemp(prefix="brumate-wake-", dir="/dev/shm")
    try:
        server = engine_cases.Server(os.path.join(folder, "port"))
        command = ["env", "PYTHONUNBUFFERED=1", check.options.python, engine_cases.SCRIPT, "--port-file", server.port_file]
        job = check.instance.run(command, name="server", options=("--wake",))
        state = lambda: check.instance.job(job)["state"]  # noqa: E731
        server.wait(lambda: check.instance.job(job)["exit_code"] if state() == "exited" else None)
        server.learn()
        check.do("suspend", job)
        stays_asleep(check, state)
        begin = time.monotonic()
        check.measured["wake: an engine, until the first token, s"] = round(server.first_token(begin), 3)
        server.is_right()
        check.measured["wake: an engine, calls that woke it"] = " ".join(calls_that_woke(check))
        check.instance.end(job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def register(case):
    """Adds the cases to gpu-check's list."""
    case("wake: a request brings a server back")(one_server)
    case("wake: two servers on a GPU for one")(two_servers)
    case("wake: an engine")(an_engine)
