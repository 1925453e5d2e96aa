# SPDX-License-Identifier: MIT
"""Builds the wheel, as pip asks for it (PEP 517). The package is a few files of Python, so that nothing has to be fetched
to build it."""

import base64
import hashlib
import os
import zipfile

NAME, VERSION = "brumate", "0.1.0"
HERE = os.path.dirname(os.path.abspath(__file__))
INFO = f"{NAME}-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Checkpoint and restore GPU programs with brumate
License: MIT
Requires-Python: >=3.8
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: brumate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _files():
    folder = os.path.join(HERE, NAME)
    for name in sorted(os.listdir(folder)):
        if name.endswith((".py", ".typed")):
            with open(os.path.join(folder, name), "rb") as file:
                yield f"{NAME}/{name}", file.read()
    yield f"{INFO}/METADATA", METADATA.encode()
    yield f"{INFO}/WHEEL", WHEEL.encode()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel into wheel_directory; its name."""
    wheel = f"{NAME}-{VERSION}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _files():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            archive.writestr(zipfile.ZipInfo(name), data)
        record.append(f"{INFO}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD"), "".join(record))
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("there is no source distribution: install from the source tree")
