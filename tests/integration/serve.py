#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate serve`: servers that nobody asks leave their GPU, and come back when they are asked."""

import json
import os
import random
import re
import signal
import threading

from cases import as_user, case, expect, main, wait_until
from harness import Skipped
from servers import Server

IDLE = ("serve", "--idle-after", "2s")


def events(bed, kind):
    lines = [json.loads(line) for line in bed.cli("events", "--format", "json").out.splitlines()]
    return [e for e in lines if e["event"] == kind]


def gone(*servers):
    wait_until(lambda: all(s.state() == "suspended" for s in servers), "all to be suspended", 60)


@case
def who_is_not_asked_leaves(bed):
    """And comes back; why it left is in the events."""
    servers = [Server(bed, f"model{i}", mib=16) for i in range(2)]
    serve = bed.spawn(*IDLE)
    for _ in range(2):
        gone(*servers)
        for s in servers:
            s.health()
            s.ask()
    gone(*servers)
    serve.signal(signal.SIGTERM)
    code, out, err = serve.end()
    expect(code == 0 and not out and "not asked for" in err, f"{code} {out!r} {err!r}")
    found = events(bed, "decided")
    expect(len(found) >= 6 and all(e["by"] == "serve" and e["what"] == "suspend" and "not asked for" in e["reason"] for e in found), found)


@case
@as_user
def of_a_user(bed):
    it = Server(bed, "model", mib=16)
    bed.spawn(*IDLE)
    gone(it)
    it.ask()


@case
def who_is_asked_stays(bed):
    it = Server(bed, "model", mib=16)
    other = Server(bed, "other", mib=16)
    is_over, failed = threading.Event(), []

    def keep_asking():  # beside what takes its time on a busy machine
        try:
            while not is_over.wait(0.1):
                it.ask()
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)
    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        bed.spawn(*IDLE)
        gone(other)
        again = Server(bed, "again", mib=16)
        gone(again)  # by then it would have been idle for twice as long
    finally:
        is_over.set()
        asking.join(60)
    expect(not failed and not asking.is_alive(), failed)
    expect(not [e for e in events(bed, "decided") if e["job"] == it.job], "one that is in use was to leave")


@case
def who_is_meant(bed):
    """Neither pinned ones, nor those of other labels, nor those that nothing would bring back."""
    pinned = Server(bed, "pinned", mib=16, options=("--wake", "--label", "brumate.pin=yes", "--label", "tier=free"))
    other = Server(bed, "other", mib=16, options=("--wake", "--label", "tier=paid"))
    asleep_for_ever = Server(bed, "plain", mib=16, options=("--label", "tier=free"))
    it = Server(bed, "it", mib=16, options=("--wake", "--label", "tier=free"))
    bed.spawn(*IDLE, "--label", "tier=free")
    gone(it)
    again = Server(bed, "again", mib=16, options=("--wake", "--label", "tier=free"))
    gone(again)  # by then the others have been idle for longer
    expect([s.state() for s in (pinned, other, asleep_for_ever)] == ["running"] * 3, "one left that was not meant")


