#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A job as a service of systemd: what brumate@.service runs on start and stop, and the units themselves."""

import os
import re
import shutil
import signal
import subprocess

from as_root import env_of_root, needs_root, ok
from cases import EXIT_STILL_RUNNING, as_user, case, expect, find_build, main, read_text, run, wait_until
from harness import SOURCE, Skipped

SCRIPT = os.path.join(SOURCE, "data", "brumate-service")


class Service:
    """A unit as systemd runs it: a main process, and a command that stops it."""

    def __init__(self, bed):
        self.bed, self.main, self.script, self.journal = bed, None, SCRIPT, os.path.join(bed.dir, "journal")
        self.command = [bed.program("counter"), "--mib", "8", "--chunk-mib", "8", "--interval-ms", "25"]

    def start(self):
        with open(self.journal, "ab") as journal:
            self.main = subprocess.Popen([self.script, self.bed.brumate, "start", "unit", *self.command],
                                         env=self.bed.command_env(), stdout=journal, stderr=journal)

    def job(self):
        jobs = [job for job in self.bed.list("ps", "jobs") if job["name"] == "unit"]
        return jobs[0] if jobs else {"state": "none"}

    def running(self, but=None):
        """Its job, once it runs, in another process than before."""
        wait_until(lambda: self.main.poll() is not None or
                   (self.job()["state"] == "running" and self.job()["pid"] != but), "the job to run", 60)
        expect(self.main.poll() is None, f"the main process ended with {self.main.poll()}")
        return self.job()

    def stop(self):
        """The exit status of the command. The main process is reaped meanwhile, as systemd does it."""
        env = {**self.bed.command_env(), "MAINPID": str(self.main.pid)}
        process = subprocess.Popen([SCRIPT, self.bed.brumate, "stop", "unit"], env=env, stderr=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL)
        self.main.wait(60)
        return process.wait(60)

    def end(self):
        return self.main.wait(60)


