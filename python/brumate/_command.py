# SPDX-License-Identifier: MIT
"""Runs the brumate command and reads what it says."""

import contextlib
import errno
import json
import os
import subprocess
from typing import Any, Dict, Optional, Sequence


class BrumateError(Exception):
    """brumate refused or failed.

    ``exit_code`` is that of the command, as in brumate(1), or None where there was none; ``hint`` says what to do.
    """

    def __init__(self, text: str, exit_code: Optional[int] = None, hint: str = "") -> None:
        super().__init__(text + (f" ({hint})" if hint else ""))
        self.text = text
        self.exit_code = exit_code
        self.hint = hint


def _error_of(done: "subprocess.CompletedProcess[str]") -> BrumateError:
    text, hint = "", ""
    for line in done.stderr.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                error = json.loads(line)["error"]
                text, hint = error["message"], error["hint"] or ""
        elif line.startswith("hint: "):
            hint = line[len("hint: "):]
        elif line.startswith("brumate: "):
            text = line[len("brumate: "):]
    return BrumateError(text or f"brumate ended with status {done.returncode}", done.returncode, hint)


def _run(arguments: Sequence[str], operands: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    arguments = (*arguments, "--", *operands) if operands else arguments
    command = os.environ.get("BRUMATE_COMMAND") or "brumate"
    try:
        return subprocess.run([command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        hint = "install brumate, or set BRUMATE_COMMAND to its command" if error.errno == errno.ENOENT else ""
        raise BrumateError(f"{command}: {error.strerror}", hint=hint) from error


def run(*arguments: str, operands: Sequence[str] = ()) -> str:
    """Runs the command to its end; its output. ``operands`` are names, whatever they begin with."""
    done = _run(arguments, operands)
    if done.returncode:
        raise _error_of(done)
    return done.stdout


def _object_of(command: str, output: str) -> Dict[str, Any]:
    try:
        reply = json.loads(output)
    except ValueError as error:
        raise BrumateError(f"brumate {command} printed no JSON: {output[:200]!r}") from error
    if not isinstance(reply, dict):
        raise BrumateError(f"brumate {command} printed no object: {output[:200]!r}")
    return reply


def ask(*arguments: str, operands: Sequence[str] = ()) -> Dict[str, Any]:
    """As run(), with --format json; the object that it prints."""
    return _object_of(arguments[0], run(*arguments, "--format", "json", operands=operands))


def ask_for_end(*arguments: str, operands: Sequence[str] = ()) -> Dict[str, Any]:
    """As ask(), of a command that exits as a job did: its failure is one only where it prints nothing."""
    done = _run((*arguments, "--format", "json"), operands)
    if done.returncode and not done.stdout:
        raise _error_of(done)
    return _object_of(arguments[0], done.stdout)


def version() -> str:
    """The version of the brumate command."""
    return run("version").strip()
