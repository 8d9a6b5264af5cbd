"""States as torch.save writes them, a part that is no module, and checkpoints of a few bytes."""

import io
from collections.abc import Callable
from pathlib import Path

import torch

from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.memory.state_memory import StateMemory


class Sampler:
    """A part of a state that is no module: what it has drawn so far."""

    def __init__(self, *drawn: int) -> None:
        self.drawn = list(drawn)

    def state_dict(self) -> dict[str, list[int]]:
        """Its content."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state_dict: dict[str, list[int]]) -> None:
        """Take it over."""
        self.drawn = state_dict["drawn"]


def to_bytes(content: object) -> bytes:
    """The content of the file."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def save(checkpoints: CheckpointFolder, step: int, state: bytes) -> None:
    """Save a checkpoint whose state is these bytes."""
    checkpoints.save(step, lambda file: file.write(state))


def newest(checkpoints: CheckpointFolder) -> tuple[int, bytes] | None:
    """Step and state of the newest checkpoint; None if there is none."""
    found = checkpoints.load_newest()
    return None if found is None else (found[0].step, bytes(found[1]))


def folder(path: Path, *, uid: str = "u1", attempt: int = 1, replacement: int = 0, keep: int = 3) -> CheckpointFolder:
    """The folder as a pod of rank 0 in an attempt opens it."""
    owner = Owner(uid=uid, attempt=attempt, replacement=replacement)
    opened = CheckpointFolder(claim=Claim(storage=Folder(path), owner=owner), keep=keep, report=lambda _: None)
    opened.open()
    return opened


def restored(memory: StateMemory, moved: Callable[[], None], *, at_least: int = 0) -> bool:
    """Whether a state was found in memory, which is loaded then."""
    found = memory.find(moved, at_least=at_least)
    if found is not None:
        memory.load(found)
    return found is not None
