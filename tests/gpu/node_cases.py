# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about several nodes, which are network namespaces of one machine with a brumate each: ranks that talk by
sockets alone are saved and restored as a set again and again, on exchanged GPUs every other time."""

import os
import re
import statistics
import subprocess
import sys

from framework_cases import END_S, EXCHANGED, OPERATION_S, Way, is_ready, need, need_gpus, results_of, same_as_undisturbed, wait_step
from harness import Instance, Log, Skipped, expect, process_start, run

HERE = os.path.dirname(os.path.abspath(__file__))
CYCLES, GO_ON_EVERY, STEPS_BETWEEN, FOREVER, PORT = 20, 5, 3, 10**6, 29500
# Two ranks of one machine have faster ways, which two nodes have not.
BY_SOCKETS = ("NCCL_SOCKET_IFNAME=eth0", "NCCL_SOCKET_FAMILY=AF_INET", "NCCL_IB_DISABLE=1", "NCCL_SHM_DISABLE=1",
              "NCCL_P2P_DISABLE=1", "NCCL_NET=Socket", "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,NET", "GLOO_SOCKET_IFNAME=eth0")


class Node:
    """A network namespace, and a brumate whose commands run in it."""

    def __init__(self, check, number):
        self.check, self.name, self.ip = check, f"node{number}", f"10.77.0.{number + 1}"
        self.instance = Instance(check.build, simulated=check.options.simulated, transcript=check.transcript)
        self.holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo up; exec sleep infinity"], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "up\n":
            raise Skipped(f"no network namespaces: {self.holder.communicate()[1].strip()}")
        self.enter = ["nsenter", "-t", str(self.holder.pid), "-n"]

    def network(self, *args):
        done = run([*self.enter, sys.executable, os.path.join(HERE, "network.py"), *args], timeout=30)
        if done.code:
            raise Skipped(done.err.strip())

    def be_entered(self, on):
        """The commands of brumate run in it from now on."""
        with open(os.path.join(self.instance.dir, "enter"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nexec {on} {self.name} brumate \"$@\"\n")
        os.chmod(file.name, 0o700)
        self.instance.brumate = file.name

    def launcher_line(self):
        env = " ".join(f"{name}={value}" for name, value in self.instance.own.items())
        return f"{self.name}) set -- {' '.join(self.enter)} env {env} \"$@\" ;;\n"

    def close(self):
        left = self.instance.close(wait_for_shims=False)
        self.holder.kill()
        self.holder.communicate()
        return left


class Nodes:
    """Two of them with a link between them, and a store that both have."""

    def __init__(self, check):
        self.check, self.nodes = check, []
        self.store, self.on = os.path.join(check.instance.dir, "shared"), os.path.join(check.instance.dir, "on")

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self):
        os.mkdir(self.store, 0o700)
        self.nodes += [Node(self.check, 0)]
        self.nodes += [Node(self.check, 1)]
        self.nodes[0].network("join", self.nodes[1].holder.pid)
        for node in self.nodes:
            node.network("address", node.ip)
        brumate = os.path.dirname(self.check.instance.brumate)
        with open(self.on, "w", encoding="utf-8") as file:  # as ssh would
            file.write("#!/bin/sh\nnode=$1; shift\ncase $node in\n" + "".join(node.launcher_line() for node in self.nodes) +
                       f"*) echo \"no node $node\" >&2; exit 255 ;;\nesac\nexport PATH={brumate}:$PATH\nexec \"$@\"\n")
        os.chmod(self.on, 0o700)
        for node in self.nodes:
            node.be_entered(self.on)

    def __iter__(self):
        return iter(self.nodes)

    def close(self):
        return [one for node in self.nodes for one in node.close()]

    def __exit__(self, kind, *_):
        if kind and not issubclass(kind, Skipped):
            for node in self.nodes:
                for entry in node.instance.list("ps", "jobs", "--all"):
                    self.check.transcript.write(f"--- {node.name}: {entry}\n    {Log(entry['log']).tail(200)}\n")
        left = self.close()
        expect(kind or not left, f"left behind: {left}")

    def set(self, verb, *args):
        """The members' summaries."""
        argv = [self.check.instance.brumate, "set", verb, "--dir", self.store, "--via", f"{self.on} %n", "--format", "json", *args]
        done = run(argv, env=self.check.instance.command_env(), timeout=OPERATION_S)
        self.check.instance.note(f"$ {done.line()}   [{done.code}, {done.seconds:.3f} s]\n{done.out}{done.err}".rstrip())
        expect(done.code == 0, done.why())
        self.check.operations += [member["summary"] for member in done.json()["members"]]
        return done.seconds


def gpus_by_nvml(root):
    """Numbers of the GPUs with a context of process @root or a descendant. `ps` cannot tell those of a job with a process that
    only opened the driver, as torchrun's agent does."""
    def ask(what):
        done = run(["nvidia-smi", f"--query-{what}", "--format=csv,noheader"])
        expect(done.code == 0, done.why())
        return [line.split(", ") for line in done.out.splitlines()]

    def is_below(pid):
        while pid > 1 and pid != root:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                pid = int(file.read().rsplit(")", 1)[1].split()[1])
        return pid == root

    number = {uuid: int(n) for n, uuid in ask("gpu=index,uuid")}
    return sorted({number[uuid] for pid, uuid in ask("compute-apps=pid,gpu_uuid") if is_below(int(pid))})


