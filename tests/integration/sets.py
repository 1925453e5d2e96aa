#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sets: jobs of several nodes (nodes.py) that are saved and restored as one."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from cases import EXIT_BAD_IMAGE, EXIT_FAILED, EXIT_PERMISSION, EXIT_STILL_RUNNING, EXIT_TIMEOUT, EXIT_USAGE, LaterLog, Log, all_go_on, as_user, case, expect, main, read_text, run, wait_until
from checkpoints import image, manifest_of, sealed
from nodes import Nodes

SWEEP = os.environ.get("BRUMATE_TEST_SWEEP") == "1"


@case
def a_ring_is_saved_and_comes_back(bed):
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        nodes.set_ok("checkpoint", "--name", "first", *nodes.members())
        expect([j["state"] for n in nodes for j in n.jobs("--all")] == ["checkpointed"] * 2, "they go on")
        nodes.set_ok("restore", "first")
        nodes.go_on()


@case
def nodes_are_exchanged(bed):
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        for turn in range(4):
            nodes.set_ok("checkpoint", "--name", f"s{turn}", *nodes.members())
            nodes.exchange()
            nodes.set_ok("restore", f"s{turn}", "node0=node1", "node1=node0")
            nodes.go_on()


@case
def one_node_is_replaced(bed):
    with Nodes(bed, 3) as nodes:
        spare = nodes.nodes.pop()
        nodes.start_ring()
        nodes.set_ok("checkpoint", "--name", "moved", *nodes.members())
        gone = nodes.nodes.pop()
        nodes.nodes.append(spare)
        gone.set_address(9)
        spare.set_address(2)
        os.makedirs(f"{nodes.dir}/{spare.name}/log", exist_ok=True)
        shutil.copy(f"{nodes.dir}/{gone.name}/log/ring.log", f"{nodes.dir}/{spare.name}/log/ring.log")
        nodes.set_ok("restore", "moved", "node1=node2")
        nodes.go_on()
        nodes.nodes.append(gone)


@case
def members_on_other_gpus(bed):
    """--gpu-map is for each member, by the numbers of its node."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        nodes.set_ok("checkpoint", "--name", "s", *nodes.members())
        wrong = nodes.set("restore", "--gpu-map", "0", "s")
        expect(wrong.code == 2 and "OLD=NEW" in wrong.err, wrong.why())
        nodes.set_ok("restore", "--gpu-map", "0=1,1=0", "s")
        nodes.go_on()
        gpus = [node.running()["gpus"] for node in nodes]
        expect(all([gpu["index"] for gpu in of_one] == [1] for of_one in gpus), f"on {gpus}")


@case
def it_goes_on_and_is_killed(bed):
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        nodes.set_ok("checkpoint", "-R", "--name", "kept", *nodes.members())
        nodes.go_on()
        nodes.forget()
        nodes.set_ok("restore", "kept")
        nodes.go_on()


class Outside:
    """Somebody in a node who is no member, whom one rank is connected to beside the ring."""

    def __init__(self, nodes, at="10.77.0.2"):
        script = (f"import socket; s = socket.create_server(('{at}', 7171)); print('up', flush=True); "
                  "c, _ = s.accept(); print('accepted', flush=True); c.recv(1)")
        self.process = subprocess.Popen([nodes.on, "node1", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        expect(self.process.stdout.readline() == "up\n", "nobody listens")

    def accept(self):
        expect(self.process.stdout.readline() == "accepted\n", "nobody has come")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@case
def a_connection_to_others_is_refused(bed):
    """By name and before anything is touched, each time; --tcp-close has a restore find it closed, and those of the ring as they were."""
    with Nodes(bed, 2) as nodes:
        outside = Outside(nodes)
        try:
            nodes.start_ring(beside="10.77.0.2:7171")
            outside.accept()
            for options in ([], ["-R"]):
                refused = nodes.set("checkpoint", *options, "--name", "no", *nodes.members())
                expect(refused.code == 4 and f"member {nodes.members()[0]}: process" in refused.err, refused.why())
                expect("(ring)" in refused.err and "is connected to 10.77.0.2:7171" in refused.err and "--tcp-close" in refused.err,
                       refused.why())
            nodes.go_on()
            expect(not nodes.left(), nodes.left())
            alone = nodes.set("checkpoint", "--name", "no", nodes.members()[1])
            expect(alone.code == 4 and "is connected to 10.77.0.1:" in alone.err, alone.why())
            nodes.set_ok("checkpoint", "--tcp-close", "--name", "closed", *nodes.members())
        finally:
            outside.end()
        nodes.set_ok("restore", "closed")
        nodes.go_on()
        nodes[0].log().wait_for("beside: Connection reset by peer")


KUBECTL = """#!/bin/sh
# `kubectl exec -i POD -- COMMAND...`, of pods that are nodes of the test.
case "$1 $2 $4" in "exec -i --") ;; *) echo "error: unknown command" >&2; exit 1 ;; esac
case $3 in
ring-workers-0-0) node=node0 ;;
ring-workers-0-1) node=node1 ;;
*) echo "Error from server (NotFound): pods \\"$3\\" not found" >&2; exit 1 ;;
esac
shift 4
exec {on} $node "$@"
"""


@case
def pods_by_kubectl_exec(bed):
    """Those of a JobSet, by the line of docs/kubernetes.md. A pod that is not there is told as kubectl tells it."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        os.mkdir(f"{nodes.dir}/bin")
        with open(f"{nodes.dir}/bin/kubectl", "w", encoding="utf-8") as file:
            file.write(KUBECTL.replace("{on}", nodes.on))
        os.chmod(f"{nodes.dir}/bin/kubectl", 0o700)
        env = {**bed.command_env(), "PATH": f"{nodes.dir}/bin:{os.environ['PATH']}"}

        def pods(verb, *args):
            return run([bed.brumate, "set", verb, "--dir", nodes.store, "--via", "kubectl exec -i %n --", *args], env=env)

        members = [f"ring-workers-0-{k}:ring" for k in range(2)]
        gone = pods("checkpoint", "--name", "s", members[0], "ring-workers-0-9:ring")
        expect(gone.code and 'exited with 1: Error from server (NotFound): pods "ring-workers-0-9" not found' in gone.err, gone.why())
        nodes.go_on()
        for turn in range(2):
            saved = pods("checkpoint", "--name", f"s{turn}", *members)
            expect(saved.code == 0, saved.why())
            back = pods("restore", f"s{turn}")
            expect(back.code == 0, back.why())
            nodes.go_on()


