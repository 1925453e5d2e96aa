# SPDX-License-Identifier: MIT
"""The driver without any framework, found by dlopen."""

import ctypes


def load():
    """A function that calls the driver's by name; an error ends the program. OSError: there is no driver."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name, *args):
        result = getattr(library, name)(*args)
        if result:
            raise SystemExit(f"{name}: error {result} of the driver")

    return call
