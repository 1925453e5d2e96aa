# SPDX-License-Identifier: MIT
"""Our own: what servers such as nginx ask of their sockets, so that they are woken less, or for less."""
import socket
import struct
from report import same, steps

TCP, IP, IP6, SOCK, UDP = socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.SOL_SOCKET, socket.IPPROTO_UDP
WANTED = {
    "tcp": [(TCP, 9, 5), (TCP, 23, 16), (TCP, 27, 1), (TCP, 34, 1), (TCP, 2, 900), (TCP, 37, 500), (TCP, 28, 1), (SOCK, 47, 65536), (SOCK, 74, 0)],
    "udp": [(UDP, 104, 1), (UDP, 103, 512), (UDP, 101, 1), (UDP, 102, 1), (SOCK, 37, 16 | 8), (SOCK, 35, 1), (SOCK, 43, 1), (SOCK, 45, 1),
            (SOCK, 75, 1), (SOCK, 82, 1), (IP, 20, 1), (IP, 23, 1), (IP, 50, socket.htonl(1)), (IP, 51, 40000 | 50000 << 16), (IP, 12, 1), (IP, 7, 1)],
    "udp6": [(IP6, 62, 1), (IP6, 70, 1), (IP6, 29, 0), (IP6, 78, 1), (IP6, 60, 1), (IP6, 74, 1), (IP6, 72, 1), (IP6, 33, 1), (IP6, 54, 1), (IP6, 56, 1),
             (IP6, 76, socket.htonl(1)), (IP6, 77, 1), (IP6, 31, 1)],
    "unix": [(SOCK, 76, 1), (SOCK, 83, 0), (SOCK, 42, 0)],
}
sockets = {"tcp": socket.socket(), "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
           "udp6": socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), "unix": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)}
sockets["tcp"].bind(("127.0.0.1", 0))
sockets["tcp"].listen()


def options():
    found = {}
    for name, s in sockets.items():
        for level, option, _ in WANTED[name]:
            try:
                found[name, int(level), option] = s.getsockopt(level, option, 4)
            except OSError:
                pass
    return found


for name, s in sockets.items():
    for level, option, value in WANTED[name]:
        try:
            s.setsockopt(level, option, struct.pack("I", value))
        except OSError:
            pass  # this kernel, or this user, has none
first = options()


def look(step):
    now = options()
    same("options", {key: now[key] for key in first if now[key] != first[key]}, {})


steps(look)
