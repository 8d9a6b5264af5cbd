"""States as torch.save writes them, a part that is no module, and checkpoints of a few bytes."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.memory.state_memory import StateMemory
from ddpjob_session.state import from_bytes


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


def newest_state(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint holds."""
    latest = max((folder / "checkpoints").glob("step-*.json"), key=lambda p: int(p.name.split("-")[1]))
    assert json.loads(latest.read_text())["num_bytes"] == latest.with_suffix(".pt").stat().st_size
    return from_bytes(latest.with_suffix(".pt").read_bytes())


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Nested values are equal, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys(), where
        for key, value in a.items():
            assert_same(value, b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert a == b, where


def restored(memory: StateMemory, moved: Callable[[], None], *, at_least: int = 0) -> bool:
    """Whether a state was found in memory, which is loaded then."""
    found = memory.find(moved, at_least=at_least)
    if found is not None:
        memory.load(found)
    return found is not None
