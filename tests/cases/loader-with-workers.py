# SPDX-License-Identifier: MIT
"""ray#42861: workers of a data loader: a pool of processes with threads that move tasks, pipes, and a manager with a server."""
import multiprocessing
from report import same, steps

def square(n):
    return n * n


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    manager = multiprocessing.Manager()
    shared = manager.dict()
    pool = multiprocessing.Pool(3)

    def look(step):
        same("squares", pool.map(square, range(20)), [n * n for n in range(20)])
        shared["step"] = step
        same("the manager", dict(shared), {"step": step})

    steps(look)
