"""Which GPUs of this machine a local run may use."""

import shutil
import subprocess
from collections.abc import Mapping

from ddpjob_operator.api.spec import DDPJobSpec

#: The one resource that stands for GPUs which CUDA_VISIBLE_DEVICES shares out.
NVIDIA = "nvidia.com/gpu"
#: nvidia-smi answers within a second, or the driver hangs.
QUERY_TIMEOUT_SECONDS = 30


def gpus_for(spec: DDPJobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """As many GPUs as the whole job needs, named as in CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: this machine has too few, or the job asks for another kind.
    """
    needed = spec.nodes * spec.gpus_per_node
    if needed == 0:
        return ()
    if spec.gpu_resource != NVIDIA:
        raise ValueError(
            f"spec.gpuResource is {spec.gpu_resource}; a local run knows {NVIDIA} only: run the job on a cluster"
        )
    found = _visible_gpus(environ)
    if len(found) < needed:
        raise ValueError(
            f"nodes x gpusPerNode is {spec.nodes} x {spec.gpus_per_node} = {needed}, but this machine offers"
            f" {len(found)} GPUs: lower spec.nodes or spec.gpusPerNode (0 trains on CPUs), or run the job on a cluster"
        )
    return found[:needed]


def _visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, else all GPUs that the driver's tool lists; none without the tool."""
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
