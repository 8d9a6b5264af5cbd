"""What a pod may do and where it may write, by `spec.securityProfile`.

The profiles are named for the levels of the Pod Security Standards
(https://kubernetes.io/docs/concepts/security/pod-security-standards/), which a namespace enforces by the label
pod-security.kubernetes.io/enforce.
"""

import re
from typing import Any

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec, SecurityProfile
from ddpjob_operator.core.model import Security

#: uid and gid of `restricted` pods; the image needs no passwd entry for it. It is the group of volumes in every pod.
POD_UID = 65532
#: HOME of a user that has no home directory in the image.
HOME_DIR = "/home/ddpjob"
TMP_DIR = "/tmp"  # noqa: S108 a path inside the pod, where an emptyDir is mounted

_READ_ONLY = re.compile(r"Read-only file system")
#: With a path, or from a program other than Python. Without a path the denied action is not a write to a file.
_DENIED = re.compile(r"(?<!\] )Permission denied|Permission denied: ")
#: A home directory of the image, which other users may often not enter.
_HOME_OF_THE_IMAGE = re.compile(rf"(/root|/home/(?!{HOME_DIR.rpartition('/')[2]}\b)[\w.-]+)(?=[/'\"\s:)]|$)")
#: What the container runtime says of a usual program that this user cannot run. It may be a link to a file elsewhere.
_NOT_RUN = re.compile(
    r'exec:? "?(?:[^\s":]*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|conda|uv)"?: [^\n]*(?:executable file not found|permission denied)'
)
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError: |\S*python\S*: )No module named ")


def pod_security(spec: DDPJobSpec) -> dict[str, Any]:
    """The pod's securityContext."""
    context: dict[str, Any] = {
        "fsGroup": POD_UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if _restricted(spec):
        context |= {"runAsNonRoot": True, "runAsUser": POD_UID, "runAsGroup": POD_UID}
    return context


def container_security(spec: DDPJobSpec) -> dict[str, Any]:
    """The main container's securityContext.

    The root file system is writable for programs of users, which write to relative paths and caches. The built-in
    trainer writes to mounted volumes only.
    """
    context: dict[str, Any] = {"readOnlyRootFilesystem": spec.trainer is not None}
    if _restricted(spec):
        context |= {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return context


def has_own_home(spec: DDPJobSpec) -> bool:
    """Whether the pod has an empty volume for HOME, because the image has no writable home directory for its user."""
    return _restricted(spec) or spec.trainer is not None


def hint_for(error: str, security: Security, spec: DDPJobSpec) -> str:
    """Why the program could not write, read or start and what to change, if that is what the error says; empty for other errors."""
    if home := _hint_for_homes(error, security, spec):
        return home
    if _READ_ONLY.search(error):
        refused, fix = _refused_by_mount(security)
    elif _DENIED.search(error):
        refused, fix = "", _other_user(spec)
    else:
        return ""
    user = "the image's own user" if security.uid is None else f"uid {security.uid}"
    root = "read-only" if security.read_only_root else "writable"
    options = ["use an absolute path there", "set workingDir in spec.template", *fix]
    return (
        f"the container runs as {user} with a {root} root file system{refused}. This user can write to"
        f" {_writable_places(spec)}: {', '.join(options[:-1])}, or {options[-1]}"
    )


def _hint_for_homes(error: str, security: Security, spec: DDPJobSpec) -> str:
    """What to change where Python or code of the image is below a home directory that the pod's user may not enter."""
    user = f"uid {security.uid}"
    if not security.uid:  # the image's own user, or root, who may enter all
        return ""
    if (home := _HOME_OF_THE_IMAGE.search(error)) and "permission denied" in error.lower():
        why = f"{user} may not enter {home[1]}, a home directory of the image"
    elif _NOT_RUN.search(error):
        why = f"{user} cannot run a program that is below a home directory of the image, such as /root/miniconda3, or links to it"
    elif spec.command is not None and _NO_MODULE.match(error):
        why = f"{user} does not find packages in a home directory of the image, such as those of pip install --user"
    else:
        return ""
    return f"{why}: {_other_user(spec)[0]}, or install it where all users can read it, such as /opt"


def _restricted(spec: DDPJobSpec) -> bool:
    return spec.security_profile == SecurityProfile.RESTRICTED


def _refused_by_mount(security: Security) -> tuple[str, list[str]]:
    if security.read_only_root:
        return "", ["set readOnlyRootFilesystem to false in spec.template"]
    return ", so the path is on a volume that is mounted read-only, such as spec.data", []


def _other_user(spec: DDPJobSpec) -> list[str]:
    if _restricted(spec):
        return ["set spec.securityProfile to baseline to run as the image's own user"]
    return ["set runAsUser in spec.template"]


def _writable_places(spec: DDPJobSpec) -> str:
    places = f"{TMP_DIR} and {HOME_DIR}" if has_own_home(spec) else TMP_DIR
    volumes = [contract.CHECKPOINT_DIR] if spec.checkpoint and spec.checkpoint.volume else []
    volumes += [contract.CACHE_DIR] if spec.cache else []
    return places + "".join(f", and to {path} if that volume permits it" for path in volumes)
