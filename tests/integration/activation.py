#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A checkpointed server whose ports a service manager holds (LISTEN_FDS): it is restored with the manager's sockets, and who has
connected meanwhile is answered."""

import os
import socket
import struct
import subprocess
import time

from cases import as_user, case, expect, main, wait_until
from servers import Connection, Server


class Manager:
    """Holds the sockets of a job, as systemd does for brumate@.socket."""

    def __init__(self, bed, *ports):
        self.bed, self.sockets = bed, []
        for port in ports:
            it = socket.socket()
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            it.bind(("127.0.0.1", port))
            it.listen(64)
            self.sockets.append(it)

    def command(self, *args, count=None):
        """What starts at the first connection. The shell has the number that becomes the command's."""
        fds = [it.fileno() for it in self.sockets]
        moved = " ".join(f"{100 + i}<&{fd}" for i, fd in enumerate(fds))
        given = " ".join(f"{3 + i}<&{100 + i} {100 + i}<&-" for i in range(len(fds)))
        script = f'exec {moved}; exec {given}; LISTEN_PID=$$ LISTEN_FDS={len(fds) if count is None else count} exec "$@"'
        return subprocess.run(["bash", "-c", script, "bash", self.bed.brumate, *args], env=self.bed.command_env(), pass_fds=fds,
                              timeout=60, capture_output=True, text=True, check=False, **self.bed.whose)

    def restore(self, it):
        done = self.command("restore", it.job)
        expect(done.returncode == 0, f"{done}")

    def close(self):
        for it in self.sockets:
            it.close()


def save(bed, it):
    it.settle()
    bed.operation("checkpoint", it.job)
    expect(it.state() == "checkpointed", it.state())


def answered(it, connection):
    it.steps = it.note(connection.answer())
    connection.close()


def who_waits_is_answered(bed):
    """Any number of times; the manager's socket is the server's, so that between two lives none is refused."""
    it = Server(bed, "model", mib=16)
    it.ask()
    save(bed, it)
    manager = Manager(bed, it.port)
    for _ in range(3):
        early = [Connection(it.port) for _ in range(3)]
        for c in early:
            c.send()
        manager.restore(it)
        steps = sorted(it.note(c.answer()) for c in early)
        expect(steps == list(range(it.steps + 1, it.steps + 4)), steps)
        it.steps += 3
        for c in early:
            c.close()
        it.ask()
        save(bed, it)
    manager.close()


@case
def as_root(bed):
    who_waits_is_answered(bed)


@case
@as_user
def of_a_user(bed):
    who_waits_is_answered(bed)


@case
def a_restore_that_fails(bed):
    """The connection waits on, and the next try answers it; whoever was killed."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    manager = Manager(bed, it.port)
    for action in ("error:5", "kill", "kill:criu"):
        c = Connection(it.port)
        c.send()
        bed.fault("restore.criu.begin" if action != "kill:criu" else "restore.spawned", action)
        done = manager.command("restore", it.job)
        expect(bed.has_fired() and done.returncode != 0, f"{action}: {done}")
        wait_until(lambda: it.state() == "checkpointed", "the job to be on disk as before")
        manager.restore(it)
        answered(it, c)
        it.ask()
        save(bed, it)
    manager.close()


@case
def beside_held_ones(bed):
    """One whose port brumate itself holds, when a socket of another address is given."""
    it = Server(bed, "model", mib=16)
    it.ask()
    it.suspend()
    bed.operation("checkpoint", it.job, "--wake")
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    manager = Manager(bed)
    manager.sockets = [other]
    manager.restore(it)
    it.ask()
    manager.close()


@case
def what_is_none(bed):
    it = Server(bed, "model", mib=16)
    save(bed, it)
    manager = Manager(bed)
    manager.sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    done = manager.command("restore", it.job)
    expect(done.returncode == 2 and "socket 1 of LISTEN_FDS is not one of TCP that listens" in done.stderr, f"{done}")
    done = manager.command("restore", it.job, count=17)
    expect(done.returncode != 0 and "LISTEN_FDS" in done.stderr, f"{done}")
    expect(it.state() == "checkpointed", it.state())
    for words in ("x", "-1", "0", ""):  # no sockets: as if it were not there
        done = manager.command("ps", count=words)
        expect(done.returncode == 0, f"{done}")
    manager.close()
    bed.operation("restore", it.job)
    it.ask()


@case
def descriptors_that_are_hostile(bed):
    """What is no socket that listens, and what is one of another kind, is refused, the job as it was; nothing waits for it."""
    it = Server(bed, "model", mib=16)
    it.ask()
    save(bed, it)
    path = os.path.join(bed.dir, "pipe")
    os.mkfifo(path)
    unix, bound, connected = socket.socket(socket.AF_UNIX), socket.socket(), socket.socket()
    unix.bind(os.path.join(bed.dir, "listens"))
    unix.listen()
    bound.bind(("127.0.0.1", 0))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    connected.connect(listening.getsockname())
    lingering = listening.accept()[0]
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    lingering.setblocking(False)
    try:
        while True:  # what it has not sent yet, its close waits for
            lingering.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    opened = [open(name, mode, 0) for name, mode in ((path, "rb+"), ("/dev/null", "rb"), (bed.brumate, "rb"))]
    for sockets in ([unix], [bound], [connected], [lingering], *([one] for one in opened), [listening, lingering], [listening] * 2):
        manager = Manager(bed)
        manager.sockets = sockets
        begun = time.monotonic()
        done = manager.command("restore", it.job)
        if sockets == [listening] * 2:  # one that it does not need, twice
            expect(done.returncode == 0 or it.state() == "checkpointed", f"{done}")
            continue
        expect(done.returncode == 2 and "of LISTEN_FDS is not one of TCP that listens" in done.stderr, f"{sockets}: {done}")
        expect(time.monotonic() - begun < 50, "it waited for a close")
        expect(it.state() == "checkpointed", it.state())
    for words in ("2147483647", "99999999999999999999", "'1 1'", "0x1"):
        manager = Manager(bed)
        done = manager.command("ps", count=words)
        expect(done.returncode == 0, f"{words}: {done}")
    for one in (unix, bound, connected, lingering, listening, *opened):
        if one is lingering:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    if it.state() == "checkpointed":
        bed.operation("restore", it.job)
    it.ask()


@case
def one_that_is_not_restored_from_there(bed):
    """A port that somebody else has is refused, as without a manager."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    squatter = Manager(bed, it.port)
    bed.refused(6, "is in use", "restore", it.job)
    squatter.restore(it)
    squatter.close()
    it.ask()


if __name__ == "__main__":
    main()
