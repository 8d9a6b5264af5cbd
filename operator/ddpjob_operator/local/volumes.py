"""Where a pod's mounts lie on this machine.

A process sees the machine's own file system, so a mount is honoured by naming another folder: wherever the pod's
command or variables name a path below a mount, the path of the local folder stands instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddpjob_operator.core.model import Body

TMP_DIR = "/tmp"  # noqa: S108 - where the pod mounts its own
SHM_DIR = "/dev/shm"  # noqa: S108 - shared memory, not a temporary file


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a pod's main container."""

    path: str
    """Where the pod sees it."""
    folder: Path
    """Where it lies on this machine."""
    instead_of: str = ""
    """What this machine does not have and `folder`, empty at first, stands for; nothing where it is the real thing."""


def mounts_of(pod: Body, config_maps: Iterable[Body], volumes_folder: Path, tmp_folder: Path) -> tuple[Mount, ...]:
    """The mounts of the pod's main container.

    Args:
        pod: Its body.
        config_maps: The ConfigMaps that came with the job.
        volumes_folder: Where folders are made, and filled from ConfigMaps, for volumes that this machine lacks.
        tmp_folder: What the pod sees as /tmp; a short path, since sockets are made there.

    Raises:
        ValueError: a mount names no volume of the pod, or a path leads out of its volume.
    """
    main = pod["spec"]["containers"][0]
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
        raise ValueError(f"mount {mount['mountPath']} names volume {mount['name']!r}; add it to template.spec.volumes")
    return volumes[mount["name"]]


def _mount(mount: Body, volume: Body, data_of: Mapping[str, Body], volumes_folder: Path, pod_name: str) -> Mount:
    path, sub_path = mount["mountPath"].rstrip("/"), mount.get("subPath", "")
    if _leads_out(PurePosixPath(sub_path)):
        raise ValueError(f"mount {path}: subPath {sub_path!r} leads out of the volume; name a folder inside")
    kind = next((key for key in volume if key != "name"), "emptyDir")
    source = volume.get(kind, {})
    if kind == "hostPath" and _usable(source):
        return Mount(path=path, folder=Path(source["path"]) / sub_path)

    private = kind == "emptyDir"  # every other volume is the same for all pods
    folder = volumes_folder / pod_name / volume["name"] if private else volumes_folder / volume["name"]
    folder.mkdir(parents=True, exist_ok=True)
    known = private
    if kind == "configMap" and source.get("name") in data_of:
        known = True
        for file_name, text in _files(source, data_of[source["name"]]):
            target = folder / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            target.chmod(source.get("defaultMode", 0o644))
    part = folder / sub_path  # a file of a ConfigMap, or a folder, which a kubelet makes
    if not part.exists():
        part.mkdir(parents=True)
    return Mount(path=path, folder=part, instead_of="" if known else f"{kind} {_name(source)}".strip())


def _usable(host_path: Body) -> bool:
    path = Path(host_path["path"])
    if host_path.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    return path.exists()


def _files(source: Body, data: Body) -> list[tuple[PurePosixPath, str]]:
    """File names and texts of a ConfigMap volume: all of its keys, or those that `items` picks.

    Raises:
        ValueError: for a name that leads out of the volume, which a cluster refuses, too.
    """
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    files = [(PurePosixPath(item["path"]), data[item["key"]]) for item in items if item["key"] in data]
    for file_name, _ in files:
        if _leads_out(file_name):
            raise ValueError(f"ConfigMap {source['name']}: file name {str(file_name)!r} leads out of the volume")
    return files


def _leads_out(path: PurePosixPath) -> bool:
    return path.is_absolute() or ".." in path.parts


def _name(source: Body) -> str:
    return next(
        (str(source[key]) for key in ("claimName", "secretName", "name", "path", "driver") if key in source), ""
    )


def localized(text: str, mounts: Iterable[Mount]) -> str:
    """`text` itself, or the local path where it is a path at or below a mount (the deepest, if mounts nest)."""
    for mount in sorted(mounts, key=lambda mount: -len(mount.path)):
        if text == mount.path or text.startswith(mount.path + "/"):
            return str(mount.folder) + text[len(mount.path) :]
    return text
