# SPDX-License-Identifier: MIT
"""criu#2144, #232: a program leads a session on a terminal that another one holds, as under expect or tmux."""
import os
import pty
import select
import termios
import time
from report import same, steps

pid, master = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "stty -echo rows 33 cols 77; while read line; do echo \"$line $(stty size)\"; done"])
while termios.tcgetattr(master)[3] & termios.ECHO:
    time.sleep(0.01)


def look(step):
    os.write(master, b"line%d\n" % step)
    text = b""
    while b"\n" not in text:
        assert select.select([master], [], [], 20)[0], f"no answer: {text}"
        text += os.read(master, 1024)
    same("the answer", text, b"line%d 33 77\r\n" % step)
    same("the group in front", os.tcgetpgrp(master), pid)


steps(look)
