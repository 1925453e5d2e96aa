#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A network of two namespaces, for machines without `ip`: run in one of them, with the pid of a process in the other, it joins
them by a pair of links called eth0; with an address it gives that to eth0, in the place of what it had, and no neighbour is known any more.

    network.py join PID
    network.py address 10.77.0.1"""

import os
import socket
import struct
import sys

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_CREATE, NLM_F_EXCL = 1, 4, 0x300, 0x400, 0x200
NLMSG_ERROR, NLMSG_DONE, RTM_NEWLINK, RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 2, 3, 16, 20, 21, 22
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_PID, INFO_KIND, INFO_DATA, VETH_INFO_PEER = 3, 18, 19, 1, 2, 1
IFA_ADDRESS, IFA_LOCAL, IFF_UP, PREFIX = 1, 2, 1, 24
NAME = "eth0"


def attribute(kind, value):
    whole = struct.pack("=HH", len(value) + 4, kind) + value
    return whole + b"\0" * (-len(whole) % 4)


def link(index=0, flags=0, change=0):
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def address(index, prefix=0):
    return struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)


def ask(kind, flags, body):
    """The messages of the answer; OSError with the kernel's reason."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(struct.pack("=IHHII", len(body) + 16, kind, flags | NLM_F_REQUEST, 1, 0) + body)
        found = []
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, what = struct.unpack_from("=IH", data)
                body, data = data[16:length], data[length + -length % 4:]
                if what == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                if what in (NLMSG_ERROR, NLMSG_DONE):
                    return found
                found.append(body)


def up(name, flags=IFF_UP):
    ask(RTM_NEWLINK, NLM_F_ACK, link(socket.if_nametoindex(name), flags, IFF_UP))


def join(pid):
    name = attribute(IFLA_IFNAME, NAME.encode() + b"\0")
    peer = attribute(VETH_INFO_PEER, link() + name + attribute(IFLA_NET_NS_PID, struct.pack("=I", pid)))
    info = attribute(INFO_KIND, b"veth") + attribute(INFO_DATA, peer)
    ask(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, link() + name + attribute(IFLA_LINKINFO, info))


def set_address(text):
    index, packed = socket.if_nametoindex(NAME), socket.inet_aton(text)
    up("lo")
    up(NAME, 0)
    for old in ask(RTM_GETADDR, NLM_F_DUMP, address(0)):
        if struct.unpack_from("=I", old, 4)[0] == index:
            ask(RTM_DELADDR, NLM_F_ACK, old)
    ask(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE, address(index, PREFIX) + attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed))
    up(NAME)


def main():
    try:
        if sys.argv[1:2] == ["join"]:
            join(int(sys.argv[2]))
        else:
            set_address(sys.argv[2])
    except OSError as error:
        sys.exit(f"network namespaces: {' '.join(sys.argv[1:])}: {error.strerror}")


if __name__ == "__main__":
    main()
