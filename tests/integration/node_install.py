#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""packaging/kubernetes/node-install against a directory in the place of a node: whatever comes in between, each file is there as
it was or as it is to be, and what was added can be taken away again."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess

from cases import SOURCE, case, expect, main, read_text, run

SCRIPT = os.path.join(SOURCE, "packaging", "kubernetes", "node-install")
PLUGINS = "/usr/local/libexec/brumate/container-plugin"
BRUMATE = """#!/bin/sh
case $1 in
cdi) echo "{\\"of\\": \\"%(version)s\\", \\"hostPath\\": \\"$BRUMATE_LIBEXEC_DIR/libbrumate-cuda.so\\"}" ;;
doctor) echo "%(doctor)s" ;;
--version) echo "brumate %(version)s" ;;
esac
"""
# Runs a command of the same name, and kills all that runs at the one whose number is in $KILL_AT.
KILLER = """#!/bin/sh
count=$(($(/bin/cat "$COUNT") + 1))
echo "$count" >"$COUNT"
if [ "$count" = "$KILL_AT" ]; then kill -KILL 0; fi
exec "/bin/${0##*/}" "$@"
"""
COMMANDS = ("cat", "cp", "ln", "mkdir", "mv", "rm", "rmdir", "sync")


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def looks(folder):
    """{path: what it is}: two of them are the same if nothing in between was changed."""
    found = {}
    for base, dirs, files in os.walk(folder):
        for name in (*dirs, *files):
            path = os.path.join(base, name)
            mode = os.lstat(path).st_mode
            inner = os.readlink(path) if stat.S_ISLNK(mode) else read_text(path) if stat.S_ISREG(mode) else None
            found[os.path.relpath(path, folder)] = (oct(mode), inner)
    return found


class Node:
    """A node with an engine, and versions of brumate to be installed on it."""

    def __init__(self, bed, host=None):
        self.dir, self.host = bed.dir, host or os.path.join(bed.dir, "host")
        for name in ("usr/local/bin", "usr/sbin", "etc/criu", "etc/cdi"):
            os.makedirs(os.path.join(self.host, name))
        self.write("etc/criu/runc.conf", "tcp-established\n# no line feed at the end", 0o640)
        self.write("usr/local/bin/of-the-operator", "#!/bin/sh\n")
        self.before = looks(self.host)

    def path(self, name):
        return os.path.join(self.host, name)

    def write(self, name, text, mode=0o644):
        return write(self.path(name), text, mode)

    def tree(self, version, doctor="ok kernel", kib=1):
        """What an image has; each version has a file that the others have not."""
        tree = os.path.join(self.dir, f"tree-{version}")
        libexec = os.path.join(tree, "libexec", "brumate")
        write(os.path.join(tree, "bin", "brumate"), BRUMATE % {"version": version, "doctor": doctor}, 0o755)
        for name in ("brumate-container", "container-plugin/brumate_plugin.so", "criu/criu", f"only-{version}"):
            write(os.path.join(libexec, name), f"{name} of {version}\n" * (kib * 32), 0o755)
        write(os.path.join(libexec, "libbrumate-cuda.so"), "the same in all\n")
        return tree

    def command(self, mode, tree):
        return [SCRIPT, mode], {**os.environ, "HOST_ROOT": self.host, "BRUMATE_TREE": tree}

    def call(self, mode, tree):
        argv, env = self.command(mode, tree)
        return run(argv, env=env)

    def ok(self, mode, tree):
        done = self.call(mode, tree)
        expect(done.code == 0 and not done.err, done.why())
        return done.out

    def refused(self, text, mode, tree):
        """It fails with one line, and changes nothing."""
        before = looks(self.host)
        done = self.call(mode, tree)
        expect(done.code != 0, f"{mode} was not refused: {done.out}")
        expect(text in done.err and done.err.count("\n") == 1, f"said: {done.err}")
        expect(looks(self.host) == before, "a refused installation changed something")

    def is_installed(self, tree):
        self.ok("check", tree)
        self.has_nothing_half_done()

    def has_nothing_half_done(self):
        expect(not [path for path in looks(self.host) if ".brumate-new" in path], "files that were not renamed are left")

    def is_as_before(self):
        now = looks(self.host)
        expect(now == self.before, f"differs in {sorted(set(now.items()) ^ set(self.before.items()), key=str)[:4]}")


