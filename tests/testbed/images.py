"""A project's images where there is no container registry.

buildah builds targets of a Dockerfile on a base that debootstrap makes of Debian packages, and skopeo copies them into
the cache as an OCI layout does, uncompressed. Layers are blobs named by digest there, and `load` hands a node only those
that it lacks, as hard links: a change of code costs two thin layers on the whole way. Needs root, and Debian or its like.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from testbed import commands, paths, tools
from testbed.cluster import Cluster
from testbed.errors import TestbedError
from testbed.locks import exclusive
from testbed.node import Node

_BASE_SUITE = "bookworm"
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"

#: Programs; the Debian packages that hold them have the same names.
_PROGRAMS = ("buildah", "debootstrap", "skopeo")

#: containerd may sweep blobs away before an image names them: whenever something else that it held has just ended.
LOAD_ATTEMPTS = 3

#: The settings of pip that say how the package index is reached from this machine.
_PIP_SETTINGS = (
    "cert",
    "client-cert",
    "default-timeout",
    "extra-index-url",
    "index-url",
    "proxy",
    "retries",
    "timeout",
    "trusted-host",
)


class ImageError(TestbedError):
    """There is no such image, or it cannot be built here."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an image is made of.

    Attributes:
        target: of the project's Dockerfile; the image's name in the cache.
        name: its full name with tag.
        project: the folder with the Dockerfile.
        sources: files and folders of the project that the target copies. The builder is given nothing else, so one that
            is left out fails the build.
    """

    target: str
    name: str
    project: Path
    sources: tuple[str, ...]

    def files(self) -> dict[str, bytes]:
        """Content by path, of all that the image is made of."""
        found = [self.project / "Dockerfile"]
        for source in (self.project / name for name in self.sources):
            found += [source] if source.is_file() else source.rglob("*")
        wanted = [file for file in found if file.is_file() and "__pycache__" not in file.parts]
        return {str(file.relative_to(self.project)): file.read_bytes() for file in sorted(wanted)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in the cache.

    Attributes:
        name: its full name with tag.
        key: digest of all that it is made of.
        manifest: the descriptor of its manifest, as an OCI index lists it.
        blobs: size in bytes by digest, of its layers (uncompressed, the base's first), config and manifest.
    """

    name: str
    key: str
    manifest: Mapping[str, Any]
    blobs: Mapping[str, int]

    @property
    def whole(self) -> bool:
        """Whether all of it is still in the cache."""
        return all(_blob(digest).exists() for digest in self.blobs)


def build(recipe: Recipe) -> Image:
    """The image of a recipe, built where the cache does not hold it.

    Raises:
        ImageError: not root.
        CommandError: a step of the build failed.
    """
    if os.geteuid() != 0:
        raise ImageError("building images here needs root; where a registry is, docker build --target ... needs none")
    with exclusive(_lock()):
        files = recipe.files()
        key = _key(files)
        image = _stored(recipe.target)
        if image is None or image.key != key:
            _install_missing_programs()
            with _workshop() as workshop:
                _make_base(workshop)
                _build(workshop, recipe.target, files)
                image = _store(workshop, recipe, key)
                _discard_unused(workshop)
        return image


def load(image: Image, cluster: Cluster) -> None:
    """Put an image into all nodes of a cluster, where it is not there yet; one of the same name is replaced.

    Raises:
        ImageError: the cache has it no more.
        CommandError: a node's containerd refused it.
    """
    with exclusive(_lock()), concurrent.futures.ThreadPoolExecutor() as pool:
        if not image.whole:
            raise ImageError(f"{image.name} has been built again from changed sources: build and load again")
        for outcome in [pool.submit(_load, image, node) for node in cluster.nodes]:
            outcome.result()


