#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From whom a checkpoint is. Whoever may write to a store changes what they like and makes every digest right again,
which takes no key: with a key, or with trusted signatures, it is refused wherever it is used."""

import hashlib
import json
import os
import shutil
import socket
import subprocess

from cases import Skipped, case, expect, main
from s3_server import Server

UNPROVEN, FORGED = "not authentic", "forged"


def configure(bed, **keys):
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write("[Store]\n" + "".join(f"{key}={value}\n" for key, value in keys.items()))


def make_key(bed, name):
    path = os.path.join(bed.dir, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex() + "\n")
    return path


def place(bed, checkpoint, *below):
    return os.path.join(bed.store(), checkpoint, *below)


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def flip(path, at=None):
    """Another byte in the middle of the file."""
    with open(path, "r+b") as file:
        at = os.path.getsize(path) // 2 if at is None else at
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def forge(bed, checkpoint, change=lambda manifest: None):
    """Makes the manifest, changed, agree with the files: all that takes no key."""
    path = place(bed, checkpoint, "manifest.json")
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    del manifest["digest"]
    change(manifest)
    for item in manifest["files"]:
        item["len_bytes"] = os.path.getsize(place(bed, checkpoint, item["path"]))
        item["digest"] = digest_of(place(bed, checkpoint, item["path"]))
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, ensure_ascii=False)


def refused_everywhere(bed, checkpoint, words, other):
    """By whoever reads it, and nothing is left of the attempt."""
    stream = os.path.join(bed.dir, "stream")
    for args in (["verify", checkpoint], ["restore", checkpoint], ["export", checkpoint, "-o", stream],
                 ["diff", checkpoint, other], ["diff", other, checkpoint]):
        result = bed.cli(*args)
        expect(result.code != 0 and words in result.err, f"expected {words!r}: {result.why()}")
    expect(not os.path.exists(stream), "a stream was written")


class Copy:
    """The checkpoint as it was, to be put back after each change."""

    def __init__(self, bed, checkpoint):
        self.bed, self.checkpoint = bed, checkpoint
        self.kept = os.path.join(bed.dir, f"kept-{checkpoint}")
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(place(bed, checkpoint), self.kept)

    def put_back(self):
        shutil.rmtree(place(self.bed, self.checkpoint))
        shutil.copytree(self.kept, place(self.bed, self.checkpoint))


def two_checkpoints(bed):
    job, log = bed.counter(mib=8)
    first = bed.operation("checkpoint", job, "--leave-running", "--name", "first")["checkpoint"]
    log.goes_on()
    return job, log, first, bed.operation("checkpoint", job, "--name", "second")["checkpoint"]


def change_uid(manifest):
    manifest["job"]["uid"] = 4711


def largest(bed, checkpoint, folder):
    paths = [place(bed, checkpoint, folder, name) for name in os.listdir(place(bed, checkpoint, folder))]
    return max(paths, key=os.path.getsize)


@case
def forged_in_every_part(bed):
    configure(bed, EncryptionKeyFile=make_key(bed, "key"))
    job, log, first, second = two_checkpoints(bed)
    kept = Copy(bed, second)

    def forged(words, change=lambda manifest: None):
        forge(bed, second, change)
        refused_everywhere(bed, second, words, first)
        kept.put_back()

    bed.ok("verify", first, second)
    forged(FORGED, change_uid)
    forged(FORGED, lambda manifest: manifest["job"].update(log="/etc/passwd"))
    forged(FORGED, lambda manifest: manifest.update(later=1))
    forged(FORGED, lambda manifest: manifest["memory"]["packs"].pop())
    forged(FORGED, lambda manifest: manifest.update(mac="0" * 64))
    forged(UNPROVEN, lambda manifest: manifest.pop("mac"))
    forged(UNPROVEN, lambda manifest: manifest.update(key_id=""))
    flip(place(bed, second, "memory", "chunks"))
    forged(FORGED)
    flip(largest(bed, second, "criu"))
    forged(FORGED)
    shutil.copy(place(bed, first, "memory", "chunks"), place(bed, second, "memory", "chunks"))
    forged(FORGED)
    shutil.rmtree(place(bed, second, "criu"))
    shutil.copytree(place(bed, first, "criu"), place(bed, second, "criu"))
    forged(FORGED)

    # Packs have no digest in the manifest: they hang from the chunk table.
    packs = [name for name in os.listdir(place(bed, second, "memory")) if name.endswith(".pack")]
    flip(place(bed, second, "memory", packs[0]), at=100)
    bed.refused(9, "are bad", "verify", second)
    bed.refused(9, packs[0], "export", second, "-o", os.path.join(bed.dir, "stream"))
    bed.refused(9, "memory|chunk", "restore", second)
    kept.put_back()
    expect(bed.job(job)["state"] == "checkpointed", f"{bed.job(job)}")
    bed.operation("restore", second)
    log.goes_on()


@case
def one_in_the_place_of_another(bed):
    configure(bed, EncryptionKeyFile=make_key(bed, "key"))
    job, log, first, second = two_checkpoints(bed)
    kept = Copy(bed, second)

    # Rolled back: the older one under the name that the record has.
    shutil.rmtree(place(bed, second))
    shutil.copytree(place(bed, first), place(bed, second))
    refused_everywhere(bed, second, f"that of {first}", first)
    bed.refused(9, f"in its place is {first}", "restore", "--job", job)
    bed.refused(5, "in the place of", "restore", place(bed, second))
    forge(bed, second, lambda manifest: manifest.update(id=second))
    refused_everywhere(bed, second, FORGED, first)
    kept.put_back()

    bed.operation("restore", "--job", job)
    log.goes_on()


@case
def plain_where_a_key_is_configured(bed):
    key, other = make_key(bed, "key"), make_key(bed, "other")
    job, log, first, second = two_checkpoints(bed)
    stream = os.path.join(bed.dir, "plain.tar")
    bed.ok("export", second, "-o", stream)
    bed.ok("verify", second)

    configure(bed, EncryptionKeyFile=key)
    refused_everywhere(bed, second, UNPROVEN, first)
    store = os.path.join(bed.dir, "elsewhere")
    bed.refused(5, UNPROVEN, "import", stream, "--dir", store)
    expect(not os.path.exists(store) or not os.listdir(store), "something was brought in")
    bed.ok("verify", second, "--allow-unauthenticated")
    bed.ok("import", stream, "--dir", store, "--allow-unauthenticated")
    bed.operation("restore", second, "--allow-unauthenticated")
    log.goes_on()

    sealed = bed.operation("checkpoint", job)["checkpoint"]
    configure(bed, EncryptionKeyFile=other)
    refused_everywhere(bed, sealed, "encrypted by key", sealed)
    bed.refused(5, "encrypted by key", "restore", sealed, "--allow-unauthenticated")
    bed.ok("verify", sealed, "--key-file", key)
    configure(bed)
    bed.ok("verify", sealed)  # to verify takes no key, where none is configured
    configure(bed, EncryptionKeyFile=other, AllowUnauthenticated="yes")
    bed.ok("verify", first)
    bed.operation("restore", sealed, "--key-file", key)
    log.goes_on()


def forged_streams_are_refused(bed, first, second, words):
    """What was changed on its way, and travels as what it is not."""
    stream, store = os.path.join(bed.dir, "forged.tar"), os.path.join(bed.dir, "elsewhere")
    kept = Copy(bed, second)
    with open(bed.own["BRUMATE_CONFIG"], encoding="utf-8") as file:
        configured = file.read()
    configure(bed)
    forge(bed, second, change_uid)
    bed.ok("export", second, "-o", stream)
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(configured)
    bed.refused(9, words, "import", stream, "--dir", store)
    expect(not os.path.exists(store) or not os.listdir(store), "something was brought in")
    kept.put_back()


@case
def streams(bed):
    configure(bed, EncryptionKeyFile=make_key(bed, "key"))
    _, _, first, second = two_checkpoints(bed)
    forged_streams_are_refused(bed, first, second, FORGED)


def make_pair(bed, name, trusted):
    private = os.path.join(bed.dir, f"{name}.key")
    if not shutil.which("openssl"):
        raise Skipped("there is no openssl")
    os.umask(0o077)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", os.path.join(trusted, f"{name}.pem")],
                   check=True, capture_output=True)
    return private


@case
def signatures(bed):
    trusted, elsewhere = os.path.join(bed.dir, "trusted"), os.path.join(bed.dir, "elsewhere-keys")
    os.mkdir(trusted)
    os.mkdir(elsewhere)
    mine, stranger = make_pair(bed, "mine", trusted), make_pair(bed, "stranger", elsewhere)
    job, log, first, second = two_checkpoints(bed)
    configure(bed, TrustedKeys=trusted)
    bed.refused(5, "not signed", "restore", second)
    bed.operation("restore", second, "--allow-unauthenticated")
    log.goes_on()

    configure(bed, TrustedKeys=trusted, SigningKey=stranger)
    foreign = bed.operation("checkpoint", job, "--leave-running", "--name", "foreign")["checkpoint"]
    configure(bed, TrustedKeys=trusted, SigningKey=mine)
    signed = bed.operation("checkpoint", job, "--name", "signed")["checkpoint"]
    bed.ok("verify", signed)
    refused_everywhere(bed, foreign, "not in TrustedKeys=", signed)
    kept = Copy(bed, signed)
    forge(bed, signed, change_uid)
    refused_everywhere(bed, signed, FORGED, signed)
    kept.put_back()
    forged_streams_are_refused(bed, first, signed, FORGED)

    os.chmod(mine, 0o640)
    bed.operation("restore", signed)
    log.goes_on()
    bed.refused(5, "signing key .*other than its owner", "checkpoint", job)
    log.goes_on()
    configure(bed, TrustedKeys=trusted + ".gone")
    bed.end(job)
    bed.refused(5, "trusted keys .*No such file", "restore", signed)


@case
def audit_lines(bed):
    """One for each operation, whatever names are in it; a log that is stuck or away stops nobody."""
    with bed.system_log() as sock:
        def line(*words):
            text = sock.recv(4096).decode("ascii")
            expect(text.startswith("<86>brumate[") and f"uid={os.getuid()} pid=" in text, text)
            expect("\n" not in text and all(word in text for word in words), f"expected {words}: {text!r}")

        job, _ = bed.counter(mib=8)
        bed.operation("checkpoint", job, "--name", "one")
        line("method=Checkpoint", f'job="{job}"', 'checkpoint="one"', "result=done")
        stream = os.path.join(bed.dir, "a\nresult=done\"x")
        bed.ok("export", "one", "-o", stream)
        line("method=Export", 'checkpoint="one"', "a\\x0aresult=done\\x22x")
        bed.cli("restore", "no\nsuch")
        line("method=Restore", 'checkpoint="no\\x0asuch"', "result=failed")
        bed.ok("import", stream, "--dir", os.path.join(bed.dir, "other"))
        line("method=Import", 'checkpoint="one"', f'dir="{bed.dir}/other"')
        with Server() as server:
            bed.own.update({"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": server.store.keys["AKIDTEST"],
                            "AWS_REGION": server.store.region, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
                            "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "*"})
            bed.ok("push", "one", "s3://bkt/team")
            line("method=Push", 'checkpoint="one"', 'url="s3://bkt/team', "result=done")
            bed.ok("pull", "s3://bkt/team/one", "--dir", os.path.join(bed.dir, "pulled"))
            line("method=Pull", 'checkpoint="one"', 'url="s3://bkt/team/one"', f'dir="{bed.dir}/pulled"')
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as flood:
            flood.connect(bed.own["BRUMATE_SYSLOG"])
            try:
                while True:
                    flood.send(b"x")
            except BlockingIOError:
                pass  # full: nobody reads
        bed.operation("restore", "one")
    os.unlink(bed.own["BRUMATE_SYSLOG"])
    bed.operation("checkpoint", job, "--leave-running")


main()
