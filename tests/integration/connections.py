#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TCP connections whose other end is not of the job: both ends go on after a checkpoint that leaves the job running, so it could
come back only at another moment than the other end."""

import socket

from cases import EXIT_UNSUPPORTED, case, expect, main, run

CLIENT = """
import socket, time
peer = socket.create_connection(("127.0.0.1", PORT))
print("ready now", flush=True)
step, closed = 0, False
while True:
    try:
        if not closed:
            peer.sendall(b"x")
    except OSError as error:
        closed = True
        print("closed", type(error).__name__, flush=True)
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""

BOTH = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
peer = socket.create_connection(server.getsockname())
other, _ = server.accept()
print("ready now", flush=True)
step = 0
while True:
    peer.sendall(b"x")
    if other.recv(1) != b"x":
        print("BAD", flush=True)
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""


@case
def saved_apart(bed):
    """Refused at once, with the reason, by each of the two ways; the job is not touched."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        job, log = bed.python(CLIENT.replace("PORT", str(server.getsockname()[1])))
        words = r"has a TCP connection to outside the job \(fd \d+\), which goes on after the checkpoint"
        for args in (("checkpoint", "-R", job), ("checkpoint", "--every", "1s", job)):
            refused = bed.refused(EXIT_UNSUPPORTED, words, *args)
            expect("--tcp-close" in refused.err, refused.why())
        expect(bed.job(job)["schedule"] is None and not bed.checkpoints() and not bed.partials(), "something was begun")
        bed.expect_whole(job, log)
        bed.ok("checkpoint", "-R", "--force", "--name", "forced", job)
        bed.ok("checkpoint", "--name", "ends", job)  # nothing goes on in the job
        expect(bed.checkpoints() == ["forced", "ends"], "it was refused")


@case
def closed_by_the_restore(bed):
    """The checkpoint says so itself: the restore takes no option."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        job, log = bed.python(CLIENT.replace("PORT", str(server.getsockname()[1])))
        bed.ok("checkpoint", "-R", "--tcp-close", "--name", "apart", job)
        bed.expect_whole(job, log)
        expect("closed" not in log.text(), "the connection of the running job is closed")
        bed.ok("checkpoint", "--every", "1h", "--tcp-close", job)
        bed.ok("checkpoint", "--every", "0", job)
        bed.end(job)
    bed.operation("restore", "apart")
    log.wait_for("^closed ")
    log.wait_for("^step ")
    bed.expect_state(job, "running")


@case
def both_ends_in_the_job(bed):
    job, log = bed.python(BOTH)
    bed.ok("checkpoint", "-R", "--name", "whole", job)
    bed.expect_whole(job, log)
    bed.ok("checkpoint", "--name", "end", job)
    bed.expect_restorable("end", log)


UNSENT = """
import array, fcntl, socket, time
server = socket.create_server(("127.0.0.1", 0))
first = socket.create_connection(server.getsockname())
second, _ = server.accept()
sender, receiver = (first, second) if FIRST else (second, first)
number = lambda at, n: bytes((at + k) % 251 for k in range(n))
sent = got = step = 0
if CLOSED:
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sender.setblocking(False)
    try:
        while True:
            sent += sender.send(number(sent, 4096))
    except BlockingIOError:
        sender.shutdown(socket.SHUT_WR)
else:
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
SIOCOUTQNSD = 0x894B
print("ready now", flush=True)
while not saved():
    if not CLOSED:
        sent += sender.send(number(sent, 100))
    unsent = array.array("i", [0])
    fcntl.ioctl(sender, SIOCOUTQNSD, unsent)
    print("unsent", unsent[0], flush=True)
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
if not CLOSED:
    sender.shutdown(socket.SHUT_WR)
while more := receiver.recv(65536):
    if more != number(got, len(more)):
        print("BAD", flush=True)
    got += len(more)
print("all of it" if got == sent else f"BAD: {got} of {sent}", flush=True)
time.sleep(1000)
"""


def save_and_restore_elsewhere(bed, name, first, closed):
    """As on another machine: the table that drops the packets of what was saved is not there."""
    text = UNSENT.replace("FIRST", str(first)).replace("CLOSED", str(closed))
    flag = f"{bed.dir}/{name}"
    job, log = bed.python(text.replace("saved()", f"__import__('os').path.exists({flag!r})"), name=name)
    log.wait_for(r"^unsent [1-9]")
    bed.ok("checkpoint", "--name", name, job)
    unsent = [line for line in log.text().splitlines() if line.startswith("unsent")][-1]
    bed.kill_shim(job)
    back = run(["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", bed.brumate, "restore", name], env=bed.command_env())
    expect(back.code == 0, f"{unsent}: {back.why()}")
    if not closed and unsent == "unsent 0":  # the kernel had just sent it: it holds bytes back for a fifth of a second
        return save_and_restore_elsewhere(bed, f"{name}-again", first, closed)
    with open(flag, "w", encoding="utf-8"):
        pass
    log.wait_for("^all of it", 60)
    expect("BAD" not in log.text(), log.text())
    return bed.ok("kill", job)


@case
def bytes_that_were_not_sent(bed):
    """They are sent again by a restore where nobody answers for the other end until it is there."""
    for first in (True, False):
        save_and_restore_elsewhere(bed, f"corked-{first}", first, closed=False)


@case
def bytes_that_were_not_sent_before_a_close(bed):
    for first in (True, False):
        save_and_restore_elsewhere(bed, f"closed-{first}", first, closed=True)


main()