def run(target: str, *command: str, user: str, extended_by: Path | None = None) -> str:
    """Run a command in a fresh container of the target's built image as `user` (uid:gid), and give what it printed.

    `extended_by` is the folder of a Dockerfile that makes another image of it, whatever its FROM names.

    Raises:
        CommandError: it failed.
    """
    with exclusive(_lock()), _workshop() as workshop:
        image = _built_name(target)
        if extended_by is not None:  # the image has no tag, so the next build discards it
            (image,) = commands.run(*_buildah(workshop), "bud", "--quiet", f"--from={image}", str(extended_by))
        (container,) = commands.run(*_buildah(workshop), "from", image)
        started = commands.run(
            *_buildah(workshop), "run", "--isolation=chroot", f"--user={user}", container, "--", *command
        )
        return "\n".join(started)


def _folder() -> Path:
    return paths.cache() / "images"


def _lock() -> Path:
    return paths.cache() / "images.lock"


def _blob(digest: str) -> Path:
    return _folder() / "blobs" / digest.replace(":", "/")


# --- What is in the cache --------------------------------------------------------------------------------------------


def _key(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(_base_name().encode())
    for path, content in files.items():
        digest.update(f"\0{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _targets() -> list[str]:
    """Of all images in the cache."""
    return [file.stem for file in _folder().glob("*.json")]


def _stored(target: str) -> Image | None:
    """The target's image in the cache, None where it is not there whole."""
    try:
        image = Image(**json.loads((_folder() / f"{target}.json").read_text()))
    except FileNotFoundError:
        return None
    return image if image.whole else None


# --- Building --------------------------------------------------------------------------------------------------------


def _install_missing_programs() -> None:
    missing = [program for program in _PROGRAMS if not shutil.which(program)]
    if missing:
        print(f"testbed: installing {' '.join(missing)} with apt-get", flush=True)
        commands.run("apt-get", "update", "--quiet")
        commands.run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *missing)


@contextlib.contextmanager
def _workshop() -> Iterator[Path]:
    """A folder for one use of the builder, after clearing away what the last use left, killed or not."""
    workshop = _folder() / "workshop"
    shutil.rmtree(workshop, ignore_errors=True)
    workshop.mkdir(parents=True)
    commands.run(*_buildah(workshop), "rm", "--all")
    yield workshop
    shutil.rmtree(workshop)


def _storage(workshop: Path) -> tuple[Path, Path]:
    """The builder's storage, with the layers that it builds on, and its folder for the state of a run."""
    return _folder() / "storage", workshop / "run"


def _buildah(workshop: Path) -> tuple[str, ...]:
    root, state = _storage(workshop)
    return (*commands.CONTAINED, "buildah", f"--root={root}", f"--runroot={state}", "--storage-driver=overlay")


def _base_name() -> str:
    recipe = hashlib.sha256(f"{_BASE_SUITE} {_BASE_PACKAGES}".encode()).hexdigest()[:12]
    return f"localhost/testbed-base:{_BASE_SUITE}-{recipe}"


def _built_name(target: str) -> str:
    return f"localhost/testbed-{target}:built"


def _make_base(workshop: Path) -> None:
    name = _base_name()
    if name in commands.run(*_buildah(workshop), "images", "--format={{.Name}}:{{.Tag}}"):
        return
    print(f"testbed: making the base image of Debian {_BASE_SUITE}", flush=True)
    root = workshop / "base"
    include = f"--include={_BASE_PACKAGES}"
    commands.run(*commands.CONTAINED, "debootstrap", "--variant=minbase", include, _BASE_SUITE, str(root))
    for unwanted in ("dev", "var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / unwanted)
        (root / unwanted).mkdir()
    (workshop / "base.Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    commands.run(*_buildah(workshop), "bud", f"--file={workshop / 'base.Dockerfile'}", f"--tag={name}", str(root))


def _build(workshop: Path, target: str, files: Mapping[str, bytes]) -> None:
    began = time.monotonic()
    print(f"testbed: building the image {target}", flush=True)
    context = workshop / "context"
    for path, content in files.items():
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        (context / path).write_bytes(content)
    options = ["--layers", "--isolation=chroot", "--network=host", f"--build-arg=BASE={_base_name()}"]
    options += [f"--volume={source}:{place}:ro" for source, place in _pip_files(workshop)]
    commands.run(
        *_buildah(workshop), "bud", *options, f"--target={target}", f"--tag={_built_name(target)}", str(context)
    )
    print(f"testbed: built the image {target} in {time.monotonic() - began:.0f} s", flush=True)


def _pip_files(workshop: Path) -> list[tuple[Path, Path]]:
    """Files with which pip reaches the index from inside the build as it does here: where they lie, where they go."""
    settings: dict[str, str] = {}
    for line in commands.run(sys.executable, "-m", "pip", "config", "list"):
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = ast.literal_eval(value)
    settings = {key: value for key, value in settings.items() if key in _PIP_SETTINGS}
    config = workshop / "pip.conf"
    config.write_text("\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items()), ""]))
    certificates = [Path(settings[key]) for key in ("cert", "client-cert") if key in settings]
    return [(config, Path("/etc/pip.conf")), *((file.resolve(), file) for file in certificates)]


def _store(workshop: Path, recipe: Recipe, key: str) -> Image:
    """Copy a built image from the builder's storage into the cache; layers that are there already cost nothing."""
    root, state = _storage(workshop)
    layout = workshop / "layout"
    (_folder() / "blobs").mkdir(exist_ok=True)
    copy = [*commands.CONTAINED, "skopeo", "copy"]
    copy += ["--insecure-policy"]  # there is no signature on what was built here just now
    copy += ["--dest-oci-accept-uncompressed-layers", f"--dest-shared-blob-dir={_folder() / 'blobs'}"]
    commands.run(*copy, f"containers-storage:[overlay@{root}+{state}]{_built_name(recipe.target)}", f"oci:{layout}")
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    listed = json.loads(_blob(manifest["digest"]).read_text())
    blobs = {part["digest"]: part["size"] for part in (*listed["layers"], listed["config"], manifest)}
    image = Image(name=recipe.name, key=key, manifest=manifest, blobs=blobs)
    (workshop / "image.json").write_text(json.dumps(dataclasses.asdict(image)))
    (workshop / "image.json").rename(_folder() / f"{recipe.target}.json")
    return image


def _discard_unused(workshop: Path) -> None:
    """Remove the layers of images that were replaced, from the builder's storage and from the cache."""
    commands.run(*_buildah(workshop), "rmi", "--prune")
    used = {digest for image in map(_stored, _targets()) if image for digest in image.blobs}
    for blob in (_folder() / "blobs").glob("*/*"):
        if f"{blob.parent.name}:{blob.name}" not in used:
            blob.unlink()


# --- Loading ---------------------------------------------------------------------------------------------------------


def _load(image: Image, node: Node) -> None:
    ctr = (str(tools.path("ctr")), f"--address={node.socket}", "--namespace=k8s.io")
    for attempts_left in reversed(range(LOAD_ATTEMPTS)):
        present = set(commands.run(*ctr, "content", "list", "--quiet"))
        for digest, size_bytes in image.blobs.items():
            if digest not in present:
                _ingest(ctr, node, digest, size_bytes)
        try:
            with _index(image) as index:
                commands.run(*ctr, "images", "import", "--local", "--snapshotter=overlayfs", "-", stdin=index)
        except commands.CommandError as error:
            if "not found" not in str(error) or not attempts_left:
                raise
        else:
            return


def _ingest(ctr: tuple[str, ...], node: Node, digest: str, size_bytes: int) -> None:
    # What lies in its store already, containerd adopts: no second copy of 6 GB, and no minute to write it.
    place = node.store / "io.containerd.content.v1.content/blobs" / digest.replace(":", "/")
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.hardlink_to(_blob(digest))
    expected = (f"--expected-digest={digest}", f"--expected-size={size_bytes}")
    with _blob(digest).open("rb") as blob:
        commands.run(*ctr, "content", "ingest", *expected, f"image-{digest}", stdin=blob)


@contextlib.contextmanager
def _index(image: Image) -> Iterator[IO[bytes]]:
    """An OCI archive that names the image and holds none of its blobs."""
    named = {**image.manifest, "annotations": {"io.containerd.image.name": image.name}}
    files = {"oci-layout": {"imageLayoutVersion": "1.0.0"}, "index.json": {"schemaVersion": 2, "manifests": [named]}}
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, document in files.items():
                content = json.dumps(document).encode()
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        archive.seek(0)
        yield archive
