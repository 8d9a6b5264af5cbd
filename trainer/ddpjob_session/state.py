"""The state of a training: its parts, the number of steps done, and the random numbers of each rank.

A checkpoint holds the state of rank 0, so every part must be equal on all ranks. The generators of random numbers, and the
parts of which a script says so, are saved for each rank.
"""

import hashlib
import io
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils._pytree import (
    tree_flatten,
    tree_leaves,
    tree_map_only,
)  # private, but torch.distributed.checkpoint is built on it

from ddpjob_ranks.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # of collections.abc from Python 3.12 on

#: Values of these types are saved and loaded whatever they are; another one may contain anything, such as a set.
PLAIN = int | float | bool | str | bytes | None
#: Types of which torch adds values; the bytes of another one are added.
SUMMABLE = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
#: What else the checkpoint of a script holds; no part may have one of these names.
RESERVED = ("step", "world_size", "random", "session_settings", "places")


@runtime_checkable
class Stateful(Protocol):
    """A part of a training that can be saved, such as a model, an optimizer, a scheduler or a sampler."""

    def state_dict(self) -> Any:
        """The state, of tensors, numbers, strings, None, lists, tuples and dictionaries."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state."""


class State:
    """The parts of a training after `step` steps.

    Args:
        parts: What is saved, by name.
        program: What the parts belong to, as messages name it.
        world_size: Number of ranks, which a checkpoint records.
    """

    keeps_generators = False
    """Whether the random numbers of a step depend on those that were drawn before; otherwise they are functions of the step."""

    def __init__(self, parts: Mapping[str, Stateful], *, program: str, world_size: int = 1) -> None:
        self.parts = parts
        self.program = program
        self.world_size = world_size
        self.step = 0
        """Steps done since the beginning of the training, in all attempts."""
        self.random: list[Any] | None = None
        """The generators of each rank at the last checkpoint, by rank; None if they are not kept."""
        self.own: Mapping[str, Stateful] = {}
        """Parts of this rank alone, by name. They are saved with its generators."""
        self.new: Collection[str] = ()
        """Names of parts that a checkpoint may lack. They stay as they are."""
        self._loadable: object = None
        """Structure and types of the content that `check_loadable` has accepted."""

    def content(self) -> dict[str, Any]:
        """The whole state as a checkpoint holds it; the tensors are those of the parts, not copies."""
        more: dict[str, Any] = {} if self.random is None else {"random": self.random}
        parts = {name: plain(part.state_dict()) for name, part in self.parts.items()}
        return {"step": self.step, "world_size": self.world_size, **more, **parts}

    def load(self, content: dict[str, Any]) -> str:
        """Load what `content` returned, whose parts it removes. Returns who saved it, for the log.

        Raises:
            ConfigError: it is the state of another training.
        """
        step = content["step"]
        try:
            for name, part in self.parts.items():
                if name in self.new and name not in content:
                    continue
                part.load_state_dict(content.pop(name))  # so that only one part at a time is there twice
                if isinstance(part, torch.optim.Optimizer):
                    _lay_out_like_parameters(part)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"checkpoint at step {step} does not fit {self.program}: {error};"
                " rename the job or remove its checkpoint folder to start from step 0"
            ) from error
        self.step, self.random = step, content.get("random")
        num_ranks = content["world_size"]
        return f"saved by {num_ranks} rank{'' if num_ranks == 1 else 's'}"

    def check_loadable(self, content: dict[str, Any] | None = None) -> None:
        """Check that `from_bytes` will read what `torch.save` makes of this state or of a copy of it, without copying any tensor.

        Raises:
            ConfigError: it will not; the text names the first value that is of a type that torch does not load.
        """
        if content is None:
            content = self.content() | {name: plain(part.state_dict()) for name, part in self.own.items()}
        leaves, structure = tree_flatten(content)
        # The structure as text, in which numpy.int64(1) is another key than 1.
        alike = repr(structure), [type(leaf) for leaf in leaves]
        # To save the skeleton of a ResNet-50 with momentum takes 31 ms (AMD EPYC), a few other values 0.1 ms.
        others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor | PLAIN)]
        if alike == self._loadable and not (others and _unloadable(others, "state")):
            return
        skeleton = tree_map_only(torch.Tensor, lambda tensor: tensor.new_empty(0), content)
        if found := _unloadable(skeleton, "state"):
            name, kind = found
            raise ConfigError(
                f"{self.program}: {name} is of type {kind.__module__}.{kind.__qualname__}, which could be saved"
                " in a checkpoint but not loaded (torch.load with weights_only=True); use tensors, numbers, strings, lists,"
                " tuples and dictionaries"
            )
        self._loadable = alike


