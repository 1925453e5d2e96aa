#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Files that a job goes on changing after its checkpoint, and then is restored from that: what it writes, and memory that
its processes share by a name. Each script says "BAD" where a file is not as its memory says."""

import contextlib
import ctypes.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import textwrap

from cases import (EXIT_BUSY, EXIT_FAILED, EXIT_UNSUPPORTED, NOBODY, STEPPING, as_user, case, expect, main, read_text)
from harness import Log
from users_jobs import children, saved_of_him, script_of_him

TAKEN, GONE_ON = 5, 10


def stepping(before, each):
    """A script that runs @each before it says that it has made a step."""
    head, loop = STEPPING.split("while True:\n    step += 1\n")
    return ("import mmap, os, struct, sys, time\n" + textwrap.dedent(before) + "print('ready now', flush=True)\n" + head +
            "while True:\n    step += 1\n" + textwrap.indent(textwrap.dedent(each), "    ") + loop)


def start(bed, script):
    """By a Python that every user may run."""
    return bed.started(["/usr/bin/python3", "-u", "-c", script])


def crash(bed, job):
    pid = bed.pid(job)
    for one in (*children(pid), pid):  # of a user's job it may be the one that reaps
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    bed.wait_state(job, ("exited", "lost"))


def saved_then_crashed(bed, script, *options):
    """A job that was saved, went on and crashed: (id, log, checkpoint)."""
    job, log = start(bed, script)
    log.goes_on(TAKEN)
    checkpoint = bed.operation("checkpoint", job, "--leave-running", *options)["checkpoint"]
    log.goes_on(GONE_ON)
    crash(bed, job)
    return job, log, checkpoint


def restored(bed, job, log, checkpoint, *options):
    """What the restore says; the job has gone on since, with right data."""
    before = log.text().count(" OK\n")
    said = bed.ok("restore", checkpoint, *options).err
    goes_on(log, before)
    bed.expect_state(job, "running")
    return said


def goes_on(log, before):
    """What a job prints after a crash begins again at the step of its checkpoint."""
    log.wait_until(lambda text: text.count(" OK\n") >= before + 5 or "BAD" in text, "steps")
    expect("BAD" not in log.text(), log.tail())


def numbers(path):
    return [int(line) for line in read_text(path).splitlines()]


def writing(path, how):
    return stepping(f"file = open({path!r}, {how!r})\n", "file.write(f'{step}\\n'); file.flush()\n")


def outputs_are_cut_back(bed):
    for how in ("a", "a+", "w"):
        path = os.path.join(bed.dir, "out-" + how)
        job, log, checkpoint = saved_then_crashed(bed, writing(path, how))
        whole = numbers(path)
        said = restored(bed, job, log, checkpoint)
        expect(re.search(rf"note: {re.escape(path)} has grown .*{re.escape(path)}\.after-{checkpoint}\b", said), said)
        rest = numbers(f"{path}.after-{checkpoint}")
        expect(len(rest) >= GONE_ON and whole[-len(rest):] == rest, f"open({how!r}): {rest} was cut off {whole}")
        have = numbers(path)
        expect(have == list(range(1, len(have) + 1)), f"open({how!r}): {have}")
        bed.end(job)


@case
def outputs_that_have_grown_are_cut_back(bed):
    outputs_are_cut_back(bed)


@case
@as_user
def outputs_of_a_user_are_cut_back(bed):
    outputs_are_cut_back(bed)


@case
def the_rest_of_each_restore_is_kept(bed):
    path = os.path.join(bed.dir, "out")
    job, log, checkpoint = saved_then_crashed(bed, writing(path, "w"))
    restored(bed, job, log, checkpoint)
    crash(bed, job)
    first = read_text(f"{path}.after-{checkpoint}")
    restored(bed, job, log, checkpoint)
    expect(read_text(f"{path}.after-{checkpoint}") == first, "the first rest has changed")
    expect(len(numbers(f"{path}.after-{checkpoint}.2")) >= 3, "there is no second rest")


@case
def files_are_kept_by_an_option(bed):
    path = os.path.join(bed.dir, "out")
    job, _, checkpoint = saved_then_crashed(bed, writing(path, "w"))
    whole = read_text(path)
    bed.refused(EXIT_FAILED, rf"files: {re.escape(path)} has grown", "restore", checkpoint, "--keep-files")
    expect(read_text(path) == whole and not os.path.exists(f"{path}.after-{checkpoint}"), "the file was touched")
    bed.expect_state(job, "exited")


@case
def a_restore_that_fails_leaves_files_as_they_were(bed):
    path = os.path.join(bed.dir, "out")
    job, log, checkpoint = saved_then_crashed(bed, writing(path, "w"))
    whole, names = read_text(path), sorted(os.listdir(bed.dir))
    bed.fault("restore.criu.end", "error:5")
    bed.fails(EXIT_FAILED, "restore", checkpoint)
    bed.disarm()
    expect(read_text(path) == whole, "the file is not whole again")
    expect(sorted(set(os.listdir(bed.dir)) - set(names) - {"fault"}) == [], "something is left beside it")
    restored(bed, job, log, checkpoint)


IN_PLACE = stepping("file = open({path!r}, 'w+b', buffering=0); file.write(bytes(1 << 16))\n",
                    """
                    if int.from_bytes(os.pread(file.fileno(), 8, 4096), "little") != step - 1: print("BAD file", flush=True)
                    os.pwrite(file.fileno(), step.to_bytes(8, "little"), 4096)
                    """)


@case
def what_was_changed_in_place_is_refused_by_name(bed):
    path = os.path.join(bed.dir, "data")
    job, log, checkpoint = saved_then_crashed(bed, IN_PLACE.replace("{path!r}", repr(path)))
    result = bed.refused(EXIT_FAILED, rf"{re.escape(path)} was changed within its first 65536 bytes", "restore", checkpoint)
    expect("--with-files" in result.err and "--force" in result.err, result.err)
    os.truncate(path, 4096)
    bed.refused(EXIT_FAILED, rf"{re.escape(path)} is shorter .*4096 of 65536", "restore", checkpoint)
    os.unlink(path)
    bed.refused(EXIT_FAILED, rf"{re.escape(path)} is gone", "restore", checkpoint)
    with open(path, "wb") as file:  # what its memory says it held; the text of the log tells of which step
        steps = [int(step) for step in re.findall(r"step (\d+) OK", log.text())]
        file.write(bytes(1 << 16))
    for step in steps:  # one of them is that of the checkpoint
        with open(path, "r+b") as file:
            os.pwrite(file.fileno(), step.to_bytes(8, "little"), 4096)
        if bed.cli("restore", checkpoint).code == 0:
            break
    expect(bed.state(job) == "running", "the file as it was is refused, too")
    log.wait_for(rf"step {step + 1} OK")
    expect("BAD" not in log.text(), log.tail())


@case
def doctor_tells_of_files_that_are_not_in_a_checkpoint(bed):
    path, log_path = os.path.join(bed.dir, "data"), os.path.join(bed.dir, "log-of-its-own")
    before = f"log = open({log_path!r}, 'w'); file = open({path!r}, 'w+b', buffering=0); file.write(b'x' * 4096); file.seek(0)\n"
    job, _ = start(bed, stepping(before, "os.pwrite(file.fileno(), b'y', 100)\n"))
    said = bed.cli("doctor", "--job", job).out
    expect(path in said and "--with-files" in said and log_path not in said, said)
    said = bed.ok("checkpoint", job, "--leave-running").err
    expect(re.search(rf"note: {re.escape(path)} is not in the checkpoint", said) and log_path not in said, said)
    said = bed.ok("checkpoint", job, "--leave-running", "--with-files").err
    expect(path not in said, said)


@case
def what_was_changed_in_place_is_taken_by_force(bed):
    path = os.path.join(bed.dir, "data")
    _, log, checkpoint = saved_then_crashed(bed, IN_PLACE.replace("{path!r}", repr(path)))
    bed.ok("restore", checkpoint, "--force")
    log.wait_for("BAD file")  # as was asked for


def files_come_back(bed, *options):
    path = os.path.join(bed.dir, "data")
    job, log, checkpoint = saved_then_crashed(bed, IN_PLACE.replace("{path!r}", repr(path)), *options)
    os.chmod(path, 0o640)
    with open(path, "rb") as file:
        later = file.read()
    bed.refused(EXIT_FAILED, rf"{re.escape(path)} has changed", "restore", checkpoint, "--keep-files")
    said = restored(bed, job, log, checkpoint)
    expect(f"{path}.after-{checkpoint}" in said, said)
    with open(f"{path}.after-{checkpoint}", "rb") as file:
        expect(file.read() == later, "what was there is lost")
    crash(bed, job)
    os.unlink(path)
    said = restored(bed, job, log, checkpoint)
    expect(re.search(rf"{re.escape(path)} was gone", said), said)


@case
def files_are_in_the_checkpoint_by_an_option(bed):
    files_come_back(bed, "--with-files")


@case
@as_user
def files_of_a_user_are_in_the_checkpoint_by_an_option(bed):
    files_come_back(bed, "--with-files")


@case
def files_are_in_the_checkpoint_by_the_configuration(bed):
    path = os.path.join(bed.dir, "with-files.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[Store]\nFiles=1M\n")
    bed.own["BRUMATE_CONFIG"] = path
    files_come_back(bed)


@case
def a_file_that_is_too_long_is_refused_before(bed):
    path, conf = os.path.join(bed.dir, "data"), os.path.join(bed.dir, "with-files.conf")
    with open(conf, "w", encoding="utf-8") as file:
        file.write("[Store]\nFiles=4K\n")
    bed.own["BRUMATE_CONFIG"] = conf
    job, log = start(bed, IN_PLACE.replace("{path!r}", repr(path)))
    bed.refused(EXIT_UNSUPPORTED, rf"writes to {re.escape(path)}, which is longer", "checkpoint", job, "--with-files")
    bed.expect_whole(job, log)
    bed.ok("checkpoint", job, "--leave-running")


@case
def a_large_file_that_grows_is_cut_back_and_one_that_is_written_within_is_not(bed):
    """It is longer than what is read while the job stands still."""
    path = os.path.join(bed.dir, "large")
    large = "file = open({!r}, {!r}, buffering=0); os.ftruncate(file.fileno(), 40 << 20); file.seek(0, 2)\n"
    for how in ("ab", "w+b"):
        job, log, checkpoint = saved_then_crashed(bed, stepping(large.format(path, how), "file.write(b'x' * 100)\n"))
        expect("has grown" in restored(bed, job, log, checkpoint), f"{how}: it was not cut back")
        bed.end(job)
    job, log, checkpoint = saved_then_crashed(bed, stepping(large.format(path, "w+b"),
                                                            "os.pwrite(file.fileno(), b'x', 12345678 + step)\n"))
    bed.refused(EXIT_FAILED, rf"{re.escape(path)} was changed within its first 41943040 bytes", "restore", checkpoint)
    os.unlink(path)
    job, log, checkpoint = saved_then_crashed(bed, stepping(large.format(path, "w+b") + "file.seek(0)\n",
                                                            "os.pwrite(file.fileno(), b'x', 12345678 + step)\n"))
    bed.refused(EXIT_FAILED, rf"{re.escape(path)} was written to since the checkpoint, maybe within", "restore", checkpoint)


@case
def a_file_that_somebody_writes_to_is_left_alone(bed):
    path = os.path.join(bed.dir, "out")
    job, log, checkpoint = saved_then_crashed(bed, writing(path, "w"))
    whole = read_text(path)
    with open(path, "a", encoding="utf-8"):
        bed.refused(EXIT_BUSY, rf"{re.escape(path)} has changed since the checkpoint, and process \d+ writes to it",
                    "restore", checkpoint)
    expect(read_text(path) == whole, "it was cut back under somebody who writes")
    restored(bed, job, log, checkpoint)


@case
def root_cuts_back_with_the_users_rights(bed):
    setup = "out2 = open('log', 'w')"
    each = "out2.write(f'{step}\\n'); out2.flush()"
    program, log = script_of_him(bed, setup, each)
    own = os.path.join(bed.dir, "his")
    checkpoint = bed.operation("checkpoint", "--pid", program.pid, "--leave-running")["checkpoint"]
    log.goes_on(GONE_ON)
    program.process.kill()
    program.wait()
    secret = os.path.join(bed.dir, "of-root")
    with open(secret, "w", encoding="utf-8") as file:
        file.write("1\n" * 1000)
    os.rename(os.path.join(own, "log"), os.path.join(own, "kept"))
    os.symlink(secret, os.path.join(own, "log"))
    result = bed.cli("restore", checkpoint)
    expect(result.code != 0 and os.path.join(own, "log") in result.err, result.why())
    os.unlink(os.path.join(own, "log"))
    os.link(secret, os.path.join(own, "log"))  # his name for a file that he may not write to
    result = bed.cli("restore", checkpoint)
    expect(result.code != 0 and os.path.join(own, "log") in result.err, result.why())
    expect(read_text(secret) == "1\n" * 1000, "a file of root's was touched")
    os.unlink(os.path.join(own, "log"))
    os.rename(os.path.join(own, "kept"), os.path.join(own, "log"))
    job = bed.operation("restore", checkpoint)["job"]
    bed.jobs.append(job)
    rest = os.stat(os.path.join(own, f"log.after-{checkpoint}"))
    expect(rest.st_uid == NOBODY, "the rest is not his")


# ---- shared memory ----

SHARED = """
path = {path!r}
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600); os.ftruncate(fd, 1 << 20); shared = mmap.mmap(fd, 1 << 20)
{then}
"""
EACH_SHARED = """
if struct.unpack_from("Q", shared, 4096)[0] != step - 1: print("BAD memory", flush=True)
struct.pack_into("Q", shared, 4096, step)
"""


def sharing(path, then="pass"):
    return stepping(SHARED.format(path=path, then=then), EACH_SHARED)


class Shared:
    """A name of shared memory that is gone at the end."""

    def __init__(self, bed):
        self.path = f"/dev/shm/brumate-test-{os.path.basename(bed.dir)}"

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        folder, name = os.path.split(self.path)
        for left in os.listdir(folder):
            if name in left:
                os.unlink(os.path.join(folder, left))


def names_like(path):
    folder, name = os.path.split(path)
    return [left for left in os.listdir(folder) if name in left]


def memory_comes_back(bed):
    with Shared(bed) as path:
        for then in ("pass", "os.close(fd)"):  # a mapping alone will do
            job, log, checkpoint = saved_then_crashed(bed, sharing(path, then))
            said = restored(bed, job, log, checkpoint)
            expect(re.search(rf"{re.escape(path)} has changed since the checkpoint: it holds again", said), said)
            expect(names_like(path) == [os.path.basename(path)], f"{names_like(path)}")
            expect(os.stat(path).st_mode & 0o777 == 0o600, oct(os.stat(path).st_mode))
            crash(bed, job)
            os.unlink(path)  # as the machine does when it starts anew
            expect(f"{path} was gone" in restored(bed, job, log, checkpoint), "it does not say so")
            bed.ok("checkpoint", job)  # and again, of what was made anew
            os.unlink(path)
            restored(bed, job, log, job)
            bed.end(job)
            os.unlink(path)


@case
def shared_memory_is_as_it_was(bed):
    memory_comes_back(bed)


@case
@as_user
def shared_memory_of_a_user_is_as_it_was(bed):
    memory_comes_back(bed)


@case
def shared_memory_of_others_is_left_alone(bed):
    with Shared(bed) as path:
        job, log, checkpoint = saved_then_crashed(bed, sharing(path))
        with open(path, "r+b", buffering=0) as other:
            other.write(b"of another")
            said = restored(bed, job, log, checkpoint)
            expect(re.search(rf"{re.escape(path)} is in use by others", said), said)
            other.seek(0)
            expect(other.read(10) == b"of another", "theirs was changed")
            bed.ok("checkpoint", job, "--leave-running")
        bed.end(job)


@case
def a_copy_beside_its_original_has_memory_of_its_own(bed):
    with Shared(bed) as path:
        job, log = start(bed, sharing(path))
        log.goes_on(TAKEN)
        checkpoint = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
        copy = bed.operation("restore", checkpoint, "--name", "other")["job"]
        bed.jobs.append(copy)
        bed.log(copy).wait_until(lambda text: text.count(" OK\n") > 5, "steps of the copy")
        log.goes_on(5)
        for text in (log.text(), bed.log(copy).text()):
            expect("BAD" not in text, text[-300:])


@case
def a_restore_that_fails_leaves_shared_memory_as_it_was(bed):
    with Shared(bed) as path:
        job, log, checkpoint = saved_then_crashed(bed, sharing(path))
        with open(path, "rb") as file:
            later = file.read()
        bed.fault("restore.criu.end", "error:5")
        bed.fails(EXIT_FAILED, "restore", checkpoint)
        bed.disarm()
        with open(path, "rb") as file:
            expect(file.read() == later and names_like(path) == [os.path.basename(path)], "it has changed")
        restored(bed, job, log, checkpoint)


@case
def shared_memory_in_many_pieces(bed):
    """More than descriptors could be given to CRIU; those of one are in a folder that is gone, too."""
    with Shared(bed) as path:
        many = f"""
        os.makedirs({path!r})
        pieces = []
        for i in range(200):
            fd = os.open({path!r} + f"/{{i}}", os.O_RDWR | os.O_CREAT, 0o600); os.ftruncate(fd, 4096)
            pieces.append(mmap.mmap(fd, 4096)); os.close(fd)
        """
        each = """
        for i, piece in enumerate(pieces):
            if struct.unpack_from("Q", piece, 8)[0] != (step - 1) * i: print("BAD memory", i, flush=True)
            struct.pack_into("Q", piece, 8, step * i)
        """
        job, log, checkpoint = saved_then_crashed(bed, stepping(many, each))
        restored(bed, job, log, checkpoint)
        crash(bed, job)
        run_away(path)
        try:
            restored(bed, job, log, checkpoint)
            expect(len(os.listdir(path)) == 200, f"{len(os.listdir(path))} of 200")
            bed.end(job)
        finally:
            run_away(path)


def run_away(folder):
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


@case
def shared_memory_of_an_encrypted_checkpoint(bed):
    key = os.path.join(bed.dir, "key")
    with open(key, "w", encoding="utf-8") as file:
        file.write("5a" * 32 + "\n")
    os.chmod(key, 0o600)
    with Shared(bed) as path:
        job, log, checkpoint = saved_then_crashed(bed, sharing(path, "struct.pack_into('16s', shared, 0, b'plain' + b'-to-be-read')"),
                                                  "--key-file", key)
        for folder, _, names in os.walk(os.path.join(bed.store(), checkpoint)):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    expect(b"plain-to-be-read" not in file.read(), f"{name} is in the clear")
        restored(bed, job, log, checkpoint, "--key-file", key)


@case
def roots_brumate_makes_shared_memory_of_the_users(bed):
    with Shared(bed) as path:
        setup = textwrap.dedent(f"""
            import mmap, struct
            fd = os.open({path!r}, os.O_RDWR | os.O_CREAT, 0o600); os.ftruncate(fd, 1 << 20); shared = mmap.mmap(fd, 1 << 20)
            """)
        each = 'assert struct.unpack_from("Q", shared)[0] == step - 1; struct.pack_into("Q", shared, 0, step)'
        checkpoint, log = saved_of_him(bed, setup, each)
        os.unlink(path)
        bed.jobs.append(bed.operation("restore", checkpoint)["job"])
        log.goes_on()
        expect(os.stat(path).st_uid == NOBODY, "it is not his")


# ---- what has no name any more ----

REMOVED = """
import ctypes
library = ctypes.CDLL({library!r})
library.zlibVersion.restype = ctypes.c_char_p
version = library.zlibVersion()
data = open({data!r}, "rb")
"""
EACH_REMOVED = """
if library.zlibVersion() != version: print("BAD library", flush=True)
if os.pread(data.fileno(), 4, 0) != b"data": print("BAD data", flush=True)
"""


class OfRoot:
    """A folder of root's that everybody may read, with a program, a library and data."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="brumate-of-root-", dir="/opt" if os.path.isdir("/opt") else "/usr/local")
        os.chmod(self.dir, 0o755)
        self.program, self.library, self.data, self.cwd = (os.path.join(self.dir, name)
                                                           for name in ("python", "library.so", "data", "cwd"))
        self.fill()

    def fill(self):
        os.makedirs(self.cwd)
        shutil.copy(os.path.realpath("/usr/bin/python3"), self.program)
        found = ctypes.util.find_library("z")
        maps = subprocess.run(["/usr/bin/python3", "-c", f"import ctypes; ctypes.CDLL({found!r}); print(open('/proc/self/maps').read())"],
                              capture_output=True, text=True, check=True).stdout
        shutil.copy(re.search(r"\S*/libz\.so\S*", maps)[0], self.library)
        with open(self.data, "w", encoding="utf-8") as file:
            file.write("data")

    def script(self):
        return stepping(REMOVED.format(library=self.library, data=self.data), EACH_REMOVED)

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def comes_back_twice(bed, job, log):
    for _ in range(2):  # the second time of what the first one has made
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        restored(bed, job, log, checkpoint)


