# SPDX-License-Identifier: MIT
"""criu#996: the room of a pipe that nothing is in was lost."""
import fcntl
import os
from report import same, steps

reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 18)
steps(lambda step: same("the room", fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ), 1 << 18))
