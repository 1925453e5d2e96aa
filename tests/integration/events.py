#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `brumate events` tells of jobs, from files that shims and commands append to."""

import json
import os
import re
import signal

from cases import EXIT_NOT_FOUND, EXIT_USAGE, case, expect, main

FULL_BYTES = 4 << 20


def events(bed, *args):
    return [json.loads(line) for line in bed.ok("events", "--format", "json", *args).out.splitlines()]


def kinds(found):
    return [event["event"] for event in found if event["event"] != "state"]


def path_of(bed):
    return os.path.join(bed.own["BRUMATE_STATE_DIR"], "events.jsonl")


@case
def a_life_is_told(bed):
    job, _ = bed.counter(name="told")
    bed.counter(name="other")
    store = bed.store()
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.fault("checkpoint.criu.begin", "error:5")
    bed.cli("checkpoint", job, "--leave-running")
    expect(not bed.disarm(), "the fault point was not passed")
    bed.ok("checkpoint", job, "--leave-running", "--name", "one")
    bed.ok("checkpoint", job, "--every", "1h")
    bed.ok("checkpoint", job, "--every", "0")
    bed.ok("kill", "--signal", "KILL", job)
    bed.ok("rm", "--job", job)
    found = events(bed, "told")
    expect(kinds(found) == ["created", "started", "suspend", "resume", "failed", "checkpoint", "schedule", "schedule",
                            "exited", "removed"], kinds(found))
    expect(all(e["job"] == job and e["name"] == "told" for e in found), found)
    expect([e["time"] for e in found] == sorted(e["time"] for e in found), "not in the order of time")
    told = {event["event"]: event for event in found}
    one = told["checkpoint"]
    expect(one["checkpoint"] == "one" and one["path"] == f"{store}/one" and one["seconds"] > 0, one)
    expect(one["gpu_bytes"] >= 16 << 20 and one["image_bytes"] > 0 and one["gpus"][0]["bytes"] > 0, one)
    expect(told["failed"]["operation"] == "checkpoint" and "criu" in told["failed"]["reason"], told["failed"])
    expect(told["exited"]["exit_code"] == 128 + signal.SIGKILL and told["exited"]["from"] == "running", told["exited"])
    states = [e["state"] for e in found if "state" in e]
    expect(states[:5] == ["running", "suspending", "suspended", "resuming", "running"], states)
    expect(events(bed, job[:4]) == found, "another answer by the beginning of the id")
    expect({e["name"] for e in events(bed)} == {"told", "other"}, "not of all jobs")


@case
def lines_for_people(bed):
    job, _ = bed.counter(name="seen")
    bed.ok("suspend", job)
    lines = bed.ok("events").out.splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    expect(all(re.match(rf"{stamp}  {job}  seen  \w+", line) for line in lines), lines)
    expect(any(re.search(r"  state  running -> suspending$", line) for line in lines), lines)
    expect(any(re.search(r"  suspend  [\d.]+ \w?i?B in \S", line) for line in lines), lines)
    expect(bed.ok("events", "--since", "1h").out.splitlines() == lines, "not all of the last hour")
    for since in ("2037-01-01", "2037-01-01 20:15", "2037-01-01T00:00:00Z"):
        expect(bed.ok("events", "--since", since).out == "", f"something since {since}")


@case
def mistakes_are_told(bed):
    bed.fails(EXIT_NOT_FOUND, "events", "nobody")
    why = bed.fails(EXIT_USAGE, "events", "--since", "yesterdayish").err
    expect("yesterdayish" in why and "10m" in why, why)


@case
def followed_over_a_new_file(bed):
    job, _ = bed.counter(name="first")
    path = path_of(bed)
    filler = json.dumps({"time": "2026-01-01T00:00:00.000Z", "event": "state", "job": "00000000", "name": "filler"})
    with open(path, "a", encoding="utf-8") as file:
        file.write((filler + "\n") * (FULL_BYTES // len(filler) + 1))
    follower = bed.spawn("events", "--follow", "--since", "1h", "--format", "json")
    told = [json.loads(follower.process.stdout.readline()) for _ in range(2)]
    expect(kinds(told) == ["created", "started"], told)
    bed.ok("suspend", job)
    for _ in range(3):
        told.append(json.loads(follower.process.stdout.readline()))
    expect([e.get("state") for e in told[2:]] == ["suspending", "suspended", None], told[2:])
    expect(os.path.getsize(path) < FULL_BYTES <= os.path.getsize(path + ".1"), "no new file was begun")
    bed.ok("resume", job)
    for _ in range(3):
        told.append(json.loads(follower.process.stdout.readline()))
    expect(kinds(told) == ["created", "started", "suspend", "resume"], kinds(told))
    follower.signal(signal.SIGINT)
    code, rest, err = follower.end()
    expect((code, rest, err) == (0, "", ""), (code, rest, err))
    expect(events(bed, "first") == told, "what was followed is not what stands in the files")


@case
def what_cannot_be_written_fails_nothing(bed):
    path = path_of(bed)
    os.mkdir(path)
    job, log = bed.counter(name="quiet")
    bed.ok("suspend", job)
    os.rmdir(path)
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    found = events(bed)
    expect(found[0].get("missed", 0) >= 3 and found[0]["state"] == "resuming", found[0])
    expect(all("missed" not in event for event in found[1:]), found)


@case
def a_full_disk_is_left_to_records(bed):
    bed.own["BRUMATE_STATE_DIR"] = bed.tmpfs("24m")
    job, log = bed.counter(name="full")
    before, filler = events(bed), os.path.join(bed.own["BRUMATE_STATE_DIR"], "filler")
    with open(filler, "wb") as file:
        room = os.statvfs(file.fileno())
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - (512 << 10))
    bed.ok("suspend", job)
    bed.ok("resume", job)
    bed.expect_whole(job, log)
    expect(events(bed) == before, f"written all the same: {events(bed)[len(before):]}")
    os.unlink(filler)
    bed.ok("suspend", job)
    after = events(bed)[len(before):]
    expect(after and after[0].get("missed", 0) >= 2, f"not a word of those that are missing: {after}")
    bed.ok("resume", job)
    bed.expect_whole(job, log)


@case
def half_a_line_harms_no_other(bed):
    job, _ = bed.counter(name="whole")
    before = events(bed)
    with open(path_of(bed), "a", encoding="utf-8") as file:
        file.write('{"time":"2026-')
    bed.ok("suspend", job)
    after = events(bed)
    expect(after[:len(before)] == before and kinds(after) == ["created", "started", "suspend"], after)


if __name__ == "__main__":
    main()