class ScriptState(State):
    """The state of a script's training. A checkpoint records its settings, and the log names those that have changed since."""

    keeps_generators = True

    def __init__(
        self, parts: Mapping[str, Stateful], *, program: str, world_size: int, settings: Mapping[str, str]
    ) -> None:
        """`settings` are values as text."""
        super().__init__(parts, program=program, world_size=world_size)
        # Of those that can be compared: a value may be secret, and the text of an object may have its address.
        self._digests = {
            name: hashlib.sha256(value.encode()).hexdigest()[:16]
            for name, value in settings.items()
            if " at 0x" not in value
        }

        self.places: dict[str, list[float]] = {}
        """Of each loader, by number: the samples in a step, and the steps in an epoch, by which a step is a place in the data."""

    def content(self) -> dict[str, Any]:
        """See `State`."""
        more = {"session_settings": self._digests, "places": self.places}
        return {**super().content(), **{name: value for name, value in more.items() if value}}

    def load(self, content: dict[str, Any]) -> str:
        """See `State`. A setting that only this run or the one that saved has is no change."""
        saved = content.get("session_settings", {})
        saved_by = super().load(content)
        self.places = content.get("places", {})
        changed = [name for name, digest in self._digests.items() if saved.get(name, digest) != digest]
        if changed:
            saved_by += (
                f"; settings that have changed since: {', '.join(changed)}; the tracked parts continue as saved, an optimizer"
                " with its saved learning rate"
            )
        return saved_by


def load_own(state: State, *, rank: int, world_size: int) -> None:
    """Load the parts of this rank alone from what `state.load` or the memory of the ranks has found.

    Raises:
        ConfigError: another number of ranks has saved them, and a part has no `load_state_dicts`, or they are not there.
    """
    ranks = [known.get("parts", {}) if known else {} for known in state.random or ()]
    for name, part in state.own.items():
        saved = [parts[name] for parts in ranks if name in parts]
        if not saved:
            if name in state.new:
                continue
            problem = f"it has no {name}; to begin with it as it is, name it: track(..., new=[{name!r}])"
        elif len(saved) == world_size:
            part.load_state_dict(saved[rank])
            continue
        elif hasattr(part, "load_state_dicts"):
            part.load_state_dicts(saved, rank, world_size)
            continue
        else:
            problem = (
                f"{name} was saved for each of {len(saved)} ranks, and there are {world_size} now; train on {len(saved)} ranks, or"
                f" give {type(part).__name__} a method load_state_dicts(states, rank, world_size) that says how it is split"
            )
        raise ConfigError(f"checkpoint at step {state.step} does not fit {state.program}: {problem}")


def digests(state: State) -> dict[str, str]:
    """Of each part that is no module, without its tensors: what ranks can compare, since only one rank's is saved."""
    found = {}
    for name, part in state.parts.items():
        if not isinstance(part, torch.nn.Module):
            leaves, structure = tree_flatten(part.state_dict())
            values = [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
            found[name] = hashlib.sha256(repr((structure, values)).encode()).hexdigest()
    return found


def fingerprints(state: State) -> dict[str, str]:
    """Of each module, with the values of its tensors."""
    found = {}
    for name, part in state.parts.items():
        if isinstance(part, torch.nn.Module):
            sums = [_sum(tensor.detach()) for tensor in (*part.parameters(), *part.buffers())]
            found[name] = hashlib.sha256(repr(sums).encode()).hexdigest()
    return found


def _sum(tensor: torch.Tensor) -> float:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return 0.0
    if tensor.dtype not in SUMMABLE:
        tensor = tensor.contiguous().reshape(-1).view(torch.uint8)
    return float(tensor.sum(dtype=torch.float64))


def plain(value: Any) -> Any:
    """The same with Python's numbers in the place of NumPy's, as a schedule may give for a learning rate: torch does not load those."""
    if any(isinstance(leaf, np.generic) for leaf in tree_leaves(value)):
        return tree_map_only(np.generic, lambda number: number.item(), value)
    return value


def from_bytes(payload: bytes | memoryview) -> dict[str, Any]:
    """The content of a file of torch.save, its tensors on the CPU. No code in the file is run."""
    content: dict[str, Any] = torch.load(io.BufferedReader(_Reader(payload)), map_location="cpu", weights_only=True)
    return content


class _Reader(io.RawIOBase):
    """A file in memory that is read without a copy of the whole, which io.BytesIO would make."""

    def __init__(self, payload: bytes | memoryview) -> None:
        self._payload = memoryview(payload)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: "Buffer", /) -> int:
        wanted = memoryview(target).cast("B")
        found = self._payload[self._position : self._position + len(wanted)]
        wanted[: len(found)] = found
        self._position += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._payload)}[whence]
        return self._position


def _unloadable(value: Any, name: str) -> tuple[str, type] | None:
    """Name and type of the first value that torch does not load after saving it; None if there is none."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        from_bytes(file.getvalue())
    except Exception:  # noqa: BLE001 - pickle and torch raise many types for values that they do not know
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        for key, item in items:
            if found := _unloadable(item, f"{name}[{key!r}]"):
                return found
        return name, type(value)
    return None


def _lay_out_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded optimizer state memory of its own, in the memory format of its parameter.

    A momentum saved under another profile may have another format. `load_state_dict` keeps it, and fused updates then
    refuse it on GPUs and pair wrong elements on CPUs.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                like = parameter if value.ndim and value.shape == parameter.shape else value
                state[key] = torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)
