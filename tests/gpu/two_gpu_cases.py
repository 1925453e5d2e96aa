# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check that need two GPUs: both links at once, peer access, memory that processes
share, and GPUs that change places. The simulated driver has two as well."""

import concurrent.futures
import json
import os
import re
import signal
import sys
import time

from framework_cases import gpu_count, need_gpus
from harness import Log, expect, run

WARM_ROUNDS, ROUNDS = 1, 4
ENOUGH, ENOUGH_OF_LINKS = 1.85, 0.97  # times one GPU's rate, or of what both links do at once: either will do
COLD_S, ANSWER_S = 300, 60


def answers(log):
    return re.findall(r"^check (\w+)$", log.text(), re.MULTILINE)


def data_is_right(pid, log):
    """bench-job sums up all of its memory when asked."""
    n = len(answers(log))
    os.kill(pid, signal.SIGUSR1)
    log.wait_until(lambda _: len(answers(log)) > n, "the check of the data", ANSWER_S)
    expect(answers(log)[-1] == "OK", "the data is wrong")


def at_once(check, verb, jobs):
    """The operation on all jobs at the same moment: seconds until the last is done."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        start = time.monotonic()
        done = [pool.submit(check.instance.operation, verb, job, timeout=COLD_S) for job in jobs]
        check.operations.extend(future.result() for future in done)
        return time.monotonic() - start


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30


