"""The files of a directory that travel with a job: which ones, and the ConfigMap that carries them into its pods.

A ConfigMap needs no registry, no volume and no further service, and the job owns it. The price is its size: 1 MiB.
"""

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ddpjob.client.ignore import Rule, excludes, parse
from ddpjob_operator.api import names
from ddpjob_operator.api.resource import Body

Files = Mapping[str, bytes]
"""Contents by path, which is relative and has `/` between its parts."""

#: Where the files are in the pods; it is the working directory of the program.
FOLDER: Final = "/workspace"
#: The API server refuses a ConfigMap whose values are longer together (MaxSecretSize in its source).
MAX_BYTES: Final = 1024 * 1024
#: Each file has an entry in the job and in each of its pods, about 100 bytes long.
MAX_FILES: Final = 500
IGNORE_FILES: Final = (".gitignore", ".ddpjobignore")
#: Ignored unless a .ddpjobignore includes them again: hidden files (repositories, virtual environments, credentials, caches).
_DEFAULTS = (".*", "__pycache__/", "*.pyc", "venv/", "node_modules/", "*.egg-info/")
_VOLUME = "ddpjob-files"
#: Not tokens, tokenizer and the like, which are files of language models.
_SECRET_NAME = re.compile(
    r"(?i)id_(rsa|dsa|ecdsa|ed25519)(_sk)?|[^.]*\.(pem|key|p12|pfx|jks|keystore|ppk|kdbx|ovpn|env|tfvars|tfstate)"
    r"|\.(env|envrc|netrc|pgpass|npmrc|pypirc|htpasswd|git-credentials|boto|s3cfg)(\..*)?"
    r"|(.*[-_.])?(credentials?|secrets?|passwords?|passwd|kubeconfig|token|api[-_]?keys?|(private|access|service[-_]account)[-_]?key"
    r"|service[-_]account)([-_.].*)?(?<!\.py)(?<!\.ipynb)"
)
_NUM_LARGEST = 5

_WAYS_OUT = (
    "exclude what the program does not need with a .ddpjobignore (the syntax is that of .gitignore), put the code into"
    " an image (image), put data into a volume (spec.data), or clone a git repository in an init container"
    " (spec.template.spec.initContainers)"
)


def read_folder(folder: str | os.PathLike[str] = ".") -> dict[str, bytes]:
    """The files of a directory and its sub-directories that no .gitignore and no .ddpjobignore excludes.

    Symbolic links to files among these are followed, those to directories are left out, as are hidden files.

    Raises:
        ValueError: they are too many or too large for a ConfigMap, or are none; the text names the largest ones and the ways out.
            Or a link is one to a file that is not sent itself: whoever wrote the link may not have that file.
        OSError: a file cannot be read.
    """
    root = Path(folder).resolve()
    sizes: dict[str, int] = {}
    for path in _selected(root, _inherited(root)):
        sizes[path.relative_to(root).as_posix()] = path.stat().st_size
        if len(sizes) > MAX_FILES:
            break
    if not sizes:
        raise ValueError(f"{root}: found no file to send; start in the directory of the program")
    check_size(sizes, str(root))
    for name in sizes:
        _check_link(root, name, sizes)
    files = {name: (root / name).read_bytes() for name in sorted(sizes)}
    check_size({name: len(content) for name, content in files.items()}, str(root))
    return files


def _check_link(root: Path, name: str, sent: Collection[str]) -> None:
    path = root / name
    target = path.resolve()
    if path.is_symlink() and not (target.is_relative_to(root) and target.relative_to(root).as_posix() in sent):
        raise ValueError(
            f"{path} is a link to {target}, which is not among the files that are sent; replace the link by the file, or"
            f" exclude it by the line /{name} in {root / IGNORE_FILES[-1]}"
        )


def secret_names(files: Iterable[str]) -> list[str]:
    """Those of the files whose names are usual for passwords, keys and credentials. Whoever may read ConfigMaps reads them."""
    return [name for name in sorted(files) if _SECRET_NAME.fullmatch(name.rpartition("/")[2])]


def check_size(sizes: Mapping[str, int], source: str) -> None:
    """Refuse what does not fit into a ConfigMap.

    Raises:
        ValueError: the files are too many or too large.
    """
    total = sum(sizes.values())
    if len(sizes) <= MAX_FILES and total <= MAX_BYTES:
        return
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_NUM_LARGEST]
    listed = ", ".join(f"{name} ({readable_size(sizes[name])})" for name in largest)
    found = (
        f"more than {MAX_FILES} files" if len(sizes) > MAX_FILES else f"{len(sizes)} files of {readable_size(total)}"
    )
    raise ValueError(
        f"{source}: found {found}, and a job takes at most {MAX_FILES} files of together {readable_size(MAX_BYTES)}; the"
        f" largest are {listed}; {_WAYS_OUT}"
    )


