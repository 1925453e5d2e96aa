#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lines that people type by mistake, a table of them: each ends in the exit code of its kind with one line that says why, prints
nothing else, and touches no job, no checkpoint and no file."""

import hashlib
import json
import os
import shlex
import stat

from cases import EXIT_BAD_IMAGE, EXIT_BUSY, EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, as_user, case, expect, main

# runs, sleeps (suspended), gone (exited), away (checkpointed as "kept") and "first", a checkpoint of runs, are there. DIR is a
# directory that exists, FILE a file, NONE a path that does not.
LINES = {
    EXIT_USAGE: """
        run
        run --
        run --name
        run --name '' -- true
        run --name a/b -- true
        run --name -x -- true
        run --name 'two words' -- true
        run --data-path gpu -- true
        run --managed device -- true
        run --managed host --data-path driver -- true
        run --wake --data-path driver -- true
        run --label team -- true
        run --label =x -- true
        run --label a=1 --label a=2 -- true
        run --priority high -- true
        run --priority 1001 -- true
        run --priority 1.5 -- true
        run --hook NONE -- true
        run --hook DIR -- true
        run --format yaml -- true
        run --example=yes
        ps runs
        ps --sort size
        ps --columns
        ps --columns ''
        ps --columns name,,state
        ps --columns name,state;
        ps --filter running
        ps --filter state
        ps --filter state=asleep
        ps --filter colour=red
        ps --format csv
        ps --all=yes
        ps -z
        ps -- runs
        logs
        logs runs sleeps
        logs runs --tail -5
        logs runs --tail 0x10
        logs runs --since never
        logs runs --since 2026-13-40
        events --format text
        wait
        wait runs sleeps
        wait runs --timeout soon
        wait runs --timeout -1
        kill
        kill --signal 99 runs
        kill --signal SIGNOTHING runs
        kill --signal '' runs
        kill --grace long runs
        kill --all runs
        kill -9 runs
        rm
        rm --ended gone
        rm --job --checkpoint gone
        rm --ended --checkpoint
        rm --dir '' first
        release
        release --all
        suspend
        suspend --all runs
        suspend --pid 1x
        suspend --pid 0
        suspend --pid -1
        suspend --pid 99999999999999999999
        suspend --pid
        suspend --timeout 10x runs
        suspend --timeout '' runs
        suspend --wait forever runs
        suspend --dry-run=maybe runs
        suspend --park --live runs
        suspend --pid 1 runs
        suspend runs --dir DIR
        suspend runs --forse
        suspend ''
        resume
        resume --all sleeps
        resume --gpu-map 0 sleeps
        resume --gpu-map 0=1,0=1 sleeps
        resume --gpu-map a=b sleeps
        resume --gpu-map = sleeps
        resume --gpu-map 0=99 sleeps
        swap
        swap runs
        swap runs sleeps gone
        swap runs runs
        prune --keep-within 5
        checkpoint
        checkpoint --name
        checkpoint --name a/b runs
        checkpoint --name .hidden runs
        checkpoint --name .. runs
        checkpoint --name same runs sleeps
        checkpoint --every 10 runs
        checkpoint --every often runs
        checkpoint --every -1h runs
        checkpoint --every 1ms runs
        checkpoint --keep-last 3 runs
        checkpoint --every 1h --keep-last 0 runs
        checkpoint --every 1h --keep-last many runs
        checkpoint --every 1h --keep-within 5 runs
        checkpoint --compress zip runs
        checkpoint --compress= runs
        checkpoint --dir= runs
        checkpoint --self runs
        checkpoint --oci DIR runs
        checkpoint --output FILE runs
        checkpoint --rehearse runs
        checkpoint --all runs
        restore
        restore --all first
        restore --job --checkpoint first
        restore --gpu-map 0-1 first
        restore --name a/b first
        restore --bundle DIR first
        restore --timeout 5parsecs first
        ls /tmp
        ls --sort name
        ls s3://
        ls s3:
        inspect
        inspect first kept
        inspect --job --checkpoint first
        inspect --restore --needs --format xml first
        diff first
        diff first kept first
        verify
        verify --all first
        rehearse
        export
        export first kept
        import one two
        push first
        push first s3://
        push first /tmp/x
        pull
        pull first
        pull s3://bucket
        prune
        prune --keep-last -1
        prune --keep-last 1k
        prune --keep-within week
        prune --leftovers --keep-last 1
        pin
        pin --remove
        doctor runs
        doctor --job runs --pid 1
        doctor --pid none
        version 2
        completion
        completion tcsh
        help nosuchverb
        set
        set checkpoint
        set checkpoint node:
        set checkpoint :runs
        set checkpoint runs runs
        set checkpoint --name -x runs
        set checkpoint --name .. runs
        set checkpoint --via '' runs
        set checkpoint --timeout x runs
        set restore
        set restore nosuch other
        set restore nosuch n1=
        set restore nosuch =n2
        set restore --leave-running nosuch
        set restore --name x nosuch
        set restore ../first
        set rm
        set rm --force first
        set rm ../..
        set ls runs
        set ls --name x
        set erase first
        serve runs
        serve --idle-after '' --dry-run
        serve --idle-after -1s --dry-run
        serve --label =x --dry-run
        serve --label 'a b=c' --dry-run
        share
        share runs --label a=b
        share --slice 0 runs
        share --slice x runs
        share --label =x --dry-run
        checkpoint --wake --every 1h runs
        checkpoint --wait 5s --every 1h runs
        k8s
        k8s delete pod
        k8s watch pod
        k8s watch --interval 0
        k8s checkpoint --namespace A_B pod
        k8s checkpoint ../pod
        k8s checkpoint --server http://x pod
        k8s suspend --oci DIR pod
        k8s suspend --timeout x pod
        release ''
        release --format xml runs
        rehearse --timeout x first
        rehearse first kept
        prune --leftovers --job runs
        prune --keep-last 0
        prune --keep-within 0
        pin --remove fir
        pin ''
        doctor --slurm --job runs
        doctor --slurm --pid 1
        doctor --slurm --simulated
        checkpoint --every 0 --keep-last 3 runs
        checkpoint --every 1h --dry-run runs
        checkpoint --wake --leave-running sleeps
        ps --filter gpu=
        ps --filter label=
        ps --filter name=
        swap --timeout soon runs sleeps
        top --all
        bench --pieces 64M-1M
        bench --no-checkpoint --dir DIR
        metrics --listen 127.0.0.1:
        metrics --listen 127.0.0.1:0
        metrics --listen ::1:9100
        metrics --listen 9100
        metrics --listen 127.0.0.1:99999
        metrics --listen :http
        metrics --textfile ''
        top runs
        Suspend runs
        suspned runs
        --verison
        -x
        ''
        """,
    EXIT_NOT_FOUND: """
        logs nosuch
        logs 'no such'
        events nosuch
        events runs nosuch
        share nosuch
        share runs nosuch
        set checkpoint nosuch
        set checkpoint runs nosuch
        set restore nosuch
        set rm first
        pin first nosuch kept
        release runs,sleeps
        rehearse --dir NONE first
        restore --all --dir NONE
        metrics --textfile NONE/x.prom
        wait nosuch
        kill nosuch
        kill runs nosuch
        rm nosuch
        rm --job first
        rm --checkpoint runs
        rm gone nosuch
        release nosuch
        suspend nosuch
        suspend RUNS
        suspend run
        suspend -- --all
        suspend runs nosuch
        suspend nobody/runs
        suspend runs/
        suspend ../runs
        suspend --pid 4194304
        resume nosuch
        resume sleeps nosuch
        swap runs nosuch
        swap nosuch sleeps
        checkpoint nosuch
        checkpoint --every 1h runs nosuch
        checkpoint --dir NONE/store runs
        run --log DIR/none/log -- true
        restore --job sleeps
        swap gone sleeps
        swap runs gone
        restore nosuch
        restore --job nosuch
        restore --dir NONE first
        restore kept nosuch
        inspect nosuch
        inspect first/manifest
        inspect --dir NONE first
        diff first nosuch
        verify nosuch
        verify first nosuch
        rehearse nosuch
        export nosuch
        import NONE
        push nosuch s3://bucket/prefix
        pin nosuch
        pin first nosuch
        prune --job nosuch --keep-last 1
        doctor --job nosuch
        ls --dir NONE
        ls --job nosuch
        """,
    EXIT_BUSY: """
        run --name runs -- true
        run --name gone -- true
        suspend gone
        suspend away
        share gone
        share runs away
        set checkpoint gone
        set checkpoint runs away
        resume gone
        resume away
        checkpoint gone
        checkpoint away
        checkpoint --name first runs
        checkpoint --name kept sleeps
        restore runs
        restore first
        rm runs
        rm sleeps
        """,
    EXIT_BAD_IMAGE: """
        import FILE
        """,
    EXIT_FAILED: """
        ls --dir FILE
        import DIR
        run --log DIR -- true
        verify --all --dir DIR
        checkpoint --dir FILE runs
        """,
}


def lines():
    for code, block in LINES.items():
        for line in block.strip().splitlines():
            yield code, line.strip()


# What shims write by themselves; and in a job's record, that an operation was refused.
OF_SHIMS = ("shim.log", "shim.sock", "keeper.lock", "log.marks", "job.json.spare")
OF_REFUSALS = ("message", "sequence")


def digest(path):
    with open(path, "rb") as file:
        data = file.read()
    if os.path.basename(path) == "job.json":
        data = json.dumps({key: value for key, value in json.loads(data).items() if key not in OF_REFUSALS}, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def digests(bed):
    """All that there is under the state directory and beside it. The record of what happened is not."""
    found = {}
    for top in (bed.own["BRUMATE_STATE_DIR"], os.path.join(bed.dir, "there")):
        for base, dirs, files in os.walk(top):
            for name in files + dirs:
                path = os.path.join(base, name)
                if name in OF_SHIMS or name.startswith(("events", "counts")):
                    continue
                found[path] = digest(path) if stat.S_ISREG(os.lstat(path).st_mode) else ""
    return found


def each_is_refused(bed):
    runs, log = bed.counter(name="runs", mib=16)
    sleeps, _ = bed.counter(name="sleeps", mib=16)
    away, _ = bed.counter(name="away", mib=16)
    gone = bed.run(["true"], name="gone")
    bed.cli("wait", "gone")
    bed.ok("checkpoint", "--leave-running", "--name", "first", "runs")
    bed.ok("checkpoint", "--name", "kept", "away")
    bed.ok("suspend", "sleeps")
    there = os.path.join(bed.dir, "there")
    os.makedirs(os.path.join(there, "dir"))
    with open(os.path.join(there, "file"), "w", encoding="utf-8") as file:
        file.write("not a checkpoint\n")
    os.chown(there, *bed.owner())
    os.chown(os.path.join(there, "dir"), *bed.owner())
    before, wrong = digests(bed), []
    for code, line in lines():
        words = [word.replace("DIR", f"{there}/dir").replace("FILE", f"{there}/file").replace("NONE", f"{there}/none")
                 for word in shlex.split(line)]
        done = bed.cli(*words, env={"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"})
        told = [text for text in done.err.splitlines() if text.startswith("brumate: ")]
        after = digests(bed)
        if done.code != code:
            wrong.append(f"{line}: exit {done.code}, not {code}: {done.err.strip()!r}")
        elif done.out or not told:
            wrong.append(f"{line}: prints {done.out!r} and {done.err!r}")
        if after != before:
            wrong.append(f"{line}: touched {[path for path in {**before, **after} if before.get(path) != after.get(path)]}")
            before = after
    states = {job: bed.state(job) for job in (runs, sleeps, away, gone)}
    if list(states.values()) != ["running", "suspended", "checkpointed", "exited"]:
        wrong.append(f"the jobs are {states}")
    expect(len(bed.list("ps", "jobs", "--all")) == 4, "another job is there")
    expect(not wrong, "\n  ".join([f"{len(wrong)} of {len(list(lines()))} lines:", *wrong]))
    expect(len(list(lines())) >= 150, "there are fewer lines than promised")
    bed.ok("resume", "sleeps")
    bed.expect_whole(runs, log)
    bed.ok("restore", "away")


@case
def each_line_is_refused(bed):
    each_is_refused(bed)


@case
@as_user
def each_line_of_a_user_is_refused(bed):
    each_is_refused(bed)


main()