@case
def two_members_of_one_node_by_loopback(bed):
    """Their connections are of the set, in the same place alone; they are held as those between nodes."""
    with Nodes(bed, 1) as nodes:
        node = nodes[0]
        os.makedirs(f"{nodes.dir}/{node.name}/log", exist_ok=True)
        jobs = []
        for k in range(2):
            node.ok("run", "--name", f"ring{k}", "--log", f"{nodes.here}/log/ring{k}.log", "--", bed.program("ring"), "--mib", 16,
                    "--interval-ms", 5, f"{k}:2:127.0.0.1,127.0.0.2")
            jobs.append(f"node0:ring{k}")
        logs = [Log(f"{nodes.dir}/node0/log/ring{k}.log") for k in range(2)]
        for turn in range(4):
            for log in logs:
                log.goes_on(3)
            nodes.set_ok("checkpoint", *(["-R"] if turn % 2 else []), "--name", f"l{turn}", *jobs)
            if turn % 2:
                for log in logs:
                    log.goes_on(3)
            else:
                nodes.set_ok("restore", f"l{turn}")
        for log in logs:
            log.goes_on(3)


def start_ranks(nodes, *options, word=None):
    """Ranks whose kernels wait on the GPU for those of the other nodes."""
    ips = ",".join(f"10.77.0.{k + 1}" for k in range(len(nodes.nodes)))
    for k, node in enumerate(nodes):
        os.makedirs(f"{nodes.dir}/{node.name}/log", exist_ok=True)
        node.ok("run", "--name", "ranks", "--log", f"{nodes.here}/log/ring.log", "--", nodes.bed.program("ranks"), word or f"{k}:{ips}", "--mib", 2,
                *options)
    for node in nodes:
        all_go_on(node.log(), word="rank")


def save_in_step(nodes):
    for turn in range(3):
        goes_on = turn == 1
        nodes.set_ok("checkpoint", *(["-R"] if goes_on else []), "--name", f"g{turn}", *nodes.members())
        if not goes_on:
            nodes.set_ok("restore", f"g{turn}")
        for node in nodes:
            all_go_on(node.log(), word="rank")


@case
def gates_close_in_step(bed):
    """Though a kernel of one node waits for one that the gate of another holds back."""
    with Nodes(bed, 2) as nodes:
        start_ranks(nodes, "--busy-ms", 5)
        save_in_step(nodes)


@case
def gates_of_three_close_in_step(bed):
    with Nodes(bed, 3) as nodes:
        start_ranks(nodes, "--interval-ms", 30)
        save_in_step(nodes)


@case
def gates_of_ranks_that_wait_for_nobody(bed):
    """They are idle at once by chance alone; and each node has several of them."""
    with Nodes(bed, 2) as nodes:
        start_ranks(nodes, "--busy-ms", 40, word="independent")
        nodes.set_ok("checkpoint", "-R", "--name", "g", *nodes.members())
        for node in nodes:
            all_go_on(node.log(), word="rank")


def channels(nodes):
    """The pids of `brumate set member`."""
    found = []
    for pid in nodes.processes():
        if read_text(f"/proc/{pid}/cmdline").split("\0")[1:3] == ["set", "member"]:
            found.append(pid)
    return found


def expect_unharmed(nodes, what, result):
    """The set was not made, and all go on as if nothing had been."""
    expect(result.code == EXIT_STILL_RUNNING, f"{what}: {result.why()}")
    for node in nodes:  # a dead shim is replaced by the next command, which puts right what is left
        wait_until(lambda n=node: n.running()["state"] == "running", f"{what}: {node.name} to run on", 60)
    nodes.go_on()
    wait_until(lambda: not nodes.left(), f"{what}: nothing to be left: {nodes.left()}", 60)


@case
def whoever_is_killed_before_the_decision(bed):
    """The shim, CRIU or the channel of a member, or the coordinator: at each meeting. BRUMATE_TEST_SWEEP=1: of three members."""
    with Nodes(bed, 3 if SWEEP else 2) as nodes:
        nodes.start_ring()
        for options, meetings in (([], ("ready", "idle", "stored")), (["-R"], ("idle", "held", "stored"))):
            save = ["checkpoint", *options, "--name", "never", *nodes.members()]
            for at in meetings:
                nodes.fault(nodes[1], f"checkpoint.at-{at}", "kill")
                expect_unharmed(nodes, f"shim {at} {options}", nodes.set(*save))
                bed.fault(f"set.all-{at}", "kill")
                result = nodes.set(*save)
                expect(result.code == -signal.SIGKILL, result.why())
                result.code = EXIT_STILL_RUNNING
                expect_unharmed(nodes, f"coordinator {at} {options}", result)
                with bed.held_at(f"set.all-{at}", *nodes.set_argv(*save)[1:]) as held:
                    os.kill(channels(nodes)[0], signal.SIGKILL)
                    if at == "stored":  # before it has decided for itself, the set may still be made
                        wait_until(lambda: not nodes.open_decisions(), "the member to give up")
                code, _, err = held.end()
                expect(code == EXIT_STILL_RUNNING, err)
                expect_unharmed(nodes, f"channel {at} {options}", result)
        nodes.fault(nodes[0], "checkpoint.frozen", "kill:criu")
        expect_unharmed(nodes, "CRIU", nodes.set("checkpoint", "--name", "never", *nodes.members()))
        nodes.set_ok("checkpoint", "--name", "never", *nodes.members())
        expect(os.listdir(f"{nodes.store}/.sets") == ["never"], "what dead coordinators left is not swept")


