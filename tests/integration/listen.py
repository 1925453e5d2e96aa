#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A server that is on disk (`checkpoint --wake`) has its ports held: who connects has it restored, and is answered."""

import json
import socket

from cases import as_user, case, expect, main, wait_until
from servers import Connection, Server


def events(bed, kind):
    lines = [json.loads(line) for line in bed.cli("events", "--format", "json").out.splitlines()]
    return [e for e in lines if e["event"] == kind]


def save(bed, it, *options):
    """To disk, with its ports held."""
    it.suspend()
    kept = bed.operation("checkpoint", it.job, "--wake", *options)
    expect(it.state() == "checkpointed", it.state())
    return kept


def is_reset(c):
    try:
        return c.socket.recv(1) == b""
    except ConnectionError:
        return True


@case
def who_connects_is_answered(bed):
    it = Server(bed, "model", mib=16)
    it.ask()
    for _ in range(3):
        save(bed, it)
        job = bed.job(it.job)
        expect(job["ports"] == f"127.0.0.1:{it.port}" and not any(bed.vram()), job)
        expect(job["pid"] is None, "it is not gone")
        it.ask()
        it.settle()
        expect(bed.job(it.job)["ports"] is None, "its ports are still held")
        it.ask()
    def woken():
        return [e for e in events(bed, "wake") if e["call"] == "connect"]
    wait_until(lambda: len(woken()) >= 3, "the last wake to be told")
    expect(len(woken()) == 3 and all(e["address"] == f"127.0.0.1:{it.port}" for e in woken()), woken())


@case
@as_user
def of_a_user(bed):
    it = Server(bed, "model", mib=16)
    for _ in range(2):
        save(bed, it)
        it.ask()


@case
def all_that_wait_are_answered(bed):
    """Also those that have come before it was saved, and whom it had not accepted."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    connections = [Connection(it.port) for _ in range(50)]
    for c in connections:
        c.send()
    steps = sorted(it.note(c.answer()) for c in connections)
    expect(steps == list(range(1, 51)), steps)
    it.steps = 50
    for c in connections:
        c.close()
    it.ask()


@case
def by_command_it_comes_back_too(bed):
    it = Server(bed, "model", mib=16)
    save(bed, it)
    bed.operation("restore", it.job)
    it.ask()
    save(bed, it)
    it.ask()


@case
def who_was_connected_is_told(bed):
    it = Server(bed, "model", mib=16)
    kept = Connection(it.port, 20)
    it.steps = it.note(kept.ask())
    save(bed, it)
    try:
        kept.send()
        expect(is_reset(kept), "the connection goes on")
    except ConnectionError:
        pass
    kept.close()
    it.ask()

@case
@as_user
def who_stays_connected_keeps_it_in_memory(bed):
    """Of a user who may not reset connections."""
    it = Server(bed, "model", mib=16)
    kept = Connection(it.port, 20)
    it.steps = it.note(kept.ask())
    it.suspend()
    bed.refused(4, "whose other end is not of the job", "checkpoint", "--wake", it.job)
    expect(it.state() == "suspended", it.state())
    it.steps = it.note(kept.ask())
    kept.end()
    save(bed, it)
    it.ask()


@case
def who_waits_for_an_answer_is_not_left(bed):
    it = Server(bed, "model", mib=256)
    it.suspend()
    hog, _ = bed.counter("hog", mib=384)
    c = Connection(it.port)
    c.send()
    wait_until(lambda: "waits for the GPU" in (bed.job(it.job)["message"] or ""), "it to wait")
    # Between two tries to wake it.
    said = wait_until(lambda: "yet to answer" in bed.cli("checkpoint", "--wake", "--wait", "10s", it.job).err, "the reason to be said", 60)
    expect(said and it.state() == "suspended", it.state())
    expect(bed.job(it.job)["ports"] is None, "its ports are held")
    bed.end(hog)
    it.steps = it.note(c.answer())
    c.close()
    it.ask()


@case
def what_cannot_be_held(bed):
    it = Server(bed, "model", mib=16)
    bed.refused(6, "not suspended", "checkpoint", "--wake", it.job)
    it.ask()
    it.suspend()
    bed.refused(2, "--leave-running", "checkpoint", "--wake", "--leave-running", it.job)
    expect(it.state() == "suspended", it.state())
    it.ask()
    deaf, _ = bed.counter("deaf", mib=16)
    bed.operation("suspend", deaf)
    bed.refused(4, "no TCP port", "checkpoint", "--wake", deaf)
    expect(bed.state(deaf) == "suspended", bed.state(deaf))


def may_have(port):
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@case
def the_port_is_nobodys(bed):
    """No other program gets it meanwhile; and when the job is removed, it is free."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    expect(not may_have(it.port), "it can be had")
    it.ask()
    save(bed, it)
    expect(not may_have(it.port), "it can be had")
    removed = bed.cli("rm", it.job)
    expect(removed.code == 0, removed.why())
    wait_until(lambda: may_have(it.port), "the port to be free")


@case
def a_shim_that_dies(bed):
    """The next one listens at the same address."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    bed.kill_shim(it.job)
    bed.cli("ps")
    it.ask()
    for point in ("checkpoint.frozen", "checkpoint.end.begin"):
        it.suspend()
        bed.fault(point, "kill:shim")
        bed.cli("checkpoint", "--wake", it.job)
        expect(bed.has_fired(), point)
        wait_until(lambda: it.state() in ("suspended", "checkpointed"), "it to be put right")
        wait_until(lambda: not may_have(it.port), "its port to be held")
        it.ask()
        it.settle()


@case
def a_restore_that_fails(bed):
    """Who waits is reset; the next one is the next try."""
    it = Server(bed, "model", mib=16)
    save(bed, it)

    def failures():
        return [e for e in events(bed, "failed") if e["operation"] == "wake"]

    for n, point in enumerate(("restore.criu.begin", "restore.data-in.begin"), 1):
        bed.fault(point, "error:5")
        c = Connection(it.port, 60)
        c.send()
        expect(is_reset(c), "it is answered")
        c.close()
        expect(bed.has_fired(), point)
        # One that was half restored has accepted it, and its end is a reset, too.
        wait_until(lambda: len(failures()) == n, "the failure to be told")
        wait_until(lambda: "was reset" in (bed.job(it.job)["message"] or ""), "the reason to be said")
        wait_until(lambda: it.state() == "checkpointed", "the job to be on disk as before")
    it.ask()
    it.settle()
    expect(not bed.job(it.job)["message"], bed.job(it.job)["message"])


@case
def for_room_it_waits(bed):
    """Neighbours leave for it."""
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "256"
    it, other = (Server(bed, name, mib=96) for name in ("model", "other"))
    it.ask()
    save(bed, it)
    third = Server(bed, "third", mib=96)
    third.ask()
    other.ask()
    it.ask()
    other.ask()
    third.ask()


if __name__ == "__main__":
    main()
