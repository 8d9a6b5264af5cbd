"""Kubeconfig files: self-contained, so that they work wherever they are copied to."""

from __future__ import annotations

import base64
import json
from pathlib import Path


def write(file: Path, *, server: str, keys: Path, user: str) -> None:
    """Write a kubeconfig for `server` whose user is the client certificate `user` in the folder `keys`.

    The format is YAML, of which JSON is a part.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "testbed", "cluster": {"server": server, "certificate-authority-data": _encoded(keys / "ca.crt")}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _encoded(keys / f"{user}.crt"),
                    "client-key-data": _encoded(keys / f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "current-context": "testbed",
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(document, indent=2) + "\n")


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
