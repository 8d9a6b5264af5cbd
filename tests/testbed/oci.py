"""Image archives in the OCI layout: read what one holds, and write one that holds a single static program."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError


class ArchiveError(TestbedError):
    """The file is not an OCI archive of one named image."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image: its full name with tag, and the digest of its manifest."""

    name: str
    digest: str


def read(archive: Path) -> Image:
    """What the archive holds.

    Raises:
        ArchiveError: not one image, or one without a name.
    """
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index else []
    except (OSError, KeyError, tarfile.TarError, json.JSONDecodeError) as error:
        raise ArchiveError(f"{archive} is no OCI archive: {error}") from error
    if len(manifests) != 1:
        raise ArchiveError(f"{archive} holds {len(manifests)} images, expected 1")
    annotations = manifests[0].get("annotations", {})
    name = annotations.get("io.containerd.image.name") or annotations.get("org.opencontainers.image.ref.name") or ""
    if "/" not in name or ":" not in name:
        raise ArchiveError(
            f"{archive} names its image {name!r}, expected HOST/NAME:TAG (buildah push ... oci-archive:FILE:NAME)"
        )
    return Image(name=name, digest=manifests[0]["digest"])


def write_program(archive: Path, *, name: str, program: Path) -> None:
    """Write an image that is nothing but a static program, run as a numeric user that is not root."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as binary:
            tar.addfile(entry, binary)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
    }
    kind = "application/vnd.oci.image"
    blobs = [layer.getvalue(), _encoded(config)]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": _descriptor(blobs[1], f"{kind}.config.v1+json"),
        "layers": [_descriptor(blobs[0], f"{kind}.layer.v1.tar")],
    }
    blobs.append(_encoded(manifest))
    described = _descriptor(blobs[2], manifest["mediaType"]) | {"annotations": {"io.containerd.image.name": name}}
    files = {f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in blobs}
    files["oci-layout"] = _encoded({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = _encoded({"schemaVersion": 2, "manifests": [described]})
    with tarfile.open(archive, "w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _encoded(document: object) -> bytes:
    return json.dumps(document).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _descriptor(blob: bytes, media_type: object) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
