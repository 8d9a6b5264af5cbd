"""Exceptions whose first line says too little, or whose name is not ASCII; argv[1] names one."""

import sys

NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {kind}, NCCL version 2.27.5
{code}: {text}
Last error:
{last}"""
SYSTEM = "System call (e.g. socket, malloc) or external library call failed or device error."
FULL = "Error while creating shared memory segment /dev/shm/nccl-h5dHBA (size 9637888), error: No space left on device (28)"


class ÜberlaufError(Exception):
    """A name that is not ASCII."""


match sys.argv[1]:
    case "pydantic":
        import pydantic

        class Settings(pydantic.BaseModel):
            """Settings."""

            rate: float

        Settings.model_validate({"rate": "fast"})
    case "nccl-cuda":
        from torch.distributed import DistBackendError

        kind = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        last = "Cuda failure 999 'unknown error'"
        raise DistBackendError(
            NCCL.format(kind=kind, code="ncclUnhandledCudaError", text="Call to CUDA function failed.", last=last)
        )
    case "nccl-shared-memory":
        from torch.distributed import DistBackendError

        kind = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
        raise DistBackendError(NCCL.format(kind=kind, code="ncclSystemError", text=SYSTEM, last=FULL))
    case "unicode":
        raise ÜberlaufError("标签 12 超出范围 🚀")