def measure_links(check, what):
    """What the machine's links can do at once, in the same minute."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "links.py")
    result = run([sys.executable, program], env=check.instance.program_env())
    expect(result.code == 0, result.why())
    for way, found in json.loads(result.out).items():
        check.measured[f"{what}: links {way}, one, GB/s"] = found["one"]
        check.measured[f"{what}: links {way}, both, GB/s"] = found["all"]


def both_at_once(check, what, pieces_kib):
    need_gpus(check, 2)
    if not check.options.simulated:
        measure_links(check, what)
    # Large beside what the driver needs whatever the size, if the memory allows it.
    mib = 49152 if memory_gib() > 200 else 16384
    if check.options.simulated:
        mib, pieces_kib = 256, "1024-16384"
    with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Broker]\nPool={2 * mib + 2048}M\n")
    jobs, logs = [], []
    for gpu in range(2):
        job = check.instance.run([check.program("bench-job"), "--mib", mib, "--piece-kib", pieces_kib, "--gpu", gpu],
                                 name=f"gpu-{gpu}", options=("--data-path", "broker"))
        jobs.append(job)
        logs.append(check.instance.log(job))
    for log in logs:
        log.wait_for(r"^ready ", 120)
    alone, together = {"suspend": [], "resume": []}, {"suspend": [], "resume": []}
    for n in range(WARM_ROUNDS + ROUNDS):
        # Alone the other one stays as it is: running.
        for job in jobs[:1] if n < WARM_ROUNDS else jobs:
            for verb in ("suspend", "resume"):
                alone[verb].append(at_once(check, verb, [job]))
        for verb in ("suspend", "resume"):
            together[verb].append(at_once(check, verb, jobs))
    for job, log in zip(jobs, logs):
        data_is_right(check.instance.job(job)["pid"], log)
        check.instance.end(job)
    tell_rates(check, what, mib, {verb: alone[verb][1:] for verb in alone}, {verb: together[verb][WARM_ROUNDS:] for verb in alone})


def tell_rates(check, what, mib, alone, together):
    """Of @mib on each GPU, moved one at a time and both together: {verb: [seconds]}."""
    missed = []
    for verb, way in (("suspend", "out"), ("resume", "in")):
        one, both = mib * 1.048576e-3 / min(alone[verb]), 2 * mib * 1.048576e-3 / min(together[verb])
        check.measured[f"{what}: {verb}, one, GB/s"] = round(one, 2)
        check.measured[f"{what}: {verb}, both, GB/s"] = round(both, 2)
        check.measured[f"{what}: {verb}, times one"] = round(both / one, 2)
        if check.options.simulated:
            continue  # one memory bus behind both
        links = check.measured[f"{what}: links {way}, both, GB/s"]
        if both < min(ENOUGH * one, ENOUGH_OF_LINKS * links):
            missed.append(f"{verb}: both {both:.1f} GB/s, expected {ENOUGH} times {one:.1f} or {ENOUGH_OF_LINKS} of {links}")
    expect(not missed, "; ".join(missed))


PAIR = """"$@" --gpu 0 >"$0-0" & "$@" --gpu 1 >"$0-1" & wait"""


def one_job_of_both(check):
    """One job with a process on each GPU, beside a job that has one of them."""
    need_gpus(check, 2)
    what, mib, pieces_kib = "two GPUs, one job", 32768, "65536-1048576"
    if check.options.simulated:
        mib, pieces_kib = 256, "1024-16384"
    else:
        measure_links(check, what)
    with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Broker]\nPool={3 * mib + 2048}M\n")
    program = [check.program("bench-job"), "--mib", mib, "--piece-kib", pieces_kib]
    one, log = check.job_started([*program, "--gpu", 0], "alone", options=("--data-path", "broker"))
    base = os.path.join(check.instance.dir, "pair")
    logs = [Log(f"{base}-{gpu}") for gpu in range(2)]
    for member in logs:
        with open(member.path, "w", encoding="utf-8"):
            pass
    pair = check.instance.run(["sh", "-c", PAIR, base, *program], name="pair", options=("--data-path", "broker"))
    pids = [int(member.wait_for(r"^ready pid (\d+)", 120)[1]) for member in logs]
    took = {job: {"suspend": [], "resume": []} for job in (one, pair)}
    for _ in range(WARM_ROUNDS + ROUNDS):
        for job, seconds in took.items():
            for verb in ("suspend", "resume"):
                seconds[verb].append(at_once(check, verb, [job]))
    for pid, member in zip([check.instance.job(one)["pid"], *pids], [log, *logs]):
        data_is_right(pid, member)
    check.instance.end(one)
    check.instance.end(pair)
    tell_rates(check, what, mib, *({verb: all_of[WARM_ROUNDS:] for verb, all_of in took[job].items()} for job in (one, pair)))


EACH = """n=0; while [ $n -lt $1 ]; do "$0" --mib $2 --piece-kib $3 --gpu $n >"$4-$n" & n=$((n + 1)); done; wait"""
SMALL_MIB = 64


def best_of(check, jobs, rounds):
    """The shortest suspend and resume of all @jobs at once: {verb: (seconds, phases of the last that ended)}."""
    best = {}
    for n in range(WARM_ROUNDS + rounds):
        for verb in ("suspend", "resume"):
            seconds = at_once(check, verb, jobs)
            if n >= WARM_ROUNDS and (verb not in best or seconds < best[verb][0]):
                best[verb] = seconds, check.operations[-1]["phases"]
    return best


def driver_alone(check, what):
    """As many processes with hardly any memory, each a job of its own that the driver saves, at the same moment."""
    jobs = [check.instance.run([check.program("bench-job"), "--mib", SMALL_MIB, "--piece-kib", 1024, "--gpu", gpu],
                               name=f"small-{gpu}", options=("--data-path", "driver")) for gpu in range(gpu_count(check))]
    for job in jobs:
        check.instance.log(job).wait_for(r"^ready ", 120)
    for verb, (seconds, _) in best_of(check, jobs, ROUNDS).items():
        check.measured[f"{what}: {verb}, driver alone, s"] = round(seconds, 3)
    for job in jobs:
        check.instance.end(job)


def a_process_on_each(check):
    """One job with a process on each GPU."""
    need_gpus(check, 2)
    what, mib, pieces_kib = "a process on each GPU", 16384, 65536
    if check.options.simulated:
        mib, pieces_kib = 256, 1024
    else:
        measure_links(check, what)
    with open(check.instance.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Broker]\nPool={gpu_count(check) * mib + 2048}M\n")
    driver_alone(check, what)
    base = os.path.join(check.instance.dir, "each")
    logs = [Log(f"{base}-{gpu}") for gpu in range(gpu_count(check))]
    for log in logs:
        with open(log.path, "w", encoding="utf-8"):
            pass
    job = check.instance.run(["sh", "-c", EACH, check.program("bench-job"), len(logs), mib, pieces_kib, base], name="each",
                             options=("--data-path", "broker"))
    pids = [int(log.wait_for(r"^ready pid (\d+)", 120)[1]) for log in logs]
    for verb, (seconds, phases) in best_of(check, [job], ROUNDS).items():
        check.measured[f"{what}: {verb}, {mib} MiB a GPU, s"] = round(seconds, 3)
        for phase in phases:
            if phase["seconds"] >= 0.02:
                check.measured[f"{what}: {verb}, {phase['name']}, from and for, s"] = [round(phase["start"], 3), round(phase["seconds"], 3)]
    for pid, log in zip(pids, logs):
        data_is_right(pid, log)
    check.instance.end(job)


def swapped(check):
    """Their data on the other GPU each, twice, so that they end where they were."""
    need_gpus(check, 2)
    job, log = check.job_started([check.program("kinds"), "two-gpus", "--mib", 64], "two-gpus")
    log.goes_on()
    check.do("suspend", job, "--force")
    check.do("resume", job, "--gpu-map", "0=1,1=0")
    log.goes_on()
    saved = check.do("checkpoint", job, "--force")
    check.do("restore", saved["checkpoint"], "--gpu-map", "0=1,1=0")
    log.goes_on()
    check.instance.end(job)
    log.is_right()


def peer_access(check):
    """One process, two GPUs that reach each other's memory: the driver alone could not restore it."""
    need_gpus(check, 2)
    job, log = check.job_started([check.program("kinds"), "peer", "--mib", 64], "peer",
                                 options=("--data-path", "broker"))
    log.goes_on()
    for verb in ("suspend", "resume"):
        check.do(verb, job, *(("--force",) if verb == "suspend" else ()))
    log.goes_on()
    saved = check.do("checkpoint", job, "--force")
    check.do("restore", saved["checkpoint"])
    log.goes_on()
    check.instance.end(job)
    log.is_right()


