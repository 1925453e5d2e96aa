# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check with inference engines as people run them: how long until the first token after a start,
a resume and a restore, and whether each answer is the one that the undisturbed server gave."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from harness import SOURCE, Skipped, expect

SCRIPT = os.path.join(SOURCE, "tests", "gpu", "engine_server.py")
START_S, ANSWER_S = 240, 120
NOT_HERE = 77
QUESTIONS = [[7 * i + k for k in range(12)] for i in range(1, 5)]
WORDS = 24  # tokens of an answer


class Server:
    """A client of engine_server.py."""

    def __init__(self, port_file):
        self.port_file = port_file
        self.answers = {}

    def port(self):
        with open(self.port_file, encoding="ascii") as file:
            return int(file.read())

    def wait(self, ended):
        """Until it answers; @ended says whether its process has ended."""
        until = time.monotonic() + START_S
        while not os.path.exists(self.port_file) or not os.path.getsize(self.port_file):
            expect(time.monotonic() < until, f"the server does not answer after {START_S} s")
            code = ended()
            if code == NOT_HERE:
                raise Skipped("needs the Python packages torch and transformers, and a GPU")
            expect(code is None, f"the server ended with {code}")
            time.sleep(0.01)

    def ask(self, question, n=WORDS):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("POST", "/", json.dumps({"tokens": question, "n": n}))
            answer = connection.getresponse()
            expect(answer.status == 200, f"the server answers {answer.status}")
            return json.loads(answer.read())["tokens"]

    def learn(self):
        """What the undisturbed server answers."""
        for i, question in enumerate(QUESTIONS):
            self.answers[i] = self.ask(question)
            expect(len(self.answers[i]) == WORDS, f"an answer of {len(self.answers[i])} tokens")

    def is_right(self):
        for i, question in enumerate(QUESTIONS):
            got = self.ask(question)
            expect(got == self.answers[i], f"question {i}: {got} instead of {self.answers[i]}")

    def first_token(self, begin):
        """A suspended server's kernel takes the request; one that is being restored has no port yet."""
        while True:
            try:
                self.ask(QUESTIONS[0], 1)
                return time.monotonic() - begin
            except ConnectionError:
                expect(time.monotonic() < begin + ANSWER_S, f"no connection within {ANSWER_S} s")
                time.sleep(0.01)


class Served:
    """The server as a job, and what its operations took."""

    def __init__(self, check, folder):
        self.check = check
        self.server = Server(os.path.join(folder, "port"))
        begin = time.monotonic()
        command = ["env", "PYTHONUNBUFFERED=1", check.options.python, SCRIPT, "--port-file", self.server.port_file]
        self.id = check.instance.run(command, name="server")
        self.server.wait(self.ended)
        self.tell("start", "until the first token", self.server.first_token(begin))
        self.server.learn()

    def ended(self):
        job = self.check.instance.job(self.id)
        return job["exit_code"] if job["state"] == "exited" else None

    def tell(self, what, figure, seconds):
        self.check.measured[f"engine: {what}, {figure}, s"] = round(seconds, 3)

    def do(self, what, verb, *args):
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
            asked = pool.submit(self.server.first_token, begin) if verb in ("resume", "restore") else None
            summary = self.check.instance.operation(verb, *args, timeout=300)
            self.tell(what, "answered", time.monotonic() - begin)
            if asked:
                self.tell(what, "until the first token", asked.result())
        self.check.operations.append({**summary, "what": what})
        for phase in summary["phases"]:
            self.check.measured[f"engine: {what}: phase {phase['name']}"] = f"{phase['start']:.3f} + {phase['seconds']:.3f} s"
        return summary


def alone(check, folder):
    """The start without brumate."""
    server = Server(os.path.join(folder, "alone"))
    begin = time.monotonic()
    argv = [check.options.python, SCRIPT, "--port-file", server.port_file]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            server.wait(process.poll)
            check.measured["engine: start alone, until the first token, s"] = round(server.first_token(begin), 3)
        finally:
            process.send_signal(signal.SIGKILL)


def engine(check):
    if check.options.simulated:
        raise Skipped("PyTorch needs a real GPU")
    folder = tempfile.mkdtemp(prefix="brumate-engine-", dir="/dev/shm")
    try:
        alone(check, folder)
        job = Served(check, folder)
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(QUESTIONS)) as pool:
            under_way = [pool.submit(job.server.ask, question) for question in QUESTIONS]
            job.do("suspend, first", "suspend", job.id)
            job.do("resume, first", "resume", job.id)
            expect([u.result() for u in under_way] == list(job.server.answers.values()), "an answer in flight is not right")
        for i in range(1, 3):
            job.do(f"suspend, later {i}", "suspend", job.id)
            job.do(f"resume, later {i}", "resume", job.id)
            job.server.is_right()
        for i in range(2):
            summary = job.do(f"checkpoint {i}", "checkpoint", job.id, "--dir", folder, "--name", f"saved-{i}")
            check.measured[f"engine: checkpoint {i}, written, MiB"] = summary["image_bytes"] >> 20
            job.do(f"restore {i}", "restore", "--dir", folder, f"saved-{i}")
            job.server.is_right()
            check.instance.ok("rm", "--dir", folder, "--checkpoint", f"saved-{i}")
        check.instance.end(job.id)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def register(case):
    """Adds the cases to gpu-check's list."""
    case("engine: transformers' continuous batching behind HTTP")(engine)
