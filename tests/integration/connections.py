#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""TCP connections whose other end is not of the job: both ends go on after a checkpoint that leaves the job running, so it could
come back only at another moment than the other end."""

import socket

from cases import EXIT_UNSUPPORTED, case, expect, main

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


main()
