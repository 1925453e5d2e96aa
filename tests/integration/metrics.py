#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate metrics`: what Prometheus reads of jobs, operations and checkpoints; as text, as a file, and as the answer to
requests. Where others can read it, it has no names."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import time

from cases import case, expect, main, wait_until

SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (-?[0-9.e+-]+)$')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """{(name, labels): value} of a text whose every sample belongs to the family before it."""
    samples, types, family = {}, {}, None
    expect(text.endswith("\n"), "the last line has no end")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line.split()[2:]
            expect(family not in types and kind in ("counter", "gauge", "summary"), line)
            expect(family.endswith("_total") == (kind == "counter"), line)
            types[family] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.match(line)
            of = re.sub("_(sum|count)$", "", found[1]) if found and types[family] == "summary" else found and found[1]
            expect(found and of == family, f"no sample of {family}: {line}")
            key = (found[1], tuple(sorted(LABEL.findall(found[2] or ""))))
            expect(key not in samples, f"twice: {line}")
            samples[key] = float(found[3])
    return samples


def value(samples, family, /, **labels):
    """The one sample that has these labels, among others."""
    found = [v for (n, have), v in samples.items() if n == family and set(labels.items()) <= set(have)]
    expect(len(found) == 1, f"{family} {labels}: {found}")
    return found[0]


@case
def operations_are_counted(bed):
    job, log = bed.counter(name="we.ird")
    before = parse(bed.ok("metrics").out)
    expect(value(before, "brumate_jobs", state="running") == 1 and value(before, "brumate_jobs", state="suspended") == 0,
           f"{before}")
    expect(value(before, "brumate_job_operations_total", job=job, operation="suspend", result="done") == 0, f"{before}")
    expect(value(before, "brumate_job_device_memory_bytes", job=job) >= 16 << 20, f"{before}")
    bed.ok("suspend", job)
    asleep = parse(bed.ok("metrics").out)
    expect(value(asleep, "brumate_job_state", job=job, name="we.ird", state="suspended") == 1, f"{asleep}")
    still = value(asleep, "brumate_job_standstill_seconds_total", job=job, operation="resume")
    expect(still > 0 and value(asleep, "brumate_job_device_memory_bytes", job=job) >= 16 << 20, f"{asleep}")
    bed.ok("resume", job)
    bed.ok("checkpoint", job, "--leave-running")
    bed.fault("suspend.gate.begin", "error:5")
    expect(bed.cli("suspend", job).code != 0 and bed.has_fired(), "the fault did not fire")
    log.goes_on()
    after = parse(bed.ok("metrics").out)
    for operation, done, failed in (("suspend", 1, 1), ("resume", 1, 0), ("checkpoint", 1, 0), ("restore", 0, 0)):
        for result, count in (("done", done), ("failed", failed), ("cancelled", 0)):
            expect(value(after, "brumate_job_operations_total", job=job, operation=operation, result=result) == count,
                   f"{operation} {result}: {after}")
        seconds = value(after, "brumate_job_operation_seconds_total", job=job, operation=operation)
        expect((seconds > 0) == (done > 0), f"{operation}: {seconds} s")
    expect(value(after, "brumate_job_standstill_seconds_total", job=job, operation="resume") >= still, f"{after}")
    expect(value(after, "brumate_job_image_bytes_total", job=job, operation="checkpoint") > 0, f"{after}")
    expect(value(after, "brumate_checkpoints") == 1 and value(after, "brumate_checkpoints_bytes") > 16 << 20, f"{after}")
    expect(value(after, "brumate_job_last_checkpoint_timestamp_seconds", job=job) > 1e9, f"{after}")
    expect(all(v >= before[k] for k, v in after.items() if k[0].endswith("_total")), "a counter went down")


@case
def a_file_for_node_exporter(bed):
    job, _ = bed.counter(name="secretive")
    path = os.path.join(bed.dir, "brumate.prom")
    bed.ok("metrics", "--textfile", path)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    expect(value(parse(text), "brumate_job_state", job=job) == 1 and "secretive" not in text, text)
    expect(os.stat(path).st_mode & 0o777 == 0o644, "others cannot read it")
    number = os.stat(path).st_ino
    bed.ok("metrics", "--textfile", path, "--names")
    with open(path, encoding="utf-8") as file:
        expect("secretive" in file.read(), "--names does nothing")
    expect(os.stat(path).st_ino != number, "it is written in place")
    expect(not [name for name in os.listdir(bed.dir) if name.startswith("brumate.prom.")], f"{os.listdir(bed.dir)}")
    bed.refused(3, "/proc/nothing", "metrics", "--textfile", "/proc/nothing/here.prom")
    bed.refused(2, "cannot be combined", "metrics", "--textfile", path, "--listen", "127.0.0.1:0")
    for wrong in ("9857", "127.0.0.1", "[::1]", ":9857", "localhost:9857", "127.0.0.1:http", "127.0.0.1:65536"):
        bed.refused(2, "is not ADDRESS:PORT", "metrics", "--listen", wrong)


