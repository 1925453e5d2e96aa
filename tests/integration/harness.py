# SPDX-License-Identifier: MIT
"""What the integration tests and tools/gpu-check share: an instance of brumate in directories of its
own, its command line, its jobs and their logs. Waiting is for events (inotify, process ends), always
with a deadline; nothing here sleeps and hopes."""

import ctypes
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IN_MODIFY, IN_NONBLOCK, IN_CLOEXEC = 0x2, 0o4000, 0o2000000

EXIT_STILL_RUNNING = 7
CLONE_NEWNS = 0x20000


class Failed(Exception):
    """A test's expectation that was not met; its text says all that is needed."""


class Skipped(Exception):
    """The case cannot be run here; its text says why."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def plain_signals():
    """From now on what this process starts has all signals as a login has them, whoever started us: nohup(1), the
    runner of a CI or a shell's & leave some ignored, and programs keep to that, as ours do. What we were told to ignore
    we do not act on either; but it is caught, as exec(2) resets just those."""
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Watch:
    """Blocks until a file is written to, or a deadline passes."""

    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self, path):
        self.fd = self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0 or self._libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), f"watch {path}")

    def wait(self, seconds):
        if select.select([self.fd], [], [], max(seconds, 0))[0]:
            os.read(self.fd, 65536)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


class Log:
    """The output of a program, in a file that only grows."""

    def __init__(self, path):
        self.path = path

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def lines(self):
        return self.text().splitlines()

    def tail(self, n=5):
        return " / ".join(self.lines()[-n:])

    def wait_until(self, holds, what, seconds=60):
        """Waits until holds(whole text) is true, and returns its value."""
        deadline = time.monotonic() + seconds
        with Watch(self.path) as watch:
            while True:
                value = holds(self.text())
                if value:
                    return value
                left = deadline - time.monotonic()
                expect(left > 0, f"{what}: not within {seconds} s; the log ends: {self.tail()}")
                watch.wait(min(left, 0.25))  # what holds may also depend on a process that ended

    def wait_for(self, pattern, seconds=60):
        """Waits for a line that matches; returns the first match."""
        found = re.compile(pattern, re.MULTILINE)
        return self.wait_until(found.search, f"a line like {pattern!r}", seconds)

    def last_step(self):
        steps = re.findall(r"^(?:.* )?step (\d+) ", self.text(), re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def goes_on(self, steps=3, seconds=60):
        """Waits for so many steps more than now, none of them wrong. Returns the last one."""
        self.is_right()
        want = self.last_step() + steps
        self.wait_until(lambda _: self.is_right() >= want, f"step {want}", seconds)
        return self.last_step()

    def is_right(self):
        """Checks that no line tells of wrong data and that no step is missing or doubled. The last."""
        text = self.text()
        wrong = re.search(r"^.*(BAD|ERR).*$", text, re.MULTILINE)
        expect(not wrong, f"the program says: {wrong and wrong.group(0)}")
        steps = [int(n) for n in re.findall(r"^(?:.* )?step (\d+) .*\n", text, re.MULTILINE)]
        if steps:
            first = steps[0]
            expect(steps == list(range(first, first + len(steps))), "steps missing or doubled in the log")
        return steps[-1] if steps else 0


class LaterLog(Log):
    """A log from some place on."""

    skip = 0

    def text(self):
        return super().text()[self.skip:]

    def begin_here(self):
        """What a job that is taken down in the middle of its restore wrote is done once more."""
        self.skip += len(self.text())


@dataclass
class Result:
    argv: list
    code: int
    out: str
    err: str
    seconds: float

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Failed(f"{self.line()}: no JSON ({error}): {self.out[:300]}") from error

    def line(self):
        return " ".join(os.path.basename(self.argv[0]).split() + self.argv[1:])

    def why(self):
        return f"{self.line()}: exit {self.code}: {(self.err or self.out).strip()[-600:]}"


def own_mounts():
    """From now on nobody else sees what this process mounts, or what it starts does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) < 0:
        raise Skipped(f"needs a mount namespace of its own: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def run(argv, env=None, timeout=120, **options):
    """Runs a command to its end; a Result, whatever its exit code. Too slow is a failure."""
    argv = [str(a) for a in argv]
    start = time.monotonic()
    process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        out, err = process.communicate()
        raise Failed(f"{' '.join(argv)}: no end within {timeout} s: {err.strip()[-300:]}") from error
    return Result(argv, process.returncode, out, err, time.monotonic() - start)


class Build:
    """A build directory, made here or on another machine (then with the libraries it needs in lib/)."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.sim = os.path.join(self.path, "sim")
        self.libraries = os.path.join(self.path, "lib")

    def program(self, name):
        for base, dirs, files in os.walk(self.path):
            dirs[:] = [d for d in dirs if not d.endswith(".p") and not d.startswith("meson-")]
            path = os.path.join(base, name)
            if name in files and os.access(path, os.X_OK):
                return path
        raise Failed(f"{self.path} holds no {name}: build it first")

    def criu(self):
        """The CRIU that brumate takes."""
        provisioned = os.path.join(self.path, "src", "criu", "criu")
        return os.environ.get("BRUMATE_CRIU") or (provisioned if os.path.exists(provisioned) else "criu")

    def library(self, name):
        """The path of a library of tests; Skipped where this build has none, as under a sanitizer."""
        for path in (os.path.join(self.path, "tests", "preload", name), os.path.join(self.path, name)):
            if os.path.exists(path):
                return path
        raise Skipped(f"{self.path} holds no {name}")

    def environment(self, base):
        """The environment in which programs of this build find their libraries."""
        env = dict(base)
        if os.path.isdir(self.libraries):
            paths = [self.libraries] + [p for p in [env.get("LD_LIBRARY_PATH")] if p]
            env["LD_LIBRARY_PATH"] = ":".join(paths)
        return env


def process_start(pid):
    """Start time of a process in clock ticks, None if there is none: with the pid, its identity."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Program:
    """A program started by us, not as a job, with its output in a file."""

    def __init__(self, argv, log, stdin=subprocess.DEVNULL, whose=None, **options):
        argv, whose = [str(a) for a in argv], whose or {}
        with open(log, "ab") as out:
            os.fchown(out.fileno(), whose.get("user", -1), whose.get("group", -1))
            self.process = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=out, start_new_session=True,
                                            **options, **whose)
        self.pid = self.process.pid
        self.log = Log(log)

    def ready(self, seconds=120):
        self.log.wait_until(lambda text: self._is_ready(text), "ready", seconds)
        return self

    def _is_ready(self, text):
        expect(self.process.poll() is None, f"the program ended: {self.log.tail()}")
        return re.search(r"^ready ", text, re.MULTILINE)

    def wait(self, seconds=30):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"process {self.pid} did not end within {seconds} s") from error

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


