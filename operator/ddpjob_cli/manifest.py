"""Reads a DDPJob from a YAML file and reports each mistake in a message of its own."""

import copy
import difflib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from ddpjob_cli.rules import broken_rules, without_nulls, wrong_values
from ddpjob_cli.volume_sources import wrong_volumes
from ddpjob_cli.yaml_files import read_objects, read_value
from ddpjob_operator.api.names import API_VERSION, API_VERSIONS, KIND, MAX_JOB_NAME_LENGTH
from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.job_names import new_name
from ddpjob_operator.core.references import as_written
from ddpjob_operator.core.separate_trainings import too_few_processes
from ddpjob_operator.core.stored_spec import why_too_large
from ddpjob_operator.core.untrusted import visible

if TYPE_CHECKING:
    from ddpjob.client.files import Files

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_TOP_LEVEL = {"apiVersion", "kind", "metadata", "spec", "status"}


class ManifestError(ValueError):
    """The file is invalid. The text names the file, the field, what was found, what is expected and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a file."""

    path: Path
    namespace: str
    name: str
    spec: DDPJobSpec
    body: Body
    """The DDPJob as JSON, with the settings and variables of the command line."""
    given_namespace: str | None
    """The namespace that the file names."""
    config_maps: tuple[Body, ...]
    """ConfigMaps of the file, which the job's volumes may refer to."""
    others: tuple[str, ...]
    """Kind and name of all other objects in the file."""
    files: "Files" = field(default_factory=dict)
    """Files of this machine that travel with the job."""

    @property
    def objects(self) -> tuple[Body, ...]:
        """The objects to apply: ConfigMaps before the job that uses them."""
        if self.files:
            from ddpjob.client.files import config_map_of, with_files

            job = with_files(self.body, self.files)
            return (config_map_of(job, self.files), job)
        return (*self.config_maps, self.body)


def read_manifest(
    path: Path, *, name: str | None = None, settings: Iterable[str] = (), variables: Iterable[str] = ()
) -> Manifest:
    """The one DDPJob of a file.

    Args:
        path: The file.
        name: Name of the job instead of that of the file.
        settings: Fields of the spec and their values, such as `trainer.epochs=3`; the values are YAML.
        variables: Environment variables, such as `NCCL_DEBUG=INFO`.

    Raises:
        ManifestError: the file cannot be read, is not YAML, or contains a job that a cluster would refuse.
    """
    documents = _documents(path)
    jobs = [body for body in documents if body.get("kind") == KIND]
    if len(jobs) != 1:
        raise ManifestError(f"{path}: {visible(_not_one_job(path, documents, len(jobs)))}")
    (job,) = jobs
    if name and isinstance(job.get("metadata"), dict):
        job["metadata"]["name"] = name
    namespace, name = _identity(path, job)
    job = {**job, "apiVersion": API_VERSION, "spec": _changed(job.get("spec") or {}, settings, variables)}
    return Manifest(
        path=path,
        body=job,
        given_namespace=job["metadata"].get("namespace"),
        namespace=namespace,
        name=name,
        spec=_spec(path, job),
        config_maps=tuple(body for body in documents if body.get("kind") == "ConfigMap"),
        others=tuple(_title(body) for body in documents if body.get("kind") not in (KIND, "ConfigMap")),
    )


def command_manifest(
    command: Sequence[str],
    *,
    name: str | None = None,
    settings: Iterable[str] = (),
    variables: Iterable[str] = (),
    with_files: bool,
    starts_here: bool = False,
) -> Manifest:
    """A job that runs a command in each pod.

    Args:
        command: Program and arguments.
        name: Name of the job; by default that of the script, and a random end.
        settings: Fields of the spec and their values; the values are YAML.
        variables: Environment variables.
        with_files: Whether the files of the current directory travel with the job.
        starts_here: Whether the command starts in the current directory, so that its script must exist.

    Raises:
        ManifestError: a cluster would refuse the job, or the script does not exist or is not among the files.
        ValueError: the files do not fit.
    """
    place = Path("command line")
    script = next((word for word in command if word.endswith(".py")), None)
    modules = [module for option, module in pairwise(command) if option == "-m"]
    title = PurePosixPath(script or (modules[-1].rpartition(".")[2] if modules else command[0])).stem
    spec = _changed({"command": [as_written(word) for word in command]}, settings, variables)
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name or new_name(title)},
        "spec": spec,
    }
    namespace, job_name = _identity(place, job)
    if starts_here and script and not Path(script).exists():
        raise ManifestError(f"{Path.cwd() / script} does not exist; correct the path of the script")
    files = _files_here() if with_files else {}
    if with_files and script and not script.startswith("/") and posixpath.normpath(script) not in files:
        raise ManifestError(
            f"{script} is not among the {len(files)} files of {Path.cwd()} that travel with the job: "
            + (
                "it is excluded; include it by a line such as !NAME in .ddpjobignore"
                if Path(script).exists()
                else "it does not exist; correct the path"
            )
            + ", or give --no-files with an --image that contains it"
        )
    return Manifest(
        path=place,
        body=job,
        given_namespace=None,
        namespace=namespace,
        name=job_name,
        spec=_spec(place, job),
        config_maps=(),
        others=(),
        files=files,
    )


def _files_here() -> "Files":
    from ddpjob.client.files import (
        read_folder,  # not with the module: its package takes longer to import than all of this
    )

    return read_folder()


