#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `brumate inspect --restore` says of a checkpoint: it is compared with what was so when it was saved, and damaged
and hostile images are refused with one line."""

import os
import shutil

from cases import EXIT_BAD_IMAGE, EXIT_PERMISSION, EXIT_UNSUPPORTED, EXIT_USAGE, STEPPING, case, expect, main, read_text, run
from checkpoints import image, manifest_of, seal_again
from criu_images import HEAD_BYTES, change_image, entries_of, number, write_entries

INSPECT = ("inspect", "--restore")

# What it has is known to the test by name.
HOLDER = """
import mmap, os, socket, sys, time
os.chdir(sys.argv[1])
append = open("append", "ab")
both = open("both", "w+b"); both.write(b"x" * 4096); both.flush()
mapped = mmap.mmap(both.fileno(), 4096)
gone = open("gone", "w+"); os.unlink("gone")
bound = socket.socket(socket.AF_UNIX); bound.bind("bound"); bound.listen()
hidden = socket.socket(socket.AF_UNIX); hidden.bind("\\0" + sys.argv[2]); hidden.listen()
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
near = socket.create_connection(server.getsockname()); far = server.accept()[0]
v6 = None
try:
    v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); v6.bind(("::1", 0))
except OSError:
    pass
memory = os.memfd_create("scratch")
child = os.fork()
if not child:
    os.umask(0o077)
    while True:
        time.sleep(1)
