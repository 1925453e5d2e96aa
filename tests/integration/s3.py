#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints in an object store: pushed, listed, pulled, restored and removed, by way of a stand-in that
checks signatures and does harm (s3_server.py)."""

import hashlib
import json
import os
import shutil
import signal
import socket
import tarfile
import threading

from cases import MIB, Skipped, as_user, case, expect, main, run, wait_until
from checkpoints import files_of, image, saved
from harness import SOURCE, Program
from kubelet_server import Authority
from s3_server import Server

PLACE = "s3://bkt/team a/jobs"  # a blank must be quoted in what is signed
BELOW = "team a/jobs/"


def settings(server, **more):
    env = {
        "AWS_ACCESS_KEY_ID": "AKIDTEST",
        "AWS_SECRET_ACCESS_KEY": server.store.keys["AKIDTEST"],
        "AWS_REGION": server.store.region,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
        "AWS_CONFIG_FILE": "/nonexistent/config",
        "BRUMATE_S3_PART_MIB": "5",
        "BRUMATE_S3_CONNECTIONS": "4",
        "NO_PROXY": "*",
        "AWS_PROFILE": "",
        "AWS_SESSION_TOKEN": "",
    }
    env.update(more)
    return env


def with_server(function):
    def wrapped(bed):
        with Server() as server:
            bed.own.update(settings(server))
            function(bed, server)

    wrapped.__name__ = function.__name__
    return case(wrapped)


def hand_made(bed, name, files, created="2026-01-02T03:04:05.678Z"):
    """A checkpoint that was never a job, with files of our choice: brought in as a stream."""
    with open(os.path.join(SOURCE, "tests/unit/image/golden/v1.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    del manifest["digest"]
    manifest["job"].update(id="0b1a4d00", name="by-hand", uid=0, gid=0)
    manifest.update(id=name, created=created, files=[
        {"path": path, "len_bytes": len(data), "digest": hashlib.sha256(data).hexdigest()}
        for path, data in sorted(files.items())])
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
    tar = os.path.join(bed.dir, "in.tar")
    with open(tar, "wb") as out:
        for path, data in [("manifest.json", json.dumps(manifest).encode()), *sorted(files.items())]:
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mode = len(data), 0o600
            out.write(info.tobuf(tarfile.USTAR_FORMAT) + data + b"\0" * (-len(data) % 512))
        out.write(b"\0" * 1024)
    bed.ok("import", tar)
    os.unlink(tar)


def puts(server):
    return [entry for entry in server.taken() if entry[0] in ("PUT", "POST")]


@with_server
def there_and_back(bed, server):
    """The whole way: saved, pushed, gone here, pulled, and the job goes on with right data."""
    job, log = saved(bed, "one", mib=48)
    before = files_of(image(bed, "one"))
    result = bed.ok("push", "one", PLACE)
    expect(result.out == PLACE + "/one\n" and "pushed one: " in result.err, result.why())
    there = {key[len(BELOW) + 4:]: data for key, data in server.objects().items() if key.startswith(BELOW + "one/")}
    packs = {data for key, data in server.objects().items() if key.startswith(BELOW + "packs/")}
    expect(all(there.get(name) == data or data in packs for name, data in before.items()), "what lies there is something else")
    expect(any(len(data) > 10 * MIB for data in before.values()), "no file is large enough for parts")
    log_of = puts(server)
    expect(any("partNumber" in entry[2] for entry in log_of), "nothing went in parts")
    expect(log_of[-1][1].endswith("/one/manifest.json"), f"the manifest was not last: {log_of[-1]}")
    again = bed.ok("push", "one", PLACE, "--format", "json").json()
    expect(again["moved_files"] == 0 and again["bytes"] > 0 and not puts(server), f"pushed again: {again}")

    listed = bed.ok("ls", PLACE, "--format", "json").json()["checkpoints"]
    expect([(c["id"], c["job"], c["path"]) for c in listed] == [("one", job, PLACE + "/one")], f"{listed}")
    bed.end(job)
    bed.ok("rm", job)
    bed.ok("rm", "one")
    expect(bed.checkpoints() == [], "it is still here")
    result = bed.ok("pull", PLACE + "/one")
    expect(result.out == "one\n", result.why())
    expect(files_of(image(bed, "one")) == before, "pulled, but not the same")
    bed.ok("verify", "one")
    bed.ok("pull", PLACE + "/one")
    bed.expect_restorable("one", log)
    expect(bed.partials() == [], f"left: {bed.partials()}")


def jobs_dir(bed):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "jobs")


def far_away(bed, start, name="far"):
    """A checkpoint that is nowhere but there, in packs: (the log of its job, bytes of the packs). Its disk here
    is another one than that which a restore may write to."""
    away = os.path.join(bed.dir, "away")
    job, log = start()
    bed.ok("checkpoint", job, "--name", name, "--dir", away, "--compress", "none")
    packs = sum(len(data) for path, data in files_of(os.path.join(away, name)).items() if path.endswith(".pack"))
    bed.ok("push", name, PLACE, "--dir", away)
    bed.ok("rm", job)
    shutil.rmtree(away)
    return log, packs


def device_memory(bed):
    return bed.counter(mib=64)


def host_memory(bed):
    return bed.started([bed.program("memory"), "alone", "--mib", 12])


@with_server
def restored_from_there(bed, server):
    """Memory comes straight from there: the disk has no room for it. What is restored is as any other job."""
    bed.own["BRUMATE_STATE_DIR"] = os.path.join(bed.tmpfs("16m"), "state")
    for start in (device_memory, host_memory):
        log, packs = far_away(bed, lambda start=start: start(bed))
        if packs < 32 * MIB:
            raise Skipped(f"{packs} bytes of packs: the data path or CRIU's plugin is not in use")
        server.taken()
        url = PLACE + "/far"
        if start is device_memory:
            bed.fault("data.feed", "delay:0")
        job = bed.expect_restorable(url, log)
        expect(start is not device_memory or bed.has_fired(), "device memory did not go to the GPU as it came")
        expect(bed.checkpoints() == [] and FETCHED not in os.listdir(os.path.join(jobs_dir(bed), job)), "something stays")
        gets = [entry for entry in server.taken() if entry[0] == "GET" and "/packs/" in entry[1]]
        expect(packs // (8 * MIB) <= len(gets) and all(entry[3] == 206 for entry in gets), f"{len(gets)} requests for packs")
        record = bed.job(job)
        expect((record["checkpoint"], record["checkpoint_path"]) == ("far", url), f"{record}")
        expect(job in bed.ok("inspect", job).out and bed.job(job)["state"] == "running", "inspect")
        bed.refused(3, "not on this machine", "restore", record["name"])
        near = os.path.join(bed.dir, "near")
        bed.operation("checkpoint", job, "--name", "one", "--dir", near)
        bed.ok("verify", "one", "--dir", near)
        bed.operation("restore", os.path.join(near, "one"))
        bed.expect_whole(job, log)
        expect(bed.job(job)["checkpoint_path"] == os.path.join(near, "one"), f"{bed.job(job)}")
        bed.end(job)
        bed.ok("rm", job)
        shutil.rmtree(near)
        # By the name of its job, which means the latest there, with its log shown from where it goes on.
        shown = bed.spawn("restore", f"{PLACE}/{record['name']}", "--attach")
        wait_until(lambda: [j["state"] for j in bed.list("ps", "jobs")] == ["running"], "the job")
        log.wait_for("^.*step ")
        log.goes_on()
        job = bed.list("ps", "jobs")[0]["id"]
        bed.end(job)
        _, out, err = shown.end()
        expect("step " in out, f"nothing is shown: {err}")
        bed.ok("rm", job)
        bed.ok("rm", url)


FETCHED = "fetched"


def expect_nothing_left(bed, server):
    """Of a restore that failed."""
    left = [name for job in os.listdir(jobs_dir(bed)) for name in os.listdir(os.path.join(jobs_dir(bed), job))]
    expect(FETCHED not in left, f"left: {left}")
    expect(bed.checkpoints() == [] and bed.vram() == [0, 0], "left: memory, or a checkpoint")
    with server.store.lock:
        server.store.faults.clear()


@with_server
def restored_through_faults(bed, server):
    """What a network does for a while passes; what it does to bytes is found before the job runs."""
    url = PLACE + "/far"
    for start, words in ((device_memory, "GPU "), (host_memory, "CPU memory")):
        log, _ = far_away(bed, lambda start=start: start(bed))
        fault = server.fault
        name = os.path.basename(packs_there(server)[-1])
        for kind in ("flip", ):
            fault("GET", "/packs/" + name, kind, times=99)
            result = bed.refused(9, f"far: memory/{name}: chunk [0-9]+ .*digest.*it holds 0x.* of process .*{words}", "restore", url)
            expect_nothing_left(bed, server)
        fault("GET", "/criu/", "flip", times=99)
        bed.refused(9, "criu/.*: digest", "restore", url)
        expect_nothing_left(bed, server)
        with server.store.lock:
            pack = server.store.buckets["bkt"].pop(BELOW + "packs/" + name)
        bed.refused(9, f"{name}: missing", "restore", url)
        with server.store.lock:
            server.store.buckets["bkt"][BELOW + "packs/" + name] = type(pack)(pack.data[:8192], pack.meta, pack.etag)
        result = bed.cli("restore", url, env={"AWS_MAX_ATTEMPTS": "2"})
        expect(result.code != 0 and name in result.err, result.why())
        with server.store.lock:
            server.store.buckets["bkt"][BELOW + "packs/" + name] = pack
        expect_nothing_left(bed, server)
        fault("GET", "/packs/", "status", status=503, code="SlowDown", times=99)
        result = bed.cli("restore", url, env={"AWS_MAX_ATTEMPTS": "2"})
        expect(result.code == 1 and "503 SlowDown" in result.err and "--pull" in result.err, result.why())
        expect_nothing_left(bed, server)
        expect(bed.list("ps", "jobs") == [], "a job that never ran is left")
        for kind in ("cut-out", "reset", "status"):
            fault("GET", "/packs/", kind, times=3)
            fault("GET", "/criu/", kind)
        fault("GET", "/packs/" + name, "flip")
        fault("GET", "/criu/", "flip")
        job = bed.expect_restorable(url, log)
        expect(not [f for f in server.store.faults if f.times], "a fault was not met")
        bed.end(job)
        bed.ok("rm", job)
        bed.ok("rm", url)


@with_server
def restore_from_there_interrupted(bed, server):
    """By the user, and by the end of the shim: nothing is left, and the next one is right."""
    log, _ = far_away(bed, lambda: device_memory(bed))
    url = PLACE + "/far"
    for pattern in ("/criu/", "/packs/"):
        for who in ("command", "shim"):
            gate = threading.Event()
            held = server.fault("GET", pattern, "hold", times=99, event=gate)
            restoring = bed.spawn("restore", url)
            expect(held.reached.wait(60), "nothing was asked for")
            job = wait_until(lambda: bed.list("ps", "jobs"), "the job")[0]["id"]
            if who == "command":
                restoring.signal(signal.SIGINT)
            else:
                os.kill(wait_until(lambda: bed.shim(job), "the shim"), signal.SIGKILL)
                held.times = 0  # the next shim is asked to begin anew
                gate.set()
            code, _, err = restoring.end()
            held.times = 0
            gate.set()
            if code == 0 and who == "shim":
                log.goes_on()
                bed.end(job)
                bed.ok("rm", job)
            else:
                expect(code == 1 and err.strip(), f"{who}, {pattern}: exit {code}: {err}")
            for left in bed.list("ps", "jobs"):
                bed.cli("kill", "--signal", "URG", left["id"])  # a next shim puts it right
                bed.wait_state(left["id"], ("checkpointed",))
            wait_until(lambda: bed.crius() == [], "the end of CRIU")
            expect_nothing_left(bed, server)
    bed.expect_restorable(url, log)


@with_server
def restored_from_there_by_its_key(bed, server):
    key, other = os.path.join(bed.dir, "key"), os.path.join(bed.dir, "other")
    for path in (key, other):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32))
    job, log = device_memory(bed)
    bed.ok("checkpoint", job, "--name", "sealed", "--key-file", key)
    bed.ok("push", "sealed", PLACE)
    bed.ok("rm", job)
    bed.ok("rm", "sealed")
    bed.refused(5, "there is no key", "restore", PLACE + "/sealed")
    bed.refused(5, "not by", "restore", PLACE + "/sealed", "--key-file", other)
    expect_nothing_left(bed, server)
    bed.operation("restore", PLACE + "/sealed", "--key-file", key)
    log.wait_for("^.*step ")
    log.goes_on()


@with_server
def only_authentic_ones_come(bed, server):
    """What was pushed in the clear, and what was changed there, where a key is configured."""
    hand_made(bed, "plain", {"f": b"data"})
    bed.ok("push", "plain", PLACE)
    bed.ok("rm", "--checkpoint", "plain")
    key = os.path.join(bed.dir, "key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(os.urandom(32))
    with open(bed.own["BRUMATE_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f"[Store]\nEncryptionKeyFile={key}\n")
    for verb in (["pull"], ["restore"], ["restore", "--pull"]):
        bed.refused(5, "not authentic", *verb, PLACE + "/plain")
    expect_nothing_left(bed, server)
    expect(bed.checkpoints() == [], f"{bed.checkpoints()}")
    bed.ok("pull", PLACE + "/plain", "--allow-unauthenticated")
    bed.refused(5, "not authentic", "push", "plain", PLACE + "/again")

    job, _ = device_memory(bed)
    bed.ok("checkpoint", job, "--name", "sealed")
    bed.ok("push", "sealed", PLACE)
    bed.ok("rm", job)
    bed.ok("rm", "--checkpoint", "sealed")
    name = BELOW + "sealed/manifest.json"
    there = server.store.buckets["bkt"][name]
    manifest = json.loads(there.data)
    manifest["job"]["uid"] = 4711
    del manifest["digest"]
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
    with server.store.lock:
        server.store.buckets["bkt"][name] = type(there)(json.dumps(manifest).encode(), there.meta, there.etag)
    for verb in (["pull"], ["restore"], ["restore", "--pull"]):
        bed.refused(9, "forged", *verb, PLACE + "/sealed")


@with_server
def pulled_and_restored(bed, server):
    job, log = saved(bed, "far")
    bed.ok("push", "far", PLACE)
    bed.end(job)
    bed.ok("rm", job)
    bed.ok("rm", "far")
    bed.refused(2, "--pull", "restore", PLACE + "/far", "--dir", bed.dir)
    bed.refused(2, "--pull needs", "restore", "far", "--pull")
    bed.refused(3, "no checkpoint nothing", "restore", PLACE + "/nothing")
    bed.expect_restorable(PLACE + "/far", log, "--pull")
    expect(bed.checkpoints() == ["far"], f"{bed.checkpoints()}")


def still(bed, *names):
    """A job that stands still, with checkpoints that have the same memory: their packs are the same files."""
    job, log = bed.counter(mib=32, interval_ms=3600000)
    for name in names:
        bed.ok("checkpoint", job, "--leave-running", "--name", name)
    packs = {name for name in files_of(image(bed, names[0])) if name.endswith(".pack")}
    if not packs:
        raise Skipped("the data path is not in use: no packs")
    for name in names[1:]:
        expect(packs <= set(files_of(image(bed, name))), f"{name} has other packs")
    return job, log


def packs_there(server):
    return sorted(key for key in server.objects() if key.startswith(BELOW + "packs/"))


@with_server
def packs_are_shared(bed, server):
    job, _ = still(bed, "a", "b")
    bed.ok("push", "a", PLACE)
    there = packs_there(server)
    value = bed.ok("push", "b", PLACE, "--format", "json").json()
    expect(value["moved_bytes"] < 4 * MIB < 32 * MIB <= value["bytes"], f"{value}")
    expect(packs_there(server) == there, "packs were put again")
    # What this store has of the packs is not fetched.
    before = files_of(image(bed, "b"))
    bed.ok("rm", "--checkpoint", "b")
    value = bed.ok("pull", PLACE + "/b", "--format", "json").json()
    expect(value["moved_bytes"] < 4 * MIB, f"{value}")
    expect(files_of(image(bed, "b")) == before, "pulled, but not the same")
    bed.ok("verify", "--all")
    bed.ok("rm", PLACE + "/a")
    listed = bed.ok("ls", PLACE, "-q").out
    expect(listed == "b\n" and packs_there(server) == there, f"a pack of b went with a: {listed!r}")
    bed.ok("rm", "--checkpoint", "a", "b")
    bed.ok("pull", PLACE + "/b")
    expect(files_of(image(bed, "b")) == before, "pulled, but not the same")
    bed.end(job)
    bed.ok("rm", PLACE + "/b")
    expect(server.objects() == {}, f"left there: {list(server.objects())}")
    bed.refused(3, "no checkpoint b", "rm", PLACE + "/b")
    bed.refused(3, "no checkpoint b", "pull", PLACE + "/b", "--dir", os.path.join(bed.dir, "elsewhere"))


@with_server
def a_wrong_pack_is_refused(bed, server):
    job, log = still(bed, "a")
    bed.ok("push", "a", PLACE)
    bed.ok("rm", "--checkpoint", "a")
    name = os.path.basename(packs_there(server)[0])
    flip = server.fault("GET", name, "flip", times=99)
    bed.refused(9, f"{name}: chunk.*digest", "pull", PLACE + "/a")
    expect(bed.checkpoints() == [] and bed.partials() == [], f"left: {bed.partials()}")
    flip.times = 2  # on its way only: what is damaged is asked for once more, and nothing else
    server.taken()
    bed.ok("pull", PLACE + "/a")
    gets = [entry for entry in server.taken() if entry[0] == "GET" and name in entry[1]]
    expect(not flip.times and len(gets) == -(-len(server.objects()[BELOW + "packs/" + name]) // (5 * MIB)) + 2, f"{gets}")
    bed.ok("verify", "a")
    bed.ok("rm", "--checkpoint", "a")
    # A pack that is gone there is put again by the next push of whoever has it.
    bed.ok("pull", PLACE + "/a")
    with server.store.lock:
        del server.store.buckets["bkt"][BELOW + "packs/" + name]
    bed.refused(9, f"{name}: missing", "pull", PLACE + "/a", "--dir", os.path.join(bed.dir, "other"))
    bed.ok("push", "a", PLACE)
    expect(BELOW + "packs/" + name in server.objects(), "it was not put again")
    bed.ok("rm", "--checkpoint", "a")
    bed.end(job)
    bed.ok("rm", job)
    bed.operation("restore", PLACE + "/a")
    bed.end(job)


@with_server
def incomplete_ones_keep_the_packs(bed, server):
    """While a push is under way, nobody knows which packs it counts on: a removal leaves them."""
    still(bed, "a", "b")
    bed.ok("push", "a", PLACE)
    there = packs_there(server)
    fault = server.fault("PUT", "/b/manifest", "status", status=403, code="AccessDenied")
    result = bed.cli("push", "b", PLACE)
    expect(result.code == 5 and not fault.times, result.why())
    bed.ok("rm", PLACE + "/a")
    expect(packs_there(server) == there, "packs are gone")
    bed.ok("push", "b", PLACE)
    bed.ok("rm", PLACE + "/b")
    expect(server.objects() == {}, f"left there: {list(server.objects())}")


@with_server
def faults_that_pass(bed, server):
    """Whatever a network does for a while: tried again, and right in the end."""
    files = {"big": os.urandom(17 * MIB + 12345), "huge": os.urandom(11 * MIB)}
    files.update({f"small-{i}": os.urandom(1000 + i) for i in range(8)})
    hand_made(bed, "rough", files)
    fault = server.fault
    fault("PUT", "partNumber=2", "status", status=503, code="SlowDown", times=2)
    fault("PUT", "partNumber=1", "cut-in")
    fault("PUT", "small-3", "reset")
    fault("PUT", "small-4", "status", status=500)
    fault("PUT", "small-5", "status", status=429, code="TooManyRequests")
    fault("PUT", "small-6", "status", status=400, code="BadDigest")
    fault("POST", "uploads=", "status", status=500)
    fault("POST", "big.*uploadId=", "cut-out")
    fault("HEAD", "small-1", "reset")
    result = bed.ok("push", "rough", PLACE)
    expect(not [f for f in server.store.faults if f.times], "a fault was not met")
    before = files_of(image(bed, "rough"))
    bed.ok("rm", "rough")
    fault("GET", "big", "cut-out", times=2)
    fault("GET", "/huge", "status", status=503, code="SlowDown")
    fault("GET", "small-2", "reset")
    fault("GET", "manifest.json", "cut-out")
    fault("GET", "small-4", "flip")
    fault("GET", "big", "flip")
    fault("GET", "list-type", "half-xml")
    bed.ok("pull", PLACE + "/by-hand")
    expect(not [f for f in server.store.faults if f.times], "a fault was not met")
    expect(files_of(image(bed, "rough")) == before, f"pulled, but not the same: {result.err}")
    bed.ok("verify", "rough")


@with_server
def push_interrupted(bed, server):
    """Killed in the middle: no checkpoint there; the next push sends what is missing, and only that."""
    files = {"big": os.urandom(26 * MIB), "a": b"a" * 5000, "b": b"b" * 5000}
    hand_made(bed, "cut", files)
    gate = threading.Event()
    held = server.fault("PUT", "partNumber=5", "hold", times=9, event=gate)
    pushing = bed.spawn("push", "cut", PLACE)
    expect(held.reached.wait(60), "the last part was never sent")
    wait_until(lambda: len([e for e in server.store.log if "partNumber" in e[2]]) >= 4, "four parts")
    pushing.signal(signal.SIGKILL)
    held.times = 0
    gate.set()
    pushing.end()
    listed = bed.ok("ls", PLACE, "--format", "json").json()["checkpoints"]
    expect([c["id"] for c in listed] == ["cut"] and "incomplete" in listed[0]["error"], f"{listed}")
    bed.refused(3, "no checkpoint", "pull", PLACE + "/cut", "--dir", os.path.join(bed.dir, "other"))
    server.taken()
    bed.ok("push", "cut", PLACE)
    sent = sum(entry[4] for entry in puts(server))
    expect(sent < 12 * MIB, f"the second push sent {sent} bytes")
    expect(not server.store.uploads, f"uploads left: {server.store.uploads.keys()}")
    bed.ok("rm", "cut")
    bed.ok("pull", PLACE + "/cut")
    expect({k: v for k, v in files_of(image(bed, "cut")).items() if k != "manifest.json"} == files, "not the same")


@with_server
def push_cancelled(bed, server):
    hand_made(bed, "c", {"big": os.urandom(26 * MIB)})
    gate = threading.Event()
    held = server.fault("PUT", "partNumber", "hold", times=99, event=gate)
    pushing = bed.spawn("push", "c", PLACE)
    expect(held.reached.wait(60), "no part was sent")
    pushing.signal(signal.SIGINT)
    code = pushing.end()
    held.times = 0
    gate.set()
    expect(code != 0, "a cancelled push succeeded")
    expect(not any(k.endswith("manifest.json") for k in server.objects()), "there is a manifest")


@with_server
def pull_refuses_what_is_wrong(bed, server):
    files = {"big": os.urandom(11 * MIB), "deep/pack": os.urandom(MIB), "small": b"s" * 1000}
    hand_made(bed, "x", files)
    bed.ok("push", "x", PLACE)
    bed.ok("rm", "x")
    for pattern, name in (("/big", "big"), ("deep/pack", "deep/pack"), ("/small", "small")):
        flip = server.fault("GET", pattern, "flip", times=99)
        bed.refused(9, f"{name}: digest", "pull", PLACE + "/x")
        flip.times = 0
        expect(bed.checkpoints() == [] and bed.partials() == [], f"left: {bed.partials()}")
    server.fault("GET", "manifest.json", "flip")
    bed.refused(9, "x", "pull", PLACE + "/x")
    # A file that is gone, and one that is shorter.
    with server.store.lock:
        small = server.store.buckets["bkt"].pop(BELOW + "x/small")
    bed.refused(9, "small: missing", "pull", PLACE + "/x")
    with server.store.lock:
        server.store.buckets["bkt"][BELOW + "x/small"] = type(small)(small.data[:-1], small.meta, small.etag)
    result = bed.cli("pull", PLACE + "/x", env={"AWS_MAX_ATTEMPTS": "2"})
    expect(result.code != 0 and bed.checkpoints() == [], result.why())
    with server.store.lock:
        server.store.buckets["bkt"][BELOW + "x/small"] = small
    bed.ok("pull", PLACE + "/x")
    bed.ok("verify", "x")


@with_server
def pull_goes_on(bed, server):
    """A pull whose network goes away: the next one fetches what is missing; gc forgets it."""
    files = {f"f{i}": os.urandom(3 * MIB) for i in range(6)}
    hand_made(bed, "long", files)
    bed.ok("push", "long", PLACE)
    bed.ok("rm", "long")
    one = {"AWS_MAX_ATTEMPTS": "1", "BRUMATE_S3_CONNECTIONS": "1"}
    server.fault("GET", "/f5", "status", times=2)
    result = bed.cli("pull", PLACE + "/long", env=one)
    expect(result.code == 1 and "/f5" in result.err and "hint:" in result.err, result.why())
    expect(bed.checkpoints() == [] and bed.partials() == [".long.pulling"], f"left: {bed.partials()}")
    result = bed.cli("pull", PLACE + "/long", env=one)
    expect(result.code == 1, result.why())
    server.taken()
    value = bed.ok("pull", PLACE + "/long", "--format", "json").json()
    expect(value["moved_files"] == 1 and value["files"] == 6, f"{value}")
    expect(bed.partials() == [], f"left: {bed.partials()}")
    expect({k: v for k, v in files_of(image(bed, "long")).items() if k != "manifest.json"} == files, "not the same")
    bed.ok("rm", "long")
    server.fault("GET", "/f5", "status")
    bed.cli("pull", PLACE + "/long", env=one)
    expect(bed.partials() == [".long.pulling"], f"left: {bed.partials()}")
    bed.ok("prune", "--leftovers")
    expect(bed.partials() == [], f"left after gc: {bed.partials()}")


@with_server
def what_is_there_stays(bed, server):
    hand_made(bed, "same", {"f": b"one"})
    bed.ok("push", "same", PLACE)
    bed.ok("rm", "same")
    hand_made(bed, "same", {"f": b"two"})
    bed.refused(6, "another checkpoint with that id", "push", "same", PLACE)
    bed.refused(6, "same", "pull", PLACE + "/same")
    expect(server.objects()[BELOW + "same/f"] == b"one" and files_of(image(bed, "same"))["f"] == b"two", "overwritten")
    # A local one that is damaged is not pushed.
    hand_made(bed, "bad", {"f": b"right"})
    with open(os.path.join(image(bed, "bad"), "f"), "wb") as file:
        file.write(b"wrong")
    bed.refused(9, "bad: f", "push", "bad", PLACE)
    expect(not any("/bad/" in key for key in server.objects()), "something of it went")


SYSTEMS = "/etc/ssl/certs"


@case
def its_own_authorities_are_the_only_ones(bed):
    """AWS_CA_BUNDLE stands in the place of the system's authorities: whoever has a certificate of one of those is not believed."""
    own, systems = (Authority(os.path.join(bed.dir, name), name) for name in ("own", "systems"))
    name = run(["openssl", "x509", "-noout", "-subject_hash", "-in", systems.ca]).out.strip()
    shutil.copy(systems.ca, os.path.join(systems.dir, f"{name}.0"))
    shutil.copy(own.ca, os.path.join(systems.dir, "ca-certificates.crt"))  # libcurl knows both, and wants both there

    def listed(server, bundle):
        """By a command that finds the system's authorities in a directory of ours."""
        env = {**bed.command_env(), **settings(server, AWS_ENDPOINT_URL=f"https://127.0.0.1:{server.port}", AWS_MAX_ATTEMPTS="1",
                                               AWS_CA_BUNDLE=bundle)}
        script = f'mount --bind {systems.dir} {SYSTEMS} || exit 99; exec "$0" ls s3://bkt -q'
        result = run(["unshare", "--mount", "sh", "-c", script, bed.brumate], env=env)
        if result.code == 99 or "unshare" in result.err:
            raise Skipped(f"nothing can be mounted over {SYSTEMS}: {result.why()}")
        return result

    with Server(systems.issue("server", "s3", alt="IP:127.0.0.1")) as server:
        result = listed(server, "")
        if result.code:
            raise Skipped(f"libcurl does not look for authorities in {SYSTEMS}: {result.why()}")
        expect(listed(server, systems.ca).code == 0, "an authority that is named is not believed")
        result = listed(server, own.ca)
        expect(result.code != 0 and "certificate" in result.err, f"one that is not named is believed: {result.why()}")


