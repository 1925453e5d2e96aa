# SPDX-License-Identifier: MIT
"""criu#2511 and monitors such as psutil: files of /proc stay open, of the process itself and of another."""
import os
from report import in_child, same, sleep_on, steps

pid = in_child(sleep_on)
files = [open(name, encoding="utf-8") for name in ("/proc/self/stat", f"/proc/{pid}/stat", "/proc/meminfo", "/proc/self/status")]
folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)


def look(step):
    for file, number in zip(files, (os.getpid(), pid)):
        file.seek(0)
        same("the process", int(file.read().split()[0]), number)
    files[2].seek(0)
    same("memory", "MemTotal" in files[2].read(), True)
    files[3].seek(0)
    same("status", f"Pid:\t{os.getpid()}\n" in files[3].read(), True)
    same("in the folder", os.readlink("cwd", dir_fd=folder), os.getcwd())


steps(look)
