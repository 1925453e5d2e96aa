#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What can be checked of the GPU suites where there is no GPU and no framework: every program parses its
options, and says why it cannot run; the plan is sound; the report makes its tables of what it is given."""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(HERE, "..", "..", "tools")
NO_PACKAGES = ["-S"]  # without what is installed beside Python itself
NOT_HERE = 77


def check(condition, text):
    if not condition:
        print(f"FAILED: {text}")
        sys.exit(1)


def call(*argv):
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *argv], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, check=False)


def programs():
    for path in sorted(glob.glob(os.path.join(HERE, "*.py"))):
        with open(path, encoding="utf-8") as file:
            if re.search("^import gpu_steps$", file.read(), re.MULTILINE):
                yield path


def programs_say_what_they_lack():
    found = list(programs())
    check(len(found) >= 10, f"only {len(found)} programs found")
    for path in found:
        done = call(*NO_PACKAGES, path, "--help")
        check(done.returncode == 0 and "--steps" in done.stdout and "--interval-ms" in done.stdout,
              f"{path} --help: {done}")
        done = call(*NO_PACKAGES, path, "--nonsense")
        check(done.returncode == 2, f"{path} takes any option: {done}")
        done = call(*NO_PACKAGES, path, "--steps", "1")
        # Some need no package: they run where there is a driver.
        check(done.returncode == NOT_HERE and re.match(r"SKIP: \S", done.stdout) or "step 1 " in done.stdout,
              f"{path}: {done}")


def plan_is_sound():
    tool = os.path.join(TOOLS, "gpu-check")
    names = call(tool, "--list").stdout.splitlines()
    check(len(names) > 50 and len(set(names)) == len(names), f"{len(names)} cases, {len(set(names))} names")
    planned = call(tool, "--plan", "--parallel", "4").stdout
    missing = [name for name in names if name not in planned]
    check(not missing, f"not in the plan: {missing}")
    first = call(tool, "--plan").stdout.splitlines()[0]
    check("bench: 32 GiB" in first, f"the headline does not come first, but {first}")


def report_is_made_of_figures():
    def result(operation, path, number, seconds, gbps, stored=1 << 34):
        phases = [{"name": "gpu-checkpoint" if operation == "suspend" else "gpu-restore", "seconds": 0.4}]
        return {"operation": operation, "path": path, "round": number, "seconds": seconds, "until_beat_s": 0,
                "gbps": gbps, "share_of_limit": gbps / 50, "bytes": 1 << 34,
                "summary": {"phases": phases, "data_gbps": 51.0, "image_bytes": stored}}

    bench = {"limits": {"d2h_gbps": 50.0, "h2d_gbps": 50.0}, "bytes": 1 << 35, "results": [
        result("suspend", "broker", 1, 2.0, 17.0), result("suspend", "broker", 2, 0.7, 48.0),
        result("suspend", "driver", 2, 14.0, 2.4), result("resume", "broker", 2, 1.0, 34.0)]}
    results = {"machine": {"kernel": "k", "cores": 1, "time": "t", "gpus": ["a GPU"]}, "cases": [],
               "measured": {"steady state, training: slower by, %": 0.12,
                            "cost of calls: launch, plain, µs": 1.6,
                            "cost of calls: launch, with the library, µs": 1.606,
                            "cost of calls: launch, at least, %": 0.31,
                            "cost of calls: launch, at most, %": 0.44,
                            "cost of calls: launch, without it, %": "-0.02 to 0.03",
                            "cost of calls: launch-with-room, plain, µs": 1.6,
                            "cost of calls: launch-with-room, with the library, µs": 1.606,
                            "cost of calls: launch-with-room, at least, %": -0.9,
                            "cost of calls: launch-with-room, at most, %": 1.4,
                            "cost of calls: launch-with-room, without it, %": "-1.02 to 1.03",
                            "cost of calls: malloc-free-2048-KiB, plain, µs": 6.0,
                            "cost of calls: malloc-free-2048-KiB, with the library, µs": 5.0,
                            "cost of calls: malloc-free-2048-KiB, at least, %": -17.1,
                            "cost of calls: malloc-free-2048-KiB, at most, %": -16.2,
                            "cost of calls: malloc-free-2048-KiB, without it, µs": 9.0}}
    disk = {"limits": {"disk_write_gbps": 1.0, "fio_write_gbps": 2.0}, "bytes": 1 << 34,
            "results": [result("checkpoint", "broker", 1, 4.0, 1.6)]}
    shared = {"limits": disk["limits"], "bytes": 1 << 34,
              "results": [result("checkpoint", "broker", 1, 4.0, 1.6, stored=1 << 32)]}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in (("results.json", results), ("bench-32g.json", bench), ("bench-disk.json", disk),
                            ("bench-40g-disk.json", shared)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump(value, file)
        done = call(os.path.join(TOOLS, "gpu-bench-report"), folder)
        for text in ("96.0 %: 0.700 s (48.00 GB/s); data alone 51.0 GB/s, control 0.40 s | aim | 14.000 s (2.40 GB/s) | 50.00 GB/s, link |",
                     "20.0 ×: 0.700 s (48.00 GB/s) | aim |", "68.0 %: 1.000 s (34.00 GB/s); data",
                     "0.12 % | aim |", "0.37 %: 1.606 µs a call | must | 1.600 µs | 0.31 to 0.44 %; without the library -0.02 to 0.03 % |",
                     "0.37 %: 1.606 µs a call | falls short | 1.600 µs | -0.90 to 1.40 %",
                     "5.0 µs a pair | must | cuMemAlloc 9.0 µs | 6.0 µs, VMM calls; -17.1 to -16.2 % more |",
                     "80.0 %: 4.000 s (1.60 GB/s) | falls short |  | 2.00 GB/s, fio |",
                     "nothing: of 17.2 GB 4.3 were stored", "not measured"):
            check(text in done.stdout, f"no {text!r} in the report: {done}")
        check("-trace" not in done.stdout, "a trace is no benchmark")
        empty = os.path.join(folder, "empty")
        os.mkdir(empty)
        done = call(os.path.join(TOOLS, "gpu-bench-report"), empty)
        check(done.returncode == 1 and "neither results.json" in done.stderr, f"an empty folder: {done}")


def timeline_is_drawn():
    """Of each kind of operation the last one: every phase that took a while, at its place."""
    def operation(what, seconds):
        phases = [{"name": "identify", "start": 0.0, "seconds": 0.0001}, {"name": "data-out", "start": 0.1, "seconds": 0.4}]
        return {"operation": "suspend", "what": what, "seconds": seconds, "phases": phases}

    results = {"machine": {}, "cases": [
        {"name": "defaults: a model", "operations": [operation("suspend, first", 2.0), operation("checkpoint 0", 0.5),
                                                     operation("checkpoint --leave-running 1", 1.0),
                                                     {"operation": "resume", "seconds": 1.0, "phases": []}]},
        {"name": "engine: another", "operations": [operation("suspend, first", 7.0), operation("restore 0", 7.0)]}]}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "timeline.svg")
        with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as file:
            json.dump(results, file)
        done = call(os.path.join(TOOLS, "gpu-timeline"), "--out", out, folder)
        check(done.returncode == 0, f"no timeline: {done}")
        with open(out, encoding="utf-8") as file:
            drawn = file.read()
        for text in ("first suspend", "checkpoint, job ends", "checkpoint --leave-running", "2.00 s", "0.50 s", 'x="230.0" y="66" width="120.0"'):
            check(text in drawn, f"no {text!r} in the timeline: {drawn}")
        check(drawn.count("data-out") == 3 and "identify" not in drawn, f"other phases are drawn: {drawn}")
        with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as file:
            json.dump({"machine": {}, "cases": []}, file)
        done = call(os.path.join(TOOLS, "gpu-timeline"), "--out", out, folder)
        check(done.returncode == 1 and "no operation" in done.stderr, f"nothing was measured: {done}")


def main():
    programs_say_what_they_lack()
    plan_is_sound()
    report_is_made_of_figures()
    timeline_is_drawn()


if __name__ == "__main__":
    main()
