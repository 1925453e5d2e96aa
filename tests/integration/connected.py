#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TCP connections within a job of a user who is not root, whose CRIU may not save them: each byte arrives once and in its
place, after a checkpoint that leaves the job running, and after each of several restores. Another connection is refused."""

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
