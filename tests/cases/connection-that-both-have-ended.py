# SPDX-License-Identifier: MIT
"""A client that reads slowly: a TCP connection that both ends have closed for sending, with data that one has not read."""
import socket
from report import same, steps

with socket.create_server(("127.0.0.1", 0)) as server:
    near = socket.create_connection(server.getsockname())
    far = server.accept()[0]
far.sendall(b"the last words")
far.shutdown(socket.SHUT_WR)
same("the end", near.recv(14, socket.MSG_PEEK | socket.MSG_WAITALL), b"the last words")
near.shutdown(socket.SHUT_WR)
same("the other end", far.recv(1), b"")


def look(_):
    same("what was not read", near.recv(100, socket.MSG_PEEK), b"the last words")


steps(look)
