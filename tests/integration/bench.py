#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`brumate bench`: what it shows; and where it is interrupted, or killed, nothing of its job is left, neither processes
nor memory nor records nor checkpoints."""

import json
import os
import re
import signal
import sys

from cases import case, expect, main, run, wait_until

EACH = ["suspend", "resume", "checkpoint", "restore", "leave-running"]
SMALL = ("bench", "--size", "16M", "--pieces", "4M", "--data-path", "broker", "--no-checkpoint", "--rounds", "50")
ONCE = (*SMALL[:-1], "1")
SAVED = tuple(word for word in ONCE if word != "--no-checkpoint")


def expect_nothing(bed, store=None):
    wait_until(lambda: not bed.list("ps", "jobs"), "the end of the job's record", 60)
    logs = [name for name in os.listdir(bed.own["BRUMATE_LOG_DIR"]) if name != "broker.log"]
    expect(not logs, f"logs are left: {logs}")
    expect(not store or not os.listdir(store), f"checkpoints are left: {store and os.listdir(store)}")
    wait_until(lambda: not bed.named("brumate-shim"), "the end of shim and keeper", 20)


@case
def a_signal_ends_the_job_first(bed):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with bed.held_at("resume.copy.begin", *SMALL) as bench:
            bench.signal(number)
        code, out, err = bench.end()
        expect(code == 1 and "bench: interrupted" in err, f"{number}: {code}: {err}")
        expect("suspend" in out, f"{number}: what was measured is not shown: {out!r}")
        expect(not bed.list("ps", "jobs"), f"{number}: {bed.list('ps', 'jobs')}")
        expect_nothing(bed)


def ignore_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@case
def a_signal_that_is_ignored_ends_nothing(bed):
    """As nohup(1) starts it."""
    bed.fault("resume.copy.begin", "hold")
    with bed.holding("resume.copy.begin", bed.spawn(*ONCE, preexec_fn=ignore_hangup)) as bench:
        bench.signal(signal.SIGHUP)
    code, out, err = bench.end()
    expect(code == 0 and "interrupted" not in err and "resume" in out, f"{code}: {out!r} {err!r}")
    expect_nothing(bed)


OF_LIBC = 1 << 32 - 1 | 1 << 33 - 1  # signals that are its own, and that it lets nobody set
SAYS_IGNORED = """
import subprocess, harness
harness.plain_signals()
print(subprocess.run(["grep", "^Sig[BI]", "/proc/self/status"], stdout=subprocess.PIPE, text=True).stdout)
"""


@case
def what_tests_start_ignores_nothing(bed):
    """However the tests themselves were started."""
    def ignore_all():
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))

    result = run([sys.executable, "-c", SAYS_IGNORED], preexec_fn=ignore_all, cwd=os.path.dirname(os.path.abspath(__file__)))
    said = {name: int(mask, 16) & ~OF_LIBC for name, mask in re.findall(r"^(Sig\w+):\s+(\w+)$", result.out, re.MULTILINE)}
    expect(said == {"SigBlk": 0, "SigIgn": 0}, f"{result.out} {result.why()}")


@case
def a_signal_removes_its_checkpoint(bed):
    store = os.path.join(bed.dir, "store")
    with bed.held_at("checkpoint.end.begin", *SAVED, "--dir", store) as bench:
        bench.signal(signal.SIGINT)
    code, _, err = bench.end()
    expect(code == 1 and "bench: interrupted" in err, f"{code}: {err}")
    expect_nothing(bed, store)


@case
def killed_while_its_job_is_suspended(bed):
    for point in ("suspend.gpu-checkpoint.begin", "resume.copy.begin"):
        with bed.held_at(point, *SMALL) as bench:
            bench.signal(signal.SIGKILL)
            bench.process.wait()
        expect_nothing(bed)


@case
def killed_while_its_job_is_on_disk(bed):
    store = os.path.join(bed.dir, "store")
    with bed.held_at("restore.criu.begin", *SAVED, "--dir", store) as bench:
        bench.signal(signal.SIGKILL)
        bench.process.wait()
    expect_nothing(bed, store)


@case
def killed_with_its_shim(bed):
    """What is left the next gc, and the next benchmark, end."""
    for cleaner in (("prune", "--leftovers"), ONCE):
        bench = bed.spawn(*SMALL)
        wait_until(lambda: any(job["state"] == "suspended" for job in bed.list("ps", "jobs")) or
                   bench.process.poll() is not None, "a suspended job", 60)  # noqa: B023
        expect(bench.process.poll() is None, "the benchmark has ended")
        bench.signal(signal.SIGSTOP)
        for pid in bed.named("brumate-shim"):
            os.kill(pid, signal.SIGKILL)
        bench.signal(signal.SIGKILL)
        bench.process.wait()
        bed.ok(*cleaner)
        expect_nothing(bed)


@case
def to_its_end(bed):
    store = os.path.join(bed.dir, "store")
    result = bed.ok(*SAVED, "--dir", store, "--format", "json", timeout=200).json()
    expect([r["operation"] for r in result["results"]] == EACH, f"{result}")
    left_running = result["results"][-1]
    expect(0 < left_running["standing_s"] < left_running["seconds"], f"{left_running}")
    expect(isinstance(result["advice"], list), f"{result}")
    expect_nothing(bed, store)


@case
def what_a_user_sees(bed):
    """Checkpoints go where a user's go, and are gone afterwards; what a user waits for is said, and how to make that less."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Broker]\nPool=32M\n")
    out = bed.ok("bench", "--size", "64M", timeout=400).out
    for row in ("first suspend", "later suspends", "resume, until it computes", "checkpoint",
                "restore, until it computes", "it stands still for --leave-running"):
        expect(re.search(rf"^{row} +[\d.]+ m?s +[\d.]+ m?s +[\d.]+ x$", out, re.M), f"{row}: {out}")
    expect("- a larger Pool= " in out.split("What would make this faster:\n")[1], out)
    expect_nothing(bed, bed.store())


