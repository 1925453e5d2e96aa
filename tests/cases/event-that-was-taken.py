# SPDX-License-Identifier: MIT
"""Our own: an epoll tells an event once (EPOLLONESHOT), and no more until it is asked to again, whatever happens meanwhile."""
import os
import select
from report import same, steps

read_end, write_end = os.pipe()
epoll = select.epoll()
epoll.register(read_end, select.EPOLLIN | select.EPOLLONESHOT)
os.write(write_end, b"first")
same("the first event", epoll.poll(10), [(read_end, select.EPOLLIN)])


def look(step):
    same("an event that was taken", epoll.poll(0), [])
    epoll.modify(read_end, select.EPOLLIN | select.EPOLLONESHOT)
    same("an event that was asked for", epoll.poll(10), [(read_end, select.EPOLLIN)])


steps(look)
