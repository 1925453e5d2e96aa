# SPDX-License-Identifier: MIT
"""criu#2675: processes share a semaphore whose file in /dev/shm is deleted, as multiprocessing's are."""
import multiprocessing
from report import in_child, same, steps

ask, answer = multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)


def child():
    while True:
        ask.acquire()
        answer.release()


in_child(child)


def look(step):
    ask.release()
    same("an answer", answer.acquire(timeout=20), True)


steps(look)
