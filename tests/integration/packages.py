#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The packages: built twice to the same bytes, installed into a clean system, and a job run there by root and by a user."""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile

from cases import SOURCE, Skipped, case, expect, main, read_text, run

# A job's life, by whoever runs this. What it waits for is output of the job.
JOB = """set -eu
export BRUMATE_GPU=simulated
job=$1
# Waits for so many lines of the job from now on.
works() { [ "$(timeout 60 brumate logs --tail 1 --follow "$job" | grep -m 4 -c OK)" = 4 ]; }
brumate run --name "$job" -- /usr/libexec/brumate/counter --mib 64 --interval-ms 20
timeout 60 brumate logs --follow "$job" | grep -m 1 'step 1 OK'
brumate suspend "$job"
brumate resume "$job"
works
brumate checkpoint "$job"
brumate restore "$job"
works
brumate kill "$job"
echo demo of "$(id -un)": ok
"""

EM_AARCH64 = 183

MADE = {}
MIRROR_TRIES = 2


def needs(*programs):
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        raise Skipped(f"not installed: {' '.join(missing)}")


def made(key, make):
    """What make() gives, which is made once; a Skipped of it is one of each case that asks."""
    if key not in MADE:
        try:
            MADE[key] = make()
        except Skipped as skipped:
            MADE[key] = skipped
    if isinstance(MADE[key], Skipped):
        raise Skipped(str(MADE[key]))
    return MADE[key]


def scratch():
    """A directory for the whole run, on a disk: a system does not fit into every /tmp in memory."""
    directory = tempfile.TemporaryDirectory(prefix="brumate-packages-", dir="/var/tmp")
    os.chmod(directory.name, 0o755)
    return directory


def place(name):
    return os.path.join(made("scratch", scratch).name, name)


def package(kind, *options, source=SOURCE, date=None):
    """The path of a package that tools/package has just built."""
    env = {**os.environ, **({"SOURCE_DATE_EPOCH": date} if date else {})}
    done = run([os.path.join(source, "tools", "package"), *options, kind], env=env, timeout=800)
    expect(done.code == 0, done.why())
    return done.out.strip()


def from_objects(kind, out="out"):
    """A package of what the build under test has compiled, but for the few files that know the prefix."""
    build = os.path.abspath(os.environ.get("BUILD", os.path.join(SOURCE, "build")))
    beside = os.path.join(os.path.dirname(build), "build-check-package")
    return package(kind, "--build", beside, "--objects", build, "--out", place(out))


def deb():
    needs("dpkg-deb", "dpkg-shlibdeps", "strip")
    return made("deb", lambda: from_objects("deb"))


def amd_deb():
    """What comes with that where CRIU's plugin for AMD's GPUs was built."""
    found = glob.glob(os.path.join(os.path.dirname(deb()), "brumate-amd_*.deb"))
    if not found:
        raise Skipped("CRIU's plugin for AMD's GPUs is not here: tools/amdgpu-provision builds it")
    return found[0]


def rpm():
    needs("rpmbuild", "rpm", "strip")
    return made("rpm", lambda: from_objects("rpm"))