@case
def installs_once_and_removes(bed):
    node = Node(bed)
    tree = node.tree("1")
    node.refused("nothing is installed", "check", tree)
    node.ok("install", tree)
    node.is_installed(tree)
    expect(read_text(node.path("etc/criu/runc.conf")).endswith("tcp-established\n# no line feed at the end"), "lines are lost")
    expect(f"\nlibdir {PLUGINS}\n" in read_text(node.path("etc/criu/crun.conf")), "crun has no plugin")
    expect(os.readlink(node.path("usr/local/sbin/criu")) == "/usr/local/libexec/brumate/criu/criu", "no CRIU")
    expect('"/usr/local/libexec/brumate/libbrumate-cuda.so"' in read_text(node.path("etc/cdi/brumate.json")), "paths of the image")
    times = {path: os.lstat(node.path(path)).st_ctime_ns for path in looks(node.host)}
    node.ok("install", tree)
    again = {path: os.lstat(node.path(path)).st_ctime_ns for path in looks(node.host)}
    expect(times == again, "a second installation changes something")
    node.ok("uninstall", tree)
    node.is_as_before()
    node.ok("uninstall", tree)


@case
def installs_what_was_built(bed):
    """The programs of this build: the specification of their own `brumate cdi` has paths of the node."""
    node, tree = Node(bed), os.path.join(bed.dir, "built")
    libexec = os.path.join(tree, "libexec", "brumate")
    os.makedirs(os.path.join(libexec, "container-plugin"))
    os.makedirs(os.path.join(tree, "bin"))
    shutil.copy(bed.brumate, os.path.join(tree, "bin"))
    shutil.copy(bed.build.library("src/interpose/libbrumate-cuda.so"), libexec)
    shutil.copy(bed.build.program("brumate-container"), libexec)
    argv, env = node.command("install", tree)
    env = bed.build.environment({**env, **bed.own})
    done = run(argv, env=env)
    expect(done.code == 0, done.why())
    spec = read_text(node.path("etc/cdi/brumate.json"))
    expect('"hostPath": "/usr/local/libexec/brumate/libbrumate-cuda.so"' in spec and bed.dir not in spec, spec)
    argv[1] = "check"
    expect("no criu" in run(argv, env=env).out, "without a CRIU anywhere nothing is missing")


@case
def upgrade_and_downgrade(bed):
    node = Node(bed)
    trees = [node.tree("1"), node.tree("2")]
    for old, new in ((trees[0], trees[1]), (trees[1], trees[0])):
        node.ok("install", old)
        expect(node.call("check", new).code == 1, "check takes another version for its own")
        node.ok("install", new)
        node.is_installed(new)
        left = [path for path in looks(node.host) if "only-" in path]
        expect(left == [f"usr/local/libexec/brumate/only-{new[-1]}"], f"of two versions is left: {left}")
    node.ok("uninstall", trees[0])
    node.is_as_before()


@case
def what_drifts_is_found_and_mended(bed):
    node = Node(bed)
    tree = node.tree("1")
    node.ok("install", tree)
    for path, text in (("usr/local/libexec/brumate/brumate-container", "other"), ("etc/cdi/brumate.json", "{}"),
                       ("etc/criu/crun.conf", "tcp-established\n")):
        node.write(path, text)
        expect(f"/{path} " in node.call("check", tree).out, f"that {path} differs is not found")
    os.unlink(node.path("usr/local/sbin/criu"))
    expect("no criu" in node.call("check", tree).out, "that CRIU is gone is not found")
    node.ok("install", tree)
    node.is_installed(tree)
    node.write("usr/local/libexec/brumate/brumate-container", "of the operator")
    expect("brumate-container is kept" in node.ok("uninstall", tree), "a file of the operator is removed without a word")
    expect(read_text(node.path("usr/local/libexec/brumate/brumate-container")) == "of the operator", "a file is lost")
    expect(read_text(node.path("etc/criu/crun.conf")) == "tcp-established\n", "the operator's line is lost")


