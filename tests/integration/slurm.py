#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of Slurm: suspended with their GPUs, saved and requeued. A real Slurm of three nodes in a scratch directory; a node is a
slurmd in a mount namespace, with directories, GPUs and a brumate of its own."""

import datetime
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from cases import EXIT_STILL_RUNNING, NOBODY, Failed, Log, Skipped, case, expect, main, pids, process_start, read_text, run, wait_until

NODES = ("n1", "n2", "n3")
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "unshare", "nsenter", "setpriv")
PLUGIN_DIRS = ("/usr/lib/x86_64-linux-gnu/slurm-wlm", "/usr/lib/aarch64-linux-gnu/slurm-wlm", "/usr/lib64/slurm", "/usr/lib/slurm")
VRAM_MIB = 512
BIG_MIB = 352  # two of these do not fit onto a GPU
START_S = 5
SWEEP = os.environ.get("BRUMATE_TEST_SWEEP") == "1"


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def find_program(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


class Cluster:
    """munged, slurmctld and three slurmd. Options replace lines of slurm.conf, or of the partitions and of brumate-slurm.conf."""

    def __init__(self, bed, preempt="SUSPEND,GANG", low_mode="SUSPEND", low="", over="FORCE:2", slice_s=30, site="", extra="",
                 tracks="cgroup"):
        if os.getuid() or any(not find_program(name) for name in NEEDED):
            raise Skipped("needs root, slurmctld, slurmd, slurm-client and munge")
        self.plugins = next((d for d in PLUGIN_DIRS if os.path.exists(f"{d}/proctrack_{tracks}.so")), None)
        if not self.plugins:
            raise Skipped(f"Slurm has no proctrack/{tracks}")
        self.bed, self.dir = bed, os.path.join(bed.dir, "slurm")
        self.conf, self.seconds = f"{self.dir}/slurm.conf", None
        self.out = f"{self.dir}/out"
        self.conf_options = dict(preempt=preempt, low_mode=low_mode, low=low, over=over, slice_s=slice_s, extra=extra)
        self.site, self.tracks = site, tracks

    def write(self, name, text, mode=0o644):
        path = f"{self.dir}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def env(self):
        return {**os.environ, "SLURM_CONF": self.conf}

    def _write_conf(self):
        ports = free_ports(4)
        host = socket.gethostname()
        o = self.conf_options
        nodes = "\n".join(f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=900 State=UNKNOWN"
                          for n, port in zip(NODES, ports[1:]))
        self.write("slurm.conf", f"""ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.dir}/munge/sock
CredType=cred/munge
StateSaveLocation={self.dir}/state
SlurmdSpoolDir={self.dir}/spool.%n
SlurmdPidFile={self.dir}/%n.pid
SlurmctldPidFile={self.dir}/ctld.pid
SlurmctldLogFile={self.dir}/log/ctld
SlurmdLogFile={self.dir}/log/%n
SlurmdDebug=verbose
PluginDir={self.dir}/plugins:{self.plugins}
PlugStackConfig={self.dir}/plugstack.conf
ProctrackType=proctrack/brumate
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode={o['preempt']}
SchedulerTimeSlice={o['slice_s']}
JobRequeue=1
SchedulerParameters=bf_interval=2,sched_interval=3,batch_sched_delay=1
KillWait=20
MinJobAge=300
ReturnToService=2
MpiDefault=none
{o['extra']}
{nodes}
PartitionName=low Nodes={','.join(NODES)} Default=YES PriorityTier=1 PreemptMode={o['low_mode']} {o['low']} State=UP OverSubscribe={o['over']}
PartitionName=high Nodes={','.join(NODES)} PriorityTier=10 PreemptMode=OFF State=UP OverSubscribe={o['over']}
""")
        self.write("cgroup.conf", "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nConstrainDevices=no\n"
                   if os.path.isdir("/sys/fs/cgroup/freezer") else "ConstrainDevices=no\n")
        self.write("plugstack.conf", f"optional {self.dir}/plugins/spank_brumate.so\n")
        self.write("brumate-slurm.conf", f"Proctrack={self.tracks}\nPluginDir={self.plugins}\nHelper={self.dir}/helper\n"
                                         f"RunDir={self.dir}/here/steps\n{self.site}\n")
        self.write("brumate.conf", f"[Store]\nDirectory={self.dir}/store\n")
        # What a node has of its own, where there is one brumate for each.
        self.write("node-env", f"""#!/bin/sh
