#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The device of `brumate cdi` in containers whose C library is not this machine's: programs start, and the library works where
it can. They are chroots here, with what of the device counts: the library, its place for agents, and the variables."""

import os
import shutil
import subprocess
import sys

from cases import case, expect, main, wait_until
from harness import Skipped, run

OLD = "bullseye"  # glibc 2.31
PATIENCE_S = 280

DRIVER = "int cuInit(unsigned f) { return (int)f; }"

# Of the C library it asks for what the oldest has, and begins without the object files of this machine's.
PROGRAM = """
#include <dlfcn.h>
#include <unistd.h>
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5\\n.symver dlsym, dlsym@GLIBC_2.2.5");
#ifdef LINKED
int cuInit(unsigned flags);
#else
static int cuInit(unsigned flags)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;

	return init ? init(flags) : 1;
}
#endif
__attribute__((used)) static void run(void)
{
	char byte;

	_exit(cuInit(0) || write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) < 0);
}
__attribute__((naked, noreturn)) void _start(void) { __asm__("xor %ebp, %ebp; and $-16, %rsp; call run; hlt"); }
"""


def compile_c(bed, name, text, *options, compiler="cc"):
    path = os.path.join(bed.dir, name)
    with open(path + ".c", "w", encoding="utf-8") as file:
        file.write(text)
    done = run([compiler, "-O1", "-w", "-o", path, path + ".c", *options], timeout=PATIENCE_S)
    expect(done.code == 0, f"{name}: {done.why()}")
    return path


class Root:
    """A root file system with the device."""

    def __init__(self, bed, path):
        if os.geteuid() != 0:
            raise Skipped("changing the root takes root")
        self.path = path
        edits = bed.ok("cdi").json()["devices"][0]["containerEdits"]
        self.env = dict(variable.split("=", 1) for variable in edits["env"])
        library, agents = edits["mounts"]
        self.put(library["hostPath"], library["containerPath"])
        self.agents = path + agents["containerPath"]
        os.makedirs(self.agents)

    def put(self, source, target):
        os.makedirs(os.path.dirname(self.path + target), exist_ok=True)
        shutil.copy(source, self.path + target)

    def start(self, *argv):
        """In a mount namespace of its own, whose /proc goes with it."""
        script = 'mount -t proc proc "$0/proc" && exec "$@"'
        os.makedirs(self.path + "/proc", exist_ok=True)
        enter = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execve(sys.argv[3], sys.argv[3:], eval(sys.argv[2]))"
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", script, self.path, sys.executable, "-c", enter, self.path,
                                 repr(self.env), *argv],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def says(self, *argv):
        program = self.start(*argv)
        out = program.communicate(timeout=60)[0]
        expect(program.returncode == 0, f"{argv[0]}: {program.returncode}: {out}")
        return out


def old_root(bed):
    """The C library of an older release, by the mirror that this machine's own apt uses."""
    if not shutil.which("mmdebstrap"):
        raise Skipped("no mmdebstrap")
    path = os.path.join(bed.dir, "old")
    mirror = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages"]).out
    mirror = next((line.split()[0] for line in mirror.splitlines() if line.endswith(" Debian")), None)
    if not mirror:
        raise Skipped("apt has no mirror of Debian")
    done = run(["mmdebstrap", "--variant=extract", "--include=libc6,dash", OLD, path, mirror], timeout=PATIENCE_S)
    if done.code != 0:
        raise Skipped(f"no {OLD} on the mirror: {done.err.strip()[-200:]}")
    return Root(bed, path)


def agent_listens(root, program):
    """Once it has called cuInit, its agent has its socket, and a thread beside the program's."""
    process = root.start(program)
    line = process.stdout.readline()
    expect(line == "ready\n", f"{program} says {line!r}")
    expect(os.listdir(root.agents) == [str(process.pid)], f"{program}: agents: {os.listdir(root.agents)}")
    wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == 2, "the agent's thread")
    process.stdin.close()
    expect(process.wait(60) == 0, f"{program} ended with {process.returncode}")
    for name in os.listdir(root.agents):
        os.unlink(os.path.join(root.agents, name))


@case
def old_glibc(bed):
    """The library starts its agent, whether the program is linked with the driver or opens it later, as frameworks do; what
    threads need comes with the driver there."""
    root = old_root(bed)
    libraries = ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"]
    driver = compile_c(bed, "driver", DRIVER, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", *libraries)
    linked = compile_c(bed, "linked", PROGRAM, "-nostartfiles", "-DLINKED", driver)
    opens = compile_c(bed, "opens", PROGRAM, "-nostartfiles", "-Wl,--no-as-needed", "-l:libdl.so.2")
    root.put(driver, "/lib/x86_64-linux-gnu/libcuda.so.1")
    root.put(linked, "/bin/linked")
    root.put(opens, "/usr/local/deep/er/bin/opens")
    expect(root.says("/bin/dash", "-c", "echo starts") == "starts\n", "a program without a GPU is disturbed")
    agent_listens(root, "/bin/linked")
    agent_listens(root, "/usr/local/deep/er/bin/opens")


@case
def musl(bed):
    """Its loader would take the library and not be able to bind it, so that nothing would start: it is not to find it."""
    compiler = shutil.which("musl-gcc")
    if not compiler:
        raise Skipped("no musl-gcc")
    hello = "#include <stdio.h>\nint main(void) { return puts(\"starts\") < 0; }"
    root = Root(bed, os.path.join(bed.dir, "musl"))
    root.put(compile_c(bed, "hello", hello, compiler=compiler), "/bin/hello")
    root.put(compile_c(bed, "static", hello, "-static", compiler=compiler), "/bin/static")
    root.put("/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-x86_64.so.1")
    expect(root.says("/bin/hello") == "starts\n", "a program of musl is disturbed")
    expect(root.says("/bin/static") == "starts\n", "a static program is disturbed")


main()
