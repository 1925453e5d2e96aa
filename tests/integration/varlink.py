#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""brumated as any varlink client sees it, and as somebody sees it who means no good."""

import json
import os
import random
import socket
import shutil
import struct

from cases import NOBODY, Skipped, case, expect, main, may_connect, process_start, run, wait_until
from varlink_client import Client, Error
from varlink_idl import Interface, Invalid

WIRE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "src", "wire")
PATIENCE_S = 280
INTERFACES = ("io.brumate", "io.brumate.broker", "io.brumate.job")


class StrictClient(Client):
    """A client that takes nothing which the service has not declared."""

    def __init__(self, path):
        super().__init__(path)
        self.interfaces = {}
        self.method = None
        for name in ("org.varlink.service", "io.brumate"):
            text = super().call("org.varlink.service.GetInterfaceDescription", {"interface": name})["description"]
            self.interfaces[name] = Interface(text)

    def ask(self, method, parameters=None, more=False):
        self.method = method
        super().ask(method, parameters, more)

    def replies(self):
        interface, _, name = self.method.rpartition(".")
        known = self.interfaces.get(interface)
        try:
            for reply in super().replies():
                if known:
                    known.check_reply(name, reply)
                yield reply
        except Error as error:
            interface, _, name = error.name.rpartition(".")
            self.interfaces[interface].check_error(name, error.parameters)
            raise


def connected(bed):
    daemon = bed.daemon()
    return daemon, StrictClient(bed.daemon_socket())


def texts():
    for name in INTERFACES:
        with open(os.path.join(WIRE, name + ".varlink"), encoding="utf-8") as file:
            yield name, file.read()


@case
def interfaces_are_valid(bed):
    """By our own reader, which refuses what is known to be wrong, too."""
    for name, text in texts():
        expect(Interface(text).name == name, f"{name}.varlink is of another interface")
    for wrong in ("interface a.b type T () method T() -> ()", "interface a.b type T (a: int, a: int)",
                  "interface a.b method M(a: Missing) -> ()", "interface a.b type t ()", "interface a.b method M()",
                  "interface a.b type T (a: ??int)", "interface a.b type T (a: int,)", "interface a", "interface a.b !"):
        try:
            Interface(wrong)
        except Invalid:
            continue
        expect(False, f"taken for valid: {wrong}")


def varlinkctl(bed):
    """The command: this machine's, or that of a newer release with its libraries, by the mirror that apt uses."""
    found = shutil.which("varlinkctl")
    if found:
        return [found]
    if not shutil.which("mmdebstrap"):
        raise Skipped("varlinkctl is not installed, and neither is mmdebstrap")
    mirror = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages"]).out
    mirror = next((line.split()[0] for line in mirror.splitlines() if line.endswith(" Debian")), None)
    if not mirror:
        raise Skipped("varlinkctl is not installed, and apt has no mirror of Debian")
    root = os.path.join(bed.dir, "stable")
    # A mirror that is slow is as one that does not have it.
    done = run(["timeout", "--kill-after=20", "200", "mmdebstrap", "--variant=extract", "--include=systemd", "stable", root, mirror],
               timeout=PATIENCE_S)
    loader = os.path.realpath(os.path.join(root, "usr", "lib64", "ld-linux-x86-64.so.2"))
    found = os.path.join(root, "usr", "bin", "varlinkctl")
    if done.code or not os.path.exists(found) or not os.path.exists(loader):
        raise Skipped(f"varlinkctl is not installed, and not on the mirror: {done.err.strip()[-200:]}")
    libraries = os.path.dirname(loader)
    return [loader, "--library-path", f"{libraries}:{libraries}/systemd", found]


