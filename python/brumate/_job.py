# SPDX-License-Identifier: MIT
"""Jobs, seen and driven from outside."""

import contextlib
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from ._command import BrumateError, ask, ask_for_end, run

Seconds = Union[int, float]


@dataclass(frozen=True)
class Summary:
    """What an operation came to. ``raw`` has all that brumate says of it."""

    operation: str
    job: str
    checkpoint: Optional[str]
    path: Optional[str]
    seconds: float
    downtime_s: float
    raw: Mapping[str, Any]


def _summary(reply: Mapping[str, Any]) -> Summary:
    s = reply["summary"]
    return Summary(s["operation"], s["job"], s.get("checkpoint"), s.get("path"), s["seconds"], s["downtime_s"], s)


def duration(seconds: Seconds) -> str:
    """A time as options of brumate take it."""
    return f"{max(1, round(seconds * 1000))}ms"


def checkpoint_options(name: Optional[str], directory: Optional[str], timeout: Optional[Seconds], compress: Optional[str] = None,
                       key_file: Optional[str] = None, **flags: bool) -> List[str]:
    """The options of ``brumate checkpoint`` for these arguments. ``flags``: those without a value, by their names."""
    options = [f"--{flag.replace('_', '-')}" for flag, is_set in flags.items() if is_set]
    values = {"name": name, "dir": directory, "compress": compress, "key-file": key_file}
    options += [f"--{option}={value}" for option, value in values.items() if value is not None]
    if timeout is not None:
        options += ["--timeout", duration(timeout)]
    return options


class Job:
    """A job by its name, its id or an unambiguous beginning of it.

    Nothing is asked until it has to be: a job that is not there is found out by the first call.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    @classmethod
    def run(cls, argv: Sequence[str], name: Optional[str] = None, labels: Optional[Mapping[str, str]] = None) -> "Job":
        """Starts a command as a job, in the background."""
        options = [] if name is None else [f"--name={name}"]
        options += [f"--label={key}={value}" for key, value in (labels or {}).items()]
        return cls(run("run", *options, operands=argv).strip())

    def describe(self) -> Dict[str, Any]:
        """All that brumate knows of the job, as the type Job of its varlink interface."""
        job = ask("inspect", "--job", operands=[self.name])["job"]
        if not isinstance(job, dict):
            raise BrumateError(f"{self.name} is not a job")
        return job

    @property
    def state(self) -> str:
        """running, suspended, checkpointed, exited …"""
        return str(self.describe()["state"])

    @property
    def labels(self) -> Dict[str, str]:
        """What the job was labelled with when it was started."""
        return dict(self.describe()["labels"])

    def suspend(self, timeout: Optional[Seconds] = None) -> Summary:
        """Takes the job off its GPUs; its device memory is kept in host memory."""
        return _summary(ask("suspend", *checkpoint_options(None, None, timeout), operands=[self.name]))

    def resume(self, timeout: Optional[Seconds] = None) -> Summary:
        """Brings a suspended job back to its GPUs."""
        return _summary(ask("resume", *checkpoint_options(None, None, timeout), operands=[self.name]))

    def checkpoint(self, leave_running: bool = False, name: Optional[str] = None, directory: Optional[str] = None,
                   timeout: Optional[Seconds] = None, *, with_files: bool = False, tcp_close: bool = False,
                   tcp_skip_in_flight: bool = False, drop_external: bool = False, keep_copy: bool = False,
                   rehearse: bool = False, force: bool = False, compress: Optional[str] = None,
                   key_file: Optional[str] = None) -> Summary:
        """Saves the job to disk, and ends it unless it is to be left running. ``name``: of the checkpoint. ``with_files``: takes
        in the content of files that the job writes. The others are as the options of brumate-checkpoint(1)."""
        options = checkpoint_options(
            name, directory, timeout, compress, key_file, leave_running=leave_running, with_files=with_files, tcp_close=tcp_close,
            tcp_skip_in_flight=tcp_skip_in_flight, drop_external=drop_external, keep_copy=keep_copy, rehearse=rehearse,
            force=force)
        return _summary(ask("checkpoint", *options, operands=[self.name]))

    def restore(self, timeout: Optional[Seconds] = None, gpu_map: Optional[Mapping[Union[int, str], Union[int, str]]] = None) -> Summary:
        """Brings the job back from its latest checkpoint. ``gpu_map``: GPUs that it had, and those that it gets instead; numbers or
        UUIDs."""
        options = checkpoint_options(None, None, timeout)
        if gpu_map:
            options.append("--gpu-map=" + ",".join(f"{old}={new}" for old, new in gpu_map.items()))
        return _summary(ask("restore", "--job", *options, operands=[self.name]))

    def wait(self, timeout: Optional[Seconds] = None) -> Optional[int]:
        """Waits until the job has ended or was checkpointed; its exit status, or None where it has none. After ``timeout`` it raises
        BrumateError with exit_code 124."""
        options = [] if timeout is None else ["--timeout", duration(timeout)]
        code = ask_for_end("wait", *options, operands=[self.name])["job"]["exit_code"]
        return None if code is None else int(code)

    def logs(self, tail: Optional[int] = None) -> str:
        """What the job has printed so far, or the last lines of it."""
        return run("logs", *([] if tail is None else [f"--tail={tail}"]), operands=[self.name])

    def release(self) -> None:
        """Stops managing the job; its processes run on."""
        run("release", operands=[self.name])

    def kill(self) -> None:
        """Ends the job: SIGTERM first, SIGKILL after a while."""
        run("kill", operands=[self.name])

    @contextlib.contextmanager
    def paused(self) -> Iterator[Summary]:
        """The GPUs of the job are free inside: it is suspended before and resumed after, whatever happens there."""
        summary = self.suspend()
        try:
            yield summary
        finally:
            self.resume()


def jobs() -> List[Job]:
    """All jobs of this user, the oldest first."""
    return [Job(job["id"]) for job in ask("ps", "--all", "--sort", "age")["jobs"]]
