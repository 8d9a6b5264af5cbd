"""Maps the mounts of a pod to directories of this machine.

A process uses the file system of this machine. Therefore paths below a mount, in the pod's command, variables and
working directory, are replaced by paths below the local directory of that mount.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddpjob_operator.core.model import Body

TMP_DIR = "/tmp"  # noqa: S108 - a mount of the pod
SHM_DIR = "/dev/shm"  # noqa: S108 - shared memory, not a temporary file
#: What the API server takes for the name of a volume, which is that of a directory here.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a pod's main container."""

    path: str
    """The mount path in the pod."""
    folder: Path
    """The directory of this machine that replaces it."""
    instead_of: str = ""
    """The volume that this machine does not have and that an empty `folder` replaces; empty for volumes that it has."""


def mounts_of(pod: Body, config_maps: Iterable[Body], volumes_folder: Path, tmp_folder: Path) -> tuple[Mount, ...]:
    """The mounts of the pod's main container.

    Args:
        pod: Its body.
        config_maps: The ConfigMaps that came with the job.
        volumes_folder: Where directories are created for volumes of the pod, and filled from ConfigMaps.
        tmp_folder: The pod's /tmp. Its path is short, because paths of sockets have a limited length.

    Raises:
        ValueError: a mount refers to a volume that the pod does not have, or a path is outside of its volume, or the name of a
            volume, which becomes that of a directory, is none that an API server accepts.
    """
    main = pod["spec"]["containers"][0]
    for volume in pod["spec"].get("volumes") or ():
        if not _NAME.fullmatch(volume["name"]):
            raise ValueError(
                f"volume {volume['name']!r}: the name may have a to z, 0 to 9 and '-' only, as in a cluster; rename it"
            )
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    data_of = {config_map["metadata"]["name"]: config_map.get("data") or {} for config_map in config_maps}
    own = {TMP_DIR: tmp_folder, SHM_DIR: Path(SHM_DIR)}
    return tuple(
        Mount(path=mount["mountPath"], folder=own[mount["mountPath"]])
        if mount["mountPath"] in own
        else _mount(mount, _volume(mount, volumes), data_of, volumes_folder, pod["metadata"]["name"])
        for mount in main.get("volumeMounts") or ()
    )


def _volume(mount: Body, volumes: Mapping[str, Body]) -> Body:
    if mount["name"] not in volumes:
        raise ValueError(
            f"mount {mount['mountPath']} refers to volume {mount['name']!r}, which the pod does not have; add it to template.spec.volumes"
        )
    return volumes[mount["name"]]


def _mount(mount: Body, volume: Body, data_of: Mapping[str, Body], volumes_folder: Path, pod_name: str) -> Mount:
    path, sub_path = mount["mountPath"].rstrip("/"), mount.get("subPath", "")
    if _leads_out(PurePosixPath(sub_path)):
        raise ValueError(f"mount {path}: subPath {sub_path!r} is outside of the volume; set it to a directory inside")
    kind = next((key for key in volume if key != "name"), "emptyDir")
    source = volume.get(kind, {})
    fault = _fault_of(source, is_read_only=mount.get("readOnly", False)) if kind == "hostPath" else ""
    if kind == "hostPath" and not fault:
        return Mount(path=path, folder=Path(source["path"]) / sub_path)

    private = kind == "emptyDir"  # all pods share every other volume
    folder = volumes_folder / pod_name / volume["name"] if private else volumes_folder / volume["name"]
    folder.mkdir(parents=True, exist_ok=True)
    known = private
    if kind == "configMap" and source.get("name") in data_of:
        known = True
        for file_name, text in _files(source, data_of[source["name"]]):
            target = folder / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            target.chmod(source.get("defaultMode", 0o644) & 0o777)
    part = folder / sub_path  # a file of a ConfigMap, or a directory, which a kubelet would create
    if not part.exists():
        part.mkdir(parents=True)
    return Mount(path=path, folder=part, instead_of="" if known else f"{kind} {_name(source)}{fault}".strip())


def _fault_of(host_path: Body, *, is_read_only: bool) -> str:
    """Why a hostPath cannot be used, for a sentence; empty if it can.

    A directory that programs may write to is created. Of one that they only read, such as that of the data, an empty one is no use.
    """
    path, kind = Path(host_path["path"]), host_path.get("type") or ""
    if path.exists():
        return ""
    if kind != "DirectoryOrCreate" and (kind or is_read_only):
        return ", which does not exist,"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f", which cannot be created ({error.strerror}),"
    return ""


def _files(source: Body, data: Body) -> list[tuple[PurePosixPath, str]]:
    """File names and texts of a ConfigMap volume: all keys, or those in `items`.

    Raises:
        ValueError: a file name is outside of the volume, which a cluster refuses as well.
    """
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    files = [(PurePosixPath(item["path"]), data[item["key"]]) for item in items if item["key"] in data]
    for file_name, _ in files:
        if _leads_out(file_name):
            raise ValueError(f"ConfigMap {source['name']}: file name {str(file_name)!r} is outside of the volume")
    return files


def _leads_out(path: PurePosixPath) -> bool:
    return path.is_absolute() or ".." in path.parts


def _name(source: Body) -> str:
    return next(
        (str(source[key]) for key in ("claimName", "secretName", "name", "path", "driver") if key in source), ""
    )


def localized(text: str, mounts: Iterable[Mount]) -> str:
    """`text`, or the local path if `text` is a mount path or a path below one. The longest mount path applies."""
    for mount in sorted(mounts, key=lambda mount: -len(mount.path)):
        if text == mount.path or text.startswith(mount.path + "/"):
            return str(mount.folder) + text[len(mount.path) :]
    return text