def readable_size(num_bytes: int) -> str:
    """A size such as 12 B, 3.4 KiB or 1.0 MiB."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    unit, size = next((u, s) for u, s in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if num_bytes >= s)
    return f"{num_bytes / size:.1f} {unit}"


def with_files(job: Mapping[str, Any], files: Files, *, folder: str = FOLDER) -> dict[str, Any]:
    """The job, whose pods mount a ConfigMap with these files as their working directory.

    Raises:
        ValueError: the files are too large, or a path leads out of the directory.
    """
    check_size({name: len(content) for name, content in files.items()}, "files")
    for name in files:
        if not name or name.startswith(("/", "..")) or ".." in name.split("/"):
            raise ValueError(f"files: {name!r} is not a path inside of a directory; give one such as package/model.py")
    items = [{"key": _key(name), "path": name} for name in sorted(files)]
    config_map = f"{job['metadata']['name']}-files-{secrets.token_hex(4)}"
    volume = {"name": _VOLUME, "configMap": {"name": config_map, "items": items, "defaultMode": 0o755}}
    mount = {"name": _VOLUME, "mountPath": folder, "readOnly": True}

    spec = dict(job.get("spec") or {})
    template = dict(spec.get("template") or {})
    pod = dict(template.get("spec") or {})
    containers = list(pod.get("containers") or ())
    main = next((c for c in containers if c.get("name") == names.MAIN_CONTAINER), {"name": names.MAIN_CONTAINER})
    changed = {"workingDir": folder, **main, "volumeMounts": [*(main.get("volumeMounts") or ()), mount]}
    pod["containers"] = [changed, *(c for c in containers if c is not main)]
    pod["volumes"] = [*(pod.get("volumes") or ()), volume]
    return {**job, "spec": {**spec, "template": {**template, "spec": pod}}}


def config_map_of(job: Mapping[str, Any], files: Files) -> Body:
    """The ConfigMap that a job from `with_files` mounts."""
    volumes = job["spec"]["template"]["spec"]["volumes"]
    texts: dict[str, str] = {}
    binaries: dict[str, str] = {}
    for name in sorted(files):
        try:
            texts[_key(name)] = files[name].decode()
        except UnicodeDecodeError:
            binaries[_key(name)] = base64.b64encode(files[name]).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": next(v["configMap"]["name"] for v in volumes if v["name"] == _VOLUME)},
        "immutable": True,
        **({"data": texts} if texts else {}),
        **({"binaryData": binaries} if binaries else {}),
    }


def _key(name: str) -> str:
    """A key of a ConfigMap, which allows letters, digits, `-`, `_` and `.` only; the hash keeps keys of two paths apart."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    if plain == name and not name.startswith(".."):
        return name
    return f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{plain[-200:]}"


#: Rules with the directory that their paths are relative to, the closest directory last.
_Rules = Sequence[tuple[Path, Sequence[Rule]]]


def _inherited(root: Path) -> _Rules:
    """The defaults, and the rules of the directories above `root` up to that of the git repository."""
    above = [root, *root.parents]
    repository = next((folder for folder in above if (folder / ".git").exists()), root)
    outer = reversed(above[1 : above.index(repository) + 1])
    return [(root, parse(_DEFAULTS)), *(rules for folder in outer for rules in _rules_of(folder))]


def _rules_of(folder: Path) -> _Rules:
    files = [folder / name for name in IGNORE_FILES]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    return [(folder, parse(text.splitlines())) for text in texts]


def _selected(folder: Path, inherited: _Rules) -> Iterator[Path]:
    """The files below a directory that are not ignored. As for git, nothing below an ignored directory is selected."""
    rules = [*inherited, *_rules_of(folder)]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir()
        if (is_folder and path.is_symlink()) or _is_ignored(path, rules, is_folder=is_folder):
            continue
        if is_folder:
            yield from _selected(path, rules)
        elif path.is_file():
            yield path


def _is_ignored(path: Path, rules: _Rules, *, is_folder: bool) -> bool:
    """What the last rule that matches says; those of the closest directory count most."""
    for base, of_base in reversed(rules):
        excluded = excludes(of_base, path.relative_to(base).as_posix(), is_folder=is_folder)
        if excluded is not None:
            return excluded
    return False
