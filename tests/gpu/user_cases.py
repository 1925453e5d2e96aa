# SPDX-License-Identifier: MIT
"""Cases of tools/gpu-check about users who are not root: README's first job, from its start to its restore, as a user with
nothing of root's running and as root, and what each takes. Both go by the fast path, and have their images in memory: what a
disk takes differs from one time to the next."""

import os
import shutil
import stat
import tempfile

import cases
from harness import Instance, Skipped, expect

UID, ROUNDS, SECONDS_TO_BEGIN = 1234, 3, 180
# What may differ without anything being slow: CRIU looks at the kernel anew, and times are noisy.
RATIO_MAX, SLACK_S = 1.5, 0.5


def device_is_for_all(path):
    try:
        return os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH) == stat.S_IROTH | stat.S_IWOTH
    except OSError:
        return True  # it has none


def why_not():
    """Why a user cannot do it here; None where one can."""
    if os.geteuid() != 0:
        return "needs root, to become a user and to give the launcher its capability"
    if not all(device_is_for_all(path) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")):
        return "users who are not root may not open the devices"
    return None


def whose(instance):
    """The user of every process of the instance, and the capabilities of each that CRIU is not."""
    found = {}
    for pid, command in instance.processes():
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        except OSError:
            continue  # it has ended
        found[f"{pid} {command[:60]}"] = (set(status["Uid"].split()), int(status["CapPrm"], 16))
    return found


def expect_of_user_alone(instance):
    found = whose(instance)
    expect(found, "the job has no process")
    for process, (uids, capabilities) in found.items():
        expect(uids == {str(UID)} and not capabilities, f"{process}: uids {uids}, capabilities {capabilities:x}")


def expect_fast_path(instance, job, mib):
    memory = instance.ok("inspect", job, "--format", "json").json()["memory"]
    expect(sum(process["data_bytes"] for process in memory) >= mib << 20, f"not by the fast path: {memory}")


class FirstJob:
    """README's first job, of a user or of root's: the best seconds of each operation."""

    def __init__(self, check, build, uid):
        self.check, self.uid = check, uid
        self.mib = 256 if check.options.simulated else 8192
        self.instance = Instance(build, simulated=check.options.simulated, transcript=check.instance.transcript, uid=uid)
        self.instance.own["HOME"] = self.instance.dir
        self.images = tempfile.mkdtemp(prefix="brumate-users-", dir="/dev/shm")
        os.chown(self.images, *self.instance.owner())
        self.best = {}

    def do(self, verb, *args):
        summary = self.instance.operation(verb, *args)
        self.check.operations.append(summary)
        self.best[verb] = min(summary["seconds"], self.best.get(verb, summary["seconds"]))
        return summary

    def walk(self):
        instance = self.instance
        job = instance.run([instance.build.program("counter"), "--mib", self.mib, "--interval-ms", "20"], name="train")
        log = instance.log(job)
        log.wait_for(r"^ready ", SECONDS_TO_BEGIN)
        log.goes_on()
        expect_fast_path(instance, job, self.mib)
        for _ in range(ROUNDS):
            self.do("suspend", "train")
            self.do("resume", "train")
            log.goes_on()
        checkpoint = self.do("checkpoint", "train", "--dir", self.images)["checkpoint"]
        self.do("restore", "--dir", self.images, checkpoint)
        log.goes_on()
        expect_fast_path(instance, job, self.mib)
        if self.uid is not None:
            expect_of_user_alone(instance)
        instance.end(job)

    def close(self):
        left = self.instance.close(wait_for_shims=False)
        expect(not left, f"left behind: {left}")


def walked(check, build, uid):
    job = FirstJob(check, build, uid)
    try:
        job.walk()
    except BaseException:
        job.instance.close(wait_for_shims=False)
        raise
    finally:
        shutil.rmtree(job.images, ignore_errors=True)
    job.close()
    return job.best


def first_job(check):
    if reason := why_not():
        raise Skipped(reason)
    try:
        build = cases.copy_for_users(check.build)
    except cases.Skipped as skipped:
        raise Skipped(str(skipped)) from skipped
    of_user, of_root = walked(check, build, UID), walked(check, build, None)
    told = ", ".join(f"{verb} {of_user[verb]:.3f} s (root's {of_root[verb]:.3f} s)" for verb in of_user)
    check.measured["users"] = told
    print(told, flush=True)
    if check.options.simulated:  # a rehearsal, beside other tests: its times tell nothing
        return
    for verb, seconds in of_user.items():
        limit = RATIO_MAX * of_root[verb] + SLACK_S
        expect(seconds <= limit, f"{verb}: {seconds:.3f} s as a user, {of_root[verb]:.3f} s as root")


def register(case):
    """Adds these cases to gpu-check's list."""
    case("users: the first job without root")(first_job)
