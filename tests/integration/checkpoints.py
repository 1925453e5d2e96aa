# SPDX-License-Identifier: MIT
"""What tests of checkpoints share: making them, and looking at what they are made of."""

import hashlib
import json
import os


def files_of(path):
    """{path below: bytes} of a directory."""
    found = {}
    for base, _, names in os.walk(path):
        for name in names:
            full = os.path.join(base, name)
            with open(full, "rb") as file:
                found[os.path.relpath(full, path)] = file.read()
    return found


def flip(path, offset):
    """Another lowest bit in the byte there."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def sealed(manifest):
    """The manifest with the digest that it wants."""
    manifest = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return manifest | {"digest": hashlib.sha256(text.encode()).hexdigest()}


def change_manifest(bed, checkpoint, /, **job):
    """Another job in a checkpoint's manifest, whole for whoever reads it."""
    path = os.path.join(image(bed, checkpoint), "manifest.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    manifest["job"].update(job)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(sealed(manifest), file)


def manifest_of(bed, checkpoint):
    with open(os.path.join(image(bed, checkpoint), "manifest.json"), encoding="utf-8") as file:
        return json.load(file)


def seal_again(bed, checkpoint, without=None, **members):
    """The manifest names the files as they are now, but for one, and has these members."""
    path = os.path.join(image(bed, checkpoint), "manifest.json")
    manifest = manifest_of(bed, checkpoint) | members
    manifest["files"] = [entry for entry in manifest["files"] if entry["path"] != without]
    for entry in manifest["files"]:
        with open(os.path.join(image(bed, checkpoint), entry["path"]), "rb") as file:
            data = file.read()
        entry.update(len_bytes=len(data), digest=hashlib.sha256(data).hexdigest())
    with open(path, "w", encoding="utf-8") as file:
        json.dump(sealed(manifest), file)


def image(bed, name):
    return os.path.join(bed.store(), name)


def saved(bed, *names, mib=16):
    """A running job with checkpoints of these names: (job, log)."""
    job, log = bed.counter(mib=mib)
    for name in names:
        bed.ok("checkpoint", job, "--leave-running", "--name", name)
    return job, log


def back_and_forth(bed, job, log):
    """Checkpoints and restores of a job in the order in which each is of what the one before left."""
    bed.operation("checkpoint", job, "--leave-running", "--name", "one")
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job, "--name", "two")
    bed.operation("restore", "two")
    bed.expect_whole(job, log)
    bed.operation("checkpoint", job, "--name", "three")
    for name in ("one", "two"):
        bed.ok("rm", name)
    bed.operation("restore", "three")
    bed.ok("rm", "three")
    bed.expect_whole(job, log)
