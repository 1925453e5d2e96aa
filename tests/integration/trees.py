#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of many processes: members whose parents have ended, that share nothing, that start and end all the while,
that do without CUDA or without our library."""

import json
import os
import re
import signal
import sys

from cases import EXIT_BUSY, EXIT_UNSUPPORTED, case, expect, main, pids, process_start, read_text, wait_until


def counting(bed, log, mib=8):
    """A shell command: a counter that writes to the file @log."""
    return f"{bed.program('counter')} --mib {mib} --chunk-mib {mib} --interval-ms 40 > {log} 2>&1"


class Output:
    """What a member writes to a file of its own."""

    def __init__(self, path):
        self.path = path

    def steps(self):
        text = read_text(self.path)
        expect("BAD" not in text and "ERR" not in text, f"{self.path}: wrong data: {text[-300:]}")
        numbers = [int(n) for n in re.findall(r"step (\d+) OK", text, re.M)]
        expect(numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True,
               f"{self.path}: steps are missing or doubled")
        return numbers[-1] if numbers else 0

    def goes_on(self):
        before = self.steps()
        wait_until(lambda: self.steps() >= before + 3, f"{self.path} goes on", 60)


def outputs(bed, count):
    return [Output(os.path.join(bed.dir, f"member-{i}.log")) for i in range(count)]


def members(bed, job):
    """The job's processes but for its root, which is brumate's: {pid: command}."""
    record = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))
    below, found = [record["root"]["pid"]], {}
    for pid in below:
        for task in os.listdir(f"/proc/{pid}/task") if os.path.isdir(f"/proc/{pid}/task") else []:
            below += [int(word) for word in read_text(f"/proc/{pid}/task/{task}/children").split()]
    for pid in below[1:]:
        found[pid] = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return found


def stand_still(bed, outs):
    before = [out.steps() for out in outs]
    expect(bed.cli("ps").code == 0, "ps")
    expect([out.steps() for out in outs] == before, "a member works while the job is suspended")


def all_go_on(outs):
    for out in outs:
        out.goes_on()


def all_gone(left):
    for pid in left:
        wait_until(lambda pid=pid: process_start(pid) is None, f"process {pid} ends", 10)


def with_orphans(bed):
    """A command with a daemon, a child of a shell that has ended, and itself."""
    outs = outputs(bed, 3)
    script = (f"(setsid {counting(bed, outs[0].path)} &); sh -c '{counting(bed, outs[1].path)} &';"
              f" echo ready all; exec {counting(bed, outs[2].path)}")
    job, _ = bed.started(["sh", "-c", script])
    all_go_on(outs)
    return job, outs


@case
def orphans_are_members(bed):
    job, outs = with_orphans(bed)
    entry = bed.job(job)
    expect(entry["processes"] == 3 and entry["gpu_processes"] == 3, f"{entry}")
    left = list(members(bed, job))
    for _ in range(2):
        bed.operation("suspend", job, "--force")
        expect([bed.gpu_state(pid) for pid in left] == ["checkpointed"] * 3, "a member is on the GPU")
        stand_still(bed, outs)
        bed.operation("resume", job)
        all_go_on(outs)
    bed.ok("kill", job)
    all_gone(left)
    bed.ok("rm", job)


@case
def orphans_in_a_checkpoint(bed):
    job, outs = with_orphans(bed)
    left = list(members(bed, job))
    checkpoint = bed.operation("checkpoint", job, "--force")["checkpoint"]
    all_gone(left)
    bed.operation("restore", checkpoint)
    all_go_on(outs)
    expect(sorted(members(bed, job)) == sorted(left), "other processes than before")
    checkpoint = bed.operation("checkpoint", job, "--force", "--leave-running")["checkpoint"]
    all_go_on(outs)
    bed.kill_shim(job)
    bed.operation("suspend", job, "--force")
    stand_still(bed, outs)
    bed.operation("resume", job)
    all_go_on(outs)
    bed.end(job)
    all_gone(left)


@case
def workers_of_a_launcher_that_left(bed):
    """The job lives as long as a process of it; its exit code is that of its command."""
    out, = outputs(bed, 1)
    job = bed.run(["sh", "-c", f"{counting(bed, out.path)} & exit 5"])
    out.goes_on()
    expect(bed.state(job) == "running" and bed.job(job)["processes"] == 1, f"{bed.job(job)}")
    bed.refused(EXIT_BUSY, "is running", "rm", job)
    pid, = members(bed, job)
    bed.operation("suspend", job)
    stand_still(bed, [out])
    bed.operation("resume", job)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    all_gone([pid])
    bed.operation("restore", checkpoint)
    out.goes_on()
    os.kill(pid, signal.SIGTERM)
    expect(bed.cli("wait", job).code == 5, "the exit code is not the command's")


@case
def daemon_without_its_session(bed):
    """Its parent and the leader of its session have ended: it cannot be saved, which is said before anything is done."""
    out, = outputs(bed, 1)
    script = f"setsid sh -c '{counting(bed, out.path)} &'; echo ready all; exec sleep 600"
    job, _ = bed.started(["sh", "-c", script])
    out.goes_on()
    pid = next(pid for pid, command in members(bed, job).items() if "counter" in command)
    bed.refused(EXIT_UNSUPPORTED, f"process {pid} .counter.*session", "checkpoint", job)
    bed.expect_state(job, "running")
    out.goes_on()
    bed.operation("suspend", job)
    stand_still(bed, [out])
    bed.operation("resume", job)
    out.goes_on()
    bed.ok("kill", job)
    all_gone([pid])


@case
def exit_codes(bed):
    for script, code in (("exit 7", 7), ("kill -USR1 $$", 128 + signal.SIGUSR1), ("sleep 0.2 & exit 3", 3),
                         ("kill -KILL $$", 137), ("kill -SEGV $$", 139)):
        job = bed.run(["sh", "-c", script])
        result = bed.cli("wait", job)
        expect(result.code == code, f"{script}: {result.why()}")


@case
def kill_leaves_nobody(bed):
    """The command ends at once when it is asked to, a daemon of it does not; the code is the command's."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready so', flush=True); time.sleep(600)"
    job, _ = bed.started(["sh", "-c", f'(setsid {sys.executable} -u -c "{stubborn}" &); exec sleep 600'])
    left = list(members(bed, job))
    expect(len(left) == 2, f"{members(bed, job)}")
    bed.ok("kill", "--grace", "20s", job)
    all_gone(left)
    expect(bed.cli("wait", job).code == 143, "the exit code is not the command's")
    # The same where the shim that started it is dead, and where the command has ended long before.
    job, _ = bed.started(["sh", "-c", f'{sys.executable} -u -c "{stubborn}" & exit 0'])
    left = list(members(bed, job))
    bed.kill_shim(job)
    bed.ok("kill", "--grace", "1s", job)
    all_gone(left)