n=${{SLURMD_NODENAME#n}} own={self.dir}/here/$(id -u) sim={self.dir}/here/sim/$(id -u)
mkdir -p $own/run $own/state $own/log $sim
export BRUMATE_GPU=simulated BRUMATE_RUNTIME_DIR=$own/run BRUMATE_STATE_DIR=$own/state BRUMATE_LOG_DIR=$own/log
export BRUMATE_CONFIG={self.dir}/brumate.conf BRUMATE_SIM_DIR=$sim BRUMATE_SIM_VRAM_MIB={VRAM_MIB} BRUMATE_SIM_UUIDS=${{n}}0,${{n}}1
export PATH={os.path.dirname(self.bed.brumate)}:$PATH
exec "$@"
""", 0o755)
        self.write("helper", f"#!/bin/sh\nexec {self.dir}/node-env {self.bed.program('brumate-slurm')} \"$@\"\n", 0o755)

    def _munged(self):
        os.mkdir(f"{self.dir}/munge", 0o711)
        with open(f"{self.dir}/munge/key", "wb") as file:
            file.write(os.urandom(128))
        os.chmod(f"{self.dir}/munge/key", 0o400)
        done = run(["chown", "-R", "munge:munge", f"{self.dir}/munge"])
        expect(done.code == 0, done.why())
        done = run(["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", find_program("munged"), "-f", "-S",
                    f"{self.dir}/munge/sock", "--key-file", f"{self.dir}/munge/key", "--pid-file", f"{self.dir}/munge/pid",
                    "--log-file", f"{self.dir}/munge/log", "--seed-file", f"{self.dir}/munge/seed"])
        expect(done.code == 0, done.why())

    def __enter__(self):
        os.chmod(self.bed.dir, 0o711)
        for name in ("", "state", "log", "plugins", "here", "store", "out"):
            os.mkdir(f"{self.dir}/{name}", 0o755)
        os.chmod(self.out, 0o1777)
        for name in ("proctrack_brumate.so", "spank_brumate.so"):
            shutil.copy(os.path.join(self.bed.build.path, "src", "edges", "slurm", name), f"{self.dir}/plugins/{name}")
        self._write_conf()
        start = time.monotonic()
        try:
            self._munged()
            done = run([find_program("slurmctld")], env=self.env())
            expect(done.code == 0, done.why())
            for n in NODES:
                os.makedirs(f"{self.dir}/node/{n}")
                os.mkdir(f"{self.dir}/spool.{n}")
                done = run(["unshare", "-m", "--propagation", "private", "sh", "-c",
                            f"mount --bind {self.dir}/node/{n} {self.dir}/here && cd {self.dir}/here && mkdir sim && "
                            f"chmod 1777 . && mount -t tmpfs -o mode=1777 sim sim && exec {find_program('slurmd')} -N {n}"], env=self.env())
                expect(done.code == 0, done.why())
            wait_until(lambda: self.tell("sinfo", "-h", "-p", "low", "-o", "%T %D").split() == ["idle", "3"], "three idle nodes", 20)
            self.seconds = time.monotonic() - start
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        run(["scancel", "-u", "root", "--full", "--signal=KILL"], env=self.env())
        for n in NODES:
            for entry in self.jobs(n, quietly=True):
                self.on(n, "brumate", "kill", "--signal", "KILL", entry["id"])
        run(["scancel", "-u", "root"], env=self.env())
        daemons = [read_text(path).strip() for path in [f"{self.dir}/{n}.pid" for n in NODES] + [f"{self.dir}/ctld.pid", f"{self.dir}/munge/pid"]]
        for pid in map(int, filter(None, daemons)):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
            wait_until(lambda: process_start(pid) is None, f"the end of process {pid}", 20)  # pylint: disable=W0640
        # What is still of this cluster: slurmstepd of jobs that were just killed, brokers.
        mark = f"{self.dir}/".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read() and int(name) != os.getpid():
                        os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue

    # Slurm's commands.
    def tell(self, *argv, **whose):
        done = run(argv, env=self.env(), cwd=self.out, **whose)
        expect(done.code == 0, done.why())
        return done.out.strip()

    def why(self):
        """What the logs of Slurm say of us."""
        lines = [line for n in NODES for line in read_text(f"{self.dir}/log/{n}").splitlines() if "proctrack/brumate" in line]
        jobs = [(entry["name"], entry["state"], entry["message"]) for n in NODES for entry in self.jobs(n, quietly=True)]
        return f"; Slurm says: {' / '.join(lines[-4:])}; {self.tell('squeue', '-h', '-o', '%i %T %r %N')}; {jobs}"

    def batch(self, name, command, *options, **whose):
        """A batch script of one command: (id, log)."""
        path = f"{self.out}/{name}.out"
        job = self.tell("sbatch", "--parsable", "-J", name, "-o", path, "--open-mode=append", *options, "--wrap", f"exec {command}", **whose)
        wait_until(lambda: os.path.exists(path), "its output", 60)
        return job, Log(path)

    def counter(self, mib=64, *more):
        return " ".join(str(word) for word in (self.bed.program("counter"), "--mib", mib, "--chunk-mib", 32, "--interval-ms", 100, *more))

    def state(self, job):
        found = re.search(r"JobState=(\S+)", self.tell("scontrol", "show", "job", job))
        return found[1]

    def wait_state(self, job, state, seconds=60):
        wait_until(lambda: self.state(job) == state, f"job {job} to be {state}, not {self.state(job)}{self.why()}", seconds)

    def node_of(self, job):
        return self.tell("squeue", "-h", "-j", job, "-o", "%N")

    # The brumate of a node.
    def on(self, node, *argv):
        pid = read_text(f"{self.dir}/{node}.pid").strip()
        return run(["nsenter", "-t", pid, "-m", f"{self.dir}/node-env", *argv], env={**self.env(), "SLURMD_NODENAME": node})

    def jobs(self, node, quietly=False):
        done = self.on(node, "brumate", "ps", "--format", "json")
        if quietly and done.code:
            return []
        expect(done.code == 0, done.why())
        return done.json()["jobs"]

    def jobs_of(self, node, uid):
        done = self.on(node, "setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", f"{self.dir}/node-env", "brumate",
                       "ps", "--format", "json")
        expect(done.code == 0, done.why())
        return done.json()["jobs"]

    def states(self, node):
        return {entry["labels"]["slurm.job"]: entry["state"] for entry in self.jobs(node)}

    def free_mib(self, node, gpu=0):
        facts = self.on(node, "brumate", "doctor", "--format", "json").json()["facts"]
        one = facts["gpus"][gpu]
        return (one["total_bytes"] - one["used_bytes"]) >> 20


def at_work(log, slurm=None):
    try:
        log.wait_for(r"^.*step \d+ ")
    except Failed as failed:
        raise Failed(f"{failed}{slurm.why() if slurm else ''}") from failed


def stands_still(cluster, node, job, log):
    """Slurm's job is suspended: its device memory has left the GPU, and it makes no step."""
    wait_until(lambda: cluster.states(node).get(job) == "suspended", f"brumate on {node} to have suspended {job}{cluster.why()}")
    step = log.last_step()
    wait_until(lambda: cluster.free_mib(node) > VRAM_MIB - 64, "an empty GPU", 10)
    expect(log.last_step() == step, "it goes on")


@case
def suspend_and_resume(bed):
    with Cluster(bed) as slurm:
        expect(slurm.seconds < START_S * 4, f"it took {slurm.seconds:.1f} s to start")
        job, log = slurm.batch("one", slurm.counter(), "--brumate", "-w", "n1")
        at_work(log)
        expect(slurm.states("n1") == {job: "running"}, f"{slurm.states('n1')}")
        for _ in range(2):
            slurm.tell("scontrol", "suspend", job)
            slurm.wait_state(job, "SUSPENDED")
            stands_still(slurm, "n1", job, log)
            slurm.tell("scontrol", "resume", job)
            slurm.wait_state(job, "RUNNING")
            wait_until(lambda: slurm.states("n1").get(job) == "running", "brumate to have resumed it")
            log.goes_on()
        slurm.tell("scancel", job)
        wait_until(lambda: not slurm.jobs("n1"), "its end")


@case
def a_task_is_as_without_it(bed):
    """Its output, its exit status, its signals; and what is no job says why."""
    with Cluster(bed) as slurm:
        done = run(["srun", "--brumate", "sh", "-c", "echo out; echo $SLURM_PROCID; exit 7"], env=slurm.env(), cwd=slurm.out)
        expect(done.code == 7 and done.out == "out\n0\n", done.why())
        done = run(["srun", "--brumate=no", "sh", "-c", "echo $PPID; exit 3"], env=slurm.env(), cwd=slurm.out)
        expect(done.code == 3, done.why())
        done = run(["srun", "--brumate=perhaps", "true"], env=slurm.env(), cwd=slurm.out)
        expect(done.code != 0 and "brumate" in done.err, done.why())
        script = 'trap "echo caught; exit 5" USR2; echo ready; while :; do sleep 0.1; done'
        log = Log(f"{slurm.out}/signal.out")
        with open(log.path, "w", encoding="utf-8") as out:
            step = subprocess.Popen(["srun", "--brumate", "-J", "signal", "sh", "-c", script], env=slurm.env(), stdout=out, cwd=slurm.out)
        log.wait_for("^ready")
        slurm.tell("scancel", "--signal=USR2", "--name=signal")
        log.wait_for("^caught")
        expect(step.wait(30) == 5, f"exit {step.returncode}")
        expect(not any(slurm.jobs(n) for n in NODES), "a record is left")
        # A step that has ended, and one that is no job, are suspended as ever.
        job, log = slurm.batch("plain", "sleep 600", "-w", "n2")
        wait_until(lambda: slurm.state(job) == "RUNNING", "it to run")
        slurm.tell("scontrol", "suspend", job)
        slurm.wait_state(job, "SUSPENDED")
        expect(slurm.jobs("n2") == [], "it is a job")
        slurm.tell("scancel", job)


@case
def high_preempts_low_by_suspending_it(bed):
    """Both need most of one GPU: the one that comes waits until the other has left, which comes back where it was."""
    with Cluster(bed) as slurm:
        low, low_log = slurm.batch("low", slurm.counter(BIG_MIB), "--brumate", "-p", "low", "-w", "n1", "-c2")
        at_work(low_log)
        high, high_log = slurm.batch("high", slurm.counter(BIG_MIB, "--steps", 30), "--brumate", "-p", "high", "-w", "n1", "-c2")
        slurm.wait_state(low, "SUSPENDED")
        at_work(high_log, slurm)
        wait_until(lambda: slurm.states("n1") == {low: "suspended", high: "running"}, f"one to be there: {slurm.states('n1')}")
        step = low_log.last_step()
        slurm.wait_state(high, "COMPLETED")
        high_log.is_right()
        expect(high_log.last_step() == 30, f"it ended at {high_log.last_step()}")
        slurm.wait_state(low, "RUNNING")
        low_log.wait_until(lambda _: low_log.is_right() > step, "low to go on", 60)
        low_log.goes_on()


class Turns:
    """Who makes steps, and how long nobody does when the GPU goes from one job to the other."""

    def __init__(self, logs):
        self.logs, self.steps, self.seen = logs, [0] * len(logs), [0.0] * len(logs)
        self.now, self.gaps, self.counts = None, [], [0] * len(logs)

    def look(self):
        for k, log in enumerate(self.logs):
            step = log.is_right()
            if step == self.steps[k]:
                continue
            self.steps[k], now = step, time.monotonic()
            if k != self.now:
                if self.now is not None:
                    self.gaps.append(now - self.seen[self.now])
                self.now = k
                self.counts[k] += 1
            self.seen[k] = now

    def own_times(self, slurm, node):
        """Of each turn but the first: what the suspend of the one and the resume of the other took, from when there was room."""
        since, own, left = {}, [], (0, 0)
        for line in slurm.on(node, "brumate", "events", "--format", "json").out.splitlines():
            event = json.loads(line)
            if event["event"] != "state":
                continue
            now, job = datetime.datetime.fromisoformat(event["time"]).timestamp(), event["job"]
            if event["state"] == "suspended":
                left = (now - since[job], now)
            elif event["from"] == "resuming" and event["state"] == "running":
                own.append(left[0] + now - max(left[1], since[job]))
            since[job] = now
        return own[:len(self.gaps) - 1]


@case
def two_jobs_take_turns_on_a_gpu(bed):
    """By the gang scheduler. The broker works for both, and stands in neither's cgroup."""
    with Cluster(bed, slice_s=15 if SWEEP else 6) as slurm:
        jobs = [slurm.batch(name, slurm.counter(BIG_MIB), "--brumate", "-p", "low", "-w", "n1", "-c2") for name in "ab"]
        turns = Turns([log for _, log in jobs])
        wanted = 20 if SWEEP else 6
        deadline = time.monotonic() + 40 * wanted
        while sum(turns.counts) < wanted:
            expect(time.monotonic() < deadline, f"turns {turns.counts}{slurm.why()}")
            states = list(slurm.states("n1").values())
            expect(states.count("running") < 2, "both are on the GPU")
            turns.look()
            time.sleep(0.02)  # Slurm tells nobody when it changes its mind
        for _, log in jobs:
            log.is_right()
            expect("OUT_OF_MEMORY" not in log.text() and "BAD" not in log.text(), log.tail())
        over = [gap - own for gap, own in zip(turns.gaps[1:], turns.own_times(slurm, "n1"))]
        bed.note(f"{wanted} turns: {', '.join(f'{gap:.2f}' for gap in turns.gaps)} s; beyond suspend and resume: {', '.join(f'{s:.2f}' for s in over)} s")
        expect(len(over) == wanted - 2, f"{over} of {turns.gaps}")
        if SWEEP:  # elsewhere others work beside it
            expect(max(over) <= 1, f"turns took {over} s more than a suspend and a resume")
        places = [read_text(f"/proc/{pid}/cgroup") for pid in pids() if read_text(f"/proc/{pid}/comm") == "brumate-broker\n" and
                  f"{slurm.dir}/here/" in read_text(f"/proc/{pid}/environ")]
        expect(places and all("slurm" not in text and "/brumate/0" in text for text in places), f"{places}")


@case
def preempted_saved_and_requeued_onto_another_node(bed):
    with Cluster(bed, preempt="REQUEUE", low_mode="REQUEUE", low="GraceTime=3", over="NO") as slurm:
        low, log = slurm.batch("low", slurm.counter(128), "--brumate", "--requeue", "-p", "low", "-c2")
        at_work(log)
        node = slurm.node_of(low)
        high, high_log = slurm.batch("high", slurm.counter(BIG_MIB, "--steps", 60), "--brumate", "-p", "high", "-w", node, "-c2")
        log.wait_for("^brumate: saved", 60)
        step = log.last_step()
        at_work(high_log)
        slurm.wait_state(low, "PENDING")
        slurm.tell("scontrol", "update", f"jobid={low}", "starttime=now")
        log.wait_for("^brumate: restoring", 90)
        log.wait_until(lambda _: log.is_right() > step + 3, "low to go on", 60)
        expect(slurm.node_of(low) != node and "Restarts=1" in slurm.tell("scontrol", "show", "job", low), "it is where it was")
        slurm.wait_state(high, "COMPLETED")
        # Once more, by its administrator, who drains the node that it is on.
        node = slurm.node_of(low)
        slurm.tell("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        slurm.tell("scontrol", "requeue", low)
        log.wait_until(lambda text: text.count("brumate: saved") == 2, "it to be saved", 60)
        step = log.last_step()
        slurm.wait_state(low, "PENDING")
        slurm.tell("scontrol", "update", f"jobid={low}", "starttime=now")
        log.wait_until(lambda _: log.is_right() > step + 3, "low to go on", 90)
        expect(slurm.node_of(low) != node, "it is on the node that drains")


@case
def what_is_cancelled_is_not_saved(bed):
    with Cluster(bed) as slurm:
        job, log = slurm.batch("one", slurm.counter(), "--brumate", "-w", "n1")
        at_work(log)
        slurm.tell("scancel", job)
        wait_until(lambda: not slurm.jobs("n1"), f"its end: {log.tail()}", 30)
        expect("brumate: saved" not in log.text() and not os.listdir(f"{slurm.dir}/store"), f"{log.tail()}")


@case
def an_array_is_suspended(bed):
    with Cluster(bed) as slurm:
        path = f"{slurm.out}/array.%a.out"
        job = slurm.tell("sbatch", "--parsable", "--brumate", "-a", "0-2", "-o", path, "--wrap", f"exec {slurm.counter(32)}")
        logs = [Log(path.replace("%a", str(i))) for i in range(3)]
        wait_until(lambda: all(os.path.exists(log.path) for log in logs), "all to begin", 60)
        for log in logs:
            at_work(log)
        slurm.tell("scontrol", "suspend", job)
        wait_until(lambda: sorted(state for n in NODES for state in slurm.states(n).values()) == ["suspended"] * 3, "all to leave")
        slurm.tell("scontrol", "resume", job)
        for log in logs:
            log.goes_on()
        slurm.tell("scancel", job)


@case
def a_step_on_two_nodes(bed):
    with Cluster(bed) as slurm:
        log = Log(f"{slurm.out}/two.out")
        with open(log.path, "w", encoding="utf-8") as out:
            step = subprocess.Popen(["srun", "--brumate", "-l", "-J", "two", "-N2", *slurm.counter(64).split()], env=slurm.env(),
                                    stdout=out, cwd=slurm.out)
        log.wait_until(lambda text: all(re.search(rf"^{k}: .*step ", text, re.M) for k in (0, 1)), "both ranks")
        job = slurm.tell("squeue", "-h", "-n", "two", "-o", "%A")
        for _ in range(2):
            slurm.tell("scontrol", "suspend", job)
            wait_until(lambda: [state for n in NODES for state in slurm.states(n).values()] == ["suspended"] * 2, "both to leave")
            slurm.tell("scontrol", "resume", job)
            count = {k: len(re.findall(rf"^{k}: .*step ", log.text(), re.M)) for k in (0, 1)}
            log.wait_until(lambda text: all(len(re.findall(rf"^{k}: .*step ", text, re.M)) > count[k] + 2 for k in (0, 1)),  # pylint: disable=W0640
                           "both to go on")
        expect("BAD" not in log.text() and "ERR" not in log.text(), log.tail())
        slurm.tell("scancel", job)
        step.wait(60)


@case
def a_set_by_srun(bed):
    """The tasks of a step are members, srun is what speaks for them: killed before the decision, all run on; else the set is there."""
    with Cluster(bed) as slurm:
        job, log = slurm.batch("two", f"srun --brumate -l {slurm.counter(64)}", "-N2", "-w", "n1,n2")

        def go_on():
            count = {k: len(re.findall(rf"^{k}: .*step ", log.text(), re.M)) for k in (0, 1)}
            log.wait_until(lambda text: all(len(re.findall(rf"^{k}: .*step ", text, re.M)) > count[k] + 2 for k in (0, 1)), "both to go on")
        go_on()
        via = f"env SLURM_CONF={slurm.conf} srun --overlap --jobid {job} -N1 -n1 -w %n {slurm.dir}/node-env"
        members = [f"{n}:{entry['id']}" for n in ("n1", "n2") for entry in slurm.jobs(n)]
        expect(len(members) == 2, f"members: {members}")
        save = ["set", "checkpoint", "-R", "--dir", f"{slurm.dir}/store", "--via", via, "--name", "both", *members]
        for at in ("ready", "idle", "held"):
            with bed.held_at(f"set.all-{at}", *save) as held:
                pid = held.process.pid
                children = read_text(f"/proc/{pid}/task/{pid}/children").split()
                srun = [int(child) for child in children if "n2" in read_text(f"/proc/{child}/cmdline").split("\0")]
                expect(len(srun) == 1, f"srun of n2: {srun}")
                os.kill(srun[0], signal.SIGKILL)
            code, _, err = held.end()
            expect(code == EXIT_STILL_RUNNING and "member n2:" in err and "signal 9" in err, f"{at}: {code}: {err}")
            wait_until(lambda: [state for n in NODES for state in slurm.states(n).values()] == ["running"] * 2, f"{at}: both to run on")
            go_on()
        saved = bed.ok(*save)
        expect(saved.out == "both\n" and sorted(os.listdir(f"{slurm.dir}/store/.sets")) == ["both"], saved.why())
        go_on()
        expect("BAD" not in log.text() and "ERR" not in log.text(), log.tail())
        slurm.tell("scancel", job)


@case
def a_helper_that_hangs(bed):
    """Slurm goes on without it, in time."""
    with Cluster(bed, site="Wait=1\n") as slurm:
        job, log = slurm.batch("one", slurm.counter(), "--brumate", "-w", "n1")
        at_work(log)
        slurm.write("helper", "#!/bin/sh\nexec sleep 1000\n", 0o755)
        start = time.monotonic()
        slurm.tell("scontrol", "suspend", job)
        slurm.wait_state(job, "SUSPENDED")
        wait_until(lambda: "no end in time, killed; going on without it" in read_text(f"{slurm.dir}/log/n1"), "the deadline", 30)
        expect(time.monotonic() - start < 25, "it took too long")
        slurm.write("helper", "#!/bin/sh\nexit 0\n", 0o755)
        slurm.tell("scontrol", "resume", job)
        slurm.wait_state(job, "RUNNING")
        log.goes_on()


@case
def of_a_user(bed):
    """Slurm's part of it works as root, ours as the job's user: what is the user's is not root's."""
    whose = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with Cluster(bed) as slurm:
        job, log = slurm.batch("theirs", slurm.counter(), "--brumate", "-w", "n1", **whose)
        at_work(log)
        pid = next(entry["pid"] for entry in slurm.jobs_of("n1", NOBODY))
        expect(re.search(rf"^Uid:\s+{NOBODY}\s", read_text(f"/proc/{pid}/status"), re.M), "it runs as another user")
        slurm.tell("scontrol", "suspend", job)
        wait_until(lambda: [entry["state"] for entry in slurm.jobs_of("n1", NOBODY)] == ["suspended"], f"it to leave{slurm.why()}")
        step = log.last_step()
        slurm.tell("scontrol", "resume", job)
        log.wait_until(lambda _: log.is_right() > step + 2, "it to go on")
        brokers = [pid for pid in pids() if read_text(f"/proc/{pid}/comm") == "brumate-broker\n" and
                   f"{slurm.dir}/here/{NOBODY}/" in read_text(f"/proc/{pid}/environ")]
        expect(brokers and all(f"/brumate/{NOBODY}" in read_text(f"/proc/{pid}/cgroup") for pid in brokers), f"{brokers}")
        slurm.tell("scancel", job)
        wait_until(lambda: not slurm.jobs_of("n1", NOBODY), "its end", 30)


SITES_OWN = """
#include <stdint.h>
#include <stdbool.h>
uint32_t plugin_version = 20 << 16 | 11 << 8 | 9;
int proctrack_p_create(void *step) { return 0; }
int proctrack_p_add(void *step, int pid) { return 0; }
int proctrack_p_signal(uint64_t id, int number) { return 0; }
int proctrack_p_destroy(uint64_t id) { return 0; }
int proctrack_p_wait(uint64_t id) { return 0; }
int proctrack_p_get_pids(uint64_t id, int **pids, int *n) { return -1; }
uint64_t proctrack_p_find(int pid) { return 0; }
bool proctrack_p_has_pid(uint64_t id, int pid) { return false; }
"""


def make_own_plugin(own, name):
    """A plugin of a Slurm of another version."""
    if not shutil.which("cc"):
        raise Skipped("no compiler for a plugin to wrap")
    with open(f"{own}/own.c", "w", encoding="utf-8") as file:
        file.write(SITES_OWN)
    done = run(["cc", "-shared", "-fPIC", "-o", f"{own}/{name}.so", f"{own}/own.c"])
    expect(done.code == 0, done.why())


RESUMES = """
import ctypes, signal, sys
plugin = ctypes.CDLL(sys.argv[1])
assert plugin.init() == 0
plugin.proctrack_p_signal(ctypes.c_uint64(1), signal.SIGCONT)
"""
WAIT_S = 1 + 10  # Wait= and what the plugin spares for the helper


@case
def a_helper_that_its_user_holds(bed):
    """It has the user's rights, so he may trace it: it says something for ever, or nothing more, and does not end. Slurm's own
    process, which is root's and in which our plugin is, goes on in time."""
    own = os.path.join(bed.dir, "plugins")
    os.mkdir(own)
    make_own_plugin(own, "proctrack_own")
    with open(f"{own}/brumate-slurm.conf", "w", encoding="utf-8") as file:
        file.write(f"Proctrack=own\nPluginDir={own}\nHelper={own}/helper\nRunDir={own}/steps\nWait=1\n")
    plugin = os.path.join(bed.build.path, "src", "edges", "slurm", "proctrack_brumate.so")
    env = {**os.environ, "SLURM_CONF": f"{own}/slurm.conf", "BRUMATE_SLURM_STEP": f"1.0 {os.getuid()} {os.getgid()}"}
    for holds in ("exec yes >&2", "exec 2>&-; kill -STOP $$"):
        with open(f"{own}/helper", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho $$ >{own}/pid\n{holds}\n")
        os.chmod(f"{own}/helper", 0o755)
        done = run(["/usr/bin/python3", "-c", RESUMES, plugin], env=env, timeout=60)
        expect(done.code == 0 and done.seconds < WAIT_S + 2, f"{holds}: {done.seconds} s: {done.why()}")
        expect(done.seconds >= WAIT_S, f"{holds}: it was not held: {done.why()}")
        expect(process_start(int(read_text(f"{own}/pid"))) is None, f"{holds}: the helper is left")


@case
def a_plugin_of_another_slurm(bed):
    """The site names one: it is not taken, Slurm's log says so, and jobs start and are suspended as ever."""
    with Cluster(bed) as slurm:
        own = f"{slurm.dir}/wrong"
        os.mkdir(own)
        for name in {f"proctrack_{slurm.tracks}", "proctrack_linuxproc"}:
            make_own_plugin(own, name)
        slurm.write("brumate-slurm.conf", f"Proctrack={slurm.tracks}\nPluginDir={own}\nHelper={slurm.dir}/helper\nRunDir={slurm.dir}/here/steps\n")
        job, log = slurm.batch("one", slurm.counter(), "--brumate", "-w", "n1")
        at_work(log)
        expect(f"{own}/proctrack_{slurm.tracks}.so is of another Slurm" in slurm.why(), slurm.why())
        slurm.tell("scontrol", "suspend", job)
        stands_still(slurm, "n1", job, log)
        slurm.tell("scontrol", "resume", job)
        log.goes_on()
        slurm.tell("scancel", job)


@case
def a_doctor_of_the_site(bed):
    """What is in the way is told with what to do; and nothing, where all is well."""
    with Cluster(bed) as slurm:
        def look(**env):
            done = run([bed.brumate, "doctor", "--slurm", "--format", "json"], env={**slurm.env(), **env})
            found = json.loads(done.out)["findings"]
            expect(done.code == (4 if any(f["level"] == "fail" for f in found) else 0), done.why())
            expect(all(f["hint"] for f in found if f["level"] != "ok"), found)
            return {f["text"]: f["level"] for f in found}

        well = look()
        expect("fail" not in well.values() and any(text.startswith("Slurm ") for text in well), well)
        expect(any(text.startswith("KillWait=20") and level == "warn" for text, level in well.items()), well)
        expect("ready" in run([bed.brumate, "doctor", "--slurm"], env=slurm.env()).out, "no verdict")
        # Of other sites, as Slurm would tell of them.
        os.mkdir(f"{slurm.dir}/bin")
        slurm.write("bin/scontrol", f"""#!/bin/sh
{shutil.which("scontrol")} "$@" | sed 's|^ProctrackType.*|ProctrackType = proctrack/cgroup|; s|^PluginDir.*|PluginDir = /nowhere|
s|^PlugStackConfig.*|PlugStackConfig = /dev/null|; s|^SchedulerTimeSlice.*|SchedulerTimeSlice = 5 sec|; s|^GresTypes.*|GresTypes = gpu|'
""", 0o755)
        slurm.write("brumate-slurm.conf", f"Proctrack={slurm.tracks}\nPluginDir={slurm.dir}/bin\nHelper=/bin/nothing\nWait=soon\n")
        make_own_plugin(f"{slurm.dir}/bin", f"proctrack_{slurm.tracks}")
        ill = look(PATH=f"{slurm.dir}/bin:{os.environ['PATH']}")
        for level, words in (("fail", "ProctrackType=proctrack/cgroup"), ("fail", "spank_brumate.so is not in /nowhere"),
                             ("fail", "does not name spank_brumate.so"), ("fail", "is of Slurm 20.11, and Slurm here is"), ("fail", '"Wait=soon"'),
                             ("fail", "/bin/nothing cannot be run"), ("warn", "SchedulerTimeSlice=5"), ("warn", "GresTypes=gpu")):
            expect(any(words in text and found == level for text, found in ill.items()), f"{words}: {ill}")
        slurm.write("bin/scontrol", "#!/bin/sh\nexit 1\n", 0o755)
        expect(list(look(PATH=f"{slurm.dir}/bin:{os.environ['PATH']}").values()) == ["fail"], "scontrol fails, and it is well")


main()