@case
def what_the_configuration_says(bed):
    """Of all of them, and of one by its name, read again at each look."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Serve]\nIdleAfter=2s\n[Serve pinned]\nPin=yes\n[Serve slow]\nIdleAfter=1h\n")
    pinned, slow, it = (Server(bed, name, mib=16) for name in ("pinned", "slow", "it"))
    bed.spawn("serve")
    gone(it)
    again = Server(bed, "again", mib=16)
    gone(again)  # by then the others have been idle for longer
    expect(pinned.state() == slow.state() == "running", "one left that was to stay")
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Serve]\nIdleAfter=2s\n")
    gone(pinned, slow)


@case
def what_it_would_do(bed):
    it = Server(bed, "model", mib=16)
    said = wait_until(lambda: bed.cli(*IDLE, "--dry-run").out, "it to be idle")
    expect(re.fullmatch(r"model\tnot asked for [\d.]+ s, which is 2.0 s or more; first\n", said), said)
    expect(it.state() == "running", "it was suspended")
    bed.refused(2, "2 s or more", "serve", "--idle-after", "1s")
    bed.refused(2, "label", "serve", "--label", "x")
    table = bed.cli("ps", "--columns", "name,idle").out.splitlines()
    expect(re.fullmatch(r"model +\d+s", table[1]), table)


@case
def it_is_killed(bed):
    """At any moment: another one goes on, and no job is lost."""
    servers = [Server(bed, f"model{i}", mib=16) for i in range(2)]
    for point in ("suspend.park.begin", "suspend.settle.begin"):
        bed.fault(point, "hold")
        serve = bed.spawn(*IDLE)
        with bed.holding(point, serve):
            os.kill(serve.process.pid, signal.SIGKILL)
            serve.end()
        other = bed.spawn(*IDLE)
        gone(*servers)
        other.signal(signal.SIGTERM)
        other.end()
        for s in servers:
            s.ask()
            s.settle()


@case
def what_fails_is_tried_again(bed):
    it = Server(bed, "model", mib=16)
    bed.fault("suspend.park.begin", "error:5")
    bed.spawn(*IDLE)
    wait_until(bed.has_fired, "it to fail")
    it.ask()
    gone(it)
    it.ask()


def limit_memory(bed, limit):
    with open(bed.own.setdefault("BRUMATE_CONFIG", os.path.join(bed.dir, "serve.conf")), "w", encoding="utf-8") as file:
        file.write(f"[Serve]\nIdleAfter=2s\nMemory={limit}\n")


@case
def beyond_memory_they_go_to_disk(bed):
    """The one that sleeps the longest first; who is asked comes back from there, and only the last checkpoint of each is kept."""
    limit_memory(bed, "40M")
    servers = [Server(bed, f"model{i}", mib=16) for i in range(3)]
    for s in servers:
        s.ask()
    serve = bed.spawn("serve")
    for _ in range(2):
        wait_until(lambda: sorted(s.state() for s in servers) == ["checkpointed", "suspended", "suspended"], "one to go to disk", 60)
        next(s for s in servers if s.state() == "checkpointed").ask()
    wait_until(lambda: sorted(s.state() for s in servers) == ["checkpointed", "suspended", "suspended"], "one to go to disk", 60)
    limit_memory(bed, "1M")
    wait_until(lambda: all(s.state() == "checkpointed" for s in servers), "all to go to disk", 60)
    for s in servers:
        s.ask()
    serve.signal(signal.SIGTERM)
    serve.end()
    kept = json.loads(bed.cli("ls", "--format", "json").out)["checkpoints"]
    expect(len(kept) == 3 and all("-asleep-" in c["id"] for c in kept), kept)
    found = [e for e in events(bed, "decided") if e["what"] == "checkpoint"]
    expect(len(found) >= 5 and all("longest" in e["reason"] for e in found), found)


@case
@as_user
def of_a_user_they_go_to_disk(bed):
    limit_memory(bed, "1M")
    it = Server(bed, "model", mib=16)
    bed.spawn("serve")
    for _ in range(2):
        wait_until(lambda: it.state() == "checkpointed", "it to go to disk", 60)
        it.ask()


@case
def killed_while_one_goes_to_disk(bed):
    """Neither it nor its port is lost, whoever is killed."""
    limit_memory(bed, "1M")
    it = Server(bed, "model", mib=16)
    it.ask()
    for point in ("checkpoint.preflight.begin", "checkpoint.end.begin"):
        bed.fault(point, "hold")
        serve = bed.spawn("serve")
        with bed.holding(point, serve):
            os.kill(serve.process.pid, signal.SIGKILL)
            serve.end()
        it.ask()
        other = bed.spawn("serve")
        wait_until(lambda: it.state() == "checkpointed", "it to go to disk", 60)
        bed.kill_shim(it.job)
        wait_until(lambda: bed.shim(it.job), "another shim", 60)  # serve has looked
        it.ask()
        other.signal(signal.SIGTERM)
        other.end()


def under_load(bed, n_servers, mib, room_mib, n_requests, n_clients):
    """Requests by Zipf's law: none lost, none answered wrongly, nobody left waiting, with servers that leave because they are idle and
    others that leave for want of room; each decision has its reason. How long each answer took."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = str(room_mib)
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Run]\nMinResident=300ms\n")
    servers = [Server(bed, f"model{i}", mib=mib) for i in range(n_servers)]
    bed.spawn(*IDLE)
    chance = random.Random(34)
    chosen = chance.choices(servers, [1 / (k + 1) for k in range(len(servers))], k=n_requests)
    took, failed, asked = [], [], iter(chosen)
    lock = threading.Lock()

    def client():
        try:
            while True:
                with lock:
                    it = next(asked, None)
                if it is None:
                    return
                took.append(it.ask())
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(n_clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(240 + 4 * n_requests)
    expect(not failed and not any(t.is_alive() for t in threads), f"{failed}")
    expect([s.steps for s in servers] == [chosen.count(s) for s in servers], "answers are lost")
    expect(max(took) < 60, f"one waited for {max(took):.1f} s")
    for s in servers:  # those that chance has not chosen, too
        s.ask()
    gone(*servers)
    found = {kind: events(bed, kind) for kind in ("leave", "decided", "wake")}
    expect(all(found.values()), "nobody left")
    expect(all(e["reason"] for kind in ("leave", "decided") for e in found[kind]), "one left without a reason")
    return sorted(took), {kind: len(those) for kind, those in found.items()}


@case
def twelve_under_load_on_a_gpu_for_four(bed):
    under_load(bed, 12, 48, 256, 60, 3)


@case
def fifty_under_load_on_a_gpu_for_four(bed):
    """By hand (BRUMATE_TEST_SWEEP=1); says how long answers took."""
    if not os.environ.get("BRUMATE_TEST_SWEEP"):
        raise Skipped("takes minutes: BRUMATE_TEST_SWEEP=1")
    took, counted = under_load(bed, 50, 16, 96, 400, 4)
    shares = {share: took[int(share * (len(took) - 1))] for share in (0.5, 0.9, 0.99, 1)}
    print(f"{len(took)} requests to 50 servers: {counted}, seconds: {shares}", flush=True)


if __name__ == "__main__":
    main()
