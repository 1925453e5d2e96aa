# SPDX-License-Identifier: MIT
"""What the programs of this folder share: options before anything slow is imported, a clear word where a
package is missing, and a line per step whose result is exact: two runs print the same lines, whatever
happened to one of them in between. Where a library may choose among algorithms at run time, programs
work with small whole numbers, which every order of adding sums up to the same."""

import argparse
import faulthandler
import hashlib
import importlib
import os
import signal
import sys
import time

NOT_HERE = 77  # exit status: this machine lacks what the program needs


def parser(description, steps=60):
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # gpu-check asks a case that fails where it is
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--steps", type=int, default=steps)
    options.add_argument("--interval-ms", type=int, default=0, help="pause after each step")
    return options


def skip(why):
    print(f"SKIP: {why}", flush=True)
    sys.exit(NOT_HERE)


def package(name):
    """A module, or the end of this program with a word why."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return skip(f"no Python package {name} ({error})")


def torch_with_gpus(n=1):
    """PyTorch set up so that it computes the same each time; it must see so many GPUs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch = package("torch")
    if torch.cuda.device_count() < n:
        skip(f"PyTorch sees {torch.cuda.device_count()} GPUs, {n} needed")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch


def digest(*parts):
    """Of the bytes of arrays in host memory, or of PyTorch's tensors anywhere."""
    sha = hashlib.sha256()
    for part in parts:
        if hasattr(part, "cpu"):
            part = part.detach().cpu().contiguous().numpy()
        sha.update(part.tobytes())
    return sha.hexdigest()[:32]


def steps(options, more=""):
    """Says that the program is ready, then counts, with the pauses asked for."""
    print(f"ready pid {os.getpid()} {more}".rstrip(), flush=True)
    for n in range(1, options.steps + 1):
        yield n
        time.sleep(options.interval_ms / 1000)


def say(n, text):
    print(f"step {n} {text}", flush=True)
