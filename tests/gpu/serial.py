#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""serial.py COUNTER [N]: how far the driver takes processes one after the other. N idle programs on GPU 0 are locked,
checkpointed, restored and unlocked by the driver's calls alone: in turn, all at once by threads of one caller, and all at once
by a caller each. Prints seconds, of the whole and of each call."""

import argparse
import concurrent.futures
import ctypes
import json
import subprocess
import sys
import time

CALLS = ("Lock", "Checkpoint", "Restore", "Unlock")


def open_driver():
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0):
        sys.exit("the driver does not initialise")
    return cuda


def call(cuda, name, pid):
    """Returns when the call began and ended, and its result."""
    args = (ctypes.c_uint64 * 64)()  # all zero: no time limit, the same GPUs
    begin = time.monotonic()
    result = getattr(cuda, "cuCheckpointProcess" + name)(pid, ctypes.byref(args))
    return begin, time.monotonic(), result


def serve(pid):
    """A caller: makes the calls that it reads."""
    cuda = open_driver()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(call(cuda, line.strip(), pid)), flush=True)


def wait_ready(process):
    while not process.stdout.readline().startswith("ready"):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended")


def measure(programs, callers):
    cuda = open_driver()
    pool = concurrent.futures.ThreadPoolExecutor(len(programs))

    def by_callers(name):
        for caller in callers:
            caller.stdin.write(name + "\n")
            caller.stdin.flush()
        return [json.loads(caller.stdout.readline()) for caller in callers]

    ways = {"one after the other": lambda name: [call(cuda, name, p.pid) for p in programs],
            "threads of one caller": lambda name: list(pool.map(lambda p: call(cuda, name, p.pid), programs)),
            "a caller each": by_callers}
    for way, act in ways.items():
        for name in CALLS:
            found = act(name)
            failed = [result for _, _, result in found if result]
            if failed:
                sys.exit(f"{way}: {name} failed: {failed[0]}")
            whole = max(end for _, end, _ in found) - min(begin for begin, _, _ in found)
            print(f"{way}, {name}: whole {whole:.3f} s; each", " ".join(f"{end - begin:.3f}" for begin, end, _ in found), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counter", help="tests/programs/counter of a build")
    parser.add_argument("n", nargs="?", type=int, default=8)
    parser.add_argument("--serve", type=int, metavar="PID", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve)
    processes = []
    try:
        command = [args.counter, "--mib", "64", "--chunk-mib", "16", "--interval-ms", "300"]
        programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(args.n)]
        processes += programs
        callers = [subprocess.Popen([sys.executable, __file__, args.counter, "--serve", str(p.pid)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True) for p in programs]
        processes += callers
        for process in processes:
            wait_ready(process)
        measure(programs, callers)
    finally:
        for process in processes:
            process.kill()
    return None


if __name__ == "__main__":
    sys.exit(main())