@case
def whoever_is_killed_after_the_decision(bed):
    """The set is complete: all end with it, and come back."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        bed.fault("set.committed", "kill")
        result = nodes.set("checkpoint", "--name", "done", *nodes.members())
        expect(result.code == -signal.SIGKILL, result.why())
        for node in nodes:
            wait_until(lambda n=node: [j["state"] for j in n.jobs("--all")] == ["checkpointed"], "the end of the job", 60)
        nodes.set_ok("restore", "done")
        nodes.go_on()


@case
def whoever_is_killed_while_it_is_restored(bed):
    """Nothing of it is left but what it wrote before its next call of the driver, and the set is as good as before; after the decision
    it is back."""
    with Nodes(bed, 3 if SWEEP else 2) as nodes:
        nodes.start_ring()
        nodes.set_ok("checkpoint", "--name", "kept", *nodes.members())
        saved = [len(node.log().text()) for node in nodes]
        for at in ("ready", "built", "filled"):
            nodes.fault(nodes[1], f"restore.at-{at}", "kill")
            expect(nodes.set("restore", "kept").code == 1, f"shim {at}")
            expect_little_written(nodes, saved, f"shim {at}")
            bed.fault(f"set.all-{at}", "kill")
            result = nodes.set("restore", "kept")
            expect(result.code == -signal.SIGKILL, f"coordinator {at}: {result.why()}")
            expect_little_written(nodes, saved, f"coordinator {at}")
            with bed.held_at(f"set.all-{at}", *nodes.set_argv("restore", "kept")[1:]) as held:
                os.kill(channels(nodes)[0], signal.SIGKILL)
                if at == "filled":  # before it has decided for itself, the set may still come back
                    wait_until(lambda: not nodes.open_decisions(), "the member to give up")
            code, _, err = held.end()
            expect(code == 1, f"channel {at}: {err}")
            expect_little_written(nodes, saved, f"channel {at}")
        for point in ("restore.built", "restore.restored"):
            nodes.fault(nodes[1], point, "kill:criu")
            expect(nodes.set("restore", "kept").code == 1, f"CRIU at {point}")
            expect_little_written(nodes, saved, f"CRIU at {point}")
        bed.fault("set.committed", "kill")
        expect(nodes.set("restore", "kept").code == -signal.SIGKILL, "coordinator after the decision")
        nodes.go_on()


def shim_of(node):
    """Of its one job."""
    job = node.running()["id"]
    found = [pid for pid in node.nodes.processes() if read_text(f"/proc/{pid}/comm") == "brumate-shim\n" and
             job in read_text(f"/proc/{pid}/cmdline") and same_namespace(pid, node.holder.pid)]
    expect(len(found) == 1, f"{node.name}: shims {found}")
    return found[0]


def same_namespace(pid, other):
    return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink(f"/proc/{other}/ns/mnt")


@case
def a_shim_that_is_killed_once_a_restore_is_decided(bed):
    """One that takes over completes it: all is there but for the gates and the connections."""
    for n in (2, 3):
        with Nodes(bed, n) as nodes:
            nodes.start_ring()
            nodes.set_ok("checkpoint", "--name", "kept", *nodes.members())
            with bed.held_at("set.committed", *nodes.set_argv("restore", "kept")[1:]) as held:
                os.kill(shim_of(nodes[1]), signal.SIGKILL)
            code, _, err = held.end()
            expect(code in (0, 1), err)
            for node in nodes:
                # The next command about the job has another shim take over; the member may not have come to that.
                node.cli("kill", "--signal", "URG", node.jobs("--all")[0]["id"])
                wait_until(lambda k=node: k.running()["state"] == "running", f"{node.name} to be back: {err}", 60)
            nodes.go_on()
            again = nodes.set_ok("checkpoint", "-R", "--name", "again", *nodes.members())
            expect(again.out == "again\n", again.why())
        for path in (*(f"{nodes.dir}/{node.name}" for node in nodes), nodes.here, nodes.store):
            shutil.rmtree(path)


def expect_none(nodes, what):
    for node in nodes:
        wait_until(lambda n=node: [j["state"] for j in n.jobs("--all")] == ["checkpointed"], f"{what}: {node.name} to have none", 60)


def expect_little_written(nodes, saved, what):
    """Between CRIU's end and its next call of the driver a restored process runs (docs/states.md): one that was saved when it had taken a
    step and not told so tells it, each time that it is restored. Its log goes on from the checkpoint again."""
    expect_none(nodes, what)
    for node, n in zip(nodes, saved):
        log = node.log()
        log.is_right()
        more = log.text()[n:]
        expect(more.count("\n") <= 1, f"{what}: {node.name} ran on: {more}")
        os.truncate(log.path, n)


@case
def what_is_refused(bed):
    """Before anything is touched, with the reason; all run on."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        members = nodes.members()
        for words, args in (("no node node7", ["node7:ring"]), ("job nosuch", [members[0], "node1:nosuch"]),
                            ("named twice", [members[0], members[0]]), ("name of a set", ["--name", "../x", *members])):
            result = nodes.set("checkpoint", *args)
            expect(result.code and words in result.err, f"{words}: {result.why()}")
        for wrong in (["--name", "../x", *members], [members[0], members[0]]):
            expect(nodes.set("checkpoint", *wrong).code == 2, f"{wrong} is no wrong usage")
        result = nodes.set("restore", "nosuch")
        expect(result.code == 3 and "no set nosuch" in result.err, result.why())
        nodes.go_on()
        nodes.set_ok("checkpoint", "--name", "s", *members)
        alone = nodes[0].cli("restore", "s.0")
        expect(alone.code == 4 and "brumate set restore s" in alone.err, alone.why())
        for text in ("{", "[]", '{"members": []}', '{"members": [{"node": "node0", "checkpoint": "../../etc", "digest": ""}]}',
                     '{"members": [{"node": "node0", "checkpoint": "s.0", "digest": "00"}]}'):
            with open(f"{nodes.store}/.sets/foreign", "w", encoding="utf-8") as file:
                file.write(text)
            foreign = nodes.set("restore", "foreign")
            expect(foreign.code in (1, 9) and "foreign" in foreign.err, f"{text}: {foreign.why()}")
        taken = nodes.set("checkpoint", "--name", "s", "node0:ring")
        expect("exists already" in taken.err, taken.why())
        nodes[0].set_address(9)
        moved = nodes.set("restore", "s")
        expect(moved.code and "assign requested address" in moved.err, moved.why())
        expect_none(nodes, "without its address")
        nodes[0].set_address(1)
        os.unlink(f"{nodes.store}/.sets/foreign")
        nodes.set_ok("restore", "s")
        nodes.go_on()


