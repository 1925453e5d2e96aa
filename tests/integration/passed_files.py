# SPDX-License-Identifier: MIT
"""A file system in user space (FUSE) that passes what it is asked on to a directory, but for what a rule says: calls of a kind
that fail with an error, or that are not answered any more. And one that is as poor as vfat. The server is a process of its
own, this file as "passed_files.py serve FD DIRECTORY RULE [poor]": nobody who asks waits for itself.

A rule is a file with "KIND ERRNO SKIP": calls of this kind fail after so many; ERRNO "silent": they are not answered. Each of those
is said on stdout, and with the rule "count" each call of any kind."""

import contextlib
import errno
import os
import stat
import struct
import sys

KINDS = {1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod", 9: "mkdir", 10: "unlink",
         11: "rmdir", 12: "rename", 13: "link", 14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync",
         25: "flush", 26: "init", 27: "opendir", 28: "readdir", 29: "releasedir", 30: "fsyncdir", 35: "create", 36: "interrupt",
         42: "batch_forget", 43: "fallocate", 45: "rename2", 46: "lseek"}
NO_ANSWER = ("forget", "batch_forget", "interrupt")
HEAD = struct.Struct("<IIQQIII4x")
REQUEST_BYTES, WRITE_BYTES, BIG_WRITES = (1 << 17) + 4096, 1 << 17, 0x20
ROOT = 1
MODE, UID, GID, SIZE, ATIME, MTIME, HAS_FH, ATIME_NOW, MTIME_NOW = 1, 2, 4, 8, 16, 32, 64, 128, 256


def no_error(number):
    return OSError(number, os.strerror(number))