class Squatter:
    """A process of ours that has just this pid. clone3(2) is told which, as to move the kernel's place in
    the numbers (ns_last_pid) would give numbers of other tests' jobs to others."""

    _libc = ctypes.CDLL(None, use_errno=True)
    _CLONE3, _EXIT_SIGNAL, _SET_TID, _SET_TID_SIZE, _FIELDS = 435, 4, 8, 9, 11

    def __init__(self, pid):
        wanted = ctypes.c_int32(pid)
        args = (ctypes.c_uint64 * self._FIELDS)()
        args[self._EXIT_SIGNAL] = signal.SIGCHLD
        args[self._SET_TID], args[self._SET_TID_SIZE] = ctypes.addressof(wanted), 1
        self.pid = self._libc.syscall(self._CLONE3, args, ctypes.sizeof(args))
        if self.pid == 0:
            try:
                os.execvp("sleep", ["sleep", "600"])
            finally:
                os._exit(127)
        expect(self.pid == pid, f"pid {pid} could not be taken: {os.strerror(ctypes.get_errno())}")

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


class Instance:
    """brumate with directories of its own, beside any other on this machine."""

    def __init__(self, build, simulated=False, env=None, transcript=None, uid=None):
        self.build = build
        self.simulated = simulated
        # Whose commands they are; root's where nothing is said.
        self.whose = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        # No underscores, as tempfile has them: podman makes the name of an image of the path that it pulls one from.
        self.dir = os.path.join(tempfile.gettempdir(), f"brumate-test-{secrets.token_hex(4)}")
        os.mkdir(self.dir, 0o700)
        self.transcript = transcript
        self.programs = []
        self.jobs = []
        for name in ("run", "state", "log"):
            os.mkdir(os.path.join(self.dir, name), 0o700)
            os.chown(os.path.join(self.dir, name), *self.owner())
        os.chown(self.dir, *self.owner())
        self.own = {
            "BRUMATE_RUNTIME_DIR": os.path.join(self.dir, "run"),
            "BRUMATE_STATE_DIR": os.path.join(self.dir, "state"),
            "BRUMATE_LOG_DIR": os.path.join(self.dir, "log"),
            "BRUMATE_CONFIG": os.path.join(self.dir, "brumate.conf"),
        }
        with open(self.own["BRUMATE_CONFIG"], "w", encoding="utf-8"):
            pass  # the defaults
        os.chown(self.own["BRUMATE_CONFIG"], *self.owner())
        if simulated:
            self.own["BRUMATE_GPU"] = "simulated"
            self.own["BRUMATE_SIM_DIR"] = os.path.join(self.dir, "sim")
        self.own.update(env or {})
        self.brumate = build.program("brumate")

    def owner(self):
        return (self.whose.get("user", -1), self.whose.get("group", -1))

    # The environment of what tests start themselves, and of the commands of brumate.
    def program_env(self):
        env = {**os.environ, **self.own}
        if self.simulated:
            env["LD_LIBRARY_PATH"] = self.build.sim
        return env

    def command_env(self, extra=None):
        return {**self.build.environment(os.environ), **self.own, **(extra or {})}

    def note(self, text):
        if self.transcript:
            self.transcript.write(text + "\n")
            self.transcript.flush()

    def cli(self, *args, timeout=120, env=None):
        """A command of brumate, run to its end. The caller looks at the exit code."""
        result = run([self.brumate, *args], env=self.command_env(env), timeout=timeout, **self.whose)
        self.note(f"$ {result.line()}   [{result.code}, {result.seconds:.3f} s]\n{result.out}{result.err}".rstrip())
        return result

    def ok(self, *args, timeout=120, env=None):
        """As cli(), and it must succeed."""
        result = self.cli(*args, timeout=timeout, env=env)
        expect(result.code == 0, result.why())
        return result

    def operation(self, verb, *args, timeout=300):
        """suspend, resume, checkpoint or restore; its Summary."""
        result = self.ok(verb, *args, "--format", "json", timeout=timeout)
        value = result.json()
        return value.get("summary", value)

    def fails(self, code, *args, timeout=120, env=None):
        """As cli(), and it must fail with this exit code and one clear line. Returns the Result."""
        result = self.cli(*args, timeout=timeout, env=env)
        expect(result.code == code, f"expected exit {code}: {result.why()}")
        expect(result.err.strip(), f"{result.line()}: exit {code} without a word")
        return result

    def run(self, argv, name=None, env=None, options=()):
        """Starts a job; its id."""
        words = ["run", *options]
        if name:
            words += ["--name", name]
        argv = [str(a) for a in argv]
        if os.path.isdir(self.build.libraries) and not self.simulated:
            # The libraries beside a build made elsewhere are for brumate, not for the job.
            argv = ["env", *self._without_libraries(), *argv]
        job = self.ok(*words, "--", *argv, env=env).out.strip()
        expect(job and "\n" not in job, f"run printed {job!r}, not an id")
        self.jobs.append(job)
        return job

    @staticmethod
    def _without_libraries():
        paths = os.environ.get("LD_LIBRARY_PATH")
        return [f"LD_LIBRARY_PATH={paths}"] if paths else ["-u", "LD_LIBRARY_PATH"]

    def start(self, argv, name="program", **options):
        """Starts a program that is not a job."""
        path = os.path.join(self.dir, f"{name}-{len(self.programs)}.out")
        program = Program(argv, path, env=self.program_env(), whose=self.whose, **{"cwd": self.dir, **options})
        self.programs.append(program)
        return program

    def take_pid(self, pid):
        """A process that has this number, until its end() or ours."""
        squatter = Squatter(pid)
        self.programs.append(squatter)
        return squatter

    def list(self, verb, key, *args):
        """ps or ls as a list of objects."""
        value = self.ok(verb, *args, "--format", "json").json()
        return value[key] if isinstance(value, dict) else value

    def job(self, job):
        """What `ps` says of a job, by id or name."""
        for entry in self.list("ps", "jobs", "--all"):
            if job in (entry["id"], entry["name"]):
                return entry
        raise Failed(f"ps does not list {job}")

    def log(self, job):
        return Log(self.job(job)["log"])

    def wait_state(self, job, states, seconds=60):
        """Waits until the job is in one of these states; the state."""
        deadline = time.monotonic() + seconds
        while True:
            state = self.job(job)["state"]
            if state in states:
                return state
            expect(time.monotonic() < deadline, f"{job} is {state} after {seconds} s, expected {states}")
            select.select([], [], [], 0.05)

    def end(self, job):
        """Ends a job for good."""
        self.ok("kill", "--grace", "5s", job)
        self.wait_state(job, ("exited", "lost"))

    # What is left.
    def processes(self):
        """Every process that works with this instance's directories: [(pid, command)]."""
        mark = ("BRUMATE_STATE_DIR=" + self.own["BRUMATE_STATE_DIR"]).encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if process_start(name) is not None:
                found.append((int(name), command))
        return found

    def wait_gone(self, apart=("brumate-broker",), seconds=10):
        """Waits until nothing is left but these programs, which end by themselves: a broker when it is
        idle, a shim some seconds after its job. Returns what is there besides."""
        deadline = time.monotonic() + seconds
        while True:
            left = [p for p in self.processes() if not any(name in p[1].split(" ")[0] for name in apart)]
            if not left or time.monotonic() > deadline:
                return left
            select.select([], [], [], 0.05)

    def close(self, wait_for_shims=True):
        """Ends all that was started, removes the directories. Returns what had to be killed."""
        if not os.path.isdir(self.dir):
            return []
        for program in self.programs:
            program.end()
        for job in self.jobs:
            try:
                self.cli("kill", "--grace", "2s", job, timeout=30)
            except (Failed, OSError) as error:
                self.note(str(error))
        left = self.wait_gone(("brumate-broker",) if wait_for_shims else ("brumate-broker", "brumate-shim"))
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)
        return left

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
