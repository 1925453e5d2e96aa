#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate http`: the methods at a unix socket, for curl and other programs that speak HTTP."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time

from cases import NOBODY, as_user, case, expect, main, read_text, wait_until
from http_client import Face


@case
@as_user
def of_a_user(bed):
    """The whole way of a job."""
    face = Face(bed)
    job, log = bed.counter("model", mib=16)
    status, reply = face.call("Suspend", job="model")
    expect(status == 200 and reply["summary"]["operation"] == "suspend", reply)
    expect([it["state"] for it in face.call("List")[1]["jobs"]] == ["suspended"], "it is not suspended")
    status, reply = face.call("Resume", job="model", wait_ms=1000)
    expect(status == 200, reply)
    bed.expect_whole(job, log)
    status, reply = face.call("Checkpoint", job="model")
    expect(status == 200 and reply["summary"]["checkpoint"], reply)
    status, reply = face.call("Restore", checkpoint="model")
    expect(status == 200 and reply["job"]["id"] == job, reply)
    bed.expect_whole(job, log)
    status, reply = face.call("Suspend", job="nobody")
    expect(status == 404 and reply["error"]["exit"] == 3 and "nobody" in reply["error"]["text"], reply)
    status, reply = face.call("Suspend", job=7)
    expect(status == 400, reply)
    face.stop()