class Server:
    """`metrics --listen` at a port that nobody has."""

    def __init__(self, bed, *options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = probe.getsockname()
        self.process = subprocess.Popen([bed.brumate, "metrics", "--listen", "%s:%d" % self.address, *options],
                                        env=bed.command_env())
        wait_until(self.listens, "the server", 60)

    def listens(self):
        try:
            self.connect().close()
        except ConnectionRefusedError:
            expect(self.process.poll() is None, "it has ended")
            return False
        return True

    def connect(self):
        return socket.create_connection(self.address, 60)

    def ask(self, request):
        """What is answered."""
        answer = b""
        with self.connect() as connection:
            try:
                connection.sendall(request)
                while more := connection.recv(65536):
                    answer += more
            except ConnectionError:
                pass
        return answer.decode()

    def end(self):
        self.process.terminate()
        expect(self.process.wait(60) == -signal.SIGTERM, "it did not end by the signal")


@case
def totals_of_host_memory(bed):
    """Of all jobs, for who wants to know whether one more can be suspended; brokers that do not run have nothing ready."""
    jobs = [bed.counter(name=name, mib=32)[0] for name in ("one", "two")]
    samples = parse(bed.ok("metrics").out)
    expect([value(samples, f"brumate_host_{what}") for what in ("copies", "copies_bytes", "prepared_bytes")] == [0, 0, 0], f"{samples}")
    bed.ok("suspend", *jobs)
    samples = parse(bed.ok("metrics").out)
    copies = [value(samples, "brumate_job_host_copy_bytes", job=job) for job in jobs]
    expect(value(samples, "brumate_host_copies") == 2 and min(copies) > 0, f"{samples}")
    expect(value(samples, "brumate_host_copies_bytes") == sum(copies), f"{copies}: {samples}")
    expect(value(samples, "brumate_host_prepared_bytes") == bed.doctor()["facts"]["prepared_bytes"], f"{samples}")
    bed.ok("resume", *jobs)


@case
def one_that_waits_for_a_gpu(bed):
    bed.own["BRUMATE_SIM_VRAM_MIB"] = "256"
    first, log = bed.counter(name="first", mib=128)
    bed.ok("suspend", first)
    second, _ = bed.counter(name="second", mib=128)

    def waited(job):
        return value(parse(bed.ok("metrics").out), "brumate_job_waiting_seconds", job=job)
    with subprocess.Popen([bed.brumate, "resume", "--wait", "5m", first], env=bed.command_env(), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as command:
        wait_until(lambda: waited(first) > 0, "the job to wait", 60)
        expect(waited(second) == 0 and bed.job(first)["waits_ms"] > 0 and bed.job(second)["waits_ms"] is None, f"{bed.job(first)}")
        bed.ok("suspend", second)
        expect(command.wait(60) == 0, f"resume ends with {command.returncode}")
    expect(waited(first) == 0, "it waits on")
    log.goes_on()


@case
def requests(bed):
    job, _ = bed.counter(name="secretive")
    get = b"GET /metrics?x HTTP/1.1\r\nHost: here\r\n\r\n"
    for options, named in ((("--names",), True), ((), False)):
        server = Server(bed, *options)
        for _ in range(2):
            head, body = server.ask(get).split("\r\n\r\n", 1)
            expect(head.startswith("HTTP/1.0 200 OK\r\n") and "version=0.0.4" in head, head)
            expect(f"Content-Length: {len(body.encode())}" in head, head)
            expect(value(parse(body), "brumate_job_state", job=job) == 1, body)
            expect(("secretive" in body) == named, f"{options}: {body}")
        if named:
            server.end()
    answer = server.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n")
    expect(answer.startswith("HTTP/1.0 200 OK") and answer.endswith("\r\n\r\n"), answer)
    wrong = {b"GET / HTTP/1.0\r\n\r\n": 404, b"GET /metrics/../x HTTP/1.0\r\n\r\n": 404, b"POST /metrics HTTP/1.0\r\n\r\n": 405,
             b"hello\r\n\r\n": 400, b"GET /metrics\r\n\r\n": 400, b"\0\0\r\n\r\n\n\n": 400,
             b"GET /metrics HTTP/1.0\r\nA: " + b"a" * (8192 - 26): 431}
    for request, code in wrong.items():
        answer = server.ask(request)
        expect(answer.startswith(f"HTTP/1.0 {code} ") and "brumate" not in answer, f"{request[:40]}: {answer}")
    server.end()


@case
def requests_that_are_slow(bed):
    """Those who say nothing delay nobody, and are dropped in time; what comes in parts is one request."""
    server = Server(bed)
    silent = [server.connect() for _ in range(15)]
    parts = server.connect()
    for part in (b"GET /met", b"rics HT", b"TP/1.0\r\n"):
        parts.sendall(part)
    late = server.connect()
    silent[0].settimeout(5)  # half of the time that a request has
    expect(silent[0].recv(1) == b"", "there are more than 16 at a time, or the first stays")
    parts.sendall(b"\r\n")
    expect(parts.recv(16).startswith(b"HTTP/1.0 200"), "no answer")
    expect(all(connection.recv(1) == b"" for connection in (*silent[1:], late)), "they are not dropped")
    expect(server.ask(b"GET /metrics HTTP/1.0\r\n\r\n").startswith("HTTP/1.0 200"), "no answer after that")
    server.end()


@case
def a_job_that_is_gone_and_a_damaged_record(bed):
    job, _ = bed.counter()
    bed.ok("kill", job, "--signal", "KILL")
    wait_until(lambda: bed.state(job) == "exited", "the end of the job", 60)
    expect(value(parse(bed.ok("metrics").out), "brumate_jobs", state="exited") == 1, "no exited job")
    with open(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "counts.json"), "w", encoding="utf-8") as file:
        file.write("{ nonsense")
    samples = parse(bed.ok("metrics").out)
    expect(value(samples, "brumate_job_operations_total", job=job, operation="suspend", result="done") == 0, f"{samples}")
    bed.ok("rm", job)
    expect("brumate_job_state{" not in bed.ok("metrics").out, "it is still there")


@case
def those_who_ask_nothing_keep_nobody_out(bed):
    """All of the places for requests are taken, and taken again: who asks is answered at once all the same."""
    server = Server(bed)
    idle = [server.connect() for _ in range(64)]
    for connection in idle[::2]:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    for _ in range(3):
        expect(server.ask(b"GET /metrics HTTP/1.1\r\n\r\n").startswith("HTTP/1.0 200"), "it is not answered")
        idle += [server.connect() for _ in range(16)]
    for connection in idle:
        connection.close()
    server.end()


def greedy(address):
    """Asks, and reads nothing: little fits on the way."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88)
    one.connect(address)
    one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    return one


@case
def those_who_read_nothing_keep_nobody_out(bed):
    """They have all places but one, and a node has so many jobs that no answer fits on its way to them."""
    job = bed.run(["true"])
    bed.wait_state(job, ("exited",))
    jobs = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")
    with open(os.path.join(jobs, job, "job.json"), encoding="utf-8") as file:
        record = file.read()
    for number in range(80):
        name = f"{number:08x}"
        os.mkdir(os.path.join(jobs, name), 0o700)
        with open(os.path.join(jobs, name, "job.json"), "w", encoding="utf-8") as file:
            file.write(record.replace(job, name))
    server = Server(bed)
    ask = b"GET /metrics HTTP/1.1\r\n\r\n"
    whole = server.ask(ask)
    expect(len(whole) > 100 << 10 and whole.count("brumate_job_state{") >= 80, f"{len(whole)} bytes: this test proves nothing")
    idle = [greedy(server.address) for _ in range(15)]
    begun = time.monotonic()
    expect(server.ask(ask).startswith("HTTP/1.0 200"), "it is not answered")
    took = time.monotonic() - begun
    expect(took < 10, f"it took {took:.1f} s")  # 2 s for each of them it would be
    for connection in idle:
        hung_up = select.poll()
        hung_up.register(connection, 0)
        expect(hung_up.poll(60000), "one who reads nothing is not given up: this test proves nothing")
    server.end()


if __name__ == "__main__":
    main()
