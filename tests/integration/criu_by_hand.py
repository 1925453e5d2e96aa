#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Our plugins in a CRIU that is run by hand: at each level of its log a device is opened anew for the program that had it open.
brumate and container engines have CRIU log everything, and what it passes to a plugin that it does not mean to is what its log has left."""

import os
import sys

from cases import DeviceNode, case, expect, main, read_text
from harness import run

# The first process of a pid namespace, in which nobody takes the program's pid between dump and restore.
SCRIPT = """
import os, signal, subprocess, sys
criu, images, device = sys.argv[1:]
FD, FLAGS, LEVELS = 9, os.O_RDWR | os.O_NONBLOCK, range(5)

def run_criu(verb, level, *options):
    words = [criu, verb, f"-v{level}", "--images-dir", images, "--log-file", f"{verb}-{level}.log", *options]
    return subprocess.run(words, stdin=subprocess.DEVNULL).returncode

def look(pid):
    with open(f"/proc/{pid}/fdinfo/{FD}") as file:
        flags = int(file.read().split("flags:")[1].split()[0], 8)
    return os.readlink(f"/proc/{pid}/fd/{FD}"), flags & (os.O_ACCMODE | os.O_NONBLOCK)

os.dup2(os.open(device, FLAGS), FD)
program = subprocess.Popen(["sleep", "600"], pass_fds=[FD], start_new_session=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.close(FD)
if run_criu("dump", LEVELS[-1], "--tree", str(program.pid)):
    sys.exit("the dump failed")
program.wait()
for level in LEVELS:
    if run_criu("restore", level, "--restore-detached"):
        print("level", level, "failed", flush=True)
        continue
    print("level", level, "OK" if look(program.pid) == (device, FLAGS) else f"WRONG {look(program.pid)}", flush=True)
    os.kill(program.pid, signal.SIGKILL)
    os.waitpid(program.pid, 0)
"""


def log_tails(images):
    logs = [os.path.join(images, name) for name in sorted(os.listdir(images)) if name.endswith(".log")]
    return "; ".join(f"{os.path.basename(path)}: {read_text(path)[-300:].strip()}" for path in logs)


def opens_anew_at_each_level(bed, plugin):
    images = os.path.join(bed.dir, "images")
    os.mkdir(images)
    with DeviceNode("/dev/fuse") as device:
        env = bed.command_env({"CRIU_LIBS_DIR": os.path.dirname(bed.build.program(plugin)), "BRUMATE_CRIU_DEVICES": device})
        done = run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", SCRIPT,
                    bed.build.criu(), images, device], env=env)
    wanted = "".join(f"level {level} OK\n" for level in range(5))
    expect(done.code == 0 and done.out == wanted, f"{done.out} {done.err} {log_tails(images)}")


@case
def the_plugin_of_our_criu(bed):
    opens_anew_at_each_level(bed, "brumate-criu.so")


@case
def the_plugin_for_containers(bed):
    opens_anew_at_each_level(bed, "brumate_plugin.so")


main()
