"""The programs of a Kubernetes cluster, built from their Go modules into the cache.

Each folder next to this file is a Go module that pins its programs by `go.mod` and every source file by `go.sum`, so a
build is verified. One module per project keeps their dependency graphs apart. A program is named by the hash of what it is
built from, so a changed pin or flag leads to a new build, and both versions are kept.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from testbed import paths
from testbed.errors import TestbedError
from testbed.locks import exclusive
from testbed.tools import go

_HERE = Path(__file__).parent

#: How often a running build says how far it is.
PROGRESS_SECONDS = 10


class BuildError(TestbedError):
    """A program could not be built."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One program: the module (a folder here), its package, and build tags."""

    module: str
    package: str
    tags: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A folder of the source of a Go package's module, as one of our modules pins it."""

    module: str
    source: str
    folder: str


#: The minor release of the control plane where it is not that of the other programs: one of those with a folder of its own,
#: for example 1.36.
RELEASE = os.environ.get("TESTBED_KUBERNETES", "")


def _kubernetes(name: str) -> Tool:
    return Tool(module="kubernetes", package=f"k8s.io/kubernetes/cmd/{name}")


def _control_plane(name: str) -> Tool:
    module = f"kubernetes-{RELEASE}" if RELEASE else "kubernetes"
    return Tool(module=module, package=f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str) -> Tool:
    # The snapshotters for btrfs and device mapper need C headers; the test bed uses overlayfs.
    return Tool(
        module="containerd", package=f"github.com/containerd/containerd/v2/cmd/{name}", tags="no_btrfs,no_devmapper"
    )


#: What a control plane needs. No root anywhere.
CONTROL_PLANE = {
    "pki": Tool(module="pki", package="."),
    "etcd": Tool(module="etcd", package="go.etcd.io/etcd/server/v3"),
    "kube-apiserver": _control_plane("kube-apiserver"),
    "kube-controller-manager": _control_plane("kube-controller-manager"),
    "kube-scheduler": _control_plane("kube-scheduler"),
    "kubectl": _kubernetes("kubectl"),
    "kwok": Tool(module="kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
    "helm": Tool(module="helm", package="helm.sh/helm/v4/cmd/helm"),
}

#: What checks the metrics of a program, without the discovery of services in clouds.
MONITORING = {
    name: Tool(module="prometheus", package=f"github.com/prometheus/prometheus/cmd/{name}", tags="remove_all_sd")
    for name in ("prometheus", "promtool")
}

#: A server of the S3 protocol with conditional writes, whose objects are files of a folder.
OBJECT_STORE = {"versitygw": Tool(module="versitygw", package="github.com/versity/versitygw/cmd/versitygw")}

#: A queue of gangs with its chart, and the kinds of a scheduler of gangs, which it depends on.
GANGS: dict[str, Tool | Files] = {
    "kueue": Tool(module="kueue", package="sigs.k8s.io/kueue/cmd/kueue"),
    "kueue-chart": Files(module="kueue", source="sigs.k8s.io/kueue", folder="charts/kueue"),
    "coscheduling-kinds": Files(
        module="kueue", source="sigs.k8s.io/scheduler-plugins", folder="manifests/coscheduling"
    ),
}

#: What checks the workflows of .github.
LINTERS = {"actionlint": Tool(module="actionlint", package="github.com/rhysd/actionlint/cmd/actionlint")}

#: What real nodes need beyond that.
NODES = {
    "kubelet": _kubernetes("kubelet"),
    "kube-proxy": _kubernetes("kube-proxy"),
    "containerd": _containerd("containerd"),
    "containerd-shim-runc-v2": _containerd("containerd-shim-runc-v2"),
    "ctr": _containerd("ctr"),
    "coredns": Tool(module="coredns", package="github.com/coredns/coredns"),
    "pause": Tool(module="pause", package="."),
    "probe": Tool(module="probe", package="."),
}

#: What enforces NetworkPolicies on real nodes: the part of kube-router that does, with a main function of the test bed's.
POLICIES = {"kube-router": Tool(module="kube-router", package=".")}

_ALL: dict[str, Tool | Files] = {
    **(CONTROL_PLANE | MONITORING | OBJECT_STORE | LINTERS | NODES | POLICIES),
    **GANGS,
}


def path(name: str) -> Path:
    """Path of the program or folder `name`, built first where it is missing.

    Raises:
        BuildError: `name` is none of the test bed's programs and folders, or its build failed.
    """
    if name not in _ALL:
        raise BuildError(f"the test bed has no program {name!r}; it has {', '.join(sorted(_ALL))}")
    built = _folder(_ALL[name].module) / name
    if not built.exists():
        build([name])
    return built


def release() -> tuple[int, int]:
    """The minor release of the control plane, such as (1, 37)."""
    major, minor = _version(CONTROL_PLANE["kube-apiserver"].module).removeprefix("v").split(".")[:2]
    return int(major), int(minor)


def is_built(name: str) -> bool:
    """Whether the program `name` is in the cache."""
    return (_folder(_ALL[name].module) / name).exists()


def build(names: Iterable[str]) -> None:
    """Build those of `names` that are not in the cache yet, printing progress.

    Safe to run from several processes at once, and to kill: a program appears under its name only when it is whole.

    Raises:
        BuildError: the compiler failed; its last lines are in the message.
    """
    for name in names:
        tool = _ALL[name]
        folder = _folder(tool.module)
        if (folder / name).exists():
            continue
        with exclusive(folder.with_name(folder.name + ".lock")):
            if not (folder / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                if isinstance(tool, Files):
                    _copy(name, tool, folder)
                else:
                    _compile(name, tool, folder)


@functools.cache
def _folder(module: str) -> Path:
    if not (_HERE / module).is_dir():
        known = ", ".join(sorted(folder.name.partition("-")[2] for folder in _HERE.glob("kubernetes-*")))
        raise BuildError(f"TESTBED_KUBERNETES is {RELEASE}; expected one of {known}")
    sources = sorted((_HERE / module).iterdir())
    digest = hashlib.sha256(repr((_FLAGS, _VARIABLES, _linker_flags(module))).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return paths.cache() / "tools" / f"{module}-{_version(module)}-{digest.hexdigest()[:12]}"


#: The path of the module whose version each of ours is about.
_PINNED = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kwok": "sigs.k8s.io/kwok",
    "helm": "helm.sh/helm/v4",
    "prometheus": "github.com/prometheus/prometheus",
    "versitygw": "github.com/versity/versitygw",
    "actionlint": "github.com/rhysd/actionlint",
    "containerd": "github.com/containerd/containerd/v2",
    "coredns": "github.com/coredns/coredns",
    "kube-router": "github.com/cloudnativelabs/kube-router/v2",
    "kueue": "sigs.k8s.io/kueue",
}


def _is_kubernetes(module: str) -> bool:
    return module.partition("-")[0] == "kubernetes"


def _version(module: str) -> str:
    """The version that `go.mod` pins, "local" for the programs whose source is here."""
    pinned = "k8s.io/kubernetes" if _is_kubernetes(module) else _PINNED.get(module)
    if pinned is None:
        return "local"
    text = (_HERE / module / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(pinned)} (v\S+)", text, re.MULTILINE)
    assert found, f"{module}/go.mod does not require {pinned}"
    return found[1]


_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")
_VARIABLES = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}


def _linker_flags(module: str) -> str:
    if not _is_kubernetes(module):
        return "-s -w"
    # API server, kubelet and kubectl compare versions; unstamped they all call themselves v0.0.0-master.
    version = _version(module)
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in stamps.items())


