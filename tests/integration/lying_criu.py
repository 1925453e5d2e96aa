#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A CRIU that a user has taken over: it says over its socket what the file "lie" beside it tells, {"says": [...]}. Each word is
one of
  {"script": NAME, "pid": N}   a notification; the answer is waited for
  {"done": true, "pid": N}     that it has succeeded
  {"make": N, "exec": [...]}   makes a sibling of its own, as a CRIU that restores does, with this process id
  {"turn": N, "exec": [...]}   has the process that was made become another program
and it ends once all is said."""

import ctypes
import json
import os
import signal
import socket
import sys

from criu_images import message_of

NOTIFY, DUMP, RESTORE = 6, 1, 2
CLONE3, CLONE_PARENT = 435, 0x8000
FLAGS, EXIT_SIGNAL, SET_TID, SET_TID_SIZE, FIELDS = 0, 4, 8, 9, 11


def answer(kind, *fields):
    return message_of([(1, 0, kind), (2, 0, 1), *fields])


def make(pid, argv):
    """A child of whoever is our parent, with that number."""
    wanted = ctypes.c_int32(pid)
    args = (ctypes.c_uint64 * FIELDS)()
    args[FLAGS] = CLONE_PARENT
    args[SET_TID], args[SET_TID_SIZE] = ctypes.addressof(wanted), 1
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(CLONE3, args, ctypes.sizeof(args))
    if made == 0:
        os.setsid()
        os.execv(argv[0], argv)
    if made != pid:
        sys.exit(f"process {pid} cannot be made: {os.strerror(ctypes.get_errno())}")


def comm(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def await_program(pid, argv):
    while comm(pid) != os.path.basename(argv[0])[:15]:
        pass


def say(words, to):
    if "script" in words:
        to.send(answer(NOTIFY, (5, 2, message_of([(1, 2, words["script"].encode()), (2, 0, words["pid"])]))))
        to.recv(1 << 16)
    elif "done" in words:
        fields = [(4, 2, message_of([(1, 0, words["pid"])]))] if words.get("pid") else []
        to.send(answer(RESTORE if fields else DUMP, *fields))
    elif "make" in words:
        make(words["make"], words["exec"])
        await_program(words["make"], words["exec"])
    elif "turn" in words:
        os.kill(words["turn"], signal.SIGUSR1)
        await_program(words["turn"], words["exec"])


def main():
    if "--version" in sys.argv:
        print("Version: 4.2.1")
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # what is made waits for it
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lie"), encoding="utf-8") as file:
        lie = json.load(file)
    with socket.socket(fileno=int(sys.argv[sys.argv.index("swrk") + 1])) as to:
        to.recv(1 << 16)
        for words in lie["says"]:
            say(words, to)


main()