@case
@as_user
def what_was_removed_comes_back_to_a_user(bed):
    with OfRoot() as places:
        job, log = bed.started(["env", "-C", places.cwd, places.program, "-u", "-c", places.script()])
        places.remove()
        comes_back_twice(bed, job, log)
        kept = os.path.join(bed.own["BRUMATE_STATE_DIR"], "programs")
        expect(bed.ok("prune", "--leftovers").out == "0\n" and names_in(kept) == ["data", "library.so", "python"], f"{names_in(kept)}")
        shutil.rmtree(kept)  # as on another machine
        checkpoint = bed.operation("checkpoint", job)["checkpoint"]
        restored(bed, job, log, checkpoint)
        bed.end(job)
        expect(bed.ok("prune", "--leftovers").out == "3\n" and not os.listdir(kept), f"nobody uses them: {names_in(kept)}")
        restored(bed, job, log, checkpoint)  # which has them all


def names_in(folder):
    return sorted(name for digest in os.listdir(folder) for name in os.listdir(os.path.join(folder, digest)))


@case
@as_user
def what_was_replaced_comes_back_to_a_user(bed):
    """As a package does: another file is renamed to the place of one that is mapped."""
    with OfRoot() as places:
        job, log = bed.started([places.program, "-u", "-c", places.script()])
        for path in (places.program, places.library, places.data):
            with open(path + ".new", "wb") as file:
                file.write(b"another")
            os.rename(path + ".new", path)
        comes_back_twice(bed, job, log)
        first = names_in(os.path.join(bed.own["BRUMATE_STATE_DIR"], "programs"))
        bed.end(job)
        other, log = start(bed, stepping("", "pass\n"))
        checkpoint = bed.operation("checkpoint", other)["checkpoint"]
        bed.ok("restore", checkpoint)
        log.goes_on()
        left = names_in(os.path.join(bed.own["BRUMATE_STATE_DIR"], "programs"))
        expect(first and not left, f"a restore leaves what nobody uses: {left}")