@case
def interfaces_are_valid_for_varlinkctl(bed):
    program = varlinkctl(bed)
    for name in INTERFACES:
        result = run([*program, "validate-idl", os.path.join(WIRE, name + ".varlink")])
        expect(result.code == 0, f"{name}: {result.why()}")
    bed.daemon()
    for arguments in (["info"], ["list-methods"], ["introspect", "io.brumate", "org.varlink.service"]):
        result = run([*program, arguments[0], "unix:" + bed.daemon_socket(), *arguments[1:]])
        expect(result.code == 0, f"{arguments}: {result.why()}")
    result = run([*program, "--json=short", "call", "unix:" + bed.daemon_socket(), "io.brumate.List", "{}"])
    expect(result.code == 0 and json.loads(result.out) == {"jobs": []}, result.why())


def expect_error(client, name, method, parameters=None):
    try:
        reply = client.call(method, parameters)
    except Error as error:
        expect(error.name == name, f"{method}: {error}, expected {name}")
        return error.parameters
    return expect(False, f"{method} {parameters}: {reply}, expected {name}")


@case
def describes_itself(bed):
    _, client = connected(bed)
    info = client.call("org.varlink.service.GetInfo")
    expect({"vendor", "product", "version", "url", "interfaces"} <= set(info), f"GetInfo: {info}")
    expect({"io.brumate", "org.varlink.service"} <= set(info["interfaces"]), f"interfaces {info['interfaces']}")
    text = client.call("org.varlink.service.GetInterfaceDescription", {"interface": "io.brumate"})["description"]
    source = os.path.join(os.path.dirname(__file__), "..", "..", "src", "wire", "io.brumate.varlink")
    with open(source, encoding="utf-8") as file:
        expect(text.strip() == file.read().strip(), "the description is not the file of the tree")
    expect_error(client, "org.varlink.service.InterfaceNotFound", "org.varlink.service.GetInterfaceDescription",
                 {"interface": "no.such"})
    expect_error(client, "org.varlink.service.MethodNotFound", "io.brumate.NoSuch")
    expect_error(client, "org.varlink.service.InterfaceNotFound", "no.such.Method")


@case
def drives_a_job(bed):
    _, client = connected(bed)
    env = [f"{name}={value}" for name, value in bed.program_env().items() if name != "LD_LIBRARY_PATH"]
    argv = [bed.program("counter"), "--mib", "16", "--chunk-mib", "16", "--interval-ms", "25"]
    job = client.call("io.brumate.Run", {"argv": argv, "env": env, "cwd": "/", "name": "wired", "gpu": "simulated"})["job"]
    bed.jobs.append(job["id"])
    expect(job["name"] == "wired" and job["state"] == "running" and job["simulated"], f"{job}")
    log = bed.log("wired")
    log.goes_on()
    expect([j["id"] for j in client.call("io.brumate.List")["jobs"]] == [job["id"]], "List")
    bed.fault("suspend.gpu-lock.begin", "delay:700")
    replies = client.stream("io.brumate.Suspend", {"job": "wired"})
    progress, last = [r["progress"] for r in replies[:-1]], replies[-1]
    expect(progress and all(p["steps"] >= 4 and 1 <= p["step"] <= p["steps"] for p in progress), f"{progress}")
    # A busy machine is slow in other steps, too, and is told of them.
    expect(any(p["phase"] == "gpu-lock" and p["waiting_for"] for p in progress), f"{progress}")
    expect(last["summary"]["operation"] == "suspend" and last["summary"]["job"] == job["id"], f"{last}")
    expect(client.call("io.brumate.Status", {"job": job["id"]})["job"]["state"] == "suspended", "Status")
    expect("summary" in client.call("io.brumate.Resume", {"job": job["id"][:4]}), "Resume without more")
    log.goes_on()
    summary = client.stream("io.brumate.Checkpoint", {"job": "wired", "name": "image"})[-1]["summary"]
    expect(summary["checkpoint"] == "image", f"{summary}")
    listed = client.call("io.brumate.Checkpoints")["checkpoints"]
    expect([c["id"] for c in listed] == ["image"], f"Checkpoints: {listed}")
    for method, parameters in (("Inspect", {"what": "image"}), ("Inspect", {"what": "image", "restore": True}),
                               ("Inspect", {"what": "wired", "kind": "job"}), ("Verify", {}), ("Sweep", {}),
                               ("Diff", {"from": "image", "to": "image"}),
                               ("Pin", {"checkpoint": "image"}), ("Unpin", {"checkpoint": "image"}),
                               ("Prune", {"keep_last": 1, "dry_run": True}), ("Doctor", {})):
        client.stream("io.brumate." + method, parameters)  # each reply is as declared
    restored = client.stream("io.brumate.Restore", {"checkpoint": "image"})[-1]
    expect(restored["job"]["id"] == job["id"] and restored["summary"]["operation"] == "restore", f"{restored}")
    log.goes_on()
    schedule = client.call("io.brumate.Schedule", {"job": "wired", "every_ms": 3600000})["job"]["schedule"]
    expect(schedule["every_ms"] == 3600000, f"Schedule: {schedule}")
    client.call("io.brumate.Schedule", {"job": "wired", "every_ms": 0})
    with StrictClient(bed.daemon_socket()) as waiting:
        waiting.ask("io.brumate.Wait", {"job": "wired"})
        client.call("io.brumate.Kill", {"job": "wired"})
        expect(list(waiting.replies())[-1]["job"]["exit_code"] == 143, "Wait")
    client.call("io.brumate.Remove", {"job": "wired"})
    expect(not client.call("io.brumate.List")["jobs"], "Remove")


