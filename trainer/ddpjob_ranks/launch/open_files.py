"""How many files and sockets this process may open.

Many systems let a process open 1,024 files unless it asks for more. Rank 0 has more sockets than that from about 200
ranks on, and every rank from 500.
"""

import resource
import sys
from typing import Final

#: Of each rank, at rank 0: the process group's connection to the store and two of the watchdog's (measured, gloo, two
#: ranks), and a connection within the default and the control group, which connect every rank to every other one.
SOCKETS_OF_A_RANK: Final = 5
#: For whatever else a program opens: images, logs, its own connections.
OTHER_FILES: Final = 1024


def allow(world_size: int) -> None:
    """Raise the soft limit to what a rank of a group of this size needs, as far as the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SOCKETS_OF_A_RANK * world_size + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        print(
            f"this process may open {allowed} files, and {world_size} ranks may need {needed}: raise the hard limit"
            " (`ulimit -Hn`, or LimitNOFILE of the container runtime)",
            file=sys.stderr,
        )
