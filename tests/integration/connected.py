#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TCP connections within a job of a user who is not root, whose CRIU may not save them: each byte arrives once and in its
place, after a checkpoint that leaves the job running, and after each of several restores. Another connection is refused."""

import os
import socket

from cases import EXIT_UNSUPPORTED, as_user, case, expect, main

# Two processes that count each other's bytes over a connection of each kind. What is sent ahead is unread at every step.
PAIR = """
import os, select, socket, struct, sys, time
AHEAD = int(sys.argv[1])
def listen(family, address):
    s = socket.socket(family); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, 0)); s.listen(); return s
def number(n): return struct.pack("<Q", n)
def exactly(s, n):
    got = b""
    while len(got) < n:
        select.select([s], [], [])
        piece = s.recv(n - len(got))
        assert piece, "it ended"
        got += piece
    return got
servers = [listen(socket.AF_INET, "127.0.0.1"), listen(socket.AF_INET6, "::1"), listen(socket.AF_INET6, "::")]
ports = [s.getsockname()[1] for s in servers]
half = listen(socket.AF_INET, "127.0.0.1")
shared = socket.create_connection(servers[0].getsockname()); shared_far = servers[0].accept()[0]
child = os.fork()
if not child:
    far = [socket.create_connection(("127.0.0.1", ports[0])), socket.create_connection(("::1", ports[1])),
           socket.create_connection(("127.0.0.1", ports[2]))]
    ended = socket.create_connection(half.getsockname())
    ended.sendall(b"the last words"); ended.shutdown(socket.SHUT_WR)
    far[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    far[1].setblocking(False)
    names = [(s.getsockname(), s.getpeername()) for s in far]
    n = [0] * 3
    poll = select.epoll()
    for s in far: poll.register(s, select.EPOLLIN)
    by_fd = {s.fileno(): i for i, s in enumerate(far)}
    while True:
        for fd, _ in poll.poll():
            i = by_fd[fd]
            assert exactly(far[i], 8) == number(n[i]), "the wrong bytes came"
            assert names[i] == (far[i].getsockname(), far[i].getpeername()), "another address"
            assert not far[1].getblocking() and far[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            far[i].sendall(number(n[i])); n[i] += 1
            if i == 0: shared.sendall(number(n[0]))
near = [s.accept()[0] for s in servers]
ended = half.accept()[0]
ahead, sent = [], 0
while sent < AHEAD:
    for s in near: s.sendall(number(sent // 8))
    sent += 8
print("ready now", flush=True)
step, n = 0, 0
while True:
    for s in near:
        s.sendall(number(AHEAD // 8 + n))
    for s in near:
        assert exactly(s, 8) == number(n), "the wrong answer came"
    n += 1
    assert exactly(shared_far, 8) == number(n), "the shared one"
    assert ended.recv(100, socket.MSG_PEEK) == b"the last words"
    assert select.select([ended], [], [], 0)[0]
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the other has ended"
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


def comes_back(bed, *args):
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", PAIR, *args], "pair")
    log.goes_on()
    bed.operation("checkpoint", job, "--leave-running", "--rehearse")
    log.goes_on()
    for _ in range(2):
        bed.operation("checkpoint", job)
        bed.operation("restore", job)
        log.goes_on()
    bed.end(job)


@case
@as_user
def with_nothing_under_way(bed):
    comes_back(bed, "0")


@case
@as_user
def with_data_not_read(bed):
    comes_back(bed, "100000")


# Both processes have sent all that fits, over connections of several kinds of buffers, and are in the middle of a message; nobody reads
# before there is a file. What was read is compared byte for byte.
FULL = """
import hashlib, os, select, socket, struct, sys, time
go = sys.argv[1]
def pair(size):
    l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
    a = socket.socket()
    for s in (l, a) if size else (): s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    a.connect(l.getsockname()); b = l.accept()[0]
    # A job that is killed leaves no port for a minute in which it cannot come back.
    for s in (a, b): s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return a, b
def busy(a, b):
    # The kernel makes the buffers larger.
    for _ in range(400):
        a.sendall(bytes(60000))
        got = 0
        while got < 60000: got += len(b.recv(60000))
pairs = [pair(0), pair(0), pair(65536)]
for a, b in ((pairs[1]), (pairs[1][1], pairs[1][0])): busy(a, b)
sizes = [s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for s in pairs[2]]
child = os.fork()
mine = [p[1 if child else 0] for p in pairs]
for p in pairs: p[0 if child else 1].close()
def stream(n): return hashlib.sha256(struct.pack("<Q", n)).digest() * 1000
sent, rest = [0] * 3, [b""] * 3
def fill():
    for i, s in enumerate(mine):
        try:
            while True:
                if not rest[i]: rest[i] = stream(sent[i]); sent[i] += 1
                rest[i] = rest[i][s.send(rest[i], socket.MSG_DONTWAIT):]
        except BlockingIOError: pass
fill()
time.sleep(0.1)
fill()
os.write(1, b"ready now\\n" if child else b"child full\\n")  # at once: print() writes a line in pieces
while not os.path.exists(go): time.sleep(0.02)
got, read = [b""] * 3, [0] * 3
step = 0
while True:
    before = sum(read)
    for i, s in enumerate(mine):
        try: got[i] += s.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError: pass
        while len(got[i]) >= 32000:
            assert got[i][:32000] == stream(read[i]), "ERR the wrong bytes came"
            got[i] = got[i][32000:]; read[i] += 1
    fill()
    assert mine[2].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in sizes, "ERR another size"
    assert all(s.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0] for s in mine), "ERR another way to close"
    if child and sum(read) > before:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "ERR the other has ended"
        step += 1
        print("step", step, "OK", flush=True)
"""


@case
@as_user
def with_full_buffers(bed):
    """Of both ends, as large as the kernel makes them: nobody has room for a byte more."""
    for options in (("--leave-running",), ()):
        go = os.path.join(bed.dir, f"go{len(options)}")
        job, log = bed.started(["/usr/bin/python3", "-u", "-c", FULL, go], f"full{len(options)}")
        log.wait_for("^child full")
        name, n = f"full{len(options)}", len(log.text())
        bed.operation("checkpoint", job, "--name", name, *options)
        if not options:
            bed.operation("restore", name)
        with open(go, "w", encoding="utf-8"):
            pass
        log.goes_on(50)
        if options:
            os.unlink(go)
            bed.end(job)
            os.truncate(log.path, n)
            bed.operation("restore", name)
            with open(go, "w", encoding="utf-8"):
                pass
            log.goes_on(50)
        bed.end(job)


# Both ends of two connections. Told to, it closes them, the one from the near end and the other from the far one, and ends: the kernel
# remembers both for a minute.
CLOSES = """
import os, socket, sys, time
def pair(closes_far):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, closes_far); l.bind(("127.0.0.1", 0)); l.listen()
    a = socket.create_connection(l.getsockname()); b = l.accept()[0]
    return (b, a) if closes_far else (a, b)
pairs = [pair(False), pair(True)]
names = [(a.getsockname(), a.getpeername()) for a, _ in pairs]
print("ready", " ".join(str(a.getsockname()[1]) for a, _ in pairs), flush=True)
step = 0
while not os.path.exists(sys.argv[1]):
    for a, b in pairs:
        a.sendall(b"x"); assert b.recv(1) == b"x", "the wrong byte came"
        b.sendall(b"y"); assert a.recv(1) == b"y", "the wrong answer came"
    assert names == [(a.getsockname(), a.getpeername()) for a, _ in pairs], "another address"
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
for a, b in pairs:
    a.close(); assert b.recv(1) == b""; b.close()
"""


def is_remembered(port):
    """Whether the kernel remembers a connection that has ended, whose end at the port was closed first."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "06" for line in file if ":" in line)


@case
@as_user
def that_the_job_closed_itself(bed):
    """A checkpoint that it was left running after is restored as soon as it has ended."""
    go = os.path.join(bed.dir, "go")
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", CLOSES, go], "closes")
    ports = [int(port) for port in log.wait_for(r"^ready (\d+) (\d+)$").groups()]
    for name in ("one", "two"):
        bed.operation("checkpoint", job, "--leave-running", "--name", name)
        with open(go, "w", encoding="utf-8"):
            pass
        bed.wait_state(job, ("exited",), 30)
        expect(all(is_remembered(port) for port in ports), f"the kernel remembers no connection at {ports}")
        os.unlink(go)
        os.truncate(log.path, 0)  # it does again what it did
        bed.operation("restore", name)
        log.goes_on()
    bed.end(job)


@case
@as_user
def whoever_is_killed(bed):
    """At each step that has to do with connections: the job goes on, or comes back, with each byte once; its addresses are free at once."""
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", PAIR, "100000"], "pair")
    log.goes_on()
    for who in ("kill", "kill:criu"):
        for options in ((), ("--leave-running",)):
            for point in ("checkpoint.frozen", "checkpoint.connected", "checkpoint.dumped", *(["store.rename"] if not options else [])):
                what = f"{who} at {point} {options}"
                bed.fault(point, who)
                result = bed.cli("checkpoint", job, *options, timeout=60)
                expect(not bed.disarm(), f"{what}: the point was not passed: {result.why()}")
                settle(bed, job, log, what)
                log.goes_on()
        for point in ("restore.connected", "restore.spawned", "restore.built", "restore.restored", "restore.gpu-restore.begin"):
            what = f"{who} at {point}"
            if who == "kill:criu" and point not in ("restore.built", "restore.restored"):
                continue
            bed.operation("checkpoint", job)
            n = len(log.text())
            bed.fault(point, who)
            result = bed.cli("restore", job, timeout=60)
            expect(not bed.disarm(), f"{what}: the point was not passed: {result.why()}")
            settle(bed, job, log, what, n)
            log.goes_on()
    bed.end(job)


def settle(bed, job, log, what, saved=None):
    """The next command puts right what a dead shim left; a job that has been saved comes back at once, and says again what it said
    before it was taken down."""
    bed.cli("kill", "--signal", "URG", job)
    state = bed.wait_state(job, ("running", "checkpointed"), 30)
    if state == "checkpointed":
        if saved is not None:
            os.truncate(log.path, saved)
        restored = bed.cli("restore", job)
        expect(restored.code == 0, f"{what}: {restored.why()}")


@case
@as_user
def to_others_is_refused(bed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"""
import socket, time
peer = socket.create_connection({server.getsockname()!r})
print("ready now", flush=True)
step = 0
while True:
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""
        job, log = bed.started(["/usr/bin/python3", "-u", "-c", program], "outward")
        accepted, _ = server.accept()
        for args in ((), ("--leave-running",)):
            refused = bed.refused(EXIT_UNSUPPORTED, r"has a TCP connection \(fd \d+\) whose other end is not of the job", "checkpoint", job, *args)
            expect("hint: " in refused.err, refused.why())
        bed.expect_whole(job, log)
        accepted.close()
        bed.end(job)


main()