@case
def errors_say_what_is_wrong(bed):
    _, client = connected(bed)
    failed = expect_error(client, "io.brumate.Failed", "io.brumate.Suspend", {"job": "nosuch"})
    expect(failed["exit"] == 3 and failed["code"] > 0 and "nosuch" in failed["text"], f"{failed}")
    for method, parameters in (("Suspend", {}), ("Suspend", {"job": 3}), ("Suspend", {"job": "a", "pid": 1234}),
                               ("Suspend", {"job": "a", "timeout_ms": -1}), ("Suspend", {"job": "a", "force": "yes"}),
                               ("Run", {}), ("Run", {"argv": [], "env": [], "cwd": "/"}),
                               ("Run", {"argv": [1], "env": [], "cwd": "/"}), ("Run", {"argv": ["true"], "env": []}),
                               ("Run", {"argv": ["true"], "env": {}, "cwd": "/"}),
                               ("Run", {"argv": ["true"], "env": [], "cwd": "relative"}),
                               ("Manage", {}), ("Manage", {"pid": "x"}), ("Manage", {"pid": 2**40}),
                               ("Resume", {"job": "a", "gpu_map": "0=1"}), ("Kill", {"job": "a", "signal": 999}),
                               ("Status", {"job": []}), ("Inspect", {}), ("Remove", {})):
        failed = expect_error(client, "org.varlink.service.InvalidParameter", "io.brumate." + method, parameters)
        expect(failed.get("parameter"), f"{method} {parameters}: {failed}")
    expect(not client.call("io.brumate.List")["jobs"], "a wrong call left a job")


@case
def hanging_up_cancels(bed):
    _, client = connected(bed)
    job, log = bed.counter(mib=16)
    bed.fault("checkpoint.criu.begin", "delay:1500")
    client.ask("io.brumate.Checkpoint", {"job": job, "name": "never"}, more=True)
    wait_until(bed.has_fired, "the checkpoint to be under way")
    client.socket.close()
    bed.wait_state(job, ("running",))
    bed.expect_whole(job, log)
    expect(not bed.checkpoints(), "it was not cancelled")


