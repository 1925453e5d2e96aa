# SPDX-License-Identifier: MIT
"""The Python side of tests/preload/faulty.h: calls that fail and a time of day that is another, in our programs."""

import dataclasses
import errno
import mmap
import os
import struct

RULES, RULE = 8, struct.Struct("<32sIiQQQQ")
SITES, SITE = 8192, struct.Struct("<Q32sQ128s")
NOTES_AT = 8 + RULES * RULE.size  # whether sites are noted; then come the sites
BYTES = NOTES_AT + 8 + SITES * SITE.size
CALLS = {"memory": 1, "open": 2, "write": 4, "sync": 8, "name": 16, "socket": 32, "start": 64, "read": 128}
# What each kind of call fails with; 0: a write that is cut short.
ERRORS = {"memory": (errno.ENOMEM,), "open": (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO),
          "write": (errno.ENOSPC, errno.EIO, 0), "sync": (errno.EIO, errno.ENOSPC), "name": (errno.ENOSPC, errno.EIO),
          "socket": (errno.ENOMEM, errno.EMFILE, errno.ENOBUFS), "start": (errno.EAGAIN, errno.ENOMEM),
          "read": (errno.EIO, errno.ENOMEM)}
PROGRAMS = ("brumate", "brumate-shim", "brumate-keeper", "brumate-broker")


@dataclasses.dataclass(frozen=True, order=True)
class Site:
    """A place in the code from which calls are made."""

    program: str
    call: str
    place: int
    where: str

    def __str__(self):
        return f"{self.call} of {self.program} at {self.where}"


def _text(data):
    return data.split(b"\0", 1)[0].decode().strip()


class Faulty:
    """The file that libfaulty.so reads, and what makes our programs load it."""

    def __init__(self, build, directory):
        self.path = os.path.join(directory, "faulty")
        with open(self.path, "wb") as file:
            file.write(bytes(BYTES))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), BYTES)
        self.environment = {"LD_PRELOAD": build.library("libfaulty.so"), "BRUMATE_TEST_FAULTY": self.path}

    def set_clock(self, offset_s):
        """The time of day is so much later, or earlier."""
        self.map[0:8] = struct.pack("<q", int(offset_s * 1e9))

    def _at(self, rule):
        return 8 + rule * RULE.size

    def note_sites(self, wanted):
        """From now on, or no more, it is noted where calls are made."""
        self.map[NOTES_AT:NOTES_AT + 8] = struct.pack("<Q", wanted)

    def sites(self):
        """All places that were noted."""
        names = {bit: name for name, bit in CALLS.items()}
        return sorted(Site(_text(program), names[call], place, _text(where))
                      for place, program, call, where in SITE.iter_unpack(self.map[NOTES_AT + 8:]) if place)

    def arm_at(self, rule, site, error):
        """The next call that is made there fails."""
        self.arm(rule, site.program, site.call, 1, error, site.place)

    def arm(self, rule, program, call, nth, error, site=0):
        """The @nth call of this kind that such a program makes from now on, there or anywhere, fails. It counts from one."""
        at = self._at(rule)
        self.map[at:at + 32] = bytes(32)
        data = RULE.pack(program.encode(), CALLS[call], error, nth, 0, 0, site)
        self.map[at + 32:at + RULE.size] = data[32:]
        self.map[at:at + 32] = data[:32]

    def disarm(self):
        """No call fails any more; (how many were counted, how many failed) of each rule."""
        found = [RULE.unpack_from(self.map, self._at(rule))[4:6] for rule in range(RULES)]
        for rule in range(RULES):
            self.map[self._at(rule):self._at(rule) + RULE.size] = bytes(RULE.size)
        return found

    def failed(self, rule):
        """Whether the rule's call has come and failed."""
        return RULE.unpack_from(self.map, self._at(rule))[5] > 0
