# SPDX-License-Identifier: MIT
"""criu#154: a lease on a file, which another program may not open for writing meanwhile, was unknown."""
import fcntl
import os
import signal
from report import place, same, steps

signal.signal(signal.SIGIO, lambda *_: None)
path = os.path.join(place(), "file")
open(path, "w").close()
file = os.open(path, os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
steps(lambda step: same("the lease", fcntl.fcntl(file, fcntl.F_GETLEASE), fcntl.F_RDLCK))