def _documents(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".py":
        raise ManifestError(
            f"{path}: is a script, and a DDPJob in YAML is expected; to run it: ddpjob run -- python {path}; to write a DDPJob"
            f" for it: ddpjob init --script {path}"
        )
    try:
        found = read_objects(path)
    except ValueError as error:
        raise ManifestError(str(error)) from None
    for document in found:
        if not isinstance(document, dict):
            raise ManifestError(f"{path}: found {_shown(document)}; expected an object with apiVersion, kind and spec")
    return found


def _not_one_job(path: Path, documents: Sequence[Body], num_jobs: int) -> str:
    """What is wrong with a file that has not exactly one DDPJob, and what to do."""
    kinds = [str(body.get("kind", "an object without kind")) for body in documents]
    similar = [kind for kind in kinds if difflib.get_close_matches(kind.lower(), [KIND.lower()])]
    if num_jobs:
        remedy = "write one file for each"
    elif similar:
        remedy = f"did you mean kind: {KIND}?"
    elif any("kind" not in body for body in documents):
        remedy = f"set kind: {KIND}"
    elif {"PyTorchJob", "TrainJob"} & set(kinds):
        remedy = f"to convert it: ddpjob convert {path}"
    else:
        remedy = "to begin with one: ddpjob init"
    found = ", ".join(kinds) or "nothing"
    return f"found {found}; expected exactly one {KIND}, and ConfigMaps that it uses; {remedy}"


def _identity(path: Path, job: Body) -> tuple[str, str]:
    """Namespace and name, validated by the rules of the API server."""
    if job.get("apiVersion") not in API_VERSIONS:
        raise ManifestError(f"{path}: apiVersion is {_shown(job.get('apiVersion'))}; expected {API_VERSION}")
    if unknown := sorted(map(str, job.keys() - _TOP_LEVEL)):
        known = {field.alias or name for name, field in DDPJobSpec.model_fields.items()}
        remedy = (
            "put it below spec"
            if unknown[0] in known
            else "remove it; an anchor may be written where its values are used first"
        )
        raise ManifestError(f"{path}: unknown field {visible(unknown[0])}; {remedy}")
    metadata = job.get("metadata")
    if not isinstance(metadata, Mapping):
        raise ManifestError(f"{path}: metadata is {_shown(metadata)}; expected a mapping with the job's name")
    name, namespace = metadata.get("name"), metadata.get("namespace", "default")
    if not (isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= MAX_JOB_NAME_LENGTH):
        raise ManifestError(
            f"{path}: metadata.name is {_shown(name)}; expected at most {MAX_JOB_NAME_LENGTH} characters: lower-case"
            " letters, digits and -, beginning with a letter and ending with a letter or digit"
        )
    if not (isinstance(namespace, str) and _NAMESPACE.fullmatch(namespace) and len(namespace) <= 63):
        raise ManifestError(
            f"{path}: metadata.namespace is {_shown(namespace)}; expected lower-case letters, digits and -, at most 63"
        )
    return namespace, name


def _changed(spec: Any, settings: Iterable[str], variables: Iterable[str]) -> Any:
    """A copy of the spec with the settings and variables of the command line."""
    changed = copy.deepcopy(spec)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not (path and equals):
            raise ManifestError(f"--set {setting}: expected FIELD=VALUE, such as trainer.epochs=3")
        *parents, field = path.removeprefix("spec.").split(".")
        place = changed
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ManifestError(f"--set {setting}: a part of spec.{path} is not an object, so it has no fields")
        try:
            place[field] = read_value(text)
        except yaml.YAMLError as error:
            raise ManifestError(
                f"--set {setting}: the value is not YAML: {' '.join(str(error).split())}; quote it, as in --set 'FIELD=\"text: more\"'"
            ) from None
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not (name and equals):
            raise ManifestError(f"--env {variable}: expected NAME=VALUE, such as NCCL_DEBUG=INFO")
        others = [entry for entry in changed.get("env") or [] if entry.get("name") != name]
        changed["env"] = [*others, {"name": name, "value": as_written(value)}]
    return changed


def _spec(path: Path, job: Body) -> DDPJobSpec:
    job = without_nulls(job)
    wrong = wrong_values(job)
    try:
        spec = DDPJobSpec.model_validate(job.get("spec") or {})
    except ValidationError as error:
        said = {line.partition(" is ")[0] for line in wrong}
        wrong += [f"{where}{fault}" for where, fault in _faults(error) if where not in said]
    if wrong:
        raise ManifestError("\n".join(f"{path}: {visible(line)}" for line in wrong))
    too_large = why_too_large(job["spec"])
    waits = too_few_processes(spec)
    others = [f"spec.command: {waits}"] if waits else []
    if broken := [*broken_rules(job), *wrong_volumes(job["spec"]), *([too_large] if too_large else ()), *others]:
        raise ManifestError("\n".join(f"{path}: {visible(line)}" for line in broken))
    return spec


def _faults(error: ValidationError) -> Iterable[tuple[str, str]]:
    """The field, and what was found there and what is expected, of each mistake."""
    for item in error.errors(include_url=False):
        where = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
        if (
            item["type"] == "default_factory_not_called"
        ):  # it repeats the error in the field that the default depends on
            continue
        if item["type"] == "extra_forbidden":
            known = _siblings(item["loc"])
            similar = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
            remedy = f"did you mean {similar[0]}?" if similar else f"expected one of: {', '.join(known)}"
            yield where, f" is not a known field; {remedy}"
        elif item["type"] == "missing":
            yield where, " is missing; set it"
        else:
            expected = item["msg"].replace("Input should", "it should").partition(", unable to parse")[0]
            yield where, f" is {_shown(item['input'])}; {expected}"


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    """The fields that are allowed at this location."""
    model: type[BaseModel] = DDPJobSpec
    for part in location[:-1]:
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        inner = _models(field.annotation) if field else [model]  # a number is an index of a list
        model = inner[0] if inner else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation such as `list[X] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def _title(body: Body) -> str:
    return visible(f"{body.get('kind')} {(body.get('metadata') or {}).get('name')}")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
