# SPDX-License-Identifier: MIT
"""A program of a job that takes part in its own checkpoints.

While the job is saved, no process of it may be connected to the outside. So the command that asks has ended
before the checkpoint begins, and the answer is read from a symbolic link, which opens no file.
"""

import errno
import os
import threading
import time
from typing import Callable, List, Optional, Tuple, TypeVar

from ._command import BrumateError, ask
from ._job import Seconds, checkpoint_options

Hook = TypeVar("Hook", bound=Callable[[], object])

_before: List[Callable[[], object]] = []
_after: List[Callable[[], object]] = []
_one_at_a_time = threading.Lock()
_POLL_S = 0.02
_UNREADABLE_LOOKS_MAX = 500  # 10 s: the answer is there before the command replies


def on_checkpoint(hook: Hook) -> Hook:
    """Has the function called before each checkpoint that checkpoint() asks for. An exception in it puts the checkpoint off."""
    _before.append(hook)
    return hook


def on_restore(hook: Hook) -> Hook:
    """Has the function called in the restored program, before checkpoint() returns there."""
    _after.append(hook)
    return hook


def _life() -> Tuple[str, str]:
    """What another process has otherwise, and so a restored one has: when the kernel made it, and of which boot."""
    with open("/proc/self/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19].decode()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return started, file.read()


def _answer(link: str, checkpoint: str) -> Optional[Tuple[int, str]]:
    """(errno, text) once it is known how the checkpoint went. OSError: the answer cannot be read."""
    try:
        name, code, text = os.readlink(link).split(" ", 2)
    except ValueError:
        return None
    if name != checkpoint or int(code) == errno.EINPROGRESS:
        return None
    return int(code), text


def _wait(link: str, checkpoint: str, path: str, life: Tuple[str, str]) -> bool:
    unreadable = 0
    while True:
        time.sleep(_POLL_S)
        answer = failure = None
        try:
            answer = _answer(link, checkpoint)
            unreadable = 0
        except OSError as error:
            failure = error
            unreadable += 1
        if _life() != life:  # looked at last: the program may have been saved right before
            return True
        if failure is not None and unreadable >= _UNREADABLE_LOOKS_MAX:
            raise BrumateError(f"checkpoint {checkpoint}: how it went cannot be read: {link}: {failure.strerror}")
        if answer is None:
            continue
        if answer[0] == 0 or os.path.isdir(path):
            return False
        raise BrumateError(f"checkpoint {checkpoint}: {answer[1]}")


def checkpoint(leave_running: bool = True, name: Optional[str] = None, directory: Optional[str] = None,
               timeout: Optional[Seconds] = None, *, with_files: bool = False, tcp_close: bool = False,
               tcp_skip_in_flight: bool = False, drop_external: bool = False, keep_copy: bool = False,
               force: bool = False, compress: Optional[str] = None, key_file: Optional[str] = None) -> bool:
    """Saves the job that this program is a process of, at this point.

    False: the checkpoint has been made, and the program runs on. True: the program was restored from it. With
    leave_running=False it returns only in the restored program. BrumateError: there is no checkpoint, and the
    program runs on, as it does where it is not a job or brumate is not installed. In a program of several threads the
    others go on while this one waits. ``with_files``: takes in the content of files that the job writes. The other arguments are
    as the options of brumate-checkpoint(1).
    """
    options = checkpoint_options(
        name, directory, timeout, compress, key_file, leave_running=leave_running, with_files=with_files, tcp_close=tcp_close,
        tcp_skip_in_flight=tcp_skip_in_flight, drop_external=drop_external, keep_copy=keep_copy, force=force)
    with _one_at_a_time:
        for hook in _before:
            hook()
        life = _life()
        asked = ask("checkpoint", "--self", *options)
        restored = _wait(asked["answer"], asked["checkpoint"], os.path.join(asked["dir"], asked["checkpoint"]), life)
        if restored:
            for hook in _after:
                hook()
        return restored