@case
def where_there_is_no_room_for_checkpoints(bed):
    """None are made in the default place, and that is said; in a place that was named it is an error."""
    small = bed.tmpfs("24m")
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Store]\nDirectory={small}\n")
    result = bed.ok(*SAVED, "--format", "json")
    expect([r["operation"] for r in result.json()["results"]] == EACH[:2], f"{result.out}")
    expect(f"no checkpoints are measured: {small} has" in result.err, result.err)
    bed.refused(2, "--no-checkpoint cannot be combined with --dir", *ONCE, "--dir", bed.dir)


@case
def phases_as_a_trace(bed):
    """Its tracks have names, and its copies rates."""
    trace = os.path.join(bed.dir, "trace.json")
    bed.ok(*ONCE, "--trace", trace)
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    expect({e["tid"] for e in spans} <= named and len(spans) > 4, f"{events}")
    copies = [e for e in spans if e["name"] in ("data-out", "data-in")]
    expect(len(copies) == 2 and all(e["args"]["bytes"] > 0 and e["args"]["GB/s"] > 0 for e in copies), f"{copies}")


@case
def a_page_for_people(bed):
    out = bed.ok(*ONCE, env={"LC_ALL": "C.UTF-8"}).out
    expect(re.search(r"^suspend +broker +│[▏▎▍▌▋▊▉█]+ *│ +\d+ %  \d+\.\d\d of \d+\.\d\d GB/s$", out, re.M), out)


@case
def errors_are_of_the_benchmark(bed):
    """Nothing of the source of its job, or of the job's own options."""
    refused = {
        ("--size", "900G"): (1, "not enough room on the GPU: 900 GiB needed"),
        ("--size", "2M", "--pieces", "64M"): (2, "smaller --pieces"),
        ("--size", "16M", "--trace", "/proc/nothing/here"): (3, "/proc/nothing/here: No such file"),
    }
    for options, (code, words) in refused.items():
        result = bed.fails(code, "bench", *options)
        expect(words in result.err and ".c:" not in result.err and "bench-job" not in result.err, result.why())
    expect_nothing(bed)


WAITS = ["cold_start", "awake", "wake_from_memory", "wake_from_disk", "swap"]
SERVED = ("bench", "--serve", "--size", "16M", "--pieces", "4M", "--rounds", "1")


@case
def what_clients_of_a_server_wait_for(bed):
    """Each is measured, and shown; and nothing is left, also of one that is interrupted."""
    store = os.path.join(bed.dir, "store")
    found = json.loads(bed.ok(*SERVED, "--dir", store, "--format", "json", timeout=180).out)
    expect(found["bytes"] == 16 << 20 and found["simulated"] is True, found)
    expect([found[key]["rounds"] for key in WAITS] == [2, 1, 1, 1, 2], found)
    expect(all(0 < found[key]["fastest_s"] <= found[key]["first_s"] for key in WAITS), found)
    expect_nothing(bed, store)
    shown = bed.ok(*SERVED, "--no-checkpoint", timeout=180).out
    expect(len(re.findall(r"^[a-z].*  \d+\.\d{3} s +\d+\.\d{3} s$", shown, re.MULTILINE)) == 4 and "disk" not in shown, shown)
    with bed.held_at("suspend.copy.begin", *SERVED, "--dir", store) as bench:
        bench.signal(signal.SIGINT)
    code, out, err = bench.end()
    expect(code == 1 and not out and "bench: interrupted" in err, f"{code}: {out!r} {err!r}")
    expect_nothing(bed, store)
    bed.refused(2, "--serve cannot be combined", *SERVED, "--data-path", "driver")


if __name__ == "__main__":
    main()
