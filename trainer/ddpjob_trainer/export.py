"""Weights for use elsewhere: `model.safetensors` and `config.json`, after the last step and of the best evaluation.

The format (github.com/huggingface/safetensors, "Format"): the length of the header (8 bytes, little endian), the header
(JSON: type, shape and place of each tensor by its name), and the tensors' bytes. The files are next to the checkpoints.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.storage import ChecksummedFile

#: What files of the best evaluation have before their names.
BEST = "best-"
WEIGHTS, DESCRIPTION = "model.safetensors", "config.json"
DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(tensors: Mapping[str, torch.Tensor], file: ChecksummedFile) -> None:
    """Write tensors in the format safetensors, from any device.

    Raises:
        ValueError: a tensor is of a type that has no name here.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} is of type {tensor.dtype}, which safetensors files of this trainer cannot hold")
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        if tensor.nbytes:
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def is_safetensors(payload: bytes | memoryview) -> bool:
    """Whether this is a file of that format, and not one of torch.save, which is a ZIP archive or a pickle."""
    size = int.from_bytes(payload[:8], "little")
    return 2 <= size <= len(payload) - 8 and payload[8:9] == b"{"


def read_tensors(payload: bytes | memoryview) -> dict[str, Any]:
    """The tensors of a file in the format safetensors, by name.

    Raises:
        ValueError: it is damaged.
    """
    size = int.from_bytes(payload[:8], "little")
    header = json.loads(bytes(payload[8 : 8 + size]))
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = DTYPES.get(entry["dtype"]), entry["shape"], entry["data_offsets"]
        if dtype is None or not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(
                f"tensor {name}: type {entry['dtype']}, shape {shape}, bytes {begin} to {end} of {len(data)}"
            )
        tensors[name] = data[begin:end].clone().view(dtype).reshape(shape)
    return tensors


def save(
    checkpoints: CheckpointFolder, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any], *, prefix: str = ""
) -> None:
    """Write both files; the description last. To be called on rank 0, where a checkpoint is not written meanwhile.

    Raises:
        Fenced: a later attempt owns the folder.
        OSError: they could not be written.
    """
    checkpoints.claim.confirm()
    checkpoints.write(prefix + WEIGHTS, lambda file: write_tensors(tensors, file))
    text = json.dumps(facts, indent=2).encode() + b"\n"
    checkpoints.write(prefix + DESCRIPTION, lambda file: file.write(text))


def description(checkpoints: CheckpointFolder, *, prefix: str = "") -> Mapping[str, Any]:
    """What `config.json` says of the weights that are there; empty if there are none."""
    found = checkpoints.storage.look(prefix + DESCRIPTION)
    return {} if found is None else json.loads(found[0])
