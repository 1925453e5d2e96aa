#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CRIU's own tests (zdtm) under brumate: what CRIU alone can checkpoint and restore, brumate can. Each of their programs is
started, taken over by its pid, saved, restored and told to end, and then says whether it found all as it had left it.
Where that fails, the same is done with CRIU alone and the options that its authors give for that program; only what
passes there is a failure here.

	zdtm.py [--all] [--gpu] [--jobs N] [PROGRAM...]

Without --all or programs, a few of each kind. With --gpu each is in one job with a process that has GPU state, which goes on. The programs are CRIU's, fetched and built by tools/zdtm-provision."""

import argparse
import collections
import concurrent.futures
import contextlib
import fcntl
import functools
import itertools
import os
import platform
import re
import select
import signal
import sys
import time
import traceback

from cases import Bed, Failed, SOURCE, Skipped, expect, find_build, process_start, read_text, run, wait_until, why_not
from harness import Log, own_mounts, plain_signals

ZDTM = os.path.join(SOURCE, ".zdtm")
TESTS = os.path.join(ZDTM, "test", "zdtm")
FOLDERS = ("static", "transition")
EXIT_SKIPPED = 77
END_S, BUILD_S = 40, 3600

# Those that `make check` runs: for each kind of thing that a process has, quick ones that mind neither how busy the machine is
# nor who else has a port or a terminal.
FEW = """zombie00 wait00 caps00 fpu00 futex sock_filter00 pidfd_self pipe00 pthread00 sock_opts00 groups xids00 epoll signalfd00
    eventfs00 cow00 sigpending sigaltstack stopped01 dumpable01 scm03 aio01 seccomp_strict seccomp_filter_tsync memfd00
    child_subreaper maps00 deleted_unix_sock unlink_fstat00 ghost_holes00 unlink_mmap00 fifo_wronly file_shared cwd01 inotify00
    rmdir_open del_standalone_un_seqpacket symlink env00 umask00 pipe_loop00 socket-ext""".split()

# Of these, those that it runs in one job with a program on a GPU as well.
FEW_WITH_GPU = "futex pthread00 sigpending fpu00 eventfs00 maps00 unlink_mmap00 socket-ext".split()

# What CRIU alone does and brumate does not, and why.
DIFFERENT = {
    "cgroup00": "a job comes back into the cgroup of whoever restores it",
    "cgroup_stray": "a job comes back into the cgroup of whoever restores it",
    "socket-tcp-ipt-nfconntrack": "it has a network namespace of its own, which is saved by a container's engine alone",
}

# They have the same port, or number of a terminal, as each other.
SHARE = re.compile("socket|pty|tty")

# Options of CRIU's for which brumate has one of its own; others it gives always, or has no such thing.
OPTIONS = {"--skip-in-flight": "--tcp-skip-in-flight", "--tcp-close": "--tcp-close"}

# Starts a program that goes into the background, and ends when nothing is left of it.
INIT = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
print("started", subprocess.call(sys.argv[1:]), flush=True)
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""


# The same, next to a program on a GPU, whose output is in the file that comes first; what comes before "--" is that program.
INIT_WITH_GPU = """
import os, sys
place, output, *argv = sys.argv[1:]
os.chdir(place)
at = argv.index("--")
if os.fork() == 0:
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.execv(argv[0], argv[:at])
sys.argv[1:] = argv[at + 1:]
""" + INIT


class NotTheSame(Exception):
    """It could not be saved or restored, or the program found something amiss."""


class Test:
    """One of CRIU's programs, with what its authors say of it."""

    def __init__(self, words):
        folder, _, self.name = words.rpartition("/")
        self.folder = next((f for f in FOLDERS if os.path.exists(os.path.join(TESTS, f, self.name + ".c")) and folder in ("", f)),
                           None)
        self.path = os.path.join(TESTS, self.folder or "", self.name)
        self.argv = None
        text = read_text(self.path + ".desc").strip()
        # Read as CRIU's own runner does; it is from the same signed archive as the program.
        self.about = eval(text, {"os": os}) if text else {}

    def words(self, *keys):
        return [word for key in keys for word in self.about.get(key, "").split()]