@case
def what_is_left_without_its_set_is_pruned(bed):
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        for name in ("one", "two"):
            nodes.set_ok("checkpoint", "-R", "--name", name, *nodes.members())
        prune = ("prune", "--keep-last", "5")
        expect(nodes[1].ok(*prune).out == "", "it is of a set")
        os.unlink(f"{nodes.store}/.sets/one")
        expect(sorted(nodes[1].ok(*prune).out.split()) == ["one.0", "one.1"], "it is not garbage")
        nodes.set_ok("rm", "two")
        expect(not nodes.left(), nodes.left())
        nodes.go_on()


@case
def a_store_that_is_full_on_one_node(bed):
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        for options in ([], ["-R"]):
            for point in ("store.pack-write", "store.sync-file", "store.write-manifest"):
                nodes.fault(nodes[1], point, f"error:{errno.ENOSPC}")
                full = nodes.set("checkpoint", *options, "--name", "full", *nodes.members())
                expect("member node1:" in full.err and os.strerror(errno.ENOSPC) in full.err, full.why())
                expect_unharmed(nodes, f"{point} {options}", full)


@case
def a_shim_that_stands_still(bed):
    """All others run on once the time is over, and so does its job, before it goes on itself and after. It may stop a little later, but
    not before the next meeting."""
    with Nodes(bed, 2) as nodes:
        nodes.start_ring()
        for at in ("ready", "idle"):
            nodes.fault(nodes[1], f"checkpoint.at-{at}", "stop")
            late = nodes.set("checkpoint", "--timeout", "2s", "--name", "never", *nodes.members(), timeout=30)
            stopped = int(read_text(f"{nodes.dir}/node1/fault.stopped"))
            try:
                expect(late.code in (EXIT_STILL_RUNNING, EXIT_TIMEOUT) and "member node1:" in late.err, f"{at}: {late.why()}")
                nodes.go_on()
            finally:
                os.kill(stopped, signal.SIGCONT)
                os.unlink(f"{nodes.dir}/node1/fault.stopped")
            late.code = EXIT_STILL_RUNNING
            expect_unharmed(nodes, f"shim stopped {at}", late)


@case
def clocks_minutes_apart(bed):
    with Nodes(bed, 2) as nodes:
        nodes.own.update(BRUMATE_TEST_CLOCK=f"{nodes.here}/clock", LD_PRELOAD=os.path.join(bed.build.path, "tests", "programs", "libclock.so"))
        nodes.write_on()
        for node, seconds in zip(nodes, (-600, 600)):
            with open(f"{nodes.dir}/{node.name}/clock", "w", encoding="utf-8") as file:
                file.write(str(seconds))
        times = [int(run([nodes.on, node.name, "date", "+%s"]).out) for node in nodes]
        expect(times[1] - times[0] > 1000, f"this test proves nothing: the clocks say {times}")
        nodes.start_ring()
        nodes.set_ok("checkpoint", "--name", "one", *nodes.members())
        nodes.set_ok("restore", "one")
        nodes.go_on()
        nodes.set_ok("checkpoint", "-R", "--name", "two", *nodes.members())
        for node in nodes:
            expect(node.ok("prune", "--keep-last", "5").out == "", "it is of a set")
            expect(node.ok("prune", "--leftovers").out == "0\n", "it is a leftover")
        nodes.go_on()
        nodes.forget()
        nodes.set_ok("restore", "two")
        nodes.go_on()
        nodes.set_ok("rm", "one")
        nodes.set_ok("rm", "two")
        expect(not nodes.left(), nodes.left())


def phase(summary, name):
    return next(p for p in summary["phases"] if p["name"] == name)


def dump_alone(node):
    """How long CRIU takes for one member that waits for no other."""
    saved = json.loads(node.ok("checkpoint", "-R", "--force", "--format", "json", node.running()["id"]).out)["summary"]
    node.ok("rm", "--checkpoint", saved["checkpoint"])
    return phase(saved, "criu")["seconds"]


def locked(result):
    """From when the first connection of a set may be held until the last is released."""
    members = [m["summary"] for m in json.loads(result.out)["members"]]
    return max(phase(m, "let-go")["start"] for m in members) - min(phase(m, "criu")["start"] for m in members)