@case
def by_curl(bed):
    """Also a body that is so large that curl asks first."""
    if not shutil.which("curl"):
        return
    face = Face(bed)
    job, log = bed.counter("model", mib=16)

    def curl(method, text):
        done = subprocess.run(["curl", "-sS", "--fail-with-body", "--unix-socket", face.path, "-d", "@-", f"http://brumate/v1/{method}"],
                              input=text, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    code, reply = curl("Suspend", '{"job": "model"}')
    expect(code == 0 and reply["summary"], reply)
    code, reply = curl("Resume", json.dumps({"job": "model"}) + " " * (2 << 20))
    expect(code == 0 and reply["summary"], reply)
    code, reply = curl("Resume", '{"job": "nobody"}')
    expect(code == 22 and reply["error"]["exit"] == 3, reply)
    bed.expect_whole(job, log)
    face.stop()


@case
def what_is_no_request(bed):
    face = Face(bed)
    post = b"POST /v1/List HTTP/1.1\r\n"
    for data, status in ((b"x\r\n\r\n", 400), (post + b"Content-Length: x\r\n\r\n", 400), (post + b"Transfer-Encoding: chunked\r\n\r\n", 501),
                         (post + b"Content-Length: 3\r\n\r\n[1]", 400), (post + b"Content-Length: 9\r\n\r\n{}\0\0\0\0\0\0\0", 400),
                         (post + b"Content-Length: 99999999999\r\n\r\n", 413), (b"POST /" + 16384 * b"a", 431),
                         (b"GET /v1/List HTTP/1.1\r\n\r\n", 405), (b"POST /v1/Nothing HTTP/1.1\r\n\r\n", 404),
                         (b"POST /v2/List HTTP/1.1\r\n\r\n", 404), (b"POST / HTTP/1.1\r\n\r\n", 404), (post + b"\r\n", 200)):
        got = face.raw(data)
        expect(got.startswith(f"HTTP/1.1 {status} ".encode()), f"{data[:60]!r}: {got!r}")
        head, _, body = got.partition(b"\r\n\r\n")
        expect(f"Content-Length: {len(body)}".encode() in head and json.loads(body), got)
    expect(face.call("Export", checkpoint="x")[0] in (400, 404), "a method that needs a descriptor")
    half = face.connect()  # one that does not go on keeps nobody out
    half.sendall(post)
    expect(face.call("List")[0] == 200, "it does not answer")
    face.stop()
    half.close()


@case
def who_may_ask(bed):
    """The socket is its user's; one that was opened to all answers only that user and root all the same."""
    face = Face(bed)
    expect(os.stat(face.path).st_mode & 0o777 == 0o600, "others may connect")
    os.chmod(bed.dir, 0o711)
    os.chmod(bed.own["BRUMATE_RUNTIME_DIR"], 0o755)
    os.chmod(face.path, 0o666)
    script = f"""import socket
s = socket.socket(socket.AF_UNIX)
s.connect({face.path!r})
s.sendall(b"POST /v1/List HTTP/1.1\\r\\nContent-Length: 1000000\\r\\n\\r\\n" + bytes(1000000))
print(s.recv(65536).decode())"""
    done = subprocess.run(["python3", "-c", script], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, timeout=60,
                          check=False, cwd="/")
    expect(done.stdout.startswith("HTTP/1.1 403 Forbidden"), f"{done}")
    face.stop()


@case
def who_hangs_up_cancels(bed):
    """And so does the end of the program."""
    face = Face(bed)
    job, log = bed.counter("model", mib=16)
    for stopped in (False, True):
        bed.fault("suspend.park.begin", "hold")
        it = face.begin("Suspend", job=job)
        with bed.holding("suspend.park.begin", face.server):
            if stopped:
                face.server.signal(signal.SIGTERM)
            else:
                it.close()
        wait_until(lambda: bed.state(job) == "running", "the job to be as it was")
        bed.expect_whole(job, log)
    expect(face.server.end()[0] == 0, "it did not end well")


@case
def who_sends_without_end(bed):
    """It is hung up on, and the program ends when it is told to."""
    face = Face(bed)

    def send():
        with face.connect() as it, contextlib.suppress(OSError):
            it.sendall(b"X\r\n\r\n")
            while True:
                it.sendall(bytes(65536))

    senders = [threading.Thread(target=send, daemon=True) for _ in range(3)]
    for sender in senders:
        sender.start()
    for sender in senders[:2]:
        sender.join(30)
        expect(not sender.is_alive(), "it is listened to for ever")
    expect(face.call("List")[0] == 200, "nobody else is answered")
    face.stop()
    senders[2].join(30)
    expect(not senders[2].is_alive(), "the program has ended, and not this")


HOLDS = """
import json, signal, socket, sys
path, job, halves, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
body = json.dumps({"job": job}).encode()
held = []
for number in range(halves + calls):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].settimeout(60)
    held[-1].connect(path)
    try:
        held[-1].sendall(b"POST /v1/Wait HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body))
        if number >= halves:
            held[-1].sendall(body)
    except OSError:
        pass
print("held", flush=True)
signal.pause()
"""


@case
def who_holds_all_places(bed):
    """With requests of which half comes, or with calls that do not end: others are answered."""
    face = Face(bed)
    job, _ = bed.counter("model", mib=4)
    for counts in ((70, 0), (0, 70), (35, 35)):
        holder = bed.start(["/usr/bin/python3", "-c", HOLDS, face.path, job, *map(str, counts)], "holder-%d-%d" % counts)
        holder.log.wait_for("^held", 60)
        expect(face.call("List")[0] == 200, "nobody else is answered")
        os.killpg(holder.pid, signal.SIGKILL)
    bed.ok("kill", job)
    face.stop()


@case
def who_holds_all_places_with_calls(bed):
    """Of two processes, which have half of the places each: others are told so, and do not wait for as long as those calls last."""
    face = Face(bed)
    job, _ = bed.counter("model", mib=4)
    holders = [bed.start(["/usr/bin/python3", "-c", HOLDS, face.path, job, "0", "32"], f"holder{n}") for n in range(2)]

    def calls():
        """That have come to the job's shim. A request that is not called yet would make room for another."""
        lines = [line.split() for line in read_text("/proc/net/unix").splitlines()]
        return sum(line[-1].endswith(f"/{job}/shim.sock") and line[5] == "03" for line in lines)
    wait_until(lambda: calls() >= 64, "all places to be taken", 60)
    status, reply = face.call("List")
    expect(status == 503 and "as many requests are under way" in reply["error"]["text"], f"{status}: {reply}")
    os.killpg(holders[0].pid, signal.SIGKILL)
    wait_until(lambda: face.call("List")[0] == 200, "a place")
    bed.ok("kill", job)
    face.stop()


@case
def who_reads_nothing(bed):
    """Of an answer that the kernel does not hold: others are answered, and the program ends without it."""
    face = Face(bed)
    script = 'exec "$0" --mib 4 --chunk-mib 4 --interval-ms 25'
    job, log = bed.started(["sh", "-c", script, bed.program("counter"), *(8 * [100000 * "x"])], "model")
    with face.connect() as it:
        it.sendall(b"POST /v1/List HTTP/1.1\r\n\r\n")
        it.recv(1)  # the rest waits for us
        start = time.monotonic()
        expect(face.call("Status", job=job)[0] == 200, "nobody else is answered")
        face.stop()
        seconds = time.monotonic() - start
        expect(seconds < 7, f"it took {seconds:.1f} s to end")
        expect(len(it.recv(1 << 20)) < 800000, "all of it was read: this test proves nothing")
    bed.expect_whole(job, log)


if __name__ == "__main__":
    main()