@case
def what_cannot_be_looked_at_is_not_taken_for_gone(bed):
    """Files that are not seen are not removed, and a configuration that cannot be read is not written anew."""
    node = Node(bed)
    tree, broken = node.tree("1"), node.tree("2")
    node.ok("install", tree)
    os.rename(os.path.join(broken, "libexec", "brumate"), os.path.join(broken, "libexec", "elsewhere"))
    for mode in ("install", "check"):
        node.refused("cannot be listed", mode, broken)
    for name in ("etc/criu/runc.conf", "usr/local/.brumate-installed", "etc/cdi/brumate.json"):
        os.rename(node.path(name), node.path(name) + ".away")
        os.mkdir(node.path(name))
        for mode in ("install", "check", "uninstall"):
            node.refused(f"/{name} cannot be read: Is a directory", mode, tree)
        os.rmdir(node.path(name))
        os.rename(node.path(name) + ".away", node.path(name))
    tools = os.path.join(bed.dir, "tools")
    write(os.path.join(tools, "sed"), f'#!/bin/sh\ncase $1 in */d) echo "read error: Input/output error" >&2; exit 4 ;; esac\nexec {shutil.which("sed")} "$@"\n', 0o755)
    env = {**node.command("uninstall", tree)[1], "PATH": tools + ":" + os.environ["PATH"]}
    before = looks(node.host)
    done = run([SCRIPT, "uninstall"], env=env)
    expect(done.code != 0 and "Input/output error" in done.err, done.why())
    expect(looks(node.host)["etc/criu/runc.conf"] == before["etc/criu/runc.conf"], "the operator's configuration is lost")
    node.ok("uninstall", tree)
    node.is_as_before()


@case
def check_tells_of_the_kernel(bed):
    node = Node(bed)
    tree = node.tree("1", doctor="fail  kernel             kernel 4.4 is too old")
    node.ok("install", tree)
    done = node.call("check", tree)
    expect(done.code == 1 and done.out == "kernel 4.4 is too old\n", done.why())


def killed(node, mode, tree, number):
    """Runs it to its end, or until its command of that number; whether that came."""
    shims = os.path.join(node.dir, "shims")
    for name in COMMANDS:
        write(os.path.join(shims, name), KILLER, 0o755)
    argv, env = node.command(mode, tree)
    count = write(os.path.join(node.dir, "count"), "0\n")
    env.update({"PATH": f"{shims}:{env['PATH']}", "COUNT": count, "KILL_AT": str(number)})
    process = subprocess.run(argv, env=env, start_new_session=True, capture_output=True, timeout=120, check=False)
    expect(process.returncode in (0, -signal.SIGKILL), f"{mode}: {process.returncode}: {process.stderr}")
    return process.returncode != 0


def is_whole(node, *known):
    """Each file is as one of those looks had it, and one of the operator's is there at all."""
    for path, look in looks(node.host).items():
        if ".brumate-" not in path and look[1] is not None:
            expect(look in [other.get(path) for other in known], f"{path} is none of the versions: {look}")
    gone = [path for path in node.before if not os.path.lexists(node.path(path))]
    expect(not gone, f"gone: {gone}")


def kill_and_go_on(node, mode, new, begin, looks_known, numbers):
    """Kills it before its Nth command that changes something, for each N: what is left is whole, and the next one carries on,
    or takes all back. True when it came to its end."""
    for number in numbers:
        shutil.rmtree(node.host)
        shutil.copytree(begin, node.host, symlinks=True)
        if not killed(node, mode, new, number):
            return expect(number > 10, f"{mode} was killed only {number - 1} times")
        is_whole(node, *looks_known)
        if number % 4 < 2:
            node.ok("install", new)
            node.is_installed(new)
        else:
            node.ok("uninstall", new)
            node.is_as_before()
    return expect(False, f"{mode} has no end")


@case
def killed_anywhere(bed):
    """On a bare node and one with an older version, in turn, and when it takes all back."""
    node = Node(bed)
    old, new = node.tree("1"), node.tree("2")
    states = [node.before]
    for name, mode, tree in (("bare", "uninstall", old), ("new", "install", new), ("old", "install", old)):
        node.ok(mode, tree)
        shutil.copytree(node.host, os.path.join(bed.dir, name), symlinks=True)
        states.append(looks(node.host))
    for mode, begin, first in (("install", "bare", 1), ("install", "old", 2), ("uninstall", "new", 1)):
        kill_and_go_on(node, mode, new, os.path.join(bed.dir, begin), states, range(first, 1000, 2))


@case
def several_at_once(bed):
    node = Node(bed)
    trees = [node.tree("1"), node.tree("2")]
    started = []
    for i in range(8):
        argv, env = node.command("uninstall" if i % 4 == 3 else "install", trees[i % 2])
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process in started:
        out, err = process.communicate(timeout=120)
        expect(process.returncode == 0 and not err, f"{process.args[1]}: {process.returncode}: {out}{err}")
    node.ok("install", trees[0])
    node.is_installed(trees[0])
    node.ok("uninstall", trees[0])
    node.is_as_before()