@case
def what_was_removed_comes_back_to_a_users_job_of_root(bed):
    os.chmod(bed.own["BRUMATE_STATE_DIR"], 0o711)  # as where brumate makes it
    with OfRoot() as places:
        program, log = script_of_him(bed, "import struct" + REMOVED.format(library=places.library, data=places.data),
                                     EACH_REMOVED)
        places.remove()
        checkpoint = bed.operation("checkpoint", "--pid", program.pid)["checkpoint"]
        program.wait()
        for _ in range(2):
            before = log.text().count(" OK\n")
            job = bed.operation("restore", checkpoint)["job"]
            bed.jobs.append(job)
            goes_on(log, before)
            checkpoint = bed.operation("checkpoint", job)["checkpoint"]


@case
def what_was_removed_comes_back_to_roots_job(bed):
    with OfRoot() as places:
        job, log = bed.started(["env", "-C", places.cwd, places.program, "-u", "-c", places.script()])
        places.remove()
        comes_back_twice(bed, job, log)


LONG = (4 << 30) + (1 << 20)  # sparse; longer than CRIU's images can say


def long_memory_comes_back(bed):
    """As Ray's object store has it: a file in /dev/shm without a name, shared by processes."""
    setup = f"""
    import tempfile
    fd, path = tempfile.mkstemp(dir="/dev/shm"); os.ftruncate(fd, {LONG}); os.unlink(path); shared = mmap.mmap(fd, {LONG})
    for i in range(64): struct.pack_into("Q", shared, i * ({LONG} // 64) + 8, i + 7)
    if not os.fork():
        while True:
            struct.pack_into("Q", shared, 4096, struct.unpack_from("Q", shared, 4096)[0] + 1); time.sleep(0.01)
    """
    each = f"""
    for i in range(64):
        if struct.unpack_from("Q", shared, i * ({LONG} // 64) + 8)[0] != i + 7: print("BAD memory", i, flush=True)
    before, tries = struct.unpack_from("Q", shared, 4096)[0], 0
    while struct.unpack_from("Q", shared, 4096)[0] == before:
        tries += 1  # not by a clock, which goes on while nothing runs
        if tries > 5000: print("BAD child, whose memory is another", flush=True); break
        time.sleep(0.002)
    """
    job, log = start(bed, stepping(setup, each))
    log.goes_on(TAKEN)
    comes_back_twice(bed, job, log)