@with_server
def refusals_say_why(bed, server):
    hand_made(bed, "r", {"f": b"data"})

    def hint(words, code, text, **env):
        result = bed.cli("push", "r", PLACE, env={"AWS_MAX_ATTEMPTS": "2", **env})
        expect(result.code == code and text in result.err.splitlines()[0] and words in result.err, f"{words}: {result.why()}")
        expect(server.store.keys["AKIDTEST"] not in result.err, "the secret is printed")

    hint("AWS_PROFILE", 5, "no credentials", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    hint("/nonexistent/credentials", 5, "no credentials", AWS_ACCESS_KEY_ID="")
    hint("does not know", 5, "access key AKIDNONE", AWS_ACCESS_KEY_ID="AKIDNONE")
    hint("secret does not belong", 5, "SignatureDoesNotMatch", AWS_SECRET_ACCESS_KEY="wrong")
    hint("AWS_REGION", 2, "not in region elsewhere-1", AWS_REGION="elsewhere-1")
    server.store.clock_ahead_s = 3600
    hint("behind the server's", 5, "RequestTimeTooSkewed")
    server.store.clock_ahead_s = 0
    server.store.tokens = {"old": False, "new": True}
    hint("has expired", 5, "ExpiredToken", AWS_SESSION_TOKEN="old")
    server.store.denied = {"PUT"}
    hint("must allow it", 5, "may not do this in bucket bkt", AWS_SESSION_TOKEN="new")
    server.store.denied = set()
    bed.ok("push", "r", PLACE, env={"AWS_SESSION_TOKEN": "new"})
    bed.refused(3, "no bucket other", "push", "r", "s3://other/x")
    bed.refused(2, "expected s3://", "push", "r", "/tmp/x")
    bed.refused(2, "not the name of a bucket", "push", "r", "s3:///x")
    bed.refused(2, "single slashes", "push", "r", "s3://bkt/a//b")
    bed.refused(2, "endpoint", "ls", PLACE, env={"AWS_ENDPOINT_URL": "ftp://x"})
    bed.refused(2, "BRUMATE_S3_PART_MIB", "ls", PLACE, env={"BRUMATE_S3_PART_MIB": "1"})
    bed.refused(2, "which checkpoint", "pull", "s3://bkt")
    bed.refused(3, "no checkpoint nothing", "pull", PLACE + "/nothing")
    server.fault("GET", "list-type", "half-xml", times=9)
    bed.refused(9, "list: no XML", "ls", PLACE, env={"AWS_MAX_ATTEMPTS": "2", "AWS_SESSION_TOKEN": "new"})
    with server.store.lock:
        server.store.faults.clear()
    closed = Server()
    closed.__exit__()
    result = bed.cli("ls", PLACE, env={"AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed.port}", "AWS_MAX_ATTEMPTS": "2"})
    expect(result.code == 1 and "tried 2 times" in result.err, result.why())


@with_server
def settings_from_files(bed, server):
    hand_made(bed, "s", {"f": b"data"})
    home = os.path.join(bed.dir, "home")
    os.makedirs(os.path.join(home, ".aws"))
    secret = server.store.keys["AKIDTEST"]
    with open(os.path.join(home, ".aws", "credentials"), "w", encoding="utf-8") as file:
        file.write(f"# keys\n[default]\naws_access_key_id = NONE\naws_secret_access_key = NONE\n\n[team]\n"
                   f"aws_access_key_id=AKIDTEST\naws_secret_access_key = {secret}\n")
    with open(os.path.join(home, ".aws", "config"), "w", encoding="utf-8") as file:
        file.write(f"[profile team]\nregion = {server.store.region}\nendpoint_url = http://localhost:{server.port}/\n"
                   "s3 =\n  addressing_style = virtual\n")
    empty = {name: "" for name in settings(server) if name.startswith("AWS_")}
    env = {**empty, "HOME": home, "AWS_PROFILE": "team", "AWS_EC2_METADATA_DISABLED": "true"}
    bed.ok("push", "s", PLACE, env=env)
    expect(any(entry[1].startswith("/team a/") for entry in server.taken()), "not addressed by the host's name")
    expect(bed.ok("ls", PLACE, "-q", env=env).out == "s\n", "ls")
    # What a machine and a container are given.
    server.store.metadata = json.dumps({"AccessKeyId": "AKIDTEST", "SecretAccessKey": secret, "Token": "given"})
    server.store.tokens, server.store.needs_token = {"given": True}, True
    here = f"http://127.0.0.1:{server.port}"
    env = {**settings(server), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "",
           "AWS_EC2_METADATA_SERVICE_ENDPOINT": here}
    expect(bed.ok("ls", PLACE, "-q", env=env).out == "s\n", "credentials of the machine")
    env = {**env, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONTAINER_CREDENTIALS_FULL_URI": here + "/container/x",
           "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container-token"}
    expect(bed.ok("ls", PLACE, "-q", env=env).out == "s\n", "credentials of the container")


@as_user
@with_server
def as_a_user(bed, server):
    """Users push, list and bring in with rights and credentials of their own."""
    hand_made(bed, "mine", {"f": b"data"})
    env = {**settings(server), "HOME": bed.dir}
    bed.ok("push", "mine", PLACE, env=env)
    expect(bed.ok("ls", PLACE, "-q", env=env).out == "mine\n", "what was pushed is not listed")
    bed.ok("rm", "--checkpoint", "mine")
    bed.ok("pull", PLACE + "/mine", env=env)
    expect(os.stat(os.path.join(bed.store(), "mine")).st_uid == bed.uid, "what was pulled is not the user's")
    bed.fails(5, "ls", PLACE, env={**env, "AWS_ACCESS_KEY_ID": ""})


@case
def a_server_of_the_distribution(bed):
    """Where the machine has another server that speaks S3, that one too."""
    moto = shutil.which("moto_server")
    if not moto:
        raise Skipped("no S3 server is installed (python3-moto has one)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Program([moto, "-H", "127.0.0.1", "-p", str(port)], os.path.join(bed.dir, "moto.out"))
    try:
        program.log.wait_for("Running on", 60)
        bed.own.update({"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
                        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "NO_PROXY": "*", "BRUMATE_S3_PART_MIB": "5"})
        made = run(["curl", "-sS", "--noproxy", "*", "-X", "PUT", f"http://127.0.0.1:{port}/bkt"])
        expect(made.code == 0, made.why())
        hand_made(bed, "m", {"big": os.urandom(11 * MIB), "deep/p": os.urandom(100), "small": b"s"})
        before = files_of(image(bed, "m"))
        bed.ok("push", "m", PLACE)
        bed.ok("rm", "m")
        bed.ok("pull", PLACE + "/m")
        expect(files_of(image(bed, "m")) == before, "not the same")
        bed.ok("rm", PLACE + "/m")
    finally:
        program.end()


main()