def source_date():
    """What tools/package takes for the time of the sources, for a copy of them without git."""
    if not os.path.exists(os.path.join(SOURCE, ".git")):
        return os.environ.get("SOURCE_DATE_EPOCH") or read_text(os.path.join(SOURCE, "packaging", "source-date")).strip()
    return run(["git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "log", "-1", "--format=%ct"]).out.strip()


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def sources():
    """Where this machine's apt has its own distribution from, as lines of sources.list."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).out.splitlines()
    family = next((words[3] for words in map(str.split, lines) if len(words) == 4 and words[3] in ("Debian", "Ubuntu")), None)
    if not family:
        raise Skipped("apt has no mirror of the distribution")
    keyring = f"/usr/share/keyrings/{family.lower()}-archive-keyring.gpg"
    option = f"[signed-by={keyring}] " if os.path.exists(keyring) else ""
    return "".join(dict.fromkeys(f"deb {option}{uri} {release} {component}\n" for uri, release, component, origin in
                                 map(str.split, lines) if origin == family))


def clean_system():
    """A system with what every one has and what the package depends on, and with one user."""
    needs("mmdebstrap", "apt-get", "setpriv", "unshare", "pivot_root", "dpkg-deb")
    wanted = [run(["dpkg-deb", "-f", path, "Depends"]).out for path in glob.glob(os.path.join(os.path.dirname(deb()), "*.deb"))]
    depends = sorted({word.split("(")[0].strip() for words in wanted for word in words.split(",")} - {"brumate"})
    root = place("root")
    options = ["--variant=essential", "--mode=root", "--quiet", f"--include={','.join([*depends, 'mount'])}",
               "--aptopt=Acquire::Languages \"none\"", "--dpkgopt=force-unsafe-io"]
    for _ in range(MIRROR_TRIES):  # a busy one may let a single file time out
        done = subprocess.run(["mmdebstrap", *options, "", root, "-"], input=sources(), text=True, capture_output=True, check=False)
        if done.returncode == 0:
            break
        shutil.rmtree(root, ignore_errors=True)
    else:
        raise Skipped(f"no clean system can be made of this machine's mirror: {done.stderr.strip()[-300:]}")
    inside(root, "useradd", "--create-home", "alice")
    return root


def inside(root, *command):
    """The Result of a command in that system, which ends with all it started."""
    return run([os.path.join(SOURCE, "tools", "in-root"), "--tmpfs", "/tmp", root, *command], timeout=300)


def ok_inside(root, *command):
    done = inside(root, *command)
    expect(done.code == 0, f"{' '.join(command)[:60]}: exit {done.code}: {(done.out + done.err)[-1500:]}")
    return done


def shows_a_job(root, job):
    """By root, and by a user, whose CRIU has its capability from the file of the launcher."""
    with open(os.path.join(root, "usr", "local", "bin", "job"), "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + JOB)
        os.fchmod(file.fileno(), 0o755)
    expect("demo of root: ok" in ok_inside(root, "/usr/local/bin/job", job).out, "the demo did not reach its end")
    if read_text("/proc/sys/kernel/yama/ptrace_scope").strip() in ("", "0"):
        ok_inside(root, "usermod", "-aG", "brumate-users", "alice")
        expect("demo of alice: ok" in ok_inside(root, "su", "-", "alice", "-c", f"/usr/local/bin/job {job}").out, "that of a user did not")
        ok_inside(root, "gpasswd", "--delete", "alice", "brumate-users")


def is_told_what_is_bundled(path, sbom):
    """Each file of a package, given as {name: content}, is in its SBOM with its digest, and nothing else is."""
    with open(sbom, encoding="utf-8") as file:
        told = json.load(file)
    sums = {f["fileName"].removeprefix("./"): f["checksums"][1]["checksumValue"] for f in told["files"]}
    own = "usr/share/doc/brumate/sbom.spdx.json"
    there = {name: hashlib.sha256(content).hexdigest() for name, content in path.items() if name != own}
    expect(there == sums, f"the SBOM differs in {sorted(set(there.items()) ^ set(sums.items()))[:4]}")
    expect(json.loads(path[own]) == told, "the SBOM beside the package is another one")
    names = {p["name"] for p in told["packages"]}
    if "usr/libexec/brumate/criu/criu" in there:
        expect({"brumate", "criu"} < names, f"packages: {names}")
        files = {f["SPDXID"]: f["fileName"] for f in told["files"]}
        of_criu = [files[r["relatedSpdxElement"]] for r in told["relationships"]
                   if r["spdxElementId"] == "SPDXRef-Package-criu"]
        expect(of_criu == ["./usr/libexec/brumate/criu/bin/criu"], f"of package criu: {of_criu}")


def files_in(tar):
    return {member.name.removeprefix("./"): tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()}


def files_of(path, archive):
    with open(archive, "wb") as file:
        file.write(subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE, check=True).stdout)
    with tarfile.open(archive) as opened:
        return files_in(opened)


@case
def deb_says_what_is_in_it(bed):
    is_told_what_is_bundled(files_of(deb(), os.path.join(bed.dir, "files.tar")), deb().removesuffix(".deb") + ".spdx.json")


def launcher_is_of_its_group(root):
    """Its users have a capability by it, and nobody is of the group by himself."""
    told = ok_inside(root, "stat", "-c", "%A %U %G", "/usr/libexec/brumate/brumate-criu-launch").out.strip()
    expect(told == "-rwxr-x--- root brumate-users", f"the launcher is {told}")
    expect(ok_inside(root, "getent", "group", "brumate-users").out.strip().endswith(":"), "somebody is of the group")


@case
def deb_in_a_clean_system(bed):
    package_of_deb = deb()
    root = made("root", clean_system)
    shutil.copy(package_of_deb, os.path.join(root, "brumate.deb"))
    ok_inside(root, "dpkg", "-i", "/brumate.deb")
    expect("cap_checkpoint_restore=ep" in ok_inside(root, "getcap", "/usr/libexec/brumate/brumate-criu-launch").out,
           "the launcher has no capability")
    ok_inside(root, "getent", "group", "brumate")
    for amd in glob.glob(os.path.join(os.path.dirname(package_of_deb), "brumate-amd_*.deb")):
        shutil.copy(amd, os.path.join(root, "brumate-amd.deb"))
        ok_inside(root, "dpkg", "-i", "/brumate-amd.deb")
        ldd = ok_inside(root, "ldd", "/usr/libexec/brumate/criu-plugin/amd/amdgpu_plugin.so").out
        expect("libdrm_amdgpu" in ldd and "not found" not in ldd, ldd)
        ok_inside(root, "dpkg", "--purge", "brumate-amd")
    launcher_is_of_its_group(root)
    shows_a_job(root, "of-deb")
    # Once more, as an upgrade, and by hand: nothing is made twice.
    ok_inside(root, "dpkg", "-i", "/brumate.deb")
    ok_inside(root, "/var/lib/dpkg/info/brumate.postinst", "configure", "0.1.0-1")
    removed = ok_inside(root, "dpkg", "--remove", "brumate")
    expect("can be resumed and restored once brumate is installed again" in removed.err, removed.err)
    os.makedirs(os.path.join(root, "home", "alice", ".local", "state", "brumate"), exist_ok=True)
    purged = ok_inside(root, "dpkg", "--purge", "brumate")
    expect("rm -r /var/lib/brumate" in purged.err, f"purge is silent: {purged.err}")
    expect("/home/alice/.local/state/brumate" in purged.err, f"purge is silent about users: {purged.err}")
    ok_inside(root, "dpkg", "--purge", "brumate")
    kept = os.listdir(os.path.join(root, "var", "lib", "brumate", "checkpoints"))
    expect(any(name.startswith("of-deb-") for name in kept), f"checkpoints after the purge: {kept}")
    left = [path for path in ("etc/brumate", "usr/bin/brumate", "usr/libexec/brumate") if os.path.exists(os.path.join(root, path))]
    expect(not left, f"left: {left}")


@case
def deb_for_arm64(bed):
    """All programs in it are for arm64 and it needs Debian's libraries and CRIU of there; compiled anew elsewhere, it is the same."""
    if not os.path.exists(os.path.join(SOURCE, ".arm64", "sysroot", "var", "lib", "dpkg", "status")):
        raise Skipped("what a package for arm64 takes is not here: `tools/arm64 provision` gets it")
    first, second = (package("deb", "--arch", "arm64", "--build", place(f"build-{name}"), "--out", place(f"out-{name}"))
                     for name in ("arm64", "arm64-again"))
    expect(run(["dpkg-deb", "-f", first, "Architecture"]).out.strip() == "arm64", first)
    depends = run(["dpkg-deb", "-f", first, "Depends"]).out
    expect(all(word in depends for word in ("libc6 (>= 2.", "libssl3", "libjansson4", "criu (>= 4.2)")), depends)
    files = files_of(first, os.path.join(bed.dir, "files.tar"))
    machines = {name: int.from_bytes(content[18:20], "little") for name, content in files.items() if content[:4] == b"\x7fELF"}
    expect({"usr/bin/brumate", "usr/libexec/brumate/brumate-shim", "usr/libexec/brumate/criu-plugin/brumate-criu.so"} < machines.keys(),
           f"programs: {sorted(machines)}")
    expect(set(machines.values()) == {EM_AARCH64}, f"for other machines: {machines}")
    expect(not [name for name in files if name.startswith("usr/libexec/brumate/criu/")], "this machine's CRIU is in it")
    is_told_what_is_bundled(files, first.removesuffix(".deb") + ".spdx.json")
    expect(digest(first) == digest(second), f"{os.path.basename(first)} differs: {first} {second}")


@case
def amd_deb_is_of_the_criu_that_loads_it(bed):
    """It is where brumate looks for it, needs what the plugin is linked with, and is the same twice; of another CRIU there is none."""
    files = files_of(amd_deb(), os.path.join(bed.dir, "files.tar"))
    folder = "usr/libexec/brumate/criu-plugin/amd"
    expect(set(files) == {f"{folder}/amdgpu_plugin.so", f"{folder}/VERSION", "usr/share/doc/brumate-amd/copyright"}, f"{set(files)}")
    bundled = read_text(os.path.join(SOURCE, ".criu", "VERSION")).split()[0]
    expect(files[f"{folder}/VERSION"].decode().split()[0] == bundled, files[f"{folder}/VERSION"])
    expect(b"GNU GENERAL PUBLIC LICENSE" in files["usr/share/doc/brumate-amd/copyright"], "no licence")
    depends = run(["dpkg-deb", "-f", amd_deb(), "Depends"]).out
    own = run(["dpkg-deb", "-f", deb(), "Version"]).out.strip()
    expect("libdrm-amdgpu1" in depends and f"brumate (= {own})" in depends, depends)
    source = place("of-another")
    for part in ("tools", "packaging", ".amdgpu", "meson.build"):
        (shutil.copytree if os.path.isdir(os.path.join(SOURCE, part)) else shutil.copy2)(os.path.join(SOURCE, part), os.path.join(source, part))
    os.mkdir(os.path.join(source, ".criu"))
    with open(os.path.join(source, ".criu", "VERSION"), "w", encoding="utf-8") as file:
        file.write("3.19 (package 3.19-1, debian testing, amd64)\n")
    done = run([os.path.join(source, "tools", "package"), "--build", place("build-of-another"), "deb"],
               env={**os.environ, "SOURCE_DATE_EPOCH": "1"})
    expect(done.code == 1 and f"the plugin of CRIU {bundled}, the CRIU that loads it is 3.19" in done.err and done.err.count("\n") == 1, done.why())


@case
def rpm_in_a_clean_system(bed):
    """The system is one of dpkg, so the dependencies are not looked at; all else is as rpm does it."""
    package_of_rpm = rpm()
    listed = run(["rpm", "-qp", "--qf", "[%{FILENAMES} %{FILECAPS}\\n]", package_of_rpm]).out
    expect("/brumate-criu-launch = cap_checkpoint_restore+ep" in listed or
           "/brumate-criu-launch cap_checkpoint_restore=ep" in listed, f"no capability: {listed[:600]}")
    requires = run(["rpm", "-qp", "--requires", package_of_rpm]).out
    expect("libjansson.so.4()(64bit)" in requires and "libnftables" not in requires, requires)
    scripts = run(["rpm", "-qp", "--scripts", package_of_rpm]).out
    expect("groupadd --system brumate" in scripts and "rm -r /var/lib/brumate" in scripts, scripts)
    root = made("root", clean_system)
    rpm_in_root = ["rpm", "--root", root, "--force-debian", "--nodeps"]
    done = run([*rpm_in_root, "-U", package_of_rpm])
    expect(done.code == 0, done.why())
    launcher_is_of_its_group(root)
    shows_a_job(root, "of-rpm")
    done = run([*rpm_in_root, "-e", "brumate"])
    expect(done.code == 0 and "rm -r /var/lib/brumate" in done.out + done.err, done.why())
    expect(not os.path.exists(os.path.join(root, "usr", "bin", "brumate")), "the program is left")


@case
def node_files_need_glibc_alone(bed):
    """What goes to the nodes of a cluster runs in a system that has none of brumate's libraries."""
    needs("dpkg-query", "readelf", "strip")
    path = made("node", lambda: from_objects("node"))
    root = made("root", clean_system)
    with tarfile.open(path) as opened:
        files = files_in(opened)
    expect({"usr/local/bin/brumate", "usr/local/libexec/brumate/container-plugin/brumate_plugin.so",
            "usr/local/libexec/brumate/node-install"} < files.keys(), f"holds {sorted(files)[:20]}")
    told = json.loads(files["usr/local/libexec/brumate/sbom.spdx.json"])
    linked = [r["relatedSpdxElement"] for r in told["relationships"] if r["relationshipType"] == "STATIC_LINK"]
    expect("SPDXRef-Package-libssl-dev" in linked, f"linked with {linked}")
    run(["tar", "-C", root, "-xf", path])
    host = os.path.join(root, "host")
    for name in ("usr/local", "usr/lib64", "etc/criu", "etc/cdi"):
        os.makedirs(os.path.join(host, name))
    shutil.copy(os.path.join(root, run(["sh", "-c", f"cd {root} && ls lib/*/libc.so.6"]).out.strip()), os.path.join(host, "usr/lib64"))
    for mode in ("install", "check", "uninstall"):
        ok_inside(root, "/usr/local/libexec/brumate/node-install", mode)
    shutil.rmtree(os.path.join(root, "usr", "local", "libexec"))
    os.unlink(os.path.join(root, "usr", "local", "bin", "brumate"))


@case
def packages_are_the_same_twice(bed):
    """Of the same files elsewhere, all compiled there, at another time."""
    first = {kind: path() for kind, path in (("deb", deb), ("rpm", rpm))}
    source = place("elsewhere")
    shutil.copytree(SOURCE, source, symlinks=True, ignore=shutil.ignore_patterns("build*", ".git"))
    date = source_date()
    for kind, path in first.items():
        second = package(kind, "--build", place("build-elsewhere"), "--out", place("out-elsewhere"), source=source, date=date)
        expect(digest(path) == digest(second), f"{os.path.basename(path)} differs: {path} {second}")
    for path in glob.glob(os.path.join(os.path.dirname(first["deb"]), "brumate-amd_*.deb")):
        second = os.path.join(place("out-elsewhere"), os.path.basename(path))
        expect(digest(path) == digest(second), f"{os.path.basename(path)} differs: {path} {second}")


@case
def dist_has_what_is_committed(bed):
    if not os.path.exists(os.path.join(SOURCE, ".git")):
        raise Skipped("this is not a checkout of git")
    first, second = (package("dist", "--out", place(name)) for name in ("dist-1", "dist-2"))
    expect(digest(first) == digest(second), "the archive differs from one time to the next")
    with tarfile.open(first) as opened:
        files = files_in(opened)
    top = os.path.basename(first).removesuffix(".tar.gz")
    tracked = run(["git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "ls-tree", "-r", "--name-only", "HEAD"]).out.split("\n")
    expect({f"{top}/{name}" for name in tracked if name} == set(files), "it holds other files than the commit")
    date = files[f"{top}/packaging/source-date"].decode().strip()
    expect(date.isdigit(), f"it does not say of when it is: {date}")


main()
