#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the documents show of a terminal is what a reader sees: the blocks ```console of a page are typed into one shell, and
the output is compared, but for ids, times, sizes and speeds."""

import os
import re
import select
import shutil
import subprocess
import time

from cases import SOURCE, Failed, Skipped, case, expect, main, read_text, run

# What differs from one time to the next, and what stands for it on both sides.
DIFFERS = [
    (r"GPU-[0-9a-f…-]+?([01]?)(?=\s|$)", r"GPU-\1"),
    (r"/[^ ]*/checkpoints/", "STORE/"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "WHEN"),
    (r"\b\d{8}-\d{6}\b", "WHEN"),
    (r"\b(?=[0-9a-f]*\d|c0ffee|[a-f]{8}\b)[0-9a-f]{8}\b", "ID"),
    (r"[\d.]+ [KMG]?i?B\b", "SIZE"),
    (r"\b\d+ files", "N files"),
    (r"[\d.]+ GB/s", "SPEED"),
    (r"(<\d+|[\d.]+) m?s\b|\d+m\d+s", "TIME"),
    (r"\bpid \d+", "pid N"),
    (r"\bstep (?!1 )\d+", "step N"),
    (r", copied behind it in TIME", ""),
]
END = "this command has ended with"


def alike(text):
    for pattern, word in DIFFERS:
        text = re.sub(pattern, word, text)
    return text.rstrip()


def commands_of(page):
    """[(command, what the page shows below it)] of a page's blocks."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", read_text(os.path.join(SOURCE, page)), re.M | re.S):
        expect(block.startswith("$ "), f"{page}: a block does not begin with a command: {block[:60]}")
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    expect(found, f"{page} shows no command")
    return found


class Shell:
    """A shell that stays, as a reader's does."""

    def __init__(self, env, cwd):
        self.process = subprocess.Popen(["bash", "--norc", "--noprofile"], env=env, cwd=cwd, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def type(self, command, seconds=120):
        """What a command prints, to its end; its exit status must be 0."""
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\necho {END} $?\n".encode())
        self.process.stdin.flush()
        shown, deadline = "", time.monotonic() + seconds
        while True:
            found = re.search(rf"^{END} (\d+)\n", shown, re.M)
            if found:
                expect(found.group(1) == "0", f"{command}: exit {found.group(1)}: {shown}")
                return shown[:found.start()]
            expect(select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))[0],
                   f"{command}: no end within {seconds} s: {shown}")
            data = os.read(self.process.stdout.fileno(), 65536).decode()
            expect(data, f"{command} ended the shell: {shown}")
            shown += data

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def is_as_shown(bed, page):
    """All of a page, from nothing; what it starts it also ends."""
    env = {key: value for key, value in bed.command_env().items() if key not in ("BRUMATE_SIM_VRAM_MIB", "BRUMATE_GPU")}
    programs = os.path.dirname(bed.brumate)
    env["PATH"] = f"{programs}:{env['PATH']}"
    shell = Shell(env, bed.dir)
    try:
        for command, shown in commands_of(page):
            output = shell.type(command)
            if alike(output) != alike(shown):
                raise Failed(f"{page}: {command}\nshows:\n{shown}\nbut prints:\n{output}")
    finally:
        bed.jobs += [job["id"] for job in bed.list("ps", "jobs")]
        shell.close()


@case
def readme_first_job(bed):
    is_as_shown(bed, "README.md")


@case
def tutorial(bed):
    is_as_shown(bed, os.path.join("docs", "tutorial.md"))


@case
def questions(bed):
    is_as_shown(bed, os.path.join("docs", "questions.md"))


@case
def links_of_what_is_installed(bed):
    """Of the pages that a package has beside the programs: to each other, and to pictures."""
    to = os.path.join(bed.dir, "doc")
    done = run([os.path.join(SOURCE, "tools", "copy-documents"), to])
    expect(done.code == 0, done.why())
    pages = [os.path.join(base, name) for base, _, names in os.walk(to) for name in names if name.endswith(".md")]
    links = [(page, found) for page in pages for found in re.findall(r"\]\(([^)#:\s]+)(?:#[\w-]+)?\)", read_text(page))]
    dead = [f"{page}: {link}" for page, link in links if not os.path.exists(os.path.join(os.path.dirname(page), link))]
    expect(not dead, "\n".join(dead))
    expect(len(pages) > 35 and len(links) > 200, f"{len(pages)} pages, {len(links)} links")
    expect(all(os.path.isfile(os.path.join(to, name)) for name in ("docs/session.svg", "docs/timeline.svg", "CHANGELOG.md")), "a picture")


def man_pages(bed):
    folder = os.path.join(bed.build.path, "docs", "man")
    found = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if re.search(r"\.[1-8]$", name)] \
        if os.path.isdir(folder) else []
    if not found or not all(map(shutil.which, ("man", "groff"))):
        raise Skipped("no man pages were built, or man and groff are not installed")
    return found


def formatted(page):
    result = run(["man", "--warnings", "-E", "UTF-8", "-l", page],
                 env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANROFFOPT": "", "PAGER": "cat"})
    expect(result.code == 0, result.why())
    return result


@case
def man_pages_have_no_warnings(bed):
    for page in man_pages(bed):
        warned = formatted(page).err.strip()
        expect(not warned, f"{os.path.basename(page)}: {warned}")


@case
def each_section_of_the_configuration_is_visible(bed):
    page = next(path for path in man_pages(bed) if path.endswith("brumate.conf.5"))
    heads = re.findall(r"^(\[\w+\])", re.sub(r"\x1b\[[\d;]*m|.\x08", "", formatted(page).out), re.M)
    sections = re.findall(r"^\[(\w+)\]", read_text(os.path.join(SOURCE, "data", "brumate.conf")), re.M)
    expect(set(f"[{name}]" for name in sections) == set(heads), f"{heads} for {sections}")


main()
