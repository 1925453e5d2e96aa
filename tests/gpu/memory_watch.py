# SPDX-License-Identifier: MIT
"""How much memory of its own each of brumate's processes has at most, while something runs beside."""

import re
import threading

EVERY_S = 0.05
WHO = ("brumate-shim", "brumate-broker", "brumate-keeper", "criu")


def own_bytes(pid):
    """Private memory: without what is shared, as the pool, its copies and pages of files are."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = re.search(r"^RssAnon:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return 0  # it has ended
    return int(found[1]) << 10 if found else 0


class MemoryWatch:
    """Between `with` and its end: .most, bytes by name, of the largest process of that name."""

    def __init__(self, instance):
        self.instance = instance
        self.most = {}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def watch(self):
        while not self.over.wait(EVERY_S):
            for pid, command in self.instance.processes():
                for who in WHO:
                    if who in command.split(" ")[0]:
                        self.most[who] = max(own_bytes(pid), self.most.get(who, 0))

    def tell(self, check, what):
        for who, most in sorted(self.most.items()):
            check.measured[f"{what}: memory of its own, {who}, MB"] = round(most / 1e6)
