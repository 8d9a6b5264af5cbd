"""How numbers are computed: the profiles `fast` and `exact`.

`fast` uses what a device offers for speed: on a GPU bfloat16, channels_last, TF32, cuDNN's choice of kernels by trial
and compiled models; on a CPU bfloat16 and channels_last if it has AMX (measured on two busy cores of a Xeon, time of a
step: ResNet-18, 64 images, 0.68 s, in float32 1.22 s; speedrun, 128 images, 0.37 s, in float32 1.71 s) or AVX512-BF16
(one core of an AMD EPYC, ResNet-18, 32 images: 0.54 s, in float32 1.13 s; torch.compile makes neither faster). `exact`
computes in float32 with deterministic kernels only, so that the same run gives the same bits on the same kind of
hardware. The CUDA side is untested: no GPU was available.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.config import TrainerConfig
from ddpjob_trainer.data import Batch
from ddpjob_trainer.evaluate import evaluation_mode
from ddpjob_trainer.recipes import Recipe, stays

#: One rank may compile for long while another finds the result in its cache.
COMPILE_TIMEOUT = timedelta(days=7)
#: Profile `exact`: NCCL chooses algorithm and protocol by message size and topology, and each sums in its own order.
#: These leave one of each, and no sums inside switches (NCCL user guide, "Environment Variables"). Untested: two GPUs
#: were not available.
EXACT_NCCL = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_COLLNET_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """How one model is computed on one device."""

    device: torch.device
    exact: bool
    #: Of the forward and the backward pass.
    dtype: torch.dtype
    channels_last: bool
    compile: bool

    def set_switches(self) -> None:
        """Set PyTorch's global options of this process. To be called before the first CUDA kernel."""
        if self.exact:
            # cuBLAS sums in a fixed order only with a workspace of fixed size (CUDA toolkit, cuBLAS, "Reproducibility").
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)  # False is the default, and setting it loads the whole compiler
            # By default that also fills every new tensor with NaN, which only serves to find kernels that read what they
            # have not written: 412 fills and 5 % of a step of ResNet-18 on a CPU.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property of the module
        torch.backends.cudnn.benchmark = not self.exact
        torch.backends.cudnn.allow_tf32 = not self.exact
        torch.backends.cuda.matmul.allow_tf32 = not self.exact

    def autocast(self) -> AbstractContextManager[None]:
        """For forward passes and losses: 16 bits for the operations that allow it; weights and gradients are float32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not torch.float32)

    def loss_scaler(self) -> torch.amp.GradScaler:
        """Scales losses so that float16 holds their gradients; with other types it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)

    def to_device(self, model: nn.Module) -> nn.Module:
        """The model on the device, in the memory format of the profile."""
        moved = model.to(self.device)
        return moved.to(memory_format=torch.channels_last) if self.channels_last else moved

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{'exact' if self.exact else 'fast'}: {dtype}{', channels_last' if self.channels_last else ''}"
            f"{', compiled' if self.compile else ''}"
        )


def choose(config: TrainerConfig, gang: Gang, *, heavy: bool) -> Numerics:
    """What the profile means on the ranks' devices, for a model that is `heavy` or not (see Recipe).

    The choice is the same on all ranks, since only gradients of one type and memory format can be summed: bfloat16 if all
    have it, else float16 if all are GPUs.
    """
    fast = config.profile == "fast" and heavy
    dtype = torch.float32
    if config.precision != "auto":
        dtype = getattr(torch, config.precision)
    elif fast and all(gang.all_gather(has_bfloat16(gang.device))):
        dtype = torch.bfloat16
    elif fast and all(gang.all_gather(gang.device.type == "cuda")):
        dtype = torch.float16
    return Numerics(
        device=gang.device,
        exact=config.profile == "exact",
        dtype=dtype,
        channels_last=fast and dtype is not torch.float32,
        # Not with SyncBatchNorm: it communicates within the trial of `compile_model`, where one rank may fail alone.
        compile=fast and gang.device.type == "cuda" and config.compile == "auto" and not config.sync_batch_norm,
    )


def fix_nccl(config: TrainerConfig) -> None:
    """Make NCCL sum in one order under the profile `exact`. To be called before the process group is created."""
    if config.profile == "exact":
        for name, value in EXACT_NCCL.items():
            os.environ.setdefault(name, value)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 without emulation: GPUs since Ampere, CPUs with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return bool(found.get("amx_bf16") or found.get("avx512_bf16"))


def compile_model(
    replica: nn.Module,
    batches: list[Batch],
    held_out: list[Any],
    recipe: Recipe,
    numerics: Numerics,
    gang: Gang,
    moved: Callable[[], None],
) -> str:
    """Compile the model in place and try it on batches of all shapes to come; returns what to log.

    If that fails on any rank, all ranks train without compilation. The trial runs the bare model, since a rank that fails
    in DDP would leave the others waiting in the all-reduce. It runs as if within DDP's forward pass, the only place where
    torch splits the graph at the buckets (torch._dynamo.convert_frame): a single graph gives all gradients at its end, too
    late to overlap with an all-reduce. The caller restores the model's state, which the trial changes. `batches` are of
    training, `held_out` batches of an evaluation. `moved` is called after each shape, which may take minutes.
    """
    model = replica
    as_if_in_ddp: Callable[[], AbstractContextManager[None]] = nullcontext
    if isinstance(replica, DistributedDataParallel):
        model, as_if_in_ddp = replica.module, replica._inside_ddp_forward
    model.compile(dynamic=False)
    failure = ""
    try:
        for done, batch in product((0.0,) if recipe.before_step is stays else (0.0, 1.0), batches):
            recipe.before_step(model, done)
            with as_if_in_ddp(), numerics.autocast():
                loss = recipe.loss_of(model, batch)
            torch.autograd.backward(loss)
            moved()
        for content in held_out:
            with evaluation_mode(model), torch.no_grad(), numerics.autocast():
                recipe.forward(model, content)
                if recipe.test_time_forward is not None:
                    recipe.test_time_forward(model, content)
            moved()
    except Exception as error:  # noqa: BLE001 - a compiler fails in many ways, and none of them may end the training
        failure = f"rank {gang.rank}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    gang.barrier(COMPILE_TIMEOUT)  # longer than the timeout of collectives; the watchdog ends a rank that hangs
    failures = [found for found in gang.all_gather(failure) if found]
    if not failures:
        return f"model compiled for {len(batches) + len(held_out)} batch shapes"
    model._compiled_call_impl = None  # only here, since the program may have compiled functions of its own
    return f"torch.compile failed, so training continues without it; set compile to never to skip the attempt ({failures[0]})"


@contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Within this context Python's cyclic collector runs only when the loop calls it, on all ranks after the same step.

    Otherwise it would interrupt one rank at a random step while all others wait for that rank. Objects that exist at the
    beginning live to the end, so `freeze` exempts them from all collections until then.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
