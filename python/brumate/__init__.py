# SPDX-License-Identifier: MIT
"""Checkpoint and restore GPU programs with brumate.

Other jobs, by name or id::

    job = brumate.Job("train")
    job.checkpoint(leave_running=True)
    with job.paused():              # its GPUs are free in here
        ...

The program itself, started by ``brumate run``::

    @brumate.on_restore
    def reconnect() -> None: ...

    if brumate.checkpoint():        # True: this is the restored program
        print("restored")

Everything is done by the ``brumate`` command with the rights of its user; no daemon is needed. The command is the
one in ``$BRUMATE_COMMAND``, else the one in ``PATH``.
"""

from ._command import BrumateError, version
from ._job import Job, Summary, jobs
from ._self import checkpoint, on_checkpoint, on_restore

__all__ = ["BrumateError", "Job", "Summary", "checkpoint", "jobs", "on_checkpoint", "on_restore", "version"]
