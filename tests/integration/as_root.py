# SPDX-License-Identifier: MIT
"""Commands of root's, whose instance of brumate is another one than the bed's, about a user's jobs."""

import json
import os
import sys

from cases import Skipped, expect, run


def env_of_root(bed):
    """Of an instance of root's own, elsewhere."""
    env = {name: value for name, value in bed.command_env().items() if not name.startswith(("BRUMATE_STATE", "BRUMATE_RUNTIME"))}
    root = os.path.join(bed.dir, "of-root")
    os.makedirs(os.path.join(root, "state"), exist_ok=True)
    with open(os.path.join(root, "brumate.conf"), "a", encoding="utf-8"):
        pass
    return env | {"BRUMATE_STATE_DIR": f"{root}/state", "BRUMATE_RUNTIME_DIR": f"{root}/run", "BRUMATE_LOG_DIR": f"{root}/log",
                  "BRUMATE_CONFIG": f"{root}/brumate.conf", "HOME": "/root"}


def as_root(bed, *args, timeout=60):
    return run([bed.brumate, *[str(a) for a in args]], env=env_of_root(bed), timeout=timeout, cwd="/")


def needs_root():
    if os.getuid() != 0:
        raise Skipped("only root sees the jobs of all users")


def ran_apart(file, name, timeout):
    """Runs the case in a PID namespace, where there are no jobs of tests beside this one. False: this is there."""
    if "BRUMATE_TEST_ALONE" in os.environ:
        return False
    done = run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, file, name],
               env={**os.environ, "BRUMATE_TEST_ALONE": "1"}, timeout=timeout)
    expect("1 passed" in done.out, done.out + done.why())
    return True


def ok(done):
    expect(done.code == 0, done.why())
    return done


def listed(bed, *options):
    """Root's list of this bed's user: {id: job}."""
    jobs = json.loads(ok(as_root(bed, "ps", "--all-users", "--format", "json", *options)).out)["jobs"]
    return {job["id"]: job for job in jobs if job["uid"] == bed.uid}