class Ranks:
    """A job on each node, of which the first prints the steps, if not all do."""

    def __init__(self, nodes, argv_of, prints_all):
        self.prints_all = prints_all
        self.nodes, self.members, self.logs, self.starts = nodes, [], [], []
        for n, node in enumerate(nodes):
            job = node.instance.run(argv_of(n, node), name="rank", options=("--data-path", "broker"))
            self.members.append(f"{node.name}:{job}")
            self.logs.append(node.instance.log(job))
            pid = node.instance.job(job)["pid"]
            self.starts.append((pid, process_start(pid)))

    def alive(self):
        return all(process_start(pid) == start for pid, start in self.starts)

    def cycles(self, n):
        """The seconds that they took: {verb: [...]}."""
        check, took, places = self.nodes.check, {"checkpoint": [], "leave-running": [], "restore": []}, [0, 1]
        for turn in range(n):
            goes_on = turn % GO_ON_EVERY == GO_ON_EVERY - 1
            saved = self.nodes.set("checkpoint", *(["-R"] if goes_on else []), "--name", f"t{turn}", *self.members)
            took["leave-running" if goes_on else "checkpoint"].append(saved)
            if not goes_on:
                places = places[::-1] if turn % 2 else places
                took["restore"].append(self.nodes.set("restore", *(EXCHANGED if turn % 2 else ()), f"t{turn}"))
            self.expect_on(places)
            self.go_on()
            done = run([check.instance.brumate, "set", "rm", "--dir", self.nodes.store, f"t{turn}"], env=check.instance.command_env())
            expect(done.code == 0, done.why())
        return took

    def expect_on(self, places):
        """The n-th member is on the GPU with the n-th number."""
        for node, member, place in zip(self.nodes, self.members, places):
            job = node.instance.job(member.split(":")[1])
            have = [gpu["index"] for gpu in job["gpus"] if gpu["bytes"]] if job["gpus"] is not None else gpus_by_nvml(job["pid"])
            expect(have == [place], f"{member} is not on GPU {place}: {have}")

    def go_on(self):
        if self.prints_all:
            for log in self.logs:
                log.goes_on(STEPS_BETWEEN)
        else:
            wait_step(self.logs[0], len(results_of(self.logs[0].text())) + STEPS_BETWEEN)

    def end(self):
        """The first one, that prints, at first; the others may have ended by that."""
        for node, member in zip(self.nodes, self.members):
            node.instance.cli("kill", "--grace", "5s", member.split(":")[1])
        for node, member in zip(self.nodes, self.members):
            node.instance.wait_state(member.split(":")[1], ("exited", "lost"))


def tell(check, what, took):
    for verb, seconds in took.items():
        if seconds:
            check.measured[f"{what}: {verb}"] = f"{statistics.median(seconds):.2f} s, worst of {len(seconds)} {max(seconds):.2f} s"


def torchrun(n, node):
    return ("-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(n), "--nproc_per_node", "1", "--master_addr",
            node.check.master, "--master_port", str(PORT))


def training(check, way, name):
    """By torchrun, an agent and a rank on each node; each line is that of an undisturbed run in the same namespaces."""
    ranks_way = Way(name, "torch_ranks.py", ("--way", way), gpus=2)
    need(check, ranks_way)
    with Nodes(check) as nodes:
        check.master = nodes.nodes[0].ip

        def argv(n, node, steps):
            own = Way(name, "torch_ranks.py", ("--way", way, "--gpu", str(n)), (*BY_SOCKETS, f"NCCL_HOSTID={node.name}"),
                      torchrun(n, node), 2)
            return own.argv(check, "--steps", steps)

        ranks = Ranks(nodes, lambda n, node: argv(n, node, FOREVER), False)
        is_ready(ranks.logs[0], ranks.alive)
        ranks.go_on()
        if not re.search("NET/Socket", ranks.logs[0].text()):
            raise Skipped(f"NCCL does not talk by sockets here: {ranks.logs[0].tail()}")
        took = ranks.cycles(min(CYCLES, check.options.rank_rounds))
        ranks.end()
        have = len(results_of(ranks.logs[0].text()))
        plain = [node.instance.start([*node.enter, *argv(n, node, have)], "plain") for n, node in enumerate(nodes)]
        for program in plain:
            expect(program.wait(END_S + have) == 0, f"undisturbed, it failed: {program.log.tail(8)}")
        same_as_undisturbed(ranks.logs[0], results_of(plain[0].log.text()))
        tell(check, name, took)
        check.measured[f"{name}: steps as undisturbed"] = have


def programs(check, name, argv_of):
    """A program of ours in the place of PyTorch: it checks each byte itself."""
    need_gpus(check, 2)
    with Nodes(check) as nodes:
        ranks = Ranks(nodes, argv_of, True)
        for log in ranks.logs:
            log.wait_for(r"step 3 ")
        took = ranks.cycles(min(CYCLES, check.options.rank_rounds))
        for log in ranks.logs:
            log.is_right()
        ranks.end()
        tell(check, name, took)


def ring(check):
    def argv(n, _):
        return [check.program("ring"), "--gpu", n, "--mib", 16 if check.options.simulated else 1024, f"{n}:2:10.77.0.1,10.77.0.2"]

    programs(check, "several nodes: ring", argv)


def register(case):
    """Adds the cases to gpu-check's list."""
    case("several nodes: ring over two namespaces")(ring)
    for way, name in (("ddp", "DDP"), ("tp", "tensor parallel")):
        title = f"several nodes: torchrun, {name}, NCCL by sockets"
        case(title)(lambda check, way=way, title=title: training(check, way, title))
