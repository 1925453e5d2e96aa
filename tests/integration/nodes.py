# SPDX-License-Identifier: MIT
"""Nodes for tests of sets: network namespaces on a bridge, each with a mount namespace, directories, simulated GPUs and a brumate of its
own; the store is shared."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess

from cases import Log, Skipped, expect, read_text, run, wait_until

NEEDED = ("ip", "unshare", "nsenter", "mount")


class Node:
    """Its name is its number; commands run in it by nodes.on."""

    def __init__(self, nodes, number):
        self.nodes, self.number = nodes, number
        self.name = f"node{number}"
        self.namespace = f"brumate-{os.getpid()}-{number}"
        self.link = f"bt{os.getpid() % 100000}n{number}"
        self.holder, self.address = None, None

    def start(self):
        nodes, own = self.nodes, f"{self.nodes.dir}/{self.name}"
        os.makedirs(own)
        nodes.need("ip", "netns", "add", self.namespace)
        nodes.need("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        nodes.need("ip", "link", "set", self.link, "master", nodes.bridge, "up")
        nodes.need("ip", "-n", self.namespace, "link", "set", "eth0", "up")
        nodes.need("ip", "-n", self.namespace, "link", "set", "lo", "up")
        self.set_address(self.number + 1)
        script = f"mount --bind {own} {nodes.here} && mkdir {nodes.here}/sim && mount -t tmpfs sim {nodes.here}/sim && echo up && exec sleep infinity"
        self.holder = subprocess.Popen(["ip", "netns", "exec", self.namespace, "unshare", "-m", "--propagation", "private", "sh", "-c",
                                        script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        expect(self.holder.stdout.readline() == "up\n", f"{self.name} does not start")

    def set_address(self, last):
        self.address = last
        run(["ip", "-n", self.namespace, "addr", "flush", "dev", "eth0", "scope", "global"])
        self.nodes.need("ip", "-n", self.namespace, "addr", "add", f"10.77.0.{last}/24", "dev", "eth0", "nodad")
        run(["ip", "-n", self.namespace, "neigh", "flush", "all"])

    def cli(self, *args, timeout=120):
        return run([self.nodes.on, self.name, self.nodes.bed.brumate, *[str(a) for a in args]], timeout=timeout)

    def ok(self, *args, timeout=120):
        result = self.cli(*args, timeout=timeout)
        expect(result.code == 0, f"{self.name}: {result.why()}")
        return result

    def jobs(self, *args):
        return json.loads(self.ok("ps", *args, "--format", "json").out)["jobs"]

    def running(self):
        """Its one job that is alive."""
        alive = [j for j in self.jobs() if j["state"] not in ("checkpointed", "exited", "lost")]
        expect(len(alive) == 1, f"{self.name} has {alive}")
        return alive[0]

    def state_of(self, job):
        return next((j["state"] for j in self.jobs("--all") if j["id"] == job), None)

    def log(self):
        """Of the one job that there is. What another node wrote comes before: nodes are exchanged."""
        return Log(f"{self.nodes.dir}/{self.name}/log/ring.log")

    def filters(self):
        """What stands in the way of packets."""
        return run(["ip", "netns", "exec", self.namespace, "nft", "list", "ruleset"]).out if shutil.which("nft") else ""


class Nodes:
    def __init__(self, bed, n):
        if os.getuid() or any(not shutil.which(name) for name in NEEDED):
            raise Skipped("needs root, iproute2 and util-linux")
        self.bed, self.dir = bed, bed.dir
        self.here, self.on, self.bridge = f"{bed.dir}/here", f"{bed.dir}/on", f"btb{os.getpid() % 100000}"
        self.store = f"{bed.dir}/shared"
        self.nodes = [Node(self, k) for k in range(n)]
        self.own = {"BRUMATE_GPU": "simulated", "BRUMATE_RUNTIME_DIR": f"{self.here}/run", "BRUMATE_STATE_DIR": f"{self.here}/state",
                    "BRUMATE_LOG_DIR": f"{self.here}/log", "BRUMATE_CONFIG": f"{bed.dir}/nodes.conf", "BRUMATE_SIM_DIR": f"{self.here}/sim",
                    "BRUMATE_SIM_VRAM_MIB": "512", "BRUMATE_FAULT_FILE": f"{self.here}/fault"}

    def need(self, *argv):
        done = run(list(argv))
        if done.code:
            raise Skipped(f"{' '.join(argv)}: {done.err.strip()}")

    def __getitem__(self, k):
        return self.nodes[k]

    def __iter__(self):
        return iter(self.nodes)

    def __enter__(self):
        for path in (self.here, self.store):
            os.mkdir(path, 0o700)
        with open(self.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write(f"[Store]\nDirectory={self.store}\n")
        try:
            self.need("ip", "link", "add", self.bridge, "type", "bridge")
            self.need("ip", "link", "set", self.bridge, "up")
            for node in self:
                node.start()
            self.write_on()
        except Exception:
            self.__exit__()
            raise
        return self

    def write_on(self):
        """`on NODE COMMAND...`: as ssh would."""
        env = " ".join(f"{k}={v}" for k, v in self.own.items())
        with open(self.on, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nnode=$1; shift\ncase $node in\n")
            for node in self:
                file.write(f"{node.name}) p={node.holder.pid} u={node.number}0,{node.number}1 ;;\n")
            file.write("*) echo \"on: no node $node\" >&2; exit 255 ;;\nesac\n"
                       f"exec nsenter -t $p -m -n env {env} BRUMATE_SIM_UUIDS=$u "
                       f"PATH={os.path.dirname(self.bed.brumate)}:$PATH \"$@\"\n")
        os.chmod(self.on, 0o700)

    def processes(self):
        mark = f"BRUMATE_STATE_DIR={self.here}/state".encode()
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                with open(f"/proc/{int(name)}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(name))
        return found

    def __exit__(self, *_):
        for _ in range(100):
            left = self.processes()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            select.select([], [], [], 0.05)
        for node in self:
            if node.holder:
                node.holder.kill()
                node.holder.wait()
            run(["ip", "netns", "del", node.namespace])
            run(["ip", "link", "del", node.link])
        run(["ip", "link", "del", self.bridge])

    def fault(self, node, point, action):
        path = f"{self.dir}/{node.name}/fault"
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(f"{point} {action}\n")
        os.rename(path + ".new", path)

    def left(self):
        """What is in the store of what was not completed."""
        return [n for n in os.listdir(self.store) if n != ".sets"] + [n for n in os.listdir(f"{self.store}/.sets") if n[0] != "."]

    def open_decisions(self):
        return [n for n in os.listdir(f"{self.store}/.sets") if n.endswith((".save", ".restore"))]

    # The ring, and sets of it.
    def members(self):
        return [f"{node.name}:{node.running()['id']}" for node in self]

    def start_ring(self, mib=16, interval_ms=50, beside=None):
        ips = ",".join(f"10.77.0.{k + 1}" for k in range(len(self.nodes)))
        for k, node in enumerate(self):
            os.makedirs(f"{self.dir}/{node.name}/log", exist_ok=True)
            node.ok("run", "--name", "ring", "--log", f"{self.here}/log/ring.log", "--", self.bed.program("ring"), "--mib", mib,
                    "--interval-ms", interval_ms, f"{k}:{len(self.nodes)}:{ips}" + (f":{beside}" if beside and not k else ""))
        self.go_on()

    def set_argv(self, *args):
        # The coordinator runs on no node: in the namespaces of the test.
        via = ["--via", f"{self.on} %n"] if args[0] in ("checkpoint", "restore") else []
        return [self.bed.brumate, "set", args[0], "--dir", self.store, *via, *[str(a) for a in args[1:]]]

    def set(self, *args, timeout=120):
        return run(self.set_argv(*args), env=self.bed.command_env(), timeout=timeout)

    def set_ok(self, *args):
        result = self.set(*args)
        expect(result.code == 0, result.why())
        return result

    def go_on(self, steps=3):
        """All ranks are further by these steps, none of them wrong, lost or doubled."""
        for node in self:
            node.log().goes_on(steps)

    def forget(self):
        """All jobs are killed, as a machine that loses power does it: nobody closes a connection first. The logs go, too."""
        alive = [(node, node.running()) for node in self]
        for _, job in alive:
            with contextlib.suppress(ProcessLookupError):  # a rank whose neighbour has just gone ends by itself
                os.kill(job["pid"], signal.SIGKILL)
        for node, job in alive:
            wait_until(lambda n=node, k=job["id"]: n.state_of(k) in ("exited", "lost"), "the end of the job")
        for node in self:  # the steps after the checkpoint come again
            os.unlink(f"{self.dir}/{node.name}/log/ring.log")

    def exchange(self):
        """Each node becomes what the next one was: its address and its log."""
        order = [*range(1, len(self.nodes)), 0]
        addresses = [self.nodes[n].address for n in order]
        logs = [read_text(f"{self.dir}/{node.name}/log/ring.log") for node in self]
        for k, node in enumerate(self):
            node.set_address(addresses[k])
            with open(f"{self.dir}/{node.name}/log/ring.log", "w", encoding="utf-8") as file:
                file.write(logs[order[k]])