@case
def twenty_times(bed):
    """On the same nodes, exchanged, one killed after -R: no byte is lost, doubled or of another time. How long the network stands still
    where the set goes on; with BRUMATE_TEST_SWEEP=1, when nothing else runs, that is limited."""
    with Nodes(bed, 3) as nodes:
        nodes.start_ring(interval_ms=25)
        dump, held = max(dump_alone(node) for node in nodes), []
        for turn in range(20):
            name, goes_on = f"t{turn}", turn % 4 == 3
            saved = nodes.set_ok("checkpoint", *(["-R"] if goes_on else []), "--format", "json", "--name", name, *nodes.members())
            where = []
            if goes_on:
                held.append(locked(saved))
                nodes.go_on(1)
                nodes.forget()
            elif turn % 2:
                nodes.exchange()
                where = [f"node{(k + 1) % 3}=node{k}" for k in range(3)]
            nodes.set_ok("restore", name, *where)
            nodes.go_on(2)
            nodes.set_ok("rm", name)
        expect(not nodes.left() and not nodes.open_decisions(), "something is left in the store")
        bed.note(f"the network was locked for {', '.join(f'{s:.2f}' for s in held)} s; the longest dump alone takes {dump:.2f} s")
        if SWEEP:
            expect(max(held) <= 1.5 * dump, f"locked for {max(held):.2f} s, and the longest dump takes {dump:.2f} s")


FAKE = """#!/bin/sh
# A member: it comes to each meeting at once.
read -r order
for at in ready built filled; do
	echo "{\\"at\\": \\"$at\\"}"
	read -r go
done
echo '{"done": {}}'
"""


