# SPDX-License-Identifier: MIT
"""The runner of the integration tests, and the bed each case lies in: an instance of brumate on the
simulated driver, from which nothing may be left when the case is over."""

import atexit
import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import promises  # noqa: E402 (it stands beside this folder)
import varlink_client
from harness import SOURCE, Build, Failed, Instance, LaterLog, Log, Program, Skipped, expect, plain_signals, process_start, run

MIB = 1 << 20
NOBODY = 65534
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_UNSUPPORTED, EXIT_PERMISSION = 1, 2, 3, 4, 5
EXIT_BUSY, EXIT_STILL_RUNNING, EXIT_JOB_LOST, EXIT_BAD_IMAGE, EXIT_TIMEOUT = 6, 7, 8, 9, 124
EXIT_NO_ROOM, EXIT_FROZEN = 10, 11

# The end of a program in Python that imports time and has said "ready ...".
STEPPING = """
step = 0
while True:
    step += 1
    print("step", step, "OK", flush=True)
    time.sleep(0.02)
"""

CASES = []


def case(function):
    """Registers a case under the name of its function. It gets a bed of its own."""
    CASES.append((function.__name__.replace("_", "-"), function))
    return function


def wait_until(holds, what, seconds=30):
    """Waits until holds() is true, for what no event tells of; its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        expect(time.monotonic() < deadline, f"{what}: not within {seconds} s")
        select.select([], [], [], 0.02)


def fault_points(steps, action):
    """An error at the end of a step is that step's, at the beginning of the next the next one's. Who is killed at the one is
    as dead at the other: there is nothing between them but that another keeper is started."""
    ends, begins = ([f"{step}.{side}" for step in steps] for side in ("end", "begin"))
    if action.startswith("error"):
        return [point for both in zip(begins, ends) for point in both]
    return [*begins, ends[-1]] if action == "kill:keeper" else [begins[0], *ends]


def read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def children(pid):
    return [int(child) for tid in os.listdir(f"/proc/{pid}/task")
            for child in read_text(f"/proc/{pid}/task/{tid}/children").split()]


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def numbered_steps(log, word):
    """The last step of each process, which calls itself @word and a number; checks that none is wrong, missing or
    doubled."""
    last = {}
    text = log.text()
    expect("BAD" not in text and "ERR" not in text, f"wrong data: {log.tail()}")
    for number, step in re.findall(rf"^{word} (\d+) step (\d+) OK$", text, re.M):
        expect(int(step) == last.get(number, 0) + 1, f"{word} {number}: step {step} after {last.get(number, 0)}")
        last[number] = int(step)
    return last


def all_go_on(log, word):
    """Each of them is two steps further."""
    before = numbered_steps(log, word)
    wait_until(lambda: all(numbered_steps(log, word)[number] >= before[number] + 2 for number in before),
               f"each {word} to go on", 60)


def may_connect(path, uid):
    """Whether a process of that user gets a connection."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            varlink_client.Client(path)
            os._exit(0)
        except PermissionError:
            os._exit(1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    expect(code in (0, 1), f"{path}: connecting as uid {uid} ended with {code}")
    return code == 0


def at_terminal(bed, answer, *args, seconds=60, columns=None):
    """A command whose stdin, stdout and stderr are a terminal, on which somebody types: (exit code, what it shows)."""
    ours, theirs = pty.openpty()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    process = subprocess.Popen([bed.brumate, *args], env=bed.command_env(), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, deadline = "", time.monotonic() + seconds
    try:
        while True:
            expect(select.select([ours], [], [], max(deadline - time.monotonic(), 0))[0], f"{args}: hangs: {shown!r}")
            try:
                shown += os.read(ours, 4096).decode()
            except OSError:  # all ends on its side are closed
                return process.wait(seconds), shown
            if "[y/N]" in shown and answer:
                os.write(ours, (answer + "\n").encode())
                answer = None
    finally:
        process.kill()
        process.wait()
        os.close(ours)


class DeviceNode:
    """A node of another device that is here, named like one of a GPU."""

    def __init__(self, other):
        self.path = f"/dev/nvidia-brumate-test-{os.getpid()}"
        try:
            status = os.stat(other)
            os.mknod(self.path, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
            os.close(os.open(self.path, os.O_RDWR))
        except OSError as error:
            self.__exit__()
            raise Skipped(f"{other} cannot stand in for a device: {error}") from error

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        if os.path.exists(self.path):
            os.unlink(self.path)


class Background:
    """A command of brumate under way."""

    def __init__(self, argv, env, **options):
        self.argv = [str(a) for a in argv]
        self.process = subprocess.Popen(self.argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", **options)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=60):
        """Waits for its end: (exit code, stdout, stderr)."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            out, err = self.process.communicate()
            raise Failed(f"{' '.join(self.argv[1:])}: no end within {seconds} s: {err[-300:]}") from error
        return self.process.returncode, out, err


class Bed(Instance):
    """An instance of brumate on the simulated driver, with fault points."""

    def __init__(self, build, env=None, simulated=True, uid=None):
        super().__init__(build, simulated=simulated, uid=uid)
        self.fault_file = os.path.join(self.dir, "fault")
        self.own["BRUMATE_FAULT_FILE"] = self.fault_file
        self.own["BRUMATE_SIM_VRAM_MIB"] = "512"
        self.own.update(env or {})
        self.mounts = []
        self.background = []
        self.promises_broken = ()

    # Jobs.
    def program(self, name):
        return self.build.program(name)

    def started(self, argv, name=None, options=(), env=None):
        """A job that is at work: (id, log)."""
        job = self.run(argv, name=name, options=options, env=env)
        log = self.log(job)
        log.wait_until(lambda text: self._is_at_work(job, text), "ready", 60)
        return job, log

    def _is_at_work(self, job, text):
        found = re.search(r"^ready ", text, re.MULTILINE)
        if not found:
            expect(self.job(job)["state"] == "running", f"the job ended: {text[-300:]}")
        return found

    def counter(self, name=None, mib=16, interval_ms=None, gpu=0, env=None, chunk_mib=16, options=()):
        """It rests long enough that the tests compute something else than its steps."""
        interval_ms = interval_ms or max(25, 2 * mib)
        argv = [self.program("counter"), "--mib", mib, "--chunk-mib", min(mib, chunk_mib), "--interval-ms", interval_ms,
                "--gpu", gpu]
        return self.started(argv, name, options=options, env=env)

    def kind(self, kind, *options, name=None, mib=8, env=None, run_options=()):
        argv = [self.program("kinds"), kind, "--mib", mib, "--interval-ms", 25, *options]
        return self.started(argv, name, options=run_options, env=env)

    def python(self, script, name=None):
        """A job that runs a Python script, which prints "ready ...", then "step N OK" lines."""
        return self.started([sys.executable, "-u", "-c", script], name)

    def state(self, job):
        return self.job(job)["state"]

    def pid(self, job):
        return self.job(job)["pid"]

    def expect_state(self, job, state):
        entry = self.job(job)
        expect(entry["state"] == state, f"{job} is {entry['state']} ({entry['message']}), expected {state}")

    def expect_whole(self, job, log):
        """The job runs, nobody has done it any harm."""
        self.expect_state(job, "running")
        log.goes_on()

    def expect_restorable(self, checkpoint, log, *options):
        """The checkpoint comes back and goes on with right data; the id of its job."""
        job = self.operation("restore", checkpoint, *options)["job"]
        if job not in self.jobs:
            self.jobs.append(job)
        log.goes_on()
        return job

    # Commands.
    def spawn(self, *args, env=None, **options):
        background = Background([self.brumate, *args], self.command_env(env), **options, **self.whose)
        self.background.append(background)
        return background

    def refused(self, code, words, *args, env=None, timeout=60):
        """The command must fail with this code, and its one error line must match the pattern."""
        result = self.cli(*args, env=env, timeout=timeout)
        expect(result.code == code, f"expected exit {code}: {result.why()}")
        lines = [line for line in result.err.splitlines() if line.startswith("brumate: ")]
        expect(len(lines) == 1, f"{result.line()}: expected one error line, have {result.err!r}")
        expect(re.search(words, lines[0]), f"{result.line()}: {lines[0]!r} says nothing like {words!r}")
        expect(not result.out, f"{result.line()}: failed, but prints {result.out!r}")
        return result

    def daemon(self):
        """Starts brumated, and lets the user of call_as_nobody() connect."""
        os.chmod(self.dir, 0o711)
        os.chmod(self.own["BRUMATE_RUNTIME_DIR"], 0o755)
        os.chmod(self.own["BRUMATE_LOG_DIR"], 0o711)
        # Whose the simulated GPUs are decides who can use them: here everybody who is not root.
        os.mkdir(self.own["BRUMATE_SIM_DIR"], 0o700)
        os.chown(self.own["BRUMATE_SIM_DIR"], NOBODY, NOBODY)
        program = self.start_daemon()
        os.chown(self.daemon_socket(), 0, NOBODY)
        return program

    def start_daemon(self):
        program = Program([self.program("brumated")], os.path.join(self.dir, "brumated.out"), env=self.command_env())
        self.programs.append(program)
        wait_until(lambda: self.is_served(self.daemon_socket()), "the socket of brumated")
        return program

    @staticmethod
    def is_served(path):
        try:
            varlink_client.Client(path).socket.close()
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False

    def daemon_socket(self):
        return os.path.join(self.own["BRUMATE_RUNTIME_DIR"], "brumated.sock")

    def of_nobody(self, name):
        """A directory that belongs to the user of call_as_nobody()."""
        path = os.path.join(self.dir, name)
        os.mkdir(path, 0o755)
        os.chown(path, NOBODY, NOBODY)
        return path

    def call_as_nobody(self, method, **parameters):
        """A call of brumated by a program of another user, who may be root by it: (reply, None) or (None, error)."""
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:  # the kernel tells brumated who it was at this moment
            client = varlink_client.Client(self.daemon_socket())
        finally:
            os.seteuid(0)
            os.setegid(0)
        with client:
            try:
                return client.call("io.brumate." + method, parameters), None
            except varlink_client.Error as error:
                return None, error.parameters

    def run_as_nobody(self, *argv, **parameters):
        """A job that such a program starts: (id, None) or (None, error). It runs as that program's user."""
        env = [f"{name}={value}" for name, value in self.program_env().items() if name != "LD_LIBRARY_PATH"]
        reply, error = self.call_as_nobody("Run", argv=[str(a) for a in argv], env=env, cwd="/", gpu="simulated",
                                           **parameters)
        if error:
            return None, error
        self.jobs.append(reply["job"]["id"])
        return reply["job"]["id"], None

    def system_log(self):
        """A log of the system's for this instance alone: the socket that its lines come to."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.own["BRUMATE_SYSLOG"] = os.path.join(self.dir, "log-socket")
        sock.bind(self.own["BRUMATE_SYSLOG"])
        sock.settimeout(20)
        return sock

    # The GPUs.
    def broker_socket(self):
        return os.path.join(self.own["BRUMATE_RUNTIME_DIR"], "broker-simulated.sock")

    def doctor(self, *args):
        """What doctor says; that something is missing on this machine (exit 4) is no failure of it."""
        result = self.cli("doctor", *args, "--format", "json")
        expect(result.code in (0, 4), result.why())
        return result.json()

    def brokers_mib(self):
        """What the broker has on GPUs itself."""
        pid = self.broker()
        return sum(self.ask_broker("State", pids=[pid])["processes"][0]["gpu_bytes"]) // MIB if pid else 0

    def gpus_opened(self):
        """How often a broker has opened a GPU, as its log says at debug."""
        return read_text(os.path.join(self.own["BRUMATE_LOG_DIR"], "broker.log")).count("a GPU is open")

    def ready_bytes(self):
        """Host memory for copies that the broker has ready. Of the broker that there is: to ask must not start one."""
        return self.ask_broker("Info")["pool"]["free_bytes"] if self.broker() else 0

    def all_is_pinned(self):
        """Whether the broker has pinned all that it has ready."""
        pool = self.ask_broker("Info")["pool"]
        return pool["free_pinned_bytes"] == pool["free_bytes"] > 0

    def ask_broker(self, method, **parameters):
        try:
            return self._ask_broker(method, parameters)
        except (FileNotFoundError, ConnectionError, EOFError):
            self.doctor()  # asks the broker, and so starts it where there is none or one has just died
            return self._ask_broker(method, parameters)

    def _ask_broker(self, method, parameters):
        with varlink_client.Client(self.broker_socket()) as client:
            return client.call("io.brumate.broker." + method, parameters)

    def gpus(self):
        return self.ask_broker("Gpus")["gpus"]

    def uuids(self):
        return [gpu["uuid"] for gpu in self.gpus()]

    def vram(self):
        """Bytes in use on each GPU, but for the broker's own, which go when it is idle: between two looks
        at the GPUs that are the same."""
        gpus = self.gpus()  # starts a broker where there is none
        for _ in range(50):
            own = self.ask_broker("State", pids=[self.broker()])["processes"][0]
            before, gpus = gpus, self.gpus()
            if gpus == before:
                break
        own = dict(zip(own["gpus"], own["gpu_bytes"]))
        return [gpu["used_bytes"] - own.get(gpu["uuid"], 0) for gpu in gpus]

    def gpu_state(self, pid):
        """As the driver tells, which does not of one that is stopped: it runs for that long."""
        found = re.search(r"^State:\s+(\S)", read_text(f"/proc/{pid}/status"), re.MULTILINE)
        if found and found[1] == "T":
            os.kill(pid, signal.SIGCONT)
        try:
            return self._gpu_state(pid)
        finally:
            if found and found[1] == "T":
                os.kill(pid, signal.SIGSTOP)

    def _gpu_state(self, pid):
        return self.ask_broker("State", pids=[pid])["processes"][0]["state"]

    # The store.
    def store(self):
        return os.path.join(self.own["BRUMATE_STATE_DIR"], "checkpoints")

    def checkpoints(self):
        return [c["id"] for c in self.list("ls", "checkpoints")]

    def partials(self, store=None):
        """What a checkpoint that was not finished would leave."""
        store = store or self.store()
        names = os.listdir(store) if os.path.isdir(store) else []
        return [name for name in names if name.startswith(".") and name != ".sets" and not self._is_pin(names, name)]

    @staticmethod
    def _is_pin(names, name):
        """The mark of a checkpoint that is there."""
        return name.endswith(".pinned") and name[1:-len(".pinned")] in names

    def tmpfs(self, size):
        """A file system of its own, of this size."""
        path = os.path.join(self.dir, f"mount-{len(self.mounts)}")
        os.mkdir(path, 0o700)
        done = run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "brumate-test", path])
        if done.code:
            raise Skipped(f"no tmpfs can be mounted here: {done.err.strip()}")
        self.mounts.append(path)
        return path

    # Our programs.
    def named(self, program):
        """Pids of this instance's processes of that name."""
        return [pid for pid, command in self.processes()
                if command and os.path.basename(command.split()[0]) == program and not self._is_forked(pid)]

    @staticmethod
    def _is_forked(pid):
        """The init of a job's pid namespace is forked from the shim, and has its command line; so have a scout, and who ends repair of sockets."""
        try:
            return read_text(f"/proc/{pid}/comm").strip() in ("brumate-init", "brumate-scout", "brumate-repair", "brumate-aside")
        except OSError:  # it has just ended
            return False

    def kill_shim(self, job):
        """Returns once it is gone: a connection that it had accepted would break."""
        pid = self.shim(job)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: process_start(pid) is None, "the end of the shim")

    def shim(self, job):
        """The pid of the job's shim; None if none lives."""
        directory = os.path.join(self.own["BRUMATE_STATE_DIR"], "jobs", self.job(job)["id"])
        shims = self.named("brumate-shim")
        return next((pid for pid, command in self.processes() if pid in shims and command.endswith(directory)), None)

    def keeper(self):
        """The pid of the keeper; None if none lives."""
        found = [pid for pid, command in self.processes() if command.startswith("brumate-keeper ")]
        expect(len(found) <= 1, f"keepers {found}")
        return found[0] if found else None

    def broker(self):
        """The pid of the broker; None if none lives."""
        found = self.named("brumate-broker")
        return found[0] if found else None

    def crius(self):
        """Pids of every CRIU that has something of this instance open. CRIU gets no environment."""
        found = []
        for pid in pids():
            if "swrk" not in read_text(f"/proc/{pid}/cmdline").split("\0"):
                continue
            try:
                fds = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                continue
            if any(read_link(f"/proc/{pid}/fd/{fd}").startswith(self.dir) for fd in fds):
                found.append(pid)
        return found

    def end_schedule(self, job):
        """What is held of the job may have yet to be read, and the command is refused for as long as that lasts."""
        def is_done():
            done = self.cli("checkpoint", job, "--every", "0")
            expect(done.code in (0, EXIT_BUSY), done.why())
            return done.code == 0
        wait_until(is_done, "the end of the schedule", 60)

    def fault(self, point, action, *more):
        """Arms a fault point; it fires once. More such pairs count one after the other."""
        with open(self.fault_file + ".new", "w", encoding="utf-8") as file:
            file.writelines(f"{p} {a}\n" for p, a in ((point, action), *zip(more[::2], more[1::2])))
        os.rename(self.fault_file + ".new", self.fault_file)

    @contextlib.contextmanager
    def held_at(self, point, *command):
        """A command that waits at a fault point for as long as the block lasts."""
        self.fault(point, "hold")
        with self.holding(point, self.spawn(*command)) as background:
            yield background

    @contextlib.contextmanager
    def holding(self, point, background):
        """The same where the command is under way and its fault point is armed."""
        fifo = self.fault_file + ".held"
        wait_until(lambda: (self.has_fired() and os.path.exists(fifo)) or background.process.poll() is not None,
                   f"{point} to be reached")
        if background.process.poll() is not None:
            raise Failed(f"{point} was not reached: {background.end()}")
        try:
            yield background
        finally:
            with open(fifo, "wb"):
                pass

    def restore_while_taken(self, number, checkpoint):
        """Restores while somebody has id @number, who took it after the look at it and is gone when that is tried again."""
        with self.held_at("restore.spawned", "restore", checkpoint) as restore:
            squatter = self.take_pid(number)
            self.fault("restore.taken", "hold")
        with self.holding("restore.taken", restore):
            squatter.end()
        code, _, err = restore.end()
        expect(code == 0, f"exit {code}: {err}")

    def has_fired(self):
        return not os.path.exists(self.fault_file)

    def wait_fired(self, background, what):
        """Until the fault has fired in the command that runs in the background."""
        wait_until(lambda: self.has_fired() or background.process.poll() is not None, f"{what} to be reached")
        if not self.has_fired():
            raise Failed(f"{what} was not reached: {background.end()}")

    def disarm(self):
        """Takes the fault back; True if it had not fired."""
        try:
            os.unlink(self.fault_file)
            return True
        except FileNotFoundError:
            return False

    def driver_fault(self, text):
        """Faults inside the simulated driver (sim/fault.c); none for an empty text."""
        path = os.path.join(self.own["BRUMATE_SIM_DIR"], "fault")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    # The end.
    def finish(self):
        """Ends everything. Fails if anything is left that should not be."""
        for background in self.background:
            if background.process.poll() is None:
                background.process.kill()
                background.process.communicate()
        self.keeps_promises()
        self.end_all()
        crius = self.crius()
        left = self.wait_gone(seconds=10)
        partials = self.partials()
        vram = self.vram_at_the_end() if self.broker() else []
        self.close()
        expect(not left, f"processes are left: {left}")
        expect(not crius, f"CRIU is left: {crius}")
        expect(not partials, f"half a checkpoint is left: {partials}")
        expect(not any(vram), f"device memory is left in use: {vram}")

    def places(self):
        own = tuple(program.pid for program in self.programs if not self._serves(program))
        return promises.Places(self.own["BRUMATE_STATE_DIR"], self.own["BRUMATE_RUNTIME_DIR"], self.own.get("BRUMATE_SIM_DIR"),
                               apart=own, except_for=self.promises_broken, idle_shims=True)

    @staticmethod
    def _serves(program):
        """What brumated starts is ours."""
        argv = getattr(getattr(program, "process", None), "args", [""])
        return os.path.basename(argv[0]) == "brumated"

    def keeps_promises(self, patience_s=15):
        """All that docs/states.md promises holds, now that nothing is under way. A job whose shim was killed is
        put right by the next command."""
        self.disarm()
        look = promises.Look(self.places())
        for job in look.jobs.values():
            if job.root and not job.has_shim:
                self.cli("kill", "--signal", "URG", job.id)
        served = [shim for job in look.jobs.values() for shim in look.shims(job)]
        for shim in look.of_program("brumate-shim"):
            if shim not in served:
                self.end_idle_shim(shim.pid)
        lines = promises.broken(self.places(), patience_s)
        expect(not lines, "; ".join(lines))

    def vram_at_the_end(self):
        """What is left once the last of those that were killed has let go of it."""
        try:
            wait_until(lambda: not any(self.vram()), "device memory to be free", 10)
        except Failed:
            pass
        return self.vram()

    def end_all(self):
        for program in self.programs:
            program.end()
        for job in self.jobs:
            self.cli("kill", "--grace", "5s", job, timeout=30)
        self.jobs = []
        for pid in self.named("brumate-shim"):
            self.end_idle_shim(pid)

    @staticmethod
    def end_idle_shim(pid):
        """Without a job it would go by itself, five seconds later."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def close(self):
        if os.path.isdir(self.dir):
            self.end_all()
            for pid in self.crius():
                os.kill(pid, signal.SIGKILL)
        for path in reversed(self.mounts):
            run(["umount", "-l", path])
        self.mounts = []
        return super().close()


class UserBed(Bed):
    """A bed of a user who is not root and has nothing but a home: all directories are where brumate puts them."""

    USER_FIRST, USERS = 60000, 5000
    DEFAULTS = {"BRUMATE_STATE_DIR": "", "BRUMATE_RUNTIME_DIR": ""}  # so that they are looked for
    made = 0

    def __init__(self, build, env=None):
        self.uid, self.uid_lock = self.take_uid()
        super().__init__(copy_for_users(build), env, uid=self.uid)
        self.kept = os.path.join(self.dir, ".local", "state", "brumate")
        self.runtime_dir = f"/tmp/brumate-{self.uid}"
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
        for name in ("BRUMATE_LOG_DIR", "BRUMATE_CONFIG"):
            del self.own[name]
        # These two tell our processes apart from others; they are what they would be without.
        self.own.update({"BRUMATE_STATE_DIR": os.path.join(self.kept, f"on-{os.uname().nodename}"),
                         "BRUMATE_RUNTIME_DIR": self.runtime_dir, "HOME": self.dir, "XDG_STATE_HOME": "",
                         "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": ""})

    @classmethod
    def take_uid(cls):
        """One that no bed of a test beside this one has, nor one that was there a moment ago; and the lock that says so."""
        locks = os.path.join(tempfile.gettempdir(), "brumate-test-users")
        os.makedirs(locks, mode=0o700, exist_ok=True)
        while True:
            cls.made += 1
            uid = cls.USER_FIRST + (os.getpid() * 32 + cls.made) % cls.USERS
            lock = open(os.path.join(locks, str(uid)), "w", encoding="utf-8")  # pylint: disable=consider-using-with
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return uid, lock
            except BlockingIOError:
                lock.close()

    def launcher(self):
        return os.path.realpath(self.program("brumate-criu-launch"))

    def processes(self):
        """All of this user's: no two beds have the same."""
        found = []
        for pid in pids():
            try:
                if os.stat(f"/proc/{pid}").st_uid == self.uid and process_start(pid) is not None:
                    found.append((pid, read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()))
            except OSError:
                pass
        return found

    def close(self, wait_for_shims=True):
        left = super().close()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
        self.uid_lock.close()
        return left


def as_user(function):
    """The case's bed is a user's."""
    function.bed_class = UserBed
    return function


CAP_CHECKPOINT_RESTORE = 40
COPIES = {}


def allow_launcher(path):
    """As `setcap cap_checkpoint_restore=ep` does: struct vfs_cap_data of linux/capability.h, version 2."""
    high = 1 << CAP_CHECKPOINT_RESTORE - 32
    os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 0, 0, high, 0))


def copy_for_users(build):
    """The programs of a build directory, and CRIU, in a place of root's that every user can read; the launcher has its
    capability. Made once."""
    if build.path in COPIES:
        return COPIES[build.path]
    to = tempfile.mkdtemp(prefix="brumate-programs-")
    atexit.register(shutil.rmtree, to, True)
    ignored = shutil.ignore_patterns("*.p", "*.a", "*.h", "*.c", "criu", "include")
    for folder in ("src", "sim", os.path.join("tests", "programs"), "lib"):
        if os.path.isdir(os.path.join(build.path, folder)):
            shutil.copytree(os.path.join(build.path, folder), os.path.join(to, folder), symlinks=True, ignore=ignored)
    criu = os.path.join(build.path, "src", "criu", "criu")
    if os.path.exists(criu):
        shutil.copytree(os.path.dirname(os.path.realpath(criu)), os.path.join(to, "src", "criu"), symlinks=True,
                        ignore=shutil.ignore_patterns("*.p", "*.a", "*.h", "*.c"))
    run(["chmod", "-R", "a+rX,go-w", to])
    try:
        allow_launcher(os.path.join(to, "src", "criu-launch", "brumate-criu-launch"))
    except OSError as error:
        raise Skipped(f"no file can have a capability in {to}: {error}") from error
    COPIES[build.path] = Build(to)
    return COPIES[build.path]


def find_build():
    path = os.environ.get("BUILD") or os.path.join(SOURCE, "build")
    if not os.path.isdir(path):
        sys.exit(f"{path}: no build directory; name one by BUILD=DIR")
    return Build(path)


def shim_steps():
    """The steps of all plans, as "suspend.gate", in their order."""
    done = run([find_build().program("brumate-shim"), "--steps"])
    if done.code:
        raise Failed(done.why())
    return done.out.split()


def why_not(build):
    """Why nothing can be tested here; None where it can."""
    if os.geteuid() != 0:
        return "needs root: CRIU does"
    with Bed(build) as bed:
        findings = bed.doctor()["findings"]
    for finding in findings:
        if finding["key"] in ("criu", "criu-check") and finding["level"] == "fail":
            return finding["text"]
    return None


def run_case(build, name, function):
    start = time.monotonic()
    verdict, why, bed = "ok", "", None
    try:
        bed = getattr(function, "bed_class", Bed)(build, getattr(function, "bed_env", None))
        bed.promises_broken = getattr(function, "breaks", ())
        function(bed)
        bed.finish()
    except Skipped as skipped:
        verdict, why = "skip", str(skipped)
    except Failed as failed:
        verdict, why = "FAILED", str(failed)
    except Exception:  # noqa: BLE001 (a bug in one case must not hide the others)
        verdict, why = "FAILED", traceback.format_exc()
    finally:
        if bed:
            if verdict == "FAILED" and os.environ.get("BRUMATE_TEST_KEEP") and os.path.isdir(bed.dir):
                shutil.copytree(bed.dir, os.path.join(os.environ["BRUMATE_TEST_KEEP"], name), symlinks=True,
                                ignore=shutil.ignore_patterns("sim", "run", "*.sock"), dirs_exist_ok=True)
            bed.close()
    print(f"{verdict} {name}{': ' if why else ''}{why} [{time.monotonic() - start:.1f} s]", flush=True)
    return verdict


def wanted_cases(words):
    """Those whose names match one of the words, or all; of these every Nth from the Kth on after "--part=K/N"."""
    parts = [re.fullmatch(r"--part=(\d+)/(\d+)", word) for word in words]
    patterns = [word for word, part in zip(words, parts) if not part]
    wanted = [case for case in CASES if not patterns or any(re.fullmatch(pattern, case[0]) for pattern in patterns)]
    for part in filter(None, parts):
        k, n = (int(number) for number in part.groups())
        wanted = wanted[k - 1::n]
    return wanted


def main():
    """Runs the cases of the calling file that are wanted; exits as meson wants it."""
    plain_signals()
    build = find_build()
    reason = why_not(build)
    if reason:
        print(f"skip: {reason}")
        sys.exit(77)
    verdicts = [run_case(build, name, function) for name, function in wanted_cases(sys.argv[1:])]
    count = {verdict: verdicts.count(verdict) for verdict in ("ok", "FAILED", "skip")}
    print(f"{count['ok']} passed, {count['FAILED']} failed, {count['skip']} skipped")
    sys.exit(1 if count["FAILED"] or not verdicts else 0)


def with_env(**env):
    """The case's bed gets these variables too."""

    def mark(function):
        function.bed_env = env
        return function

    return mark


def breaks(*numbers):
    """The case leaves behind what these promises of docs/states.md do not allow, as it is about just that."""

    def mark(function):
        function.breaks = numbers
        return function

    return mark


__all__ = ["breaks", "Background", "Bed", "CAP_CHECKPOINT_RESTORE", "DeviceNode", "Failed", "find_build", "pids", "LaterLog", "Log", "SOURCE", "Skipped", "UserBed", "as_user", "allow_launcher", "case", "children", "expect",
           "main", "may_connect", "process_start", "run",
           "read_link", "read_text", "shim_steps", "wait_until", "with_env", "AS_NOBODY", "NOBODY", "MIB"]