def without_peer_access(check):
    """One process copies between two GPUs that do not reach each other's memory, as far as it asks for: by way of the host."""
    need_gpus(check, 2)
    job, log = check.job_started([check.program("kinds"), "across", "--mib", 64], "across", options=("--data-path", "broker"))
    log.goes_on()
    for gpus in ((), ("--gpu-map", "0=1,1=0")):
        check.do("suspend", job)
        check.do("resume", job, *gpus)
        log.goes_on()
        saved = check.do("checkpoint", job)
        check.do("restore", saved["checkpoint"], *gpus)
        log.goes_on()
    check.instance.end(job)
    log.is_right()


def steps_of_members(log):
    """{member: its last step}."""
    expect(not re.search(r"BAD|ERR|not \d", log.text()), f"wrong data: {log.tail()}")
    return {member: int(n) for member, n in re.findall(r"^member (\d+) step (\d+) OK$", log.text(), re.MULTILINE)}


def members_go_on(log, count=2):
    before = steps_of_members(log)

    def all_do(_):
        now = steps_of_members(log)
        return len(now) == count and all(n >= before.get(member, 0) + 3 for member, n in now.items())

    log.wait_until(all_do, "steps of all members", ANSWER_S)


def shared(check, way):
    """Two processes, each on a GPU with memory of the other's: tests/programs/partners.c."""
    need_gpus(check, 2)
    job = check.instance.run([check.program("partners"), way, "--mib", 64], name="partners", options=("--data-path", "broker"))
    log = check.instance.log(job)
    members_go_on(log)
    for gpus in ((), ("--gpu-map", "0=1,1=0")):
        check.do("suspend", job)
        check.do("resume", job, *gpus)
        members_go_on(log)
        saved = check.do("checkpoint", job)
        check.do("restore", saved["checkpoint"], *gpus)
        members_go_on(log)
    check.instance.end(job)
    steps_of_members(log)


IPC = """"$0" ipc-export --path "$1" >"$1.out" &
until [ -e "$1" ]; do sleep 0.1; done
exec "$0" ipc-import --path "$1" """


def legacy_ipc(check):
    """Two processes of one job, one with memory of the other's: each checks its half of it. Not without
    --force, and then both go on; what comes of it with --force is told, not judged."""
    handle = os.path.join(check.instance.dir, "handle")
    job, log = check.job_started(["sh", "-c", IPC, check.program("kinds"), handle], "ipc",
                                 options=("--data-path", "broker"))
    exporter = Log(f"{handle}.out")
    refused = check.instance.cli("suspend", job)
    if refused.code:
        expect(refused.code == 4, f"the job was touched: {refused.why()}")
        check.measured["legacy IPC: suspend"] = refused.err.splitlines()[0]
        log.goes_on()
        exporter.goes_on()
        refused = check.instance.cli("suspend", job, "--force")
    if refused.code == 0:
        refused = check.instance.cli("resume", job)
    if refused.code == 0:
        log.goes_on()
        exporter.goes_on()
    check.measured["legacy IPC: suspend and resume by --force"] = (
        f"{check.instance.job(job)['state']}: {(refused.err.splitlines() or ['as before'])[0]}")
    log.is_right()
    exporter.is_right()


def register(case):
    """Adds the cases to gpu-check's list."""
    case("two GPUs: both at once")(lambda check: both_at_once(check, "two GPUs at once", "65536-1048576"))
    case("two GPUs: both at once, smaller buffers")(
        lambda check: both_at_once(check, "two GPUs at once, 16 to 256 MiB", "16384-262144"))
    case("two GPUs: both at once, one job")(one_job_of_both)
    case("two GPUs: a process on each of all GPUs")(a_process_on_each)
    case("two GPUs: peer access through the library")(peer_access)
    case("two GPUs: copies without peer access")(without_peer_access)
    case("two GPUs: swapped by --gpu-map")(swapped)
    case("two GPUs: shared memory, by descriptors")(lambda check: shared(check, "fd"))
    case("two GPUs: shared memory, by legacy IPC")(lambda check: shared(check, "ipc"))
    case("two GPUs: shared memory, whose makers have ended")(lambda check: shared(check, "left"))
    case("two GPUs: shared memory, while streams are captured")(lambda check: shared(check, "captured"))
    case("legacy IPC through the library")(legacy_ipc)
