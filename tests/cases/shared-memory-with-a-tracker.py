# SPDX-License-Identifier: MIT
"""vllm#8803, #5468: a process of multiprocessing's keeps a list of shared memory, and removes what is left at the end."""
import multiprocessing
from multiprocessing import resource_tracker, shared_memory
from report import same, steps

memory = shared_memory.SharedMemory(create=True, size=1 << 16)
tracker = resource_tracker._resource_tracker._pid
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()


def work(name):
    its = shared_memory.SharedMemory(name=name)
    while True:
        n = theirs.recv()
        its.buf[:8] = n.to_bytes(8, "little")
        theirs.send(n)


worker = context.Process(target=work, args=(memory.name,), daemon=True)
worker.start()


def look(step):
    ours.send(step)
    same("the answer", ours.recv(), step)
    same("what is shared", int.from_bytes(memory.buf[:8], "little"), step)
    same("the tracker", (resource_tracker._resource_tracker._pid, resource_tracker._resource_tracker._check_alive()), (tracker, True))
    more = shared_memory.SharedMemory(create=True, size=4096)
    more.close()
    more.unlink()


steps(look)