def output_with_a_long_path(bed):
    """What a standard stream leads to CRIU is given by its path, here of some 700 bytes. Memory with such a name likewise."""
    place = os.path.join(bed.dir, *["d" * 200] * 3)
    os.makedirs(place)
    out = os.path.join(place, "out")
    open(out, "wb").close()
    for path in (out, place, os.path.dirname(place), os.path.dirname(os.path.dirname(place))):
        os.chown(path, *bed.owner())
    memory = os.path.join("/dev/shm", f"brumate-{os.getpid()}-".ljust(250, "m"))
    script = f"""
import mmap, os, time
out = open({out!r}, "wb", buffering=0); os.dup2(out.fileno(), 1); out.close()
file = open({memory!r}, "w+b"); file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096)
n = 0
while True:
    n += 1
    shared[:8] = n.to_bytes(8, "little")
    print("step", n, "OK" if os.pread(file.fileno(), 8, 0) == n.to_bytes(8, "little") else "BAD"); time.sleep(0.01)
"""
    job = bed.run(["/usr/bin/python3", "-u", "-c", script])
    log = Log(out)
    log.wait_until(lambda text: log.last_step() > 1, "steps", 30)
    for _ in range(2):
        bed.operation("checkpoint", job)
        before = log.last_step()
        os.unlink(memory)
        bed.operation("restore", job)
        log.goes_on()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(memory)
    steps = [int(n) for n in re.findall(r"^step (\d+) OK$", log.text(), re.MULTILINE)]
    expect(steps == list(range(1, len(steps) + 1)) and len(steps) > before, f"steps are missing: {steps[:20]} … {steps[-5:]}")


@case
def an_output_with_a_long_path(bed):
    output_with_a_long_path(bed)


@case
@as_user
def an_output_with_a_long_path_of_a_user(bed):
    output_with_a_long_path(bed)


@case
def long_memory_without_a_name_comes_back(bed):
    long_memory_comes_back(bed)


@case
@as_user
def long_memory_without_a_name_comes_back_to_a_user(bed):
    long_memory_comes_back(bed)


@case
def a_program_in_memory_is_refused(bed):
    start_it = textwrap.dedent("""
        import os, shutil, sys
        fd = os.memfd_create("program", 0)
        with open("/usr/bin/python3", "rb") as file, open(f"/proc/self/fd/{fd}", "wb") as to: shutil.copyfileobj(file, to)
        os.execve(f"/proc/self/fd/{fd}", ["python3", "-u", "-c", sys.argv[1]], dict(os.environ, PYTHONHOME="/usr"))
        """)
    job, log = bed.started(["/usr/bin/python3", "-c", start_it, stepping("", "pass\n")])
    bed.refused(EXIT_UNSUPPORTED, r"runs a program that is in memory only", "checkpoint", job)
    bed.expect_whole(job, log)


main()