@case
def a_stop_that_cannot_look(bed):
    """That the jobs could not be listed does not mean that there is none."""
    service = Service(bed)
    service.start()
    job = service.running()
    broken = os.path.join(bed.dir, "broken")
    with open(broken, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\n[ "$1" = ps ] && exit 1\nexec {bed.brumate} "$@"\n')
    os.chmod(broken, 0o755)
    for what in ("stop", "start"):
        done = subprocess.run([SCRIPT, broken, what, "unit", *service.command], env=bed.command_env(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        expect(done.returncode == 1 and "nothing is known of the job" in done.stderr, f"{what}: {done}")
    expect(bed.state(job["id"]) == "running" and not bed.checkpoints(), "something was done")
    expect(service.stop() == 0 and service.end() == 0, "it did not stop well")


@case
def saved_on_stop_and_restored_on_start(bed):
    service = Service(bed)
    service.start()
    job = service.running()
    log = bed.log(job["id"])
    log.goes_on()
    expect(service.stop() == 0 and service.end() == 0, "it did not stop well")
    expect(service.job()["state"] == "checkpointed", f"{service.job()}")
    before = log.last_step()
    service.start()
    expect(service.running()["id"] == job["id"], "it is another job")
    log.goes_on()
    log.is_right()
    expect(log.last_step() > before, "it began anew")
    with open(service.journal, encoding="utf-8") as journal:
        expect(f"step {before} OK" in journal.read(), "the output is not passed on")
    bed.ok("kill", job["id"], "--signal", "KILL")
    expect(service.end() == 137, "the exit status is not the job's")


@case
def names_that_are_hostile(bed):
    """Of an instance of the unit: words that are options, filters, paths or commands elsewhere. No other job is meant by them, and nothing
    is run."""
    jobs = {name: bed.counter(name=name, mib=4)[0] for name in ("a", "runs", "rests", "saved")}
    bed.ok("suspend", "rests")
    bed.ok("checkpoint", "saved")
    states = {name: bed.state(job) for name, job in jobs.items()}
    went = os.path.join(bed.dir, "went")
    names = ("--all", "-a", "--all-users", "-h", "--", "a,state=running", "a,state=suspended", "name=a", "a,", "a=", f"$(touch {went})", f"`touch {went}`",
             f"x; touch {went}", "a b", "*", "a\n", "\x1b[2J", "..", "../a", "/etc/passwd", f"{os.getuid()}/a", "%n", "x" * 300, "\u202e", "")
    for name in names:
        for what in ("start", "stop"):
            done = run([SCRIPT, bed.brumate, what, name, "touch", went], env=bed.command_env(), timeout=60)
            expect(what == "stop" or done.code != 0, f"{name!a} was started: {done.why()}")
            expect(done.code >= 0 and not set(done.out + done.err) & set("\x1b\u202e"), f"{name!a}: {done.why()!a}")
        expect({one: bed.state(job) for one, job in jobs.items()} == states, f"{name!a} is another job")
        expect(not os.path.exists(went), f"{name!a} ran")
        expect(len(bed.list("ps", "jobs", "--all")) == len(jobs), f"{name!a} is a job")


@case
def what_cannot_be_saved_runs_on(bed):
    service = Service(bed)
    service.start()
    job = service.running()
    bed.fault("checkpoint.criu.begin", "error:5")
    process = subprocess.run([SCRIPT, bed.brumate, "stop", "unit"], env=bed.command_env(), timeout=120, check=False,
                             capture_output=True, text=True)
    expect(process.returncode == EXIT_STILL_RUNNING, f"{process}")
    service.main.send_signal(signal.SIGKILL)  # as the unit's KillSignal= says
    service.end()
    expect(service.job()["pid"] == job["pid"] and service.job()["state"] == "running", f"{service.job()}")
    service.start()
    bed.log(job["id"]).goes_on()
    expect(service.running()["pid"] == job["pid"], "it is not the job that ran on")
    bed.ok("kill", job["id"], "--signal", "KILL")
    service.end()


@case
def what_fails_while_the_job_goes_on(bed):
    """What the unit names in OnFailure= is started then, too."""
    manager, called = os.path.join(bed.dir, "manager"), os.path.join(bed.dir, "called")
    os.mkdir(manager)
    with open(os.path.join(manager, "systemctl"), "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\ncase $* in\n"--system show --property OnFailure --value brumate@unit.service") echo tell@one.service two.service ;;\n'
                   f'*) echo "$*" >{called}.new; mv {called}.new {called} ;;\nesac\n')
    os.chmod(os.path.join(manager, "systemctl"), 0o755)
    service = Service(bed)
    service.script = os.path.join(bed.dir, "brumate-service")
    with open(service.script, "w", encoding="utf-8") as file:  # a hook has a PATH of its own
        file.write(read_text(SCRIPT).replace("set -u\n", f"set -u\nPATH={manager}:$PATH\n", 1))
    os.chmod(service.script, 0o755)
    service.start()
    job = service.running()
    expect(service.job()["hook"] == service.script, f"{service.job()}")
    bed.ok("suspend", "unit")
    bed.ok("resume", "unit")
    expect(not os.path.exists(called), "something is started where nothing has failed")
    bed.fault("checkpoint.criu.begin", "error:5")
    bed.ok("checkpoint", "unit", "--every", "1s")
    wait_until(lambda: os.path.exists(called), "the units to be started", 60)
    expect(read_text(called) == "--system start --no-block tell@one.service two.service\n", read_text(called))
    bed.end_schedule("unit")
    expect(service.main.poll() is None, "the service has ended")
    bed.ok("kill", job["id"], "--signal", "KILL")
    service.end()


@case
def one_that_failed_is_restored_and_one_that_is_done_runs_anew(bed):
    service = Service(bed)
    service.start()
    job = service.running()
    bed.ok("checkpoint", "unit", "--leave-running")
    bed.ok("kill", job["id"], "--signal", "KILL")
    expect(service.end() == 137 and service.stop() == 0, "it did not end as the job did")
    service.start()
    expect(service.running()["id"] == job["id"], "it was not restored")
    bed.ok("kill", job["id"], "--signal", "KILL")
    service.end()
    bed.ok("rm", "--job", job["id"])
    service.command = ["/bin/echo", "done", "with spaces"]
    for _ in range(2):
        service.start()
        expect(service.end() == 0 and service.job()["state"] == "exited", f"{service.job()}")
    expect(len(bed.list("ps", "jobs")) == 1, f"{bed.list('ps', 'jobs')}")


@case
def one_whose_store_is_not_there_does_not_begin_anew(bed):
    """As where its file system is not mounted yet, or a link leads nowhere."""
    service = Service(bed)
    service.start()
    job = service.running()
    log = bed.log(job["id"])
    log.goes_on()
    expect(service.stop() == 0 and service.end() == 0, "it did not stop well")
    away = bed.store() + ".away"
    os.rename(bed.store(), away)
    for target in (None, os.path.join(bed.dir, "nowhere")):
        if target:
            os.symlink(target, bed.store())
        service.start()
        expect(service.end() not in (0, None), "it was started")
        expect(service.job()["id"] == job["id"] and service.job()["state"] == "checkpointed", f"{service.job()}")
    expect("No such file or directory" in read_text(service.journal), "nothing says why")
    os.unlink(bed.store())
    os.rename(away, bed.store())
    before = log.last_step()
    service.start()
    expect(service.running()["id"] == job["id"], "it is another job")
    log.goes_on()
    expect(log.last_step() > before, "it began anew")
    bed.ok("kill", job["id"])
    service.end()


@case
def units_are_valid(bed):
    if not shutil.which("systemd-analyze"):
        raise Skipped("systemd-analyze is not installed")
    units = os.path.join(bed.dir, "units")
    os.mkdir(units)
    built = os.path.join(bed.build.path, "data")
    sources = {"brumate@job.service": os.path.join(built, "brumate@.service.system"),
               "brumate-metrics.service": os.path.join(built, "brumate-metrics.service"),
               "brumate@job.socket": os.path.join(SOURCE, "data", "brumate@.socket"),
               "brumated.socket": os.path.join(SOURCE, "data", "brumated.socket"),
               "brumated.service": os.path.join(built, "brumated.service")}
    for name, source in sources.items():
        with open(source, encoding="utf-8") as file:
            # What the commands are called where they are installed is not here.
            lines = ["ExecStart=/bin/true\n" if line.startswith("ExecStart=") else
                     "ExecStop=/bin/true\n" if line.startswith("ExecStop=") else line for line in file]
        with open(os.path.join(units, name.replace("@job", "@")), "w", encoding="utf-8") as file:
            file.writelines(lines)
    drop_in = os.path.join(units, "brumate@job.socket.d")
    os.mkdir(drop_in)
    with open(os.path.join(drop_in, "port.conf"), "w", encoding="ascii") as file:
        file.write("[Socket]\nListenStream=127.0.0.1:8000\n")
    for name in sources:
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(units, name)], capture_output=True,
                              text=True, timeout=120, check=False)
        wrong = [line for line in done.stderr.splitlines() if "brumate" in line]
        expect(not wrong, "\n".join(wrong))


UNSAFE_TENTHS = {"brumate-metrics.service": 33}  # of ten, as systemd-analyze counts
INHERITED = r"^(NoNewPrivileges|Protect|Private|Restrict|Lock|MemoryDeny|SystemCall|CapabilityB|ReadOnly|Inaccessible|UMask)"


def options_of(name):
    """{option: value} of a unit of the build."""
    lines = read_text(os.path.join(find_build().path, "data", name)).splitlines()
    return dict(line.split("=", 1) for line in lines if re.match("[A-Z][A-Za-z]+=", line))


@case
def sandboxes_of_units(bed):
    """What starts nothing has one; what starts shims and jobs has none, as they would have it, too."""
    for name in ("brumate@.service.system", "brumated.service"):
        found = [option for option in options_of(name) if re.match(INHERITED, option)]
        expect(not found, f"{name}: the jobs would have {found}")
    if not shutil.which("systemd-analyze"):
        raise Skipped("systemd-analyze is not installed")
    for name, tenths in UNSAFE_TENTHS.items():
        done = run(["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={tenths}", os.path.join(bed.build.path, "data", name)])
        if "unrecognized option" in done.err:
            raise Skipped("this systemd-analyze needs a running systemd")
        expect(done.code == 0 and "Overall exposure level" in done.out, done.why())


# As the unit's ProtectSystem=strict, NoNewPrivileges= and CapabilityBoundingSet= (after the script).
SANDBOX = """
mount --make-rprivate /
awk '{print $5}' /proc/self/mountinfo | while read -r at; do
	case $at in /proc* | /sys* | /dev*) ;; *) mount -o remount,bind,ro "$at" ;; esac
done
touch "$1" 2>/dev/null && exit 99
caps=$2; shift 2
exec setpriv --no-new-privs --bounding-set "-all,$caps" --inh-caps -all "$@"
"""


def calls_of(group):
    """All system calls of one of systemd's sets."""
    words = [line.strip() for line in run(["systemd-analyze", "syscall-filter", "--no-pager", group]).out.splitlines()[1:]]
    return {call for word in words for call in (calls_of(word) if word.startswith("@") else [word])}


@case
@as_user
def metrics_in_the_sandbox_of_its_unit(bed):
    """They are the same there, are had by no other system call, and no shim is started, which would stay in it."""
    needs_root()
    for tool in ("unshare", "setpriv", "strace", "systemd-analyze"):
        if not shutil.which(tool):
            raise Skipped(f"{tool} is not installed")
    options = options_of("brumate-metrics.service")
    caps = ",".join("+" + name.removeprefix("CAP_").lower() for name in options["CapabilityBoundingSet"].split())
    asleep, _ = bed.counter(mib=4)
    bed.ok("suspend", asleep)
    awake, log = bed.counter(mib=4)
    trace = f"/dev/shm/brumate-test-{bed.uid}"

    def seen(*command):
        done = ok(run([*command, bed.brumate, "metrics", "--all-users"], env=env_of_root(bed), cwd="/"))
        return sorted(line for line in done.out.splitlines() if line.startswith(("brumate_job_state", "brumate_job_device_memory", "brumate_job_gpu_processes"))
                      and f'user="{bed.uid}"' in line)

    plain = seen()
    expect(any(awake in line and "device_memory" in line for line in plain), f"{plain}")
    try:
        inside = seen("unshare", "-m", "sh", "-euc", SANDBOX, "sh", os.path.join(bed.dir, "written"), caps, "strace", "-f", "-qq", "-o", trace)
        text = read_text(trace)
    finally:
        os.unlink(trace)
    expect(inside == plain, f"{inside} is not {plain}")
    known = set(run(["systemd-analyze", "syscall-filter", "--no-pager", "@known"]).out.split())
    allowed = calls_of(options["SystemCallFilter"])
    calls = set(re.findall(r"^[0-9]+ +([a-z_0-9]+)[(]", text, re.M))
    expect("setresuid" in calls and "connect" in calls, f"{calls}")
    expect(calls & known <= allowed, f"the filter of the unit stops {calls & known - allowed}")
    families = set(re.findall(r"[ ]socket[(](AF_[A-Z0-9]+)", text))
    expect(families <= set(options["RestrictAddressFamilies"].split()), f"{families}")
    refused = [line for line in text.splitlines() if line.endswith(("EPERM (Operation not permitted)", "EROFS (Read-only file system)"))]
    expect(not refused, f"{refused[:5]}")
    bed.kill_shim(awake)
    expect(any(awake in line for line in seen()), "the job is not seen")
    expect(bed.shim(awake) is None, "another shim was started")
    log.goes_on()


if __name__ == "__main__":
    main()
