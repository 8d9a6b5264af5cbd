"""A rank as its launcher describes it, for tests that care about a part of that."""

from typing import Any

from ddpjob_ranks.launch.identity import Worker


def worker(rank: int = 0, world_size: int = 1, **changes: Any) -> Worker:
    """The only rank of its node, but for the changes."""
    fields: dict[str, Any] = {
        "launcher": "environment",
        "rank": rank,
        "world_size": world_size,
        "local_rank": 0,
        "local_world_size": 1,
        "master_addr": "127.0.0.1",
        "master_port": 29500,
    }
    return Worker(**{**fields, **changes})