@case
def killed_reaper(bed):
    """What it leaves behind is the job from then on; it cannot be saved as long as it is not a tree."""
    job, outs = with_orphans(bed)
    left = list(members(bed, job))
    record = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))
    os.kill(record["root"]["pid"], signal.SIGKILL)
    all_go_on(outs)
    wait_until(lambda: bed.job(job)["processes"] == 3, "the orphans are the job")
    bed.operation("suspend", job)
    stand_still(bed, outs)
    bed.operation("resume", job)
    all_go_on(outs)
    bed.refused(EXIT_UNSUPPORTED, "its parent has ended", "checkpoint", job)
    bed.ok("kill", job)
    all_gone(left)


@case
def ended_by_a_trap(bed):
    """The root takes a trap for what a CRIU left in it, but not the one that it ends by itself."""
    job, _ = bed.counter()
    os.kill(bed.pid(job), signal.SIGTRAP)
    bed.wait_state(job, ("exited",))
    expect(bed.job(job)["exit_code"] == 128 + signal.SIGTRAP, f"{bed.job(job)}")


@case
def init_of_a_taken_pid(bed):
    """Who it is that keeps such a job alive can be read, and the job ends with it."""
    job, log = bed.counter()
    pid = bed.pid(job)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.take_pid(pid)
    notes = bed.operation("restore", checkpoint)["notes"]
    log.goes_on()
    init = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))["init"]["pid"]
    told = f"process {init} .brumate-init. is "
    expect(any(re.search(told, note) for note in notes), f"{notes}")
    found = bed.ok("doctor", "--job", job, "--format", "json").json()["findings"]
    expect(any(re.search(told, f["text"]) for f in found), f"{found}")
    expect(read_text(f"/proc/{init}/cmdline").startswith("brumate-init\0"), read_text(f"/proc/{init}/cmdline"))
    scores = [int(read_text(f"/proc/{p}/oom_score_adj")) for p in (init, bed.shim(job), bed.pid(job))]
    expect(scores[0] == scores[1] <= scores[2], f"{scores}")
    os.kill(init, signal.SIGKILL)
    bed.wait_state(job, ("exited", "lost"))


@case
def pid_of_a_helper_is_no_reason(bed):
    """Checkpoint and restore again and again, at once: no number of the job is another's."""
    job, log = bed.counter()
    for _ in range(5):
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        notes = bed.operation("restore", checkpoint)["notes"]
        expect(not bed.job(job)["pid_namespace"], f"{notes}")
    log.goes_on()
    bed.end(job)


