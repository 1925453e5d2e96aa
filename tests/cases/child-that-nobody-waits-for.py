# SPDX-License-Identifier: MIT
"""ray#54237: a child has ended and its status was never read."""
import os
from report import same, steps

pid = os.fork()
if pid == 0:
    os._exit(7)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def look(step):
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    same("its status", found and (found.si_code, found.si_status), (os.CLD_EXITED, 7))


steps(look)
