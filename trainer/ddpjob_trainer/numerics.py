"""How numbers are computed: the profiles `fast` and `exact`.

`fast` takes what a device offers for speed: on a GPU bfloat16, channels_last, TF32, cuDNN's choice of kernels by trial
and compiled models; on a CPU bfloat16 and channels_last where it has AMX (measured on two busy cores of a Xeon, time of
a step: ResNet-18, 64 images, 0.68 s, 1.22 s in float32; speedrun, 128 images, 0.37 s, 1.71 s). `exact` computes in
float32 by deterministic kernels alone, so that the same run gives the same bits on the same kind of hardware. The CUDA
side is untested: no GPU was at hand.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks.distributed import Gang
from ddpjob_trainer.config import TrainerConfig
from ddpjob_trainer.data import Batch
from ddpjob_trainer.evaluate import Predict

#: A rank may compile for long while another finds the same in its cache.
AS_LONG_AS_IT_TAKES = timedelta(days=7)
#: Profile `exact`: NCCL picks algorithm and protocol by size and load of the moment, and each sums in an order of its
#: own; these leave one of each, and no sums inside switches (NCCL user guide, "Environment Variables"). Untested: no two
#: GPUs were at hand.
EXACT_NCCL = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_COLLNET_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """The choices for one device and model."""

    device: torch.device
    exact: bool
    bfloat16: bool
    channels_last: bool
    compile: bool

    def set_switches(self) -> None:
        """Set this process's switches of PyTorch. To come before the first CUDA kernel."""
        if self.exact:
            # cuBLAS sums in a fixed order only with a workspace of its own (CUDA toolkit, cuBLAS, "Reproducibility").
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)  # to say False would load the whole compiler, for nothing
        torch.backends.cudnn.benchmark = not self.exact
        torch.backends.cudnn.allow_tf32 = not self.exact
        torch.backends.cuda.matmul.allow_tf32 = not self.exact

    def autocast(self) -> AbstractContextManager[None]:
        """For forward passes and losses: bfloat16 where it is safe; weights, gradients and sums stay float32."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16)

    def place(self, model: nn.Module) -> nn.Module:
        """The model on the device, in the memory format of the profile."""
        placed = model.to(self.device)
        return placed.to(memory_format=torch.channels_last) if self.channels_last else placed

    def __str__(self) -> str:
        dtype = "bfloat16" if self.bfloat16 else "float32"
        return (
            f"{'exact' if self.exact else 'fast'}: {dtype}{', channels_last' if self.channels_last else ''}"
            f"{', compiled' if self.compile else ''}"
        )


def choose(config: TrainerConfig, gang: Gang, *, heavy: bool) -> Numerics:
    """What the profile means on the ranks' devices, for a model that is `heavy` or not (see Recipe).

    The same on all ranks, since gradients of one type and memory format are summed: bfloat16 only where all have it.
    """
    fast = config.profile == "fast" and heavy
    bfloat16 = fast and all(gang.all_gather(has_bfloat16(gang.device)))
    return Numerics(
        device=gang.device,
        exact=config.profile == "exact",
        bfloat16=bfloat16,
        channels_last=bfloat16,
        # SyncBatchNorm's sums over ranks would be in the trial of `compile_model`, where one rank may fail alone.
        compile=fast and gang.device.type == "cuda" and config.compile == "auto" and not config.sync_batch_norm,
    )


def fix_nccl(config: TrainerConfig) -> None:
    """Have NCCL sum in one order under the profile `exact`. To come before the process group."""
    if config.profile == "exact":
        for name, value in EXACT_NCCL.items():
            os.environ.setdefault(name, value)


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies matrices of bfloat16, rather than imitating it: GPUs since Ampere, CPUs with AMX."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))


def compile_model(
    replica: DistributedDataParallel,
    batches: list[Batch],
    held_out: list[torch.Tensor],
    predict: Predict,
    numerics: Numerics,
    gang: Gang,
    moved: Callable[[], None],
) -> str:
    """Compile the model in place and try it on batches of all shapes to come; gives what to tell.

    Where that fails on any rank, all go on without. The trial takes the model alone, since a rank that fails in DDP would
    leave the others waiting in the all-reduce; but as if within DDP's forward pass, where alone torch cuts the graph at
    the buckets (torch._dynamo.convert_frame): one graph gives all gradients at its end, too late to hide an all-reduce.
    The caller puts back the model's state, which the trial changes. `batches` are of training, `held_out` images of an
    evaluation, which asks the model by `predict`. `moved` is called after each shape, which may take minutes.
    """
    model = replica.module
    if gang.world_size == 1:
        torch._dynamo.config.optimize_ddp = False  # nothing to hide, so one graph it is
    model.compile(dynamic=False)
    failure = ""
    try:
        for batch in batches:
            with replica._inside_ddp_forward(), numerics.autocast():
                loss = batch.loss(model(batch.images_BCHW))
            torch.autograd.backward(loss)
            moved()
        model.eval()
        for images in held_out:
            with torch.no_grad(), numerics.autocast():
                predict(model, images)
            moved()
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways, none of which may end the training
        failure = f"rank {gang.rank}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    model.train()
    gang.barrier(AS_LONG_AS_IT_TAKES)  # collectives wait for less; what stands still is the watchdog's to end
    failures = [found for found in gang.all_gather(failure) if found]
    if not failures:
        return f"model compiled for {len(batches) + len(held_out)} shapes of batch"
    torch.compiler.set_stance("force_eager")
    return f"torch.compile failed, training goes on without it; set compile to never to be spared the trial ({failures[0]})"


@contextmanager
def garbage_collector_at_rest() -> Iterator[None]:
    """Python's cyclic collector would stop one rank at a random step while all others wait for it.

    Inside it runs only where the loop calls it, at the evaluations. What lives at the beginning lives to the end, so
    `freeze` takes it out of all collections until then.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