@case
def stays_until_it_is_told(bed):
    """As the container of the DaemonSet: it does not keep others from their work, and ends at once."""
    node = Node(bed)
    tree = node.tree("1")
    argv, env = node.command("run", tree)
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        expect("1 is on this node" in process.stdout.readline(), "it does not say that it has installed")
        node.is_installed(tree)
        node.ok("install", node.tree("2"))
        process.send_signal(signal.SIGTERM)
        # The pipe has no other end then: no process of it is left.
        expect(process.communicate(timeout=10)[0] == "" and process.returncode == 0, f"ended with {process.returncode}")


@case
def what_is_the_operators_stays(bed):
    node = Node(bed)
    tree = node.tree("1")
    for path in ("usr/local/bin/brumate", "etc/cdi/brumate.json"):
        node.write(path, "of the operator")
        node.refused(f"/{path} is on this node, and not by node-install", "install", tree)
        os.unlink(node.path(path))
    for text, why in (("libdir /opt/plugins\n", "has a libdir of its own, /opt/plugins"),
                      ("# brumate: end\n", "without the other")):
        node.write("etc/criu/runc.conf", text)
        node.refused(why, "install", tree)
    os.unlink(node.path("etc/criu/runc.conf"))
    os.symlink("/elsewhere", node.path("etc/criu/runc.conf"))
    node.refused("is a symbolic link", "install", tree)
    os.unlink(node.path("etc/criu/runc.conf"))
    # What the operator did by hand, as docs/containers.md has it, is taken as it is, and left.
    node.write("etc/criu/runc.conf", f"libdir {PLUGINS}\n")
    node.write("usr/sbin/criu", "a CRIU")
    before = looks(node.host)
    expect("node's own /usr/sbin/criu" in node.ok("install", tree), "the node's own CRIU is not told of")
    expect(read_text(node.path("etc/criu/runc.conf")) == f"libdir {PLUGINS}\n", "the operator's line is doubled")
    node.is_installed(tree)
    node.ok("uninstall", tree)
    expect(looks(node.host) == before, "what the operator did is undone")


@case
def read_only_node(bed):
    """It says so where there is something to do."""
    node = Node(bed, os.path.join(bed.tmpfs("4m"), "host"))
    place, tree = os.path.dirname(node.host), node.tree("1")
    for installed in (False, True):
        if installed:
            node.ok("install", tree)
        expect(run(["mount", "-o", "remount,ro", place]).code == 0, "the file system cannot be made read-only")
        if installed:
            node.ok("install", tree)
            node.is_installed(tree)
            node.refused("Read-only file system", "uninstall", tree)
            node.refused("Read-only file system", "install", node.tree("2"))
        else:
            node.refused("Read-only file system", "install", tree)
        expect(run(["mount", "-o", "remount,rw", place]).code == 0, "the file system cannot be made writable again")


@case
def full_disk(bed):
    """All is written before anything is replaced, so that an older version stays as it is."""
    node = Node(bed, os.path.join(bed.tmpfs("512k"), "host"))
    node.refused("No space left on device", "install", node.tree("big", kib=1024))
    node.is_as_before()
    old = node.tree("1")
    node.ok("install", old)
    node.refused("No space left on device", "install", node.tree("2", kib=1024))
    node.is_installed(old)
    with open(node.path("usr/local/filler"), "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    node.refused("No space left on device", "install", node.tree("3"))
    os.unlink(node.path("usr/local/filler"))
    node.is_installed(old)
    node.ok("uninstall", old)
    node.is_as_before()


@case
def old_c_library(bed):
    node = Node(bed)
    tree = node.tree("1")
    write(os.path.join(tree, "libexec", "brumate", "least-glibc"), "2.36\n")
    node.refused("no glibc 2.36 or newer", "install", tree)
    node.write("usr/lib64/libc.so.6", "\0GLIBC_2.35\0")
    node.refused("no glibc 2.36 or newer", "install", tree)
    node.write("usr/lib64/libc.so.6", "\0GLIBC_2.35\0GLIBC_2.36\0")
    node.ok("install", tree)


@case
def wrong_words(bed):
    node = Node(bed)
    node.refused("usage: ", "remove", node.tree("1"))
    shutil.rmtree(node.path("etc/cdi"))
    node.refused("etc/cdi is no directory", "install", node.tree("1"))


main()
