#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A CRIU that a user has taken over: it says over its socket what the file "lie" beside it tells, {"says": [...]}. Each word is
one of
  {"script": NAME, "pid": N}   a notification; the answer is waited for
  {"done": true, "pid": N}     that it has succeeded
  {"make": N, "exec": [...]}   makes a sibling of its own, as a CRIU that restores does, with this process id; where
                               "child" is true a child, which stays in its process group; "comm" is the name of the
                               program, where that is not the one by whose file it starts
  {"turn": N, "exec": [...]}   has the process that was made become another program
  {"failed": N}                that it has failed, with this errno
  {"ends": N}                  ends by this signal
  {"touch": PATH}              makes a file
  {"await": PATH}              waits for one
  {"move": PATH}               moves a file into the directory of the images, in the place of one of that name
  {"read": NAME, "note": PATH} reads a file there, and adds a line to another one: "read", or why not
  {"pipe": NAME}               puts a pipe there in the place of a file
  {"open": MODE}               changes the mode of that directory
  {"log": WORD, "times": N}    writes a word to its log, again and again
and it ends once all is said."""

import ctypes
import json
import os
import signal
import socket
import sys

from criu_images import fields_of, message_of

NOTIFY, DUMP, RESTORE = 6, 1, 2
OPTIONS, IMAGES_FD, LOG_NAME, WORK_FD = 2, 1, 10, 17
CLONE3, CLONE_PARENT = 435, 0x8000
FLAGS, EXIT_SIGNAL, SET_TID, SET_TID_SIZE, FIELDS = 0, 4, 8, 9, 11


def answer(kind, *fields):
    return message_of([(1, 0, kind), (2, 0, 1), *fields])


def make(pid, argv, is_child):
    """A child of whoever is our parent, or of ours, with that number."""
    wanted = ctypes.c_int32(pid)
    args = (ctypes.c_uint64 * FIELDS)()
    args[FLAGS], args[EXIT_SIGNAL] = (0, signal.SIGCHLD) if is_child else (CLONE_PARENT, 0)
    args[SET_TID], args[SET_TID_SIZE] = ctypes.addressof(wanted), 1
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(CLONE3, args, ctypes.sizeof(args))
    if made == 0:
        if not is_child:
            os.setsid()
        os.execv(argv[0], argv)
    if made != pid:
        sys.exit(f"process {pid} cannot be made: {os.strerror(ctypes.get_errno())}")


def comm(pid):
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        return file.read().strip()


def await_program(pid, words):
    while comm(pid) != words.get("comm", os.path.basename(words["exec"][0])[:15]):
        pass


def value_of(fields, wanted):
    return next(value for field, _, value in fields if field == wanted)


class Directories:
    """What the request names; the descriptors are ours."""

    def __init__(self, request):
        options = fields_of(value_of(fields_of(request), OPTIONS))
        self.images, self.work = value_of(options, IMAGES_FD), value_of(options, WORK_FD)
        self.log = value_of(options, LOG_NAME).decode()


def note(path, text):
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def read_image(name, at):
    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=at), "rb") as file:
            file.read()
        return "read"
    except OSError as error:
        return error.strerror


def write_log(word, times, at):
    with open(os.open(at.log, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at.work), "w", encoding="utf-8") as file:
        file.write(word * times)


def change(words, at):
    """What it does to files."""
    if "touch" in words:
        note(words["touch"], "")
    elif "await" in words:
        while not os.path.exists(words["await"]):
            pass
    elif "move" in words and os.path.exists(words["move"]):
        os.rename(words["move"], os.path.basename(words["move"]), dst_dir_fd=at.images)
    elif "read" in words:
        note(words["note"], read_image(words["read"], at.images))
    elif "pipe" in words:
        os.mkfifo(words["pipe"] + ".new", dir_fd=at.images)
        os.rename(words["pipe"] + ".new", words["pipe"], src_dir_fd=at.images, dst_dir_fd=at.images)
    elif "open" in words:
        os.fchmod(at.images, words["open"])
    elif "log" in words:
        write_log(words["log"], words["times"], at)


def say(words, to):
    if "script" in words:
        to.send(answer(NOTIFY, (5, 2, message_of([(1, 2, words["script"].encode()), (2, 0, words["pid"])]))))
        to.recv(1 << 16)
    elif "done" in words:
        fields = [(4, 2, message_of([(1, 0, words["pid"])]))] if words.get("pid") else []
        to.send(answer(RESTORE if fields else DUMP, *fields))
    elif "failed" in words:
        to.send(message_of([(1, 0, RESTORE), (2, 0, 0), (7, 0, words["failed"])]))
    elif "make" in words:
        make(words["make"], words["exec"], words.get("child"))
        await_program(words["make"], words)
    elif "ends" in words:
        os.kill(os.getpid(), words["ends"])
    elif "turn" in words:
        os.kill(words["turn"], signal.SIGUSR1)
        await_program(words["turn"], words)


def main():
    if "--version" in sys.argv:
        print("Version: 4.2.1")
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # what is made waits for it
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lie"), encoding="utf-8") as file:
        lie = json.load(file)
    with socket.socket(fileno=int(sys.argv[sys.argv.index("swrk") + 1])) as to:
        at = Directories(to.recv(1 << 16))
        for words in lie["says"]:
            change(words, at)
            say(words, to)


main()
