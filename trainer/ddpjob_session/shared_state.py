"""One rank's state on all ranks, once in the memory of each node.

With a buffer for each rank, and the tensors that are loaded from it, eight ranks of a node would need sixteen times the state.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from ddpjob_ranks import contract
from ddpjob_ranks.distributed import PIECE_BYTES, Gang
from ddpjob_session.state import from_bytes

#: A file in memory as the ranks of its node find it: the path of its descriptor, and what that is a link to.
Offer = tuple[str, str]


def receive(
    ranks: Gang,
    payload: bytearray | memoryview | None,
    moved: Callable[[], None],
    *,
    source: int = 0,
    is_first_of_node: bool | None = None,
    find: Callable[[Sequence[Offer | None]], int | None] | None = None,
) -> dict[str, Any] | None:
    """What `torch.save` has made the payload of on rank `source`, loaded on all ranks; None if it has none there.

    Large tensors are views into the file of the node, which takes memory as long as one of them is in use. `moved` is called
    after each piece that was sent. `find` opens what another rank of the node offers.
    """
    if ranks.world_size == 1:
        return None if payload is None else from_bytes(memoryview(payload))
    if (size := ranks.all_gather(None if payload is None else len(payload))[source]) is None:
        return None
    if is_first_of_node is None:
        is_first_of_node = os.environ.get(contract.LOCAL_RANK, "0") == "0"
    file = _created() if is_first_of_node or ranks.rank == source else None
    offers = ranks.all_gather(None if file is None else _offer(file))
    found = None if file is not None else (find or _found)(offers)
    if found is None and file is None:
        file = _created()  # the files of other ranks are out of reach, as from another container
    num_files = sum(ranks.all_gather(file is not None))
    if file is not None:
        os.ftruncate(file, size)
    target = None if file is None else torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    if payload is not None and target is not None:
        target.copy_(torch.frombuffer(payload, dtype=torch.uint8))
    if num_files > 1:
        _send(ranks, target, size, moved, source)
    ranks.all_gather(None)  # the files are complete
    opened = file if file is not None else found
    try:
        content: dict[str, Any] = torch.load(
            f"/proc/self/fd/{opened}", map_location="cpu", mmap=True, weights_only=True
        )
    finally:
        os.close(opened)  # type: ignore[arg-type] # one of both is there
    return content


def _send(ranks: Gang, target: torch.Tensor | None, size: int, moved: Callable[[], None], source: int) -> None:
    """Send the file of the source to those that have one too; the others take part without keeping it."""
    nowhere = torch.empty(min(size, PIECE_BYTES) if target is None else 0, dtype=torch.uint8, device="cpu")
    for start in range(0, size, PIECE_BYTES):
        num_bytes = min(PIECE_BYTES, size - start)
        ranks.broadcast(nowhere[:num_bytes] if target is None else target[start : start + num_bytes], source)
        moved()


def _created() -> int:
    return os.memfd_create(f"ddpjob-state-{uuid4().hex}")


def _offer(file: int) -> Offer:
    return f"/proc/{os.getpid()}/fd/{file}", str(Path(f"/proc/self/fd/{file}").readlink())


def _found(offers: Sequence[Offer | None]) -> int | None:
    """A file that another rank of this node offers, opened; None if there is none within reach."""
    for offer in offers:
        if offer is not None:
            with suppress(OSError):  # of another node, on which the path is no such file
                path, target = offer
                if str(Path(path).readlink()) == target:
                    return os.open(path, os.O_RDONLY)
    return None