class Server:
    def __init__(self, directory, rule, poor):
        self.rule_path, self.rule, self.rule_text, self.poor = rule, None, None, poor
        self.nodes = {ROOT: os.open(directory, os.O_PATH | os.O_DIRECTORY)}
        self.known = {}

    # What a rule says.
    def look_at_rule(self):
        text = ""
        with contextlib.suppress(FileNotFoundError), open(self.rule_path, encoding="ascii") as file:
            text = file.read()
        if text != self.rule_text:
            kind, what, skip = text.split() if text else (None, "0", "0")
            self.rule_text, self.rule = text, [kind, what, int(skip)]

    def denied(self, kind):
        """None, an error's number, or "silent"."""
        self.look_at_rule()
        if self.rule[0] != kind:
            return None
        if self.rule[2] > 0:
            self.rule[2] -= 1
            return None
        print("denied", kind, flush=True)
        return self.rule[1] if self.rule[1] == "silent" else int(self.rule[1])

    # Nodes: descriptors of what has been looked up.
    def path(self, node):
        return f"/proc/self/fd/{self.nodes[node]}"

    def attributes(self, st):
        mode, uid, gid = st.st_mode, st.st_uid, st.st_gid
        if self.poor:
            mode, uid, gid = stat.S_IFMT(mode) | 0o755, 0, 0
        times = (st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns)
        step = 2 * 10**9 if self.poor else 1
        times = [t // step * step for t in times]
        return struct.pack("<6Q10I", st.st_ino, st.st_size, st.st_blocks, *(t // 10**9 for t in times), *(t % 10**9 for t in times),
                           mode, st.st_nlink, uid, gid, st.st_rdev & 0xffffffff, 4096, 0)

    def entry(self, parent, name):
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[parent])
        st = os.fstat(fd)
        key = (st.st_dev, st.st_ino)
        if key in self.known:
            os.close(fd)
        else:
            self.known[key] = len(self.nodes) + 1
            self.nodes[self.known[key]] = fd
        return struct.pack("<QQQQII", self.known[key], 0, 0, 0, 0, 0) + self.attributes(st)

    # Calls: each takes the node and what comes after the head, and returns the answer's body.
    def init(self, _node, _body):
        return struct.pack("<IIIIHHII", 7, 31, 1 << 17, BIG_WRITES, 16, 16, WRITE_BYTES, 1) + bytes(36)

    def lookup(self, node, body):
        return self.entry(node, body.rstrip(b"\0"))

    def getattr(self, node, _body):
        return struct.pack("<QII", 0, 0, 0) + self.attributes(os.fstat(self.nodes[node]))

    def setattr(self, node, body):
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = struct.unpack("<IIQQQQQQIIIIIIII", body[:88])
        path = self.path(node)
        if self.poor and valid & (UID | GID) and (uid if valid & UID else 0, gid if valid & GID else 0) != (0, 0):
            raise no_error(errno.EPERM)
        if valid & MODE and not self.poor:
            os.chmod(path, mode & 0o7777)
        if valid & (UID | GID) and not self.poor:
            os.chown(path, uid if valid & UID else -1, gid if valid & GID else -1)
        if valid & SIZE:
            os.truncate(path, size)
        if valid & (ATIME | MTIME):
            st = os.stat(path)
            os.utime(path, ns=(st.st_atime_ns if not valid & ATIME or valid & ATIME_NOW else atime * 10**9 + atime_ns,
                               st.st_mtime_ns if not valid & MTIME or valid & MTIME_NOW else mtime * 10**9 + mtime_ns))
        return self.getattr(node, b"")

    def readlink(self, node, _body):
        return os.readlink(b"", dir_fd=self.nodes[node])

    def symlink(self, node, body):
        if self.poor:
            raise no_error(errno.EPERM)
        name, target = body.split(b"\0")[:2]
        os.symlink(target, name, dir_fd=self.nodes[node])
        return self.entry(node, name)

    def mknod(self, node, body):
        mode = struct.unpack_from("<I", body)[0]
        if self.poor and not stat.S_ISREG(mode):
            raise no_error(errno.EPERM)
        name = body[16:].rstrip(b"\0")
        os.mknod(name, mode, dir_fd=self.nodes[node])
        return self.entry(node, name)

    def mkdir(self, node, body):
        name = body[8:].rstrip(b"\0")
        os.mkdir(name, struct.unpack_from("<I", body)[0], dir_fd=self.nodes[node])
        return self.entry(node, name)

    def unlink(self, node, body):
        os.unlink(body.rstrip(b"\0"), dir_fd=self.nodes[node])
        return b""

    def rmdir(self, node, body):
        os.rmdir(body.rstrip(b"\0"), dir_fd=self.nodes[node])
        return b""

    def rename(self, node, body):
        old, new = body[8:].split(b"\0")[:2]
        os.rename(old, new, src_dir_fd=self.nodes[node], dst_dir_fd=self.nodes[struct.unpack_from("<Q", body)[0]])
        return b""

    def link(self, node, body):
        if self.poor:
            raise no_error(errno.EPERM)
        source, name = struct.unpack_from("<Q", body)[0], body[8:].rstrip(b"\0")
        os.link(self.path(source), name, dst_dir_fd=self.nodes[node], follow_symlinks=True)
        return self.entry(node, name)

    def open(self, node, body):
        flags = struct.unpack_from("<I", body)[0] & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC)
        return struct.pack("<QII", os.open(self.path(node), flags), 0, 0)

    def create(self, node, body):
        flags, mode = struct.unpack_from("<II", body)
        name = body[16:].rstrip(b"\0")
        keep = flags & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_EXCL)
        fd = os.open(name, keep | os.O_CREAT | os.O_NOFOLLOW, mode, dir_fd=self.nodes[node])
        return self.entry(node, name) + struct.pack("<QII", fd, 0, 0)

    def read(self, _node, body):
        fd, at, n = struct.unpack_from("<QQI", body)
        return os.pread(fd, n, at)

    def write(self, _node, body):
        fd, at, n = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(fd, body[40:40 + n], at), 0)

    def statfs(self, node, _body):
        s = os.statvfs(self.path(node))
        return struct.pack("<5Q10I", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, 255, s.f_frsize, *[0] * 7)

    def release(self, _node, body):
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def flush(self, _node, _body):
        return b""

    def fsync(self, _node, body):
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def opendir(self, node, _body):
        return struct.pack("<QII", os.open(self.path(node), os.O_RDONLY | os.O_DIRECTORY), 0, 0)

    def readdir(self, _node, body):
        """What was removed meanwhile is not missed: a number counts the entries that the directory had when it was read first."""
        fd, at, room = struct.unpack_from("<QQI", body)
        found = b""
        if at == 0:
            self.known[("list", fd)] = sorted(os.listdir(fd))
        for number, name in list(enumerate(self.known[("list", fd)], 1))[at:]:
            entry = struct.pack("<QQII", number + 1000, number, len(os.fsencode(name)), 0) + os.fsencode(name)
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > room:
                break
            found += entry
        return found

    releasedir, fsyncdir = release, fsync

    def fallocate(self, _node, body):
        fd, at, n, mode = struct.unpack_from("<QQQI", body)
        if mode or self.poor:
            raise no_error(errno.EOPNOTSUPP)
        os.posix_fallocate(fd, at, n)
        return b""

    def rename2(self, node, body):
        if struct.unpack_from("<QI", body)[1]:
            raise no_error(errno.EINVAL)
        return self.rename(node, body[:8] + body[16:])

    def lseek(self, _node, body):
        fd, at, whence = struct.unpack_from("<QQI", body)
        return struct.pack("<Q", os.lseek(fd, at, whence))

    # The way of a call.
    def answer(self, kind, node, body):
        """(error, body), or None: never."""
        denied = self.denied(kind)
        if denied == "silent":
            return None
        if denied:
            return -denied, b""
        if not hasattr(self, kind):
            return -errno.ENOSYS, b""
        try:
            return 0, getattr(self, kind)(node, body)
        except OSError as error:
            return -error.errno, b""

    def serve(self, fd):
        while True:
            try:
                request = os.read(fd, REQUEST_BYTES)
            except OSError:
                return
            _, opcode, unique, node, *_ = HEAD.unpack_from(request)
            kind = KINDS.get(opcode, str(opcode))
            if kind in NO_ANSWER:
                continue
            said = self.answer(kind, node, request[HEAD.size:])
            if said:
                with contextlib.suppress(OSError):  # who asked has given up
                    os.write(fd, struct.pack("<IiQ", 16 + len(said[1]), said[0], unique) + said[1])


