"""Checks that each volume of a job is of a kind that Kubernetes has.

The CRD takes any object, because a rule with the kinds of one release would refuse those of later releases, and stored jobs. A wrong
kind would then be refused with the first pod, after the job was submitted.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddpjob_operator.api.resource import Body

#: The fields of a VolumeSource of Kubernetes 1.37.
_KINDS: Final = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "fc", "flexVolume", "hostPath", "image", "iscsi", "nfs"),
    *("persistentVolumeClaim", "projected", "secret", "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder"),
    *("flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "photonPersistentDisk", "portworxVolume", "quobyte", "rbd"),
    *("scaleIO", "storageos", "vsphereVolume"),
)  # fmt: skip
_USUAL: Final = "persistentVolumeClaim, nfs, hostPath, emptyDir, csi, or another VolumeSource of a pod"


def wrong_volumes(spec: Body) -> Iterator[str]:
    """A line for each volume of a spec with valid types: field, what was found, what is expected."""
    for part in ("data", "checkpoint", "cache"):
        volume = (spec.get(part) or {}).get("volume")
        if volume is not None:
            yield from _mistakes(f"spec.{part}.volume", volume)


def _mistakes(field: str, volume: Mapping[str, Any]) -> Iterator[str]:
    given = {kind: source for kind, source in volume.items() if kind != "name"}  # the operator names its volumes itself
    unknown = [kind for kind in given if kind not in _KINDS]
    for kind in unknown:
        similar = difflib.get_close_matches(kind, _KINDS, n=1)
        yield f"{field}.{kind} is not a kind of volume; " + (
            f"did you mean {similar[0]}?" if similar else f"expected {_USUAL}"
        )
    if not unknown and len(given) != 1:
        found = " and ".join(given) or "no kind of volume"
        yield f"{field} has {found}; expected one of: {_USUAL}"
    for kind, source in given.items():
        if kind in _KINDS and not isinstance(source, Mapping):
            yield f"{field}.{kind} is {source!r:.80}; expected an object, such as {{}} for emptyDir"