print("ready", " ".join(map(str, (child, server.getsockname()[1], near.getsockname()[1], bool(v6)))), flush=True)
""" + STEPPING


def held(bed):
    """A job that holds all of that: (job, log, child, ports, whether there is IPv6)."""
    place = os.path.join(bed.dir, "place")
    os.mkdir(place, 0o755)
    job, log = bed.started(["/usr/bin/python3", "-u", "-c", HOLDER, place, "brumate-" + os.path.basename(bed.dir)], "holder")
    child, *ports, v6 = log.wait_for(r"^ready (\d+) (\d+) (\d+) (True|False)$").groups()
    return job, log, int(child), [int(port) for port in ports], v6 == "True"


def by_path(entries, key="path"):
    return {entry.get(key): entry for entry in entries}


def status_of(pid):
    return dict(line.split(":\t", 1) for line in read_text(f"/proc/{pid}/status").splitlines() if ":\t" in line)


@case
def all_that_a_job_holds(bed):
    job, log, child, ports, v6 = held(bed)
    place = os.path.join(bed.dir, "place")
    command = bed.pid(job)
    was = {pid: status_of(pid) for pid in (command, child)}
    exe = os.readlink(f"/proc/{command}/exe")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    before = sorted(os.listdir(place))
    told = bed.ok(*INSPECT, checkpoint, "--format", "json").json()["restore"]

    processes = by_path(told["processes"], "pid")
    expect(set(processes) >= {command, child}, f"processes {set(processes)}")
    for pid, status in was.items():
        process = processes[pid]
        expect(process["uids"] == [int(word) for word in status["Uid"].split()], f"{pid}: {process['uids']}")
        expect(process["gids"] == [int(word) for word in status["Gid"].split()], f"{pid}: {process['gids']}")
        expect(process["groups"] == sorted(int(word) for word in status["Groups"].split()), f"{pid}: {process['groups']}")
        expect(process["capabilities"]["permitted"] == status["CapPrm"].strip(), f"{pid}: {process['capabilities']}")
        expect(process["executable"] == exe and process["directory"] == place, f"{pid}: {process}")
        expect(process["no_new_privs"] is False and process["seccomp"] == "none", f"{process}")
    expect(processes[child]["umask"] == "0077" and processes[child]["ppid"] == command, f"{processes[child]}")

    files = by_path(f for f in told["files"] if f.get("flags") != "O_RDONLY")
    for name, flags, mode in (("append", "O_WRONLY|O_APPEND", "0644"), ("both", "O_RDWR", "0644"), ("gone", "O_RDWR", "0644")):
        entry = files[os.path.join(place, name)]
        expect((entry["flags"], entry["mode"]) == (flags, mode), f"{entry}")
    expect(files[os.path.join(place, "gone")]["deleted"] == "made anew", "the deleted file")
    expect({f["path"] for f in told["files"] if f.get("written")} == {os.path.join(place, "both")}, f"{told['files']}")
    expect("scratch" in files and files["scratch"]["kind"] == "memfd", "the memfd")

    sockets = {(s["kind"], s.get("address")): s for s in told["sockets"]}
    expect(sockets[("unix", "bound")]["state"] == "listening", f"{list(sockets)}")
    expect(("unix", "@brumate-" + os.path.basename(bed.dir)) in sockets, f"{list(sockets)}")
    server, near = (f"127.0.0.1:{port}" for port in ports)
    expect(any(s["state"] == "listening" and s["address"] == server for s in told["sockets"] if s["kind"] == "inet"), "TCP")
    expect(sockets[("inet", near)]["peer"] == server and sockets[("inet", near)]["state"] == "connected", "a connection")
    expect(not v6 or any(s["protocol"] == "udp" and s["address"].startswith("[::1]:") for s in told["sockets"]), "UDP")

    page = bed.ok(*INSPECT, "holder").out  # a job means its latest checkpoint
    for word in ("Becomes", "Runs", "Opens", "Binds and connects", os.path.join(place, "append"), exe, server):
        expect(word in page, f"the page lacks {word}: {page}")
    expect(sorted(os.listdir(place)) == before, "something was made")
    expect(told["log"] == log.path and told["uid"] == 0, f"{told['log']} {told['uid']}")
    bed.refused(EXIT_USAGE, "either --job or --restore", *INSPECT, "--job", "holder")
    bed.expect_restorable(checkpoint, log)


@case
def an_encrypted_one_wants_its_key(bed):
    key = os.path.join(bed.dir, "key")
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write("5" * 64)
    job, _ = bed.counter("sealed")
    checkpoint = bed.operation("checkpoint", job, "--key-file", key)["checkpoint"]
    bed.refused(EXIT_PERMISSION, "there is no key", *INSPECT, checkpoint)
    told = bed.ok(*INSPECT, checkpoint, "--key-file", key, "--format", "json").json()["restore"]
    expect("doubt" not in told and len(told["processes"]) == 2, f"{told}")


def saved_counter(bed):
    job, _ = bed.counter("train")
    checkpoint = bed.operation("checkpoint", job)["checkpoint"]
    whole = os.path.join(bed.dir, "whole")
    shutil.copytree(image(bed, checkpoint), whole)
    return checkpoint, whole


def put_back(bed, checkpoint, whole):
    shutil.rmtree(image(bed, checkpoint))
    shutil.copytree(whole, image(bed, checkpoint))


@case
def each_damaged_image_is_named(bed):
    checkpoint, whole = saved_counter(bed)
    folder = os.path.join(image(bed, checkpoint), "criu")
    names = [name for name in sorted(os.listdir(folder)) if name.split("-")[0].split(".")[0] in
             ("core", "files", "fs", "mm", "pstree")]
    expect(len(names) > 6, f"{names}")
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 1)
        bed.refused(EXIT_BAD_IMAGE, rf"criu/{name}: damaged", *INSPECT, checkpoint)  # the manifest says otherwise
        seal_again(bed, checkpoint)
        bed.refused(EXIT_BAD_IMAGE, rf"CRIU's image {name} is damaged", *INSPECT, checkpoint)
        put_back(bed, checkpoint, whole)
    for name in ("pstree.img", next(name for name in names if name.startswith("core-"))):
        seal_again(bed, checkpoint, without="criu/" + name)
        bed.refused(EXIT_BAD_IMAGE, rf"CRIU's image {name} is missing", *INSPECT, checkpoint)
        put_back(bed, checkpoint, whole)
    bed.ok(*INSPECT, checkpoint)


@case
def names_do_what_they_like_to_no_terminal(bed):
    """Nor is a path told that no path can be, or one that stands for gigabytes of it."""
    checkpoint, whole = saved_counter(bed)
    files = os.path.join(image(bed, checkpoint), "criu", "files.img")

    def rename(to):
        def change(fields):
            return [(field, wire, to if field == 6 else value) for field, wire, value in fields]
        change_image(files, [3], change, which=lambda fields: any(field == 3 for field, _, _ in fields))
        seal_again(bed, checkpoint)

    rename(b"/tmp/\x1b[2Jred\nOpens /nothing")
    page = bed.ok(*INSPECT, checkpoint).out
    expect("\x1b" not in page and "/tmp/\\x1b[2Jred\\x0aOpens" in page, f"{page!r}")
    put_back(bed, checkpoint, whole)
    rename(b"/" + b"x" * 4096)
    bed.refused(EXIT_BAD_IMAGE, "a name of 4097 bytes", *INSPECT, checkpoint)
    put_back(bed, checkpoint, whole)
    with open(files, "rb") as file:
        data = file.read()
    write_entries(files, data[:HEAD_BYTES], entries_of(data) + entries_of(data)[:1])
    seal_again(bed, checkpoint)
    bed.refused(EXIT_BAD_IMAGE, "files.img is damaged", *INSPECT, checkpoint)


@case
def what_is_told_is_bounded(bed):
    """A few bytes of an image make a row each."""
    checkpoint, _ = saved_counter(bed)
    path = os.path.join(image(bed, checkpoint), "criu", "files.img")
    with open(path, "rb") as file:
        data = file.read()
    timers = (b"\x08\x11\x10" + number(1000000 + i) for i in range(1000000))  # type 17, and an id
    write_entries(path, data[:HEAD_BYTES], entries_of(data) + list(timers))
    seal_again(bed, checkpoint)
    limited = run(["prlimit", f"--as={1 << 30}", bed.brumate, *INSPECT, checkpoint], env=bed.command_env())
    expect(limited.code == 1 and "ask for more than can be listed" in limited.err, limited.why())


@case
def pages_of_another_size_are_refused(bed):
    job, log = bed.counter(mib=16)
    bed.ok("checkpoint", job, "--name", "pages")
    host = manifest_of(bed, "pages")["host"]
    expect(host["page_bytes"] == os.sysconf("SC_PAGESIZE"), f"the manifest says {host}")
    seal_again(bed, "pages", host=host | {"page_bytes": 2 * host["page_bytes"]})
    refused = bed.fails(EXIT_UNSUPPORTED, "restore", "pages")
    expect("KiB, this one has pages of" in refused.err and "page size" in refused.err, refused.why())
    expect(bed.job(job)["state"] == "checkpointed", "the job is not as it was")
    seal_again(bed, "pages", host=host)
    bed.ok("restore", "pages")
    bed.expect_whole(job, log)


main()