def _compile(name: str, tool: Tool, folder: Path) -> None:
    began = time.monotonic()
    print(f"testbed: building {name} {_version(tool.module)}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        output = Path(scratch) / name
        command = [go.executable(), "build", "-v", *_FLAGS, "-ldflags", _linker_flags(tool.module)]
        command += ["-tags", tool.tags, "-o", str(output), tool.package]
        process = subprocess.Popen(
            command,
            cwd=_HERE / tool.module,
            env={**os.environ, **_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            while _runs(process, PROGRESS_SECONDS):
                print(
                    f"testbed:   {name}: {time.monotonic() - began:.0f} s, {len(lines)} packages compiled", flush=True
                )
        finally:
            process.kill()
            process.wait()
        reader.join()
        if process.returncode != 0:
            raise BuildError(f"building {name} ({' '.join(command)}) failed:\n" + "".join(lines[-20:]))
        output.rename(folder / name)
    print(f"testbed: built {name} in {time.monotonic() - began:.0f} s", flush=True)


def _copy(name: str, files: Files, folder: Path) -> None:
    """Copy the files next to the programs, so that they are there without Go and its cache of modules."""
    command = [go.executable(), "mod", "download", "-json", files.source]
    environment = {**os.environ, **_VARIABLES}
    done = subprocess.run(
        command, cwd=_HERE / files.module, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as scratch:
        copied = Path(scratch) / name
        source = Path(json.loads(done.stdout)["Dir"]) / files.folder
        # The folders of Go's cache are read-only.
        subprocess.run(["cp", "--recursive", "--no-preserve=all", source, copied], check=True)
        copied.rename(folder / name)


def _runs(process: subprocess.Popen[str], seconds: float) -> bool:
    """Whether `process` still runs after so many seconds, or when it ends."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False
