"""The few programs that are taken from Debian: they need C libraries, or belong to the distribution."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.errors import TestbedError

#: What real nodes need: program or file, and the package that holds it.
NODE_PROGRAMS: Mapping[str, str] = {
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "umount": "mount",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}

#: What the network policy controller runs.
POLICY_PROGRAMS: Mapping[str, str] = {"iptables": "iptables", "ipset": "ipset"}

#: Where Debian puts the network plugins.
CNI_PLUGINS = Path("/usr/lib/cni")


class MissingPackageError(TestbedError):
    """A program is missing and could not be installed."""


def install_missing(programs: Mapping[str, str] = NODE_PROGRAMS) -> None:
    """Install the packages of those programs that are missing, with apt-get.

    Raises:
        MissingPackageError: apt-get is not there or failed.
    """
    missing = sorted({package for program, package in programs.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise MissingPackageError(f"missing: {' '.join(missing)}; there is no apt-get here, install them by hand")
    print(f"testbed: installing {' '.join(missing)} with apt-get", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    for command in (["apt-get", "update", "--quiet"], [*install, *missing]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode != 0:
            raise MissingPackageError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
