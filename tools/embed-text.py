#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a C source that holds text files as strings: embed-text.py OUTPUT HEADER NAME=FILE..."""

import sys


def quote(line):
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


def main():
    output, header, *pairs = sys.argv[1:]
    with open(output, "w", encoding="utf-8") as out:
        out.write(f'#include "{header}"\n')
        for pair in pairs:
            name, path = pair.split("=", 1)
            with open(path, encoding="utf-8") as text:
                lines = "\n\t".join(quote(line) for line in text.read().splitlines())
            out.write(f"\nconst char {name}[] =\n\t{lines};\n")


main()