@case
def eight_that_share_nothing(bed):
    """Without --force; and others start and end all the while."""
    outs = outputs(bed, 8)
    workers = "; ".join(f"{counting(bed, out.path, 2)} &" for out in outs).replace("&;", "&")
    churn = f"{counting(bed, os.path.join(bed.dir, 'short.log'), 2)} --steps 5"
    job, _ = bed.started(["sh", "-c", f"{workers} echo ready all; while {churn}; do :; done"])
    all_go_on(outs)
    for _ in range(3):
        bed.operation("suspend", job)
        stand_still(bed, outs)
        bed.operation("resume", job)
        all_go_on(outs)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    bed.operation("restore", checkpoint)
    all_go_on(outs)
    bed.end(job)


@case
def members_of_all_kinds(bed):
    """One without CUDA, one that only opened the device, and one without an agent, which alone needs --force."""
    outs = outputs(bed, 2)
    plain = "import time\nfile = open('/dev/null')\nwhile True: time.sleep(0.05)"
    job, _ = bed.started(["sh", "-c", f'{sys.executable} -c "{plain}" & {counting(bed, outs[0].path)} & echo ready all; wait'])
    outs[0].goes_on()
    bed.operation("suspend", job)
    bed.operation("resume", job)
    outs[0].goes_on()
    bed.operation("restore", bed.operation("checkpoint", job)["checkpoint"])
    outs[0].goes_on()
    expect(bed.job(job)["processes"] == 3, f"{members(bed, job)}")
    bed.end(job)
    job, _ = bed.started(["sh", "-c", f"env -u LD_PRELOAD {counting(bed, outs[1].path)} & {counting(bed, outs[0].path)} &"
                                      " echo ready all; wait"])
    all_go_on(outs)
    bed.refused(EXIT_UNSUPPORTED, "has no agent", "suspend", job)
    all_go_on(outs)
    bed.operation("suspend", job, "--force")
    stand_still(bed, outs)
    bed.operation("resume", job)
    all_go_on(outs)
    bed.end(job)


def counter(bed, *options):
    return " ".join(map(str, (bed.program("counter"), "--mib", 8, "--chunk-mib", 8, "--interval-ms", 25, *options)))


def steps(log):
    """The last step of each process; none is wrong."""
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    return {pid: int(step) for pid, step in re.findall(r"^pid (\d+) gpu \S+ step (\d+) OK$", text, re.M)}


def of_job(bed):
    """Processes of the bed's jobs, by their directory of agents."""
    mark = f"BRUMATE_AGENT_DIR={bed.own['BRUMATE_RUNTIME_DIR']}/"
    return [pid for pid in pids() if mark in read_text(f"/proc/{pid}/environ")]


def suspend_and_resume(bed, log, job, *options):
    bed.operation("suspend", job, *options)
    before = steps(log)
    expect(bed.job(job)["state"] == "suspended", "not suspended")
    bed.operation("resume", job)
    return before


def go_on(log, before):
    wait_until(lambda: all(steps(log).get(pid, 0) > step for pid, step in before.items()), "all go on", 60)


@case
def an_orphan_is_a_member(bed):
    job, log = bed.started(["sh", "-c", f"({counter(bed)} &); exec {counter(bed)}"])
    wait_until(lambda: len(steps(log)) == 2, "both work")
    expect(bed.job(job)["processes"] == 2, f"{bed.job(job)}")
    expect(bed.job(job)["gpu_processes"] == 2, f"{bed.job(job)}")
    for _ in range(3):
        before = suspend_and_resume(bed, log, job)
        expect(len(before) == 2, f"{before}")
        go_on(log, before)
    go_on(log, steps(log))
    bed.ok("kill", job)
    wait_until(lambda: not of_job(bed), "nothing is left", 10)


@case
def a_daemon_is_the_job_when_its_command_has_ended(bed):
    job, log = bed.started(["sh", "-c", f"setsid {counter(bed)} & exit 3"])
    log.wait_for("step 3 OK")
    entry = bed.job(job)
    expect(entry["state"] == "running" and entry["processes"] == 1, f"{entry}")
    go_on(log, suspend_and_resume(bed, log, job))
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    expect(not of_job(bed), "a process is left behind")
    bed.operation("restore", checkpoint)
    go_on(log, steps(log))
    bed.ok("kill", job)
    wait_until(lambda: not of_job(bed), "nothing is left", 10)


@case
def the_command_s_exit_status_is_the_job_s(bed):
    job = bed.run(["sh", "-c", f"{counter(bed, '--steps', 30)} & exit 3"])
    ended = bed.cli("wait", job)
    log = bed.log(job)
    expect(ended.code == 3, ended.why())
    expect(max(steps(log).values()) == 30, f"wait did not wait: {log.tail()}")
    expect(bed.job(job)["exit_code"] == 3, f"{bed.job(job)}")


