"""Where the test bed keeps its things: built tools, running clusters, images already unpacked."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """The cache folder: `$TESTBED_CACHE_DIR`, else `$XDG_CACHE_HOME/testbed`, else `~/.cache/testbed`."""
    if named := os.environ.get("TESTBED_CACHE_DIR"):
        return Path(named).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "testbed"


def clusters() -> Path:
    """One folder per running control plane or cluster: keys, kubeconfig, logs, journal. Removed with it."""
    return cache() / "clusters"


def image_stores() -> Path:
    """The root folder of each real node's containerd; outlives a cluster, so that an image is unpacked once."""
    return cache() / "image-stores"
