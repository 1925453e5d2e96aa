# SPDX-License-Identifier: MIT
"""brumate's library in a program that is not a job: what `brumate run` puts into its environment, with a
directory for its agent, and the proof that it was at work. Without that directory it manages no memory,
and a comparison with and without it would compare nothing."""

import os
import select
import socket
import struct
import tempfile
import time

from harness import Failed, expect

VERSION, HELLO = 1, 1  # src/wire/agent.h
REQUEST = struct.Struct("=IIII")  # version, op, timeout_ms, n
REPLY = struct.Struct("=IiiIIIQQ")  # version, error, result, more, gate, n, managed_bytes, driver_bytes
REPLY_BYTES_MAX, ANSWER_S, ASK_EVERY_S = 65536, 10, 0.02


def hello(path):
    """Bytes of device memory that the agent at @path manages; 0 where nobody listens yet, or any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.settimeout(ANSWER_S)
        try:
            agent.connect(path)
            agent.send(REQUEST.pack(VERSION, HELLO, 0, 0))
            packet = agent.recv(REPLY_BYTES_MAX)
        except (FileNotFoundError, ConnectionError):
            return 0
        except TimeoutError as error:
            raise Failed(f"agent {path}: no answer within {ANSWER_S} s") from error
    if not packet:  # it ended meanwhile
        return 0
    version, error, _, _, _, _, managed, _ = REPLY.unpack_from(packet)
    expect(version == VERSION and not error, f"agent {path}: version {version}, error {error}")
    return managed


class Library:
    """For one program and what it starts."""

    def __init__(self, check):
        self.dir = tempfile.mkdtemp(prefix="agents-", dir=check.instance.dir)
        self.env = {"LD_PRELOAD": check.build.program("libbrumate-cuda.so"), "BRUMATE_AGENT_DIR": self.dir}

    def words(self):
        """To be put before a program's arguments."""
        return ["env", *[f"{name}={value}" for name, value in self.env.items()]]

    def wait_managing(self, program, seconds=180):
        """Waits until device memory of the program, or of one that it started, is managed: the bytes."""
        deadline = time.monotonic() + seconds
        while True:
            alive = program.process.poll() is None
            managed = max((hello(os.path.join(self.dir, name)) for name in os.listdir(self.dir)), default=0)
            if managed:
                return managed
            expect(alive, f"the program ended and the library had managed no memory of it: {program.log.tail(8)}")
            expect(time.monotonic() < deadline, f"the library manages no memory of the program after {seconds} s")
            select.select([], [], [], ASK_EVERY_S)
