#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How long runc takes to checkpoint and restore a container with large CPU memory: by turns where CRIU saves it and where brumate does
(Memory= in brumate.conf(5)). On the simulated driver, as root:

    BUILD=build TMPDIR=/tmp python3 tests/bench/container-memory.py MIB ROUNDS
"""

import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integration"))
from cases import Bed  # noqa: E402 (it stands beside this folder)
from harness import Build  # noqa: E402
from runc import Container  # noqa: E402

START_S, RUN_S = 300, 300
SHARES = 3.8  # what the program has in memory, of its --mib


def timed(operation):
    start = time.monotonic()
    operation(timeout=RUN_S)
    return time.monotonic() - start


def go_round(container, who):
    """A checkpoint and a restore; the seconds of each, and bytes of CRIU's images of memory."""
    with open(container.bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Container]\nMemory={who}\n")
    out = timed(container.saved)
    container.end()
    back = timed(container.restored)
    pages = [name for name in os.listdir(container.image) if name.startswith("pages-")]
    written = sum(os.path.getsize(os.path.join(container.image, name)) for name in pages)
    container.log().goes_on(1)
    shutil.rmtree(container.image)
    return out, back, written


def main(mib, rounds):
    command = (f"/bin/memory alone --mib {int(int(mib) / SHARES)} --interval-ms 1000000 > /tmp/memory & "
               "exec /bin/counter --mib 16 --chunk-mib 16 --interval-ms 200 > /tmp/out")
    with Bed(Build(os.environ["BUILD"])) as bed:
        with Container(bed, command, programs=("counter", "memory")) as container:
            container.start(("memory", "out"), START_S)
            for _ in range(int(rounds)):
                for who in ("criu", "brumate"):
                    out, back, written = go_round(container, who)
                    print(f"{who:8} checkpoint {out:6.2f} s  restore {back:6.2f} s  {written >> 20} MiB in CRIU's images, "
                          f"load {os.getloadavg()[0]:.0f}", flush=True)
        bed.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
