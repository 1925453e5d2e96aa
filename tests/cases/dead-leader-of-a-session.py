# SPDX-License-Identifier: MIT
"""criu#1647: a process that has ended, unread, led a session in which another lives on."""
import os
from report import in_child, same, sleep_on, steps

reader, writer = os.pipe()


def child():
    os.setsid()
    if os.fork() == 0:
        os.write(writer, b"%d" % os.getpid())
        sleep_on()
    os._exit(3)


leader = in_child(child)
member = int(os.read(reader, 16))
os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)


def look(step):
    same("the session", os.getsid(member), leader)
    same("the group", os.getpgid(member), leader)


steps(look)
