"""What one run has decoded, for the next one: files in the folder that DDPJOB_CACHE_DIR names, by the hash of their source.

A cache never ends a training: an entry that is missing, damaged or cannot be written costs the time to decode. Entries are
not removed, because another job may use them; the whole folder may be removed at any time.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from ddpjob_ranks import contract
from ddpjob_session.checkpoints.files import Folder, make_folder
from ddpjob_session.checkpoints.storage import MAX_SMALL_BYTES

Tensors = dict[str, torch.Tensor]


def cached(
    identity: Callable[[], str], make: Callable[[], Tensors], environ: Mapping[str, str] = os.environ
) -> Tensors:
    """What `make` returns, read from the cache if an earlier run has stored it. One rank of each node stores it.

    Args:
        identity: The hash of everything that the result depends on. It is called only if there is a cache.
        make: Makes the tensors.
        environ: Names the folder and this rank.
    """
    if not (folder := environ.get(contract.DDPJOB_CACHE_DIR)):
        return make()
    place = Folder(Path(folder, "decoded"))
    began = time.monotonic()
    name = identity()
    if (found := _read(place, name)) is not None:
        say(f"data: read from the cache in {time.monotonic() - began:.1f} s ({place.location}/{name}.pt)", environ)
        return found
    made = make()
    if environ.get(contract.LOCAL_RANK, "0") == "0":
        try:
            make_folder(place.path)
            # The manifest is written last: without it the tensors are no entry. Another node may write the same ones.
            written = place.write(f"{name}.pt", partial(torch.save, made))
            place.write(f"{name}.json", lambda file: file.write(json.dumps({"sha256": written.sha256}).encode()))
        except OSError as error:
            say(f"data: not stored in the cache {place.location}: {error.strerror}", environ)
        else:
            say(f"data: decoded in {time.monotonic() - began:.1f} s and stored in the cache {place.location}", environ)
    return made


def _read(place: Folder, name: str) -> Tensors | None:
    """The stored tensors; None if there are none, or not those that were stored."""
    try:
        expected = json.loads(place.read(f"{name}.json", max_bytes=MAX_SMALL_BYTES)[0])["sha256"]
        content, sha256 = place.read(f"{name}.pt")
        tensors: Tensors = torch.load(io.BytesIO(content), weights_only=True) if sha256 == expected else {}
    except Exception:  # noqa: BLE001 - whatever is wrong with it: others may write there, too
        return None
    is_ours = isinstance(tensors, dict) and all(isinstance(value, torch.Tensor) for value in tensors.values())
    return tensors if is_ours and tensors else None


def say(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Print a line to the log, on rank 0 only."""
    if environ.get(contract.RANK, "0") == "0":
        print(text, file=sys.stderr, flush=True)
