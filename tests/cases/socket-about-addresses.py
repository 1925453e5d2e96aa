# SPDX-License-Identifier: MIT
"""criu#1470: a socket that the kernel tells of addresses and links, as NCCL, UCX and many runtimes keep one."""
import socket
import struct
from report import same, steps

route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
route.bind((0, 0))
number = route.getsockname()[0]
RTM_GETLINK, REQUEST_DUMP, DONE = 18, 0x301, 3


def look(step):
    route.send(struct.pack("IHHII", 32, RTM_GETLINK, REQUEST_DUMP, step, 0) + bytes(16))
    route.settimeout(20)
    seen = b""
    while True:
        text = route.recv(1 << 16)
        seen += text
        if struct.unpack("IHH", text[:8])[1] == DONE:
            break
    same("lo", b"lo\0" in seen, True)
    same("its number", route.getsockname()[0], number)


steps(look)
