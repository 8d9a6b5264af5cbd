"""Which GPUs of this machine a local run may use."""

import shutil
import subprocess
from collections.abc import Mapping

from ddpjob_operator.api.spec import DDPJobSpec

#: The resource whose GPUs can be assigned by CUDA_VISIBLE_DEVICES.
NVIDIA = "nvidia.com/gpu"
#: nvidia-smi usually answers within a second; a longer time means that the driver hangs.
QUERY_TIMEOUT_SECONDS = 30


def gpus_for(spec: DDPJobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs for all pods of the job, named as in CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: this machine has too few GPUs, or the job requests another resource.
    """
    needed = spec.nodes * spec.gpus_per_node
    if needed == 0:
        return ()
    if spec.gpu_resource != NVIDIA:
        raise ValueError(
            f"spec.gpuResource is {spec.gpu_resource}; a local run supports {NVIDIA} only: run the job on a cluster"
        )
    found = _visible_gpus(environ)
    if len(found) < needed:
        raise ValueError(
            f"the job needs {needed} GPUs (nodes x gpusPerNode is {spec.nodes} x {spec.gpus_per_node}), but this machine"
            f" has {len(found) or 'none'}; to train on its CPUs, add --set gpusPerNode=0 to the command; otherwise lower"
            " nodes or gpusPerNode, or run the job on a cluster"
        )
    return found[:needed]


def _visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs in CUDA_VISIBLE_DEVICES; without it all that nvidia-smi lists; none if nvidia-smi is not installed."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        return tuple(name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip())
    if shutil.which("nvidia-smi") is None:
        return ()
    listing = subprocess.run(
        ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=QUERY_TIMEOUT_SECONDS,
    )
    return tuple(listing.stdout.split()) if listing.returncode == 0 else ()
