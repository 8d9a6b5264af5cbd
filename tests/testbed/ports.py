"""Free TCP ports for the servers of one instance."""

from __future__ import annotations

import random
import socket

#: Below the kernel's range for outgoing connections (from 32768), so none of those takes a port between its choice and its
#: use; below Kubernetes' NodePorts (from 30000) too.
_RANGE = range(20000, 29900)
#: Sockets of the ports that this process was given, so that no other test is given one of them before its server listens.
#: They do not listen, and every server that sets SO_REUSEADDR can.
_HELD: list[socket.socket] = []


def free(count: int) -> list[int]:
    """`count` different ports that no process has, at any address of this machine; they are this process's up to its end."""
    found: list[int] = []
    # Not for secrecy: instances that start together must not walk through the same ports.
    for port in random.sample(_RANGE, len(_RANGE)):
        holder = socket.socket()
        try:
            holder.bind(("", port))  # without SO_REUSEADDR, so that it fails where another process holds the port
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _HELD.append(holder)
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} free TCP ports from {_RANGE.start} to {_RANGE.stop - 1}")
