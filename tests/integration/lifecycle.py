#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The life of checkpoints: verified, compared, pruned, swept, moved as a stream, made by themselves.
Damage is done to the files themselves; what counts is whether the job that comes back is right."""

import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import tarfile

from cases import MIB, Skipped, case, expect, main, read_text, run, wait_until
from checkpoints import files_of, flip, image, saved, sealed


def largest(path):
    files = files_of(path)
    return max((name for name in files if name != "manifest.json"), key=lambda name: len(files[name]))


def come_back(bed, job, log, name, *options):
    """The job is ended and forgotten, with its log; its checkpoint brings it back with right data."""
    bed.end(job)
    bed.ok("rm", job)
    bed.operation("restore", name, *options)
    log.wait_for("^.*step ")
    log.goes_on()


# Verify.

@case
def verify_sound(bed):
    saved(bed, "a", "b")
    result = bed.ok("verify", "a")
    expect(result.out == "a\n" and re.search(r"^a: ok, \d+ files, .* GB/s$", result.err, re.MULTILINE), result.why())
    expect(bed.ok("verify", "--all").out == "a\nb\n", "verify --all")
    results = bed.ok("verify", "--all", "--format", "json").json()["results"]
    expect([(r["id"], r["ok"], r["problems"]) for r in results] == [("a", True, []), ("b", True, [])], f"{results}")
    want = sum(len(data) for name, data in files_of(image(bed, "a")).items() if name != "manifest.json")
    expect(results[0]["bytes"] == want and results[0]["files"] == len(files_of(image(bed, "a"))) - 1, f"{results[0]}")
    expect(bed.ok("verify", image(bed, "b")).out == "b\n", "by its path")
    bed.refused(2, "--all", "verify")
    bed.refused(2, "--all", "verify", "--all", "a")
    bed.refused(3, "nothing", "verify", "nothing")
    empty = os.path.join(bed.dir, "empty")
    os.mkdir(empty, 0o700)
    bed.refused(1, "there is no checkpoint in", "verify", "--all", "--dir", empty)


@case
def verify_names_all_that_is_bad(bed):
    job, _ = saved(bed, "bad", "good")
    path = image(bed, "bad")
    files = sorted(name for name in files_of(path) if name != "manifest.json" and len(files_of(path)[name]) > 8)
    expect(len(files) >= 5, f"too few files for this test: {files}")
    flipped, cut, gone, open_to_all, linked = files[:5]
    before = files_of(path)
    flip(os.path.join(path, flipped), 3)
    os.truncate(os.path.join(path, cut), 5)
    os.unlink(os.path.join(path, gone))
    os.chmod(os.path.join(path, open_to_all), 0o666)
    os.unlink(os.path.join(path, linked))
    os.symlink("/etc/passwd", os.path.join(path, linked))
    with open(os.path.join(path, "stranger"), "w", encoding="utf-8"):
        pass
    result = bed.cli("verify", "bad", "good", "--format", "json")
    expect(result.code == 9, result.why())
    bad, good = result.json()["results"]
    expect(good["ok"] and not bad["ok"], f"{result.out}")
    problems = {p["file"]: p for p in bad["problems"]}
    want = {flipped: "digest", cut: "size", gone: "missing", open_to_all: "owner", linked: "unreadable",
            "stranger": "extra"}
    expect({name: p["kind"] for name, p in problems.items()} == want, f"{problems}")
    damaged = bytearray(before[flipped])
    damaged[3] ^= 1
    expect(problems[flipped]["actual_digest"] == hashlib.sha256(damaged).hexdigest() and
           problems[flipped]["expected_digest"] == hashlib.sha256(before[flipped]).hexdigest(), f"{problems[flipped]}")
    expect((problems[cut]["actual_bytes"], problems[cut]["expected_bytes"]) == (5, len(before[cut])), f"{problems[cut]}")
    result = bed.cli("verify", "--all")
    expect(result.code == 9 and result.out == "good\n" and "1 of 2 checkpoints are bad" in result.err, result.why())
    for name in want:
        expect(re.search(rf"^bad: bad: {re.escape(name)}: ", result.err, re.MULTILINE), f"{name} is not named: {result.err}")
    flip(os.path.join(image(bed, "good"), "manifest.json"), 40)
    result = bed.cli("verify", "--all", "--format", "json")
    expect(result.code == 9 and result.json()["results"][1]["problems"][0]["kind"] == "manifest", result.why())
    bed.expect_state(job, "running")


@case
def verify_finds_any_flipped_bit(bed):
    """One bit, at the start, in the middle and at the end of every file."""
    saved(bed, "swept")
    path = image(bed, "swept")
    for name, data in files_of(path).items():
        for at in sorted({0, len(data) // 2, len(data) - 1} if data else ()):
            flip(os.path.join(path, name), at)
            result = bed.cli("verify", "swept")
            expect(result.code == 9 and name in result.err, f"{name} at {at}: {result.why()}")
            flip(os.path.join(path, name), at)
    bed.ok("verify", "swept")


# Diff.

@case
def diff(bed):
    job, log = saved(bed, "one")
    log.goes_on()
    bed.ok("checkpoint", job, "--leave-running", "--name", "two")
    value = bed.ok("diff", "one", "two", "--format", "json").json()
    expect(value["from"]["id"] == "one" and value["to"]["id"] == "two", f"{value['from']} {value['to']}")
    differences = value["differences"]
    expect(not [f for f in differences["fields"] if f["name"].startswith(("job.", "host."))], f"{differences['fields']}")
    expect(differences["processes"]["added"] == [] and differences["processes"]["removed"] == [], "processes")
    one, two = files_of(image(bed, "one")), files_of(image(bed, "two"))
    changed = {f["name"] for f in differences["files"]["changed"]}
    want = {name for name in one if name in two and one[name] != two[name] and name != "manifest.json"}
    expect(changed == want and want, f"changed {changed}, expected {want}")
    expect(differences["same_files"] == len([n for n in one if one[n] == two.get(n)]), f"{differences['same_files']}")
    other, _ = bed.kind("fork-after", name="other")
    bed.ok("checkpoint", other, "--leave-running", "--name", "three")
    value = bed.ok("diff", "one", "three", "--format", "json").json()["differences"]
    fields = {f["name"]: (f["from"], f["to"]) for f in value["fields"]}
    expect(fields["job.id"] == (job, other) and "job.argv" in fields, f"{fields}")
    expect(value["processes"]["added"], "no process is added")
    table = bed.ok("diff", "one", "three").out
    expect("job.name" in table and "process added" in table and "files are the same" in table, table)
    expect("0 files are the same" not in bed.ok("diff", "one", "one").out, "one and one")
    bed.refused(3, "nothing", "diff", "one", "nothing")
    bed.refused(2, "CHECKPOINT", "diff", "one")


# Prune and gc.

@case
def prune(bed):
    job, _ = saved(bed, "1", "2", "3", "4")
    other, _ = saved(bed, "other")
    bed.refused(2, "--keep-last", "prune")
    bed.refused(2, "number", "prune", "--keep-last", "0")
    bed.refused(2, "not a duration", "prune", "--keep-within", "soon")
    expect(bed.ok("prune", "--keep-last", "2", "--dry-run").out.split() == ["2", "1"], "--dry-run")
    expect(sorted(bed.checkpoints()) == ["1", "2", "3", "4", "other"], "--dry-run removed something")
    expect(bed.ok("prune", "--keep-within", "1h", "--keep-last", "1").out == "", "all are younger")
    expect(bed.ok("prune", "--keep-last", "1", "--job", other).out == "", "of the other job")
    os.truncate(os.path.join(image(bed, "4"), largest(image(bed, "4"))), 0)
    result = bed.ok("prune", "--keep-last", "2")
    expect(result.out == "1\n" and re.search(r"damaged, kept 4: .*truncated", result.err), result.why())
    expect(sorted(bed.checkpoints()) == ["2", "3", "4", "other"], f"left: {bed.checkpoints()}")
    value = bed.ok("prune", "--keep-last", "1", "--job", job, "--format", "json").json()
    expect(value["removed"] == ["2"] and value["damaged"][0]["id"] == "4", f"{value}")
    bed.ok("verify", "3", "other")
    bed.ok("checkpoint", job, "--leave-running", "--name", "5")
    wait_until(lambda: "3" in bed.ok("prune", "--keep-within", "1ms").out.split() or "3" not in bed.checkpoints(),
               "all that can go have gone")
    expect(sorted(bed.checkpoints()) == ["4", "5", "other"], f"left: {bed.checkpoints()}")  # records name 5 and other
    expect(not bed.partials(), f"left over: {bed.partials()}")


@case
def prune_keeps_what_a_job_needs(bed):
    """A job that was checkpointed away is nowhere but on disk."""
    job, log = saved(bed, "early")
    bed.ok("checkpoint", job, "--name", "whole")
    result = bed.ok("prune", "--keep-within", "1ms")
    expect(result.out == "early\n" and re.search(rf"kept whole: job {job}", result.err), result.why())
    bed.expect_restorable("whole", log)


@case
def prune_and_gc_beside_others(bed):
    """A checkpoint that is being made, one that is held by a reader, and what a dead writer left."""
    job, log = saved(bed, "old", "held", "new")
    partial = os.path.join(bed.store(), ".dead.partial")
    os.mkdir(partial, 0o700)
    with open(os.path.join(partial, "pages"), "wb") as file:
        file.write(b"x" * MIB)
    holder = subprocess.Popen(["flock", "--shared", image(bed, "held"), "sh", "-c", "echo held; exec cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        expect(holder.stdout.readline() == b"held\n", "the lock")
        with bed.held_at("checkpoint.dumped", "checkpoint", job, "--leave-running", "--name", "under-way") as running:
            expect(".under-way.partial" in bed.partials(), f"{bed.partials()}")
            # The new checkpoint swept the store before it began.
            os.makedirs(partial, 0o700, exist_ok=True)
            swept = bed.ok("prune", "--leftovers")
            expect(swept.out == "1\n", swept.why())
            expect(bed.partials() == [".under-way.partial"], f"gc left {bed.partials()}")
            result = bed.ok("prune", "--keep-last", "1")
            expect(result.out == "old\n" and re.search(r"kept held: .*in use", result.err), result.why())
        code, _, err = running.end()
        expect(code == 0, f"exit {code}: {err}")
    finally:
        holder.communicate()
    expect(bed.ok("prune", "--leftovers").out == "0\n", "something was left")
    expect(sorted(bed.checkpoints()) == ["held", "new", "under-way"], f"{bed.checkpoints()}")
    bed.expect_whole(job, log)
    come_back(bed, job, log, "under-way")


@case
def gc_beside_a_restore(bed):
    job, log = saved(bed, "a")
    bed.ok("checkpoint", job, "--name", "b")
    with bed.held_at("restore.criu.begin", "restore", "b") as restoring:
        expect(bed.ok("prune", "--leftovers").out == "0\n", "gc took something")
        bed.refused(6, "would be restored from it", "rm", "--checkpoint", "b")
        result = bed.ok("prune", "--keep-within", "1ms")
        expect(result.out == "a\n" and "kept b" in result.err, result.why())
    code, _, err = restoring.end()
    expect(code == 0, f"exit {code}: {err}")
    log.goes_on()


# Export and import.

def export(bed, name):
    path = os.path.join(bed.dir, name + ".tar")
    expect(bed.ok("export", name, "-o", path).out == name + "\n", "export does not name what it wrote")
    expect(os.stat(path).st_mode & 0o777 == 0o600, "the stream is open to others")
    return path


def import_fails(bed, data, words, store):
    """A stream that must be refused without a trace."""
    path = os.path.join(bed.dir, "wrong.tar")
    with open(path, "wb") as file:
        file.write(data)
    bed.refused(9, words, "import", path, "--dir", store)
    left = os.listdir(store) if os.path.isdir(store) else []
    expect(not left, f"{words}: left {left}")


@case
def export_and_import(bed):
    job, log = saved(bed, "moved")
    path = export(bed, "moved")
    with tarfile.open(path) as tar:  # any tar reads it
        names = [member.name for member in tar]
        expect(names[0] == "moved/manifest.json" and len(names) == len(files_of(image(bed, "moved"))), f"{names}")
        for name, data in files_of(image(bed, "moved")).items():
            expect(tar.extractfile("moved/" + name).read() == data, f"{name} differs in the archive")
    store = os.path.join(bed.dir, "other")
    expect(bed.ok("import", path, "--dir", store).out == "moved\n", "import does not name what it made")
    expect(files_of(os.path.join(store, "moved")) == files_of(image(bed, "moved")), "the copy differs")
    for base, dirs, files in os.walk(os.path.join(store, "moved")):
        for name in dirs + files:
            mode = os.lstat(os.path.join(base, name)).st_mode & 0o777
            expect(mode == (0o700 if name in dirs else 0o600), f"{name} has mode {mode:o}")
    bed.refused(6, "exists", "import", path, "--dir", store)
    come_back(bed, job, log, "moved", "--dir", store)


@case
def export_and_import_through_a_pipe(bed):
    saved(bed, "piped", mib=64)
    store = os.path.join(bed.dir, "far")
    done = run(["sh", "-c", f'"{bed.brumate}" export piped | "{bed.brumate}" import --dir "{store}"'], env=bed.command_env())
    expect(done.code == 0 and done.out == "piped\n", done.why())
    bed.ok("verify", "piped", "--dir", store)
    again = os.path.join(bed.dir, "again")
    done = run(["sh", "-c", f'"{bed.brumate}" export piped -o - | "{bed.brumate}" import - --dir "{again}"'],
               env=bed.command_env())
    expect(done.code == 0 and files_of(store) == files_of(again), done.why())
    done = run(["sh", "-c", f'"{bed.brumate}" export piped | head -c 100000 | "{bed.brumate}" import --dir "{bed.dir}/cut"'],
               env=bed.command_env())
    expect(done.code == 9 and "truncated" in done.err, done.why())
    expect(not os.listdir(os.path.join(bed.dir, "cut")), "left something")


@case
def what_is_no_file_is_written_to(bed):
    """A pipe or a device that is named as the output stays what it is: /dev/null, above all."""
    saved(bed, "piped")
    pipe, store = os.path.join(bed.dir, "pipe"), os.path.join(bed.dir, "far")
    os.mkfifo(pipe)
    export = bed.spawn("export", "piped", "-o", pipe)
    expect(bed.ok("import", pipe, "--dir", store).out == "piped\n", "nothing came through the pipe")
    expect(export.end()[:2] == (0, "piped\n"), "export does not name what it wrote")
    metrics = bed.spawn("metrics", "--textfile", pipe)
    expect("brumate_" in read_text(pipe) and metrics.end()[0] == 0, "no metrics came through the pipe")
    expect(stat.S_ISFIFO(os.stat(pipe).st_mode), "the pipe is not one any more")


@case
def wrong_streams_are_refused(bed):
    saved(bed, "x")
    with open(export(bed, "x"), "rb") as file:
        good = file.read()
    store = os.path.join(bed.dir, "never")
    import_fails(bed, b"", "not a checkpoint", store)
    import_fails(bed, b"hello" * 1000, "not a checkpoint", store)
    import_fails(bed, good + b"x", "follows the end", store)
    for end in (100, 512, 600, len(good) // 3, len(good) // 2, len(good) - 512, len(good) - 1):
        import_fails(bed, good[:end], "truncated|not a checkpoint", store)
    for at in (0, 5, 130, 150, 700, 2000, len(good) // 2, len(good) - 1030, len(good) - 1):
        damaged = bytearray(good)
        damaged[at] ^= 1
        import_fails(bed, bytes(damaged), ".", store)
    with open(os.path.join(image(bed, "x"), "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    for trick in ("../evil", "/evil", "a/../../evil", "manifest.json", ""):
        manifest["files"][0]["path"] = trick
        import_fails(bed, stream(manifest), "path", store)
    expect(not os.path.exists(os.path.join(bed.dir, "evil")), "a path left the store")
    manifest["files"] = [{"path": path, "len_bytes": 0, "digest": hashlib.sha256(b"").hexdigest()} for path in ("a", "a/b")]
    import_fails(bed, stream(manifest), "collides|not a directory|a/b", store)
    manifest["files"] = [{"path": "huge", "len_bytes": 2**62, "digest": "0" * 64}]
    manifest_only = stream(manifest)
    with open(os.path.join(bed.dir, "huge.tar"), "wb") as file:
        file.write(manifest_only)
    bed.refused(1, "needs", "import", os.path.join(bed.dir, "huge.tar"), "--dir", store)
    for missing in ("/nothing/there.tar", bed.dir):
        expect(bed.cli("import", missing).code != 0, missing)


def stream(manifest):
    """The stream of a manifest whose files are empty, without memory, with a right digest."""
    data = json.dumps(sealed(manifest | {"memory": manifest["memory"] | {"regions": [], "packs": []}})).encode()

    def entry(path, body):
        info = tarfile.TarInfo(f"{manifest['id']}/{path}")
        info.size, info.mode = len(body), 0o600
        header = info.tobuf(tarfile.USTAR_FORMAT)
        return header + body + b"\0" * (-len(body) % 512)

    return entry("manifest.json", data) + b"".join(entry(f["path"], b"") for f in manifest["files"] if not f["len_bytes"]) + \
        b"\0" * 1024


@case
def export_of_a_damaged_one(bed):
    saved(bed, "broken")
    name = largest(image(bed, "broken"))
    flip(os.path.join(image(bed, "broken"), name), 4096)
    path = os.path.join(bed.dir, "broken.tar")
    bed.refused(9, re.escape(name), "export", "broken", "-o", path)
    expect(not [f for f in os.listdir(bed.dir) if f.startswith("broken.tar")], "left a file")
    bed.refused(3, "nothing", "export", "nothing", "-o", path)


@case
def no_room_for_an_import(bed):
    saved(bed, "large", mib=32)
    path = export(bed, "large")
    small = bed.tmpfs("8m")
    bed.refused(1, "free, the checkpoint needs", "import", path, "--dir", os.path.join(small, "store"))
    expect(not os.path.exists(os.path.join(small, "store")) or not os.listdir(os.path.join(small, "store")), "left something")


@case
def an_import_that_is_killed(bed):
    """Half of a stream, then the end of the importer: the next one sweeps what it left."""
    saved(bed, "half")
    path = export(bed, "half")
    store = os.path.join(bed.dir, "elsewhere")
    command = subprocess.Popen([bed.brumate, "import", "--dir", store], stdin=subprocess.PIPE, env=bed.command_env())
    with open(path, "rb") as file:
        command.stdin.write(file.read(MIB))
        command.stdin.flush()
    wait_until(lambda: os.path.isdir(store) and bed.partials(store), "the partial directory")
    expect(bed.ok("prune", "--leftovers", "--dir", store).out == "0\n", "gc took one that is being written")
    command.kill()
    command.wait(10)
    expect(bed.partials(store) == [".half.partial"], f"{bed.partials(store)}")
    expect(bed.ok("prune", "--leftovers", "--dir", store).out == "1\n" and not os.listdir(store), f"{os.listdir(store)}")
    bed.ok("import", path, "--dir", store)
    command = subprocess.Popen([bed.brumate, "import", "--dir", os.path.join(bed.dir, "third")], stdin=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=bed.command_env())
    with open(path, "rb") as file:
        command.stdin.write(file.read(MIB))
        command.stdin.flush()
    wait_until(lambda: bed.partials(os.path.join(bed.dir, "third")), "the partial directory")
    command.send_signal(signal.SIGINT)
    expect(command.wait(10) != 0 and not os.listdir(os.path.join(bed.dir, "third")), "Ctrl-C left something")


# By themselves.

@case
def every_so_often(bed):
    job, log = bed.counter()
    bed.refused(2, "--every", "checkpoint", job, "--keep-last", "2")
    bed.refused(2, "--name", "checkpoint", job, "--every", "1s", "--name", "x")
    bed.refused(2, "a second", "checkpoint", job, "--every", "10ms")
    result = bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "2")
    expect(result.out == job + "\n" and "next checkpoint" in result.err, result.why())
    schedule = bed.job(job)["schedule"]
    expect(schedule["every_ms"] == 1000 and schedule["keep_last"] == 2 and schedule["dir"] == bed.store(), f"{schedule}")
    seen = set()

    def four_came():
        seen.update(bed.checkpoints())
        return len(seen) >= 4

    wait_until(four_came, "four checkpoints", 60)
    bed.end_schedule(job)
    expect(bed.job(job)["schedule"] is None, f"{bed.job(job)['schedule']}")
    wait_until(lambda: len(bed.checkpoints()) <= 2, "all but two are gone")
    left = bed.checkpoints()
    expect(left == sorted(seen | set(left))[-2:], f"left {left} of {seen}")
    bed.ok("verify", *left)
    bed.expect_whole(job, log)
    come_back(bed, job, log, left[-1])


@case
def every_so_often_after_the_shim_died(bed):
    job, log = bed.counter()
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "1")
    wait_until(bed.checkpoints, "the first checkpoint", 60)
    wait_until(lambda: bed.state(job) == "running", "between two")
    bed.kill_shim(job)
    before = set(bed.checkpoints())
    retry(bed, "suspend", job)
    bed.ok("resume", job)
    wait_until(lambda: set(bed.checkpoints()) - before, "a checkpoint by the next shim", 60)
    bed.end_schedule(job)
    bed.expect_whole(job, log)


@case
def every_so_often_until_further_notice(bed):
    """A schedule is changed and ended while its checkpoint is under way, which is completed first."""
    def is_connected():
        with open("/proc/net/unix", encoding="utf-8") as file:
            return any(line.split()[-1].endswith(f"{job}/shim.sock") and line.split()[5] == "03" for line in file)

    job, log = bed.counter()
    fifo = bed.fault_file + ".held"
    bed.ok("checkpoint", job, "--every", "1s")
    for every in ("2s", "0"):
        seen = set(bed.checkpoints())
        bed.fault("checkpoint.gate.begin", "hold")
        wait_until(lambda: os.path.exists(fifo), "a checkpoint by schedule", 60)
        wait_until(lambda: not is_connected(), "nobody asks", 60)
        change = bed.spawn("checkpoint", job, "--every", every)
        wait_until(lambda: is_connected() or change.process.poll() is not None, "the change to be asked for", 60)
        with open(fifo, "wb"):
            pass
        code, _, err = change.end()
        expect(code == 0, f"{code}: {err}")
        expect(set(bed.checkpoints()) - seen, "the checkpoint under way is not completed")
        schedule = bed.job(job)["schedule"]
        expect(schedule["every_ms"] == 2000 if every == "2s" else schedule is None, f"{schedule}")
    bed.expect_whole(job, log)


def retry(bed, *args):
    """A command that may find a checkpoint under way."""
    wait_until(lambda: bed.cli(*args).code == 0, " ".join(args), 30)


@case
def every_so_often_and_it_fails(bed):
    """A store that cannot be written to: the job is told so, runs on, and the next period tries again."""
    job, log = bed.counter()
    small = bed.tmpfs("1m")
    retry(bed, "checkpoint", job, "--every", "1s", "--dir", os.path.join(small, "store"))
    wait_until(lambda: "scheduled checkpoint" in (bed.job(job)["message"] or ""), "the message", 30)
    expect("free" in bed.job(job)["message"], bed.job(job)["message"])
    expect("free" in bed.job(job)["schedule"]["failure"], "the schedule does not say that it failed")
    expect(re.search(r"\d+s \(failed\)", bed.ok("ps").out), "the table does not show it")
    retry(bed, "suspend", job)
    retry(bed, "resume", job)
    expect("free" in bed.job(job)["schedule"]["failure"], "another operation takes the failure away")
    log.goes_on()
    done = run(["mount", "-o", "remount,size=256m", small])
    expect(done.code == 0, done.why())
    store = os.path.join(small, "store")
    wait_until(lambda: os.path.isdir(store) and bed.list("ls", "checkpoints", "--dir", store), "the next one", 30)
    wait_until(lambda: bed.job(job)["schedule"]["failure"] is None, "the failure is gone")
    bed.end_schedule(job)
    wait_until(lambda: bed.job(job)["message"] is None, "the message is gone")
    bed.expect_whole(job, log)


def pack_bytes(bed, name):
    return sum(len(data) for path, data in files_of(image(bed, name)).items() if path.endswith(".pack"))


@case
def every_so_often_as_configured(bed):
    """What the command reads of the configuration holds for these too, as it is when one is made; what was
    given with --every comes first."""
    def configure(text):
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write(text)

    def one_by_schedule(*options):
        seen = set(bed.checkpoints())
        retry(bed, "checkpoint", job, "--every", "1s", *options)
        name = wait_until(lambda: sorted(set(bed.checkpoints()) - seen), "a checkpoint by schedule", 60)[0]
        bed.end_schedule(job)
        packed = pack_bytes(bed, name)
        for each in bed.checkpoints():
            bed.ok("rm", each)  # nothing to share with
        return packed

    job, log = bed.started([bed.program("memory"), "alone", "--mib", 16])
    configure("[Store]\nCompress=none\n")
    plain = one_by_schedule()
    if not plain:
        raise Skipped("CRIU's plugin is not there: no packs")
    configure("[Store]\nCompress=zstd\n")
    expect(one_by_schedule() < plain * 3 / 4, "Compress= is not heeded")
    expect(one_by_schedule("--compress", "none") == plain, "--compress is not heeded")
    bed.ok("checkpoint", job, "--every", "1h", "--compress", "lz4", "--keep-copy", "--with-files")
    schedule = bed.job(job)["schedule"]
    expect((schedule["compress"], schedule["keep_copy"], schedule["with_files"]) == ("lz4", True, True), f"{schedule}")
    configure("[Operation]\nTimeout=1ms\n")
    bed.ok("checkpoint", job, "--every", "1s")
    wait_until(lambda: "scheduled checkpoint" in (bed.job(job)["message"] or ""), "the message", 30)
    expect(not bed.checkpoints(), "Timeout= is not heeded")
    bed.refused(2, "compress", "checkpoint", job, "--every", "1s", "--compress", "zip")
    bed.end_schedule(job)
    bed.expect_whole(job, log)


@case
def two_of_one_second(bed):
    """Another machine may write a checkpoint of the same name into the same store: neither loses its own."""
    job, log = bed.counter("train")
    for is_complete in (False, True):
        with bed.held_at("checkpoint.image.begin", "checkpoint", "--leave-running", job) as checkpoint:
            record = json.loads(read_text(os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "job.json")))
            store, wanted = os.path.split(record["op"]["image"])
            other = os.path.join(store, wanted if is_complete else f".{wanted}.partial")
            os.makedirs(other)
            fd = os.open(other, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX)
        taken = os.listdir(store)
        free = next(name for name in (f"{wanted}.{n}" for n in range(2, 9)) if name not in taken)
        code, out, err = checkpoint.end()
        os.close(fd)
        expect(code == 0, f"exit {code}: {err}")
        made = out.strip().splitlines()[-1]
        expect(made == free, f"{made}, where {wanted} was taken and {free} was not")
        expect(bed.job(job)["checkpoint"] == made, "the record names another")
        expect(os.path.isdir(other), "that of the other machine is gone")
        os.rmdir(other)
        bed.ok("verify", made)
        with bed.held_at("checkpoint.image.begin", "checkpoint", "--leave-running", "--name", f"mine-{is_complete}", job) as checkpoint:
            os.makedirs(os.path.join(store, f"mine-{is_complete}"))
        code, _, err = checkpoint.end()
        expect(code == 6 and "exists in" in err, f"exit {code}: {err}")
        os.rmdir(os.path.join(store, f"mine-{is_complete}"))
    log.goes_on()
    bed.operation("checkpoint", job)
    bed.operation("restore", job)
    log.goes_on()


@case
def every_so_often_leaves_a_suspended_job_alone(bed):
    job, log = bed.counter()
    bed.ok("suspend", job)
    bed.ok("checkpoint", job, "--every", "1s")
    due = bed.job(job)["schedule"]["next"]
    expect(due, "no time")
    log_path = os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs", job, "shim.log")
    wait_until(lambda: "skipped" in open(log_path, encoding="utf-8").read(), "one is skipped", 30)
    bed.expect_state(job, "suspended")
    expect(not bed.checkpoints(), f"{bed.checkpoints()}")
    bed.ok("resume", job)
    wait_until(bed.checkpoints, "one once it runs", 30)
    bed.end_schedule(job)
    bed.expect_whole(job, log)


def command_runs(bed, mark):
    return [pid for pid, command in bed.processes() if mark in command and "brumate" not in command]


@case
def shims_that_die_while_they_start_a_command(bed):
    """Either there is no command, or it is a job's: never a process that nobody knows of."""
    # Not yet in the record: it must not run.
    for action, words in (("kill", "the shim of job .* ended"), ("error:28", "record of job")):
        bed.fault("start.forked", action)
        result = bed.cli("run", "--name", "early", "--", "sleep", "1234.5")
        expect(result.code and re.search(words, result.err), result.why())
        wait_until(lambda: not command_runs(bed, "1234.5"), "the end of a command that nobody knows of")
        for job in bed.list("ps", "jobs"):
            bed.ok("rm", job["id"])
    # In the record, but not yet said to run.
    bed.fault("start.started", "kill")
    result = bed.cli("run", "--name", "late", "--", "sleep", "1234.5")
    expect(result.code, result.why())
    bed.ok("kill", "--signal", "URG", "late")
    bed.expect_state("late", "running")
    expect(command_runs(bed, "1234.5") == [bed.pid("late")], f"{bed.processes()}")
    bed.jobs.append("late")


main()