def messages(rng):
    """What no client should send."""
    good = json.dumps({"method": "io.brumate.List", "parameters": {}}).encode()
    yield b"\0"
    yield b"\0" * 1000
    yield b"hello\0"
    yield b"[]\0"
    yield b"{}\0"
    yield b'{"method": 3}\0'
    yield b'{"method": ""}\0'
    yield b'{"method": "io.brumate.List", "parameters": []}\0'
    yield b'{"method": "io.brumate.List", "method": "io.brumate.List"}\0'
    yield b'{"method": "' + b"x" * 100000 + b'"}\0'
    yield b"[" * 100000 + b"\0"
    yield b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\0"
    yield b'{"method": "io.brumate.Status", "parameters": {"job": "\xff\xfe"}}\0'
    yield b'{"method": "io.brumate.Status", "parameters": {"job": "\\u0000"}}\0'
    yield good  # and no end
    yield good[:10]
    yield b"x" * (20 << 20)
    for _ in range(200):
        spoilt = bytearray(good + b"\0")
        for _ in range(rng.randrange(1, 5)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        yield bytes(spoilt)


@case
def garbage_does_no_harm(bed):
    daemon, client = connected(bed)
    job, log = bed.counter()
    start = process_start(daemon.pid)
    for message in messages(random.Random(3)):
        with Client(bed.daemon_socket(), 5) as bad:
            try:
                bad.send(message)
                bad.socket.shutdown(socket.SHUT_WR)
                while bad.socket.recv(65536):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass  # it hung up before it had read all: just so
        expect(process_start(daemon.pid) == start, f"brumated ended by {message[:60]!r}")
    expect([j["id"] for j in client.call("io.brumate.List")["jobs"]] == [job], "List")
    bed.expect_whole(job, log)


@case
def many_and_lazy_clients(bed):
    """Hundreds that connect and say nothing, or never read, keep nobody else from being served."""
    daemon, client = connected(bed)
    start = process_start(daemon.pid)
    idle = [Client(bed.daemon_socket()) for _ in range(200)]
    for number, lazy in enumerate(idle):
        if number % 2:
            lazy.socket.setblocking(False)
            try:
                for _ in range(200):
                    lazy.ask("org.varlink.service.GetInfo")
            except BlockingIOError:
                pass
    expect("jobs" in client.call("io.brumate.List"), "List while others are idle")
    for lazy in idle:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lazy.socket.close()
    expect("jobs" in client.call("io.brumate.List"), "List afterwards")
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/task")) < 20, "the threads of clients that have gone")
    wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) < 30, "their sockets")
    expect(process_start(daemon.pid) == start, "brumated ended")


@case
def jobs_outlive_the_daemon(bed):
    daemon, client = connected(bed)
    job = client.call("io.brumate.Run", {"argv": [bed.program("counter"), "--mib", "16", "--chunk-mib", "16",
                                                  "--interval-ms", "25"], "cwd": "/",
                                         "env": [f"{n}={v}" for n, v in bed.own.items()], "gpu": "simulated"})["job"]["id"]
    bed.jobs.append(job)
    log = bed.log(job)
    log.goes_on()
    daemon.process.kill()
    daemon.wait()
    bed.expect_whole(job, log)
    again = bed.start_daemon()
    with Client(bed.daemon_socket()) as client:
        client.call("io.brumate.Suspend", {"job": job})
        client.call("io.brumate.Resume", {"job": job})
    bed.expect_whole(job, log)
    again.process.terminate()
    expect(again.wait() == 0, f"brumated ended with {again.process.returncode}")
    bed.expect_whole(job, log)


@case
def nobody_else_gets_at_shim_and_broker(bed):
    """The sockets behind brumated are root's alone."""
    bed.daemon()
    job, log = bed.counter()
    shim = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.sock")
    bed.vram()
    for path in (shim, bed.broker_socket()):
        expect(may_connect(path, 0), f"{path}: root cannot connect, this test proves nothing")
        expect(not may_connect(path, NOBODY), f"{path}: uid {NOBODY} can connect")
    bed.expect_whole(job, log)


main()
