"""States as torch.save writes them."""

import io

import torch


def to_bytes(content: object) -> bytes:
    """The content of the file."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()