@case
def kill_leaves_nobody_behind(bed):
    one = "sleep 1000 & (sleep 1000 &) ; (setsid sh -c 'sleep 1000 & (sleep 1000 &) ; wait' &) ; "
    job, _ = bed.started(["sh", "-c", f"{one} {one} exec {counter(bed)}"])
    wait_until(lambda: bed.job(job)["processes"] == 11, f"all are there: {bed.job(job)['processes']}")
    bed.ok("kill", job, "--signal", "KILL")
    expect(not of_job(bed), f"left: {[read_text(f'/proc/{pid}/cmdline') for pid in of_job(bed)]}")
    bed.ok("rm", job)


@case
def a_pool_whose_workers_come_and_go(bed):
    """Each worker lives for a moment; whichever ends in the middle is a member less."""
    worker = f"while :; do {counter(bed, '--steps', 25)} || exit 1; done"
    job, log = bed.started(["sh", "-c", f"{counter(bed)} & ({worker}) & ({worker}) & ({worker}) & wait"])
    wait_until(lambda: len(steps(log)) >= 4, "the pool works")
    lasting = re.findall(r"^pid (\d+) ", log.text(), re.M)
    for _ in range(10):
        suspend_and_resume(bed, log, job)
        n = len(steps(log))
        wait_until(lambda: len(steps(log)) >= n + 2, "workers come and go", 60)
    expect(lasting, "nobody")
    bed.end(job)


def two_counters(bed):
    """A job whose command has a child that works, too; the child's pid."""
    job, log = bed.started(["sh", "-c", f"{counter(bed)} & exec {counter(bed)}"])
    wait_until(lambda: len(steps(log)) == 2, "both work")
    command = bed.pid(job)
    return job, log, next(int(pid) for pid in re.findall(r"^pid (\d+) ", log.text(), re.M) if int(pid) != command)


def kill_and_wait(pid):
    """Its parent does not wait for it: a zombie is left."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process_start(pid) is None, "the member's end")


def save_and_restore(bed, job, log, n):
    """It comes back with so many members, and they work on."""
    bed.operation("restore", bed.operation("checkpoint", job)["checkpoint"])
    before = steps(log)
    wait_until(lambda: sum(steps(log)[pid] > step for pid, step in before.items()) == n, f"{n} to go on", 60)
    bed.end(job)


@case
def zombies_are_saved(bed):
    job, log, child = two_counters(bed)
    kill_and_wait(child)
    save_and_restore(bed, job, log, 1)


@case
def a_member_is_killed_before_the_others_are_saved(bed):
    """While it is suspended, and between its own save and theirs: what was saved of it is nobody's."""
    job, log, child = two_counters(bed)
    bed.operation("suspend", job)
    kill_and_wait(child)
    save_and_restore(bed, job, log, 1)
    job, log, child = two_counters(bed)
    with bed.held_at("checkpoint.criu.begin", "checkpoint", job) as operation:
        kill_and_wait(child)
    code, _, err = operation.end()
    expect(code == 0, f"checkpoint: exit {code}: {err}")
    bed.operation("restore", job)
    before = steps(log)
    wait_until(lambda: sum(steps(log)[pid] > step for pid, step in before.items()) == 1, "one to go on", 60)
    bed.end(job)


@case
def nobody_is_left_to_be_saved(bed):
    job, log = bed.counter(mib=8)
    with bed.held_at("checkpoint.criu.begin", "checkpoint", job) as operation:
        kill_and_wait(bed.pid(job))
    code, _, err = operation.end()
    expect(code == 3 and "ended" in err, f"checkpoint: exit {code}: {err}")
    expect(bed.wait_state(job, ("exited",), 10) == "exited" and bed.job(job)["exit_code"] == 137, f"{bed.job(job)}")
    expect(not bed.checkpoints() and not bed.partials(), f"{bed.checkpoints()}")


@case
def traps_in_the_reaper(bed):
    """As they come from code that a CRIU left in it: it knows how the command ended all the same."""
    job, log = bed.counter(mib=8)
    for _ in range(2):
        record = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))
        for _ in range(100):
            os.kill(record["root"]["pid"], signal.SIGTRAP)
        bed.operation("checkpoint", job)
        bed.ok("restore", job)
        bed.expect_whole(job, log)
    os.kill(bed.pid(job), signal.SIGTRAP)
    bed.wait_state(job, ("exited",))
    expect(bed.job(job)["exit_code"] == 128 + signal.SIGTRAP, f"{bed.job(job)}")


@case
def the_root_is_killed(bed):
    """Not by its job: the memory killer, or somebody by mistake. What it ran goes on, and so does all else."""
    job, log = bed.counter(mib=8)
    record = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))
    kill_and_wait(record["root"]["pid"])
    bed.operation("suspend", job)
    bed.operation("resume", job)
    log.goes_on()
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    log.goes_on()
    bed.end(job)


if __name__ == "__main__":
    main()