def all_names():
    """What CRIU's makefiles build."""
    for folder in FOLDERS:
        made = run(["make", "-s", "-C", os.path.join(TESTS, folder), "--eval", "names: ; @echo $(TST)", "names"])
        expect(made.code == 0, made.why())
        yield from (f"{folder}/{name}" for name in made.out.split())


@contextlib.contextmanager
def alone_in(directory):
    """Nobody else builds there."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def build(tests, jobs):
    """Builds what of them can be built here, and finds how each is started."""
    for folder in FOLDERS:
        these = {test.name: test for test in tests if test.folder == folder}
        if not these:
            continue
        make = ["make", "-k", "-C", os.path.join(TESTS, folder)]
        run([*make, f"-j{jobs}", *these], timeout=BUILD_S)
        for line in run([*make, "-n", *(name + ".pid" for name in these)]).out.splitlines():
            words = line.split()
            test = these.get(os.path.basename(words[0])) if "--pidfile=" in line else None
            if test and os.access(test.path, os.X_OK):
                test.argv = [test.path, *words[1:]]


def descendants(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task") if os.path.isdir(f"/proc/{pid}/task") else ():
        for child in read_text(f"/proc/{pid}/task/{task}/children").split():
            found += [int(child), *descendants(child)]
    return found


class Life:
    """One program from its start to its end, in a directory of its own."""

    numbers = itertools.count()

    def __init__(self, bed, test):
        self.bed, self.test = bed, test
        self.dir = os.path.join(bed.dir, str(next(self.numbers)))  # a socket's name has room for 107 letters
        os.mkdir(self.dir)
        os.chmod(self.dir, 0o777)
        self.inits = []

    def under_init(self, argv):
        init = self.bed.start([sys.executable, "-c", INIT, *argv], f"zdtm-{os.path.basename(self.dir)}", cwd=self.dir)
        self.inits.append(init)
        return int(init.log.wait_for(r"^started (\S+)", END_S)[1])

    def start(self):
        try:
            code = self.under_init(self.test.argv)
        except Failed as failed:
            raise Skipped(f"it does not start here: {failed}") from failed
        pid_file = os.path.join(self.dir, self.test.name + ".pid")
        pid = int(read_text(pid_file) or 0)
        if code or process_start(pid) is None:
            raise Skipped(f"it does not start here: {self.says()}")
        os.unlink(pid_file)  # as CRIU's own runner does, which has CRIU write it
        return pid

    def save(self, pid, function):
        """What function(pid) returns, once the last process that it saved is gone."""
        saved = {p: process_start(p) for p in (pid, *descendants(pid))}
        result = function(pid)
        wait_until(lambda: all(process_start(p) != start or start is None for p, start in saved.items()),
                   "the end of what was saved", END_S)
        return result

    def end(self, pid):
        """It must find all as it was."""
        start = process_start(pid)
        if start is None:
            raise NotTheSame(f"it ended by itself: {self.says()}")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while process_start(pid) == start:
            if time.monotonic() > deadline:
                raise NotTheSame(f"it did not end within {END_S} s of SIGTERM: {self.says()}")
            select.select([], [], [], 0.02)
        if not re.search(r"\bPASS\b", read_text(os.path.join(self.dir, self.test.name + ".out"))):
            raise NotTheSame(f"it says: {self.says()}")

    def says(self):
        found = [line for name in (".out", ".out.inprogress")
                 for line in read_text(os.path.join(self.dir, self.test.name + name)).splitlines() if line.strip()]
        return " / ".join(found[-3:])[-400:] or self.inits[-1].log.tail(2)

    def close(self):
        for init in self.inits:
            wait_until(lambda init=init: init.process.poll() is not None or self.kill(descendants(init.pid)), "the end of a program", END_S)

    @staticmethod
    def kill(these):
        """None, as new ones may have come meanwhile."""
        for pid in these:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class LifeWithGpu(Life):
    """As one job with a program on a GPU."""

    def __init__(self, bed, test):
        super().__init__(bed, test)
        self.job, self.gpu_log = None, Log(os.path.join(self.dir + ".gpu"))

    def under_init(self, argv):
        counter = [self.bed.program("counter"), "--mib", "8", "--chunk-mib", "2", "--interval-ms", "25"]
        self.job = self.bed.run([sys.executable, "-u", "-c", INIT_WITH_GPU, self.dir, self.gpu_log.path, *counter, "--", *argv])
        code = int(self.bed.log(self.job).wait_for(r"^started (\S+)", END_S)[1])
        self.gpu_log.goes_on(2)
        return code

    def says(self):
        return super().says() if self.inits else self.bed.log(self.job).tail(2)

    def end(self, pid):
        try:
            self.gpu_log.goes_on(2)
        except Failed as failed:
            raise NotTheSame(f"the program on a GPU does not go on: {failed}") from failed
        super().end(pid)


class Runner:
    def __init__(self, bed, gpu=False):
        self.bed, self.gpu = bed, gpu
        provisioned = os.path.join(bed.build.path, "src", "criu", "criu")
        self.criu = os.environ.get("BRUMATE_CRIU") or (provisioned if os.path.exists(provisioned) else "criu")
        self.count = collections.Counter()

    @functools.cache  # noqa: B019 (there is one runner)
    def lacks(self, feature):
        return run([self.criu, "check", "--feature", feature]).code != 0

    def why_not(self, test):
        about = test.about
        if not test.folder:
            return "there is no such program"
        if "h" not in about.get("flavor", "h").split():
            return "it wants namespaces that CRIU's own runner makes"
        if "noauto" in test.words("flags"):
            return "CRIU's authors do not run it by itself"
        if platform.machine() not in about.get("arch", platform.machine()).split():
            return f"it is for {about['arch']}"
        for feature in about.get("feature", "").split():
            if self.lacks(feature):
                return f"the kernel lacks {feature}"
        skip = test.path + ".checkskip"
        if os.access(skip, os.X_OK) and run([skip], cwd=os.path.dirname(TESTS)).code:
            return "its own look at this machine says so"
        return None if test.argv else "it does not build here"

    def by_brumate(self, life):
        bed, test = self.bed, life.test
        pid = life.start()
        words = {OPTIONS[word] for word in test.words("opts", "dopts") if word in OPTIONS}
        try:
            saved = life.save(pid, lambda pid: bed.operation("checkpoint", "--pid", pid, *(words & {"--tcp-skip-in-flight"})))
            words = {OPTIONS[word] for word in test.words("opts", "ropts") if word in OPTIONS}
            job = bed.operation("restore", saved["checkpoint"], *(words & {"--tcp-close"}))["job"]
        except Failed as failed:
            raise NotTheSame(str(failed)) from failed
        bed.jobs.append(job)
        try:
            life.end(bed.pid(job))
        finally:
            bed.cli("kill", "--grace", "0", job)
            bed.cli("rm", "--job", job)
            bed.cli("rm", "--checkpoint", saved["checkpoint"])
            bed.jobs.remove(job)

    def with_gpu(self, life):
        bed, pid = self.bed, life.start()
        saved = None
        try:
            saved = life.save(pid, lambda pid: bed.operation("checkpoint", life.job))
            bed.operation("restore", life.job)
            life.end(pid)
        except Failed as failed:
            raise NotTheSame(str(failed)) from failed
        finally:
            bed.cli("kill", "--grace", "0", life.job)
            bed.cli("rm", "--job", life.job)
            if saved:
                bed.cli("rm", "--checkpoint", saved["checkpoint"])
            bed.jobs.remove(life.job)

    def by_criu(self, life):
        test, pid = life.test, life.start()
        images = life.dir + ".img"
        os.mkdir(images)
        common = ["-D", images, "-v4"]

        def dump(pid):
            argv = [self.criu, "dump", "-t", pid, "-o", "dump.log", *common, *test.words("opts", "dopts")]
            if run(argv, cwd=life.dir).code:
                raise NotTheSame("CRIU's dump fails")

        life.save(pid, dump)
        restored = os.path.join(images, "pid")
        argv = [self.criu, "restore", "-d", "-o", "restore.log", "--pidfile", restored, *common, *test.words("opts", "ropts")]
        if life.under_init(argv):
            raise NotTheSame("CRIU's restore fails")
        life.end(int(read_text(restored)))

    def lived(self, way, test):
        """None if all was the same afterwards, else what was not."""
        life = (LifeWithGpu if way == "with_gpu" else Life)(self.bed, test)
        try:
            getattr(self, way)(life)
            return None
        except NotTheSame as what:
            return str(what)
        finally:
            life.close()

    def verdict(self, test):
        lacking = self.why_not(test)
        if lacking:
            return "skip", lacking
        try:
            amiss = self.lived("with_gpu" if self.gpu else "by_brumate", test)
            if amiss is None:
                return "ok", "" if test.name not in DIFFERENT else f"and was thought to differ: {DIFFERENT[test.name]}"
            alone = self.lived("by_criu", test)
        except Skipped as skipped:
            return "skip", str(skipped)
        except Exception:
            return "FAILED", traceback.format_exc()
        if alone is not None:
            return "neither", f"{alone}; brumate: {amiss}"
        if test.name in DIFFERENT:
            return "differs", DIFFERENT[test.name]
        return "FAILED", f"CRIU alone can; {amiss}"

    def one(self, test):
        start = time.monotonic()
        verdict, why = self.verdict(test)
        self.count[verdict] += 1
        print(f"{verdict} {test.name}{': ' if why else ''}{why} [{time.monotonic() - start:.1f} s]", flush=True)


def provision():
    """Why there are none of CRIU's programs; None where there are."""
    made = run([os.path.join(SOURCE, "tools", "zdtm-provision"), ZDTM], timeout=600)
    return (made.err or made.out).strip().splitlines()[0] if made.code else None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all that CRIU's authors run without namespaces")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many side by side")
    parser.add_argument("--gpu", action="store_true", help="each in one job with a program on a (simulated) GPU")
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    return parser.parse_args()


