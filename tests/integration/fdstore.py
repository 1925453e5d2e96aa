#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate serve` under a service manager that keeps descriptors (FDSTORE=1 of sd_notify(3)): the ports of servers that are on disk outlive
`serve` and shims, with the connections that wait there. A stand-in for the manager does what systemd does: it keeps what comes by its
name, and passes it to the next start."""

import array
import os
import signal
import socket
import subprocess
import tempfile
import threading

from cases import as_user, case, expect, main, wait_until
from servers import Connection, Server


class Manager:
    """Starts `serve`, and keeps descriptors for it."""

    def __init__(self, bed, notify=None):
        self.bed, self.store, self.said, self.lock, self.serve, self.pids = bed, {}, [], threading.Lock(), None, []
        self.dir = tempfile.TemporaryDirectory()
        os.chmod(self.dir.name, 0o777)
        self.path = os.path.join(self.dir.name, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        os.chmod(self.path, 0o777)
        self.notify = notify or self.path
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(64 * 4))
            fds = array.array("i")
            for level, kind, data in control:
                expect((level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS), "a strange message")
                fds.frombytes(data)
            words = dict(line.split("=", 1) for line in text.decode().splitlines())
            with self.lock:
                self.said.append(words)
                if words.get("FDSTORE") == "1":
                    self.keep(words["FDNAME"], list(fds))
                elif words.get("FDSTOREREMOVE") == "1":
                    self.drop(words["FDNAME"])

    def keep(self, name, fds):
        """One that is kept already is not kept twice."""
        have = {os.fstat(fd).st_ino for fd in self.store.get(name, [])}
        for fd in fds:
            if os.fstat(fd).st_ino in have:
                os.close(fd)
            else:
                self.store.setdefault(name, []).append(fd)

    def drop(self, name):
        for fd in self.store.pop(name, []):
            os.close(fd)

    def names(self):
        with self.lock:
            return sorted(self.store)

    def removed(self):
        with self.lock:
            return [words["FDNAME"] for words in self.said if "FDSTOREREMOVE" in words]

    def start(self):
        """The last one that came is passed first, as systemd has it."""
        with self.lock:
            kept = [(name, fd) for name, fds in self.store.items() for fd in reversed(fds)]
        fds = [fd for _, fd in kept]
        moved = " ".join(f"{100 + i}<&{fd}" for i, fd in enumerate(fds))
        given = " ".join(f"{3 + i}<&{100 + i} {100 + i}<&-" for i in range(len(fds)))
        script = f'exec {moved}; exec {given}; LISTEN_PID=$$ LISTEN_FDS={len(fds)} LISTEN_FDNAMES={":".join(name for name, _ in kept)} exec "$@"'
        self.serve = subprocess.Popen(["bash", "-c", script, "bash", self.bed.brumate, "serve", "--idle-after", "1h"],
                                      env=self.bed.command_env({"NOTIFY_SOCKET": self.notify}), pass_fds=fds,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **self.bed.whose)

    def kill(self, number=signal.SIGKILL):
        """What it said."""
        self.serve.send_signal(number)
        return self.serve.communicate(timeout=60)[1]

    def close(self):
        said = self.kill(signal.SIGTERM) if self.serve.poll() is None else ""
        for name in self.names():
            self.drop(name)
        return said


def name_of(it):
    return f"brumate-job-{it.job}"


def save(bed, it):
    it.suspend()
    bed.operation("checkpoint", it.job, "--wake")
    expect(it.state() == "checkpointed", it.state())


def is_kept(manager, *servers):
    wait_until(lambda: manager.names() == sorted(name_of(it) for it in servers), "the manager to keep just the ports of those that are on disk", 60)


def early(it):
    c = Connection(it.port)
    c.send()
    return c


def answered(it, c):
    it.steps = it.note(c.answer())
    c.close()


def outlives_both(bed):
    it, other = Server(bed, "model", mib=16), Server(bed, "other", mib=16)
    it.ask()
    save(bed, it)
    manager = Manager(bed)
    manager.start()
    is_kept(manager, it)
    save(bed, other)
    is_kept(manager, it, other)
    manager.kill()
    is_kept(manager, it, other)
    for one in (it, other):
        bed.kill_shim(one.job)
    waiting = [(one, early(one)) for one in (it, other)]
    manager.start()
    for one, c in waiting:
        answered(one, c)
    is_kept(manager)
    it.ask()
    it.settle()
    save(bed, it)
    is_kept(manager, it)
    it.ask()
    manager.close()


@case
def serve_and_shims_are_killed(bed):
    """Who has connected meanwhile is answered. Of a server that is back nothing is kept."""
    outlives_both(bed)


@case
@as_user
def of_a_user(bed):
    outlives_both(bed)


@case
def a_shim_is_killed(bed):
    """The one that takes over is given the sockets by the `serve` that runs."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    manager = Manager(bed)
    manager.start()
    is_kept(manager, it)
    bed.kill_shim(it.job)
    answered(it, early(it))
    manager.close()


@case
def what_is_forged(bed):
    """Descriptors of other names, of no job, that do not listen, or that are at other addresses are dropped; the ports are kept anew."""
    it = Server(bed, "model", mib=16)
    save(bed, it)
    manager = Manager(bed)
    elsewhere = socket.create_server(("127.0.0.1", 0))
    for name, one in (("stored", socket.create_server(("127.0.0.1", 0))), ("brumate-job-../../etc", socket.create_server(("127.0.0.1", 0))),
                      ("brumate-job-00000000", elsewhere), (name_of(it), elsewhere)):
        manager.keep(name, [os.dup(one.fileno())])
    manager.start()
    wait_until(lambda: {"stored", "brumate-job-../../etc", "brumate-job-00000000", name_of(it)} <= set(manager.removed()), "them to be dropped", 60)
    is_kept(manager, it)
    said = manager.kill()
    expect("of no job, and is dropped: stored" in said and "are not its ports" in said, said)
    for one in (socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket()):
        manager.keep(name_of(it), [os.dup(one.fileno())])
        manager.start()
        known = len(manager.removed())
        wait_until(lambda: len(manager.removed()) > known, "it to be dropped", 60)
        is_kept(manager, it)
        said = manager.kill()
        expect("is not one of TCP that listens" in said, said)
    bed.kill_shim(it.job)
    c = early(it)
    manager.start()
    answered(it, c)
    manager.close()


@case
def without_a_manager(bed):
    """None, or one that does not listen: as before."""
    it = Server(bed, "model", mib=16)
    manager = Manager(bed, notify="/nowhere/notify")
    manager.start()
    save(bed, it)
    wait_until(lambda: bed.job(it.job)["ports"], "its ports to be held")
    it.ask()
    it.settle()
    save(bed, it)
    said = manager.close()
    expect(not manager.said, manager.said)
    expect("Traceback" not in said, said)
    it.ask()


if __name__ == "__main__":
    main()