class PassedFiles:
    """Such a file system, mounted."""

    def __init__(self, bed, poor=False):
        from cases import Skipped, run  # the server needs none of it
        self.bed, self.run = bed, run
        self.dir, self.beneath = os.path.join(bed.dir, "passed"), os.path.join(bed.dir, "beneath")
        self.rule = os.path.join(bed.dir, "rule")
        os.makedirs(self.dir, exist_ok=True)
        os.makedirs(self.beneath, exist_ok=True)
        try:
            fd = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Skipped(f"no file systems in user space: {error}") from error
        options = f"fd={fd},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
        mounted = run(["mount", "-i", "-t", "fuse", "-o", options, "test", self.dir], pass_fds=[fd])
        if mounted.code:
            os.close(fd)
            raise Skipped(f"no file system in user space can be mounted: {mounted.err}")
        self.server = bed.start([sys.executable, "-u", os.path.abspath(__file__), "serve", fd, self.beneath, self.rule, *["poor"] * poor],
                                "server", pass_fds=[fd])
        os.close(fd)

    def deny(self, kind, what, skip=0):
        """From now on calls of this kind fail, or are not answered."""
        with open(self.rule + ".new", "w", encoding="ascii") as file:
            file.write(f"{kind} {what} {skip}")
        os.rename(self.rule + ".new", self.rule)

    def allow(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.rule)

    def denials(self):
        return self.server.log.text().count("denied ")

    def abort(self):
        """Whoever waits gets an error."""
        self.run(["umount", "-f", self.dir])

    def end(self):
        self.abort()
        self.run(["umount", "-l", self.dir])
        self.server.process.kill()
        self.server.process.wait()


@contextlib.contextmanager
def passed_files(bed, poor=False):
    files = PassedFiles(bed, poor)
    try:
        yield files
    finally:
        files.end()


if __name__ == "__main__" and sys.argv[1:2] == ["serve"]:
    import resource
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Server(sys.argv[3], sys.argv[4], sys.argv[5:] == ["poor"]).serve(int(sys.argv[2]))