def main():
    plain_signals()
    options = parse()
    brumate = find_build()
    reason = why_not(brumate) or provision()
    if reason:
        print(f"skip: {reason}")
        return EXIT_SKIPPED
    own_mounts()  # theirs are of cgroups, and every container engine on the machine would see them
    tests = [Test(name) for name in options.names or (all_names() if options.all else FEW)]
    with alone_in(ZDTM):
        build(tests, options.jobs)
    alone = [test for test in tests if "excl" in test.words("flags") or SHARE.match(test.name)]
    with Bed(brumate) as bed:
        os.chmod(bed.dir, 0o755)
        runner = Runner(bed, options.gpu)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(runner.one, [test for test in tests if test not in alone]))
        for test in alone:
            runner.one(test)
        if not (options.all or options.names or options.gpu):
            runner.gpu = True
            for test in (test for test in tests if test.name in FEW_WITH_GPU):
                runner.one(test)
        count = runner.count
        bed.finish()
    leaked = [line for line in read_text(f"/proc/{os.getppid()}/mounts").splitlines() if "zdtm" in line]
    expect(not leaked, f"others see their mounts: {leaked}")
    print(f"{count['ok']} passed, {count['FAILED']} failed, {count['skip']} skipped; {count['differs']} that CRIU alone passes and "
          f"brumate is known not to; {count['neither']} that CRIU alone does not pass here either")
    return 1 if count["FAILED"] or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
