# SPDX-License-Identifier: MIT
"""criu#1366: a child keeps an epoll that it inherited, and has closed what that watches."""
import select
import socket
from report import in_child, same, sleep_on, steps

one, other = socket.socketpair()
poll = select.epoll()
poll.register(one, select.EPOLLIN)


def child():
    one.close()
    sleep_on()


in_child(child)


def look(step):
    other.send(b"x")
    same("events", [event for _, event in poll.poll(1)], [select.EPOLLIN])
    one.recv(1)


steps(look)