@case
def sixty_four_members(bed):
    """What the coordinator itself takes: the members are scripts, which do nothing. And one that says nothing, or nonsense."""
    n, fake, sets = 64, f"{bed.dir}/fake", f"{bed.store()}/.sets"
    with open(fake, "w", encoding="utf-8") as file:
        file.write(FAKE)
    os.chmod(fake, 0o700)
    job, log = bed.counter(mib=1, chunk_mib=1)
    bed.ok("set", "checkpoint", "-R", "--name", "one", job)  # of this node alone
    with open(f"{sets}/one", encoding="utf-8") as file:
        first = json.load(file)["members"][0]
    manifest, members = manifest_of(bed, first["checkpoint"]), []
    for k in range(n):
        other = sealed(manifest | {"id": f"many.{k}", "set": "many"})
        shutil.copytree(image(bed, first["checkpoint"]), image(bed, other["id"]))
        with open(os.path.join(image(bed, other["id"]), "manifest.json"), "w", encoding="utf-8") as file:
            json.dump(other, file)
        members.append({**first, "node": f"n{k}", "checkpoint": other["id"], "digest": other["digest"]})
    with open(f"{sets}/many", "w", encoding="utf-8") as file:
        json.dump({"set": "many", "members": members}, file)
    result = bed.cli("set", "restore", "many", "--via", fake)
    expect(result.code == 0, result.why())
    with bed.held_at("set.done", "set", "restore", "many", "--via", fake) as held:
        own = sum(map(int, read_text(f"/proc/{held.process.pid}/stat").rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    expect(held.end()[0] == 0, "it failed")
    bed.note(f"64 members: {result.seconds:.3f} s, of these {own:.2f} s of the coordinator's own")
    expect(own <= 0.5, f"the coordinator itself took {own} s")
    for words, script in (("was not ready in time", "cat >&2"), ("what no member does", "echo hello; exec sleep infinity"),
                          ("the command that speaks for it exited with 3: no route to that node",
                           "echo look at this >&2; echo no route to that node >&2; exit 3"),
                          ("its channel has ended: by signal 9", "kill -KILL $$")):
        with open(fake, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        late = "time" in words
        bed.refused(124 if late else 1, words, "set", "restore", "many", "--via", fake, "--timeout", "2s" if late else "60s")
    bed.expect_whole(job, log)


@case
@as_user
def of_a_user_without_root(bed):
    """Jobs without connections are a set as root's are; those with are refused before anything is touched, with what an administrator can do."""
    jobs = [bed.counter(f"count{k}", mib=4, chunk_mib=4) for k in range(2)]
    names = [f"count{k}" for k in range(2)]
    bed.ok("set", "checkpoint", "-R", "--name", "on", *names)
    for job, log in jobs:
        bed.expect_whole(job, log)
    bed.ok("set", "checkpoint", "--name", "off", *names)
    bed.ok("set", "restore", "off")
    for job, log in jobs:
        bed.expect_whole(job, log)


def user_ring(bed, n):
    """(names, logs) of jobs that are connected to each other."""
    names, logs = [f"ring{k}" for k in range(n)], [Log(os.path.join(bed.dir, f"ring{k}.log")) for k in range(n)]
    place = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # nobody else's rings are there
    ips = ",".join(f"{place}.{k + 1}" for k in range(n))
    for k, name in enumerate(names):
        bed.ok("run", "--name", name, "--log", logs[k].path, "--", bed.program("ring"), "--mib", 4, "--interval-ms", 2, f"{k}:{n}:{ips}")
    for log in logs:
        log.wait_for("step")
    return names, logs


def end_ring(bed):
    """Of two."""
    bed.end("ring0")
    expect(bed.cli("wait", "ring1").code == 3, "the other rank does not find its connection closed")


@case
@as_user
def connections_of_a_user(bed):
    """Drained and made anew by each member: no byte is lost, doubled or of another time. One to others is refused before anything is
    touched, and a member comes back alone only without its connections."""
    names, logs = user_ring(bed, 3)
    for options in ([], ["--tcp-close"]):
        refused = bed.cli("set", "checkpoint", *options, "--name", "ring", *names[:2])
        expect(refused.code == 4 and "is connected to 127." in refused.err and "only root" in refused.err, refused.why())
    for turn in range(6):
        goes_on = turn % 3 == 2
        for log in logs:
            log.goes_on(3)
        bed.ok("set", "checkpoint", *(["-R"] if goes_on else []), "--name", f"t{turn}", *names)
        if goes_on:
            for log in logs:
                log.goes_on(3)
        else:
            bed.ok("set", "restore", f"t{turn}")
    for log in logs:
        log.goes_on(3)
    bed.ok("set", "checkpoint", "--name", "last", *names)
    alone = bed.cli("restore", "last.0")
    expect(alone.code == 4 and "brumate set restore last" in alone.err, alone.why())
    bed.ok("restore", "--tcp-close", "last.0")
    logs[0].wait_for("ERR the connection ended")


@case
@as_user
def whoever_of_a_user_is_killed(bed):
    """While connections are drained, and made anew."""
    names, logs = user_ring(bed, 2)
    for point in ("checkpoint.at-frozen", "checkpoint.connected", "checkpoint.at-drained", "set.all-frozen", "set.all-drained"):
        for log in logs:
            log.goes_on(2)
        bed.fault(point, "kill")
        failed = bed.cli("set", "checkpoint", "--name", "never", *names, timeout=60)
        expect(failed.code in (EXIT_STILL_RUNNING, -signal.SIGKILL) and bed.has_fired(), f"{point}: {failed.why()}")
        for name in names:
            bed.wait_state(name, ("running",))
        for log in logs:
            log.goes_on(2)
    bed.ok("set", "checkpoint", "--name", "kept", *names)
    for point in ("restore.at-ready", "restore.connected", "restore.built"):
        bed.fault(point, "kill")
        failed = bed.cli("set", "restore", "kept", timeout=60)
        expect(failed.code == 1 and bed.has_fired(), f"{point}: {failed.why()}")
        for name in names:
            bed.wait_state(name, ("checkpointed",))
    bed.ok("set", "restore", "kept")
    for log in logs:
        log.goes_on(3)
    end_ring(bed)


@case
@as_user
def a_member_whose_process_id_is_taken_for_a_moment(bed):
    """After the look at it: CRIU is tried again, with the connections of which the other member has the other ends by then."""
    names, logs = user_ring(bed, 2)
    pids = [bed.pid(name) for name in names]
    bed.ok("set", "checkpoint", "--name", "again", *names)

    def missing():
        return [pid for pid in pids if not os.path.exists(f"/proc/{pid}")]
    with bed.held_at("restore.spawned", "set", "restore", "--timeout", "60s", "again") as restore:
        wait_until(lambda: len(missing()) == 1, "the other member to be built")
        squatter = bed.take_pid(*missing())
        bed.fault("restore.taken", "hold")
    with bed.holding("restore.taken", restore):
        squatter.end()
    code, _, err = restore.end()
    expect(code == 0, f"exit {code}: {err}")
    for log in logs:
        log.goes_on(3)
    end_ring(bed)


@case
def what_a_launcher_says(bed):
    """Its last line is the reason, whatever it leaves behind to hold its stderr; what it says of a member that is well is passed on."""
    fake, pid = f"{bed.dir}/fake", f"{bed.dir}/pid"
    with open(fake, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ncase $1 in\nlost) echo known hosts >&2; echo no such host >&2; sleep infinity >&- <&- & echo $! >{pid}; exit 255 ;;\n"
                   f"esac\necho a banner >&2\nexec {bed.brumate} set member\n")
    os.chmod(fake, 0o700)
    job, log = bed.counter(mib=1, chunk_mib=1)
    done = bed.ok("set", "checkpoint", "-R", "--timeout", "0", "--via", f"{fake} %n", "--name", "one", f"well:{job}")
    expect(done.err == "well: a banner\n", done.err)
    try:
        lost = bed.refused(EXIT_STILL_RUNNING, "member lost:job: its channel has ended: the command that speaks for it exited with 255: no such host",
                           "set", "checkpoint", "--via", f"{fake} %n", "lost:job")
    finally:
        os.kill(int(read_text(pid)), signal.SIGKILL)
    expect(lost.err.startswith("lost: known hosts\n"), lost.err)
    missing = bed.cli("set", "checkpoint", "--via", "/no/such/launcher", "far:job")
    expect("exited with 127: /no/such/launcher: No such file" in missing.err, missing.why())
    bed.expect_whole(job, log)


@case
def members_of_root_and_of_a_user(bed):
    """The two save connections in different ways: refused before anything stands still, in either order."""
    fake, store = (os.path.join(bed.dir, name) for name in ("fake", "store-of-sets"))
    with open(fake, "w", encoding="utf-8") as file:
        file.write(r"""#!/bin/sh
read -r order
test $1 = user && printf '%s\n' '{"connections":"drained\n"}'
echo '{"at":"ready"}'
cat >/dev/null
echo '{"failed":{"code":125,"message":"cancelled"}}'
""")
    os.chmod(fake, 0o755)
    for members in (("root:one", "user:two"), ("user:two", "root:one")):
        refused = bed.refused(4, "of some members root saves the connections, of others a user", "set", "checkpoint", "--dir", store, "--via", f"{fake} %n",
                              "--timeout", "30s", "--name", "never", *members)
        expect("save jobs of one user as a set" in refused.err, refused.why())
    expect(os.listdir(f"{store}/.sets") == [], "a record is left")


@case
def a_node_that_is_cut_off(bed):
    """Nobody closes the channel of a coordinator that has gone: the member gives up by itself once the time is over."""
    fake, pid, store = (os.path.join(bed.dir, name) for name in ("fake", "pid", "store-of-sets"))
    with open(fake, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\ntest $1 = near && exec {bed.brumate} set member\n"
                   f"sh -c 'cat; echo $$ >{pid}; exec sleep infinity' | {bed.brumate} set member\n")
    os.chmod(fake, 0o700)
    via = ("--dir", store, "--via", f"{fake} %n", "--timeout", "3s")
    job, log = bed.counter(mib=4, chunk_mib=4)

    def cut_off(point, *args):
        bed.fault(point, "kill")
        gone = bed.cli("set", *args)
        while gone.code == EXIT_TIMEOUT:  # on a busy machine: its channel is ended, too
            gone = bed.cli("set", *args)
        expect(gone.code == -signal.SIGKILL, f"{point}: {gone.why()}")
        wait_until(lambda: os.path.exists(pid) and read_text(pid), "what holds the channel")

    def reconnect():
        os.kill(int(read_text(pid)), signal.SIGKILL)
        os.unlink(pid)

    for point in ("set.all-idle", "set.all-held"):
        cut_off(point, "checkpoint", "-R", *via, "--name", "never", f"far:{job}")
        bed.wait_state(job, ("running",))
        log.goes_on()
        reconnect()
    bed.ok("set", "checkpoint", *via, "--name", "kept", f"near:{job}")
    cut_off("set.all-filled", "restore", *via, "kept", "near=far")
    bed.wait_state(job, ("checkpointed",))
    reconnect()
    again = LaterLog(log.path)
    again.begin_here()
    bed.ok("set", "restore", *via, "kept")
    again.goes_on()


@case
def a_member_that_talks_for_ever(bed):
    """What always has something to say is no reason to wait beyond the time, nor for others to stand still."""
    fake, heard, store = (os.path.join(bed.dir, name) for name in ("fake", "heard", "store-of-sets"))
    with open(fake, "w", encoding="utf-8") as file:
        file.write(f"""#!/bin/sh
read order
test $1 = loud && exec yes '{{"at":"nowhere"}}'
echo '{{"at":"ready"}}'
cat >/dev/null
echo given up >{heard}
echo '{{"failed":{{"code":125,"message":"cancelled"}}}}'
""")
    os.chmod(fake, 0o755)
    bed.refused(EXIT_STILL_RUNNING, "member loud:two: its channel says what no member does", "set", "checkpoint", "--dir", store, "--via", f"{fake} %n", "--timeout", "30s",
                "--name", "never", "quiet:one", "loud:two")
    expect(os.path.exists(heard), "the other member was not told")
    expect(os.listdir(f"{store}/.sets") == [], "a record is left")


# A member, or a record, that is not what it should be.

HOSTILE = """#!/usr/bin/env python3
import fcntl, json, os, sys, time
kind = sys.argv[1]
order = sys.stdin.buffer.raw.readline()
def say(**line):
    os.write(1, json.dumps(line).encode() + b"\\n")
if kind == "stays":  # with all that it has of the channel closed
    say(failed={"code": 5, "text": "mine"})
    os.close(0)
    os.close(1)
    time.sleep(600)
elif kind == "connected":
    while True:
        say(connections=("open 10.0.0.1:1 10.0.0.2:2 process 1\\n" * 700))
elif kind == "deaf":  # its stdin has no room left for another word
    full = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(full, b"x" * 512)
    except BlockingIOError:
        pass
    say(at="ready")
    time.sleep(600)
elif kind == "paints":
    os.write(2, b"\\033]0;owned\\007\\xc2\\x9b2J\\xe2\\x80\\xae\\nlast\\n")
    say(failed={"code": 5, "text": "\\033[31mred"})
"""


@case
def members_that_are_hostile(bed):
    """None of them keeps the coordinator, its memory, or its terminal."""
    fake, store = (os.path.join(bed.dir, name) for name in ("hostile", "store-of-sets"))
    with open(fake, "w", encoding="utf-8") as file:
        file.write(HOSTILE)
    os.chmod(fake, 0o755)

    def refused(kind, code, words):
        begun = time.monotonic()
        done = bed.refused(code, words, "set", "checkpoint", "--dir", store, "--via", f"{fake} %n", "--timeout", "20s", "--name", "never", f"{kind}:one", timeout=60)
        expect(time.monotonic() - begun < 30, f"{kind}: it took {time.monotonic() - begun:.0f} s")
        return done

    refused("stays", EXIT_STILL_RUNNING, "member stays:one: mine")
    refused("deaf", EXIT_STILL_RUNNING, "its channel does not read what it is told")
    # What it may take is little enough that an address space of 512 MiB does.
    limited = run(["sh", "-c", f"ulimit -v {512 << 10}; exec {bed.brumate} set checkpoint --dir {store} --via '{fake} %n' --timeout 60s --name never connected:one"],
                  env=bed.command_env(), timeout=90)
    expect(limited.code == EXIT_STILL_RUNNING and "there is no room for all that it is connected to" in limited.err, limited.why())
    painted = refused("paints", EXIT_STILL_RUNNING, "member paints:one")
    expect("\x1b" not in painted.err and "\u009b" not in painted.err and "\u202e" not in painted.err, repr(painted.err))
    expect("paints: ?" in painted.err, f"what it said is not shown: {painted.err!r}")


@case
def records_that_are_forged(bed):
    """A record names nodes, which a launcher takes for words of its command, and checkpoints: it is of who restores it, or of root."""
    fake, went = os.path.join(bed.dir, "fake"), os.path.join(bed.dir, "went")
    with open(fake, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\necho "$1" >>{went}\nshift\nexec {bed.brumate} set member\n')
    os.chmod(fake, 0o755)
    store = os.path.join(bed.dir, "store-of-sets")
    job, log = bed.counter(mib=1, chunk_mib=1)
    via = ("--dir", store, "--via", f"{fake} %n")
    bed.refused(EXIT_USAGE, "a node begins with a letter", "set", "checkpoint", *via, "--name", "one", "--", f"-oProxyCommand=x:{job}")
    bed.ok("set", "checkpoint", *via, "--name", "one", f"well:{job}")
    path = os.path.join(store, ".sets", "one")
    record = json.loads(read_text(path))
    os.unlink(went)

    def forged(change, code, words):
        other = json.loads(json.dumps(record))
        change(other["members"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump(other, file)
        bed.refused(code, words, "set", "restore", *via, "one")
        expect(not os.path.exists(went), "a member was started")

    forged(lambda members: members[0].update(node="-oProxyCommand=touch here"), EXIT_BAD_IMAGE, "a node begins with a letter")
    forged(lambda members: members.extend(members * 3), EXIT_BAD_IMAGE, "twice")
    forged(lambda members: members[0].update(checkpoint="../../etc"), EXIT_BAD_IMAGE, "names no checkpoint")
    forged(lambda members: members[0].update(digest="sha256:" + 64 * "0"), EXIT_BAD_IMAGE, "is not the one that the set was made of")
    forged(lambda _: os.chmod(path, 0o622), EXIT_PERMISSION, "users other than its owner may write to it")
    os.chmod(path, 0o600)
    forged(lambda _: os.chmod(os.path.dirname(path), 0o777), EXIT_PERMISSION, "users other than its owner may write to it")
    os.chmod(os.path.dirname(path), 0o700)
    if os.getuid() == 0:
        forged(lambda _: os.chown(path, 60000, 60000), EXIT_PERMISSION, "belongs to uid 60000")
        os.chown(path, 0, 0)
    os.rename(path, path + ".aside")
    os.mkfifo(path)
    bed.refused(EXIT_BAD_IMAGE, "not the record of a set", "set", "restore", *via, "one", timeout=20)
    os.unlink(path)
    os.symlink(path + ".aside", path)
    bed.refused(EXIT_BAD_IMAGE, "not the record of a set", "set", "restore", *via, "one", timeout=20)
    os.unlink(path)
    os.rename(path + ".aside", path)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)
    bed.ok("set", "restore", *via, "one")
    log.goes_on()


LIARS = """#!/usr/bin/env python3
import json, os, sys, time
kind = open(sys.argv[2]).read()
order = json.loads(sys.stdin.buffer.raw.readline())
def say(text):
    os.write(1, text.encode() + b"\\n")
if kind == "done at once":
    say('{"done": {"checkpoint": "x"}}')
elif kind == "done with nothing":
    say('{"done": null}')
elif kind == "fails with nothing":
    say('{"failed": {"code": -1, "exit": 0, "text": 7, "hint": ["x"]}}')
elif kind == "deep":
    say("[" * 100000)
elif kind == "another type":
    say('{"at": {"x": 1}}')
elif kind == "twice":
    say('{"at": "ready", "at": "filled"}')
elif kind == "no line":
    while True:
        os.write(1, b"x" * 65536)
else:
    say('{"at": "filled"}')  # of those to come: it is not there yet
    sys.stdin.buffer.raw.read(1)  # until it is given up
    sys.exit()
time.sleep(600)
"""


@case
def restores_that_are_hostile(bed):
    """Maps of GPUs that are none, and members that say what none does: the set is refused, in time, and as good as before. One that stays
    silent: members_that_are_hostile()."""
    fake, liars, kind, went = (os.path.join(bed.dir, name) for name in ("fake", "liars", "kind", "went"))
    for path, text in ((fake, f'#!/bin/sh\necho "$1" >>{went}\nshift\nexec {bed.brumate} set member\n'), (liars, LIARS)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
    store = os.path.join(bed.dir, "store-of-sets")
    job, log = bed.counter(mib=1, chunk_mib=1)
    bed.ok("set", "checkpoint", "--dir", store, "--via", f"{fake} %n", "--name", "one", f"well:{job}")
    os.unlink(went)

    def refused(words, *options, code=EXIT_USAGE, via=fake):
        begun = time.monotonic()
        done = bed.refused(code, words, "set", "restore", "--dir", store, "--via", via, *options, "one", timeout=90)
        expect(time.monotonic() - begun < 60, f"{options}: it took {time.monotonic() - begun:.0f} s")
        expect(not set(done.err) & set("\x1b\u009b\u202e"), f"{done.err!a}")
        bed.expect_state(job, "checkpointed")

    for gpu_map in ("", "=", "0", "0=", "=0", "0=1,", ",0=1", "0=1=2", "0=-1", "-1=0", "0x1=0", "0=1024", "0=99999999999999999999", "0=\u0661", "0 =1", "GPU-=0",
                    "GPU-" + 60 * "a" + "=0", "GPU-\x1b[2J=0", "GPU-../../etc=0", "MIG-\u202e=0", "0=1,0=1", "0=1," * 20000 + "0=1"):
        refused("is not OLD=NEW|is mapped twice|the value is empty", f"--gpu-map={gpu_map}")
    expect(not os.path.exists(went), "a member was started")
    for gpu_map in ("0=7", "0=1,1=1", "0=1,00=0", "GPU-00000000-0000-0000-0000-000000000000=0", "0=GPU-00000000-0000-0000-0000-000000000000",
                    ",".join(f"{n}=0" for n in range(1024))):
        refused(".", f"--gpu-map={gpu_map}", via=f"{fake} %n")
    for what, code, words in (("done at once", EXIT_FAILED, "member"), ("done with nothing", EXIT_FAILED, "member"), ("fails with nothing", EXIT_FAILED, "the peer failed"),
                              ("deep", EXIT_FAILED, "says what no member does"), ("another type", EXIT_FAILED, "says what no member does"),
                              ("twice", EXIT_FAILED, "says what no member does"), ("no line", EXIT_FAILED, "its channel has ended"),
                              ("ahead", EXIT_TIMEOUT, "was not ready in time")):
        with open(kind, "w", encoding="utf-8") as file:
            file.write(what)
        refused(words, "--timeout", "5s", code=code, via=f"{liars} %n {kind}")
    bed.ok("set", "restore", "--dir", store, "--via", f"{fake} %n", "one")
    log.goes_on()


if __name__ == "__main__":
    main()
