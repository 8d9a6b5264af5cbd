"""Free TCP ports for the servers of one instance."""

from __future__ import annotations

import random
import socket

#: Below the kernel's range for outgoing connections (from 32768), so none of those takes a port between its choice and its
#: use; below Kubernetes' NodePorts (from 30000) too.
_RANGE = range(20000, 29900)


def free(count: int) -> list[int]:
    """`count` different ports that no process listens on, at any address of this machine."""
    found: list[int] = []
    # Not for secrecy: instances that start together must not walk through the same ports.
    for port in random.sample(_RANGE, len(_RANGE)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} free TCP ports from {_RANGE.start} to {_RANGE.stop - 1}")
