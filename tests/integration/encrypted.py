#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints that are encrypted: nothing of the job's memory can be read in them, and they come back by
their key alone."""

import json
import os

from cases import Skipped, case, expect, main, wait_until

SECRET = b"a-password-that-only-memory-knows"


def configure(bed, key=None):
    """The configuration with this key file, or none."""
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Store]\nEncryptionKeyFile={key}\n" if key else "")


def write_program(bed, name, script):
    path = os.path.join(bed.dir, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="ascii") as file:
        file.write("#!/bin/sh\n" + script + "\n")
    return path


def make_key(bed, name):
    path = os.path.join(bed.dir, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex() + "\n")
    return path


def secretive(bed):
    """A job with the secret in its memory, and in no argument."""
    path = os.path.join(bed.dir, "secret")
    with open(path, "wb") as file:
        file.write(SECRET + b"\n")
    script = f'read secret <{path}; n=0; while :; do n=$((n + 1)); echo "step $n ${{#secret}}"; sleep 0.05; done'
    job = bed.ok("run", "--", "sh", "-c", script).out.strip()
    bed.jobs.append(job)
    log = bed.log(job)
    log.wait_for(r"step 3 ")
    return job, log


def files_with_secret(directory):
    found = []
    for top, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(top, name), "rb") as file:
                if SECRET in file.read():
                    found.append(name)
    return found


def place(bed, checkpoint):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "checkpoints", checkpoint)


@case
def memory_cannot_be_read(bed):
    job, log = secretive(bed)
    plain = bed.operation("checkpoint", job, "--leave-running")["checkpoint"]
    expect(files_with_secret(place(bed, plain)), "the secret is not even in a checkpoint in the clear")

    configure(bed, make_key(bed, "key"))
    sealed = bed.operation("checkpoint", job)["checkpoint"]
    expect(not files_with_secret(place(bed, sealed)), "the secret can be read")
    for name in os.listdir(os.path.join(place(bed, sealed), "criu")):
        with open(os.path.join(place(bed, sealed), "criu", name), "rb") as file:
            expect(file.read(16) == b"brumate-sealed-1", f"{name} is not sealed")

    bed.operation("restore", sealed)
    before = log.text().count("step")
    log.wait_until(lambda text: text.count("step") > before + 2, "steps after the restore")
    expect(all(line.endswith(f" {len(SECRET)}") for line in log.lines() if line.startswith("step")),
           "the job forgot its secret")


@case
def memory_beside_the_images_too(bed):
    """Large host memory is in packs, not in CRIU's images."""
    configure(bed, make_key(bed, "key"))
    job, log = bed.started([bed.program("memory"), "alone", "--mib", 12])
    bed.operation("checkpoint", job, "--leave-running")
    log.goes_on()
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]  # shares with the first
    with open(os.path.join(place(bed, checkpoint), "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    expect(len(manifest["key_id"]) == 32, f"key_id {manifest['key_id']!r}")
    if not manifest["memory"]["packs"]:
        raise Skipped("CRIU's plugin is not there")
    bed.ok("verify", checkpoint)
    bed.operation("restore", checkpoint)
    bed.expect_whole(job, log)


@case
def only_by_its_key(bed):
    key, other = make_key(bed, "key"), make_key(bed, "other")
    configure(bed, key)
    job, log = bed.counter(mib=16)
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]

    configure(bed)
    bed.refused(5, "encrypted, and there is no key", "restore", checkpoint)
    bed.ok("verify", checkpoint)
    configure(bed, other)
    bed.refused(5, "encrypted by key", "restore", checkpoint)
    os.chmod(other, 0o640)
    bed.refused(5, "other than its owner", "restore", checkpoint)
    configure(bed, key + ".gone")
    bed.refused(5, "No such file", "restore", checkpoint)

    configure(bed, key)
    bed.operation("restore", checkpoint)
    log.goes_on()
    configure(bed, key + ".gone")
    bed.refused(5, "No such file", "checkpoint", job)
    log.goes_on()


@case
def key_of_the_command_line(bed):
    """--key-file: in place of what is configured, and refused where it is of no use."""
    key, other = make_key(bed, "key"), make_key(bed, "other")
    configure(bed, other)
    job, log = bed.counter(mib=16)
    wrong = {5: [(key + ".gone", "No such file"), (os.path.join(bed.dir, "open"), "other than its owner")],
             2: [(os.path.join(bed.dir, "short"), "neither 32 bytes"), (bed.dir, "no regular file")]}
    for name, mode, text in (("open", 0o644, "0" * 64), ("short", 0o600, "abc")):
        with open(os.open(os.path.join(bed.dir, name), os.O_WRONLY | os.O_CREAT, mode), "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(os.path.join(bed.dir, name), mode)
    for code, files in wrong.items():
        for path, words in files:
            for args in (["checkpoint", job], ["checkpoint", job, "--every", "1m"], ["restore", "any"]):
                result = bed.cli(*args, "--key-file", path)
                lines = result.err.splitlines()
                expect(result.code == code and words in lines[0] and path in lines[0], f"{args}: {result.why()}")
                expect(len([line for line in lines if not line.startswith("hint:")]) == 1, result.why())
    log.goes_on()
    expect(not bed.checkpoints() and bed.job(job)["schedule"] is None, "something was made")

    checkpoint = bed.operation("checkpoint", job, "--key-file", key)["checkpoint"]
    with open(os.path.join(place(bed, checkpoint), "manifest.json"), encoding="utf-8") as file:
        expect(len(json.load(file)["key_id"]) == 32, "it is not encrypted")
    bed.refused(5, "encrypted by key", "restore", checkpoint)
    configure(bed)
    bed.refused(5, "there is no key", "restore", checkpoint)
    bed.refused(5, "encrypted by key", "restore", checkpoint, "--key-file", other)
    for verb in (["verify", checkpoint], ["export", checkpoint, "-o", os.path.join(bed.dir, "out.tar")]):
        bed.ok(*verb)  # which take no key
    bed.operation("restore", checkpoint, "--key-file", os.path.relpath(key))
    log.goes_on()


@case
def key_of_a_schedule(bed):
    """Read whenever a checkpoint is made; one that went away is told, and the next period tries again."""
    key = make_key(bed, "key")
    job, log = bed.counter()
    bed.ok("checkpoint", job, "--every", "1s", "--keep-last", "2", "--key-file", key)
    expect(bed.job(job)["schedule"]["key_file"] == key, f"{bed.job(job)['schedule']}")
    first = wait_until(bed.checkpoints, "a checkpoint by schedule", 60)[0]
    os.rename(key, key + ".away")
    wait_until(lambda: "No such file" in (bed.job(job)["message"] or ""), "the message", 30)
    os.rename(key + ".away", key)
    wait_until(lambda: set(bed.checkpoints()) - {first}, "the next one", 60)
    bed.end_schedule(job)
    last = sorted(bed.checkpoints())[-1]
    with open(os.path.join(place(bed, last), "manifest.json"), encoding="utf-8") as file:
        expect(len(json.load(file)["key_id"]) == 32, "it is not encrypted")
    bed.end(job)
    bed.ok("rm", job)
    bed.refused(5, "there is no key", "restore", last)
    bed.operation("restore", last, "--key-file", key)
    log.wait_for("^.*step ")
    log.goes_on()


@case
def key_of_a_program(bed):
    key = make_key(bed, "key")

    def program(name, script):
        path = write_program(bed, name, script)
        with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
            file.write(f"[Store]\nEncryptionKeyCommand={path}\n")

    job, log = bed.counter(mib=16)
    for name, script, words in (("fails", "exit 3", "fails: failed with exit status 3"),
                                ("dies", "kill -9 $$", "dies: killed by signal 9"),
                                ("silent", "exit 0", "silent: gives neither"),
                                ("long", "exec yes", "long: ")):
        program(name, script)
        bed.refused(2 if name in ("silent", ) else 5, words, "checkpoint", job)
        log.goes_on()
    program("right", f"cat {key}")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    configure(bed, key)
    bed.operation("restore", checkpoint)
    log.goes_on()


main()
